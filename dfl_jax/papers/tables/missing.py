"""The runs that a table lacks: which they are, how long they take, and training them.

A run is a cell and a seed, in a directory CELL-seedSEED. What it takes is known from those of its
cell, or of other cells of its method, by the seconds of their rounds; kept curves have those of the
machine that they were made on.
"""

import fnmatch
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dfl_jax.cli.run.command import use_cache
from dfl_jax.cli.sweep.named_runs import NamedRuns
from dfl_jax.cli.sweep.plan import Run
from dfl_jax.experiment.environment import prepare_jax
from dfl_jax.experiment.run_directory import Row, RunDirectory
from dfl_jax.experiment.run_settings import Placement
from dfl_jax.plain_text import counted, markdown_table
from dfl_jax.results.curves import SECONDS, Runs, read_flagfile


class Job(NamedTuple):
    """A run that a table may have."""

    cell: str
    seed: int
    flagfile: Path
    partition_file: Path | None
    rounds: int  # that the flagfile asks for
    there: bool  # so many are there

    @property
    def name(self) -> str:
        return f'{self.cell}-seed{self.seed}'


def chosen_cells(flagfiles: Mapping[str, Path], patterns: Sequence[str]) -> dict[str, Path]:
    """The flagfiles of the cells that match any of the patterns, of all cells without patterns.

    Raises ValueError for a pattern that none matches.
    """
    for pattern in patterns:
        if not fnmatch.filter(flagfiles, pattern):
            raise ValueError(f'--cells={pattern} matches none of {", ".join(sorted(flagfiles))}')
    chosen = {cell for pattern in patterns or ['*'] for cell in fnmatch.filter(flagfiles, pattern)}
    return {cell: file for cell, file in flagfiles.items() if cell in chosen}


def jobs_of(
    flagfiles: Mapping[str, Path], seeds: Iterable[int], runs: Runs, partitions: Mapping[str, Path]
) -> list[Job]:
    """A job a cell and seed. runs: those that there are; partitions: file, by column."""
    jobs = []
    for (cell, file), seed in ((pair, seed) for pair in flagfiles.items() for seed in seeds):
        rounds = int(read_flagfile(file)['rounds'])
        name = f'{cell}-seed{seed}'
        there = any(run['run'] == name and run['round'][-1] >= rounds for run in runs.get(cell, ()))
        column = cell.partition('-')[2]
        jobs.append(Job(cell, seed, file, partitions.get(column), rounds, there))
    return jobs


def partition_files(published: Row, folder: str | None) -> dict[str, Path]:
    """The authors' partition of each column that has one, in this folder; empty without a folder.

    Raises ValueError for a file that is not there, and for a table without any.
    """
    if folder is None:
        return {}
    names = published.get('partition_files', {})
    if not names:
        raise ValueError(f'--partitions={folder}: this table has none; leave it out')
    files = {column: Path(folder, name) for column, name in names.items()}
    if missing := next((file for file in files.values() if not file.is_file()), None):
        raise ValueError(f'--partitions={folder} holds no {missing.name}; name their folder')
    return files


def seconds_of(job: Job, runs: Runs) -> float | None:
    """The seconds that the rounds of a run take, evaluation apart; None where nothing tells.

    Of the runs of its cell, else of those of its method.
    """
    method = job.cell.partition('-')[0]
    others = [
        run for cell, several in runs.items() if cell.startswith(f'{method}-') for run in several
    ]
    for known in (runs.get(job.cell, ()), others):
        if paces := [run[SECONDS] for run in known if SECONDS in run]:
            return job.rounds * statistics.median(paces)
    return None


def cheapest_first(jobs: Sequence[Job], runs: Runs) -> list[tuple[Job, float | None]]:
    """The jobs with their seconds, the cheapest first, those of unknown cost last."""
    costs = [(job, seconds_of(job, runs)) for job in jobs]
    return sorted(costs, key=lambda each: (each[1] is None, each[1] or each[0].rounds))


def listing(jobs: Sequence[Job], runs: Runs) -> str:
    """Markdown: of every cell the seeds that are there, those that are not, rounds and seconds."""
    by_cell: dict[str, list[Job]] = {}
    for job in jobs:
        by_cell.setdefault(job.cell, []).append(job)
    rows = []
    for cell, of_cell in by_cell.items():
        seconds = seconds_of(of_cell[0], runs)
        seeds = [
            ', '.join(str(job.seed) for job in of_cell if job.there is there) or '-'
            for there in (True, False)
        ]
        rows.append([cell, *seeds, str(of_cell[0].rounds), duration(seconds)])
    missing = [job for job in jobs if not job.there]
    head = ['cell', 'seeds there', 'seeds missing', 'rounds', 'a run takes']
    count = f'{counted(len(missing), "run")} missing{_time_in_words(missing, runs)}'
    return f'{markdown_table(head, rows, 3)}\n\n{count}'


def _time_in_words(jobs: Sequence[Job], runs: Runs) -> str:
    costs = [seconds_of(job, runs) for job in jobs]
    known = [cost for cost in costs if cost is not None]
    if not known:
        return ''
    unknown = len(costs) - len(known)
    without = f', {counted(unknown, "run")} of unknown cost apart' * bool(unknown)
    return f': about {duration(sum(known))} of training, evaluation apart{without}'


def duration(seconds: float | None) -> str:
    """E.g. 75 s, 12 min or 3.5 h; ? for None."""
    if seconds is None:
        return '?'
    if seconds < 90:
        return f'{seconds:.0f} s'
    return f'{seconds / 60:.0f} min' if seconds < 5400 else f'{seconds / 3600:.1f} h'


def train(
    jobs: Sequence[Job], runs: Runs, folder: Path, data_dir: str | None, progress: bool
) -> list[str]:
    """Trains the jobs that are not there, the seeds of a cell as one program, the cheapest first.

    A run that was interrupted goes on. Returns the names of those that failed; raises ValueError
    where one cannot even begin, as the next would not either.
    """
    missing = [job for job, _ in cheapest_first([job for job in jobs if not job.there], runs)]
    use_cache(None)
    prepare_jax(Placement())
    trained = NamedRuns(folder, {'data_dir': data_dir} if data_dir else {}, progress)
    failed: dict[str, str] = {}
    here: Runs = {}  # what runs took on this machine today, with their evaluation
    left = list(missing)
    for group in trained.groups([_run_of(job) for job in missing]):
        names, first = [one.name for one in group], len(missing) - len(left) + 1
        mine = [job for job in left if job.name in names]
        costs = [
            sum(seconds_of(job, here) or seconds_of(job, runs) or 0.0 for job in some)
            for some in (mine, left)
        ]
        about, rest = (duration(cost or None) for cost in costs)
        words = f'{", ".join(names)}: {mine[0].rounds} rounds, about {about}; {rest} left'
        print(f'[{first} of {len(missing)}] {words}', flush=True)
        left = [job for job in left if job.name not in names]
        begin, before = time.monotonic(), sum(_rounds_of(folder / name) for name in names)
        reasons = trained.train(group)
        for name, why in reasons.items():
            if not (folder / name / 'config.json').exists():
                raise ValueError(f'{name} could not begin: {why}; the others were not tried')
            print(f'error: {name}: {why}', file=sys.stderr)
        failed |= reasons
        done = sum(_rounds_of(folder / name) for name in names) - before
        if done and not reasons:
            pace = (time.monotonic() - begin) / done
            here.setdefault(mine[0].cell, []).append({SECONDS: pace})
    return [*failed]


def _run_of(job: Job) -> Run:
    values = {'seed': str(job.seed)}
    if job.partition_file:
        values['partition_file'] = str(job.partition_file)
    return Run(job.name, str(job.flagfile), values)


def _rounds_of(out: Path) -> int:
    """The rounds that a run has evaluated."""
    rows = RunDirectory(out).undamaged_rows()[0]
    return rows[-1][0]['round'] if rows else 0
