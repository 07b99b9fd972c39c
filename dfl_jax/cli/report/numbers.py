"""Columns of numbers in the tables of a report, their points below each other."""

import re
import statistics
from collections.abc import Iterator, Sequence
from html import escape

from dfl_jax.cli.tables.metrics import Measured


def spread(values: Sequence[Measured]) -> tuple[float, float | None]:
    """Mean, and the standard deviation over several."""
    numbers = [value.value for value in values]
    return statistics.mean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None


def decimals(several: Iterator[float]) -> int:
    """So many that the smallest number of a column shows three digits, and no more than three."""
    sizes = [abs(value) for value in several if value]
    return 0 if not sizes else next((n for n in range(3) if min(sizes) * 10**n >= 100), 3)


def number_column(cells: Sequence[Sequence[Measured]], digits: int | None = None) -> list[str]:
    """The <td> cells of a column: mean and deviation over the values of each, points aligned.

    digits: after the point (default: as the smallest mean needs). Values that are bounds stand by
    themselves, as in experiments.tables.
    """
    exact = [spread(cell) if not any(v.bound for v in cell) else None for cell in cells if cell]
    known = [each for each in exact if each]
    places = decimals(mean for mean, _ in known) if digits is None else digits
    if digits is None and all(value.value == int(value.value) for cell in cells for value in cell):
        places = min(places, int(any(error is not None for _, error in known)))
    errors = [f' ± {error:,.{places}f}' for _, error in known if error is not None]
    width = max(map(len, errors), default=0)
    return [_numbers(cell, places, width) for cell in cells]


def _numbers(values: Sequence[Measured], places: int, width: int) -> str:
    if not values:
        text, error = '-', None
    elif all(value.bound for value in values):
        text, error = _with_bound(min(values), places), None
    elif any(value.bound for value in values):
        text, error = ', '.join(_with_bound(value, places) for value in values), None
    else:
        mean, error = spread(values)
        text = f'{mean:,.{places}f}'
    beside = '' if error is None else f' ± {error:,.{places}f}'
    room = f'<span class="e" style="min-width:{width}ch">{beside}</span>'
    return f'<td class="n">{escape(text)}{room if width else ""}</td>'


def _with_bound(number: Measured, places: int) -> str:
    whole = number.value == int(number.value)
    return f'{">" * number.bound}{number.value:,.{0 if whole else places}f}'


def aligned(column: Sequence[str]) -> list[str]:
    """The <td> cells of numbers like '16.7 ± 1.5 (3 seeds)', points below each other."""
    matches = [re.fullmatch(r'(\D*[\d,]*)(.*)', text) for text in column]
    parts = [
        match.groups() if match else (text, '') for match, text in zip(matches, column, strict=True)
    ]
    width = max(len(rest) for _, rest in parts)
    room = f'<span style="min-width:{0.9 * width:.1f}ch">'
    return [
        f'<td class="n">{escape(whole)}{room}{escape(rest)}</span></td>' for whole, rest in parts
    ]
