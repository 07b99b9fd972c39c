"""A finished run on the clock of a world, without training again."""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from dfl_jax.base import Graph
from dfl_jax.experiment.recall import recall
from dfl_jax.experiment.run_directory import Row, RunDirectory
from dfl_jax.methods import EVENTS
from dfl_jax.tasks import CLASSIFICATION
from dfl_jax.timing import Counts, Rules, World, counted, energy, finish_times, rules_of

# What may have moved since the run
FILES = ('dataset', 'data_dir', 'partition_file', 'topology_file', 'architecture_file')


class Replay(NamedTuple):
    """What the clock needs of a run, and what it reached."""

    name: str
    graphs: Graph  # of the rounds that it has evaluated
    counts: Counts
    rules: Rules  # of its method, and when its rounds begin
    rounds: np.ndarray  # [E] evaluated
    metric: str  # of the task, `accuracy` where it has one
    values: np.ndarray  # [E] of the consensus model
    seed: int  # of the run
    world: str | None  # in which it was trained

    def seconds(self, world: World, barrier: bool = False) -> np.ndarray:
        """Simulated seconds until all clients have finished each evaluated round, [E]."""
        rules = self.rules._replace(barrier=barrier)
        if rules.period:  # who was offline then is inactive in the graphs
            world = world._replace(online=None)
        times = finish_times(self.graphs, self.counts, world, rules)
        return times.max(axis=1)[self.rounds - 1]

    def joules(self, of_operation: float, of_bit: float) -> np.ndarray:
        """Joules that all clients have spent at each evaluation, [E]."""
        return energy(self.counts, of_operation, of_bit)[self.rounds - 1]

    def evaluation_at(self, target: float) -> int | None:
        """The first evaluation at which the accuracy is at the target; None of other metrics."""
        reached = np.flatnonzero((self.metric == CLASSIFICATION.metric) & (self.values >= target))
        return int(reached[0]) if len(reached) else None


def replay(
    name: str,
    directory: RunDirectory,
    moved: Mapping[str, Any],
    allow_imports: bool,
    operations: float | None = None,
) -> Replay:
    """The replay of a run; its data are read again for the sizes of its clients.

    moved: files of the run that are elsewhere now. allow_imports: import code that the run names.
    operations: of a client in a round, where the run has not counted them.

    Raises ValueError, one line.
    """
    experiment, _ = recall(directory, moved, allow_imports=allow_imports, may_differ=FILES)
    rows = directory.rows()
    if not rows:
        raise ValueError(f'{directory.path} holds no evaluation yet; let it run on')
    algorithm, exchange = experiment.method.name, experiment.method.row.graphs
    if exchange == 'cohort':
        raise ValueError(
            f'{directory.path}: the server of {algorithm} is none of the clients, whose '
            'times these are; leave it out'
        )
    if exchange == EVENTS:
        raise ValueError(
            f'{directory.path}: {algorithm} has no rounds, and would train otherwise in '
            'another world; run it there'
        )
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # the run has printed its warnings
        built = experiment.build()
    metric = built.model.task.metric
    graphs = jax.tree.map(lambda a: a[: rows[-1]['round']], built.graphs)
    try:
        counts = counted(
            built.algorithm, built.clients, graphs, _operations(rows, len(built.parts), operations)
        )
    except ValueError as error:
        raise ValueError(f'{directory.path}: {error}') from error
    rules = rules_of(built.algorithm, graphs, len(built.parts), built.rules)
    rounds = np.array([row['round'] for row in rows])
    values = np.array([row[f'consensus_{metric}'] for row in rows])
    return Replay(
        name, graphs, counts, rules, rounds, metric, values, experiment.seed, experiment.time.world
    )


def _operations(rows: list[Row], clients: int, each: float | None) -> np.ndarray | None:
    """Operations of all clients in each round, [T], as the run counted them, else `each` of every
    client.

    Between two evaluations they are spread evenly.
    """
    rounds = np.array([row['round'] for row in rows])
    if 'operations_total' not in rows[-1]:
        return None if each is None else np.full(rounds[-1], each * clients)
    totals = np.array([row['operations_total'] for row in rows])
    lengths = np.diff(rounds, prepend=0)
    return np.repeat(np.diff(totals, prepend=0) / lengths, lengths)
