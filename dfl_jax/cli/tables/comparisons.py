"""How far ahead a paper's own method is, and which numbers are far from the paper's."""

from collections.abc import Mapping

from dfl_jax.cli.run.rundir import Row
from dfl_jax.cli.tables.curves import Runs
from dfl_jax.cli.tables.metrics import (
    Measured,
    heading,
    in_column,
    mean,
    measure,
    measure_cell,
    paper_number,
    when,
)

OFF = 0.25  # a mean further from the paper's number than this is warned of


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
            times = fewer(ours, {m: mean(measure(published, cells[m])) for m in cells})
            numbers = {m: paper_number(row[i]) for m, row in rows.items() if row[i] is not None}
            paper = fewer(ours, numbers)
            beside = f'; paper: {paper}' if paper else ''
            if times:
                lines.append(f'{column}: fewer rounds than the best baseline: {times}{beside}')
        if 'round' in published:
            metric = 'client_accuracy_at' if clients else 'accuracy_at'
            part = in_column(published, column) | {'metric': metric}
            accuracies = {m: measure(part, cells[m]) for m in cells}
            points = lead(ours, {m: mean(values) for m, values in accuracies.items() if values})
            if points:
                at = f'at {when(part)}'
                lines.append(f'{column}: lead{whose} over the best baseline {at}: {points}')
    return lines


def fewer(ours: str, rounds: Mapping[str, Measured]) -> str | None:
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


def off_paper(published: Row, runs: Runs) -> list[str]:
    """The cells whose mean is far from the paper's number, bounds taken as such."""
    lines = []
    for method, numbers in published['rows'].items():
        for column, number in zip(published['columns'], numbers, strict=True):
            values = measure_cell(published, runs, method, column)
            if number is None or not values:
                continue
            measured, paper = mean(values), paper_number(number)
            off = measured.value / paper.value - 1
            if (off > OFF and not paper.bound) or (off < -OFF and not measured.bound):
                where = f'{method} {heading(published, column)}'
                lines.append(f'{where}: {measured} against {number} ({100 * off:+.0f} %)')
    return lines
