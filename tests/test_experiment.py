"""An experiment as a value: the same from Python and by flags, written, loaded, gone on with."""

import json
import subprocess
import sys
import warnings
from unittest import mock

import jax
import numpy as np
import pytest
from helpers import write_clusters
from test_cli import here, rows_of, write_sums

import dfl_jax
from dfl_jax import SettingError
from dfl_jax.experiment import Experiment
from dfl_jax.experiment.description import known_settings
from dfl_jax.experiment.method import flat_settings
from dfl_jax.methods import METHODS

SMALL = {'clients': 6, 'degree': 2, 'rounds': 2}
CLOCK = {'world': 'speed=1e7', 'round_seconds': 1}
METHOD = """
import optax
from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_sgd import gossip_sgd
from dfl_jax.tasks import REGRESSION
from dfl_jax.training import LocalTraining

TRAINING = LocalTraining(lr=0.05, batch_size=10)

def mine(model, *, training=TRAINING, mixing: str = 'uniform'):
    return gossip_sgd(model, training=training, gossip=Gossip(mixing=mixing))

def huber():
    def losses(outputs, y):
        return optax.huber_loss(outputs, y.reshape(outputs.shape)).mean(axis=1)
    return REGRESSION._replace(name='huber', losses=losses)

HUBER = huber()
"""
OF_KINDS = {
    'ntk_dfl': {'hidden': (8,), 'evolution': 'euler', 'ntk_timesteps': (10, 20)},
    'one_hub_a_cluster': {'topology': 'clustered', 'hidden': (8,), 'ntk_timesteps': (5,)},
    'spark': {'algorithm': 'spark', 'spark_projection_dim': 20, 'spark_schedule_rounds': 0},
    'dfml': {
        **{'algorithm': 'dfml', 'architectures': ('cnn-2-4',), 'dfml_mutual_epochs': 1},
        **{'dataset': 'digits', 'train_samples': 60, 'test_samples': 30},
    },
    'dispfl': {'algorithm': 'dispfl', 'hidden': (8,), 'local_epochs': 1},
    'swift': {'algorithm': 'swift', 'topology': 'ring', **CLOCK},
    'gain': {'algorithm': 'dpsgd', 'init': 'gain_corrected', 'gain': 'size', 'hidden': (8,)},
    'own_method': {'algorithm': 'of_mine:mine', 'mixing': 'metropolis', 'local_epochs': 2},
    'own_task': {'algorithm': 'dfedavg', 'task': 'of_mine:HUBER', 'partition': 'iid'},
    'csv': {
        **{'algorithm': 'dfedavg', 'columns': 'target=y', 'task': 'regression'},
        **{'partition': 'iid', 'lr': 0.05, 'model': 'linear', 'link_dropout': 0.2},
    },
    'text': {
        **{'algorithm': 'dfedavg', 'dataset': 'sonnets', 'task': 'next_token', 'model': 'gru'},
        **{'partition': 'natural', 'train_samples': 60, 'test_samples': 20},
    },
    'push_sum': {'algorithm': 'sgp', 'topology': 'directed_ring', 'momentum': 0.5},
    'compressed': {'algorithm': 'choco_sgd', 'topology': 'ring', 'seed': 3, 'eval_every': 2},
}

LATE = ('dfml', 'spark', 'compressed')
SLOW = ('text', 'one_hub_a_cluster', 'dispfl', 'gain', 'push_sum')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A folder with data and code of one's own, which Python can import from."""
    path = tmp_path_factory.mktemp('mine')
    (path / 'of_mine.py').write_text(METHOD)
    write_clusters(path / 'tiny.npz')
    write_sums(path / 'sums.npz')
    lines = [f'{a},{b},{a + 2 * b}' for a, b in np.random.default_rng(0).normal(size=(80, 2))]
    (path / 'table.csv').write_text('\n'.join(['a,b,y', *lines]))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(path)
        yield path
    sys.modules.pop('of_mine', None)


def of_kind(kind, folder):
    """The flat names of one of OF_KINDS, with its data."""
    file = {'csv': 'table.csv', 'own_task': 'sums.npz'}.get(kind, 'tiny.npz')
    flat = {'dataset': str(folder / file), **SMALL, **OF_KINDS[kind]}
    if kind == 'dfml' or flat.get('topology') in ('ring', 'directed_ring'):
        del flat['degree']
    return flat


def flags_of(flat):
    """The same on a command line."""

    texts = {n: ','.join(map(str, v)) if isinstance(v, tuple) else v for n, v in flat.items()}
    return [f'--{name}={text}' for name, text in texts.items()]


def finish(run):
    for _ in run:
        pass
    return run


@pytest.mark.parametrize(
    'kind',
    [
        pytest.param(
            kind,
            marks=[pytest.mark.integration] * (kind in LATE) + [pytest.mark.slow] * (kind in SLOW),
        )
        for kind in OF_KINDS
    ],
)
def test_python_leaves_the_bits_of_the_command_line(kind, folder, tmp_path):
    flat = of_kind(kind, folder)
    run = finish(Experiment.of(**flat).run(tmp_path / 'python', progress=False))
    here(*flags_of(flat), f'--out={tmp_path}/flags').succeeded()
    python, flags = tmp_path / 'python', tmp_path / 'flags'
    assert rows_of(python, 'seconds') == rows_of(flags, 'seconds')
    assert len(run.rows) == len(rows_of(flags)) > 0
    for name in ('consensus.safetensors', 'clients.jsonl', 'network.json'):
        assert (python / name).read_bytes() == (flags / name).read_bytes(), name
    configs = [json.loads((path / 'config.json').read_text()) for path in (python, flags)]
    assert configs[0]['settings'] == configs[1]['settings']
    assert {path.name for path in python.iterdir()} == {path.name for path in flags.iterdir()}


@pytest.fixture(scope='module')
def small(folder):
    return {'dataset': str(folder / 'tiny.npz'), **SMALL, 'algorithm': 'dfedavg', 'hidden': (8,)}


def test_a_loaded_run_goes_on_with_the_bits_of_one_without_a_stop(small, tmp_path):
    whole = finish(Experiment.of(**small | {'rounds': 4}).run(tmp_path / 'whole', progress=False))
    finish(Experiment.of(**small).run(tmp_path / 'run', progress=False))
    before = dfl_jax.load(tmp_path / 'run')
    assert before.experiment == Experiment.of(**small) and len(before.rows) == 2
    run = before.resume(rounds=4, progress=False)
    assert [row['round'] for row in run] == [1, 2, 3, 4]
    after = dfl_jax.load(tmp_path / 'run')
    assert after.experiment.rounds == 4
    without = [{k: v for k, v in row.items() if k != 'seconds'} for row in after.rows]
    assert without == [{k: v for k, v in row.items() if k != 'seconds'} for row in whole.rows]
    jax.tree.map(np.testing.assert_array_equal, after.consensus, jax.device_get(whole.consensus))
    clients = after.clients
    jax.tree.map(np.testing.assert_array_equal, clients, jax.device_get(whole.state.params))
    assert {len(leaf) for leaf in jax.tree.leaves(clients)} == {6}


def test_a_run_is_iterated_twice_and_its_rows_are_those_of_the_file(small, tmp_path):
    run = Experiment.of(**small).run(tmp_path / 'run', progress=False)
    assert run.rows == [] and run.state is None
    with pytest.raises(ValueError, match='no consensus model before the first evaluation'):
        _ = run.consensus
    first = next(iter(run))
    again = list(run)
    assert again[0] is first and [row['round'] for row in again] == [1, 2]
    assert list(run) == again == run.rows == rows_of(tmp_path / 'run')
    with pytest.raises(ValueError, match='exists; continue it'):
        Experiment.of(**small).run(tmp_path / 'run')


def test_a_run_that_is_left_frees_its_folder_and_a_finished_one_gives_its_rows(small, tmp_path):
    first = next(iter(Experiment.of(**small).run(tmp_path / 'left', progress=False)))
    saved = dfl_jax.load(tmp_path / 'left')
    with pytest.raises(ValueError, match='no consensus model yet; resume it first'):
        _ = saved.consensus
    rows = list(saved.resume(progress=False))
    assert rows[0]['round'] == first['round'] == 1
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        again = dfl_jax.load(tmp_path / 'left').resume(progress=False)
        assert list(again) == rows and again.last() == rows[-1]


def test_a_graph_or_a_partition_of_ones_own_that_fails_is_named(tmp_path, monkeypatch):
    text = 'from dfl_jax import data, topology\n'
    text += 'def draw(settings, rng):\n    return settings.nothing\nGRAPH = topology.Family(draw)\n'
    text += 'def split(rng, labels, clients):\n    return 1 / 0\nPARTS = data.Partition(split)\n'
    (tmp_path / 'broken_parts.py').write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    for setting, name, why in (
        ('topology', 'GRAPH', 'its draw failed: AttributeError: .*nothing.* \\(line 3 of'),
        ('partition', 'PARTS', r'its split failed: ZeroDivisionError: .* \(line 6 of'),
    ):
        given = {setting: f'broken_parts:{name}'}
        with pytest.raises(SettingError, match=f'{setting}=broken_parts:{name}: {why}'):
            Experiment.of(algorithm='dpsgd', **SMALL, **given).build()


def test_a_run_that_was_interrupted_does_not_look_finished(small, tmp_path, monkeypatch):
    run = Experiment.of(**small).run(tmp_path / 'run', progress=False)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        interrupted = mock.Mock(side_effect=KeyboardInterrupt)
        patch.setattr('dfl_jax.experiment.session._show', interrupted)
        finish(run)
    with pytest.raises(ValueError, match='was interrupted; start another, or resume'):
        run.last()
    again = dfl_jax.load(tmp_path / 'run').resume(progress=False)
    assert [row['round'] for row in again] == [1, 2] and again.rows[0] == run.rows[0]


@pytest.mark.parametrize('name', METHODS)
def test_every_setting_says_what_it_is(name):
    settings = known_settings(name) | flat_settings(METHODS[name])
    assert not [flat for flat, setting in settings.items() if not setting.help]


def test_a_method_says_more_of_a_setting_than_all_methods():
    def meaning(name, flat):
        return flat_settings(METHODS[name])[flat].help

    assert 'intersection' in meaning('dispfl', 'consensus')
    assert 'gain_corrected' in meaning('dsgt', 'init')
    assert 'gain_corrected' not in meaning('sgp', 'init')


def test_defaults_follow_from_the_algorithm():
    assert Experiment.of(algorithm='dsgt').graphs == Experiment.of(algorithm='dfedavg').graphs
    assert Experiment.of(algorithm='d2').graphs.static_topology
    dfml = Experiment.of(algorithm='dfml', alpha=0.5)
    assert (dfml.graphs.topology, dfml.partition.validation_share) == ('complete', 0.2)
    assert Experiment.of(algorithm='dfml', topology='ring').graphs.topology == 'ring'


def test_experiments_of_equal_settings_are_equal():
    first = Experiment.of(algorithm='dfedavg', topology='ring', hidden=[8, 8], rounds=3)
    assert first == Experiment.of(rounds=3, hidden=(8, 8), algorithm='dfedavg', topology='ring')
    assert first != first.replace(rounds=4)
    assert first.replace(rounds=4).replace(rounds=3) == first
    # Given at their default they are the same, too
    assert first == Experiment.of(**{k: v for k, v in first.flat().items() if k in first.given})
    assert Experiment.of() == Experiment.of(algorithm='ntk_dfl', rounds=10, seed=0)


@pytest.mark.parametrize(
    ('name', 'nearest'), [('topolgy', 'topology'), ('roundss', 'rounds'), ('messagebits', None)]
)
def test_an_unknown_name_is_told_with_the_nearest(name, nearest):
    nearest = nearest or 'message_bits'
    with pytest.raises(TypeError, match=f"no setting '{name}', did you mean {nearest}"):
        Experiment.of(**{name: 1})


def test_an_error_of_a_setting_says_which_and_what_to_do(folder):
    with pytest.raises(SettingError) as found:
        Experiment.of(topology='ring', degree=4)
    error = found.value
    assert (error.setting, error.value) == ('degree', 4)
    assert error.message == 'does not apply to `topology=ring`; leave it out'
    tiny = str(folder / 'tiny.npz')
    with pytest.raises(SettingError) as found:
        Experiment.of(dataset=tiny, algorithm='dpsgd', client_eval_samples=999).build()
    error = found.value
    assert (error.setting, error.value) == ('client_eval_samples', 999)
    with pytest.raises(SettingError) as found:
        Experiment.of(algorithm='swift')
        Experiment.of(dataset=tiny, algorithm='swift', topology='ring').build()
    assert found.value.remedy.startswith('give it a `world`')
    with pytest.raises(SettingError) as unknown:
        Experiment.of(algorithm='dfedavgg')
    assert unknown.value.message == "unknown algorithm 'dfedavgg', did you mean dfedavg?"
    assert unknown.value.remedy.startswith('choose one of ntk_dfl, ')
    line = here(f'--dataset={tiny}', '--algorithm=swift', '--topology=ring').error
    assert 'give it a --world' in line and '--algorithm=swift' in line


ABSL = """
import pkgutil
from absl import app, flags

for name in ('dataset', 'out', 'runs', 'algorithm'):
    flags.DEFINE_string(name, None, 'of the application')
flags.DEFINE_integer('rounds', 1, 'of the application')

import dfl_jax.cli
import dfl_jax.papers

for package in (dfl_jax.cli, dfl_jax.papers):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + '.'):
        if not found.name.endswith('__main__'):
            __import__(found.name)

def main(argv):
    import dfl_jax
    print(flags.FLAGS.dataset, flags.FLAGS.rounds, dfl_jax.Experiment.of(rounds=3).rounds)

app.run(main)
"""


def test_an_application_of_absl_keeps_its_flags():
    arguments = '--dataset=mine', '--rounds=7'
    done = subprocess.run(
        [sys.executable, '-c', ABSL, *arguments], check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ['mine', '7', '3']
