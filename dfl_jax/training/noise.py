"""Gaussian noise, where it is most of a round.

On CPUs JAX keeps the rounds of Threefry in a loop whose turns are passes over memory. The same
operations in a row take half the time.
"""

import math

import jax
import jax.numpy as jnp
import optax
from jax import lax

from dfl_jax.base import Array, PyTree

ROTATIONS = (13, 15, 26, 6), (17, 29, 16, 24)  # Salmon et al., SC 2011, table 2
PARITY = 0x1BD11BDA


def noise_like(key: Array, tree: PyTree) -> PyTree:
    """Independent standard normal numbers in the shapes of a tree, those of
    `optax.tree.random_like` to the bit.

    >>> key, like = jax.random.key(0), {'w': jnp.zeros(3)}
    >>> bool((noise_like(key, like)['w'] == optax.tree.random_like(key, like)['w']).all())
    True
    """
    return optax.tree.random_like(key, tree, _normal)


def _normal(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    known = jax.random.key_impl(key) == 'threefry2x32' and jax.config.jax_threefry_partitionable
    if dtype != jnp.float32 or not known:
        return jax.random.normal(key, shape, dtype)
    bits = _threefry(key, shape)
    uniform = lax.bitcast_convert_type(bits >> 9 | jnp.uint32(0x3F800000), dtype) - 1
    least = jnp.nextafter(jnp.float32(-1), jnp.float32(0))
    within = jnp.maximum(least, uniform * (1 - least) + least)
    return jnp.float32(2**0.5) * lax.erf_inv(within)


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
