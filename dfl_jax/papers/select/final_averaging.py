"""Final model averaging: which models to average after training, and over which network.

NTK-DFL, ICML 2025, section 3.2 and Figure 6. Every way to average is a row of weights over the
clients, which `Algorithm.consensus(state, weights)` turns into a model; nothing here looks into a
state. A holdout is the global test set or a part of it.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from tqdm import tqdm

from dfl_jax import topology
from dfl_jax.base import Algorithm, Array, Graph, PyTree, State
from dfl_jax.checks import check_choice
from dfl_jax.evaluation import Holdout, evaluation
from dfl_jax.execution import folded
from dfl_jax.experiment.run_directory import Row
from dfl_jax.gossip import mixing_matrix
from dfl_jax.models import Model
from dfl_jax.papers.select.table import LABELS, NEIGHBOURS, TIMES
from dfl_jax.tasks import Task

DRAWS = 20  # of the random order
DEGREES = (5, 10, 20, 50, 100)  # of the final topology
ORDERS = ('best_to_worst', 'random', 'worst_to_best')
MODELS_AT_ONCE = 8
PREDICTIONS_AT_ONCE = 8192  # models times samples, which bounds the memory of their activations
# Streams of random numbers, so that a common seed does not correlate them.
_SPLIT, _ORDER = range(2)


def split(holdout: Holdout, seed: int) -> tuple[Holdout, Holdout]:
    """Random halves (validation, test) of the global test set (section 5, performance metrics).

    Validation ranks the clients, test reports; an odd sample goes to test. Raises ValueError for
    fewer than two samples.
    """
    samples = len(holdout.y)
    if samples < 2:
        raise ValueError(f'validation and test need at least 2 test samples, got {samples}')
    rows = np.random.default_rng([seed, _SPLIT]).permutation(samples)
    halves = rows[: samples // 2], rows[samples // 2 :]
    validation, test = (Holdout(holdout.x[half], holdout.y[half]) for half in halves)
    return validation, test


def order(accuracies: np.ndarray, how: str, seed: int = 0) -> np.ndarray:
    """The clients in the order in which they are averaged, int [M].

    accuracies: [M], on the validation half. how: one of ORDERS; ties go by client number. seed: of
    `random`, which ignores the accuracies.
    """
    check_choice('order', how, ORDERS)
    accuracies = np.asarray(accuracies)
    if how == 'random':
        return np.random.default_rng([seed, _ORDER]).permutation(len(accuracies))
    return np.argsort(accuracies if how == 'worst_to_best' else -accuracies, kind='stable')


def prefixes(order: np.ndarray) -> np.ndarray:
    """Weights [M, M] whose row n - 1 weighs the first n clients of the order [M] equally.

    By number they are those of a running mean that travels along a ring.
    """
    sizes = np.arange(1, len(order) + 1)[:, None]
    return (np.argsort(order) < sizes) / sizes


def shortlist(graph: Graph, accuracies: np.ndarray) -> Graph:
    """One round in which every client hears only the better half of its neighbours.

    "Clients may need to connect in a denser topology to shortlist neighbors with higher validation
    accuracies" (section 5). The client itself stays, and of d neighbours the (d + 1) // 2 with the
    highest accuracy, ties going by their place in `members`.

    graph: members and mask [M, K], active [M], without axis T. accuracies: [M], on validation.
    """
    heard = np.array(graph.mask)
    heard[:, 0] = False
    rated = np.where(heard, np.asarray(accuracies)[graph.members], -np.inf)
    ranks = np.argsort(np.argsort(-rated, axis=1, kind='stable'), axis=1, kind='stable')
    kept = heard & (ranks < (heard.sum(axis=1, keepdims=True) + 1) // 2)
    kept[:, 0] = graph.mask[:, 0]
    return graph._replace(mask=kept)


def final_topology(graph: Graph, steps: int) -> np.ndarray:
    """Every client's weights over all clients after averaging uniformly over a final topology.

    graph: one round, members and mask [M, K], active [M], without axis T. steps: averagings over
    that graph.

    Returns W^steps, [M, M] float64, W the mixing matrix: the row of a client is its model.
    """
    matrix = mixing_matrix(graph, np.ones(len(graph.members), int), 'uniform')
    return np.linalg.matrix_power(matrix.toarray(), steps)


def client_accuracies(algorithm: Algorithm, state: State, holdout: Holdout) -> np.ndarray:
    """The accuracy of every client's model on the holdout, [M] float64."""
    batches, measure, _ = evaluation(algorithm, state, holdout)
    hits, _ = jax.jit(measure)(state, batches, None)['sums']['client']
    return np.asarray(hits) / len(holdout.y)


def averaged_accuracy(
    algorithm: Algorithm, model: Model, state: State, weights: Array, holdout: Holdout
) -> np.ndarray:
    """The accuracy of the average of clients that each row of weights describes.

    Args:
      algorithm: whose `consensus` averages.
      model: the network that the algorithm trains.
      state: after training.
      weights: [B, M], one average a row; the rows need not sum to one.
      holdout: the samples on which the averages are evaluated.

    Returns [B] float64. Calls with the same algorithm, B and size of the holdout share one compiled
    program.
    """
    samples = (np.asarray(holdout.x), np.asarray(holdout.y), np.ones(len(holdout.y), bool))
    size = min(PREDICTIONS_AT_ONCE // MODELS_AT_ONCE, len(holdout.y))
    batches = jax.tree.map(jnp.asarray, folded(samples, size))  # x, y, mask [batches, size, ...]
    weights = jnp.asarray(weights, jnp.float32)
    hits = _averaged_hits(algorithm.consensus, model.apply, model.task, state, weights, batches)
    return np.asarray(hits) / len(holdout.y)


@partial(jax.jit, static_argnums=(0, 1, 2))
def _averaged_hits(
    consensus: Callable[..., PyTree],
    apply: Callable[[PyTree, Array], Array],
    task: Task,
    state: State,
    weights: Array,
    batches: tuple,
) -> Array:
    def row_hits(row: Array) -> Array:
        params = consensus(state, row)

        def count(batch: tuple[Array, Array, Array]) -> Array:
            x, y, mask = batch
            return task.summed(apply(params, x), y, mask)[0]

        return lax.map(count, batches).sum(axis=0)

    return lax.map(row_hits, weights, batch_size=MODELS_AT_ONCE)


def orders(validation: np.ndarray, seed: int) -> Iterator[tuple[str, np.ndarray]]:
    """The growing averages of Figure 6 and of the ring: names and weights [M, M].

    validation: accuracies by which the clients are ranked, [M].
    """
    for how in ORDERS:
        for draw in range(DRAWS if how == 'random' else 1):
            clients = order(validation, how, seed * DRAWS + draw)
            yield how, prefixes(clients)
    yield 'ring', prefixes(np.arange(len(validation)))


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
        graphs = everyone, shortlist(everyone, validation)
        for neighbours, graph in zip(NEIGHBOURS, graphs, strict=True):
            messages = int(graph.mask[:, 1:].sum())
            name = {'degree': degree, 'neighbours': neighbours, 'messages_an_averaging': messages}
            steps = range(1, len(TIMES) + 1)
            yield name, np.concatenate([final_topology(graph, n) for n in steps])


def examine(
    experiment: Any,
    state: Any,
    round: int,
    seed: int,
    target: float,
    progress: bool,
    with_attackers: bool = False,
) -> Row:
    """Every average, evaluated on the test half, as selection.json holds it.

    state: of the clients after that round. seed: of the split, the orders and the topologies.
    with_attackers: whether the models of clients that lie take part.
    """
    algorithm, model = experiment.algorithm, experiment.model
    validation, test = split(experiment.test, seed)
    lying = experiment.attackers
    out = np.zeros(len(experiment.parts), bool) if with_attackers or lying is None else lying
    ranking, reported = (
        client_accuracies(algorithm, state, half)[~out] for half in (validation, test)
    )
    growing, graphs = list(orders(ranking, seed)), list(final_topologies(ranking, seed))
    curves: Row = {how: [] for how in LABELS}
    topologies = []
    total = sum(len(weights) for _, weights in (*growing, *graphs))
    with tqdm(total=total, unit='model', disable=not progress, dynamic_ncols=True) as bar:

        def evaluated(weights: np.ndarray) -> np.ndarray:
            of_all = np.zeros((len(weights), len(out)))
            of_all[:, ~out] = weights
            accuracies = averaged_accuracy(algorithm, model, state, of_all, test)
            bar.update(len(weights))
            return accuracies

        for how, weights in growing:
            curves[how].append(_rounded(evaluated(weights)))
        for name, weights in graphs:
            accuracies = evaluated(weights).reshape(len(TIMES), -1)
            mean, worst = _rounded(accuracies.mean(axis=1)), _rounded(accuracies.min(axis=1))
            topologies.append(name | {'mean': mean, 'worst': worst})
    return {
        'round': round,
        'seed': seed,
        'target': target,
        'validation_samples': len(validation.y),
        'test_samples': len(test.y),
        **({} if lying is None else {'left_out': np.flatnonzero(out).tolist()}),
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
