"""The mixing step of gossip: every aggregator takes a weighted mean of its members' models.

The mixing matrix is never stored as M x M: its rows live in [H, K] beside `Graph.members`.
docs/benchmarks.md has the times of the two forms of the multiply, which set the threshold.
"""

from functools import partial
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dfl_jax.base import Array, Graph, PyTree
from dfl_jax.checks import check_choice
from dfl_jax.execution import AXIS, mesh_size, shard_over_clients
from dfl_jax.setting_error import SettingError

MIXINGS = ('size', 'uniform', 'metropolis')

# A dense product costs M, a gather K; they cross between M = 5 K and 15 K.
DENSE_UP_TO_CLIENTS_PER_MEMBER = 8
GATHER_UNROLL = 16
# Of all clients' weights, at once on each device (2026-11-23): docs/benchmarks.md, "Constants".
# Elsewhere than on a CPU it bounds the memory.
GATHERED_BYTES = {'cpu': 3 * 2**20, 'others': 2**28}


def mixing_weights(graph: Graph, sizes: Array, kind: str = 'size') -> Array:
    """The rows of the mixing matrix of one round.

    JAX where any argument is a JAX array; NumPy in float64 where all are NumPy arrays.

    Args:
      graph: one round; members [H, K], mask [H, K], active [H]. Where it has weights [H, K], they
        are the rows, whatever the kind; the weight of a link that is lost goes to the receiver.
      sizes: [M], the number of true samples of each client.
      kind: `size`, N_j over the sum of N over the delivered links and the aggregator itself
        (NTK-DFL, Eq. (1)); `uniform`, one over their number; `metropolis`, 1 / (1 + max(d_i, d_j))
        with d the delivered links without self, the rest to the aggregator itself (Xiao, Boyd &
        Lall 2005): doubly stochastic when links are symmetric.

    Returns:
      [H, K] floating point. Rows sum to one; masked links weigh zero; an aggregator that is
      inactive or receives no sample at all keeps its own model (column 0 weighs one).

    Raises:
      SettingError: unknown kind, or `metropolis` on aggregators that are not the clients (H != M).
    """
    check_choice('mixing', kind, MIXINGS)
    xp: ModuleType = jnp if any(isinstance(a, jax.Array) for a in (*graph, sizes)) else np
    members, mask, active, sizes = (xp.asarray(a) for a in (*graph[:3], sizes))
    dtype = xp.result_type(float)
    members = xp.where(mask, members, 0)

    if graph.weights is not None:
        rows = _with_rest(xp.where(mask, xp.asarray(graph.weights, dtype), 0)[:, 1:], xp)
        keeps = ~active
    elif kind == 'metropolis':
        if members.shape[0] != sizes.shape[0]:
            raise SettingError.of(
                f'metropolis mixing needs one aggregator a client: {members.shape[0]} aggregators '
                f'and {sizes.shape[0]} clients; use size or uniform',
                mixing=kind,
            )
        degrees = mask[:, 1:].sum(axis=1)  # [M]
        largest = xp.maximum(degrees[:, None], degrees[members[:, 1:]])
        links = xp.where(mask[:, 1:], 1 / (1 + largest.astype(dtype)), 0)
        rows = _with_rest(links, xp)
        keeps = ~active
    else:
        share = sizes[members].astype(dtype) if kind == 'size' else xp.ones(mask.shape, dtype)
        share = xp.where(mask, share, 0)
        total = share.sum(axis=1, keepdims=True)
        rows = share / xp.where(total > 0, total, 1)
        keeps = ~(active & (total[:, 0] > 0))
    itself = (xp.arange(mask.shape[1]) == 0).astype(dtype)
    return xp.where(keeps[:, None], itself[None], rows)


def push_weights(graph: Graph) -> Array:
    """The rows of a column-stochastic matrix, [H, K]: every client divides what it has equally
    between itself and those that hear it.

    Columns sum to one; masked links weigh zero; an inactive client keeps what it has. A client is
    its own aggregator, H = M.
    """
    delivered = graph.mask[:, 1:] & graph.active[:, None]
    heard_by = jax.ops.segment_sum(
        delivered.ravel().astype(float), graph.members[:, 1:].ravel(), len(graph.active)
    )
    share = 1 / (1 + heard_by)  # [M]
    links = jnp.where(delivered, share[graph.members[:, 1:]], 0)
    return jnp.concatenate([share[:, None], links], axis=1)


def _with_rest(links: Array, xp: ModuleType) -> Array:
    """Rows [H, K] of the weights of links [H, K - 1] and, in column 0, what they leave of one."""
    return xp.concatenate([1 - links.sum(axis=1, keepdims=True), links], axis=1)


def mix(weights: Array, members: Array, tree: PyTree) -> PyTree:
    """Mixed parameters, leaves [H, ...]: out[h] = sum_k weights[h, k] * leaf[members[h, k]].

    Either accumulated over the K members, without forming [H, K, P], or as one product with the
    mixing matrix [H, M], in full precision, whichever was measured faster for these shapes. Over
    several devices each mixes for its share of the aggregators, and gathers the weights of all
    clients for it, a block of columns at a time.

    Args:
      weights: [H, K], from `mixing_weights`.
      members: [H, K] int32.
      tree: leaves [M, ...], floating point; each keeps its dtype.

    Raises:
      TypeError: a leaf is not of floating point.
    """
    rows = jnp.asarray(weights), jnp.asarray(members)

    def mix_share(share: PyTree) -> PyTree:
        (weights, members), tree = share
        return jax.tree.map(partial(_mixed, weights, members), tree)

    return shard_over_clients(mix_share, (rows, tree))


def mix_at_aggregator(weights: Array, members: Array, tree: PyTree) -> PyTree:
    """`mix` at a single aggregator, weights and members [K]: leaves [M, ...] to [...]."""

    def mix_leaf(leaf: Array) -> Array:
        flat = leaf.reshape(len(leaf), -1)
        mixed = _gather(weights[None].astype(leaf.dtype), members[None], flat)
        return mixed.reshape(leaf.shape[1:])

    return jax.tree.map(mix_leaf, tree)


def _mixed(weights: Array, members: Array, leaf: Array) -> Array:
    """weights [H, K], members [H, K], leaf [M, ...] -> [H, ...]; on one of several devices its
    shares of all three."""
    leaf = jnp.asarray(leaf)
    if not jnp.issubdtype(leaf.dtype, jnp.inexact):
        raise TypeError(f'only floating-point leaves can be mixed, got {leaf.dtype}')
    (aggregators, width), clients = members.shape, len(leaf) * mesh_size()
    form = _dense if clients <= DENSE_UP_TO_CLIENTS_PER_MEMBER * width else _gather
    flat, weights = leaf.reshape(len(leaf), -1), weights.astype(leaf.dtype)
    if mesh_size() == 1:
        return form(weights, members, flat).reshape(aggregators, *leaf.shape[1:])

    platform = 'cpu' if jax.default_backend() == 'cpu' else 'others'
    columns = GATHERED_BYTES[platform] // (clients * leaf.dtype.itemsize)
    columns = max(1, min(columns, flat.shape[1]))

    def mix_block(number: Array, mixed: Array) -> Array:
        start = number * columns  # the last block is moved to the left until it fits
        theirs = lax.all_gather(lax.dynamic_slice_in_dim(flat, start, columns, 1), AXIS, tiled=True)
        return lax.dynamic_update_slice_in_dim(mixed, form(weights, members, theirs), start, 1)

    nothing = jnp.zeros((aggregators, flat.shape[1]), leaf.dtype)
    mixed = lax.fori_loop(0, -(-flat.shape[1] // columns), mix_block, nothing)
    return mixed.reshape(aggregators, *leaf.shape[1:])


def _gather(weights: Array, members: Array, flat: Array) -> Array:
    """weights [H, K], members [H, K], flat [M, P] -> [H, P]."""

    def add(k: Array, total: Array) -> Array:
        # Not flat[...], which needs a sharding of the mesh within `shard_over_clients`.
        return total + weights[:, k, None] * jnp.take(flat, members[:, k], axis=0, mode='clip')

    start = jnp.zeros((members.shape[0], flat.shape[1]), flat.dtype)
    width = members.shape[1]
    return lax.fori_loop(0, width, add, start, unroll=min(GATHER_UNROLL, width))


def _dense(weights: Array, members: Array, flat: Array) -> Array:
    """weights [H, K], members [H, K], flat [M, P] -> [H, P]."""
    aggregators = jnp.arange(members.shape[0])[:, None]
    zeros = jnp.zeros((members.shape[0], flat.shape[0]), flat.dtype)
    matrix = zeros.at[aggregators, members].add(weights)
    return jnp.matmul(matrix, flat, precision='highest')
