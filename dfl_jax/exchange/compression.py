"""Codecs of messages, the exact number of bits that they take, and top-k masks."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.typing import DTypeLike

from dfl_jax.base import Array, PyTree
from dfl_jax.checks import check_choice, check_range
from dfl_jax.execution.random_numbers import uniform
from dfl_jax.setting_error import InputError

FLOAT_BITS = 32  # of a number of the data, and of one whose type nothing else decides
LABEL_BITS = 32
ROUNDINGS = ('stochastic', 'nearest')
SPARSIFIERS = ('top_k', 'random_k')
QUANTIZERS = ('uniform', 'qsgd')


def number_bits(dtype: DTypeLike, most: int | None = None) -> int:
    """Bits of one number of this type, at most `most`, as it is sent uncompressed."""
    bits = 8 * jnp.dtype(dtype).itemsize
    return bits if most is None else min(bits, most)


class Message(NamedTuple):
    """A tensor's message: `values` numbers of `width` bits each, and `overhead` more bits."""

    values: int
    width: int
    overhead: int

    @property
    def bits(self) -> int:
        return self.values * self.width + self.overhead


class Codec(NamedTuple):
    """A lossy channel: what the receiver decodes from a tensor, and the bits that it costs.

    Codecs work tensor by tensor, on weights or on a row of a Jacobian, and compose by `chain`.
    """

    decoded: Callable[[Array, Array], Array]  # (key, tensor) -> tensor as the receiver decodes it
    compressed: Callable[[Message], Message]  # a tensor's message before this codec -> after it

    def transmit(self, key: Array, tree: PyTree) -> PyTree:
        """Every tensor of the tree as the receiver decodes it."""
        return jax.tree.map(self.decoded, optax.tree.split_key_like(key, tree), tree)

    def bits(self, shapes: PyTree, most_bits: int | None = None) -> int:
        """Exact bits of one message that holds a tensor of each of these shapes and types.

        most_bits: of one number before it is coded, at most; None for those of its type.
        """
        leaves = jax.tree.leaves(shapes)
        messages = (Message(math.prod(a.shape), number_bits(a.dtype, most_bits), 0) for a in leaves)
        return sum(self.compressed(message).bits for message in messages)


def bits_of(shapes: PyTree) -> int:
    """Exact bits of one message that holds a tensor of each of these shapes as it is."""
    return chain().bits(shapes)


def chain(*codecs: Codec) -> Codec:
    """The codecs one after the other; of none, the numbers as they are, in their own types."""

    def decoded(key: Array, tensor: Array) -> Array:
        for number, codec in enumerate(codecs):
            tensor = codec.decoded(jax.random.fold_in(key, number), tensor)
        return tensor

    def compressed(message: Message) -> Message:
        for codec in codecs:
            message = codec.compressed(message)
        return message

    return Codec(decoded, compressed)


@dataclass(frozen=True, kw_only=True)
class Compression:
    """How clients compress what they send, weights or rows of Jacobians: few entries, of few bits.

    Args:
      sparsity: share of the entries of every tensor that become zero; None for none of them.
      sparsifier: which entries stay: the largest ones (`top_k`), or random ones (`random_k`).
      bits: quantize the other entries to this number of bits; None for numbers as they are.
      quantizer: levels of the quantizer: `uniform` up to the largest entry, or up to the Euclidean
        norm (`qsgd`, as in the papers of CHOCO-SGD and BEER).
      rounding: of the uniform quantizer: `stochastic` (default for weights) or `nearest` (default
        for Jacobians).
      error_feedback: add to each message what compression lost of those before it; for methods that
        send their models in every round.

    Raises ValueError for settings out of range, or without effect beside the others.
    """

    sparsity: float | None = None
    sparsifier: str = 'top_k'
    bits: int | None = None
    quantizer: str = 'uniform'
    rounding: str | None = None
    error_feedback: bool = False

    def __post_init__(self):
        check_choice('sparsifier', self.sparsifier, SPARSIFIERS)
        check_choice('quantizer', self.quantizer, QUANTIZERS)
        if self.sparsity is None and self.sparsifier != 'top_k':
            raise ValueError(f'sparsifier={self.sparsifier} has no effect without sparsity')
        if self.bits is None and self.rounding is not None:
            raise ValueError(f'rounding={self.rounding} has no effect without bits')
        if self.bits is None and self.quantizer != 'uniform':
            raise ValueError(f'quantizer={self.quantizer} has no effect without bits')
        if self.quantizer == 'qsgd' and self.rounding == 'nearest':
            raise ValueError('quantizer=qsgd rounds at random, not to the nearest level')
        codec = self.codec('stochastic', feedback=True)
        if self.error_feedback and codec is None:
            raise ValueError('error_feedback has no effect without sparsity or bits')

    def codec(
        self, rounding: str, contracting: bool = False, feedback: bool = False
    ) -> 'Codec | None':
        """The codec of these settings, None where nothing is compressed.

        rounding: the default. contracting: for methods that send differences and go on with what
        the receivers decoded, see `quantization`. feedback: whether the method feeds errors back.

        Raises ValueError for error feedback that the method does not have.
        """
        if self.error_feedback and not feedback:
            raise InputError(
                '`error_feedback` is of models that are sent as they are, and this method sends '
                'differences or Jacobians; leave it out'
            )
        of_few = top_k if self.sparsifier == 'top_k' else random_k
        codecs = [] if self.sparsity is None else [of_few(self.sparsity)]
        if self.bits is not None and self.quantizer == 'qsgd':
            codecs.append(qsgd(self.bits, contracting))
        elif self.bits is not None:
            codecs.append(quantization(self.bits, self.rounding or rounding, contracting))
        return chain(*codecs) if codecs else None


def top_k(sparsity: float) -> Codec:
    """Keeps the entries of largest modulus of every tensor and sets the share `sparsity` to zero.

    Of n entries k = ceil((1 - sparsity) n) are kept, of equal ones the first. A message holds the
    k values and where they belong: their indices of ceil(log2 n) bits or a bitmap of n bits,
    whichever is smaller (Alistarh et al. 2018; NTK-DFL, appendix E.3).

    Raises ValueError for a sparsity outside [0, 1).

    >>> top_k(0.5).decoded(jax.random.key(0), jnp.array([3.0, -4.0, 1.0, 0.0])).tolist()
    [3.0, -4.0, 0.0, 0.0]
    """
    check_range('sparsity', sparsity, least=0, below=1)

    def decoded(key: Array, tensor: Array) -> Array:
        del key
        return jnp.where(largest(jnp.abs(tensor), _kept(tensor.size, sparsity)), tensor, 0)

    def compressed(message: Message) -> Message:
        k, n = _kept(message.values, sparsity), message.values
        positions = min(n, k * (n - 1).bit_length())
        return Message(k, message.width, message.overhead + positions)

    return Codec(decoded, compressed)


def random_k(sparsity: float) -> Codec:
    """Keeps random entries of every tensor, as many as `top_k`, and sets the others to zero.

    The error has the share `sparsity` of the tensor's square in the mean. Which entries they are
    follows from the key, which sender and receiver have in common, so that a message holds the
    values alone (rand_k of Koloskova et al. 2019, without its factor n / k).

    Raises ValueError for a sparsity outside [0, 1).

    >>> random_k(0.5).decoded(jax.random.key(0), jnp.array([3.0, -4.0, 1.0, 2.0])).tolist()
    [3.0, -4.0, 0.0, 0.0]
    """
    check_range('sparsity', sparsity, least=0, below=1)

    def decoded(key: Array, tensor: Array) -> Array:
        drawn = uniform(key, tensor.shape)
        return jnp.where(largest(drawn, _kept(tensor.size, sparsity)), tensor, 0)

    def compressed(message: Message) -> Message:
        return message._replace(values=_kept(message.values, sparsity))

    return Codec(decoded, compressed)


def _kept(size: int, sparsity: float) -> int:
    return math.ceil(size * (1 - sparsity) - 1e-9)  # (1 - 0.9) * 10 is 1.0000000000000002


def qsgd(bits: int, contracting: bool = False) -> Codec:
    """Stochastic quantization to s = 2^(bits - 1) - 1 levels of either sign, up to the norm |x|.

    sign(x) |x| / s floor(s |x_i| / |x| + u) with u uniform in [0, 1) (Alistarh et al. 2017), whose
    expectation is x and whose error is at most omega |x|^2, omega = min(d / s^2, sqrt(d) / s) of d
    entries that are not zero. A message holds `bits` for every value, and the norm.

    contracting: the message is divided by 1 + omega, which leaves omega / (1 + omega) |x|^2 of a
    difference x at most (qsgd_s of Koloskova et al. 2019; gsgd_b of Zhao et al. 2022, with one
    level less, so that the sign has a bit, too).

    Raises ValueError for bits outside [2, 32].

    >>> qsgd(8).decoded(jax.random.key(0), jnp.array([0.0, 127.0])).tolist()
    [0.0, 127.0]
    """
    levels = _levels(bits)

    def decoded(key: Array, tensor: Array) -> Array:
        x = tensor.astype(jnp.promote_types(tensor.dtype, jnp.float32))
        norm = jnp.sqrt(jnp.sum(x**2))
        scaled = levels * jnp.abs(x) / jnp.where(norm > 0, norm, 1)
        level = jnp.floor(scaled + uniform(key, x.shape, x.dtype))
        if contracting:
            d = jnp.sum(x != 0, dtype=x.dtype)
            norm = norm / (1 + jnp.minimum(d / levels**2, jnp.sqrt(d) / levels))
        sent = norm.astype(tensor.dtype).astype(x.dtype)
        return (jnp.sign(x) * sent / levels * level).astype(tensor.dtype)

    def compressed(message: Message) -> Message:
        return Message(message.values, bits, message.overhead + message.width)

    return Codec(decoded, compressed)


def quantization(bits: int, rounding: str = 'stochastic', contracting: bool = False) -> Codec:
    """Uniform quantization of every tensor to 2^bits - 1 levels, symmetric about zero.

    The largest modulus of the tensor takes the highest level, L = 2^(bits - 1) - 1; a message holds
    `bits` for every value and one number, the largest modulus, in the type of the tensor.
    `stochastic` rounding goes up with the probability of the remainder, so that its expectation is
    the value itself; `nearest` rounds to the nearest level. Weights themselves are quantized, as in
    NTK-DFL, not their change: that would need copies of the neighbours' models, and neighbours
    change.

    contracting: the error of a tensor x is less than x itself, E |Q(x) - x|^2 < |x|^2, as methods
    need that send differences until nothing is left of them. Rounding to the nearest level does so
    always, and so does top-k. Of stochastic rounding the error is omega |x|^2, and omega 2.2 for
    1,000 normal entries in 2 bits, 0.2 in 3; it grows with the largest entry over the others. Where
    it is 1/2 or more the message is divided by 1 + omega, which leaves omega / (1 + omega) |x|^2 of
    it (Koloskova et al. 2019, with the tensor's own omega in place of a bound). The sender divides
    the number that it sends in any case, so that no bit is added.

    Raises ValueError for bits outside [2, 32] or an unknown rounding.

    >>> quantization(2, 'nearest').decoded(jax.random.key(0), jnp.array([4.0, -3.0, 1.0])).tolist()
    [4.0, -4.0, 0.0]
    """
    levels = _levels(bits)
    check_choice('rounding', rounding, ROUNDINGS)

    shrinks = contracting and rounding == 'stochastic'

    def decoded(key: Array, tensor: Array) -> Array:
        w = tensor.astype(jnp.promote_types(tensor.dtype, jnp.float32))
        step = jnp.max(jnp.abs(w)) / levels
        scaled = w / jnp.where(step > 0, step, 1)
        offset = 0.5 if rounding == 'nearest' else uniform(key, w.shape, w.dtype)
        level = jnp.clip(jnp.floor(scaled + offset), -levels, levels)
        if shrinks:
            most = (jnp.max(jnp.abs(w)) * _shrinkage(scaled)).astype(tensor.dtype)
            step = most.astype(w.dtype) / levels
        return (step * level).astype(tensor.dtype)

    def compressed(message: Message) -> Message:
        return Message(message.values, bits, message.overhead + message.width)

    return Codec(decoded, compressed)


def _levels(bits: int) -> int:
    """The levels of a quantizer above zero, and as many below."""
    check_range('bits', bits, least=2, most=FLOAT_BITS)
    return 2 ** (bits - 1) - 1


def _shrinkage(scaled: Array) -> Array:
    """1 / (1 + omega) of stochastic rounding to whole numbers where omega is 1/2 or more, else 1.

    A bound of 1, where a difference just contracts, let CHOCO-SGD with 2 bits and a consensus step
    of 0.3 diverge (8 clients on a ring, 2,043 weights, 2026-11-29).
    """
    rest = scaled - jnp.floor(scaled)
    variance, square = jnp.sum(rest * (1 - rest)), jnp.sum(scaled**2)
    omega = variance / jnp.where(square > 0, square, 1)
    return jnp.where(omega < 0.5, 1, 1 / (1 + omega))


def half_precision() -> Codec:
    """IEEE floats of 16 bits: 11 significant bits, up to 65,504.

    >>> half_precision().decoded(jax.random.key(0), jnp.array([2049.0])).tolist()
    [2048.0]
    """

    def decoded(key: Array, tensor: Array) -> Array:
        del key
        # Without barriers XLA may drop the pair of conversions as excess precision, and round a
        # double once or twice, as the processor has it: always twice, by way of 32 bits.
        single = lax.optimization_barrier(tensor.astype(jnp.float32))
        return lax.optimization_barrier(single.astype(jnp.float16)).astype(tensor.dtype)

    return Codec(decoded, lambda message: message._replace(width=min(16, message.width)))


def largest(values: Array, k: Array | int, among: Array | bool = True) -> Array:
    """The mask of the k largest entries of `values`, ties going to the first in memory order.

    `lax.top_k` needs a k known when it is traced, and a sort takes tens of times as long: the bits
    of non-negative floats are ordered like the floats, so a bisection over them counts its way to
    the k-th largest.

    Args:
      values: floats of any precision and shape, non-negative.
      k: a scalar, how many, at most the number of candidates.
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
    position = jnp.arange(order.size, dtype=unsigned)
    last = first(lambda p: count(level & (position <= p)) >= wanted, order.size.bit_length())
    ties = level & (position <= last) & (wanted > 0)
    return (above | ties).reshape(values.shape)
