"""Minibatches of one client's samples."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.base import Array

OVERFLOW = 1e-30  # probability that a batch by Poisson sampling has more samples than its bound


class Batch(NamedTuple):
    """What one step sees."""

    x: Array  # [B, ...], zero where padded
    y: Array  # [B, ...], zero where padded
    weight: Array  # [B], one for a sample, zero for padding


def batch_bound(size: int, most: int) -> int:
    """The samples for which a batch drawn by Poisson sampling has room.

    size: expected samples; most: N. A batch of more has a probability below OVERFLOW: that of a
    binomial number is at most Chernoff's bound e^-size (e size / k)^k.

    >>> batch_bound(20, 1000)
    93
    """
    bound = size
    while -size + bound - bound * math.log(bound / size) > math.log(OVERFLOW):
        bound += 1
    return min(bound, most)


def epoch_orders(key: Array, mask: Array, epochs: int, begun: Array | None = None) -> Array:
    """A random order of one client's samples for each epoch, [epochs, N], padding last.

    More padding leaves the orders as they are: the draws of the first samples come first.

    begun: scalar, the epochs whose orders are needed, None for all: sorting takes as long as
      training where only a few of many steps are.
    """
    draws = jnp.where(mask, jax.random.uniform(key, (len(mask), epochs)).T, 2.0)
    if begun is None:
        return jnp.argsort(draws, axis=1).astype(jnp.int32)

    def sort(epoch: Array, orders: Array) -> Array:
        return orders.at[epoch].set(jnp.argsort(draws[epoch]).astype(jnp.int32))

    return lax.fori_loop(0, begun, sort, jnp.zeros(draws.shape, jnp.int32))


def rows_at(orders: Array, samples: Array, number: Array, size: int) -> tuple[Array, Array]:
    """The rows [B] of batch `number` of one client, counted through its epochs, and which of them
    are valid, bool [B].

    Args:
      orders: [epochs, at least N], from `epoch_orders`, padded to a multiple of `size`.
      samples: true samples, scalar; they make ceil(samples / size) batches an epoch.
      number: scalar.
      size: B.
    """
    in_epoch = (samples + size - 1) // size
    epoch, first = number // in_epoch, number % in_epoch * size
    rows = lax.dynamic_slice(orders, (epoch, first), (1, size))[0]
    return rows, first + jnp.arange(size) < samples


def poisson_rows(key: Array, mask: Array, rate: Array, bound: int) -> tuple[Array, Array]:
    """The rows [bound] of a batch in which each sample is with probability `rate`, and which of
    them are valid, bool [bound]; mask [N]. What is more than `bound` is left out."""
    chosen = mask & (jax.random.uniform(key, mask.shape) < rate)
    (rows,) = jnp.nonzero(chosen, size=bound, fill_value=0)
    return rows, jnp.arange(bound) < chosen.sum()


def batch_at(x: Array, y: Array, orders: Array, samples: Array, number: Array, size: int) -> Batch:
    """That batch of one client's samples, x [N, ...] and y [N]; the rest as in `rows_at`."""
    return take(x, y, *rows_at(orders, samples, number, size))


def take(x: Array, y: Array, rows: Array, valid: Array) -> Batch:
    """The batch of one client's samples at `rows` [B], those not `valid` [B] as padding."""
    inputs, targets = (
        jnp.where(valid.reshape(-1, *[1] * (each.ndim - 1)), each[rows], 0) for each in (x, y)
    )
    return Batch(inputs, targets, valid.astype(x.dtype))
