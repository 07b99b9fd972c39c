"""Codecs of messages, the exact number of bits that they take, and top-k masks."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.checks import check_choice, check_range

FLOAT_BITS = 32
LABEL_BITS = 32
ROUNDINGS = ('stochastic', 'nearest')


class Message(NamedTuple):
    """A tensor's message: `values` numbers of `width` bits each, and `beside` more bits."""

    values: int
    width: int
    beside: int

    @property
    def bits(self) -> int:
        return self.values * self.width + self.beside


class Codec(NamedTuple):
    """A lossy channel: what the receiver decodes from a tensor, and the bits that it costs.

    Codecs work tensor by tensor, on weights or on a row of a Jacobian, and compose by `chain`.
    """

    decoded: Callable[[Array, Array], Array]  # (key, tensor) -> tensor as the receiver decodes it
    shrunk: Callable[[Message], Message]  # a tensor's message before this codec -> after it

    def transmit(self, key: Array, tree: PyTree) -> PyTree:
        """Every tensor of the tree as the receiver decodes it."""
        return jax.tree.map(self.decoded, optax.tree.split_key_like(key, tree), tree)

    def bits(self, shapes: PyTree) -> int:
        """Exact bits of one message that holds a tensor of each of these shapes."""
        sizes = [math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)]
        return sum(self.shrunk(Message(size, FLOAT_BITS, 0)).bits for size in sizes)


def chain(*codecs: Codec) -> Codec:
    """The codecs one after the other; of none, 32-bit floats as they are."""

    def decoded(key: Array, tensor: Array) -> Array:
        for number, codec in enumerate(codecs):
            tensor = codec.decoded(jax.random.fold_in(key, number), tensor)
        return tensor

    def shrunk(message: Message) -> Message:
        for codec in codecs:
            message = codec.shrunk(message)
        return message

    return Codec(decoded, shrunk)


@dataclass(frozen=True, kw_only=True)
class Compression:
    """How clients compress what they send, weights or rows of Jacobians: top-k, then quantization.

    Args:
      sparsity: share of the entries of every tensor that become zero, the smallest ones; None for
        none of them.
      bits: quantize the other entries to this number of bits; None for 32-bit floats.
      rounding: of the quantizer: `stochastic` (default for weights) or `nearest` (default for
        Jacobians).

    Raises ValueError for settings out of range, and for a rounding without bits.
    """

    sparsity: float | None = None
    bits: int | None = None
    rounding: str | None = None

    def __post_init__(self):
        if self.bits is None and self.rounding is not None:
            raise ValueError(f'rounding={self.rounding} has no effect without bits')
        self.codec('stochastic')

    def codec(self, rounding: str) -> 'Codec | None':
        """The codec of these settings, None where nothing is compressed; rounding: the default."""
        codecs = [] if self.sparsity is None else [top_k(self.sparsity)]
        if self.bits is not None:
            codecs.append(quantization(self.bits, self.rounding or rounding))
        return chain(*codecs) if codecs else None


def top_k(sparsity: float) -> Codec:
    """Keeps the entries of largest modulus of every tensor and sets the share `sparsity` to zero.

    Of n entries k = ceil((1 - sparsity) n) are kept, of equal ones the first. A message holds the
    k values and where they belong: their indices of ceil(log2 n) bits or a bitmap of n bits,
    whichever is smaller (Alistarh et al. 2018; NTK-DFL, appendix E.3).

    Raises ValueError for a sparsity outside [0, 1).
    """
    check_range('sparsity', sparsity, least=0, below=1)

    def kept(size: int) -> int:
        return math.ceil(size * (1 - sparsity) - 1e-9)  # (1 - 0.9) * 10 is 1.0000000000000002

    def decoded(key: Array, tensor: Array) -> Array:
        del key
        return jnp.where(largest(jnp.abs(tensor), kept(tensor.size)), tensor, 0)

    def shrunk(message: Message) -> Message:
        k, n = kept(message.values), message.values
        positions = min(n, k * (n - 1).bit_length())
        return Message(k, message.width, message.beside + positions)

    return Codec(decoded, shrunk)


def quantization(bits: int, rounding: str = 'stochastic') -> Codec:
    """Uniform quantization of every tensor to 2^bits - 1 levels, symmetric about zero.

    The largest modulus of the tensor takes the highest level, L = 2^(bits - 1) - 1; a message holds
    `bits` for every value and one 32-bit float, the step, for every tensor. `stochastic` rounding
    goes up with the probability of the remainder, so that its expectation is the value itself;
    `nearest` rounds to the nearest level. Weights themselves are quantized, as in NTK-DFL, not
    their change: that would need copies of the neighbours' models, and neighbours change.

    Raises ValueError for bits outside [2, 32] or an unknown rounding.
    """
    check_range('bits', bits, least=2, most=FLOAT_BITS)
    check_choice('rounding', rounding, ROUNDINGS)
    levels = 2 ** (bits - 1) - 1

    def decoded(key: Array, w: Array) -> Array:
        step = jnp.max(jnp.abs(w)) / levels
        scaled = w / jnp.where(step > 0, step, 1)
        offset = 0.5 if rounding == 'nearest' else jax.random.uniform(key, w.shape, w.dtype)
        return step * jnp.clip(jnp.floor(scaled + offset), -levels, levels)

    def shrunk(message: Message) -> Message:
        return Message(message.values, bits, message.beside + FLOAT_BITS)

    return Codec(decoded, shrunk)


def half_precision() -> Codec:
    """IEEE floats of 16 bits: 11 significant bits, up to 65,504."""

    def decoded(key: Array, tensor: Array) -> Array:
        del key
        # Without barriers XLA may drop the pair of conversions as excess precision, and round a
        # double once or twice, as the processor has it: always twice, by way of 32 bits.
        single = lax.optimization_barrier(tensor.astype(jnp.float32))
        return lax.optimization_barrier(single.astype(jnp.float16)).astype(tensor.dtype)

    return Codec(decoded, lambda message: message._replace(width=16))


def largest(values: Array, k: Array | int, among: Array | bool = True) -> Array:
    """The mask of the k largest entries of `values`, ties going to the first in memory order.

    `lax.top_k` needs a k known when it is traced, and a sort takes tens of times as long: the bits
    of non-negative floats are ordered like the floats, so a bisection over them counts its way to
    the k-th largest.

    Args:
      values: floats of any precision and shape, non-negative.
      k: how many, at most the number of candidates.
      among: bool like values, the candidates; all by default.
    """
    values = values.astype(jnp.promote_types(values.dtype, jnp.float32))
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
