"""A run directory: config.json, metrics.jsonl, checkpoints/, consensus.safetensors, done.

It is never overwritten: a directory that holds a run is continued with --resume or refused.
"""

import json
import os
from pathlib import Path
from typing import Any

Row = dict[str, Any]


class RunDirectory:
    """The files of one run below `path`."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self.config_file = self.path / 'config.json'
        self.metrics_file = self.path / 'metrics.jsonl'
        self.checkpoints = self.path / 'checkpoints'
        self.consensus = self.path / 'consensus.safetensors'
        self.done = self.path / 'done'

    def check(self, settings: Row, resume: bool) -> None:
        """Raises ValueError when a run of these settings cannot start or resume here.

        That is: the directory exists and `resume` is off, there is nothing to resume, or the
        settings differ from those of the run it holds.
        """
        if resume:
            if not self.config_file.exists():
                raise ValueError(f'--resume: {self.path} holds no run; start it without --resume')
            self._check_same(self._settings(), settings)
        elif self.config_file.exists():
            raise ValueError(
                f'--out={self.path} exists; continue it with --resume or choose another --out'
            )
        elif self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
            raise ValueError(f'--out={self.path} exists and holds no run; choose another --out')

    def claim(self, config: Row) -> list[str]:
        """Makes the directory and writes config.json, once.

        Returns remarks on what changed around a resumed run and may change its last bits.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.config_file.exists():
            write_atomically(self.config_file, json.dumps(config, indent=2) + '\n')
        before = json.loads(self.config_file.read_text())
        return [
            f'{name} was {before.get(name)} when the run began and is {config.get(name)} now; '
            'its last bits may differ'
            for name in ('versions', 'device', 'devices')
            if before.get(name) != config.get(name)
        ]

    def _settings(self) -> Row:
        try:
            return json.loads(self.config_file.read_text())['settings']
        except (ValueError, LookupError, TypeError):
            raise ValueError(
                f'--resume: {self.config_file} is damaged; choose another --out'
            ) from None

    def _check_same(self, before: Row, settings: Row) -> None:
        now = json.loads(json.dumps(settings))
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                raise ValueError(
                    f'--resume: {self.path} was started with --{name}={shown(before.get(name))}, '
                    f'not {shown(now.get(name))}; resume with the same settings or choose '
                    'another --out'
                )

    def config(self) -> Row:
        """What config.json holds. Raises ValueError, one line, where it is of no run."""
        found = read_json(self.config_file)
        if not isinstance(found, dict) or not isinstance(found.get('settings'), dict):
            raise ValueError(f'{self.config_file} is damaged, or not of a run')
        return found

    def rows(self) -> list[Row]:
        """The evaluations so far; a half-written last line, left by a kill, does not count.

        Raises ValueError, one line, for a file that is damaged.
        """
        if not os.path.lexists(self.metrics_file):
            return []
        try:
            lines = self.metrics_file.read_text().split('\n')
            return [json.loads(line) for line in lines[:-1]]
        except (OSError, ValueError, RecursionError) as error:
            raise ValueError(f'{self.metrics_file} cannot be read ({error})') from error

    def keep_until(self, round: int) -> list[Row]:
        """Drops the evaluations after `round`, which a resumed run makes again."""
        kept = [row for row in self.rows() if row['round'] <= round]
        write_atomically(self.metrics_file, ''.join(json.dumps(row) + '\n' for row in kept))
        return kept

    def append(self, row: Row) -> None:
        with open(self.metrics_file, 'a') as file:
            file.write(json.dumps(row) + '\n')
            file.flush()
            os.fsync(file.fileno())


def read_json(path: Path) -> Any:
    """What the file holds. Raises ValueError, one line, for whatever is wrong with it."""
    try:
        if not path.is_file():
            raise ValueError('it is no file' if path.exists() else 'there is none')
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f'{path} cannot be read ({error})') from error


def shown(value: Any) -> str:
    """A flag's value as it is typed."""
    if value is None:
        return '(default)'
    return ','.join(value) if isinstance(value, list) else str(value)


def write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f'{path.name}.{os.getpid()}.tmp')
    temporary.write_text(text)
    temporary.replace(path)
