"""One page of all claims of the papers: published, ours, and a verdict that the curves decide.

`python -m experiments.tables all --runs=docs/results --out=docs` writes it as reproduction.md. The
runs of a table are those of the file PAPER-TABLE.json in the folder, and those of other tables'
files whose cells have the same flagfile. docs/tables.md says what published.json holds for it.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dfl_jax.cli.command import counted, markdown_table
from dfl_jax.cli.run.rundir import Row
from dfl_jax.cli.tables import files
from dfl_jax.cli.tables.costs import duration, seconds_of
from dfl_jax.cli.tables.curves import Runs, find_runs
from dfl_jax.cli.tables.metrics import (
    METRICS,
    Measured,
    by_metric,
    heading,
    mean,
    measure_cell,
    paper_number,
    what,
)
from dfl_jax.cli.tables.table import OUTSIDE, ours

NEAR = 0.15  # of a number of rounds, megabytes or a loss, within which a mean reproduces it
POINTS = 1.0  # likewise of an accuracy
SEEDS = 3  # of fewer the interval of the mean is too wide to tell anything
REPRODUCED, KNOWN, UNKNOWN, NOT_RUN = VERDICTS = (
    'reproduced',
    'differs, cause known',
    'differs, cause unknown',
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

In brackets stand the number of seeds and, of several, the 95 % interval of their mean; {OUTSIDE}
where it excludes the published number.
"""
MACHINES = """\
The times are those of the rounds, evaluation apart, on two CPU cores, mostly of a shared AMD EPYC
machine. A run whose own time was not kept, as those on a GPU, counts as others of its cell, or of
its method in the table."""


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
                text = ours(values, number)
                yield _entry(published, (claim, cell), str(number), text, values, agree)


def _claims(published: Row, runs: Runs) -> Iterator[Entry]:
    part = by_metric(published)[0]
    for claim in published.get('claims', ()):
        measured = {c: measure_cell(part, runs, *c.split('-', 1)) for c in claim['order']}
        complete = all(measured.values())
        means = [mean(values) for values in measured.values() if values]
        agree = complete and all(
            better(part['metric'], one, other) for one, other in itertools.pairwise(means)
        )
        shown = ' > '.join(claim['order'])
        text = ', '.join(map(str, means)) if complete else '-'
        yield _entry(published, (claim['text'],), shown, text, complete, agree)


def _entry(
    published: Row, keys: Sequence[str], number: str, text: str, there: object, agree: object
) -> Entry:
    """keys: what `known` and `unexplained` may call the claim, its text first."""
    claim = keys[0]
    if not there:
        return Entry(claim, number, '-', NOT_RUN, published.get('not_run', ''))
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
    if len(values) >= SEEDS and not ours(values, number).endswith(OUTSIDE):
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


def page(tables: Mapping[str, Path], folder: Path) -> str:
    """The page in Markdown. tables: published.json or computed.json, by PAPER/TABLE."""
    blocks: list[str] = []
    left_out: list[list[str]] = []
    counts: dict[str, list[str]] = {}
    costs: dict[tuple[Path, str], float | None] = {}  # of every run, once
    read = {
        name: files.read_published(file)
        for name, file in sorted(tables.items())
        if file.stem != 'computed'
    }
    flagfiles = {name: files.flagfiles(read[name], tables[name].parent) for name in read}
    stored = {name: folder / f'{name.replace("/", "-")}.json' for name in read}
    kept = {name: file for name, file in stored.items() if file.exists()}

    def runs_of(name: str, part: Row) -> Runs:
        """All kept curves that have what the metric takes; of one name the nearest table's."""
        paper, runs = name.split('/')[0], Runs()
        needed = files.columns(part, flagfiles[name])
        # The table itself, then those of its paper, then others
        for other in sorted(kept, key=lambda other: (other != name, other.split('/')[0] != paper)):
            same = {c: f for c, f in flagfiles[name].items() if flagfiles[other].get(c) == f}
            for cell, more in find_runs(same, [kept[other]], needed)[0].items():
                names = {run['run'] for run in runs.get(cell, ())}
                runs.setdefault(cell, []).extend(run for run in more if run['run'] not in names)
        return runs

    for name, published in read.items():
        parts = [
            part | dict.fromkeys(part.keys() & {'metrics'}, ()) for part in by_metric(published)
        ]
        of_parts = [runs_of(name, part | {'panels': ()}) for part in parts]
        parts[1:] = [part | {'claims': ()} for part in parts[1:]]  # they are of the first
        found = [e for both in zip(parts, of_parts, strict=True) for e in entries(*both)]
        several = {
            (flagfiles[name][cell], run['run']): seconds_of(cell, run['round'][-1], runs)
            for runs in of_parts
            for cell, of_cell in runs.items()
            for run in of_cell
        }
        if not found and not several:
            continue
        for run, seconds in several.items():
            costs[run] = max(filter(None, (costs.get(run), seconds)), default=None)
        if found:
            counts.setdefault(name.split('/')[0], []).extend(entry.verdict for entry in found)
        if found and all(entry.verdict == NOT_RUN for entry in found):
            left_out.append([name, published['title'], str(len(found)), found[0].why])
        else:
            blocks.append(_section(name, published, found, [*several.values()], folder))
    summary = [
        [paper, *(str(verdicts.count(verdict)) for verdict in VERDICTS)]
        for paper, verdicts in counts.items()
    ]
    head = markdown_table(['paper', *VERDICTS], summary, 1)
    if left_out:
        blocks += ['## Not run', markdown_table(['table', '', 'numbers', 'why'], left_out)]
    in_all = f'In all {_with_time([*costs.values()])}.\n{MACHINES}'
    return '\n\n'.join([INTRODUCTION.rstrip(), head, in_all, *blocks]) + '\n'


def _with_time(costs: Sequence[float | None]) -> str:
    """The number of runs, and what those take of which it is known."""
    known = [cost for cost in costs if cost is not None]
    text = counted(len(costs), 'run')
    if not known:
        return text
    unknown = len(costs) - len(known)
    return f'{text}, {duration(sum(known))}' + f' without {unknown} of unknown time' * bool(unknown)


def _section(
    name: str,
    published: Row,
    found: Sequence[Entry],
    costs: Sequence[float | None],
    folder: Path,
) -> str:
    stem = name.replace('/', '-')
    links = ''.join(
        f' [{word}]({folder.name}/{stem}.{kind})'
        for word, kind in (('Curves', 'json'), ('Figure', 'png'))
        if (folder / f'{stem}.{kind}').exists()
    )
    training = f' {_with_time(costs)}.' if costs else ''
    lines = [f'## {name}', f'{published["title"]}: {what(published)}.{links}{training}']
    missing = [entry for entry in found if entry.verdict == NOT_RUN]
    shown = [[*entry] for entry in found if entry.verdict != NOT_RUN]
    if shown:
        lines.append(markdown_table(['claim', 'published', 'ours', 'verdict', ''], shown))
    else:
        lines.append('The paper prints no number.')
    if missing:
        reason = f': {missing[0].why}' if missing[0].why else ''
        lines.append(f'Not run, {counted(len(missing), "number")}{reason}.')
    return '\n\n'.join(lines)
