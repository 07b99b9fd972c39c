"""Checkpoints of a run: the algorithm's state and the simulator's progress.

A checkpoint is a folder with one archive of NumPy's, whose checksums tell of damage. It appears
whole or not at all, and the last two are kept. It holds whole arrays, so that any number and kind
of devices can go on from it.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dfl_jax.base import State
from dfl_jax.progress import Progress

KEPT = 2
FORMAT = 3  # of a checkpoint; 2 was that of orbax
FILE, RECORD = 'state.npz', 'progress'
PARTIAL = '.partial'


class Saved(NamedTuple):
    """What a checkpoint holds."""

    state: State  # NumPy arrays, whole
    progress: list[Progress]  # of each run, one but for runs that are trained together
    notes: list[Any]  # what was saved beside, JSON


class Checkpoints:
    """The checkpoints below one folder, numbered by round.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     kept = Checkpoints(folder)
    ...     kept.save({'weights': np.ones(3)}, Progress(4, 1.5, {}))
    ...     kept.latest(), kept.restore({'weights': np.zeros(3)}).state
    (4, {'weights': array([1., 1., 1.])})
    """

    def __init__(self, folder: str | Path):
        self.folder = Path(folder).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)

    def rounds(self) -> list[int]:
        """The rounds that have a checkpoint, the newest first."""
        folders = (path for path in self.folder.iterdir() if path.is_dir())
        return sorted((int(path.name) for path in folders if path.name.isdecimal()), reverse=True)

    def latest(self) -> int | None:
        """The round of the newest checkpoint, None when there is none."""
        return next(iter(self.rounds()), None)

    def save(self, state: State, *progress: Progress, notes: Sequence[Any] = ()) -> None:
        """Saves the state of one run with its progress, or of runs together with all of theirs.

        state: arrays on any devices of this process, or on the host. notes: JSON to keep beside.

        Raises OSError when it cannot be written, and ValueError when it is of no later round than
        the newest checkpoint; earlier checkpoints stay as they are.
        """
        round, newest = progress[0].round, self.latest()
        if newest is not None and round <= newest:
            raise ValueError(
                f'a checkpoint of round {round} cannot follow that of round {newest} in '
                f'{self.folder}: give it a folder of its own'
            )
        partial = self.folder / f'{round}{PARTIAL}'
        for left in self.folder.glob(f'*{PARTIAL}'):
            _remove(left)
        try:
            arrays = _by_name(jax.device_get(state))
            record = {'format': FORMAT, 'runs': list(map(asdict, progress)), 'notes': list(notes)}
            record['dtypes'] = {name: str(array.dtype) for name, array in arrays.items()}
            text = np.frombuffer(json.dumps(record).encode(), np.uint8)
            partial.mkdir()
            with open(partial / FILE, 'wb') as file:
                np.savez(file, **{RECORD: text}, **arrays)
                file.flush()
                os.fsync(file.fileno())
            partial.rename(self.folder / str(round))
            _sync(self.folder)
        except BaseException as error:
            _remove(partial)
            if not isinstance(error, Exception):
                raise
            text = ' '.join(str(error).split())
            raise OSError(f'checkpoint {round} in {self.folder}: {text}') from error
        for old in self.rounds()[KEPT:]:
            _remove(self.folder / str(old))

    def restore(self, like: State, round: int | None = None) -> Saved:
        """The checkpoint of `round`, by default the newest; also one that orbax wrote for an
        earlier version.

        like: gives the state's structure, shapes and dtypes.

        Raises ValueError when it is not a state of this kind, and whatever NumPy raises where it
        finds a fault.
        """
        folder = self.folder / str(self.latest() if round is None else round)
        if (folder / 'state').is_dir():
            from dfl_jax.orbax_checkpoint import read

            state, record = read(folder, like)
        else:
            state, record = _read(folder / FILE, like)
        return Saved(state, [Progress(**one) for one in record['runs']], record['notes'])

    def set_aside(self, round: int) -> Path:
        """Renames a checkpoint, which does not count from then on; returns its new path."""
        free = self.folder / f'unreadable-{round}'
        number = 1
        while free.exists():
            number += 1
            free = self.folder / f'unreadable-{round}-{number}'
        (self.folder / str(round)).rename(free)
        return free


def _by_name(state: State) -> dict[str, Any]:
    """The leaves of a state by their paths in it.

    Raises ValueError for what an archive of arrays does not hold, or not under its name.
    """
    named: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        name = f'state/{jax.tree_util.keystr(path, simple=True, separator="/")}'
        if name in named or name.endswith('.npy') or '\0' in name:
            raise ValueError(f'{name!r} names no part of a state, or two; call it otherwise')
        if leaf.dtype.hasobject:
            raise ValueError(f'{name} holds {leaf.dtype}; keep numbers')
        named[name] = leaf
    return named


def _remove(path: Path) -> None:
    """What cannot be removed stays."""
    with contextlib.suppress(OSError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Has the names in a folder survive a loss of power."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _read(path: Path, like: State) -> tuple[State, dict[str, Any]]:
    """The state of an archive, and what is beside it."""
    with np.load(path) as file:
        record = json.loads(file[RECORD].tobytes())
        if record['format'] != FORMAT:
            raise ValueError(f'it is of format {record["format"]}, and this version reads {FORMAT}')
        wanted = _by_name(like)
        if {RECORD, *wanted} != set(file.files):
            raise ValueError('it holds the state of another method')
        leaves = []
        for name, leaf in wanted.items():
            found, dtype = file[name], record['dtypes'][name]
            if (dtype, found.shape) != (str(leaf.dtype), leaf.shape):
                raise ValueError(f'{name} is {dtype} {found.shape}, not {leaf.dtype} {leaf.shape}')
            leaves.append(found.view(leaf.dtype))  # NumPy does not know the name of a bfloat16
    return jax.tree.unflatten(jax.tree.structure(like), leaves), record
