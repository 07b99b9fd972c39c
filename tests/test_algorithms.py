"""Methods by name, and their settings."""

import functools
import json
from pathlib import Path

import jax
import pytest

from dfl_jax import topology
from dfl_jax.algorithms.gossip_sgd import gossip_sgd
from dfl_jax.exchange import one_round
from dfl_jax.method_settings import REQUIRED, settings_of
from dfl_jax.methods import IN_ROUNDS, make
from dfl_jax.models import MLP, bind
from dfl_jax.training import LocalTraining
from tests.helpers import logistic_clients, round_of

MODEL = bind(MLP(3), (4,))
WEIGHT_BITS = 32 * MODEL.size


def test_settings_hold_those_of_the_local_training():
    found = settings_of(IN_ROUNDS['dfedavgm'].factory)
    assert found['lr'] == 0.01 and found['momentum'] == 0.9 and found['mixing'] == 'uniform'
    assert not {'model', 'training'} & found.keys()
    assert settings_of(IN_ROUNDS['dfml'].factory)['rounds'] is REQUIRED


def test_settings_of_a_method_without_local_training():
    assert settings_of(lambda model, lr=0.02: None) == {'lr': 0.02}


@pytest.mark.parametrize('name', IN_ROUNDS)
def test_every_setting_of_a_method_has_a_flag_or_comes_from_the_run(name):
    from dfl_jax.cli.flags.run_flags import flag_of
    from dfl_jax.experiment.method import FROM_STREAMS

    of_run = (*FROM_STREAMS, *IN_ROUNDS[name].from_run, 'attack')  # which is of the attackers
    for setting in settings_of(IN_ROUNDS[name].factory):
        assert flag_of(setting) or setting in of_run, setting


def test_what_is_given_replaces_a_published_setting_and_leaves_the_others():
    seen = {}

    def method(model, *, training=LocalTraining(lr=0.1, batch_size=7), mixing='size'):  # noqa: B008
        seen.update(training=training, mixing=mixing)

    make(method, MODEL, lr=0.5)
    assert seen == {'training': LocalTraining(lr=0.5, batch_size=7), 'mixing': 'size'}
    make(method, MODEL, training=LocalTraining(lr=1.0, batch_size=2), momentum=0.3)
    assert seen['training'] == LocalTraining(lr=1.0, batch_size=2, momentum=0.3)


def test_a_method_by_name_is_its_factory():
    clients = logistic_clients()[0]
    key, ring = jax.random.key(0), topology.schedule('ring', len(clients.y), 1, seed=0)

    def bits(method, **settings):
        algorithm = make(method, MODEL, **settings)
        state = jax.eval_shape(algorithm.init, key, clients)
        step = functools.partial(one_round, algorithm)
        _, info = jax.eval_shape(step, key, state, 0, round_of(ring, 0), clients)
        return {kind: sent.bits for kind, sent in info.sent.items()}

    assert bits('dpsgd') == bits(IN_ROUNDS['dpsgd']) == {'weights': WEIGHT_BITS}
    training = LocalTraining(lr=1.0, batch_size=2)
    assert bits(gossip_sgd, training=training) == {'weights': WEIGHT_BITS}


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"unknown algorithm 'x25'; choose one of ntk_dfl, "):
        make('x25', MODEL)
    with pytest.raises(ValueError, match=r'MLP is no network of clients; bind a module to the sh'):
        make('dpsgd', MODEL.module)
    with pytest.raises(ValueError, match=r'momentum has to lie in \[0, 1\), got 2'):
        make('dfedavg', MODEL, momentum=2)
    with pytest.raises(ValueError, match=r"unknown algorithm 'dfedavgg', did you mean dfedavg\?"):
        make('dfedavgg', MODEL)
    with pytest.raises(TypeError, match=r"dfedavg: no setting 'density'; there are .*momentum"):
        make('dfedavg', MODEL, density=0.5)
    message = r"dfedavg: no setting 'batchsize', did you mean batch_size\?; there "
    with pytest.raises(TypeError, match=message):
        make('dfedavg', MODEL, batchsize=5)
    with pytest.raises(TypeError, match=r"ntk_dfl: no setting 'timestep', did you mean timestep"):
        make(IN_ROUNDS['ntk_dfl'].factory, MODEL, timestep=(5,))


PUBLISHED = json.loads((Path(__file__).parent / 'published_defaults.json').read_text())


@pytest.mark.parametrize('name', IN_ROUNDS)
def test_the_defaults_are_the_published_ones(name):
    """All of them: a setting that is added is written down beside the paper that asks for it."""
    row = PUBLISHED['methods'][name]
    expected: dict[str, object] = {}
    for group in row['groups']:
        expected |= PUBLISHED['groups'][group]['settings']
    expected |= row['settings']
    for without in row.get('without', ()):
        del expected[without]
    found = {
        setting: 'required' if default is REQUIRED else default
        for setting, default in settings_of(IN_ROUNDS[name].factory).items()
    }
    assert json.loads(json.dumps(found)) == expected
    assert row['source'] and all(PUBLISHED['groups'][group]['source'] for group in row['groups'])


def test_every_default_that_is_published_is_of_a_method():
    assert PUBLISHED['methods'].keys() == IN_ROUNDS.keys()
