"""Measures of models and predictions: consensus, dispersion, update norms, accuracy and loss."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import optax
from flax.traverse_util import flatten_dict
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.execution import shard_and_sum, shard_over_clients

Move = tuple[PyTree, PyTree]  # models before and after

CONSENSUS = ('mean', 'size')  # plain, or weighted by sample counts


def consensus_model(params: PyTree, weights: Array | None = None) -> PyTree:
    """The consensus model w_bar = sum_i v_i w_i of stacked parameters, leaves [M, ...] -> [...].

    weights: [M], normalised here; None for the plain mean of NTK-DFL section 3.2.
    """
    clients = len(jax.tree.leaves(params)[0])
    shares = jnp.full(clients, 1 / clients) if weights is None else weights / weights.sum()

    def mean(leaf: Array) -> Array:
        return jnp.tensordot(shares.astype(leaf.dtype), leaf, 1, precision='highest')

    return jax.tree.map(mean, params)


def dispersion(params: PyTree, among: Array | None = None) -> dict[str, Array]:
    """How far the M models lie from their mean, and how widely their weights scatter, scalars.

    `model_deviation`: NTK-DFL Eq. (12), 1/P sum_p sqrt(sum_i (w_ip - w_bar_p)^2).
    `consensus_distance`: root mean square over clients of ||w_i - w_bar||.
    `sigma_an`, `sigma_ap`: standard deviation of a weight over clients, mean over weights, and of
    the weights of a client, mean over clients (Initialisation and topology, section 3).

    among: [M] bool, of which models; None for all.
    """
    mean = consensus_model(params, among)
    leaves = jax.tree.leaves(params)
    clients, size = len(leaves[0]), sum(leaf[0].size for leaf in leaves)
    counted = jnp.ones(clients, bool) if among is None else among
    count = clients if among is None else jnp.maximum(among.sum(), 1)

    def of_model(entry: tuple[Array, PyTree]) -> tuple[PyTree, Array]:
        """Squared distances from the mean, [P], and the scatter within, zero for no model."""
        exists, one = entry
        weights = jax.tree.leaves(one)
        centre = sum(w.sum() for w in weights) / size
        within = jnp.sqrt(sum(((w - centre) ** 2).sum() for w in weights) / size)
        found = jax.tree.map(lambda w, m: (w - m) ** 2, one, mean), within
        return jax.tree.map(lambda value: jnp.where(exists, value, 0), found)

    # One client after the other: XLA's reduction over the leading axis takes forty times as long
    # on a CPU (300 clients, 78,400 weights: 227 ms against 5, 2-core AMD EPYC, 2026-11-20).
    # Elsewhere every step of a loop would start a dozen kernels.
    def one_by_one(share: tuple[Array, PyTree]) -> tuple[PyTree, Array]:
        def add(total: PyTree, entry: tuple[Array, PyTree]) -> tuple[PyTree, Array]:
            squares, within = of_model(entry)
            return jax.tree.map(jnp.add, total, squares), within

        # Not zeros_like: within `shard_and_sum` that asks for a sharding of the mesh around it.
        start = jax.tree.map(lambda m: jnp.zeros(m.shape, m.dtype), mean)
        squares, within = lax.scan(add, start, share)
        return squares, within.sum()

    def together(share: tuple[Array, PyTree]) -> tuple[PyTree, Array]:
        return jax.tree.map(lambda each: each.sum(axis=0), jax.vmap(of_model)(share))

    def sums(share: tuple[Array, PyTree]) -> tuple[PyTree, Array]:
        return lax.platform_dependent(share, cpu=one_by_one, default=together)

    squares, within = shard_and_sum(sums, (counted, params))
    per_weight = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(squares)])  # [P]
    deviation = jnp.sqrt(per_weight).mean()
    return {
        'model_deviation': deviation,
        'consensus_distance': jnp.sqrt(per_weight.sum() / count),
        'sigma_an': deviation / count**0.5,
        'sigma_ap': within / count,
    }


def update_norms(
    training: Move, averaging: Move, active: Array, first: tuple[str, ...]
) -> dict[str, Array]:
    """Norms of the changes that a round made to models (Initialisation and topology, Figure 3a).

    Args:
      training, averaging: the models [M, ...] that each of the two began with, and what it made.
      active: [M] bool, the clients that took part.
      first: the path of the first layer's weights (`models.first_weights`).

    Returns:
      Means over active clients, scalars, zero without any: `change_training_mean`,
      `change_aggregation_mean`, `change_total_mean` of the norms of either change and of both
      together; `change_cosine_mean` of the cosine between the two, zero where either vanishes. And
      the same of the weights of the first layer alone, which is what the paper's figure shows:
      `first_layer_training_mean` and so on.
    """

    def client_norms(moves: tuple[Move, Move]) -> dict[str, Array]:
        changes = [flatten_dict(jax.tree.map(jnp.subtract, end, begin)) for begin, end in moves]
        of_all = norms_and_cosine('change', *([*each.values()] for each in changes))
        return of_all | norms_and_cosine('first_layer', *([each[first]] for each in changes))

    count = jnp.maximum(active.sum(), 1)
    norms = shard_over_clients(partial(lax.map, client_norms), (training, averaging))
    return jax.tree.map(lambda each: jnp.where(active, each, 0).sum() / count, norms)


def norms_and_cosine(
    name: str, training: Sequence[Array], averaging: Sequence[Array]
) -> dict[str, Array]:
    """The norms of two changes and of their sum, and the cosine between the two, scalars."""
    total = [a + b for a, b in zip(training, averaging, strict=True)]
    lengths = [optax.tree.norm(each) for each in (training, averaging, total)]
    product = lengths[0] * lengths[1]
    cosine = optax.tree.vdot(training, averaging) / jnp.where(product > 0, product, 1)
    parts = zip(('training', 'aggregation', 'total'), lengths, strict=True)
    return {f'{name}_{part}_mean': length for part, length in parts} | {
        f'{name}_cosine_mean': jnp.where(product > 0, cosine, 0)
    }
