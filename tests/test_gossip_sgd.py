"""The gradient methods against the plain NumPy reference, in float64."""

import functools

import jax
import numpy as np
import pytest
import reference
from helpers import (
    as_reference,
    assert_close,
    assert_equals_reference,
    compiled,
    round_of,
    rounds_of,
)

from dfl_jax import Graph, topology
from dfl_jax.exchange import Codec, Compression, one_round
from dfl_jax.methods import make
from dfl_jax.models import MLP, bind
from dfl_jax.setting_error import SettingError
from dfl_jax.training.batches import epoch_orders

CLIENTS, FEATURES, CLASSES = 6, 5, 3
SIZES = (4, 7, 5, 6, 3, 7)  # in batches of 3 or 4: several, shorter last ones, clients below one


def schedule(lossy) -> Graph:
    graphs = topology.schedule('erdos_renyi', CLIENTS, 3, seed=1, degree=2)
    if not lossy:
        return graphs
    links_lost = topology.drop_links(graphs, 0.3, seed=4)
    lost = topology.drop_clients(links_lost, 0.3, seed=4)
    assert links_lost.mask.sum() < graphs.mask.sum() and lost.mask[:, :, 1:].any()
    assert not lost.active[:-1].all(), 'no client comes back'
    return lost


def batches_of(key, clients, batch_size, epochs, steps):
    """Each client's index arrays, one a step: the random orders of the package, cut here."""
    k_train, _ = jax.random.split(key)
    cut = []
    for k, mask in zip(jax.random.split(k_train, CLIENTS), clients.mask, strict=True):
        orders = np.asarray(epoch_orders(k, mask, epochs or steps))[:, : int(mask.sum())]
        starts = range(0, orders.shape[1], batch_size)
        cut.append([order[s : s + batch_size] for order in orders for s in starts][:steps])
    return cut


PUBLISHED = {  # the settings of the papers, written out again
    'dpsgd': {'lr': 0.1, 'batch_size': 10, 'local_epochs': 1},
    'dfedavg': {'lr': 0.1, 'batch_size': 25, 'local_epochs': 20},
    'dfedavgm': {'lr': 0.01, 'batch_size': 50, 'local_epochs': 20, 'momentum': 0.9},
    'dfedsam': {
        'lr': 0.01,
        'lr_decay': 0.95,
        'batch_size': 32,
        'local_epochs': 5,
        'momentum': 0.99,
        'weight_decay': 5e-4,
        'sam_radius': 0.01,
    },
    'decavg': {
        'lr': 1e-3,
        'batch_size': 16,
        'local_epochs': None,
        'local_steps': 8,
        'momentum': 0.5,
        'loss_cap': 10.0,
        'round_order': 'average_first',
        'mixing': 'size',
    },
}
ONE_MINIBATCH = {'local_epochs': None, 'local_steps': 1, 'round_order': 'parallel'}
ADAMW = {'optimizer': 'adamw', 'momentum': 0.0, 'weight_decay': 0.01, 'lr': 0.01}

# (method, settings other than the published ones, whether links and clients are lost). Settings
# that have nothing to do with each other share a case, as each costs a compilation.
CASES = [
    ('dpsgd', {}, False),
    ('dpsgd', {'batch_size': 4, 'mixing': 'metropolis', 'clip_norm': 0.2}, True),
    ('dpsgd', {'batch_size': 1, 'lr_decay': 0.7}, True),
    ('dpsgd', {'batch_size': 4} | ONE_MINIBATCH, True),
    ('dpsgd', {'batch_size': 4, 'round_order': 'parallel', 'gossip_steps': 2}, True),
    ('dfedavg', {'batch_size': 4, 'local_epochs': 5}, True),
    ('dfedavgm', {'batch_size': 3, 'local_epochs': 2, 'lr_decay': 0.9, 'lr': 0.1}, True),
    ('dfedsam', {}, False),
    ('dfedsam', {'batch_size': 4, 'sam_radius': 0.3, 'sam_adaptive': True, 'clip_norm': 0.3}, True),
    ('dfedsam', {'batch_size': 4, 'gossip_steps': 3, 'mixing': 'metropolis'}, True),
    ('decavg', {}, False),
    ('decavg', {'lr': 0.1, 'loss_cap': 1.3, 'batch_size': 2, 'gossip_steps': 2}, True),
    (
        'decavg',
        {'round_order': 'train_first', 'batch_size': 3, 'clip_norm': 0.3, 'sam_radius': 0.1}
        | ADAMW,
        True,
    ),
]


@pytest.mark.parametrize(('name', 'settings', 'lossy'), CASES, ids=str)
def test_three_rounds_equal_the_reference(network, name, settings, lossy):
    data, clients, _ = network
    graphs = schedule(lossy)
    model = bind(MLP(CLASSES, (8,)), (FEATURES,))
    method = compiled(name, model, init='independent', **settings)
    states, infos = rounds_of(method, clients, graphs)
    params = [as_reference(states[0].params, i) for i in range(CLIENTS)]

    plain = {'mixing': 'uniform', 'round_order': 'train_first', 'gossip_steps': 1, 'lr_decay': 1.0}
    training = plain | PUBLISHED[name] | settings
    cutting = {
        'batch_size': training.pop('batch_size'),
        'epochs': training.pop('local_epochs'),
        'steps': training.pop('local_steps', None),
    }
    lr, decay = training.pop('lr'), training.pop('lr_decay')
    for r, info in enumerate(infos):
        neighbours = reference.neighbours_of(graphs.members[r], graphs.mask[r])
        batches = batches_of(jax.random.key(r), clients, **cutting)
        params, losses = reference.gossip_sgd_round(
            params, data, neighbours, graphs.active[r], batches, lr=lr * decay**r, **training
        )
        np.testing.assert_allclose(info.loss, losses, rtol=1e-10)
    assert_equals_reference(states[-1].params, params)


def test_the_gradient_of_the_reference_is_that_of_its_loss():
    rng = np.random.default_rng(0)
    params = [(rng.normal(size=(5, 4)), rng.normal(size=4)), (rng.normal(size=(4, 3)), np.zeros(3))]
    x, y = rng.normal(size=(6, 5)), np.eye(3)[rng.integers(3, size=6)]
    w, (_, gradient) = reference.flatten(params), reference.loss_and_gradient(params, x, y)
    direction = rng.normal(size=w.shape)
    ahead, behind = (
        reference.loss_and_gradient(reference.unflatten(w + h * direction, params), x, y)[0]
        for h in (1e-5, -1e-5)
    )
    assert gradient @ direction == pytest.approx((ahead - behind) / 2e-5, rel=1e-7)


@pytest.mark.parametrize(
    ('settings', 'pattern'),
    [
        ({'gossip_steps': 0}, 'gossip_steps .* got 0'),
        ({'round_order': 'both'}, "'both'; choose one of train_first, average_first"),
        ({'mixing': 'random'}, "'random'; choose one of size, uniform, metropolis"),
        ({'consensus': 'median'}, "'median'; choose one of mean, size"),
        ({'init': 'zero'}, "'zero'; choose one of same, independent"),
    ],
)
def test_what_is_refused(settings, pattern):
    with pytest.raises(ValueError, match=pattern):
        make('dpsgd', bind(MLP(CLASSES), (FEATURES,)), **settings)


@pytest.mark.parametrize('optimizer', [{'momentum': 0.9}, {'optimizer': 'adam'}], ids=str)
def test_a_lasting_optimizer_trains_without_a_seam(network, optimizer):
    """Without neighbours three rounds of two steps are one of six, on whole batches."""
    _, clients, _ = network
    alone = schedule(False)
    alone = alone._replace(mask=alone.mask & (np.arange(alone.mask.shape[2]) == 0))
    model = bind(MLP(CLASSES, (8,)), (FEATURES,))

    def weights(rounds, **more):
        local = {'batch_size': 64, 'local_epochs': None, 'local_steps': 6 // rounds}
        settings = {'init': 'independent', **local, **optimizer, **more}
        states, _ = rounds_of(compiled('dpsgd', model, **settings), clients, alone)
        return states[rounds].params

    assert_close(weights(3, lasting_optimizer=True), weights(1))
    with pytest.raises(AssertionError):
        assert_close(weights(3), weights(1))


def test_an_optimizer_of_which_nothing_lasts():
    with pytest.raises(SettingError, match='sgd keeps nothing that could last; set momentum'):
        make('dpsgd', bind(MLP(CLASSES), (FEATURES,)), lasting_optimizer=True)


class Noisy(Compression):
    """A compression that adds a zero or a one to every weight, at random."""

    def codec(self, *_, **_settings):
        def decoded(key, tensor):
            return tensor + jax.random.bernoulli(key, 0.5, tensor.shape)

        return Codec(decoded, lambda message: message)


def test_every_gossip_step_rounds_anew(network):
    """With one key for two steps every weight would receive nothing or two."""
    _, clients, _ = network
    alone = schedule(False)
    alone = alone._replace(mask=alone.mask & (np.arange(alone.mask.shape[2]) == 0))
    model = bind(MLP(CLASSES, (8,)), (FEATURES,))
    settings = {'lr': 1e-12, 'batch_size': 64, 'gossip_steps': 2, 'compression': Noisy()}
    algorithm = make('dpsgd', model, **settings)
    before = jax.jit(algorithm.init)(jax.random.key(0), clients)
    step = jax.jit(functools.partial(one_round, algorithm))
    after, _ = step(jax.random.key(1), before, 0, round_of(alone, 0), clients)
    added = jax.tree.map(lambda a, b: np.round(a - b), after.params, before.params)
    found = np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(added)])
    assert [np.isclose((found == n).mean(), p, atol=0.1) for n, p in enumerate((0.25, 0.5, 0.25))]
    assert 0.4 < (found == 1).mean() < 0.6
    first, second = (leaf.reshape(CLIENTS, -1)[:2] for leaf in (added['Dense_0']['kernel'],) * 2)
    assert (first[0] != second[1]).any(), 'nor do two clients round alike'
