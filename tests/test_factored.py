"""J~ from the factors of P, and the moved network, against dense Jacobians in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.flatten_util import ravel_pytree
from test_linearized import Mixed

from dfl_jax.models import MLP, bind
from dfl_jax.ntk.factored import factored
from dfl_jax.ntk.projection import BLOCK, projection

CLASSES, SAMPLES = 3, 5


class Convolutional(nn.Module):
    """A convolution below two dense layers, the last of which is the head."""

    dense_head = True

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(2, (2, 2))(x)).reshape(len(x), -1)
        return nn.Dense(CLASSES)(nn.tanh(nn.Dense(4)(x)))


class Broken(MLP):
    """Inherits the promise of a dense head and does not keep it."""

    def __call__(self, x):
        return nn.tanh(super().__call__(x)) * jnp.arange(1.0, 1 + CLASSES)[None, :]


NETWORKS = {
    'no hidden layer': bind(MLP(CLASSES, ()), (20,)),
    'one': bind(MLP(CLASSES, (11,)), (6,)),
    'three': bind(MLP(CLASSES, (6, 5, 4)), (4,)),
    'convolution': bind(Convolutional(), (3, 3, 1)),
    'mixed': bind(Mixed(), (3, 3, 1)),
    'broken promise': bind(Broken(CLASSES, (11,)), (6,)),
}


@functools.cache
def found(network, garbage=None):
    """J~ [C, N, k] of the dense Jacobian, by `narrow` and by `columns`; the moved outputs, and
    those of the network at w + P u; the last sample's input may be garbage."""
    model, rng = NETWORKS[network], np.random.default_rng(0)
    k = min(BLOCK + 3, model.size)  # a last block and a last a_r of which only a part is used
    random = projection('low_rank', model.shapes, k)
    flat, unravel = ravel_pytree(
        jax.tree.map(lambda s: rng.normal(size=s.shape) / np.sqrt(s.size), model.shapes)
    )
    x, u = rng.normal(size=(SAMPLES, *model.input_shape)), rng.normal(size=k)
    x[-1] = x[-1] if garbage is None else garbage

    @jax.jit
    def run(flat, x, u):
        table = random.draw(jax.random.key(0))
        of = lambda flat: model.apply(unravel(flat), x).T  # noqa: E731
        p = jax.vmap(lambda u: ravel_pytree(random.lift(table, u))[0])(jnp.eye(k)).T
        near = factored(model, random)(table, unravel(flat), x)
        blocks = jax.lax.map(near.columns, jnp.arange(-(-k // BLOCK)))
        return {
            'dense': jax.jacrev(of)(flat) @ p,
            'narrow': jax.vmap(near.narrow, out_axes=-1)(jnp.eye(k)),
            'columns': jnp.moveaxis(blocks.reshape(-1, CLASSES, SAMPLES)[:k], 0, -1),
            'at': of(flat + p @ u),
            'moved': None if near.moved is None else near.moved(u),
        }

    return jax.device_get(run(flat, x, u))


every_network = pytest.mark.parametrize('network', NETWORKS)


@every_network
def test_factors_give_the_projected_jacobian(network, x64):
    ours = found(network)
    assert np.linalg.matrix_rank(ours['dense'].reshape(-1, ours['dense'].shape[-1])) >= 10
    for way in ('narrow', 'columns'):
        np.testing.assert_allclose(ours[way], ours['dense'], rtol=1e-10, atol=1e-12)


@every_network
def test_a_network_of_dense_layers_is_moved_by_factors(network, x64):
    ours = found(network)
    assert (ours['moved'] is None) == (network in ('convolution', 'mixed'))
    if ours['moved'] is not None:
        np.testing.assert_allclose(ours['moved'], ours['at'], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize('network', ['three', 'mixed'])
def test_garbage_in_padding_stays_there(network, x64):
    clean, dirty = found(network), found(network, 50.0)
    for way in ('narrow', 'columns', 'moved'):
        if clean[way] is not None:
            a, b = clean[way], dirty[way]
            np.testing.assert_allclose(b[:, :-1], a[:, :-1], rtol=1e-10, atol=1e-12)
            assert np.isfinite(b).all() and np.abs(b[:, -1] - a[:, -1]).max() > 0.01
