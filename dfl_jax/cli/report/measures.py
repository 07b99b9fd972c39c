"""What a report measures of a run, and how its tables print that."""

import statistics
from collections.abc import Callable, Iterable, Sequence

from dfl_jax.cli.report.runs import SavedRun
from dfl_jax.cli.tables.curves import CURVES, Run, columns_of
from dfl_jax.cli.tables.metrics import Measured, to_target

Measure = Callable[[SavedRun], Measured | None]


def columns(run: SavedRun, names: Sequence[str]) -> Run:
    """The run as a table takes it, without the columns that it lacks."""
    return columns_of(run.path.name, run.rows, (), names)


def at_end(name: str, scale: float = 1) -> Measure:
    """A column in the last round evaluated; None where the run lacks it."""
    return lambda run: Measured(scale * run.rows[-1][name]) if name in run.rows[-1] else None


def a_round(name: str) -> Measure:
    """A column that adds up over rounds, for each of them; None likewise."""
    return lambda run: (
        Measured(run.rows[-1][name] / run.rows[-1]['round']) if name in run.rows[-1] else None
    )


def best(run: SavedRun) -> Measured:
    """The highest consensus accuracy of any evaluation, in percent."""
    return Measured(100 * max(row['consensus_accuracy'] for row in run.rows))


def until(target: float, name: str) -> Measure:
    """A column where the consensus accuracy reaches `target` in [0, 1], or its lower bound."""
    metric = to_target(name)
    return lambda run: (
        metric({'target': target}, columns(run, (name, *CURVES))) if name in run.rows[-1] else None
    )


def measured(runs: Sequence[SavedRun], measure: Measure) -> list[Measured]:
    return [value for run in runs if run.rows and (value := measure(run)) is not None]


def number_column(cells: Sequence[Sequence[Measured]], digits: int | None = None) -> list[str]:
    """The cells of a column: mean and deviation over the values of each.

    digits: after the point (default: as the smallest mean needs). Values that are bounds stand by
    themselves, as in experiments.tables.
    """
    exact = [[v.value for v in cell] for cell in cells if cell and not any(v.bound for v in cell)]
    places = _decimals(map(statistics.mean, exact)) if digits is None else digits
    if digits is None and all(value.value == int(value.value) for cell in cells for value in cell):
        places = min(places, int(any(len(values) > 1 for values in exact)))
    return [_numbers(cell, places) for cell in cells]


def _decimals(means: Iterable[float]) -> int:
    """So many that the smallest number of a column shows three digits, and no more than three."""
    smallest = min((abs(mean) for mean in means if mean), default=100)
    return next((n for n in range(3) if smallest * 10**n >= 100), 3)


def _numbers(values: Sequence[Measured], places: int) -> str:
    if not values:
        return '-'
    if any(value.bound for value in values):
        bounds = all(value.bound for value in values)
        return ', '.join(_with_bound(v, places) for v in ([min(values)] if bounds else values))
    numbers = [value.value for value in values]
    error = f' ± {statistics.stdev(numbers):,.{places}f}' if len(numbers) > 1 else ''
    return f'{statistics.mean(numbers):,.{places}f}{error}'


def _with_bound(number: Measured, places: int) -> str:
    whole = number.value == int(number.value)
    return f'{">" * number.bound}{number.value:,.{0 if whole else places}f}'
