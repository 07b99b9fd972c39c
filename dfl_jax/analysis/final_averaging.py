"""Final model averaging: whose models to average once training is over, and over which network.

NTK-DFL, ICML 2025, section 3.2 and Figure 6. Every way to average is a row of weights over the
clients, which `Algorithm.consensus(state, weights)` turns into a model; nothing here looks into a
state. A holdout is the global test set or a part of it.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dfl_jax.base import Algorithm, Array, Graph, PyTree, State
from dfl_jax.gossip import spectra
from dfl_jax.metrics import correct_and_loss
from dfl_jax.models import Model
from dfl_jax.simulate import Holdout

ORDERS = ('best_to_worst', 'random', 'worst_to_best')
MODELS_AT_ONCE = 8
PREDICTIONS_AT_ONCE = 8192  # models times samples, which bounds the memory of their activations
# One stream of random numbers each, so that a common seed does not correlate them.
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


# ------------------------------------------------------------------------------- weights [B, M]


def order(accuracies: np.ndarray, how: str, seed: int = 0) -> np.ndarray:
    """The clients in the order in which they are averaged, int [M].

    accuracies: [M], on the validation half. how: one of ORDERS; equals stand by client number.
    seed: of `random`, which does not look at the accuracies. Raises ValueError for another `how`.
    """
    accuracies = np.asarray(accuracies)
    if how == 'best_to_worst':
        return np.argsort(-accuracies, kind='stable')
    if how == 'worst_to_best':
        return np.argsort(accuracies, kind='stable')
    if how == 'random':
        return np.random.default_rng([seed, _ORDER]).permutation(len(accuracies))
    raise ValueError(f'unknown order {how!r}; choose one of {", ".join(ORDERS)}')


def prefixes(order: np.ndarray) -> np.ndarray:
    """Weights [M, M] whose row n - 1 weighs the first n clients of the order [M] equally."""
    clients = len(order)
    place = np.empty(clients, int)
    place[order] = np.arange(clients)
    sizes = np.arange(1, clients + 1)[:, None]
    return (place < sizes) / sizes


def ring(clients: int) -> np.ndarray:
    """Weights [M, M] of sequential averaging on a ring: row h - 1 is the mean of h clients.

    The running mean travels from client to client by number, and every client adds its model. It
    holds all M after M - 1 messages, each as long as one model, and as many again hand it round:
    2 (M - 1) together, one after the other. In a fully connected topology all clients send to all
    at once, which takes M (M - 1) messages.
    """
    return prefixes(np.arange(clients))


def shortlist(graph: Graph, accuracies: np.ndarray) -> Graph:
    """One round in which every client hears only the better half of its neighbours.

    "Clients may need to connect in a denser topology to shortlist neighbors with higher validation
    accuracies" (section 5). Of d neighbours the (d + 1) // 2 with the highest accuracy stay, equals
    by their place in `members`, and so does the client itself.

    graph: members and mask [M, K], active [M], without axis T. accuracies: [M], on validation.
    """
    heard = np.array(graph.mask)
    heard[:, 0] = False
    rated = np.where(heard, np.asarray(accuracies)[graph.members], -np.inf)
    ranks = np.argsort(np.argsort(-rated, axis=1, kind='stable'), axis=1, kind='stable')
    kept = heard & (ranks < (heard.sum(axis=1, keepdims=True) + 1) // 2)
    kept[:, 0] = graph.mask[:, 0]
    return graph._replace(mask=kept)


def final_topology(graph: Graph, steps: int = 1, *, sizes: np.ndarray | None = None) -> np.ndarray:
    """Every client's weights over all clients after averaging over a final topology.

    graph: one round, members and mask [M, K], active [M], without axis T. steps: averagings over
    that graph. sizes: [M], samples of each client, to weigh by; None for uniform weights.

    Returns W^steps, [M, M] float64, W the mixing matrix: the row of a client is its model.
    """
    kind = 'uniform' if sizes is None else 'size'
    if sizes is None:
        sizes = np.ones(len(graph.members), int)
    matrix = spectra.mixing_matrix(*graph, sizes, kind)
    return np.linalg.matrix_power(matrix.toarray(), steps)


# ---------------------------------------------------------------------------------- accuracies


def client_accuracies(algorithm: Algorithm, state: State, holdout: Holdout) -> np.ndarray:
    """The accuracy of every client's own model on the holdout, [M] float64."""
    one = jax.ShapeDtypeStruct((1, *holdout.x.shape[1:]), jnp.float32)
    clients = len(jax.eval_shape(algorithm.predict, state, one)['client'])
    chunks = _in_chunks(holdout, max(1, PREDICTIONS_AT_ONCE // clients))
    return np.asarray(_client_hits(algorithm.predict, state, *chunks)) / len(holdout.y)


def averaged_accuracy(
    algorithm: Algorithm, model: Model, state: State, weights: Array, holdout: Holdout
) -> np.ndarray:
    """The accuracy of the average of clients that each row of weights describes.

    Args:
      algorithm: of which `consensus` averages.
      model: the network that the algorithm trains.
      state: after training.
      weights: [B, M], one average a row; the rows need not sum to one.
      holdout: where the averages are judged.

    Returns [B] float64. Calls with the same algorithm, B and holdout's size share one compiled
    program.
    """
    chunks = _in_chunks(holdout, PREDICTIONS_AT_ONCE // MODELS_AT_ONCE)
    weights = jnp.asarray(weights, jnp.float32)
    hits = _averaged_hits(algorithm.consensus, model.apply, state, weights, *chunks)
    return np.asarray(hits) / len(holdout.y)


def _in_chunks(holdout: Holdout, size: int) -> tuple[Array, Array]:
    """x [chunks, size, ...] and y [chunks, size]; the fill is of label -1, which does not count."""
    size = min(size, len(holdout.y))
    fill = -len(holdout.y) % size
    x = np.pad(holdout.x, [(0, fill)] + [(0, 0)] * (holdout.x.ndim - 1))
    y = np.pad(holdout.y, (0, fill), constant_values=-1)
    return jnp.asarray(x.reshape(-1, size, *x.shape[1:])), jnp.asarray(y.reshape(-1, size))


def _hits(logits: Callable[[Array], Array], x: Array, y: Array) -> Array:
    """Correct predictions over all chunks; logits maps [size, ...] to [..., size, C] -> [...]."""

    def chunk(batch: tuple[Array, Array]) -> Array:
        samples, labels = batch
        return correct_and_loss(logits(samples), labels, labels >= 0)[0]

    return lax.map(chunk, (x, y)).sum(axis=0)


@partial(jax.jit, static_argnums=0)
def _client_hits(predict: Callable, state: State, x: Array, y: Array) -> Array:
    return _hits(lambda samples: predict(state, samples)['client'], x, y)


@partial(jax.jit, static_argnums=(0, 1))
def _averaged_hits(
    consensus: Callable[..., PyTree],
    apply: Callable[[PyTree, Array], Array],
    state: State,
    weights: Array,
    x: Array,
    y: Array,
) -> Array:
    def of_row(row: Array) -> Array:
        params = consensus(state, row)
        return _hits(lambda samples: apply(params, samples), x, y)

    return lax.map(of_row, weights, batch_size=MODELS_AT_ONCE)
