"""One update of an aggregator: which timestep it keeps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dfl_jax.models import MLP, bind
from dfl_jax.ntk import NtkUpdate, ntk_update
from dfl_jax.ntk.linearized import Linearization, linearization

SAMPLES, CLASSES = 4, 3
TIMESTEPS = (1, 2, 5)


def update(losses, **settings):
    """The update where the network at the t-th of TIMESTEPS has the t-th of these losses."""
    y = jnp.eye(CLASSES)[jnp.arange(SAMPLES) % CLASSES].T
    steps = []  # what J^T S_t is at each timestep, by which the network knows where it is

    def vjp(total):
        return {'w': jnp.sum(jnp.abs(total))[None]}

    def apply(w, x, key=None):
        moved = -w['w'][0] * SAMPLES / 0.1
        t = jnp.argmin(jnp.abs(jnp.array(steps) - moved)) if steps else 0
        logit = jnp.log(jnp.expm1(jnp.array(losses)))[t]  # softplus of it is the loss
        wrong = jnp.log(CLASSES - 1.0)
        return jnp.where(y.T > 0, -logit + wrong, 0.0)

    model = bind(MLP(CLASSES, ()), (2,))._replace(apply=apply)
    linearized = Linearization(jnp.zeros((CLASSES, SAMPLES)), jnp.eye(SAMPLES), vjp)
    options = {'lr': 0.1, 'timesteps': TIMESTEPS, 'evolution': 'euler'} | settings
    arguments = (linearized, jnp.zeros((SAMPLES, 2)), y, jnp.ones(SAMPLES, bool), jnp.float32(0.1))
    total = jnp.zeros_like(y)
    for t in range(1, max(TIMESTEPS) + 1):  # Eq. (5)
        total = total + jax.nn.softmax(-0.1 / SAMPLES * total, axis=0) - y
        if t in TIMESTEPS:
            steps.append(float(jnp.abs(total).sum()))
    _, t, loss, *_ = ntk_update(model, NtkUpdate(**options))({'w': jnp.zeros(1)}, *arguments)
    return int(t), float(loss)


@pytest.mark.parametrize(
    ('losses', 'chosen'),
    [
        ((0.5, 0.2, 0.3), 2),
        ((0.1, 0.2, 0.3), 1),
        ((np.nan, 0.2, 0.3), 2),
        ((0.5, np.nan, 0.3), 5),
        ((0.5, 0.6, np.nan), 1),
        ((np.nan, np.nan, 0.9), 5),
    ],
)
def test_the_timestep_of_the_lowest_loss_is_kept(losses, chosen):
    """One whose network overflows never is."""
    t, loss = update(losses, search='all')
    assert t == chosen
    assert loss == pytest.approx(losses[TIMESTEPS.index(chosen)], rel=1e-4)


@pytest.mark.parametrize(
    ('losses', 'chosen'),
    [
        ((0.5, 0.2, 0.3), 2),
        ((0.1, 0.2, 0.3), 1),
        ((0.5, 0.4, 0.3), 5),
        ((0.5, 0.4, np.nan), 2),
        ((0.5, np.nan, np.nan), 1),
    ],
)
def test_the_section_finds_where_the_loss_has_fallen_to(losses, chosen):
    assert update(losses)[0] == chosen


def test_the_evolved_outputs_that_choose_are_those_of_the_flow():
    """Under `sampled` they follow from the integral; the sum, larger here, moves the weights."""
    y = jnp.eye(CLASSES)[jnp.arange(SAMPLES) % CLASSES].T
    f0, kernel, rate = jnp.zeros_like(y), 120 * jnp.eye(SAMPLES), 0.1
    linearized = Linearization(f0, kernel, lambda total: {'w': total})
    settings = NtkUpdate(
        lr=rate, timesteps=(3,), loss='mse', evolution='sampled', selection='linearized'
    )
    model = bind(MLP(CLASSES, ()), (2,))
    x, mask = jnp.zeros((SAMPLES, 2)), jnp.ones(SAMPLES, bool)
    w, _, loss, *_ = ntk_update(model, settings)(
        {'w': f0}, linearized, x, y, mask, jnp.float32(rate)
    )
    decay = np.exp(-rate / y.size * 120 * np.arange(4))  # of f(u) - Y, Eq. (4)
    assert loss == pytest.approx(decay[3] ** 2 / 2 / CLASSES, abs=3e-4)  # by the sum 0.04
    np.testing.assert_allclose(w['w'], rate / SAMPLES / CLASSES * decay[:3].sum() * y, rtol=0.02)


@pytest.mark.parametrize('loss', ['cross_entropy', 'mse'])
def test_the_weights_of_a_linear_network_take_its_outputs_where_they_evolve(x64, loss):
    """It is its own linearization, and its kernel the same for every output: no approximation."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(SAMPLES, 2)))
    y = jnp.eye(CLASSES)[jnp.arange(SAMPLES) % CLASSES].T
    model = bind(MLP(CLASSES, ()), (2,))
    w = jax.tree.map(
        lambda leaf: jnp.asarray(rng.normal(size=leaf.shape)), model.init(jax.random.key(0))
    )
    linearized = linearization(model)(jax.random.key(0), w, x)

    def chosen_loss(selection):
        settings = NtkUpdate(timesteps=(9,), loss=loss, evolution='euler', selection=selection)
        mask = jnp.ones(SAMPLES, bool)
        return ntk_update(model, settings)(w, linearized, x, y, mask, jnp.asarray(0.3))[2]

    assert chosen_loss('network') == pytest.approx(float(chosen_loss('linearized')), rel=1e-12)


def test_where_no_timestep_has_a_loss_the_run_learns_of_it():
    assert np.isnan(update((np.nan,) * 3)[1])
