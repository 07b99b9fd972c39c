"""Whether our runs and a published number agree, with what the seeds leave open.

Four words. *Equal*: the 95 % interval of our mean lies within the tolerance of the number.
*Consistent*: the number lies in the prediction interval of one more run, which is what a paper that
prints one run can be held to. *Differs*: neither, and our interval lies outside the tolerance.
*Inconclusive*: too few runs, or too short ones, to say.

Intervals are Student's. The standard deviation of a cell is pooled over all cells of its method in
the table, relative to the mean where the tolerance is: two or three seeds alone have none to speak
of. What never got there is a bound, and a bound is compared with a bound alone.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dfl_jax.results.fits import student
from dfl_jax.results.measured import METRICS, Measured, mean

EQUAL, CONSISTENT, DIFFERS, INCONCLUSIVE, NOT_RUN = VERDICTS = (
    *('equal', 'consistent', 'differs', 'inconclusive', 'not run'),
)
SHARE = 0.15  # of a number of rounds, megabytes or a loss: the tolerance
POINTS = 1.0  # of an accuracy
ROUND = 1.0  # the least of a number of rounds
DEGREES = 2  # of freedom of a deviation, with fewer of which nothing is said
TIE = 2.0  # of a Welch t: below, two means are not apart


class Spread(NamedTuple):
    """A pooled standard deviation, of single runs."""

    deviation: float  # relative to the mean where `relative`
    degrees: int
    relative: bool

    def of(self, centre: float) -> float:
        return self.deviation * abs(centre) if self.relative else self.deviation


class Judged(NamedTuple):
    """A verdict, and what it follows from where there is no bound."""

    verdict: str
    tolerances: float | None = None  # by which our mean lies above the number
    half: float | None = None  # of the 95 % interval of our mean; None with too few runs


def tolerance(metric: str, number: float) -> float:
    """What a mean may be off a published number of this metric."""
    kind = METRICS[metric]
    if kind.points:
        return POINTS
    share = SHARE * abs(number)
    return max(share, ROUND) if kind.whole else share


def pooled(metric: str, cells: Iterable[Sequence[Measured]]) -> Spread:
    """Over the cells of a method, those without bounds."""
    numbers = [[v.value for v in values] for values in cells if values and not mean(values).bound]
    return _spread(numbers, relative=not METRICS[metric].points)


def _spread(cells: Iterable[Sequence[float]], relative: bool) -> Spread:
    squares, degrees = 0.0, 0
    for numbers in cells:
        scale = statistics.mean(numbers) if relative and numbers else 1.0
        if len(numbers) > 1 and scale:
            squares += (len(numbers) - 1) * statistics.variance(numbers) / scale**2
            degrees += len(numbers) - 1
    return Spread(math.sqrt(squares / degrees) if degrees else math.nan, degrees, relative)


def judge(metric: str, values: Sequence[Measured], number: Measured, spread: Spread) -> Judged:
    """Our values beside a published number."""
    if number.bound or mean(values).bound:
        return Judged(_of_bounds(values, number, tolerance(metric, number.value)))
    centre, near = mean(values).value, tolerance(metric, number.value)
    return judge_mean(centre, len(values), spread, number.value, near)


def judge_mean(centre: float, runs: int, spread: Spread, number: float, near: float) -> Judged:
    """The mean of so many runs beside a number without bounds and its tolerance."""
    off = centre - number
    tolerances = off / near if near else math.copysign(math.inf, off) if off else 0.0
    if spread.degrees < DEGREES:
        return Judged(INCONCLUSIVE, tolerances)
    reach = student(spread.degrees) * spread.of(centre)
    half = reach / math.sqrt(runs)
    if abs(off) + half <= near:
        found = EQUAL
    elif abs(off) <= reach * math.sqrt(1 + 1 / runs):
        found = CONSISTENT
    else:
        found = DIFFERS if abs(off) - half > near else INCONCLUSIVE
    return Judged(found, tolerances, half)


def _of_bounds(values: Sequence[Measured], number: Measured, near: float) -> str:
    """Where a run ended early, or the paper's did."""
    least, most = number.value - near, number.value + near
    if number.bound:
        beyond = [value.value >= number.value for value in values]
        if all(beyond):
            return EQUAL
        early = [not value.bound and value.value < least for value in values]
        return DIFFERS if all(early) else INCONCLUSIVE
    arrived = [value.value for value in values if not value.bound]
    if arrived:
        return CONSISTENT if min(arrived) <= number.value else INCONCLUSIVE
    return DIFFERS if all(value.value > most for value in values) else INCONCLUSIVE


def judge_order(steps: Sequence[float | None]) -> str:
    """The verdict on cells that are to be from the best to the worst. steps: of `order_steps`.

    *Equal* where all pairs are in order, *consistent* where some are and the others are ties,
    *differs* where one is the other way round, *inconclusive* where all are ties or the runs of a
    pair do not tell.
    """
    told = [step for step in steps if step is not None]
    if any(step <= -TIE for step in told):
        return DIFFERS
    in_order = [step >= TIE for step in told]
    if len(told) < len(steps) or not any(in_order):
        return INCONCLUSIVE
    return EQUAL if all(in_order) else CONSISTENT


def order_steps(metric: str, cells: Sequence[Sequence[Measured]]) -> list[float | None]:
    """By which Welch t each cell is better than the next; None where the runs do not tell."""
    return [_step(metric, one, other) for one, other in itertools.pairwise(cells)]


def _step(metric: str, one: Sequence[Measured], other: Sequence[Measured]) -> float | None:
    if mean(one).bound or mean(other).bound:
        if METRICS[metric].more_is_better or all(value.bound for value in one):
            return None
        ends = [value.value for value in other if value.bound]
        later = max(v.value for v in one) <= min(ends, default=-math.inf)
        return math.inf if later and len(ends) == len(other) else None
    if min(len(one), len(other)) < 2:
        return None
    a, b = ([value.value for value in values] for values in (one, other))
    apart = statistics.mean(a) - statistics.mean(b)
    apart = apart if METRICS[metric].more_is_better else -apart
    error = math.sqrt(statistics.variance(a) / len(a) + statistics.variance(b) / len(b))
    return apart / error if error else math.copysign(math.inf, apart) if apart else 0.0


def effects(metric: str, of: Mapping[str, Measured], over: Mapping[str, Measured]) -> list[float]:
    """What one method has over another, of the runs of each seed that both have without a bound.

    A difference where the metric is told in points, else how many times less the first takes.
    of, over: the metric by seed.
    """
    pairs = [(of[seed], over[seed]) for seed in sorted(of.keys() & over.keys())]
    return [
        effect(metric, one.value, other.value)
        for one, other in pairs
        if not (one.bound or other.bound)
    ]


def effect(metric: str, one: float, other: float) -> float:
    """Of two numbers."""
    return one - other if METRICS[metric].points else other / one


def judge_effects(
    metric: str, effects: Sequence[Sequence[float]], numbers: Sequence[float]
) -> list[Judged]:
    """The effects of a pair in several columns beside the published ones.

    The tolerance of an effect is SHARE of it, and the standard deviation is that of all columns.
    """
    spread = _spread(effects, relative=not METRICS[metric].points)
    return [
        judge_mean(statistics.mean(values), len(values), spread, number, SHARE * abs(number))
        if values
        else Judged(NOT_RUN)
        for values, number in zip(effects, numbers, strict=True)
    ]
