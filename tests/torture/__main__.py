"""`python -m tests.torture`: all parts or some, counted live; status 1 where a case failed."""

import argparse
import contextlib
import json
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType

from tqdm import tqdm

from tests.torture import devices, full_disk, kills, malformed, tampered, together
from tests.torture.processes import Starter
from tests.torture.runs import Case, World
from tests.torture.verdict import Fault

PARTS: dict[str, ModuleType] = {
    'malformed': malformed,
    'kills': kills,
    'tampered': tampered,
    'together': together,
    'full_disk': full_disk,
    'devices': devices,
}


@dataclass
class Failure:
    """A case that did not pass, and how to see it again."""

    part: str
    case: int
    seed: int
    seen: str
    history: list[str]

    def __str__(self) -> str:
        again = f'python -m tests.torture --part={self.part} --seed={self.seed} --only={self.case}'
        seen = f'FAILED {self.part} {self.case}: {self.seen}'
        return '\n'.join([seen, *self.history, f'again: {again}'])


@dataclass
class Tally:
    """What became of a part's cases."""

    part: str
    cases: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    @property
    def line(self) -> str:
        failed = len(self.failures)
        extra = ', '.join(f'{number} {what}' for what, number in sorted(self.counts.items()))
        name = f'{self.part} ({extra})' if extra else self.part
        return f'| {name} | {self.cases} | {self.cases - failed} | {failed} | {self.seconds:.0f} |'


def torture(
    part: str,
    world: World,
    *,
    seed: int = 0,
    count: int | None = None,
    only: Sequence[int] = (),
    workers: int = 2,
    keep: bool = False,
    progress: bool = True,
) -> Tally:
    """Runs `count` cases of a part, by default all of them, or those of the numbers `only`.

    keep: leave the folders of failed cases.
    """
    numbers = only or range(PARTS[part].COUNT if count is None else count)
    tally, begun = Tally(part), time.monotonic()
    bar = tqdm(total=len(numbers), desc=part, unit='case', disable=not progress)
    with bar, ThreadPoolExecutor(workers) as pool:
        jobs = [pool.submit(one, part, number, seed, world, keep) for number in numbers]
        for job in as_completed(jobs):
            case, failure = job.result()
            tally.cases += 1
            for what, times in case.counts.items():
                tally.counts[what] = tally.counts.get(what, 0) + times
            if failure:
                tally.failures.append(failure)
                if progress:
                    bar.write(f'{failure}\n', file=sys.stdout)
            bar.set_postfix_str(f'{len(tally.failures)} failed')
            bar.update()
    tally.seconds = time.monotonic() - begun
    return tally


def one(part: str, number: int, seed: int, world: World, keep: bool) -> tuple[Case, Failure | None]:
    """One case, always the same of the same part, seed and number."""
    folder = world.scratch / part / str(number)
    folder.mkdir(parents=True)
    case = Case(part, number, random.Random(f'{seed}/{part}/{number}'), folder, world)
    seen = None
    try:
        PARTS[part].check(case)
    except Fault as fault:
        seen = str(fault)
    except Exception:
        seen = f'the harness itself failed\n{traceback.format_exc()}'
    if seen is None or not keep:
        shutil.rmtree(folder, ignore_errors=True)
    return case, None if seen is None else Failure(part, number, seed, seen, case.history)


def table(tallies: Sequence[Tally]) -> str:
    head = ['| part | cases | passed | failed | seconds |', '|---|--:|--:|--:|--:|']
    return '\n'.join(head + [tally.line for tally in tallies])


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog='python -m tests.torture', description=__doc__)
    parser.add_argument('--part', default=','.join(PARTS), help='of these, separated by commas')
    parser.add_argument('--count', type=int, help="cases of a part (default: the part's own)")
    parser.add_argument('--seed', type=int, default=0, help='of the cases (default 0)')
    parser.add_argument('--only', default='', help='numbers of cases, separated by commas')
    parser.add_argument('--workers', type=int, default=2, help='cases at once (default 2)')
    parser.add_argument('--out', type=Path, help='a .json of the counts and failures')
    parser.add_argument('--keep', type=Path, help='an empty folder, in which failed cases stay')
    chosen = parser.parse_args(argv)
    chosen.part = chosen.part.split(',')
    if unknown := [part for part in chosen.part if part not in PARTS]:
        parser.error(f'unknown part {unknown[0]}; choose from {", ".join(PARTS)}')
    chosen.only = [int(number) for number in chosen.only.split(',') if number]
    return chosen


@contextlib.contextmanager
def scratch_of(keep: Path | None) -> Iterator[Path]:
    """An empty folder for all cases: `keep`, or one that is gone in the end."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix='torture-', ignore_cleanup_errors=True) as folder:
            yield Path(folder)
        return
    keep.mkdir(parents=True, exist_ok=True)
    if any(keep.iterdir()):
        raise SystemExit(f'--keep={keep} is not empty')
    yield keep.absolute()


def main() -> int:
    chosen = arguments()
    tallies = []
    with scratch_of(chosen.keep) as scratch, contextlib.closing(Starter(scratch)) as started:
        world = World(started, scratch)
        for part in chosen.part:
            tally = torture(
                part,
                world,
                seed=chosen.seed,
                count=chosen.count,
                only=chosen.only,
                workers=chosen.workers,
                keep=chosen.keep is not None,
            )
            tallies.append(tally)
    print(table(tallies))
    if chosen.out:
        chosen.out.write_text(json.dumps([asdict(tally) for tally in tallies], indent=1) + '\n')
    return int(any(tally.failures for tally in tallies))


if __name__ == '__main__':
    sys.exit(main())
