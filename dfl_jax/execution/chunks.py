"""Working through clients or aggregation places a few at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.execution.devices import shard_over_clients


def map_in_chunks(one: Callable, stacked: PyTree, chunk: int | None) -> PyTree:
    """`one` mapped over the leading axis of `stacked`, `chunk` entries at a time, None for all.

    A chunk of one is not batched: a batch of one would cost a select of every loop carry and
    transposed products. Over several devices (`devices.shard_over_clients`) the chunk is that of
    each.
    """

    def work(share: PyTree) -> PyTree:
        count = len(jax.tree.leaves(share)[0])
        size = min(chunk or count, count)
        return lax.map(one, share, batch_size=size if size > 1 else None)

    return shard_over_clients(work, stacked)


def map_present(
    one: Callable, otherwise: Callable, stacked: PyTree, present: Array, chunk: int | None
) -> PyTree:
    """`map_in_chunks` over participants of which only some are `present` [S]; `otherwise` for the
    rest.

    A chunk in which nothing is present costs nothing; `otherwise` returns what `one` does in
    structure.
    """

    def of_participant(group: tuple) -> PyTree:
        return lax.cond(group[0], one, otherwise, group[1])

    def work(share: tuple) -> PyTree:
        present, stacked = share
        count = len(present)
        size = min(chunk or count, count)
        if size == 1:
            return lax.map(of_participant, share)
        fill = -count % size

        def fold(leaf: Array) -> Array:
            padded = jnp.concatenate([leaf, leaf[:1].repeat(fill, axis=0)]) if fill else leaf
            return padded.reshape(-1, size, *leaf.shape[1:])

        chunks = jnp.pad(present, (0, fill)).reshape(-1, size), jax.tree.map(fold, stacked)
        found = lax.map(
            lambda part: lax.cond(
                part[0].any(), jax.vmap(of_participant), lambda p: jax.vmap(otherwise)(p[1]), part
            ),
            chunks,
        )
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], found)

    return shard_over_clients(work, (present, stacked))
