"""Tries deliberate faults, one at a time: `python -m tests.faults [--quick] [NAME ...]`

Each is applied to a copy of the checkout, where the tests of `make test` and `make integration` run
until the first failure. Prints what became of each and exits 1 where one survived. The test that a
fault names comes first; --quick leaves it at this, which takes minutes in place of hours.

NAME: a part of the name of the faults to try (default: all).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults import ALL, Fault

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = ('.git', '.venv', 'build', 'dist', 'runs', '*_cache', '__pycache__', '*.egg-info')
NAMED = 'not slow'  # tests that a fault names
SUITE = ('not slow and not integration', 'integration and not slow')  # as the Makefile has them
FAILED = 1  # pytest's status where a test failed
LIMIT = 3600  # seconds of one run of the suite; a fault may make it endless


def apply(fault: Fault, root: Path) -> None:
    """Changes the file. Raises ValueError where the fault is not of this checkout."""
    file = root / fault.file
    text = file.read_text()
    if (times := text.count(fault.old)) != 1:
        raise ValueError(f'{fault.name}: {fault.file} holds {fault.old!r} {times} times, not once')
    file.write_text(text.replace(fault.old, fault.new))


def caught(fault: Fault, copy: Path, cache: Path, workers: int, quick: bool) -> bool:
    """Whether a test of the suite fails in a copy of the checkout that has the fault."""
    return fails(copy, cache, [f'tests/{fault.test}'], NAMED, 0) or (
        not quick and any(fails(copy, cache, ['tests'], marked, workers) for marked in SUITE)
    )


def fails(copy: Path, cache: Path, tests: Sequence[str], marked: str, workers: int) -> bool:
    """Whether one of the tests fails. Raises RuntimeError where they could not be run.

    cache: of compiled programs, most of which are those of the other copies. marked: which of the
    tests, as pytest's -m takes it.
    """
    command = [sys.executable, '-m', 'pytest', '-q', '-x', '-m', marked, '--tb=no', *tests]
    command += ['-o', f'cache_dir={cache}']
    if workers > 1:
        command += ['-n', str(workers)]
    environment = os.environ | {'PYTHONPATH': str(copy), 'PYTHONDONTWRITEBYTECODE': '1'}
    try:
        done = subprocess.run(
            command, cwd=copy, env=environment, capture_output=True, text=True, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return True
    if done.returncode not in (0, FAILED, 2):  # 2: a module that could not be imported
        raise RuntimeError(f'pytest ended with {done.returncode}: {done.stdout}{done.stderr}')
    return done.returncode != 0


def main() -> int:
    parser = argparse.ArgumentParser(prog='python -m tests.faults', description=__doc__)
    parser.add_argument('names', nargs='*')
    parser.add_argument('--quick', action='store_true')
    parser.add_argument('--workers', type=int, default=2)
    asked = parser.parse_args()
    chosen = [f for f in ALL if not asked.names or any(name in f.name for name in asked.names)]
    survived = 0
    with tempfile.TemporaryDirectory(prefix='dfl_jax-faults-') as folder:
        cache, copy = Path(folder, 'cache'), Path(folder, 'checkout')
        for fault in chosen:
            begin = time.monotonic()
            shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT_OUT))
            apply(fault, copy)
            seen = caught(fault, copy, cache, asked.workers, asked.quick)
            shutil.rmtree(copy)
            survived += not seen
            seconds = time.monotonic() - begin
            print(f'{"caught" if seen else "SURVIVED":9}{seconds:6.0f} s  {fault.name}', flush=True)
    print(f'{len(chosen) - survived} of {len(chosen)} caught')
    return 1 if survived else 0


if __name__ == '__main__':
    sys.exit(main())
