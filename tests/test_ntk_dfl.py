"""NTK-DFL against the plain NumPy reference, in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from dfl_jax import Clients, topology
from dfl_jax.algorithms import ntk_dfl
from dfl_jax.models import MLP, bind

CLIENTS, FEATURES, CLASSES = 6, 5, 3
TIMESTEPS = (3, 10, 25)


@pytest.fixture
def network(x64):
    """Six clients of different sizes, their schedule, and both forms of their first weights."""
    rng = np.random.default_rng(3)
    sizes = [4, 7, 5, 6, 3, 7]
    data = [
        (rng.normal(size=(n, FEATURES)), np.eye(CLASSES)[rng.integers(CLASSES, size=n)])
        for n in sizes
    ]
    x = np.zeros((CLIENTS, max(sizes), FEATURES))
    y = np.zeros((CLIENTS, max(sizes)), np.int32)
    mask = np.zeros((CLIENTS, max(sizes)), bool)
    for i, (features, one_hot) in enumerate(data):
        x[i, : len(features)] = features
        y[i, : len(features)] = one_hot.argmax(axis=1)
        mask[i, : len(features)] = True
    clients = Clients(jnp.asarray(x), jnp.asarray(y), jnp.asarray(mask))
    graphs = topology.schedule('erdos_renyi', CLIENTS, 3, seed=1, degree=2)
    return data, clients, graphs


def run_both(network, init='independent', hidden=(8,), lr=0.05, lr_decay=0.2, **settings):
    data, clients, graphs = network
    options = {
        'loss': 'cross_entropy',
        'evolution': 'euler',
        'selection': 'network',
        'mixing': 'size',
        'averaging': True,
    } | settings
    model = bind(MLP(CLASSES, hidden), (FEATURES,))
    algorithm = ntk_dfl(model, init=init, lr=lr, lr_decay=lr_decay, timesteps=TIMESTEPS, **options)
    state = algorithm.init(jax.random.key(0), clients)
    widen = lambda leaf: leaf.astype(jnp.float64)  # noqa: E731
    state = state._replace(params=jax.tree.map(widen, state.params))
    layers = [f'Dense_{i}' for i in range(len(hidden) + 1)]

    def as_reference(params, i):
        return [
            (np.asarray(params[n]['kernel'][i]), np.asarray(params[n]['bias'][i])) for n in layers
        ]

    params = [as_reference(state.params, i) for i in range(CLIENTS)]
    step = jax.jit(algorithm.step)
    for r in range(len(graphs.active)):
        graph = jax.tree.map(lambda a, r=r: jnp.asarray(a[r]), graphs)
        state, info = step(jax.random.key(r), state, graph, clients)
        neighbours = [
            [int(j) for j, on in zip(m[1:], linked[1:], strict=True) if on]
            for m, linked in zip(graphs.members[r], graphs.mask[r], strict=True)
        ]
        params, chosen, losses = reference.ntk_dfl_round(
            params, data, neighbours, lr=lr * np.exp(-lr_decay * r), timesteps=TIMESTEPS, **options
        )
    return state, info, as_reference, params, chosen, losses


@pytest.mark.parametrize(
    'settings',
    [
        {},
        {'mixing': 'uniform'},
        {'averaging': False},
        {'selection': 'linearized'},
        {'loss': 'mse'},
        {'loss': 'mse', 'evolution': 'eigh'},
        {'hidden': (6, 4)},
        {'hidden': (), 'init': 'same'},
    ],
    ids=str,
)
def test_three_rounds_equal_the_reference(network, settings):
    state, info, as_reference, params, chosen, losses = run_both(network, **settings)
    for i, expected in enumerate(params):
        ours = reference.flatten(as_reference(state.params, i))
        theirs = reference.flatten(expected)
        assert np.linalg.norm(ours - theirs) <= 1e-10 * np.linalg.norm(theirs)
    np.testing.assert_array_equal(info['timestep'], chosen)
    np.testing.assert_allclose(info['loss'], losses, rtol=1e-10)
