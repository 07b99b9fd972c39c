"""Codecs of what clients exchange, the exact number of bits that they send, and top-k masks."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.models import Model

FLOAT_BITS = 32
LABEL_BITS = 32
ROUNDINGS = ('stochastic', 'nearest')


class Codec(NamedTuple):
    """A lossy channel for the weights of one client."""

    transmit: Callable[[Array, PyTree], PyTree]  # (key, params) -> params as the receiver decodes
    bits: Callable[[Model], int]  # of one message


def codec_of(bits: int | None, rounding: str | None) -> Codec:
    """The codec that the settings of an algorithm ask for; 32-bit floats without any."""
    if bits is None:
        if rounding is not None:
            raise ValueError(f'rounding={rounding} has no effect without bits')
        return Codec(lambda key, params: params, lambda model: FLOAT_BITS * model.size)
    return quantization(bits, 'stochastic' if rounding is None else rounding)


def quantization(bits: int, rounding: str = 'stochastic') -> Codec:
    """Uniform quantization of every tensor to 2^bits - 1 levels, symmetric about zero.

    The largest modulus of the tensor takes the highest level, L = 2^(bits - 1) - 1; a message holds
    `bits` for every weight and one 32-bit float, the step, for every tensor. `stochastic` rounding
    goes up with the probability of the remainder, so that its expectation is the weight itself;
    `nearest` rounds to the nearest level. The weights themselves are quantized, as in NTK-DFL;
    quantizing their change would need copies of the neighbours' models, which graphs that change
    every round do not leave.

    Raises ValueError for bits outside [2, 32] or an unknown rounding.
    """
    if not 2 <= bits <= FLOAT_BITS:
        raise ValueError(f'bits has to lie in [2, {FLOAT_BITS}], got {bits}')
    if rounding not in ROUNDINGS:
        raise ValueError(f'unknown rounding {rounding!r}; choose one of {", ".join(ROUNDINGS)}')
    levels = 2 ** (bits - 1) - 1

    def quantize(key: Array, w: Array) -> Array:
        step = jnp.max(jnp.abs(w)) / levels
        scaled = w / jnp.where(step > 0, step, 1)
        offset = 0.5 if rounding == 'nearest' else jax.random.uniform(key, w.shape, w.dtype)
        return step * jnp.clip(jnp.floor(scaled + offset), -levels, levels)

    def transmit(key: Array, params: PyTree) -> PyTree:
        leaves, treedef = jax.tree.flatten(params)
        keys = jax.random.split(key, len(leaves))
        sent = [quantize(k, w) for k, w in zip(keys, leaves, strict=True)]
        return jax.tree.unflatten(treedef, sent)

    def message_bits(model: Model) -> int:
        return bits * model.size + FLOAT_BITS * len(jax.tree.leaves(model.shapes))

    return Codec(transmit, message_bits)


def largest(values: Array, k: Array | int, among: Array) -> Array:
    """The mask of the k largest entries of `values`, ties going to the first in memory order.

    `lax.top_k` needs a k known when it is traced, and a sort takes tens of times as long: the bits
    of non-negative floats are ordered like the floats, so a bisection over them counts its way to
    the k-th largest.

    Args:
      values: any shape, non-negative.
      k: how many, at most the number of candidates.
      among: bool like values, the candidates.
    """
    width = jnp.finfo(values.dtype).bits
    unsigned = jnp.uint32 if width == 32 else jnp.uint64
    order = jnp.where(among, lax.bitcast_convert_type(values, unsigned) + 1, 0).ravel()
    # XLA's CPU backend counts ten times as fast in floats, which are exact up to 2^24.
    counter = jnp.float32 if order.size < 2**24 else jnp.int32

    def count(chosen: Array) -> Array:
        return jnp.sum(chosen, dtype=counter)

    def first(holds: Callable[[Array], Array], steps: int) -> Array:
        """The smallest number below 2^steps for which the monotone `holds` is true."""

        def halve(i, low):
            middle = low + (unsigned(1) << (steps - 1 - i).astype(unsigned))
            return jnp.where(holds(middle - 1), low, middle)

        return lax.fori_loop(0, steps, halve, unsigned(0))

    threshold = first(lambda t: count(order > t) < k, width - 1)  # the k-th largest
    above, level = order > threshold, order == threshold
    wanted = k - count(above)
    place = jnp.arange(order.size, dtype=unsigned)
    last = first(lambda p: count(level & (place <= p)) >= wanted, order.size.bit_length())
    ties = level & (place <= last) & (wanted > 0)
    return (above | ties).reshape(values.shape)
