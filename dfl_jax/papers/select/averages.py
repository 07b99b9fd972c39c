"""Every way to average the clients of a run in the end, evaluated."""

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from absl import flags
from tqdm import tqdm

from dfl_jax import topology
from dfl_jax.experiment.build import Experiment
from dfl_jax.experiment.run_directory import Row
from dfl_jax.papers.select import final_averaging
from dfl_jax.papers.select.table import LABELS, NEIGHBOURS, TIMES

FLAGS = flags.FLAGS
DRAWS = 20  # of the random order
DEGREES = (5, 10, 20, 50, 100)  # of the final topology


def orders(validation: np.ndarray, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """The growing averages of Figure 6 and of the ring: names and weights [M, M].

    validation: accuracies by which the clients are ranked, [M].
    """
    for how in final_averaging.ORDERS:
        for draw in range(DRAWS if how == 'random' else 1):
            clients = final_averaging.order(validation, how, seed * DRAWS + draw)
            yield how, final_averaging.prefixes(clients)
    yield 'ring', final_averaging.prefixes(np.arange(len(validation)))


def final_topologies(
    validation: np.ndarray, seed: int
) -> Iterator[tuple[dict[str, Any], np.ndarray]]:
    """Averages over a regular graph of each degree that M clients can have.

    validation: as of `orders`. Yields names and weights [len(TIMES) M, M], every client's after
    one averaging, then after two.
    """
    clients = len(validation)
    for degree in DEGREES:
        if degree >= clients or degree * clients % 2:
            continue
        drawn = topology.schedule('regular', clients, 1, seed=seed, degree=degree)
        everyone = jax.tree.map(lambda a: a[0], drawn)
        for neighbours, graph in zip(
            NEIGHBOURS, (everyone, final_averaging.shortlist(everyone, validation)), strict=True
        ):
            name = {
                'degree': degree,
                'neighbours': neighbours,
                'messages_an_averaging': int(graph.mask[:, 1:].sum()),
            }
            steps = range(1, len(TIMES) + 1)
            yield name, np.concatenate([final_averaging.final_topology(graph, n) for n in steps])


def examine(experiment: Experiment, state: Any, round: int, seed: int, target: float) -> Row:
    """What final_averaging.json holds: every average, evaluated on the test half.

    state: of the clients after that round. seed: of the split, the orders and the topologies.
    """
    validation, test = final_averaging.split(experiment.test, seed)
    ranking, reported = (
        final_averaging.client_accuracies(experiment.algorithm, state, half)
        for half in (validation, test)
    )
    growing, graphs = list(orders(ranking, seed)), list(final_topologies(ranking, seed))
    curves: Row = {how: [] for how in LABELS}
    topologies = []
    total = sum(len(weights) for _, weights in (*growing, *graphs))
    with tqdm(total=total, unit='model', disable=not FLAGS.progress, dynamic_ncols=True) as bar:

        def evaluated(weights: np.ndarray) -> np.ndarray:
            accuracies = final_averaging.averaged_accuracy(
                experiment.algorithm, experiment.model, state, weights, test
            )
            bar.update(len(weights))
            return accuracies

        for how, weights in growing:
            curves[how].append(_rounded(evaluated(weights)))
        for name, weights in graphs:
            accuracies = evaluated(weights).reshape(len(TIMES), -1)
            mean, worst = _rounded(accuracies.mean(axis=1)), _rounded(accuracies.min(axis=1))
            topologies.append(name | {'mean': mean, 'worst': worst})
    return {
        'algorithm': FLAGS.algorithm,
        'dataset': FLAGS.dataset,
        'run_seed': FLAGS.seed,
        'round': round,
        'seed': seed,
        'target': target,
        'validation_samples': len(validation.y),
        'test_samples': len(test.y),
        'client_accuracies': _rounded(reported),
        'average_of_all': curves['best_to_worst'][0][-1],
        'orders': {
            how: {
                'reach': [reaches(curve, target) for curve in drawn],
                'stay': [stays(curve, target) for curve in drawn],
                'accuracies': drawn,
            }
            for how, drawn in curves.items()
        },
        'final_topologies': topologies,
    }


def reaches(accuracies: Sequence[float], target: float) -> int | None:
    """The fewest clients whose average reaches the target, None where none does."""
    return next((n for n, value in enumerate(accuracies, 1) if value >= target), None)


def stays(accuracies: Sequence[float], target: float) -> int | None:
    """The fewest clients from which on no average is below the target, None likewise."""
    below = [n for n, value in enumerate(accuracies, 1) if value < target]
    first = max(below, default=0) + 1
    return first if first <= len(accuracies) else None


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(float(value), 5) for value in values]
