"""What local training promises of steps, batches, orders and padding; its arithmetic is compared
with the reference in test_gossip_sgd.py.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference
from helpers import as_reference

from dfl_jax import Clients
from dfl_jax.models import MLP, bind
from dfl_jax.training.batches import Batch, epoch_orders
from dfl_jax.training.local import batch_loss, local_training
from dfl_jax.training.local_settings import LocalTraining

SIZES = (4, 7, 1, 6, 3)
CLIENTS, N, FEATURES, CLASSES = len(SIZES), max(SIZES), 4, 3
MASK = np.arange(N) < np.array(SIZES)[:, None]
MODEL = bind(MLP(CLASSES, (5,)), (FEATURES,))
EVERYTHING = {
    'lr': 0.1,
    'batch_size': 3,
    'local_epochs': 2,
    'momentum': 0.5,
    'weight_decay': 0.1,
    'clip_norm': 1.0,
    'sam_radius': 0.1,
}


def labels():
    return np.random.default_rng(1).integers(CLASSES, size=(CLIENTS, N)).astype(np.int32)


def network(garbage=False) -> Clients:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(CLIENTS, N, FEATURES)).astype(np.float32), labels()
    x[~MASK], y[~MASK] = 0, 0
    if garbage:
        x[~MASK] = rng.choice([np.nan, np.inf, -np.inf, 1e30], x[~MASK].shape)
        y[~MASK] = rng.choice([-7, CLASSES, 2**30], y[~MASK].shape)
    return Clients(jnp.asarray(x), jnp.asarray(y), jnp.asarray(MASK))


def weights(model):
    return jax.vmap(model.init)(jax.random.split(jax.random.key(7), CLIENTS))


@functools.cache
def compiled(training, chunk=None):
    """The program of MODEL for all tests of these settings."""
    return jax.jit(local_training(MODEL, training, chunk))


def trained(
    settings, clients=None, model=MODEL, params=None, round=0, support=None, chunk=None, linear=None
):
    """(params, losses) on the host."""
    training = LocalTraining(**settings)
    other = model is not MODEL
    train = jax.jit(local_training(model, training, chunk)) if other else compiled(training, chunk)
    params = weights(model) if params is None else params
    clients = network() if clients is None else clients
    arguments = jax.random.key(5), params, clients, jnp.int32(round), support, linear
    return jax.device_get(train(*arguments))


# ----------------------------------------------------------------------------- steps and batches


@pytest.mark.parametrize(
    ('settings', 'expected'),
    [
        ({'batch_size': 3, 'local_epochs': 1}, [2, 3, 1, 2, 1]),
        ({'batch_size': 3, 'local_epochs': 4}, [8, 12, 4, 8, 4]),
        ({'batch_size': 1, 'local_epochs': 2}, [8, 14, 2, 12, 6]),
        ({'batch_size': N, 'local_epochs': 2}, [2] * 5),
        ({'batch_size': 1000, 'local_epochs': 3}, [3] * 5),
        ({'batch_size': 3, 'local_epochs': None, 'local_steps': 1}, [1] * 5),
        ({'batch_size': 3, 'local_epochs': None, 'local_steps': 11}, [11] * 5),
    ],
    ids=str,
)
def test_the_number_of_steps_of_unequal_clients(settings, expected):
    """Inputs of zero leave the weights to the decay alone, which halves them at every step."""
    model = bind(MLP(CLASSES, ()), (FEATURES,))
    clients = network()._replace(x=jnp.zeros((CLIENTS, N, FEATURES)))
    before = weights(model)
    after, _ = trained({'lr': 0.5, 'weight_decay': 1.0} | settings, clients, model, before)
    halved = np.asarray(before['Dense_0']['kernel']) / after['Dense_0']['kernel']
    steps = np.broadcast_to(np.array(expected)[:, None, None], halved.shape)
    np.testing.assert_array_equal(np.log2(halved), steps)


@pytest.mark.parametrize(
    'settings',
    [
        {'batch_size': 3, 'local_epochs': 1},
        {'batch_size': 2, 'local_epochs': 3},
        {'batch_size': 1000, 'local_epochs': 2},
        {'batch_size': 3, 'local_epochs': None, 'local_steps': 1},
        {'batch_size': 3, 'local_epochs': None, 'local_steps': 2},
        {'batch_size': 2, 'local_epochs': None, 'local_steps': 9},
    ],
    ids=str,
)
def test_each_batch_is_the_next_piece_of_a_shuffled_epoch(x64, settings):
    """A linear model of one-hot inputs without bias: row n moves only when sample n is seen."""
    model, lr, y = bind(MLP(CLASSES, ()), (N,)), 0.5, labels()
    one_hot = jnp.asarray(np.broadcast_to(np.eye(N), (CLIENTS, N, N)))
    clients = Clients(one_hot, jnp.asarray(y), jnp.asarray(MASK))
    start = {'Dense_0': {'kernel': np.zeros((N, CLASSES)), 'bias': np.zeros(CLASSES)}}
    start = jax.tree.map(lambda w: jnp.zeros((CLIENTS, *w.shape)), start)
    support = {'Dense_0': {'kernel': jnp.ones_like, 'bias': jnp.zeros_like}}
    support = jax.tree.map(lambda of, w: of(w), support, start)
    after, losses = trained({'lr': lr} | settings, clients, model, start, support=support)

    size, steps = settings['batch_size'], settings.get('local_steps')
    for i, k in enumerate(jax.random.split(jax.random.key(5), CLIENTS)):
        orders = epoch_orders(k, jnp.asarray(MASK[i]), settings['local_epochs'] or steps)
        pieces = [
            order[first : min(first + size, SIZES[i])]
            for order in np.asarray(orders)
            for first in range(0, SIZES[i], size)
        ]
        kernel, seen, total = np.zeros((N, CLASSES)), np.zeros(N, int), 0.0
        for piece in pieces[:steps]:
            p = np.exp(kernel[piece]) / np.exp(kernel[piece]).sum(axis=1, keepdims=True)
            total += np.mean(-np.log(p[np.arange(len(piece)), y[i, piece]]))
            kernel[piece] -= lr / len(piece) * (p - np.eye(CLASSES)[y[i, piece]])
            seen[piece] += 1
        np.testing.assert_allclose(after['Dense_0']['kernel'][i], kernel, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(losses[i], total / len(pieces[:steps]), rtol=1e-12)
        assert np.ptp(seen[: SIZES[i]]) <= 1 and not seen[SIZES[i] :].any()
        if steps is None:
            assert (seen[: SIZES[i]] == settings['local_epochs']).all()


def test_an_epoch_is_a_fresh_permutation_of_the_samples():
    epochs, mask = 50, jnp.asarray(np.arange(12) % 3 != 1)  # padding need not come last
    keys = jax.random.split(jax.random.key(0), 20)
    orders = np.asarray(jax.vmap(lambda k: epoch_orders(k, mask, epochs))(keys))
    assert orders.shape == (20, epochs, 12) and orders.dtype == np.int32
    valid = np.flatnonzero(mask)
    assert (np.sort(orders[..., :8], axis=2) == valid).all()
    assert (np.sort(orders[..., 8:], axis=2) == np.flatnonzero(~mask)).all()
    assert len(np.unique(orders[..., :8].reshape(-1, 8), axis=0)) > 0.95 * 1000  # of 8! = 40,320
    first = np.array([(orders[..., 0] == v).sum() for v in valid])
    assert (abs(first - 125) < 5 * np.sqrt(125 * 7 / 8)).all()  # every sample as often as any


def test_one_step_with_a_large_batch_is_one_of_the_full_gradient(x64):
    clients = network()
    clients = clients._replace(x=clients.x.astype(jnp.float64))
    params = jax.tree.map(lambda w: w.astype(jnp.float64), weights(MODEL))
    after, losses = trained({'lr': 0.1, 'batch_size': 10**6}, clients, params=params)

    for i, n in enumerate(SIZES):
        mine, ours = as_reference(params, i), as_reference(after, i)
        y = np.eye(CLASSES)[clients.y[i, :n]]
        value, gradient = reference.loss_and_gradient(mine, np.asarray(clients.x[i, :n]), y)
        expected = reference.flatten(mine) - 0.1 * gradient
        np.testing.assert_allclose(reference.flatten(ours), expected, rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(losses[i], value, rtol=1e-10)


# ------------------------------------------------------------------------------------ optimisers


@pytest.mark.parametrize(
    ('settings', 'optimiser'),
    [
        (
            {'optimizer': 'adam', 'optimizer_options': 'b1=0.5,eps=0.01'},
            optax.adam(0.1, 0.5, eps=0.01),
        ),
        ({'optimizer': lambda lr: optax.rmsprop(lr, 0.8)}, optax.rmsprop(0.1, 0.8)),
        ({'optimizer_options': 'momentum=0.5,nesterov=true'}, optax.sgd(0.1, 0.5, nesterov=True)),
        ({'optimizer': 'lion', 'weight_decay': 0.1}, optax.lion(0.1, weight_decay=0.1)),
    ],
)
def test_optimisers_of_optax(settings, optimiser):
    """Three steps on all samples of a client are those of optax by itself."""
    clients, before = network(), jax.tree.map(lambda w: w[0], weights(MODEL))
    found, _ = trained(
        {'lr': 0.1, 'batch_size': 100, 'local_steps': 3, 'local_epochs': None} | settings
    )
    batch = Batch(clients.x[0], clients.y[0], clients.mask[0].astype(jnp.float32))
    state, w = optimiser.init(before), before
    for _ in range(3):
        gradient = jax.grad(lambda w: batch_loss(MODEL, w, batch))(w)
        update, state = optimiser.update(gradient, state, w)
        w = optax.apply_updates(w, update)
    assert_close(jax.tree.map(lambda a: a[0], found), w)


# ----------------------------------------------------------------------- support, chunks, padding


@pytest.mark.parametrize(
    ('schedule', 'factors'),
    [
        ('', [1, 1, 1]),
        ('cosine:40', [1, 0.5, 0]),
        ('step:20-40:0.1', [1, 0.1, 0.01]),
        ('warmup:4', [0.25, 1, 1]),
        ('warmup:4,cosine:40', [0.25, 0.5, 0]),
        (lambda k: 1 / (1 + k), [1, 1 / 21, 1 / 41]),
    ],
)
def test_schedules_of_the_learning_rate(schedule, factors):
    """One step in rounds 0, 20 and 40 moves by the factor times the step at the plain rate."""
    one_step = {'lr': 0.1, 'batch_size': 100, 'local_steps': 1, 'local_epochs': None}
    before = weights(MODEL)
    for k, factor in zip((0, 20, 40), factors, strict=True):
        plain, _ = trained(one_step, round=k)
        found, _ = trained(one_step | {'lr_schedule': schedule}, round=k)
        for w, x, z in zip(*map(jax.tree.leaves, (before, plain, found)), strict=True):
            np.testing.assert_allclose(z - w, factor * (x - w), rtol=2e-4, atol=1e-7)


@pytest.mark.parametrize(
    'settings',
    [EVERYTHING, {'lr': 0.1, 'batch_size': 3, 'optimizer': 'adamw', 'weight_decay': 0.1}],
)
def test_weights_off_the_support_stay_as_they_are(settings):
    before = jax.device_get(weights(MODEL))
    rng = np.random.default_rng(2)
    support = jax.tree.map(lambda w: (rng.random(w.shape) < 0.5).astype(w.dtype), before)
    after, _ = trained(settings, params=before, support=support)
    w, z, on = (
        np.concatenate([a.ravel() for a in jax.tree.leaves(t)]) for t in (before, after, support)
    )
    assert (z[on == 0] == w[on == 0]).all()
    assert np.mean(z[on == 1] != w[on == 1]) > 0.9
    full = jax.tree.map(np.ones_like, before)
    free, unsupported = trained(settings, support=full), trained(settings)
    assert_close(free, unsupported)


# ------------------------------------------- what is trained, pulled, held back and looked ahead at

CLIPPED = {'clip_norm': 0.2}
SHARP = {'sam_radius': 0.3}
PULLED = {'proximal': 0.7}


@pytest.mark.parametrize(
    ('settings', 'frozen', 'linear'),
    [
        (SHARP | PULLED, '', False),
        (SHARP, '', True),
        (SHARP | PULLED | {'sam_adaptive': True, 'clip_norm': 0.5, 'momentum': 0.5}, '', True),
        (SHARP | {'loss_cap': 1.2}, '', True),
        (SHARP | PULLED | {'weight_decay': 0.1}, '', True),
        (CLIPPED, 'half', False),
        (CLIPPED | {'weight_decay': 0.3, 'momentum': 0.5}, 'Dense_0', False),
        (SHARP, 'Dense_1', False),
        (SHARP | {'sam_adaptive': True}, 'half', False),
        (SHARP | CLIPPED | PULLED | {'loss_cap': 1.2}, 'half', True),
        (CLIPPED | {'optimizer': 'adamw', 'weight_decay': 0.1}, 'half', True),
    ],
    ids=str,
)
def test_training_is_the_reference(x64, settings, frozen, linear):
    """SAM looks at the loss alone, clipping and SAM at what is trained alone, in float64."""
    clients = network()
    clients = clients._replace(x=clients.x.astype(jnp.float64))
    before = jax.tree.map(lambda w: w.astype(jnp.float64), weights(MODEL))
    rng = np.random.default_rng(2)

    def trained_share(path, w):
        share = rng.random(w.shape) < 0.5 if frozen == 'half' else path[0].key != frozen
        return np.broadcast_to(share, w.shape).astype(w.dtype)

    support = jax.tree_util.tree_map_with_path(trained_share, before)
    dual = jax.tree.map(lambda w: 0.2 * rng.normal(size=w.shape), before)
    length = {'lr': 0.5, 'batch_size': 10**6, 'local_epochs': None, 'local_steps': 4}
    after, losses = trained(
        length | settings,
        clients,
        params=before,
        support=support if frozen else None,
        linear=dual if linear else None,
    )
    moved = 0
    for i, n in enumerate(SIZES):
        mine, ours = as_reference(before, i), reference.flatten(as_reference(after, i))
        expected, loss = reference.local_training(
            mine,
            np.asarray(clients.x[i, :n]),
            np.eye(CLASSES)[clients.y[i, :n]],
            [np.arange(n)] * 4,
            lr=0.5,
            support=reference.flatten(as_reference(support, i)) if frozen else 1.0,
            linear=reference.flatten(as_reference(dual, i)) if linear else 0.0,
            **settings,
        )
        np.testing.assert_allclose(ours, expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(losses[i], loss, rtol=1e-9)
        moved += np.linalg.norm(ours - reference.flatten(mine)) > 0.05
    assert moved


def test_what_is_not_a_number_in_a_frozen_weight_reaches_no_other():
    """A gradient that overflows where nothing is trained neither clips nor bends the rest."""

    def apply(params, x, key=None):
        frozen = jnp.where(params['frozen'] == 0, jnp.sqrt(params['frozen']).sum(), 0)
        first = x.sum(axis=1) * params['w'].sum() + frozen.sum()
        return jnp.stack([first, jnp.zeros_like(first)], axis=1)

    shapes = {name: jax.ShapeDtypeStruct((3,), jnp.float32) for name in ('w', 'frozen')}
    model = MODEL._replace(module=None, apply=apply, classes=2, shapes=shapes)
    before = {name: jnp.zeros((CLIENTS, 3)) for name in shapes}
    support = {'w': jnp.ones((CLIENTS, 1)), 'frozen': jnp.zeros((CLIENTS, 1))}
    clients = network()._replace(y=jnp.zeros((CLIENTS, N), jnp.int32))
    for settings in (CLIPPED, SHARP, {'momentum': 0.9}):
        one = {'lr': 0.1, 'batch_size': 3, **settings}
        after, _ = trained(one, clients, model, before, support=support)
        assert np.isfinite(after['w']).all() and after['w'].any()
        assert (after['frozen'] == 0).all()


@pytest.mark.slow
def test_clients_trained_at_once_change_nothing():
    whole = trained(EVERYTHING)
    for chunk in (1, 2, 1000):  # 2 leaves a remainder
        assert_close(trained(EVERYTHING, chunk=chunk), whole)


def assert_close(first, second):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), first, second)


@pytest.mark.parametrize('batch_size', [2, 3, 1000])
@pytest.mark.parametrize(
    'length', [{'local_epochs': 2}, {'local_epochs': None, 'local_steps': 5}], ids=str
)
def test_garbage_in_the_padding_changes_nothing(batch_size, length):
    settings = EVERYTHING | {'batch_size': batch_size} | length
    clean, dirty = trained(settings), trained(settings, network(garbage=True))
    jax.tree.map(np.testing.assert_array_equal, clean, dirty)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(dirty))


def test_the_state_of_the_optimiser_starts_afresh():
    """Two rounds of one step are two steps of plain SGD, whatever the momentum."""
    settings = {'lr': 0.1, 'batch_size': 1000, 'local_epochs': 1}
    plain, _ = trained(settings, params=trained(settings)[0])
    heavy = settings | {'momentum': 0.9}
    twice, _ = trained(heavy, params=trained(heavy)[0])
    jax.tree.map(np.testing.assert_array_equal, twice, plain)
    together, _ = trained(heavy | {'local_epochs': 2})
    assert not np.allclose(together['Dense_0']['kernel'], twice['Dense_0']['kernel'], rtol=1e-3)


# ------------------------------------------------------------------------------------------ rounds


def test_rounds_share_one_trace_and_differ_in_rate_and_order():
    traces = []
    train = local_training(MODEL, LocalTraining(lr=0.1, lr_decay=0.5, batch_size=3))

    @jax.jit
    def counted(key, params, round):
        traces.append(1)
        return train(key, params, network(), round)[0]

    start = weights(MODEL)
    first = counted(jax.random.key(0), start, jnp.int32(0))['Dense_1']['bias']
    other_order = counted(jax.random.key(1), start, jnp.int32(0))['Dense_1']['bias']
    later = counted(jax.random.key(0), start, jnp.int32(20))['Dense_1']['bias']
    assert len(traces) == 1
    assert not np.allclose(first, other_order)
    assert 0 < np.abs(later).max() < 1e-5 * np.abs(first).max()  # 2^-20 of the rate


# ----------------------------------------------------------------------------------------- refusal


@pytest.mark.parametrize(
    ('settings', 'pattern'),
    [
        ({'batch_size': 0}, 'batch_size .* got 0'),
        ({'batch_size': -3}, 'batch_size .* got -3'),
        ({'local_epochs': 0}, 'local_epochs .* got 0'),
        ({'local_epochs': None, 'local_steps': 0}, 'local_steps .* got 0'),
        ({'local_epochs': 2, 'local_steps': 3}, 'local_epochs=2 and local_steps=3'),
        ({'local_epochs': None}, 'local_epochs=None and local_steps=None'),
        ({'momentum': 1.0}, r'momentum .* got 1\.0'),
        ({'momentum': -0.1}, r'momentum .* got -0\.1'),
        ({'momentum': float('nan')}, 'momentum .* got nan'),
        ({'lr': 0.0}, r'lr .* got 0\.0'),
        ({'lr': -0.5}, r'lr .* got -0\.5'),
        ({'lr': float('nan')}, 'lr .* got nan'),
        ({'lr_decay': 0.0}, r'lr_decay .* got 0\.0'),
        ({'lr_decay': 1.5}, r'lr_decay .* got 1\.5'),
        ({'weight_decay': -1.0}, r'weight_decay .* got -1\.0'),
        ({'clip_norm': 0.0}, r'clip_norm .* got 0\.0'),
        ({'sam_radius': -1.0}, r'sam_radius .* got -1\.0'),
        ({'sam_adaptive': True}, 'sam_adaptive .* sam_radius is 0'),
        ({'optimizer': 'adamw', 'momentum': 0.9}, r'momentum=0\.9 .* not adamw'),
        ({'optimizer': 'lyon'}, "no optimizer 'lyon'"),
        ({'optimizer': 'chain'}, "no optimizer 'chain'"),
        ({'optimizer': 'noisy_sgd'}, 'draws noise of its own, the same for every client'),
        ({'optimizer': 'lbfgs'}, "'lbfgs' needs more than gradient, state and weights"),
        ({'optimizer': 'adam', 'optimizer_options': 'b3=0.9'}, 'no b3 there; it takes b1, b2'),
        ({'optimizer_options': 'nesterov'}, "'nesterov' is no NAME=NUMBER"),
        ({'lr_schedule': 'linear:10'}, "lr_schedule: 'linear:10' is no schedule; write cosine"),
        ({'lr_schedule': 'cosine:0'}, "'cosine:0' is no schedule"),
        ({'lr_schedule': 'warmup:5,step:30'}, "'step:30' is no schedule"),
        ({'supervision': 'mse'}, "unknown supervision 'mse'; choose one of ce, ace, wsm"),
        ({'augmentation': 'mixup'}, "unknown augmentation 'mixup'; choose one of none, standard"),
        ({'proximal': -0.5}, r'proximal has to be at least 0, got -0\.5'),
        ({'proximal': float('nan')}, 'proximal has to be at least 0, got nan'),
    ],
    ids=str,
)
def test_what_is_refused(settings, pattern):
    with pytest.raises(ValueError, match=pattern):
        LocalTraining(**{'lr': 0.1, 'batch_size': 4} | settings)


@pytest.mark.parametrize(
    'settings',
    [
        {'supervision': 'ce'},
        {'supervision': 'ace'},
        {'supervision': 'wsm'},
        {'augmentation': 'none'},
        {'augmentation': 'standard'},
        {'proximal': 0.0},
        {'proximal': 2.0},
    ],
    ids=str,
)
def test_what_is_accepted(settings):
    accepted = LocalTraining(lr=0.1, batch_size=4, **settings)
    assert all(getattr(accepted, name) == value for name, value in settings.items())


# --------------------------------------------------------------------- keys of successive steps


def changes(model, x, **settings):
    """What each of three steps adds to the weights of one client."""
    clients = Clients(x[None], jnp.zeros((1, len(x)), jnp.int32), jnp.ones((1, len(x)), bool))
    found = [{'w': jnp.zeros((1, *model.shapes['w'].shape))}]
    for steps in (1, 2, 3):
        training = LocalTraining(lr=1.0, batch_size=64, local_epochs=None, local_steps=steps)
        training = training.replace(**settings)
        train = jax.jit(local_training(model, training))
        found.append(train(jax.random.key(0), found[0], clients, jnp.int32(0))[0])
    return [np.asarray(b['w'] - a['w'])[0] for a, b in itertools.pairwise(found)]


def test_every_step_draws_its_own_dropout():
    """The gradient of a step is of the units that its key leaves."""

    def apply(params, x, key=None):
        kept = jax.random.bernoulli(key, 0.5, (50,)).astype(jnp.float32)
        first = jnp.sum(params['w'] * kept) + 0 * x.sum(axis=1)
        return jnp.stack([first, jnp.zeros_like(first)], axis=1)

    shapes = {'w': jax.ShapeDtypeStruct((50,), jnp.float32)}
    model = MODEL._replace(module=None, apply=apply, classes=2, shapes=shapes)
    units = [change != 0 for change in changes(model, jnp.ones((3, 4)))]
    assert all(10 < kept.sum() < 40 for kept in units)
    assert (units[0] != units[1]).any() and (units[1] != units[2]).any()


def test_every_step_draws_its_own_crops():
    """The gradient of an image with one bright pixel lies where the crop has put it."""

    def apply(params, x, key=None):
        first = x.reshape(len(x), -1) @ params['w']
        return jnp.stack([first, jnp.zeros_like(first)], axis=1)

    shapes = {'w': jax.ShapeDtypeStruct((81,), jnp.float32)}
    model = MODEL._replace(
        module=None, apply=apply, classes=2, shapes=shapes, input_shape=(9, 9, 1)
    )
    image = jnp.zeros((1, 9, 9, 1)).at[0, 4, 4, 0].set(1.0)
    places = [np.flatnonzero(change) for change in changes(model, image, augmentation='standard')]
    assert all(len(place) == 1 for place in places)
    assert len({int(place[0]) for place in places}) == 3


def test_crops_and_flips_are_of_images():
    with pytest.raises(ValueError, match=r'augmentation=standard is for images \[h, w, c\]'):
        local_training(MODEL, LocalTraining(lr=0.1, batch_size=4, augmentation='standard'), None)
