"""One page of all claims of the papers: published, ours, and a verdict that the curves decide.

`python -m experiments.tables all --runs=docs/results --out=docs` writes it as reproduction.md. The
runs of a table are those of the file PAPER-TABLE.json in the folder, and those of other tables'
files whose cells have the same flagfile. docs/tables.md says what published.json holds for it.
"""

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dfl_jax.experiment.run_directory import Row
from dfl_jax.papers.tables.missing import duration
from dfl_jax.plain_text import counted, markdown_table
from dfl_jax.results.curves import SECONDS, Runs, find_runs
from dfl_jax.results.measured import (
    METRICS,
    Measured,
    by_metric,
    heading,
    mean,
    measure_cell,
    metrics_in_words,
    paper_number,
)
from dfl_jax.results.published import flagfiles_of, needed_columns, read_published, read_titled
from dfl_jax.results.table import OUTSIDE, with_interval

NEAR = 0.15  # of a number of rounds, megabytes or a loss, within which a mean reproduces it
POINTS = 1.0  # likewise of an accuracy
SEEDS = 3  # of fewer the interval of the mean is too wide to tell anything
REPRODUCED, KNOWN, UNKNOWN, OTHERWISE, NOT_RUN = VERDICTS = (
    'reproduced',
    'differs, cause known',
    'differs, cause unknown',
    'measured otherwise',
    'not run',
)
INTRODUCTION = f"""\
# Reproduction

Every number of the papers' tables and figures that a run can give, beside ours. The curves in
[results](results) decide the verdict; `python -m experiments.tables all --runs=docs/results
--out=docs` writes this page.

* *{REPRODUCED}*: the 95 % interval of our mean over {SEEDS} or more seeds holds the published
  number, or our mean is within {100 * NEAR:.0f} % of it (accuracies: within {POINTS:g} point). Of a
  figure without numbers: our means have its order.
* *{KNOWN}*: an experiment has shown why.
* *{UNKNOWN}*: what was tried is said.
* *{OTHERWISE}*: the runs are of another experiment than the paper's, as the table says.

In brackets stand the number of seeds and, of several, the 95 % interval of their mean; {OUTSIDE}
where it excludes the published number.
"""
MACHINES = """\
The times are those of the rounds, evaluation apart, on two CPU cores, mostly of a shared AMD EPYC
machine. Some runs were trained on an NVIDIA H100 or H200, and of some the time was not kept; they
count with the time of other seeds of the cell, where there is one."""
COMPUTED = """\
These have no runs: `dfl-jax tables PAPER/TABLE` computes them, and the pages of the papers say what
they show. NTK-DFL's Figures 6 and 17 and the theorems of NTK-DFL and SPARK have commands of their
own, on the pages of [NTK-DFL](results_ntk_dfl.md) and [SPARK](results_spark.md)."""

# Of the rounds of a run, by its flagfile and name; 0 where they are not known
Seconds = dict[tuple[Path, str], float]


class Entry(NamedTuple):
    """A claim, and what has become of it."""

    claim: str
    published: str
    ours: str
    verdict: str
    why: str = ''


def entries(published: Row, runs: Runs) -> list[Entry]:
    """Those of a table: its published numbers, and its claims."""
    return [*_numbers(published, runs), *_claims(published, runs)]


def _numbers(published: Row, runs: Runs) -> Iterator[Entry]:
    for part in by_metric(published):
        for method, row in part['rows'].items():
            for column, number in zip(part['columns'], row, strict=True):
                if number is None:
                    continue
                cell = f'{method}-{column}'
                values = measure_cell(part, runs, method, column)
                agree = values and agrees(part['metric'], values, number)
                claim = f'{method}, {heading(part, column)}'
                text = with_interval(values, number)
                yield _entry(published, (claim, cell), str(number), text, values, agree)


def _claims(published: Row, runs: Runs) -> Iterator[Entry]:
    first = by_metric(published)[0]
    for claim in published.get('claims', ()):
        part = first | {name: claim[name] for name in ('metric', 'round') if name in claim}
        measured = [_measured(part, runs, cell) for cell in claim['order']]
        complete = all(measured)
        means = [mean(values) for values in measured if values]
        agree = complete and all(
            better(part['metric'], one, other) for one, other in itertools.pairwise(means)
        )
        shown = ' > '.join(claim['order'])
        text = ', '.join(with_interval(values, None) for values in measured) if complete else '-'
        yield _entry(published, (claim['text'],), shown, text, complete, agree)


def _measured(part: Row, runs: Runs, cell: str) -> list[Measured]:
    """The values of a cell of a claim, which may name its round: CELL@ROUND."""
    name, _, round = cell.partition('@')
    return measure_cell(part | ({'round': int(round)} if round else {}), runs, *name.split('-', 1))


def _entry(
    published: Row, keys: Sequence[str], number: str, text: str, there: object, agree: object
) -> Entry:
    """keys: what `known` and `unexplained` may call the claim, its text first."""
    claim = keys[0]
    if not there:
        return Entry(claim, number, '-', NOT_RUN, published.get('not_run', ''))
    if 'measured_otherwise' in published:
        return Entry(claim, number, text, OTHERWISE)
    if agree:
        return Entry(claim, number, text, REPRODUCED)
    for key in keys:
        for field, verdict in (('known', KNOWN), ('unexplained', UNKNOWN)):
            if why := published.get(field, {}).get(key):
                return Entry(claim, number, text, verdict, why)
    alone = isinstance(there, list) and len(there) == 1
    return Entry(claim, number, text, UNKNOWN, 'one seed' if alone else 'nothing tried yet')


def agrees(metric: str, values: Sequence[Measured], number: float | str) -> bool:
    """Whether our values reproduce the paper's number."""
    paper, measured = paper_number(number), mean(values)
    if paper.bound or measured.bound:  # a run that ends early tells nothing beyond its end
        if measured.value < paper.value * (1 - NEAR):
            return False
        some_arrived = len({value.bound for value in values}) > 1
        return paper.bound or (some_arrived and measured.value <= paper.value * (1 + NEAR))
    if len(values) >= SEEDS and not with_interval(values, number).endswith(OUTSIDE):
        return True
    near = POINTS if METRICS[metric].more_is_better else NEAR * paper.value
    return abs(measured.value - paper.value) <= near


def better(metric: str, one: Measured, other: Measured) -> bool:
    """Whether the first is no worse than the second; a bound is worse than what got there."""
    if one.bound or other.bound:
        return not one.bound
    if METRICS[metric].more_is_better:
        return one.value >= other.value
    return one.value <= other.value


class Stored:
    """The curves of a folder, in a file PAPER-TABLE.json for every table that keeps some."""

    def __init__(self, folder: Path, flagfiles: Mapping[str, Mapping[str, Path]]) -> None:
        """flagfiles: of the cells of every table."""
        self._folder, self._flagfiles = folder, flagfiles
        self._files = {name: file for name in flagfiles if (file := self.file(name, 'json'))}
        paces: dict[Path, list[float]] = {}
        for name, file in self._files.items():
            own = flagfiles[name]
            for cell, runs in find_runs(own, [file], dict.fromkeys(own, ()))[0].items():
                paces.setdefault(own[cell], []).extend(r[SECONDS] for r in runs if SECONDS in r)
        self._paces = {file: statistics.median(those) for file, those in paces.items() if those}

    def file(self, name: str, kind: str) -> Path | None:
        """The curves of a table, 'json', or its figure, 'png'; None where it has none."""
        file = self._folder / f'{name.replace("/", "-")}.{kind}'
        return file if file.exists() else None

    def link(self, text: str, name: str, kind: str) -> str:
        """To such a file; empty where there is none."""
        file = self.file(name, kind)
        return f' [{text}]({self._folder.name}/{file.name})' if file else ''

    def runs_of(self, name: str, part: Row) -> tuple[Runs, list[str]]:
        """All runs that have what the metric takes, and the tables that keep them.

        Those of other tables count where the flagfile is the same; of one name the nearest.
        """
        own, paper = self._flagfiles[name], name.split('/')[0]
        runs, keepers = Runs(), []
        needed = needed_columns(part, own)
        # The table itself, then those of its paper, then others
        for other in sorted(self._files, key=lambda o: (o != name, o.split('/')[0] != paper)):
            same = {c: file for c, file in own.items() if self._flagfiles[other].get(c) == file}
            for cell, kept in find_runs(same, [self._files[other]], needed)[0].items():
                names = {run['run'] for run in runs.get(cell, ())}
                more = [run for run in kept if run['run'] not in names]
                runs.setdefault(cell, []).extend(more)
                keepers += [other] * bool(more and other not in keepers)
        return runs, keepers

    def seconds(self, name: str, runs: Runs) -> Seconds:
        """What the rounds of every run took."""
        files_of = self._flagfiles[name]
        return {
            (file, run['run']): run['round'][-1] * self._paces.get(file, 0)
            for file, of_cell in ((files_of[cell], runs[cell]) for cell in runs)
            for run in of_cell
        }


def page(tables: Mapping[str, Path], folder: Path) -> str:
    """The page in Markdown. tables: published.json or computed.json, by PAPER/TABLE."""
    computed = {name: file for name, file in sorted(tables.items()) if file.stem == 'computed'}
    read = {n: read_published(f) for n, f in sorted(tables.items()) if n not in computed}
    stored = Stored(folder, {n: flagfiles_of(read[n], tables[n].parent) for n in read})
    blocks: list[str] = []
    left_out: list[list[str]] = []
    counts: dict[str, list[str]] = {}
    altogether: Seconds = {}
    for name, published in read.items():
        found: list[Entry] = []
        seconds: Seconds = {}
        keepers: dict[str, None] = {}
        for place, part in enumerate(by_metric(published)):
            part |= {'panels': ()} | dict.fromkeys(part.keys() & {'metrics'}, ())
            runs, more = stored.runs_of(name, part)
            found += entries(part if place == 0 else part | {'claims': ()}, runs)
            seconds |= stored.seconds(name, runs)
            keepers |= dict.fromkeys(more)
        for run in seconds:
            altogether[run] = max(altogether.get(run, 0), seconds[run])
        if found:
            counts.setdefault(name.split('/')[0], []).extend(entry.verdict for entry in found)
        if not seconds or (found and all(entry.verdict == NOT_RUN for entry in found)):
            why = published.get('not_run', '')
            left_out.append([name, published['title'], str(len(found) or '-'), why])
            continue
        own = stored.link('Curves', name, 'json')
        links = own or ''.join(stored.link(f'Curves of {k}', k, 'json') for k in keepers)
        links += stored.link('Figure', name, 'png')
        blocks.append(_section(name, published, found, f'{links} {_with_time(seconds)}.'))
    summary = [
        [paper, *(str(verdicts.count(verdict)) for verdict in VERDICTS)]
        for paper, verdicts in counts.items()
    ]
    head = markdown_table(['paper', *VERDICTS], summary, 1)
    in_all = f'All curves together are of {_with_time(altogether)}. {MACHINES}'
    if left_out:
        blocks += ['## Not run', markdown_table(['table', '', 'numbers', 'why'], left_out)]
    if computed:
        titles = {name: read_titled(file, 'studies')['title'] for name, file in computed.items()}
        rows = [[n, t, stored.link('Figure', n, 'png').strip()] for n, t in titles.items()]
        blocks += ['## Computed, not trained', COMPUTED, markdown_table(['table', '', ''], rows)]
    return '\n\n'.join([INTRODUCTION.rstrip(), head, in_all, *blocks]) + '\n'


def _with_time(seconds: Seconds) -> str:
    """The number of runs, and what those took of which it is known."""
    text, unknown = counted(len(seconds), 'run'), [*seconds.values()].count(0)
    if unknown == len(seconds):
        return text
    without = f', not counting {unknown} of unknown time' if unknown else ''
    return f'{text}, {duration(sum(seconds.values()))}{without}'


def _section(name: str, published: Row, found: Sequence[Entry], after: str) -> str:
    """after: what follows the title."""
    lines = [f'## {name}', f'{published["title"]}: {metrics_in_words(published)}.{after}']
    if 'measured_otherwise' in published:
        lines.append(f'Measured otherwise: {published["measured_otherwise"]}.')
    missing = [entry for entry in found if entry.verdict == NOT_RUN]
    shown = [[*entry] for entry in found if entry.verdict != NOT_RUN]
    if shown:
        lines.append(markdown_table(['claim', 'published', 'ours', 'verdict', ''], shown))
    if not found:
        lines.append('The paper prints no number.')
    if missing or 'not_run' in published:
        numbers = f', {counted(len(missing), "number")}' if missing else ''
        why = f': {published["not_run"]}' if 'not_run' in published else ''
        lines.append(f'Not run{numbers}{why}.')
    return '\n\n'.join(lines)
