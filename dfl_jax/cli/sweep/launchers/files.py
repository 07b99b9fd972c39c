"""The files of a group on their way between the head and a worker, where no disk is shared."""

import contextlib
import fcntl
import io
import os
import shutil
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from dfl_jax.cli.sweep.plan import Run
from dfl_jax.cli.sweep.train_runs import CHECKPOINTS, group_folder
from dfl_jax.experiment.run_directory import LOCK, RunDirectory
from dfl_jax.files import write_atomically

ARRIVING = 'arriving'  # in the folder of a group, what is not yet whole


class Update(NamedTuple):
    """What changed in the files of a group."""

    files: dict[str, bytes]  # of its runs, by their paths below the sweep's folder
    checkpoints: dict[str, bytes]  # archives of whole checkpoints, by their paths
    gone: list[str]  # checkpoints that are no longer there


class Files:
    """The files of a group below the folder `out` of a sweep, here or on a worker."""

    def __init__(self, out: Path, runs: Sequence[Run]):
        self._out, self._runs = out, [one.name for one in runs]
        self._group = group_folder(out, runs)
        self._known: dict[str, tuple[int, ...]] = {}

    def changes(self) -> Update:
        """What changed since this was last asked for, at first everything."""
        now = self._seen(self._run_files() + self._checkpoints())
        changed = [name for name, stamp in now.items() if self._known.get(name) != stamp]
        gone = [name for name in self._known if name not in now]
        self._known = now
        folders = [name for name in changed if (self._out / name).is_dir()]
        return Update(
            {name: (self._out / name).read_bytes() for name in changed if name not in folders},
            {name: _packed(self._out / name) for name in folders},
            gone,
        )

    def apply(self, update: Update) -> None:
        """Makes the files what they are where the update comes from.

        In the order in which a run writes them: a head that dies on the way can go on.
        """
        rank = {'config.json': 0, 'done': 2}
        for name in sorted(update.files, key=lambda name: rank.get(Path(name).name, 1)):
            (self._out / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._out / name, update.files[name])
        for name, archive in update.checkpoints.items():
            _unpack(archive, self._out / name, self._group / ARRIVING)
        for name in update.gone:
            if (self._out / name).is_dir():
                shutil.rmtree(self._out / name)
            else:
                (self._out / name).unlink(missing_ok=True)

    def finish(self) -> None:
        """Removes the checkpoints of a group that is trained."""
        for folder in (CHECKPOINTS, ARRIVING):
            shutil.rmtree(self._group / folder, ignore_errors=True)

    def _seen(self, paths: list[Path]) -> dict[str, tuple[int, ...]]:
        """Each path with what tells one state of a file from the next."""
        stats = ((path, path.stat()) for path in paths)
        return {
            str(path.relative_to(self._out)): (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            for path, stat in stats
        }

    def _run_files(self) -> list[Path]:
        return [
            path
            for name in self._runs
            for path in sorted((self._out / name).glob('*'))
            if path.is_file() and path.name != LOCK and path.suffix != '.tmp'
        ]

    def _checkpoints(self) -> list[Path]:
        """Those of each program of the group that are whole: their names are their rounds."""
        found = sorted((self._group / CHECKPOINTS).glob('*/*'))
        return [path for path in found if path.name.isdecimal() and path.is_dir()]


@contextlib.contextmanager
def scratch() -> Iterator[Path]:
    """A folder of this machine for the length of the block.

    Folders that a killed process has left are removed: checkpoints may be large.
    """
    parent = Path(tempfile.gettempdir()) / f'dfl_jax-sweep-{os.getuid()}'
    parent.mkdir(mode=0o700, exist_ok=True)
    with contextlib.ExitStack() as lock:
        with _alone(parent):
            for left in (path for path in parent.iterdir() if path.is_dir()):
                with contextlib.suppress(ValueError), RunDirectory(left).locked():
                    shutil.rmtree(left)
            folder = Path(tempfile.mkdtemp(dir=parent))
            lock.enter_context(RunDirectory(folder).locked())
        try:
            yield folder
        finally:
            with _alone(parent):  # else another would take what is half removed for a leftover
                shutil.rmtree(folder)


@contextlib.contextmanager
def _alone(parent: Path) -> Iterator[None]:
    """Makes and removes folders below `parent` while no other process does."""
    with open(parent / LOCK, 'a', encoding='utf-8') as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _packed(folder: Path) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode='w') as archive:
        archive.add(folder, arcname='.')
    return stream.getvalue()


def _unpack(archive: bytes, folder: Path, scratch: Path) -> None:
    """Puts the folder in its place whole or not at all."""
    shutil.rmtree(scratch, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(archive)) as stream:
        stream.extractall(scratch, filter='data')
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch.rename(folder)
