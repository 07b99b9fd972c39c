"""The claims of a table: published numbers, effects and orders, beside what the runs have.

docs/tables.md says what published.json holds for them, and `verdict` how they are judged.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from dfl_jax.experiment.run_directory import Row
from dfl_jax.papers.tables import verdict
from dfl_jax.papers.tables.verdict import NOT_RUN, Judged
from dfl_jax.results.curves import Run, Runs
from dfl_jax.results.measured import (
    Measured,
    by_metric,
    heading,
    in_column,
    in_digits,
    mean,
    measure,
    measure_cell,
    metric_in_words,
    paper_number,
)

KINDS = NUMBER, LOG, EFFECT, ORDER = 'number', 'log', 'effect', 'order'


class Entry(NamedTuple):
    """A claim, and what has become of it."""

    claim: str
    published: str
    ours: str
    seeds: str
    judged: Judged
    why: str = ''
    kind: str = NUMBER
    same: tuple = ()  # what a number is of, wherever it is printed

    @property
    def verdict(self) -> str:
        return self.judged.verdict


def entries(published: Row, runs: Runs, flagfiles: Mapping[str, Path] | None = None) -> list[Entry]:
    """Those of a table: its published numbers, effects and orders."""
    numbers = _numbers(published, runs, flagfiles or {})
    return [*numbers, *_effects(published, runs), *_orders(published, runs)]


def _numbers(published: Row, runs: Runs, flagfiles: Mapping[str, Path]) -> Iterator[Entry]:
    for part in by_metric(published):
        metric, columns = part['metric'], part['columns']
        for method, row in part['rows'].items():
            measured = [measure_cell(part, runs, method, column) for column in columns]
            spread = verdict.pooled(metric, measured)
            for column, number, values in zip(columns, row, measured, strict=True):
                if number is None:
                    continue
                cell = f'{method}-{column}'
                claim = f'{method}, {heading(part, column)}'
                judged = Judged(NOT_RUN)
                if values:
                    rule = {'every': part.get('every', 1), 'mean_of': part.get('mean_of', 1)}
                    judged = verdict.judge(metric, values, paper_number(number), spread, **rule)
                words = metric_in_words(in_column(part, column))
                same = (flagfiles.get(cell, cell), words, str(number))
                found = _entry(published, (claim, cell), str(number), values, judged)
                kind = LOG if published.get('log') else NUMBER
                yield found._replace(same=same, kind=kind)


def _effects(published: Row, runs: Runs) -> Iterator[Entry]:
    """What one method has over another, where the paper prints both."""
    for part in by_metric(published):
        metric, columns = part['metric'], part['columns']
        for pair in published.get('effects', ()):
            methods = pair['of'], pair['over']
            printed = zip(*(part['rows'][method] for method in methods), strict=True)
            numbers = {
                column: verdict.effect(metric, *(paper_number(n).value for n in two))
                for column, two in zip(columns, printed, strict=True)
                if not any(n is None or paper_number(n).bound for n in two)
            }
            ours = [
                verdict.effects(metric, *(_by_seed(part, runs, m, column) for m in methods))
                for column in numbers
            ]
            judged = verdict.judge_effects(metric, ours, [*numbers.values()])
            for (column, number), values, each in zip(numbers.items(), ours, judged, strict=True):
                claim = f'{" over ".join(methods)}, {heading(part, column)}'
                measured, paper = [Measured(value) for value in values], in_digits(number, 3)
                yield _entry(published, (claim,), paper, measured, each, EFFECT)


def _by_seed(table: Row, runs: Runs, method: str, column: str) -> dict[str, Measured]:
    """The metric of each run of a cell, by what its name ends with."""
    part, cell = in_column(table, column), f'{method}-{column}'
    reference = runs.get(f'{table.get("reference")}-{column}', [])

    def seed(run: Run) -> str:
        return re.sub(r'.*-seed', '', run['run'])

    measured = {seed(run): measure(part, [run], reference) for run in runs.get(cell, ())}
    return {name: values[0] for name, values in measured.items() if values}


def _orders(published: Row, runs: Runs) -> Iterator[Entry]:
    first = by_metric(published)[0]
    for claim in published.get('claims', ()):
        part = first | {name: claim[name] for name in ('metric', 'round') if name in claim}
        measured = [_measured(part, runs, cell) for cell in claim['order']]
        names = (claim['text'],)
        if claim.get('same'):
            one, other = (_by_seed(part, runs, *cell.split('-', 1)) for cell in claim['order'])
            apart = [Measured(v) for v in verdict.effects(part['metric'], one, other)]
            judged = verdict.judge_same(part['metric'], one, other)
            yield _entry(published, names, '0 between them', apart, judged, EFFECT)
            continue
        shown = ' > '.join(claim['order'])
        if not all(measured):
            yield _entry(published, names, shown, (), Judged(NOT_RUN), ORDER)
            continue
        steps = verdict.order_steps(part['metric'], measured)
        between = ['' if step is None else f' ({step.t:.1f})' for step in steps]
        means = [f'{mean(values)}' for values in measured]
        text = ' '.join(map(''.join, zip(means, [*between, ''], strict=True)))
        found = _entry(published, names, shown, (), Judged(verdict.judge_order(steps)), ORDER)
        yield found._replace(ours=text, seeds=str(min(map(len, measured))))


def _measured(part: Row, runs: Runs, cell: str) -> list[Measured]:
    """The values of a cell of a claim, which may name its round: CELL@ROUND."""
    name, _, round = cell.partition('@')
    return measure_cell(part | ({'round': int(round)} if round else {}), runs, *name.split('-', 1))


def _entry(
    published: Row,
    keys: Sequence[str],
    number: str,
    values: Sequence[Measured],
    judged: Judged,
    kind: str = NUMBER,
) -> Entry:
    """keys: what `known` and `unexplained` may call the claim, its text first."""
    claim = keys[0]
    otherwise = published.get('measured_otherwise')
    if judged.verdict == NOT_RUN or otherwise:
        why = otherwise or published.get('not_run', '')
        return Entry(claim, number, '', '', Judged(NOT_RUN), why, kind)
    why = ''
    if judged.verdict != verdict.EQUAL:
        for key in keys:
            for field, before in (('known', 'cause: '), ('unexplained', '')):
                why = why or (
                    before + cause if (cause := published.get(field, {}).get(key)) else ''
                )
    if judged.half is not None:
        text = f'{mean(values)} ± {in_digits(judged.half, 2)}'
    else:
        text = ', '.join(map(str, values))
    return Entry(claim, number, text, str(len(values)), judged, why, kind)
