"""The data that an aggregation place works on: its members' samples, joint or in batches."""

from fractions import Fraction

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from dfl_jax.base import Array, Clients, Graph, PyTree
from dfl_jax.training.batches import epoch_orders


def aggregator_data(members: Clients, linked: Array) -> tuple[Array, Array, Array]:
    """The joint data of one aggregator: x [K N, ...], y [K N], mask [K N].

    members: the data of its K members, [K, N, ...]; linked: [K], those that are heard. Padding is
    zeroed, so that nothing stored there can reach a result.
    """
    mask = members.mask & linked[:, None]
    x = members.x
    x = jnp.where(mask.reshape(*mask.shape, *[1] * (x.ndim - 2)), x, 0)
    return x.reshape(-1, *x.shape[2:]), members.y.reshape(-1), mask.reshape(-1)


def of_members(stacked: PyTree, members: Array) -> PyTree:
    """Of leaves [M, ...] the entries of one aggregator's members [K], leaves [K, ...]."""
    # Not a[members]: within `devices.shard_over_clients` that asks for a sharding of the mesh
    # around it.
    return jax.tree.map(lambda a: jnp.take(a, members, axis=0, mode='clip'), stacked)


def one_hot_targets(labels: Array, classes: int, dtype: DTypeLike) -> Array:
    """Labels [N] as the outputs that they ask for, [C, N]."""
    return jax.nn.one_hot(labels, classes, dtype=dtype).T


def aggregator_of_clients(graph: Graph, clients: int) -> tuple[Array, Array]:
    """Of every client the aggregator that hears it, int32 [M], and whether there is one, bool
    [M]."""
    heard = graph.mask & graph.active[:, None]
    who = jnp.where(heard, graph.members, clients)  # the others out of bounds, to be dropped
    aggregators = jnp.broadcast_to(jnp.arange(len(who), dtype=jnp.int32)[:, None], who.shape)
    home = jnp.zeros(clients, jnp.int32).at[who].set(aggregators, mode='drop')
    return home, jnp.zeros(clients, bool).at[who].set(True, mode='drop')


def draw_batches(key: Array, clients: Clients, batches: int, share: Fraction) -> Clients:
    """A random part of every client's data, dealt into batches of equal size up to one sample.

    Client i draws ceil(share N_i) of its samples. Returns arrays [M, batches, B, ...], B =
    ceil(share N / batches); all samples in their own order for one batch of everything.
    """
    if batches == share == 1:
        return Clients(*(a[:, None] for a in clients))

    def of_client(key, x, y, mask):
        (order,) = epoch_orders(key, mask, 1)
        width = -(-len(mask) * share.numerator // (share.denominator * batches))
        places = (
            jnp.arange(width * batches).reshape(width, batches).T
        )  # dealt in turn, [batches, B]
        rows = order[jnp.minimum(places, len(mask) - 1)]
        return Clients(x[rows], y[rows], places < drawn_samples(mask.sum(dtype=jnp.int32), share))

    return jax.vmap(of_client)(jax.random.split(key, len(clients.x)), *clients)


def drawn_samples(sizes: Array, share: Fraction) -> Array:
    """ceil(share N_i), in whole numbers."""
    return -(-sizes * share.numerator // share.denominator)
