"""Noise that neighbours share and that cancels in their sum.

DECOR (Allouah, Koloskova, El Firdoussi, Jaggi & Guerraoui, ICML 2024): the two ends of a link draw
the same noise from a seed that only they know, one adds it and the other subtracts it. Whoever does
not know the seed hears both under the noise, and averaging takes it away.
"""

import jax
import jax.numpy as jnp
import optax
from jax import lax

from dfl_jax.base import Array, Graph, PyTree
from dfl_jax.execution.random_numbers import normal_like


def shared_noise(key: Array, graph: Graph, like: PyTree) -> PyTree:
    """The sum of the standard normal noise that each client shares with those that it hears,
    leaves [M, ...]: added where its number is the smaller one, subtracted by the other.

    A client that hears nobody adds none, so that the noise of a link with one end alone, as after a
    loss, does not cancel.

    Args:
      key: of the round; that of a link follows from it and from the numbers of its ends.
      graph: with client h as member 0 of row h.
      like: leaves [M, ...], whose shapes the noise has.
    """
    one = jax.tree.map(lambda leaf: leaf[0], like)

    def of_client(inputs: tuple[Array, Array]) -> PyTree:
        members, heard = inputs
        itself = members[0]

        def add(total: PyTree, link: tuple[Array, Array]) -> tuple[PyTree, None]:
            other, counts = link
            ends = jnp.minimum(itself, other), jnp.maximum(itself, other)
            k_link = jax.random.fold_in(jax.random.fold_in(key, ends[0]), ends[1])
            sign = jnp.where(counts, jnp.where(itself < other, 1.0, -1.0), 0.0)
            noise = normal_like(k_link, one)
            return jax.tree.map(lambda t, n: t + sign.astype(n.dtype) * n, total, noise), None

        return lax.scan(add, optax.tree.zeros_like(one), (members[1:], heard[1:]))[0]

    return lax.map(of_client, (graph.members, graph.mask & graph.active[:, None]))
