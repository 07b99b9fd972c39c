"""The metrics of the tables (see experiments.tables): a number of a run, and its words."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from dfl_jax.cli.run.rundir import Row
from dfl_jax.cli.tables.curves import LOCAL, LOSS, Run, Runs


class Measured(NamedTuple):
    """A number, or its lower bound: a run of `value` rounds never got there."""

    value: float
    bound: bool = False

    def __str__(self) -> str:
        return f'{">" * self.bound}{short(self.value, 4)}'


def short(value: float, digits: int) -> str:
    """So many significant digits, never with an exponent."""
    return f'{float(f"{value:.{digits}g}"):.12g}'


def rounds_to(published: Row, run: Run) -> Measured:
    """The first evaluated round whose consensus accuracy reaches the target."""
    return first(published, run, 'round')


def megabytes_to(published: Row, run: Run) -> Measured:
    """What all clients together have sent by that round, in megabytes."""
    return first(published, run, 'mbytes_total')


def first(published: Row, run: Run, name: str) -> Measured:
    pairs = zip(run[name], run['consensus_accuracy'], strict=True)
    reached = (value for value, accuracy in pairs if accuracy >= published['target'])
    value = next(reached, None)
    return Measured(run[name][-1], True) if value is None else Measured(value)


def loss_to(published: Row, run: Run) -> Measured:
    """The first evaluated round whose mean client loss is at or below the target."""
    pairs = zip(run['round'], run[LOSS], strict=True)
    value = next((round for round, loss in pairs if loss <= published['target_loss']), None)
    return Measured(run['round'][-1], True) if value is None else Measured(value)


def accuracy_at(published: Row, run: Run) -> Measured | None:
    """Consensus accuracy in percent at the round; None where the run has not evaluated it."""
    return at_round(published, run, run['consensus_accuracy'])


def client_accuracy_at(published: Row, run: Run) -> Measured | None:
    """The mean client's accuracy in percent at the round; None likewise."""
    return at_round(published, run, run['client_accuracy_mean'])


def local_accuracy_at(published: Row, run: Run) -> Measured | None:
    """The mean client's accuracy in percent on what it kept from training; None likewise."""
    return at_round(published, run, run[LOCAL])


def gap_at(published: Row, run: Run) -> Measured | None:
    """Consensus accuracy minus the mean client's at the round, in points; None likewise."""
    pairs = zip(run['consensus_accuracy'], run['client_accuracy_mean'], strict=True)
    return at_round(published, run, [consensus - client for consensus, client in pairs])


def loss_at(published: Row, run: Run) -> Measured | None:
    """The mean client's test loss at the round; None likewise."""
    return at_round(published, run, run[LOSS], scale=1)


def at_round(
    published: Row, run: Run, values: Sequence[float], scale: float = 100
) -> Measured | None:
    value = dict(zip(run['round'], values, strict=True)).get(published['round'])
    return None if value is None else Measured(scale * value)


def megabytes_saved(_: Row, run: Run, reference: Sequence[Run]) -> Measured | None:
    """Percent by which a round sends less than one of the reference; None where that has no run."""
    if not reference:
        return None
    return Measured(100 - 100 * a_round(run) / statistics.mean(map(a_round, reference)))


def rounds_to_reference(published: Row, run: Run, reference: Sequence[Run]) -> Measured | None:
    """The first evaluated round whose mean client is as accurate as the reference's at the round.

    None where no run of the reference has evaluated that round.
    """
    reached = [m.value for other in reference if (m := client_accuracy_at(published, other))]
    if not reached:
        return None
    target = statistics.mean(reached)
    pairs = zip(run['round'], run['client_accuracy_mean'], strict=True)
    value = next((round for round, accuracy in pairs if 100 * accuracy >= target), None)
    return Measured(run['round'][-1], True) if value is None else Measured(value)


def a_round(run: Run) -> float:
    """What all clients together send in a round, in megabytes."""
    return run['mbytes_total'][-1] / run['round'][-1]


METRICS = {
    'rounds_to': rounds_to,
    'megabytes_to': megabytes_to,
    'accuracy_at': accuracy_at,
    'client_accuracy_at': client_accuracy_at,
    'local_accuracy_at': local_accuracy_at,
    'gap_at': gap_at,
    'loss_to': loss_to,
    'loss_at': loss_at,
}
AGAINST = {  # those that compare with another cell, the `reference`
    'megabytes_saved': megabytes_saved,
    'rounds_to_reference': rounds_to_reference,
}
HEADS = {  # of the columns of a table with several metrics
    'rounds_to': 'rounds',
    'megabytes_to': 'MB',
    'accuracy_at': 'aggregated',
    'client_accuracy_at': 'mean client',
    'local_accuracy_at': 'local',
    'gap_at': 'gap',
    'loss_to': 'rounds',
    'loss_at': 'loss',
    'megabytes_saved': 'MB saved',
    'rounds_to_reference': 'rounds',
}


def by_metric(published: Row) -> list[Row]:
    """The table once for each of its metrics, with the rows of that one."""
    return [
        published
        | (own if isinstance(own, dict) else {'metric': own})
        | {'rows': {m: row[i] for m, row in published['rows'].items()}}
        for i, own in enumerate(published.get('metrics', ()))
    ] or [published]


def in_column(published: Row, column: str) -> Row:
    """The table with the `round` of that column, where columns have rounds of their own."""
    rounds = published.get('round')
    return published | {'round': rounds[column]} if isinstance(rounds, dict) else published


def when(published: Row) -> str:
    """The `round`, e.g. 'round 30', or the rounds of the columns."""
    rounds = published['round']
    numbers = sorted({*rounds.values()}) if isinstance(rounds, dict) else [rounds]
    return f'round {" or ".join(map(str, numbers))}'


def measure(published: Row, runs: Sequence[Run]) -> list[Measured]:
    """The table's metric of every run that has it."""
    metric = METRICS[published['metric']]
    return [value for run in runs if (value := metric(published, run)) is not None]


def measure_cell(published: Row, runs: Runs, method: str, column: str) -> list[Measured]:
    """Likewise in a column, also of a metric that compares with another cell."""
    part, cell = in_column(published, column), runs.get(f'{method}-{column}', [])
    if part['metric'] not in AGAINST:
        return measure(part, cell)
    against = AGAINST[part['metric']]
    if part['metric'] == 'rounds_to_reference' and method == part['reference']:
        return []
    reference = runs.get(f'{part["reference"]}-{column}', [])
    return [value for run in cell if (value := against(part, run, reference)) is not None]


def mean(values: Sequence[Measured]) -> Measured:
    return Measured(statistics.mean(v.value for v in values), any(v.bound for v in values))


def what(published: Row) -> str:
    """The metric, or all of them, in words."""
    return '; '.join(metric_words(part) for part in by_metric(published))


def metric_words(published: Row) -> str:
    if published['metric'] == 'loss_to':
        return f'rounds to a mean test loss of {published["target_loss"]:.4g}'
    if published['metric'] == 'loss_at':
        return f'mean test loss at {when(published)}'
    if published['metric'].endswith('_to'):
        unit = published['metric'].removesuffix('_to')
        return f'{unit} to {100 * published["target"]:.4g} % consensus accuracy'
    if published['metric'] == 'megabytes_saved':
        return f'megabytes a round saved against {published["reference"]} (%)'
    if published['metric'] == 'rounds_to_reference':
        where = f'{published["reference"]} at {when(published)}'
        return f'rounds to the mean client accuracy of {where}'
    if published['metric'] == 'client_accuracy_at':
        return f'mean client accuracy at {when(published)} (%)'
    if published['metric'] == 'local_accuracy_at':
        return f'mean local accuracy at {when(published)} (%)'
    if published['metric'] == 'gap_at':
        return f'gap from consensus to mean client accuracy at {when(published)} (points)'
    return f'consensus accuracy at {when(published)} (%)'
