"""Codecs of what clients exchange, and the exact number of bits that they send."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dfl_jax.base import Array, PyTree
from dfl_jax.models import Model

FLOAT_BITS = 32
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
    `nearest` rounds to the nearest level (Sun, Li & Wang 2021, section 3.2, has both).

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
        return treedef.unflatten([quantize(k, w) for k, w in zip(keys, leaves, strict=True)])

    def message_bits(model: Model) -> int:
        return bits * model.size + FLOAT_BITS * len(jax.tree.leaves(model.shapes))

    return Codec(transmit, message_bits)
