"""The metrics of the tables (see docs/tables.md): a number of a run, and its words."""

import itertools
import operator
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from dfl_jax.experiment.run_directory import Row
from dfl_jax.plain_text import counted
from dfl_jax.results.curves import CLIENT_LOSS, CURVES, LOCAL_ACCURACY, Run, Runs

CONSENSUS, CLIENT = CURVES
DEVIATION = 'model_deviation'


class Measured(NamedTuple):
    """A number, or its lower bound: a run of `value` rounds never got there."""

    value: float
    bound: bool = False

    def __str__(self) -> str:
        return f'{">" * self.bound}{in_digits(self.value, 4)}'


def in_digits(value: float, digits: int) -> str:
    """So many significant digits, never with an exponent."""
    return f'{float(f"{value:.{digits}g}"):.12g}'


def first_with(run: Run, name: str, reached: Iterable[bool]) -> Measured:
    """The column at the first evaluation that has `reached`, else its last value as a bound."""
    value = next(itertools.compress(run[name], reached), None)
    return Measured(run[name][-1], True) if value is None else Measured(value)


def to_target(column: str) -> Callable[..., Measured]:
    """The metric that is a column where the consensus accuracy first reaches the target."""

    def metric(table: Row, run: Run, _: Sequence[Run] = ()) -> Measured:
        return first_with(run, column, (accuracy >= table['target'] for accuracy in run[CONSENSUS]))

    return metric


def loss_to(table: Row, run: Run, _: Sequence[Run]) -> Measured:
    """Where the curve of the mean client's loss, straight between evaluations, meets the target."""
    target, before = table['target_loss'], None
    for point in zip(run['round'], run[CLIENT_LOSS], strict=True):
        if point[1] <= target:
            (r0, loss0), (r1, loss1) = before or point, point
            return Measured(r0 + (r1 - r0) * (loss0 - target) / (loss0 - loss1) if before else r1)
        before = point
    return Measured(run['round'][-1], True)


def at_round(column: str, scale: float = 100) -> Callable[..., Measured | None]:
    """The metric that is a column at the table's round; None where the run has not evaluated it."""

    def metric(table: Row, run: Run, _: Sequence[Run] = ()) -> Measured | None:
        value = dict(zip(run['round'], run[column], strict=True)).get(table['round'])
        return None if value is None else Measured(scale * value)

    return metric


client_accuracy_at = at_round(CLIENT)


def gap_at(table: Row, run: Run, _: Sequence[Run]) -> Measured | None:
    """Consensus accuracy minus the mean client's at the round, in points; None likewise."""
    pairs = zip(run[CONSENSUS], run[CLIENT], strict=True)
    gaps = [consensus - client for consensus, client in pairs]
    return at_round('gap')(table, run | {'gap': gaps})


def megabytes_saved(_: Row, run: Run, reference: Sequence[Run]) -> Measured | None:
    """Percent by which a round sends less than one of the reference; None where that has no run."""
    if not reference:
        return None
    return Measured(100 - 100 * round_mbytes(run) / statistics.mean(map(round_mbytes, reference)))


def rounds_to_reference(table: Row, run: Run, reference: Sequence[Run]) -> Measured | None:
    """The first evaluated round whose mean client is as accurate as the reference's at the round.

    Only rounds that the table's `every` divides count: those that the paper evaluated. None where
    no run of the reference has evaluated its round.
    """
    accuracies = [m.value for other in reference if (m := client_accuracy_at(table, other))]
    if not accuracies:
        return None
    target = statistics.mean(accuracies)
    counts = (round % table.get('every', 1) == 0 for round in run['round'])
    there = (100 * accuracy >= target for accuracy in run[CLIENT])
    return first_with(run, 'round', map(operator.and_, counts, there))


def round_mbytes(run: Run) -> float:
    """What all clients together send in a round, in megabytes."""
    return run['mbytes_total'][-1] / run['round'][-1]


class Metric(NamedTuple):
    """What a table may measure of a run."""

    of: Callable[[Row, Run, Sequence[Run]], Measured | None]  # table, run, runs of its reference
    head: str  # above its columns, where a table has several metrics
    words: str  # with places for what `metric_words` fills in
    takes: str | None = None  # a column beside CURVES
    more_is_better: bool = False
    points: bool = False  # whether it is told in points: a tolerance is one, not a share
    whole: bool = False  # whether it is a number of rounds that were evaluated
    saved: bool = (
        False  # whether it is in percent what is saved: a tolerance is a share of the rest
    )


METRICS = {
    'rounds_to': Metric(to_target('round'), 'rounds', 'rounds to {target}', whole=True),
    'megabytes_to': Metric(
        to_target('mbytes_total'), 'MB', 'megabytes to {target}', 'mbytes_total'
    ),
    'seconds_to': Metric(
        to_target('simulated_seconds'), 's', 'simulated seconds to {target}', 'simulated_seconds'
    ),
    'accuracy_at': Metric(
        *(at_round(CONSENSUS), 'aggregated', 'consensus accuracy at {when} (%)'),
        more_is_better=True,
        points=True,
    ),
    'client_accuracy_at': Metric(
        *(client_accuracy_at, 'mean client', 'mean client accuracy at {when} (%)'),
        more_is_better=True,
        points=True,
    ),
    'local_accuracy_at': Metric(
        *(at_round(LOCAL_ACCURACY), 'local', 'mean local accuracy at {when} (%)', LOCAL_ACCURACY),
        more_is_better=True,
        points=True,
    ),
    'gap_at': Metric(
        *(gap_at, 'gap', 'gap from consensus to mean client accuracy at {when} (points)'),
        points=True,
    ),
    'loss_to': Metric(loss_to, 'rounds', 'rounds to a mean test loss of {loss}', CLIENT_LOSS),
    'loss_at': Metric(at_round(CLIENT_LOSS, 1), 'loss', 'mean test loss at {when}', CLIENT_LOSS),
    'deviation_at': Metric(
        *(at_round(DEVIATION, 1), 'deviation', 'model deviation at {when}', DEVIATION),
        more_is_better=True,
    ),
    'megabytes_saved': Metric(
        megabytes_saved,
        'MB saved',
        'megabytes a round saved against {reference} (%)',
        'mbytes_total',
        more_is_better=True,
        saved=True,
    ),
    'rounds_to_reference': Metric(
        *(rounds_to_reference, 'rounds'),
        'rounds to the mean client accuracy of {reference} at {when}',
        whole=True,
    ),
}


def metric_in_words(table: Row) -> str:
    """The metric of a table that has one, in words."""
    target, loss = table.get('target', 0), table.get('target_loss', 0)
    return METRICS[table['metric']].words.format(
        target=f'{100 * target:.4g} % consensus accuracy',
        when=rounds_in_words(table) if 'round' in table else '',
        loss=f'{loss:.4g}',
        reference=table.get('reference'),
    )


def by_metric(table: Row) -> list[Row]:
    """The table once for each of its metrics, with the rows of that one."""
    return [
        table
        | (metric if isinstance(metric, dict) else {'metric': metric})
        | {'rows': {m: row[i] for m, row in table['rows'].items()}}
        for i, metric in enumerate(table.get('metrics', ()))
    ] or [table]


def in_column(table: Row, column: str) -> Row:
    """The table with the `round` of that column, where columns have rounds of their own."""
    rounds = table.get('round')
    return table | {'round': rounds[column]} if isinstance(rounds, dict) else table


def rounds_in_words(table: Row) -> str:
    """The `round`, e.g. 'round 30', or the rounds of the columns."""
    rounds = table['round']
    numbers = sorted({*rounds.values()}) if isinstance(rounds, dict) else [rounds]
    return f'round {" or ".join(map(str, numbers))}'


def measure(table: Row, runs: Sequence[Run], reference: Sequence[Run] = ()) -> list[Measured]:
    """The table's metric of every run that has it, or as `of_mean_curve`."""
    metric = METRICS[table['metric']].of
    if 'mean_of' in table and len(runs) > 1:
        return of_mean_curve(lambda run: metric(table, run, reference), runs)
    return [value for run in runs if (value := metric(table, run, reference)) is not None]


def of_mean_curve(metric: Callable[[Run], Measured | None], runs: Sequence[Run]) -> list[Measured]:
    """The metric of the mean curve of the runs, as numbers of single runs that have it as mean.

    They are the jackknife's (Tukey, 1958): their standard deviation, over the root of their number,
    is the jackknife's standard error of that metric. It is told as of one run where it tells
    nothing, because without one of the runs the mean curve never gets there.
    """
    whole = metric(_mean_curve(runs))
    if whole is None or whole.bound:
        return [whole] * len(runs) if whole else []
    without = [metric(_mean_curve([r for r in runs if r is not run])) for run in runs]
    values = [value.value for value in without if value and not value.bound]
    if len(values) < len(runs):
        return [whole]
    centre = statistics.mean(values)
    return [Measured(whole.value + (len(runs) - 1) * (centre - value)) for value in values]


def _mean_curve(runs: Sequence[Run]) -> Run:
    """The mean of every column of numbers over the runs, in the rounds that all have evaluated.

    Raises ValueError where they have none in common.
    """
    by_round = [{round: i for i, round in enumerate(run['round'])} for run in runs]
    rounds = sorted(set.intersection(*(set(places) for places in by_round)))
    if not rounds:
        every = ', '.join(str(run.get('run')) for run in runs)
        raise ValueError(f'no round is evaluated in all of {every}, whose mean curve is asked for')
    names = [
        name
        for name in runs[0]
        if all(isinstance(run.get(name), list) for run in runs)
        and all(isinstance(run[name][0], int | float) for run in runs)
    ]
    return {
        name: [
            statistics.mean(run[name][at[round]] for run, at in zip(runs, by_round, strict=True))
            for round in rounds
        ]
        for name in names
    }


def measure_cell(table: Row, runs: Runs, method: str, column: str) -> list[Measured]:
    """Likewise in a column, beside the runs of its `reference` there."""
    part, reference = in_column(table, column), table.get('reference')
    if part['metric'] == 'rounds_to_reference' and method == reference:
        return []
    cell, beside = (runs.get(f'{name}-{column}', []) for name in (method, reference))
    return measure(part, cell, beside)


def mean(values: Sequence[Measured]) -> Measured:
    return Measured(statistics.mean(v.value for v in values), any(v.bound for v in values))


def summary(values: Sequence[Measured]) -> str:
    """Mean and standard deviation over seeds; every one of them where only some got there."""
    if not values:
        return '-'
    if all(value.bound for value in values):
        text = f'{min(values)}'
    elif any(value.bound for value in values):
        text = ', '.join(map(str, values))
    elif len(values) > 1:
        text = f'{mean(values)} ± {in_digits(statistics.stdev(v.value for v in values), 2)}'
    else:
        text = f'{values[0]}'
    return f'{text} ({counted(len(values), "seed")})'


def paper_number(number: float | str) -> Measured:
    """A number of `rows`, e.g. 83 or '>200'."""
    return Measured(float(str(number).lstrip('>')), str(number).startswith('>'))


def heading(table: Row, column: str) -> str:
    """The column, and the metric where there are several."""
    if 'metrics' not in table:
        return column
    return f'{column} {table.get("head", METRICS[table["metric"]].head)}'


def metrics_in_words(table: Row) -> str:
    """The metric, or all of them, in words."""
    return '; '.join(map(metric_in_words, by_metric(table)))
