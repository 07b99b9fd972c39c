"""Columns of numbers in the tables of a report, equally many decimals in each."""

import statistics
from collections.abc import Iterable, Sequence

from dfl_jax.cli.tables.metrics import Measured


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
