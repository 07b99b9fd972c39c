"""Gain-corrected initial weights, and what becomes of them in a network."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from helpers import compiled, round_of

from dfl_jax import topology
from dfl_jax.data import pack, synthetic
from dfl_jax.gossip import gain
from dfl_jax.gossip.mixing import mix, mixing_weights
from dfl_jax.initialisation import gain_corrected, initial_params
from dfl_jax.methods import make
from dfl_jax.models import MLP, bind


class Normed(nn.Module):
    """A network with parameters that are not drawn: unit scales and zero biases."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.LayerNorm()(nn.Dense(8)(x)))


@pytest.mark.parametrize('gains', [4.0, [1.0, 2.0, 3.0, 4.0, 5.0]], ids=['one', 'of each client'])
def test_only_what_clients_draw_apart_is_scaled(gains):
    model = bind(Normed(), (6,))
    key = jax.random.key(0)
    plain = initial_params(key, model, 5, 'independent')
    scaled = jax.jit(lambda k: initial_params(k, model, 5, gain_corrected(gains)))(key)
    by_client = np.broadcast_to(gains, 5)
    for name in ('Dense_0', 'Dense_1'):
        expected = by_client[:, None, None] * np.asarray(plain[name]['kernel'])
        np.testing.assert_allclose(scaled[name]['kernel'], expected, rtol=1e-6, atol=1e-7)
        assert not np.asarray(scaled[name]['bias']).any()
    assert (scaled['LayerNorm_0']['scale'] == 1).all()
    again = gain_corrected(np.array(gains))
    assert again == gain_corrected(gains) and hash(again) == hash(gain_corrected(gains))
    assert again != gain_corrected(2 * np.array(gains))


@pytest.mark.parametrize('family', ['complete', 'barabasi_albert'])
def test_gossip_leaves_corrected_weights_as_large_as_one_draw(family):
    """2 million weights in agreement: their deviation is He's sqrt(2 / fan-in) within 1 %."""
    clients = 25
    model = bind(MLP(10, (300,)), (200,))
    graphs = topology.schedule(family, clients, 1, seed=3, static=True, degree=4)
    found = gain.gain_of(*gain.mixing_matrices(graphs, np.ones(clients), 'uniform'))
    params = initial_params(jax.random.key(1), model, clients, gain_corrected(found))
    graph = jax.tree.map(lambda a: jnp.asarray(a[0]), graphs)
    rows = mixing_weights(graph, jnp.ones(clients, jnp.int32), 'uniform')
    for _ in range(80):
        params = mix(rows, graph.members, params)
    kernel = np.asarray(params['Dense_0']['kernel'])
    assert np.ptp(kernel, axis=0).max() < 1e-3
    assert kernel.std() == pytest.approx((2 / 200) ** 0.5, rel=0.01)


def test_unknown_init_is_refused_before_anything_is_drawn():
    with pytest.raises(ValueError, match=r"unknown init 'gain'; choose one of same, independent"):
        make('decavg', bind(MLP(3), (5,)), init='gain')


# -------------------------------------------------------------------------------- participation


@pytest.fixture(scope='module')
def clients():
    data = synthetic(train=240, test=10, features=6, classes=3)
    return pack(data.train_x, data.train_y, np.split(np.arange(240), 8))


MODEL = bind(MLP(3, (5,)), (6,))


def trained(clients, graphs, **settings):
    method = compiled('decavg', MODEL, lr=0.1, **settings)
    state = method.init(jax.random.key(0), clients)
    for r in range(len(graphs.active)):
        state, _ = method.step(jax.random.key(r + 1), state, r, round_of(graphs, r), clients)
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(state.params)])


@pytest.mark.parametrize(
    'occupied',
    [topology.drop_links, topology.drop_receivers, topology.isolate_clients],
    ids=['links', 'receivers', 'nodes'],
)
def test_occupation_zero_is_isolated_training_and_one_changes_nothing(clients, occupied):
    graphs = topology.schedule('regular', 8, 4, seed=0, degree=3)
    alone = graphs._replace(mask=graphs.mask & (np.arange(4) == 0))
    whole, isolated = trained(clients, graphs), trained(clients, alone)
    assert np.abs(whole - isolated).max() > 0.01
    np.testing.assert_array_equal(trained(clients, occupied(graphs, 0.0, 5)), whole)
    np.testing.assert_array_equal(trained(clients, occupied(graphs, 1.0, 5)), isolated)
    partly = trained(clients, occupied(graphs, 0.5, 5))
    assert np.abs(partly - whole).max() > 1e-4 and np.abs(partly - isolated).max() > 1e-4


def test_clients_that_drop_out_do_not_train(clients):
    """The other way of not taking part: `drop_clients` stops them."""
    graphs = topology.schedule('regular', 8, 4, seed=0, degree=3)
    nothing = graphs._replace(active=np.zeros_like(graphs.active))
    stopped = trained(clients, topology.drop_clients(graphs, 1.0, 5))
    np.testing.assert_array_equal(stopped, trained(clients, nothing))
