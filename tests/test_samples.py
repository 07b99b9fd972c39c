"""Local training whose first kernel is a combination of samples, against training the kernel."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dfl_jax import Clients
from dfl_jax.execution import counted_flops
from dfl_jax.execution.flops import flops_of
from dfl_jax.models import MLP, Linear, SmallCNN, bind
from dfl_jax.training import LocalTraining, local_training
from dfl_jax.training.sample_span import first_kernel, sample_form, saves_flops

SIZES = (6, 9, 1)
N, SHAPE, CLASSES = max(SIZES), (5, 8, 1), 3
MLP_MODEL = bind(MLP(CLASSES, (7, 5)), SHAPE)
SETTINGS = LocalTraining(lr=0.2, batch_size=4, local_epochs=12)


def network():
    """Three clients of different sizes, padding filled with garbage."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(len(SIZES), N, *SHAPE))
    y = rng.integers(CLASSES, size=(len(SIZES), N)).astype(np.int32)
    mask = np.arange(N) < np.array(SIZES)[:, None]
    x[~mask], y[~mask] = np.nan, 2**30
    return Clients(jnp.asarray(x), jnp.asarray(y), jnp.asarray(mask))


def start_of(model):
    weights = jax.vmap(model.init)(jax.random.split(jax.random.key(7), len(SIZES)))
    return jax.tree.map(lambda leaf: leaf.astype(float) + 0.1, weights)  # biases that are not zero


def trained(model, settings, support=None, chunk=None):
    train = jax.jit(local_training(model, settings, chunk))
    return train(jax.random.key(5), start_of(model), network(), jnp.int32(3), support)


def combines_samples(model, settings, support=None):
    """Whether a Gram matrix of the samples is part of the program."""
    arguments = jax.random.key(5), start_of(model), network(), jnp.int32(3), support
    return f'[{N},{N}]' in str(jax.make_jaxpr(local_training(model, settings))(*arguments))


@pytest.mark.parametrize('model', [MLP_MODEL, bind(Linear(CLASSES), SHAPE)], ids=['mlp', 'linear'])
@pytest.mark.parametrize(
    'settings',
    [
        {},
        {'momentum': 0.9, 'weight_decay': 0.1, 'lr_decay': 0.9},
        {'momentum': 0.5, 'optimizer_options': 'nesterov=true', 'supervision': 'wsm'},
        {'local_steps': 20, 'loss_cap': 1.2},
    ],
    ids=str,
)
def test_weights_and_losses_are_those_of_training_the_kernel(x64, model, settings):
    settings = SETTINGS.replace(**settings)
    ones = jax.tree.map(jnp.ones_like, start_of(model))  # a support of all weights trains them
    assert combines_samples(model, settings) and not combines_samples(model, settings, ones)
    combined, directly = (trained(model, settings, support) for support in (None, ones))
    for one, other in zip(*map(jax.tree.leaves, (combined, directly)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


def test_clients_trained_at_once_change_nothing(x64):
    together, alone = (trained(MLP_MODEL, SETTINGS, chunk=chunk) for chunk in (3, 1))
    for one, other in zip(*map(jax.tree.leaves, (together, alone)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(
    'settings',
    [
        {'optimizer': 'adamw'},
        {'clip_norm': 1.0},
        {'sam_radius': 0.1},
        {'proximal': 0.1},
        {'augmentation': 'standard'},
        {'local_epochs': 1},
    ],
    ids=str,
)
def test_what_is_not_linear_or_does_not_pay_trains_the_kernel(settings):
    assert combines_samples(MLP_MODEL, SETTINGS)
    assert not combines_samples(MLP_MODEL, SETTINGS.replace(**settings))


def test_which_networks_promise_it():
    assert first_kernel(MLP_MODEL) == ('Dense_0', 'kernel')
    assert first_kernel(bind(SmallCNN(CLASSES), (12, 12, 1))) is None


def test_it_pays_where_its_program_has_fewer_operations():
    """Operations of both programs, counted, against what `saves_flops` says of them."""
    n, size = 40, 10
    model = bind(MLP(2, (20,)), (300,))
    path = first_kernel(model)
    x, mask, w = jnp.ones((n, 300)), jnp.ones(n, bool), model.init(jax.random.key(0))
    rows = jnp.arange(n).reshape(-1, size)

    def combined(w, x, rows):
        form = sample_form(model, path, w, x, mask)
        valid = jnp.ones(size, bool)

        def step(rows):
            return form.value_and_grad(form.start, rows, valid, lambda f: (f**2).sum(), None)[1]

        return step(rows[0]), step(rows[1]), form.weights(form.start)

    def directly(w, batch):
        return jax.grad(lambda w: (model.apply(w, batch) ** 2).sum())(w)

    count = counted_flops(combined, w, x, rows)
    first = count((True, False, True))
    step = count(True) - first
    of_kernel = flops_of(directly, w, x[:size])
    for epochs in range(1, 6):
        steps = epochs * n // size
        fewer = first + (steps - 1) * step < steps * of_kernel
        assert fewer == saves_flops(model, path, n, epochs * n)
