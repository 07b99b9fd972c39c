"""Working through clients, aggregators or samples a few at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.execution.devices import filled, shard_over_clients


def folded(tree: PyTree, size: int, axis: int = 0) -> PyTree:
    """Leaves [..., n, ...], n at `axis`, as [chunks, ..., size, ...]; zeros fill the last chunk.

    NumPy arrays stay NumPy arrays.
    """

    def fold(leaf: Array) -> Array:
        xp = jnp if isinstance(leaf, jax.Array) else np
        shape = (*leaf.shape[:axis], -1, size, *leaf.shape[axis + 1 :])
        return xp.moveaxis(leaf.reshape(shape), axis, 0)

    return jax.tree.map(fold, filled(tree, size, axis))


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
    """`map_in_chunks` of `one` over the entries that are `present` [S], of `otherwise` over the
    rest.

    A chunk in which nothing is present costs nothing; `otherwise` returns what `one` does in
    structure.
    """

    def of_entry(entry: tuple) -> PyTree:
        return lax.cond(entry[0], one, otherwise, entry[1])

    def of_chunk(part: tuple) -> PyTree:
        return lax.cond(
            part[0].any(), jax.vmap(of_entry), lambda p: jax.vmap(otherwise)(p[1]), part
        )

    def work(share: tuple) -> PyTree:
        present, stacked = share
        count = len(present)
        size = min(chunk or count, count)
        if size == 1:
            return lax.map(of_entry, share)
        fill = -count % size

        def fold(leaf: Array) -> Array:
            padded = jnp.concatenate([leaf, leaf[:1].repeat(fill, axis=0)]) if fill else leaf
            return padded.reshape(-1, size, *leaf.shape[1:])

        results = lax.map(of_chunk, (folded(present, size), jax.tree.map(fold, stacked)))
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], results)

    return shard_over_clients(work, (present, stacked))
