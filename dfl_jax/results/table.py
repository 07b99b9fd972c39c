"""The text of a table: the paper's numbers beside ours, and what follows from them."""

import math
from collections.abc import Mapping, Sequence

from dfl_jax.experiment.run_directory import Row
from dfl_jax.plain_text import markdown_table
from dfl_jax.results.curves import Runs
from dfl_jax.results.fits import confidence, fit_lines, slowdown_lines
from dfl_jax.results.measured import (
    Measured,
    by_metric,
    heading,
    in_column,
    mean,
    measure,
    measure_cell,
    paper_number,
    rounds_in_words,
    summary,
)

FAR_OFF = 0.25  # a mean further from the paper's number than this is warned of
OUTSIDE = '≠'
INTERVALS = 'In brackets the number of seeds and, of several, the 95 % interval of their mean'
FAR_OFF_HEAD = f'More than {100 * FAR_OFF:.0f} % off the paper:'


def report(published: Row, runs: Runs) -> str:
    """The table and what stands below it, in Markdown."""
    lines, off = findings_and_outliers(published, runs)
    head, rows = head_and_rows(published, runs)
    blocks = [markdown_table(head, rows)]
    blocks += [words_on_brackets(published)] * any(' to ' in cell for row in rows for cell in row)
    blocks += [_bullets(lines)] * bool(lines)
    blocks += [FAR_OFF_HEAD, _bullets(off)] * bool(off)
    return '\n\n'.join(blocks)


def words_on_brackets(published: Row) -> str:
    """What stands in brackets behind a number."""
    outside = f'; {OUTSIDE} where it excludes the number of the paper'
    return f'{INTERVALS}{outside * _has_numbers(published)}.'


def _has_numbers(published: Row) -> bool:
    """Whether a paper printed any of the table's numbers."""
    rows = [row for part in by_metric(published) for row in part['rows'].values()]
    return any(number is not None for row in rows for number in row)


def _bullets(lines: list[str]) -> str:
    return '\n'.join(f'- {line}' for line in lines)


def head_and_rows(published: Row, runs: Runs) -> tuple[list[str], list[list[str]]]:
    """Headings and rows, one a method: the paper's number and ours for every column."""
    parts = by_metric(published)
    places = [(i, column, part) for i, column in enumerate(published['columns']) for part in parts]
    printed = _has_numbers(published)
    sources = ('paper', 'ours') if printed else ('ours',)
    head = [f'{heading(part, column)} {source}' for _, column, part in places for source in sources]
    rows = []
    for method in published['rows']:
        row = [method]
        for i, column, part in places:
            number = part['rows'][method][i]
            paper = ['-' if number is None else str(number)] * printed
            values = measure_cell(part, runs, method, column)
            row += [*paper, with_interval(values, number)]
        rows.append(row)
    return ['method', *head], rows


def with_interval(values: Sequence[Measured], number: float | str | None) -> str:
    """Mean, deviation, seeds and the 95 % interval of the mean of several values without a bound.

    number: the paper's; OUTSIDE follows where the interval excludes it.
    """
    text = summary(values)
    if len(values) < 2 or any(value.bound for value in values):
        return text
    centre, half = mean(values).value, confidence([value.value for value in values])
    decimals = max(0, 1 - math.floor(math.log10(half))) if half else 2  # two digits of the half
    text = f'{text[:-1]}, {centre - half:.{decimals}f} to {centre + half:.{decimals}f})'
    if number is None:
        return text
    paper = paper_number(number)
    excluded = centre + half <= paper.value if paper.bound else abs(centre - paper.value) > half
    return text + f' {OUTSIDE}' * excluded


def findings_and_outliers(published: Row, runs: Runs) -> tuple[list[str], list[str]]:
    """What stands below the table: comparisons and fits, and what is far off the paper."""
    parts = by_metric(published)
    lines = dict.fromkeys(line for part in parts for line in comparisons(part, runs))
    findings = [*lines, *fit_lines(published, runs), *slowdown_lines(published, runs)]
    return findings, [line for part in parts for line in far_off_cells(part, runs)]


def comparisons(published: Row, runs: Runs) -> list[str]:
    """How much faster and more accurate `ours` is than the best baseline, for each column."""
    if 'ours' not in published:
        return []
    ours, others = published['ours'], {'centralized', 'variants'} & published.keys()
    no_baselines = {method for name in others for method in published[name]}
    rows = {m: row for m, row in published['rows'].items() if m not in no_baselines}
    clients = published['metric'] == 'client_accuracy_at'
    whose = ' of the mean client' if clients else ''
    lines = []
    for i, column in enumerate(published['columns']):
        cells = {m: runs[f'{m}-{column}'] for m in rows if f'{m}-{column}' in runs}
        if published['metric'] == 'rounds_to':
            times = times_fewer(ours, {m: mean(measure(published, cells[m])) for m in cells})
            numbers = {m: paper_number(row[i]) for m, row in rows.items() if row[i] is not None}
            paper = times_fewer(ours, numbers)
            beside = f'; paper: {paper}' if paper else ''
            if times:
                lines.append(f'{column}: fewer rounds than the best baseline: {times}{beside}')
        if 'round' in published:
            metric = 'client_accuracy_at' if clients else 'accuracy_at'
            part = in_column(published, column) | {'metric': metric}
            accuracies = {m: measure(part, cells[m]) for m in cells}
            points = lead(ours, {m: mean(values) for m, values in accuracies.items() if values})
            if points:
                at = f'at {rounds_in_words(part)}'
                lines.append(f'{column}: lead{whose} over the best baseline {at}: {points}')
    return lines


def times_fewer(ours: str, rounds: Mapping[str, Measured]) -> str | None:
    """How many times fewer rounds `ours` takes than the best other method; None if unknown."""
    others = [method for method in rounds if method != ours]
    if not others or ours not in rounds or rounds[ours].bound:
        return None
    best = min(others, key=lambda method: rounds[method])
    times, bound = rounds[best].value / rounds[ours].value, rounds[best].bound
    if bound and times <= 1:  # a run that has hardly begun tells nothing
        return None
    return f'{"more than " * bound}{times:.1f} times ({best})'


def lead(ours: str, accuracies: Mapping[str, Measured]) -> str | None:
    """By how many points `ours` is more accurate than the best other method; None if unknown."""
    others = [method for method in accuracies if method != ours]
    if not others or ours not in accuracies:
        return None
    best = max(others, key=lambda method: accuracies[method])
    return f'{accuracies[ours].value - accuracies[best].value:.1f} points ({best})'


def far_off_cells(published: Row, runs: Runs) -> list[str]:
    """The cells whose mean is far from the paper's number, bounds taken as such."""
    lines = []
    for method, numbers in published['rows'].items():
        for column, number in zip(published['columns'], numbers, strict=True):
            values = measure_cell(published, runs, method, column)
            if not number or not values:
                continue
            measured, paper = mean(values), paper_number(number)
            off = measured.value / paper.value - 1
            if (off > FAR_OFF and not paper.bound) or (off < -FAR_OFF and not measured.bound):
                where = f'{method} {heading(published, column)}'
                lines.append(f'{where}: {measured} against {number} ({100 * off:+.0f} %)')
    return lines
