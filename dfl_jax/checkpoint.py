"""Checkpoints of a run: the algorithm's state and the simulator's progress, by orbax.

A checkpoint appears whole or not at all, and the last two are kept. Each holds the checksums of its
files: orbax notices a lost or cut file, but reads most flipped bits of an array as they come.
"""

import json
import zlib
from dataclasses import asdict
from pathlib import Path

import jax

from dfl_jax.base import State
from dfl_jax.simulate import Progress

KEPT = 2
CHECKSUMS = 'checksums.json'  # of the state's and the progress' files, by their path
PIECE = 2**24  # bytes of a file in memory


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
        """Of the checkpoints, the newest first."""
        return sorted(self._manager.all_steps(), reverse=True)

    def latest(self) -> int | None:
        """The round of the newest checkpoint, None when there is none."""
        return self._manager.latest_step()

    def save(self, state: State, *progress: Progress) -> None:
        """Saves the state of one run with its progress, or of runs together with all of theirs."""
        round = progress[0].round
        args = self._ocp.args
        self._manager.save(
            round,
            args=args.Composite(
                state=args.StandardSave(state),
                progress=args.JsonSave({'runs': list(map(asdict, progress))}),
            ),
        )
        folder = self.folder / str(round)
        temporary = folder / f'{CHECKSUMS}.tmp'
        temporary.write_text(json.dumps(_checksums(folder)))
        temporary.replace(folder / CHECKSUMS)

    def restore(self, like: State, round: int | None = None) -> tuple[State, list[Progress]]:
        """The checkpoint of `round`, by default the newest: the state, the progress of each run.

        like: gives the state's structure, shapes and dtypes.

        Raises ValueError when its files are not those that were saved, and whatever orbax and
        tensorstore raise where they find a fault.
        """
        round = self.latest() if round is None else round
        _check(self.folder / str(round))
        args = self._ocp.args
        found = self._manager.restore(
            round,
            args=args.Composite(state=args.StandardRestore(like), progress=args.JsonRestore()),
        )
        state = jax.tree.map(lambda a, s: jax.numpy.asarray(a, s.dtype), found.state, like)
        return state, [Progress(**one) for one in found.progress['runs']]

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


def _checksums(folder: Path) -> dict[str, int]:
    """CRC-32 of every file of the state and the progress, by its path below the checkpoint."""
    files = (path for item in ('state', 'progress') for path in (folder / item).rglob('*'))
    return {
        path.relative_to(folder).as_posix(): _checksum(path)
        for path in sorted(files)
        if path.is_file()
    }


def _checksum(path: Path) -> int:
    value = 0
    with open(path, 'rb') as file:
        while piece := file.read(PIECE):
            value = zlib.crc32(piece, value)
    return value


def _check(folder: Path) -> None:
    """Raises ValueError naming a file that changed; a kill may have left it without checksums."""
    file = folder / CHECKSUMS
    if not file.exists():
        return
    now = _checksums(folder)
    for name, value in json.loads(file.read_text()).items():
        if name not in now:
            raise ValueError(f'{name} is missing')
        if now[name] != value:
            raise ValueError(f'{name} is not what was saved')
