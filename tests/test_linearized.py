"""A network linearized on projected Jacobians, against explicit matrices in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from jax.flatten_util import ravel_pytree

from dfl_jax.exchange.compression import half_precision
from dfl_jax.models import MLP, bind
from dfl_jax.ntk import evolve
from dfl_jax.ntk.linearized import projected
from dfl_jax.ntk.projection import PROJECTIONS, projection

CLASSES, SAMPLES = 3, 6
TIMESTEPS = (10, 100, 400)
MASK = np.arange(SAMPLES) != 2  # in the evolution one of them is padding
LR = 0.1
EVOLVED = ('none', 'low_rank', 'gaussian')  # without P, by its factors, by a matrix J~
TARGETS = np.eye(CLASSES)[np.arange(SAMPLES) % CLASSES].T  # [C, N]
TOTALS = np.random.default_rng(7).normal(size=(2, CLASSES, SAMPLES))


class Mixed(nn.Module):
    """A convolution, a layer norm, dense layers with and without a bias, and weights of its own,
    the first and the last of all by name.
    """

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Conv(2, (2, 2))(x))
        x = nn.LayerNorm()(x).reshape(len(x), -1)
        x = nn.Dense(CLASSES)(nn.Dense(4, use_bias=False)(x))
        scale = self.param('A', nn.initializers.ones, ())
        shift = self.param('z', nn.initializers.normal(), (CLASSES,))
        return scale * x + shift[None, :]


NETWORKS = {'mlp': bind(MLP(CLASSES, (5,)), (4,)), 'mixed': bind(Mixed(), (3, 3, 1))}


@functools.cache
def setting(network):
    """Weights away from zero biases, flat, how they become a tree, and inputs; in float64."""
    model, rng = NETWORKS[network], np.random.default_rng(0)
    flat, unravel = ravel_pytree(
        jax.tree.map(lambda s: rng.normal(size=s.shape) / np.sqrt(s.size), model.shapes)
    )
    return flat, unravel, rng.normal(size=(SAMPLES, *model.input_shape))


@functools.cache
def jacobian(network):
    """J [C, N, P]."""
    flat, unravel, x = setting(network)
    apply = NETWORKS[network].apply
    return np.asarray(jax.jit(jax.jacrev(lambda flat: apply(unravel(flat), x).T))(flat))


@functools.cache
def compiled(kind, network, **options):
    """x [N, ...], S [B, C, N] -> P, f0, K S, the steps of S, and the evolution by each method."""
    model = NETWORKS[network]
    random = projection(kind, model.shapes, None if kind == 'none' else 12)
    linearize = projected(model, random, **options)
    flat, unravel, _ = setting(network)

    @jax.jit
    def run(x, totals):
        table = random.draw(jax.random.key(5))
        mask, padded = jnp.ones(len(x), bool), jnp.asarray(MASK)
        linearized = linearize(jax.random.key(6), table, unravel(flat), x, mask, len(x))
        if not callable(linearized.kernel):
            return linearized.kernel, jax.vmap(lambda s: ravel_pytree(linearized.vjp(s))[0])(totals)
        columns = jax.vmap(lambda u: ravel_pytree(random.lift(table, u))[0])
        follow = functools.partial(
            evolve, linearized.kernel, linearized.outputs, TARGETS, padded, LR
        )
        methods = ('euler', 'rkc') if network == 'mlp' and kind in EVOLVED else ()
        return {
            'p': columns(jnp.eye(random.dimension)).T,
            'outputs': linearized.outputs,
            'images': jax.vmap(linearized.kernel)(totals),
            'steps': jax.vmap(lambda s: ravel_pytree(linearized.vjp(s))[0])(totals),
            **{method: follow(timesteps=TIMESTEPS, method=method) for method in methods},
        }

    return run


def found(kind, network='mlp', x=None, **options):
    x = setting(network)[2] if x is None else x
    return jax.device_get(compiled(kind, network, **options)(x, TOTALS))


def assert_near(ours, theirs):
    assert ours.shape == theirs.shape and ours.dtype == np.float64
    assert np.linalg.norm(ours - theirs) <= 1e-11 * np.linalg.norm(theirs)


@pytest.mark.parametrize(
    ('kind', 'network'),
    [(kind, 'mlp') for kind in PROJECTIONS]
    + [('low_rank', 'mixed')]
    + [pytest.param(k, 'mixed', marks=pytest.mark.slow) for k in ('sparse_sign',)],
)
def test_kernel_and_steps_equal_explicit_matrices(kind, network, x64):
    ours, jac = found(kind, network), jacobian(network)
    assert jac.shape[2] == NETWORKS[network].size
    small = jac @ ours['p']  # J~ [C, N, k]
    assert np.linalg.matrix_rank(small.reshape(-1, small.shape[2])) >= 10
    back = np.einsum('csk,bcs->bk', small, TOTALS)
    assert_near(ours['images'], np.einsum('csk,bk->bcs', small, back))  # J P P^T J^T S
    assert_near(ours['steps'], back @ ours['p'].T)  # P J~^T S
    flat, unravel, x = setting(network)
    assert_near(ours['outputs'], np.asarray(NETWORKS[network].apply(unravel(flat), x)).T)


@pytest.mark.parametrize('kind', ['gaussian', 'low_rank'])
def test_the_trace_and_the_exact_step_equal_explicit_matrices(kind, x64):
    small = jacobian('mlp') @ found(kind)['p']
    kernel, steps = found(kind, form='trace', step='exact')
    assert_near(kernel, np.einsum('csk,ctk->st', small, small) / CLASSES)
    assert_near(steps, np.einsum('csp,bcs->bp', jacobian('mlp'), TOTALS))


def explicit_evolution(small, f0):
    """Eq. (14) of SPARK one step at a time, its kernel (N C) x (N C) of the valid samples alone."""
    valid = np.flatnonzero(MASK)
    flat = small[:, valid].reshape(CLASSES * len(valid), -1)
    kernel = flat @ flat.T
    f, y, expected = f0[:, valid], TARGETS[:, valid], np.zeros((len(TIMESTEPS), *f0.shape))
    total = np.zeros_like(f)
    for t in range(1, max(TIMESTEPS) + 1):
        e = np.exp(f - f.max(axis=0))
        residual = e / e.sum(axis=0) - y
        total = total + residual
        f = f - LR / len(valid) * (kernel @ residual.ravel()).reshape(f.shape)
        if t in TIMESTEPS:
            expected[TIMESTEPS.index(t)][:, valid] = total
    return expected, LR / len(valid) * np.linalg.eigvalsh(kernel)[-1]


def relative_errors(actual, expected):
    return np.linalg.norm(actual - expected, axis=(1, 2)) / np.linalg.norm(expected, axis=(1, 2))


@pytest.mark.parametrize('kind', EVOLVED)
def test_the_evolution_equals_the_one_of_the_explicit_kernel(kind, x64):
    ours = found(kind)
    expected, stiffness = explicit_evolution(jacobian('mlp') @ ours['p'], ours['outputs'])
    assert 0.05 < stiffness < 0.5  # a step that Euler's method resolves
    assert relative_errors(ours['euler'], expected).max() < 1e-10
    assert relative_errors(ours['rkc'], expected).max() < 0.015


def test_padding_changes_nothing(x64):
    """A masked sample of whatever finite value, where Jacobians are formed and where not."""
    x = np.where(MASK[:, None], setting('mlp')[2], 50.0)
    for kind in ('low_rank', 'gaussian'):
        ours, dirty = found(kind), found(kind, x=x)
        assert np.abs(ours['images'] - dirty['images']).max() > 1
        for method in ('euler', 'rkc'):
            assert not ours[method][:, :, ~MASK].any() and not dirty[method][:, :, ~MASK].any()
            np.testing.assert_allclose(dirty[method], ours[method], rtol=1e-10, atol=1e-10)


# ---------------------------------------------------------------------------------------- errors


def test_eigh_needs_a_matrix():
    with pytest.raises(ValueError, match='the matrix of the kernel; use rkc, sampled or euler'):
        evolve(lambda s: s, TARGETS, TARGETS, MASK, LR, timesteps=(3,), loss='mse', method='eigh')


@pytest.mark.parametrize(
    ('kind', 'options', 'message'),
    [
        ('sparse_sign', {'form': 'half'}, "unknown kernel_form 'half'; choose one of full, trace"),
        ('sparse_sign', {'step': 'long'}, "unknown step 'long'; choose one of projected, exact"),
        ('none', {'codec': half_precision()}, 'after their projection; choose a projection'),
    ],
)
def test_what_is_refused(kind, options, message):
    model = NETWORKS['mlp']
    random = projection(kind, model.shapes, None if kind == 'none' else 5)
    with pytest.raises(ValueError, match=message):
        projected(model, random, **options)
