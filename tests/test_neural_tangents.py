import importlib.util
import sys

import jax
import jax.core
import jax.extend.core
import jax.interpreters.ad
import jax.numpy as jnp
import numpy as np
import pytest

from dfl_jax.ntk import neural_tangents

IMPLEMENTATIONS = ('JACOBIAN_CONTRACTION', 'NTK_VECTOR_PRODUCTS')
INPUTS, WIDTH, OUTPUTS = 64, 32, 10

needs_neural_tangents = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ('neural_tangents', 'frozendict')),
    reason=f'neural-tangents is not installed: {neural_tangents.INSTALL}',
)


@pytest.fixture(autouse=True)
def fresh_load():
    neural_tangents.load.cache_clear()
    yield
    neural_tangents.load.cache_clear()


def init(key):
    k_first, k_bias, k_second = jax.random.split(key, 3)
    return {
        'first': jax.random.normal(k_first, (INPUTS, WIDTH)) / INPUTS**0.5,
        'bias': jax.random.normal(k_bias, (1, WIDTH)),
        'second': jax.random.normal(k_second, (WIDTH, OUTPUTS)) / WIDTH**0.5,
    }


def mlp(params, x):
    """[B, INPUTS] -> [B, OUTPUTS]"""
    return jax.nn.relu(x @ params['first'] + params['bias']) @ params['second']


def dense_kernel(params, x1, x2):
    """K[m, n] = 1/C sum_c <J_c(m), J_c(n)>, from Jacobians in full, one client."""

    def jacobian(x):
        leaves = jax.tree.leaves(jax.jacrev(mlp)(params, x))
        return np.concatenate([np.reshape(leaf, (len(x), OUTPUTS, -1)) for leaf in leaves], axis=-1)

    return np.einsum('mcp,ncp->mn', jacobian(x1), jacobian(x2)) / OUTPUTS


def kernel(implementation):
    nt = neural_tangents.load()
    ntk = nt.empirical_ntk_fn(
        mlp, trace_axes=(-1,), vmap_axes=0, implementation=nt.NtkImplementation[implementation]
    )
    return lambda params, x1, x2: ntk(x1, x2, params)


@needs_neural_tangents
@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
def test_agrees_with_dense_jacobian_under_jit(x64, implementation):
    k_params, k_one, k_two = jax.random.split(jax.random.key(0), 3)
    params = init(k_params)
    x1 = jax.random.normal(k_one, (40, INPUTS))
    x2 = jax.random.normal(k_two, (24, INPUTS))
    expected = dense_kernel(params, x1, x2)
    actual = jax.jit(kernel(implementation))(params, x1, x2)
    assert actual.shape == (40, 24) and actual.dtype == jnp.float64
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@needs_neural_tangents
@pytest.mark.slow
@pytest.mark.parametrize('implementation', IMPLEMENTATIONS)
def test_agrees_with_dense_jacobian_under_vmap(x64, implementation):
    clients = 3
    k_params, k_data = jax.random.split(jax.random.key(1))
    params = jax.vmap(init)(jax.random.split(k_params, clients))
    x = jax.random.normal(k_data, (clients, 20, INPUTS))
    actual = jax.jit(jax.vmap(kernel(implementation)))(params, x, x)
    assert actual.shape == (clients, 20, 20)
    for m in range(clients):
        one = jax.tree.map(lambda leaf, m=m: leaf[m], params)
        expected = dense_kernel(one, x[m], x[m])
        np.testing.assert_allclose(actual[m], expected, rtol=0, atol=1e-10 * np.abs(expected).max())


@needs_neural_tangents
def test_leaves_jax_as_it_was(monkeypatch):
    for name in [name for name in sys.modules if name.split('.')[0] == 'neural_tangents']:
        monkeypatch.delitem(sys.modules, name)
    before = dict(vars(jax.core)), dict(vars(jax.interpreters.ad))
    module = neural_tangents.load()
    assert module is neural_tangents.load()
    assert (vars(jax.core), vars(jax.interpreters.ad)) == before
    assert 'jax.util' not in sys.modules
    assert 'neural_tangents.experimental' not in sys.modules


@pytest.mark.parametrize('hidden', ['neural_tangents', 'frozendict'])
def test_says_how_to_install_when_missing(monkeypatch, hidden):
    for name in [name for name in sys.modules if name.split('.')[0] == 'neural_tangents']:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, hidden, None)
    with pytest.raises(ImportError, match=r'pip install --no-deps neural-tangents==0\.6\.5'):
        neural_tangents.load()
