"""Working through clients, aggregators or samples a few at a time."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.execution.devices import filled, shard_over_clients
from dfl_jax.execution.memory import choose_chunk


def folded(tree: PyTree, size: int, axis: int = 0) -> PyTree:
    """Leaves [..., n, ...], n at `axis`, as [chunks, ..., size, ...]; zeros fill the last chunk.

    NumPy arrays stay NumPy arrays.
    """

    def fold(leaf: Array) -> Array:
        xp = jnp if isinstance(leaf, jax.Array) else np
        shape = (*leaf.shape[:axis], -1, size, *leaf.shape[axis + 1 :])
        return xp.moveaxis(leaf.reshape(shape), axis, 0)

    return jax.tree.map(fold, filled(tree, size, axis))


def even_size(count: int, most: int) -> int:
    """The size of the most even chunks of so many entries, at most `most` each."""
    return -(-count // -(-count // most))


def map_in_chunks(
    one: Callable, stacked: PyTree, chunk: int | None, each: int = 1, alone: Callable | None = None
) -> PyTree:
    """`one` mapped over the leading axis of `stacked`, at most `chunk` entries at a time.

    A chunk of one is not batched: a batch of one would cost a select of every loop carry and
    transposed products. Over several devices (`devices.shard_over_clients`) the chunk is that of
    each.

    Args:
      chunk: None for one on a CPU and elsewhere for what memory holds (`memory.choose_chunk`).
      each: bytes that one entry takes.
      alone: what does the same of an entry that is not batched, where that can be cheaper.
    """
    return _mapped(alone or one, jax.vmap(one), stacked, chunk, each)


def map_present(
    one: Callable,
    otherwise: Callable,
    stacked: PyTree,
    present: Array,
    chunk: int | None,
    each: int = 1,
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

    return _mapped(of_entry, of_chunk, (present, stacked), chunk, each)


def _mapped(
    of_entry: Callable, of_chunk: Callable, stacked: PyTree, chunk: int | None, each: int
) -> PyTree:
    def work(share: PyTree) -> PyTree:
        count = len(jax.tree.leaves(share)[0])
        most = chunk or choose_chunk(count, each, advice='use a smaller model')
        size = even_size(count, most)
        if size == 1:
            return lax.map(of_entry, share)
        # Chunks of one size, so that only one body is compiled; zeros fill the last.
        results = lax.map(of_chunk, folded(share, size))
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:count], results)

    return shard_over_clients(work, stacked)
