"""Random numbers of `jax.random`, to the bit, where they are most of a round.

On CPUs JAX keeps the rounds of Threefry in a loop whose turns are passes over memory. The same
operations in a row take half the time.
"""

import math

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.typing import DTypeLike

from dfl_jax.base import Array, PyTree

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)  # Salmon et al., SC 2011, table 2
PARITY = 0x1BD11BDA


def uniform(key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
    """`jax.random.uniform`: numbers in [0, 1).

    >>> key = jax.random.key(0)
    >>> bool((uniform(key, (3,)) == jax.random.uniform(key, (3,))).all())
    True
    """
    if not _of_threefry(key, shape, dtype):
        return jax.random.uniform(key, shape, dtype)
    bits = _threefry(key, shape) >> 9 | jnp.uint32(0x3F800000)
    return lax.bitcast_convert_type(bits, jnp.float32) - 1


def normal(key: Array, shape: tuple[int, ...], dtype: DTypeLike = jnp.float32) -> Array:
    """`jax.random.normal`: standard normal numbers."""
    if not _of_threefry(key, shape, dtype):
        return jax.random.normal(key, shape, dtype)
    least = jnp.nextafter(jnp.float32(-1), jnp.float32(0))
    within = jnp.maximum(least, uniform(key, shape) * (1 - least) + least)
    return jnp.float32(2**0.5) * lax.erf_inv(within)


def normal_like(key: Array, tree: PyTree) -> PyTree:
    """`optax.tree.random_like`: standard normal numbers in the shapes of a tree."""
    return optax.tree.random_like(key, tree, normal)


def _of_threefry(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> bool:
    partitionable = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
    known = jax.random.key_impl(key) == 'threefry2x32' and partitionable
    one = jax.random.key_data(key).ndim == 1 and math.prod(shape) < 2**32
    return known and one and jnp.dtype(dtype) == jnp.float32


def _threefry(key: Array, shape: tuple[int, ...]) -> Array:
    """`jax.random.bits` of a Threefry key, uint32."""
    first, second = jax.random.key_data(key)
    keys = first, second, first ^ second ^ jnp.uint32(PARITY)
    count = lax.iota(jnp.uint32, math.prod(shape))
    a, b = jnp.full_like(count, keys[0]), count + keys[1]
    for block in range(5):
        for rotation in ROTATIONS[block % 2]:
            a = a + b
            b = (b << rotation | b >> 32 - rotation) ^ a
        a = a + keys[(block + 1) % 3]
        b = b + keys[(block + 2) % 3] + jnp.uint32(block + 1)
    return (a ^ b).reshape(shape)
