"""SPARK against the plain NumPy reference, in float64, and its ends where it is another method."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from test_ntk_dfl import as_indices

from dfl_jax.algorithms import spark
from dfl_jax.models import MLP, bind
from dfl_jax.ntk.projection import projection

TIMESTEPS = (3, 10, 25)
SETTINGS = {
    'projection': 'sparse_sign',
    'projection_refresh': 'never',
    'kernel_form': 'full',
    'step_form': 'projected',
    'sampling': 1.0,
    'rounds': 3,
    'warmup': 1,
    'alpha_init': 0.9,
    'alpha_final': 0.3,
    'tau_init': 1.5,
    'tau_final': 3.0,
    'logits': 'own',
    'judge': 'labels',
    'momentum': 0.9,
    'average_velocity': False,
    'averaging': True,
    'jacobian_weights': 'hub',
    'exchange': 'float32',
    'selection': 'network',
    'init': 'independent',
}


def as_reference(tree, i):
    """Client i's weights as the reference's list of layers."""
    names = sorted(tree)
    return [(np.asarray(tree[n]['kernel'][i]), np.asarray(tree[n]['bias'][i])) for n in names]


def as_matrix(random, key):
    """P [P, k] in the reference's order of weights."""
    table = random.draw(key)
    units = jnp.eye(random.dimension)
    columns = jax.vmap(lambda u: random.lift(table, u))(units)
    return np.stack(
        [reference.flatten(as_reference(columns, j)) for j in range(len(units))], axis=1
    )


def decoder(exchange):
    """What the receiver makes of one member's projected Jacobian."""
    if exchange == 'float16':
        # XLA's CPU backend rounds doubles to float32 on the way.
        return lambda jac: jac.astype(np.float32).astype(np.float16).astype(float)
    if exchange == 'int8':
        return lambda jac: (step := np.abs(jac).max() / 127) * np.floor(jac / step + 0.5)
    return lambda jac: jac


def run_both(network, hidden=(8,), lr=0.05, lr_decay=0.2, dimension=12, **settings):
    data, clients, graphs = network
    options = SETTINGS | settings
    if options['projection'] == 'none':
        dimension = None
    model = bind(MLP(3, hidden), (5,))
    algorithm = spark(
        model,
        lr=lr,
        lr_decay=lr_decay,
        timesteps=TIMESTEPS,
        evolution='euler',
        projection_dim=dimension,
        projection_seed=7,
        **options,
    )
    random = projection(options['projection'], model.shapes, dimension)
    state = algorithm.init(jax.random.key(0), clients)
    widen = lambda leaf: leaf.astype(jnp.float64)  # noqa: E731
    state = state._replace(
        params=jax.tree.map(widen, state.params), velocity=jax.tree.map(widen, state.velocity)
    )
    members = range(len(data))
    params = [as_reference(state.params, i) for i in members]
    velocity = [as_reference(state.velocity, i) for i in members]
    step = jax.jit(algorithm.step)
    for r in range(len(graphs.active)):
        graph = jax.tree.map(lambda a, r=r: jnp.asarray(a[r]), graphs)
        key = jax.random.key(r)
        state, info = step(key, state, graph, clients)
        neighbours = [
            [int(j) for j, on in zip(m[1:], linked[1:], strict=True) if on]
            for m, linked in zip(graphs.members[r], graphs.mask[r], strict=True)
        ]
        seed = jax.random.key(7)
        if options['projection_refresh'] != 'never':
            seed = jax.random.fold_in(seed, r)
        seeds = [
            jax.random.fold_in(seed, i) if options['projection_refresh'] == 'hub' else seed
            for i in members
        ]
        alpha, tau = reference.annealed(
            r + 1,
            rounds=options['rounds'],
            warmup=options['warmup'],
            alpha=(options['alpha_init'], options['alpha_final']),
            temperature=(options['tau_init'], options['tau_final']),
        )
        drawn = as_indices(jax.random.split(key)[0], clients, 1, Fraction(str(options['sampling'])))
        params, velocity, chosen, losses = reference.spark_round(
            params,
            velocity,
            data,
            neighbours,
            [as_matrix(random, seed) for seed in seeds],
            alpha=alpha,
            tau=tau,
            rows=[rows for (rows,) in drawn],
            decode=decoder(options['exchange']),
            form=options['kernel_form'],
            exact_step=options['step_form'] == 'exact',
            lr=lr * np.exp(-lr_decay * r),
            timesteps=TIMESTEPS,
            **{
                name: options[name]
                for name in (
                    'momentum',
                    'averaging',
                    'average_velocity',
                    'jacobian_weights',
                    'logits',
                    'judge',
                    'selection',
                )
            },
        )
    return state, info, params, velocity, chosen, losses


@pytest.mark.parametrize(
    'settings',
    [
        {},
        {'projection': 'gaussian'},
        {'projection': 'khatri_rao', 'hidden': (6, 4)},
        {'projection': 'low_rank'},
        {'projection': 'low_rank', 'kernel_form': 'trace', 'jacobian_weights': 'own'},
        {'projection': 'hadamard'},
        {'projection': 'none'},
        {'projection': 'none', 'kernel_form': 'trace'},
        {'kernel_form': 'trace'},
        {'projection_refresh': 'round'},
        {'projection_refresh': 'hub'},
        {'logits': 'hub', 'judge': 'target'},
        {'average_velocity': True, 'selection': 'linearized'},
        {'jacobian_weights': 'own', 'averaging': False},
        {'step_form': 'exact'},
        {'step_form': 'exact', 'jacobian_weights': 'own', 'kernel_form': 'trace'},
        {'jacobian_weights': 'own', 'projection': 'gaussian', 'logits': 'hub'},
        {'jacobian_weights': 'own', 'projection': 'none', 'kernel_form': 'trace'},
        {'sampling': 0.45},
        {'exchange': 'float16', 'momentum': 0.5},
        {'exchange': 'float16', 'projection': 'gaussian'},
        {'exchange': 'int8', 'sampling': 0.6},
    ],
    ids=str,
)
def test_three_rounds_equal_the_reference(network, settings):
    state, info, params, velocity, chosen, losses = run_both(network, **settings)
    for i, expected in enumerate(params):
        for ours, theirs in ((state.params, expected), (state.velocity, velocity[i])):
            ours, theirs = reference.flatten(as_reference(ours, i)), reference.flatten(theirs)
            assert np.linalg.norm(ours - theirs) <= 1e-10 * np.linalg.norm(theirs)
    np.testing.assert_array_equal(info['timestep'], chosen)
    np.testing.assert_allclose(info['loss'], losses, rtol=1e-10)
