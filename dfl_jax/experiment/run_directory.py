"""A run directory: config.json, metrics.jsonl, clients.jsonl, network.json, checkpoints/,
consensus.safetensors, done, lock.

It is never overwritten: a directory that holds a run is continued with `resume` or refused, and one
process at a time works in it. What is read again later carries a digest, so that a file that was
lost, cut or changed is noticed: config.json its own, every line of metrics.jsonl and clients.jsonl
that of all lines up to it, `done` that of the consensus model.
"""

import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from dfl_jax.data import FILES as DATA_FILES
from dfl_jax.data.hub import PREFIX as FROM_HUB
from dfl_jax.evaluation import CLIENTS
from dfl_jax.experiment.rows_file import Row, RowsFile, digest_of
from dfl_jax.files import read_json, to_json, write_atomically
from dfl_jax.setting_error import InputError, SettingError

LOCK = 'lock'
MOVED = ('data_dir', 'partition_file', 'topology_file', 'architecture_file', 'evaluate_clients')
NAMED = ('dataset', 'world', 'arrival', 'attackers')  # may be files, too, or something else by name


class RunDirectory:
    """The files of one run below `path`."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.config_file = self.path / 'config.json'
        self.metrics_file = self.path / 'metrics.jsonl'
        self.network_file = self.path / 'network.json'
        self.checkpoints = self.path / 'checkpoints'
        self.consensus = self.path / 'consensus.safetensors'
        self.done = self.path / 'done'
        self.clients_file = self.path / 'clients.jsonl'
        self._metrics, self._clients = RowsFile(self.metrics_file), RowsFile(self.clients_file)

    # -------------------------------------------------------------------------------- who works

    def check_free(self) -> None:
        """Raises ValueError when a new run would meet files that are there already."""
        if self.config_file.exists():
            remedy = 'continue it with `resume` or choose another `out`'
            raise SettingError('out', self.path, 'exists', remedy, colon=False)
        if self.path.exists() and (
            not self.path.is_dir() or any(map(_foreign, self.path.iterdir()))
        ):
            text = 'exists and holds no run; choose another `out`'
            raise SettingError('out', self.path, text, colon=False)

    def check_lockable(self) -> None:
        """Raises ValueError where nothing can be locked in the directory, which need not exist."""
        there = next(path for path in (self.path, *self.path.absolute().parents) if path.is_dir())
        with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=there) as scratch:
            lock(scratch, self.path)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes out of the directory, which has to exist, for the block's length.

        The operating system frees the lock of a process that dies. Raises ValueError when another
        process has it.
        """
        with open(self.path / LOCK, 'a', encoding='utf-8') as file:
            if not lock(file, self.path):
                raise InputError(
                    f'another process works in {self.path}; wait for it or choose another `out`'
                )
            for leftover in self.path.glob('*.tmp'):  # of a writer that was killed
                leftover.unlink()
            yield

    # ----------------------------------------------------------------------------------- config

    def write_config(self, config: Row) -> None:
        text = to_json(config | {'digest': digest_of(config)}, indent=2)
        write_atomically(self.config_file, f'{text}\n')

    def config(self) -> Row:
        """What config.json records, without its digest.

        Raises ValueError for a file that is missing, damaged, or not of a run.
        """
        try:
            config = read_json(self.config_file)
            if not isinstance(config, dict) or not isinstance(config.get('settings'), dict):
                raise ValueError(f'{self.config_file} is not of a run')
            digest = config.pop('digest', None)
            if digest is not None and digest != digest_of(config):
                raise ValueError(f'{self.config_file} is damaged: it is not what was written')
            return config
        except ValueError as error:
            raise ValueError(f'{error}; bring a copy back, or choose another run') from None

    def check_settings(self, before: Row, settings: Row) -> None:
        """Raises ValueError when the settings are not those of the run, `before`.

        Files may have moved: what is in them is compared when they have been read.
        """
        now = json.loads(json.dumps(settings))
        for name in sorted(before.keys() | now.keys()):
            both = before.get(name), now.get(name)
            files = name in MOVED or (name in NAMED and all(map(names_a_file, both)))
            moved = files and None not in both
            chosen = name == 'chunk' and both[0] is None  # by the run, from the memory then
            if before.get(name) != now.get(name) and not moved and not chosen:
                raise InputError(
                    f'`resume`: {self.path} was started with `{name}`={shown(before.get(name))}, '
                    f'not {shown(now.get(name))}; resume with the same settings or choose '
                    'another `out`'
                )

    # ---------------------------------------------------------------------------------- metrics

    def rows(self) -> list[Row]:
        """The evaluations so far; a half-written last line, left by a kill, does not count.

        Raises ValueError naming the first line that is not as it was written.
        """
        rows, fault = self.undamaged_rows()
        if fault or (self.done.exists() and (fault := self._short(rows))):
            raise ValueError(fault)
        return [row for row, _ in rows]

    def _short(self, rows: list[tuple[Row, str]]) -> str | None:
        """What is wrong with the evaluations of a run that is done, where they lack the last."""
        config = self.config()
        rounds, inputs = config['settings'].get('rounds'), config.get('inputs')
        graphs = inputs.get('graphs') if isinstance(inputs, dict) else None
        drawn = graphs.get('rounds') if isinstance(graphs, dict) else None
        if type(rounds) is int and type(drawn) is int:  # fewer where its privacy ends it early
            rounds = min(rounds, drawn)
        if type(rounds) is not int or (rows and rows[-1][0]['round'] == rounds):
            return None
        return f'{self.metrics_file} does not end at round {rounds}, and the run is done'

    def undamaged_rows(self) -> tuple[list[tuple[Row, str]], str | None]:
        """The evaluations before the first damage, as `RowsFile.undamaged` returns them."""
        return self._metrics.undamaged()

    def client_rows(self) -> list[Row]:
        """What the evaluations say of each client, {'round': r, metric: [M], 'loss': [M]},
        and who of them attacks, 'attacker': [M], where some do.

        Empty for a run from before clients.jsonl. Raises ValueError where the file is damaged.
        """
        rows, fault = self._clients.undamaged()
        if fault:
            raise ValueError(fault)
        return [row for row, _ in rows]

    def keep(self, rows: list[Row]) -> None:
        """Makes these evaluations all that metrics.jsonl and clients.jsonl hold."""
        kept = {row['round'] for row in rows}
        self._clients.keep([row for row, _ in self._clients.undamaged()[0] if row['round'] in kept])
        self._metrics.keep(rows)

    def append(self, row: Row) -> str:
        """Adds an evaluation; returns the digest of those before it.

        row: what metrics.jsonl gets, and under CLIENTS, where it is there, what clients.jsonl gets,
        which is written first: metrics.jsonl says how far a run has come.
        """
        if clients := row.get(CLIENTS):
            self._clients.append({'round': row['round']} | clients)
        return self._metrics.append({name: row[name] for name in row if name != CLIENTS})

    # -------------------------------------------------------------------------------------- end

    def finish(self) -> None:
        """Marks the run as done."""
        write_atomically(self.done, to_json({'consensus': _file_digest(self.consensus)}) + '\n')

    def unfinished(self) -> str | None:
        """Why the run is not done, or no longer; None where it is, to its last round."""
        if not self.done.exists():
            return 'it has not reached its last round'
        rows, fault = self.undamaged_rows()
        if fault := fault or self._short(rows):
            return fault
        text = self.done.read_text(encoding='utf-8')
        if text and read_json(self.done) != {'consensus': _file_digest(self.consensus)}:
            return f'{self.consensus} is not what was written'
        return None


def unused(path: Path) -> Path:
    """Makes the folder `path`, or `path-2`, `path-3`, ... where others have it; returns which."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        free = path if number == 1 else path.with_name(f'{path.name}-{number}')
        with contextlib.suppress(FileExistsError):
            free.mkdir()
            return free
    raise AssertionError


def shown(value: Any) -> str:
    """A flag's value as it is typed."""
    if value is None:
        return '(default)'
    return ','.join(map(str, value)) if isinstance(value, list) else str(value)


def names_a_file(value: Any) -> bool:
    """Whether a value of one of NAMED is a file, or a folder in a format of Hugging Face."""
    return isinstance(value, str) and (
        Path(value).suffix in DATA_FILES or value.startswith((FROM_HUB, 'file:'))
    )


def _foreign(entry: Path) -> bool:
    """Whether a file is not one that a run killed before its config.json leaves behind."""
    return entry.name != LOCK and not entry.name.endswith('.tmp')


# -------------------------------------------------------------------------------------------- files


def lock(file: IO, folder: Path) -> bool:
    """Locks a file below a folder until it is closed; whether no other process has it.

    Raises ValueError where the file system has no locks.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise InputError(
            f'{folder} cannot be locked ({error.strerror or error}), as on a network file system '
            'without locks; two processes would mix up their files there, choose `out` on a local '
            'disk'
        ) from None
    return True


def _file_digest(path: Path) -> str | None:
    """SHA-256 of a file, None where there is none."""
    try:
        with open(path, 'rb') as file:
            return hashlib.file_digest(file, 'sha256').hexdigest()
    except OSError:
        return None
