"""The data that an aggregator works on: its members' samples, joint or in batches."""

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from dfl_jax.base import Array, Clients, Graph, PyTree, Round
from dfl_jax.exchange import FLOAT_BITS, LABEL_BITS, Codec, chain, number_bits
from dfl_jax.models import Model
from dfl_jax.ntk.evolution import OWN
from dfl_jax.training import epoch_orders

ONE_PROGRAM = 12  # members, up to which padding costs less than compiling again


def aggregator_data(members: Clients, linked: Array) -> tuple[Array, Array, Array]:
    """The joint data of one aggregator: x [K N, ...], y [K N, ...], mask [K N].

    members: the data of its K members, [K, N, ...]; linked: [K], whose data count. Padding is set
    to zero, so that nothing stored there can reach a result.
    """
    mask = members.mask & linked[:, None]

    def joint(a: Array) -> Array:
        kept = jnp.where(mask.reshape(*mask.shape, *[1] * (a.ndim - 2)), a, 0)
        return kept.reshape(-1, *a.shape[2:])

    return joint(members.x), joint(members.y), mask.reshape(-1)


def of_members(stacked: PyTree, members: Array) -> PyTree:
    """The entries of one aggregator's members [K] in leaves [M, ...], leaves [K, ...]."""
    # Not a[members], which needs a sharding of the mesh within `shard_over_clients`.
    return jax.tree.map(lambda a: jnp.take(a, members, axis=0, mode='clip'), stacked)


def widths_of(members: int) -> list[int]:
    """The numbers of members for which an aggregator's program is compiled, ascending, up to K.

    Padding costs the square of K: of 300 clients of a mean degree of 5 drawn at random the busiest
    has 15 neighbours. Where all have about as many, one program is enough.
    """
    if members <= ONE_PROGRAM:
        return [members]
    return [-(-members * eighths // 8) for eighths in (3, 4, 6, 8)]


def at_least_width(one: Callable, linked: Array, widths: Sequence[int]) -> PyTree:
    """`one(width)` of the least of the widths that holds all of an aggregator's linked [K]."""
    last = jnp.max(jnp.where(linked, jnp.arange(len(linked)), 0))
    branch = jnp.sum(last >= jnp.array(widths))
    return lax.switch(branch, [partial(one, width) for width in widths])


def output_targets(model: Model, y: Array, dtype: DTypeLike, loss: str = 'cross_entropy') -> Array:
    """What the outputs evolve towards, [C, N]: labels [N] in one-hot form, or numbers [N, ...].

    Under the loss of the task itself the targets as that takes them, [N, ...].
    """
    if loss == OWN:
        return y
    if model.task.whole_targets:
        return jax.nn.one_hot(y, model.classes, dtype=dtype).T
    return y.reshape(len(y), model.classes).T


def label_bits(model: Model, loss: str) -> int:
    """Bits of the targets of a sample, or of one of its numbers where they need not be as many as
    the outputs."""
    target = FLOAT_BITS * (1 if loss == OWN else model.classes)
    return LABEL_BITS if model.task.whole_targets else target


def count_data(
    round: Round, samples: Array, model: Model, loss: str, codec: Codec | None = None
) -> None:
    """Counts rows of Jacobians, outputs and targets; samples: sent by each client, int32 [M].

    codec: of the rows.
    """
    outputs, exchange = samples * model.classes, round.exchange
    numbers = not model.task.whole_targets and loss == OWN
    labels = samples * math.prod(round.clients.y.shape[2:]) if numbers else samples
    exchange.count('jacobian_rows', outputs, (codec or chain()).bits(model.shapes))
    exchange.count('outputs', outputs, number_bits(model.output_type))
    exchange.count('labels', labels, label_bits(model, loss))


def aggregator_of_clients(graph: Graph, clients: int) -> tuple[Array, Array]:
    """Index of each client's aggregator, int32 [M], and whether it has one, bool [M]."""
    heard = graph.mask & graph.active[:, None]
    members = jnp.where(heard, graph.members, clients)  # the others are dropped
    numbers = jnp.arange(len(members), dtype=jnp.int32)
    aggregators = jnp.broadcast_to(numbers[:, None], members.shape)
    index = jnp.zeros(clients, jnp.int32).at[members].set(aggregators, mode='drop')
    return index, jnp.zeros(clients, bool).at[members].set(True, mode='drop')


def draw_batches(key: Array, clients: Clients, batches: int, share: Fraction) -> Clients:
    """Random batches of every client's data, arrays [M, batches, B, ...].

    Client i draws ceil(share N_i) of its samples, in batches whose sizes differ by at most one, B =
    ceil(share N / batches). One batch of everything keeps the order of the samples.
    """
    if batches == share == 1:
        return jax.tree.map(lambda a: a[:, None], clients)

    def client_batches(key, x, y, mask):
        (order,) = epoch_orders(key, mask, 1)
        width = -(-len(mask) * share.numerator // (share.denominator * batches))
        places = jnp.arange(width * batches).reshape(width, batches).T  # [batches, B]
        rows = order[jnp.minimum(places, len(mask) - 1)]
        return Clients(x[rows], y[rows], places < drawn_samples(mask.sum(dtype=jnp.int32), share))

    return jax.vmap(client_batches)(jax.random.split(key, len(clients.x)), *clients[:3])


def drawn_samples(sizes: Array, share: Fraction) -> Array:
    """ceil(share N_i) of sizes N_i, a scalar or [M], in integers."""
    return -(-sizes * share.numerator // share.denominator)
