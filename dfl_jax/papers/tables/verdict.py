"""Whether our runs and a published number agree, with what the seeds leave open.

Four words. *Equal*: the 95 % interval of our mean lies within the tolerance of the number.
*Consistent*: the number lies in the prediction interval of as many more runs as the paper averages,
mostly one, and our interval is no wider than WIDE tolerances. *Differs*: neither, and our interval
lies outside the tolerance. *Inconclusive*: the rest, and too few runs, or too short ones, to say.

Intervals are Student's. The standard deviation of a cell is pooled over all cells of its method in
the table, relative to the mean where the tolerance is: two or three seeds alone have none to speak
of. What never got there is a bound, and a bound is compared with a bound alone.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dfl_jax.results.fits import student
from dfl_jax.results.measured import METRICS, Measured, mean

EQUAL, CONSISTENT, DIFFERS, INCONCLUSIVE, NOT_RUN = VERDICTS = (
    *('equal', 'consistent', 'differs', 'inconclusive', 'not run'),
)
SHARE = 0.15  # of a number of rounds, megabytes or a loss: the tolerance
POINTS = 1.0  # of an accuracy
LEAST = 0.1  # points, of an effect
DEGREES = 2  # of freedom of a deviation, with fewer of which nothing is said
CORRELATED = 5  # cells, with fewer of which a correlation says nothing
WIDE = 3  # tolerances: half an interval beyond it says nothing


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


def tolerance(metric: str, number: float, every: int = 1) -> float:
    """What a mean may be off a published number of this metric.

    every: rounds from one evaluation to the next, where the metric is a round.
    """
    kind = METRICS[metric]
    if kind.points:
        return POINTS
    share = SHARE * abs(100 - number if kind.saved else number)
    return max(share, every) if kind.whole else share


def pooled(metric: str, cells: Iterable[Sequence[Measured]]) -> Spread:
    """Over the cells of a method, those without bounds."""
    numbers = [[v.value for v in values] for values in cells if values and not mean(values).bound]
    return _spread(numbers, relative=not METRICS[metric].points)


def _spread(cells: Iterable[Sequence[float]], relative: bool) -> Spread:
    squares, degrees = 0.0, 0
    for numbers in cells:
        scale = statistics.mean(numbers) if relative and numbers else 1.0
        if len(numbers) > 1 and scale and math.isfinite(sum(numbers)):
            squares += (len(numbers) - 1) * statistics.variance(numbers) / scale**2
            degrees += len(numbers) - 1
    return Spread(math.sqrt(squares / degrees) if degrees else math.nan, degrees, relative)


def judge(
    metric: str,
    values: Sequence[Measured],
    number: Measured,
    spread: Spread,
    every: int = 1,
    mean_of: int = 1,
) -> Judged:
    """Our values beside a published number. every: as of `tolerance`; mean_of: `judge_mean`."""
    near = tolerance(metric, number.value, every)
    if number.bound or mean(values).bound:
        return Judged(_of_bounds(values, number, near))
    return judge_mean(mean(values).value, len(values), spread, number.value, near, mean_of)


def judge_mean(
    centre: float, runs: int, spread: Spread, number: float, near: float, mean_of: int = 1
) -> Judged:
    """The mean of so many runs beside a number without bounds and its tolerance.

    mean_of: the runs of which the number is the mean.
    """
    if math.isnan(centre):  # a run did not get there
        return Judged(INCONCLUSIVE)
    off = centre - number
    tolerances = off / near if near else math.copysign(math.inf, off) if off else 0.0
    if spread.degrees < DEGREES:
        return Judged(INCONCLUSIVE, tolerances)
    reach = student(spread.degrees) * spread.of(centre)
    half = reach / math.sqrt(runs)
    one_more = reach * math.sqrt(1 / mean_of + 1 / runs)
    return Judged(_verdict(abs(off), half, one_more, near), tolerances, half)


def _verdict(off: float, half: float, one_more: float, near: float) -> str:
    """Of a mean that is so far off, by half of its interval and of the prediction interval."""
    if off + half <= near:
        return EQUAL
    if off <= one_more:
        return CONSISTENT if half <= WIDE * near else INCONCLUSIVE
    return DIFFERS if off - half > near else INCONCLUSIVE


def judge_interval(centre: float, half: float, number: float, near: float) -> Judged:
    """A fitted number with half of its 95 % interval beside a published one and its tolerance.

    The interval stands for the prediction interval, which a fit has not.
    """
    off = centre - number
    return Judged(_verdict(abs(off), half, half, near), off / near, half)


def _of_bounds(values: Sequence[Measured], number: Measured, near: float) -> str:
    """Where a run ended early, or the paper's did."""
    least, most = number.value - near, number.value + near
    beyond = [value.value >= number.value for value in values]
    if number.bound and all(beyond):
        return EQUAL
    arrived = [not value.bound and value.value <= number.value for value in values]
    if any(beyond) and (number.bound or any(arrived)):
        return CONSISTENT
    apart = [
        not value.bound and value.value < least if number.bound else value.value > most
        for value in values
    ]
    return DIFFERS if len(values) > 1 and all(apart) else INCONCLUSIVE


class Step(NamedTuple):
    """From one cell of an order to the next."""

    t: float  # Welch's, by which the first is better
    needed: float  # below, they are a tie


def judge_order(steps: Sequence[Step | None]) -> str:
    """The verdict on cells that are to be from the best to the worst. steps: of `order_steps`.

    *Equal* where all pairs are in order, *consistent* where some are and the others are ties,
    *differs* where one is the other way round, *inconclusive* where all are ties or the runs of a
    pair do not tell.
    """
    told = [step for step in steps if step is not None]
    if any(step.t <= -step.needed for step in told):
        return DIFFERS
    in_order = [step.t >= step.needed for step in told]
    if len(told) < len(steps) or not any(in_order):
        return INCONCLUSIVE
    return EQUAL if all(in_order) else CONSISTENT


def order_steps(metric: str, cells: Sequence[Sequence[Measured]]) -> list[Step | None]:
    """Of each pair of neighbours, with the t of 95 %; None where the runs do not tell."""
    return [_step(metric, one, other) for one, other in itertools.pairwise(cells)]


def _step(metric: str, one: Sequence[Measured], other: Sequence[Measured]) -> Step | None:
    if mean(one).bound or mean(other).bound:
        return _never(one, other) or _never(other, one, -1)
    if min(len(one), len(other)) < 2:
        return None
    a, b = ([value.value for value in values] for values in (one, other))
    apart = statistics.mean(a) - statistics.mean(b)
    apart = apart if METRICS[metric].more_is_better else -apart
    of_each = [(statistics.variance(x) / len(x), len(x) - 1) for x in (a, b)]
    error = sum(square for square, _ in of_each)
    if not error:
        return Step(math.copysign(math.inf, apart) if apart else 0.0, 0.0 if apart else math.inf)
    degrees = error**2 / sum(square**2 / freedom for square, freedom in of_each)
    return Step(apart / math.sqrt(error), student(degrees))


def _never(there: Sequence[Measured], never: Sequence[Measured], sign: int = 1) -> Step | None:
    """Where all runs of the one got there before any of the other gave up."""
    arrived = not any(value.bound for value in there) and all(value.bound for value in never)
    if arrived and max(v.value for v in there) <= min(v.value for v in never):
        return Step(sign * math.inf, 0.0)
    return None


def effects(metric: str, of: Mapping[str, Measured], over: Mapping[str, Measured]) -> list[float]:
    """What one method has over another, of the runs of each seed that both have.

    A difference where the metric is told in points, else how many times less the first takes; of
    a run that did not get there no number. of, over: the metric by seed.
    """
    return [
        math.nan if one.bound or other.bound else effect(metric, one.value, other.value)
        for one, other in _paired(of, over)
    ]


def _paired(of: Mapping[str, Any], over: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    return [(of[seed], over[seed]) for seed in sorted(of.keys() & over.keys())]


def differences(of: Mapping[str, Measured], over: Mapping[str, Measured]) -> list[Measured]:
    """What one cell has more than another, of the runs of each seed that both have."""
    return [
        Measured(math.nan if one.bound or other.bound else one.value - other.value)
        for one, other in _paired(of, over)
    ]


def effect(metric: str, one: float, other: float) -> float:
    """Of two numbers."""
    if METRICS[metric].points:
        return one - other
    return other / one if one else math.nan


def judge_effects(
    metric: str,
    effects: Sequence[Sequence[float]],
    numbers: Sequence[float],
    tolerance: float = 0.0,
) -> list[Judged]:
    """The effects of a pair in several columns beside the published ones.

    The tolerance of an effect is SHARE of it, of points never less than LEAST, or the one that is
    given if that is larger, and the standard deviation is that of all columns.
    """
    points = METRICS[metric].points
    spread, least = _spread(effects, relative=not points), LEAST if points else 0.0
    return [
        judge_mean(
            *(statistics.mean(values), len(values), spread),
            *(number, max(SHARE * abs(number), least, tolerance)),
        )
        if values
        else Judged(NOT_RUN)
        for values, number in zip(effects, numbers, strict=True)
    ]


def judge_correlation(pairs: Sequence[tuple[float, float]]) -> tuple[Judged, float]:
    """Whether two columns rise together, and their correlation. pairs: one a cell.

    *Equal* where the 95 % interval of Fisher's z lies above 0, *differs* where it lies below.
    """
    x, y = zip(*pairs, strict=True) if pairs else ((), ())
    if len(pairs) < CORRELATED or min(len(set(x)), len(set(y))) < 2:
        return Judged(INCONCLUSIVE if pairs else NOT_RUN), math.nan
    r = statistics.correlation(x, y)
    if math.isnan(r):
        return Judged(INCONCLUSIVE), r
    z = math.atanh(r) if abs(r) < 1 else math.copysign(math.inf, r)
    reach = statistics.NormalDist().inv_cdf(0.975) / math.sqrt(len(pairs) - 3)
    return Judged(EQUAL if z > reach else DIFFERS if z < -reach else INCONCLUSIVE), r


def judge_same(metric: str, of: Mapping[str, Measured], over: Mapping[str, Measured]) -> Judged:
    """Whether two cells are the same within POINTS, by seed; the metric is told in points."""
    values = effects(metric, of, over)
    if not values:
        return Judged(NOT_RUN)
    off, spread = statistics.mean(values), _spread([values], relative=False)
    if spread.degrees < DEGREES:
        return Judged(INCONCLUSIVE, off / POINTS)
    half = student(spread.degrees) * spread.deviation / math.sqrt(len(values))
    apart = DIFFERS if abs(off) - half > POINTS else INCONCLUSIVE
    return Judged(EQUAL if abs(off) + half <= POINTS else apart, off / POINTS, half)
