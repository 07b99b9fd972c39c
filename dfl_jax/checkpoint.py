"""Checkpoints of a run: the algorithm's state and the simulator's progress, by orbax.

A checkpoint appears whole or not at all, and the last two are kept. It holds whole arrays, so that
any number and kind of devices can go on from it, and a digest of what it holds: orbax notices a
lost or cut file, but reads most flipped bits of an array as they come.
"""

import contextlib
import hashlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dfl_jax.base import State
from dfl_jax.progress import Progress

KEPT = 2
FORMAT = 2  # of states; those of the first held sizes and the number of the round
LATE = 0.2  # seconds to wait for the threads of a failed read


class Saved(NamedTuple):
    """What a checkpoint holds."""

    state: State  # NumPy arrays, whole
    progress: list[Progress]  # of each run, one but for runs that are trained together
    notes: list[Any]  # what was saved beside, JSON


class Checkpoints:
    """The checkpoints below one folder, numbered by round."""

    def __init__(self, folder: Path):
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self.folder = Path(folder).absolute()
        self.folder.mkdir(parents=True, exist_ok=True)
        only = jax.process_index()  # of several processes each saves and reads for itself
        self._manager = ocp.CheckpointManager(
            self.folder,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=KEPT,
                enable_async_checkpointing=False,
                create=False,
                multiprocessing_options=ocp.options.MultiprocessingOptions(
                    primary_host=only, active_processes={only}, barrier_sync_key_prefix=str(only)
                ),
            ),
        )

    def rounds(self) -> list[int]:
        """The rounds that have a checkpoint, the newest first."""
        return sorted(self._manager.all_steps(), reverse=True)

    def latest(self) -> int | None:
        """The round of the newest checkpoint, None when there is none."""
        return self._manager.latest_step()

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
        whole = jax.device_get(state)
        runs = list(map(asdict, progress))
        record = {'format': FORMAT, 'runs': runs, 'notes': list(notes)}
        args = self._ocp.args
        try:
            with _late_threads_hidden():
                self._manager.save(
                    round,
                    args=args.Composite(
                        state=args.StandardSave(whole),
                        progress=args.JsonSave(record | {'digest': _digest(whole, record)}),
                    ),
                )
        except Exception as error:  # orbax, tensorstore and the system each have their own
            text = ' '.join(str(error).split())
            raise OSError(f'checkpoint {round} in {self.folder}: {text}') from error

    def restore(self, like: State, round: int | None = None) -> Saved:
        """The checkpoint of `round`, by default the newest.

        like: gives the state's structure, shapes and dtypes.

        Raises ValueError when it is not what was saved or a state of another kind, and whatever
        orbax and tensorstore raise where they find a fault.
        """
        round = self.latest() if round is None else round
        args = self._ocp.args
        hosted = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), like)
        with _late_threads_hidden():
            record = dict(
                self._manager.restore(
                    round, args=args.Composite(progress=args.JsonRestore())
                ).progress
            )
            if 'runs' in record and record.get('format') != FORMAT:
                raise ValueError(
                    f'an earlier version of dfl_jax wrote it, and this one reads format {FORMAT}'
                )
            restored = self._manager.restore(
                round, args=args.Composite(state=args.StandardRestore(hosted))
            )
        digest = record.pop('digest', None)
        if digest is None:
            raise ValueError('it has no digest to be compared with')
        if digest != _digest(restored.state, record):
            raise ValueError('it is not what was saved')
        return Saved(restored.state, [Progress(**one) for one in record['runs']], record['notes'])

    def set_aside(self, round: int) -> Path:
        """Renames a checkpoint, which does not count from then on; returns its new path."""
        free = self.folder / f'unreadable-{round}'
        number = 1
        while free.exists():
            number += 1
            free = self.folder / f'unreadable-{round}-{number}'
        (self.folder / str(round)).rename(free)
        self._manager.reload()
        return free


@contextlib.contextmanager
def _late_threads_hidden() -> Iterator[None]:
    """Hides the tracebacks of tensorstore's threads after a failed read or write.

    orbax reads and writes all arrays at once and closes its event loop at the first fault; the
    threads of the others then print a traceback each.
    """
    before = sys.unraisablehook

    def hook(what: Any) -> None:
        if str(what.exc_value) != 'Event loop is closed':
            before(what)

    sys.unraisablehook = hook
    try:
        yield
    except Exception:
        time.sleep(LATE)
        raise
    finally:
        sys.unraisablehook = before


def _digest(state: State, record: dict[str, Any]) -> str:
    """SHA-256 of every array, with its place, dtype and shape, and of the record."""
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        array = np.ascontiguousarray(leaf)
        digest.update(f'{jax.tree_util.keystr(path)} {array.dtype} {array.shape}'.encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
