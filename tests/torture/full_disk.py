"""No space: a run says so in a line, and goes on to the same bits once there is some."""

import os
import subprocess
from functools import cache
from pathlib import Path

from tests.torture.processes import Process
from tests.torture.runs import OFTEN, Case, fresh, resumed
from tests.torture.verdict import refused, same_bits, succeeded

COUNT = 16
KIB = 1024


def check(case: Case) -> None:
    recipe = case.rng.choice(OFTEN)
    whole = case.world.undisturbed(recipe)
    if case.rng.random() < 0.5 and mounting():
        on_a_small_disk(case, recipe, whole)
    else:
        with_short_files(case, recipe, whole)


def with_short_files(case: Case, recipe: str, whole: Path) -> None:
    """No file may be longer than a limit, as under a quota."""
    sizes = sorted({path.stat().st_size for path in whole.rglob('*') if path.is_file()})
    limit = case.rng.randint(1500, max(sizes[-1] - 1, 1501))
    case.note(f'no file above {limit} bytes')
    out = case.folder / 'run'
    _short_of_space(case, case.start(fresh(recipe, out), file_size=limit))
    _with_space(case, recipe, out, whole)


def on_a_small_disk(case: Case, recipe: str, whole: Path) -> None:
    disk = case.folder / 'disk'
    disk.mkdir()
    used = sum(-(-p.stat().st_size // 4096) * 4 for p in whole.rglob('*') if p.is_file())
    size = 4 * case.rng.randint(1, max(used // 5, 2))
    case.note(f'a disk of {size} KiB; the run leaves {used} KiB')
    _mount('-t', 'tmpfs', '-o', f'size={size}k', 'tmpfs', str(disk))
    try:
        out = disk / 'run'
        _short_of_space(case, case.start(fresh(recipe, out)))
        _mount('-o', 'remount,size=64m', str(disk))
        _with_space(case, recipe, out, whole)
    finally:
        subprocess.run(['umount', '-l', str(disk)], check=False)


def _short_of_space(case: Case, process: Process) -> None:
    """It failed with one message; or it had enough, which the sizes do not tell beforehand."""
    ended = process.outcome()
    if ended.status == 0:
        succeeded(ended)
        case.counts['had enough'] += 1
    else:
        refused(ended)
        case.counts['ran out'] += 1


def _with_space(case: Case, recipe: str, out: Path, whole: Path) -> None:
    begun = (out / 'config.json').exists()
    succeeded(case.finish(resumed(out) if begun else fresh(recipe, out)))
    same_bits(out, whole)


@cache
def mounting() -> bool:
    """Whether this process may mount a tmpfs."""
    if os.geteuid() != 0:
        return False
    folder = Path(f'/tmp/torture-mount-{os.getpid()}')
    folder.mkdir()
    try:
        _mount('-t', 'tmpfs', '-o', 'size=64k', 'tmpfs', str(folder))
        subprocess.run(['umount', str(folder)], check=True)
        return True
    except (OSError, subprocess.CalledProcessError):
        return False
    finally:
        folder.rmdir()


def _mount(*arguments: str) -> None:
    subprocess.run(['mount', *arguments], check=True, capture_output=True)
