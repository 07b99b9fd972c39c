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
from dfl_jax.results.fits import fitted_laws
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
    return [*numbers, *_effects(published, runs), *_claimed(published, runs)]


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
                verdict.effects(metric, *(_by_seed(part, runs, f'{m}-{column}') for m in methods))
                for column in numbers
            ]
            judged = verdict.judge_effects(metric, ours, [*numbers.values()])
            for (column, number), values, each in zip(numbers.items(), ours, judged, strict=True):
                claim = f'{" over ".join(methods)}, {heading(part, column)}'
                measured, paper = [Measured(value) for value in values], in_digits(number, 3)
                yield _entry(published, (claim,), paper, measured, each, EFFECT)


def _by_seed(table: Row, runs: Runs, cell: str) -> dict[str, Measured]:
    """The metric of each run of CELL or CELL@ROUND, by what its name ends with."""
    at, method, column = _at(table, cell)
    part, cell = in_column(at, column), f'{method}-{column}'
    reference = runs.get(f'{table.get("reference")}-{column}', [])

    def seed(run: Run) -> str:
        return re.sub(r'.*-seed', '', run['run'])

    measured = {seed(run): measure(part, [run], reference) for run in runs.get(cell, ())}
    return {name: values[0] for name, values in measured.items() if values}


def _claimed(published: Row, runs: Runs) -> Iterator[Entry]:
    """What captions, texts and figures without numbers say."""
    first = by_metric(published)[0]
    for claim in published.get('claims', ()):
        part = first | {n: claim[n] for n in ('metric', 'round', 'target') if n in claim}
        if claim.get('same'):
            yield _same(published, claim, part, runs)
        elif 'effect' in claim:
            yield _effect(published, claim, part, runs)
        elif 'exponent' in claim:
            yield _exponent(published, claim, runs)
        elif 'correlation' in claim:
            yield _correlation(published, claim, part, runs)
        else:
            yield _order(published, claim, part, runs)


def _same(published: Row, claim: Row, part: Row, runs: Runs) -> Entry:
    one, other = (_by_seed(part, runs, cell) for cell in claim['order'])
    apart = [Measured(v) for v in verdict.effects(part['metric'], one, other)]
    judged = verdict.judge_same(part['metric'], one, other)
    return _entry(published, (claim['text'],), '0 between them', apart, judged, EFFECT)


def _effect(published: Row, claim: Row, part: Row, runs: Runs) -> Entry:
    """What one cell has over another, where a text has a number for it."""
    one, other = (_by_seed(part, runs, cell) for cell in claim['effect'])
    values, number = verdict.effects(part['metric'], one, other), claim['number']
    allowed = claim.get('tolerance', 0.0)
    (judged,) = verdict.judge_effects(part['metric'], [values], [number], allowed)
    text = f'{number:g} ± {allowed:g}' if allowed else f'{number:g}'
    return _entry(published, (claim['text'],), text, [*map(Measured, values)], judged, EFFECT)


def _exponent(published: Row, claim: Row, runs: Runs) -> Entry:
    """That of a method's power law (`fit`)."""
    law, number = fitted_laws(published, runs).get(claim['exponent']), claim['number']
    judged, ours = Judged(NOT_RUN), ''
    if law:
        near = verdict.SHARE * abs(number)
        judged = verdict.judge_interval(law.exponent, law.error, number, near)
        ours = f'{law.exponent:.2f} ± {law.error:.2f}'
    words = judged._replace(half=None)
    found = _entry(published, (claim['text'],), f'{number:g}', (), words)
    return found if found.verdict == NOT_RUN else found._replace(ours=ours, seeds='', judged=judged)


def _correlation(published: Row, claim: Row, part: Row, runs: Runs) -> Entry:
    """Whether two metrics rise together over the means of some cells."""
    pairs = []
    for cell in claim['cells']:
        both = [_measured(part | {'metric': m}, runs, cell) for m in claim['correlation']]
        if all(both) and not any(mean(values).bound for values in both):
            x, y = (mean(values).value for values in both)
            pairs.append((x, y))
    judged, r = verdict.judge_correlation(pairs)
    found = _entry(published, (claim['text'],), 'rising together', (), judged, ORDER)
    return found._replace(ours=f'r = {r:.2f}' if pairs else '', seeds=f'{len(pairs)} cells')


def _order(published: Row, claim: Row, part: Row, runs: Runs) -> Entry:
    measured = [_measured(part, runs, cell) for cell in claim['order']]
    names, shown = (claim['text'],), ' > '.join(claim['order'])
    if not all(measured):
        return _entry(published, names, shown, (), Judged(NOT_RUN), ORDER)
    steps = verdict.order_steps(part['metric'], measured)
    between = ['' if step is None else f' ({step.t:.1f})' for step in steps]
    means = [f'{mean(values)}' for values in measured]
    text = ' '.join(map(''.join, zip(means, [*between, ''], strict=True)))
    found = _entry(published, names, shown, (), Judged(verdict.judge_order(steps)), ORDER)
    return found._replace(ours=text, seeds=str(min(map(len, measured))))


def _measured(part: Row, runs: Runs, cell: str) -> list[Measured]:
    """The values of a cell of a claim: CELL, CELL@ROUND, or the difference CELL - CELL by seed."""
    if ' - ' in cell:
        return verdict.differences(*(_by_seed(part, runs, one) for one in cell.split(' - ')))
    at, method, column = _at(part, cell)
    return measure_cell(at, runs, method, column)


def _at(table: Row, cell: str) -> tuple[Row, str, str]:
    """The table at the round of CELL@ROUND, if it names one, the method and the column."""
    name, _, round = cell.partition('@')
    method, column = name.split('-', 1)
    return table | ({'round': int(round)} if round else {}), method, column


def _entry(
    published: Row,
    keys: Sequence[str],
    number: str,
    values: Sequence[Measured],
    judged: Judged,
    kind: str = NUMBER,
) -> Entry:
    """keys: what `known` and fields like it may call the claim, its text first."""
    claim = keys[0]
    otherwise = published.get('measured_otherwise')
    if isinstance(otherwise, dict):
        otherwise = next((otherwise[key] for key in keys if key in otherwise), None)
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
