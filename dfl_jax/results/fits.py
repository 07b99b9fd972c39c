"""What the tables infer over seeds: confidence intervals, power laws in n, slowdowns."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dfl_jax.experiment.run_directory import Row
from dfl_jax.plain_text import counted
from dfl_jax.results.curves import Runs
from dfl_jax.results.measured import METRICS, Measured, by_metric, in_digits, measure_cell

LEVEL = 0.95  # of every interval
SIZES = 3  # the fewest that a power law is fitted to

Points = dict[float, list[float]]  # x -> one value a seed or draw


class PowerLaw(NamedTuple):
    """factor * n^exponent; `error` is half the confidence interval of the exponent."""

    exponent: float
    error: float
    factor: float

    def __str__(self) -> str:
        return f'{round(self.exponent, 2) + 0.0:.2f}'  # never -0.00

    def at(self, n: float) -> float:
        return self.factor * n**self.exponent


def confidence(values: Sequence[float]) -> float:
    """Half the 95 % interval of the mean, by Student's t; 0 of a single value."""
    if len(values) < 2:
        return 0.0
    return student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))


def student(degrees: float) -> float:
    """The half width of a 95 % interval in standard errors, by Student's t."""
    from scipy.stats import t

    return float(t.ppf((1 + LEVEL) / 2, degrees))


def power_law(values: Mapping[float, Sequence[float]]) -> PowerLaw | None:
    """Least squares of log value on log n over all runs; None of fewer than SIZES sizes.

    values: {n: one a run}, all of them positive; a size without any does not count.
    """
    from scipy.stats import linregress

    pairs = [(math.log(n), math.log(value)) for n, several in values.items() for value in several]
    if len({n for n, _ in pairs}) < SIZES:
        return None
    line = linregress(*zip(*pairs, strict=True))
    spread = line.stderr if math.isfinite(line.stderr) else 0.0  # all values equal
    error = student(len(pairs) - 2) * spread
    return PowerLaw(float(line.slope), float(error), math.exp(line.intercept))


def fitted_laws(published: Row, runs: Runs) -> dict[str, PowerLaw]:
    """The power law of the table's first metric for every method in `fit` that has one."""
    laws = {m: power_law(_reached(cells)) for m, cells in _by_size(published, runs).items()}
    return {method: law for method, law in laws.items() if law}


def fit_lines(published: Row, runs: Runs) -> list[str]:
    """The fits in words, bounds left out; nothing of a method that has no run."""
    lines = []
    head = METRICS[by_metric(published)[0]['metric']].head
    for method, cells in _by_size(published, runs).items():
        reached = _reached(cells)
        sizes, used = sum(map(bool, reached.values())), sum(map(len, reached.values()))
        bounds = sum(map(len, cells.values())) - used
        if used + bounds == 0:
            continue
        law = power_law(reached)
        fit = f'^{law} ± {law.error:.2f}' if law else f'^mu not fitted, it takes {SIZES} sizes'
        left_out = f'; {counted(bounds, "bound")} left out' if bounds else ''
        over = f'{counted(sizes, "size")}, {counted(used, "run")}{left_out}'
        lines.append(f'{method}: {head} ~ n{fit} ({over})')
    return lines


def _by_size(published: Row, runs: Runs) -> dict[str, dict[float, list[Measured]]]:
    part = by_metric(published)[0]
    return {
        method: {n: measure_cell(part, runs, method, column) for column, n in sizes.items()}
        for method, sizes in published.get('fit', {}).items()
    }


def _reached(cells: Mapping[Any, Sequence[Measured]]) -> dict[Any, list[float]]:
    """The values of each cell that are no bounds."""
    return {
        n: [v.value for v in values if not v.bound and v.value > 0] for n, values in cells.items()
    }


def slowdowns(
    rounds: Mapping[str, Sequence[float]], minibatches: Mapping[str, float]
) -> dict[str, list[float]]:
    """tau_first / tau_column of every run, with tau = rounds * minibatches a round.

    rounds: {column: one a run}; minibatches: {column: a round}, the first one being the reference,
    by its mean over runs. Without a run of that there is none.
    """
    first = next(iter(minibatches))
    if not rounds.get(first):
        return {}
    reference = minibatches[first] * statistics.mean(rounds[first])
    return {
        column: [reference / (minibatches[column] * value) for value in values]
        for column, values in rounds.items()
        if column in minibatches
    }


def slowdown_lines(published: Row, runs: Runs) -> list[str]:
    """The slowdowns of every method in words, bounds left out."""
    minibatches = published.get('slowdown', {})
    part = by_metric(published)[0]
    lines = []
    for method in published['rows'] if minibatches else ():
        rounds = _reached({c: measure_cell(part, runs, method, c) for c in minibatches})
        by_column = slowdowns(rounds, minibatches)
        words = [
            f'{column} {in_digits(statistics.mean(values), 3)} ± {in_digits(confidence(values), 2)}'
            for column, values in by_column.items()
            if values
        ]
        if words:
            against = f'slowdown against {next(iter(minibatches))}'
            lines.append(f'{method}: {against}: {", ".join(words)}')
    return lines
