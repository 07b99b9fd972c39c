"""Final model averaging: orders, weights, accuracies, and the command."""

import functools
import json
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import evaluator, host_round, write_clusters
from test_cli import called, here, write_sums

from dfl_jax import data, topology
from dfl_jax.base import Graph
from dfl_jax.cli.run import command as cli
from dfl_jax.cli.time import command as time
from dfl_jax.experiment.run_directory import RunDirectory
from dfl_jax.methods import make
from dfl_jax.models import MLP, bind
from dfl_jax.papers.select import command as select
from dfl_jax.papers.select import final_averaging as selection
from dfl_jax.simulate import Holdout

CLIENTS = 6
ACCURACIES = np.array([0.5, 0.9, 0.5, 0.7, 0.9])  # with two ties


# ------------------------------------------------------------------------------------- weights


def test_orders_and_their_ties():
    assert selection.order(ACCURACIES, 'best_to_worst').tolist() == [1, 4, 3, 0, 2]
    assert selection.order(ACCURACIES, 'worst_to_best').tolist() == [0, 2, 3, 1, 4]
    with pytest.raises(ValueError, match="'best'; choose one of best_to_worst, random"):
        selection.order(ACCURACIES, 'best')


def test_the_random_order_is_seeded_and_does_not_look():
    draws = [selection.order(np.arange(50) / 50, 'random', seed) for seed in (0, 0, 1)]
    assert draws[0].tolist() == draws[1].tolist() != draws[2].tolist()
    assert draws[0].tolist() == selection.order(np.zeros(50), 'random', 0).tolist()
    assert sorted(draws[2]) == list(range(50))


def test_prefixes_weigh_the_first_clients_equally():
    weights = selection.prefixes(np.array([2, 0, 1]))
    np.testing.assert_allclose(weights, [[0, 0, 1], [1 / 2, 0, 1 / 2], [1 / 3] * 3])


def test_the_ring_is_a_running_mean_and_ends_with_the_mean_of_all():
    values = np.array([3.0, 5.0, 1.0, 7.0])
    means = selection.prefixes(np.arange(4)) @ values
    np.testing.assert_allclose(means, [3, 4, 3, 4])
    held = values[0]
    for hop, value in enumerate(values[1:], 2):  # what each client does with the message
        held += (value - held) / hop
        assert held == pytest.approx(means[hop - 1])


@pytest.mark.parametrize('samples', [2, 10, 11])
def test_halves_of_the_test_set(samples):
    holdout = Holdout(np.arange(samples, dtype=np.float32)[:, None], np.arange(samples))
    validation, test = selection.split(holdout, seed=3)
    assert len(validation.y) == samples // 2
    assert sorted([*validation.y, *test.y]) == list(range(samples))
    for half in (validation, test):
        assert half.x[:, 0].tolist() == half.y.tolist()
    again, _ = selection.split(holdout, seed=3)
    assert again.y.tolist() == validation.y.tolist()


def test_another_seed_splits_otherwise_and_one_sample_cannot_be_split():
    holdout = Holdout(np.zeros((100, 1), np.float32), np.arange(100))
    halves = [selection.split(holdout, seed)[0].y.tolist() for seed in (0, 1)]
    assert halves[0] != halves[1]
    with pytest.raises(ValueError, match='at least 2 test samples, got 1'):
        selection.split(Holdout(holdout.x[:1], holdout.y[:1]), 0)


def one_graph(family: str, clients: int, **options) -> Graph:
    return host_round(topology.schedule(family, clients, 1, seed=0, **options), 0)


def test_a_complete_final_topology_gives_everyone_the_full_mean():
    weights = selection.final_topology(one_graph('complete', 5), 1)
    np.testing.assert_allclose(weights, np.full((5, 5), 1 / 5))


def test_two_averagings_over_a_ring():
    weights = selection.final_topology(one_graph('ring', 6, static=True), steps=2)
    np.testing.assert_allclose(weights.sum(axis=1), 1)
    np.testing.assert_allclose(np.sort(weights, axis=1), np.tile([0, 1, 1, 2, 2, 3], (6, 1)) / 9)
    np.testing.assert_allclose(np.diag(weights), 3 / 9)


def test_the_shortlist_keeps_the_better_half_of_the_neighbours():
    accuracies = np.array([0.1, 0.8, 0.6, 0.8, 0.3])
    members = np.array([[0, 1, 2, 3, 4], [1, 0, 2, 1, 1], [2, 0, 1, 3, 4], [3, 0, 2, 4, 3],
                        [4, 0, 4, 4, 4]], np.int32)  # fmt: skip
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 0, 1, 1], [1, 1, 1, 1, 0],
                     [1, 0, 0, 0, 0]], bool)  # fmt: skip
    graph = selection.shortlist(Graph(members, mask, np.ones(5, bool)), accuracies)
    heard = [sorted(row[kept]) for row, kept in zip(graph.members, graph.mask, strict=True)]
    # Client 0: 1 and 3 of four; 1: 2 of two; 2: of 0, 3, 4 (1 is not heard) two; 3: 2, 4 of three.
    assert heard == [[0, 1, 3], [1, 2], [2, 3, 4], [2, 3, 4], [4]]
    weights = selection.final_topology(graph, 1)
    np.testing.assert_allclose(weights[1], [0, 1 / 2, 1 / 2, 0, 0])
    np.testing.assert_allclose(weights[4], [0, 0, 0, 0, 1])


def test_the_shortlist_prefers_the_lower_number_among_equals():
    graph = selection.shortlist(one_graph('complete', 5), np.full(5, 0.5))
    kept = [sorted(row[mask])[:4] for row, mask in zip(graph.members, graph.mask, strict=True)]
    assert kept == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 1, 3], [0, 1, 4]]


# ---------------------------------------------------------------------------------- accuracies


@pytest.fixture(scope='module')
def network():
    """(model, clients, holdout): a network with untrained models that differ."""
    dataset = data.load('digits', None)
    parts = data.partition('iid', dataset, CLIENTS, seed=0)
    model = bind(MLP(dataset.classes, (8,)), dataset.train_x.shape[1:])
    clients = data.pack(dataset.train_x, dataset.train_y, parts)
    return model, clients, Holdout(dataset.test_x, dataset.test_y)


@pytest.mark.parametrize('factory', ['dfedavg', 'dispfl'])
def test_accuracies_of_averages(factory, network, monkeypatch):
    model, clients, holdout = network
    algorithm = make(factory, model, init='independent')
    state = jax.jit(algorithm.init)(jax.random.key(0), clients)
    logits = jax.jit(algorithm.predict)(state, jnp.asarray(holdout.x))['client']
    expected = (np.asarray(logits).argmax(axis=-1) == holdout.y).mean(axis=1)
    assert len(set(expected)) > 1
    judged = evaluator(algorithm, state, holdout)(state)
    assert expected.mean() == pytest.approx(judged['client_accuracy_mean'])

    rows = [*np.eye(CLIENTS), [1] * CLIENTS, [1 / CLIENTS] * CLIENTS, [0, 0, 3, 0, 0, 0]]
    averages = [*expected, *[judged['consensus_accuracy']] * 2, expected[2]]
    for at_once in (8192, 100):  # one chunk, and several of which the last is filled up
        monkeypatch.setattr(selection, 'PREDICTIONS_AT_ONCE', at_once)
        own = selection.client_accuracies(algorithm, state, holdout)
        np.testing.assert_allclose(own, expected)
        found = selection.averaged_accuracy(algorithm, model, state, np.array(rows), holdout)
        np.testing.assert_allclose(found, averages)


def test_an_average_is_that_of_the_parameters(network):
    model, clients, holdout = network
    algorithm = make('dfedavg', model, init='independent')
    state = jax.jit(algorithm.init)(jax.random.key(1), clients)
    pair = jax.tree.map(lambda leaf: 0.25 * leaf[1] + 0.75 * leaf[4], state.params)
    logits = np.asarray(model.apply(pair, jnp.asarray(holdout.x)))
    weights = np.array([[0, 1, 0, 0, 3, 0]])
    found = selection.averaged_accuracy(algorithm, model, state, weights, holdout)
    assert found == pytest.approx([(logits.argmax(axis=-1) == holdout.y).mean()])


@pytest.mark.parametrize('with_attackers', [False, True])
def test_models_of_attackers_are_averaged_where_they_are_asked_for(
    with_attackers, network, monkeypatch
):
    model, clients, holdout = network
    monkeypatch.setattr(selection, 'DRAWS', 1)
    algorithm, lying = make('dfedavg', model, init='independent'), np.arange(CLIENTS) % 3 == 1
    state = jax.jit(algorithm.init)(jax.random.key(0), clients)
    built = SimpleNamespace(
        algorithm=algorithm, model=model, test=holdout, parts=range(CLIENTS), attackers=lying
    )
    found = selection.examine(built, state, 2, 0, 0.5, False, with_attackers)
    of = np.arange(CLIENTS)[~lying | with_attackers]
    _, test = selection.split(holdout, 0)
    own = selection.client_accuracies(algorithm, state, test)[of]
    np.testing.assert_allclose(found['client_accuracies'], own, atol=1e-5)
    weights = np.isin(np.arange(CLIENTS), of)[None]
    average = selection.averaged_accuracy(algorithm, model, state, weights, test)
    assert found['average_of_all'] == pytest.approx(average[0], abs=1e-5)
    assert found['left_out'] == ([] if with_attackers else [1, 4])


# ------------------------------------------------------------------------------------- counting


def test_counts_of_clients():
    curve = [0.70, 0.85, 0.83, 0.84, 0.86]
    assert (selection.reaches(curve, 0.84), selection.stays(curve, 0.84)) == (2, 4)
    assert (selection.reaches(curve, 0.9), selection.stays(curve, 0.9)) == (None, None)
    assert (selection.reaches(curve, 0.7), selection.stays(curve, 0.7)) == (1, 1)
    assert (selection.reaches(curve[:3], 0.84), selection.stays(curve[:3], 0.84)) == (2, None)


# ---------------------------------------------------------------------------------- the command


def train(out, *argv) -> None:
    network = (f'--clients={CLIENTS}', '--degree=2', '--rounds=2', '--hidden=8', '--seed=4')
    here(*network, f'--out={out}', *argv).succeeded()


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    """A run on the digits; the tests leave it as it is."""
    out = tmp_path_factory.mktemp('runs') / 'dfedavg'
    train(out, '--algorithm=dfedavg')
    return out


chosen = functools.partial(called, select, '--noprogress')


def refused(*argv) -> str:
    """The one line on stderr of a command that failed."""
    return chosen(*argv).error


@pytest.mark.integration
def test_the_command_writes_once(finished, tmp_path):
    out = tmp_path / 'chosen'
    before = sorted(finished.rglob('*'))
    flags = (f'--run={finished}', f'--out={out}', '--target=0.5', '--seed=1')
    status, printed, err = chosen(*flags)
    assert (status, err) == (0, '')
    assert sorted(path.name for path in out.iterdir()) == sorted(select.FILES)
    assert all(path.stat().st_size > 100 for path in out.iterdir())
    assert (out / 'selection.md').read_text() in printed
    assert sorted(finished.rglob('*')) == before

    found = json.loads((out / 'selection.json').read_text())
    assert (found['run_seed'], found['seed'], found['round']) == (4, 1, 2)
    assert abs(found['validation_samples'] - found['test_samples']) <= 1
    row = json.loads((finished / 'metrics.jsonl').read_text().splitlines()[-1])
    assert found['average_of_all'] == pytest.approx(row['consensus_accuracy'], abs=0.1)
    own = found['client_accuracies']
    draws = {how: len(curves['accuracies']) for how, curves in found['orders'].items()}
    assert draws == {'best_to_worst': 1, 'random': selection.DRAWS, 'worst_to_best': 1, 'ring': 1}
    for curves in found['orders'].values():
        assert {len(curve) for curve in curves['accuracies']} == {CLIENTS}
        assert {curve[-1] for curve in curves['accuracies']} == {found['average_of_all']}
        assert {curve[0] for curve in curves['accuracies']} <= set(own)
    assert found['orders']['ring']['accuracies'][0][0] == own[0]
    everyone, better = found['final_topologies']  # six clients: degree 5 alone, a complete graph
    assert (everyone['neighbours'], everyone['messages_an_averaging']) == ('all', 30)
    assert everyone['mean'] == pytest.approx([found['average_of_all']] * 2, abs=1e-5)
    assert everyone['worst'] == pytest.approx(everyone['mean'], abs=1e-5)
    assert (better['neighbours'], better['messages_an_averaging']) == ('better half', 18)

    line = refused(*flags)
    assert 'selection.json exists' in line
    assert '--out' in line


@pytest.mark.integration
def test_results_go_into_the_run_and_younger_settings_keep_their_defaults(tmp_path):
    folder = tmp_path / 'run'
    train(folder, '--algorithm=dfedavg')
    config = RunDirectory(folder).config()
    assert config['settings'].pop('client_dropout') == 0
    RunDirectory(folder).write_config(config)
    assert chosen(f'--run={folder}').succeeded().err == ''
    assert all((folder / name).exists() for name in select.FILES)


def test_what_the_command_refuses(finished, tmp_path):
    assert '--run=DIR' in refused()
    assert f'--run={tmp_path} holds no run' in refused(f'--run={tmp_path}')
    assert '--lr=0.5 does not apply' in refused(f'--run={finished}', '--lr=0.5')
    assert '--target' in refused(f'--run={finished}', '--target=84')
    assert 'non-negative' in refused(f'--run={finished}', '--seed=-1')
    assert "'x'" in refused(f'--run={finished}', 'x')
    of_nobody = refused(f'--run={finished}', f'--out={tmp_path}', '--with_attackers')
    assert 'lies; leave it out' in of_nobody
    line = refused(f'--run={finished}', '--data_dir=absent', f'--out={tmp_path}')
    assert '--data_dir=absent does not apply to --dataset=digits' in line


@pytest.mark.integration
def test_models_without_an_accuracy(tmp_path):
    data = write_sums(tmp_path / 'set.npz')
    of_it = (f'--dataset={data}', '--task=regression', '--partition=iid')
    train(tmp_path / 'run', '--algorithm=dpsgd', '--lr=0.01', *of_it)
    assert 'models have no accuracy to choose by' in refused(f'--run={tmp_path / "run"}')


@pytest.mark.integration
def test_runs_that_cannot_be_averaged(tmp_path):
    train(tmp_path / 'bare', '--algorithm=dfedavg', '--nocheckpoint')
    assert 'has no checkpoint' in refused(f'--run={tmp_path / "bare"}')

    config = json.loads((tmp_path / 'bare' / 'config.json').read_text())
    for name, value, words in (
        ('algorithm', 'ntk_fl', 'is centralized'),
        ('wavelength', 3, 'wavelength=3'),
    ):
        folder = tmp_path / name
        (folder / 'checkpoints' / '1').mkdir(parents=True)
        changed = config['settings'] | {name: value}
        (folder / 'config.json').write_text(json.dumps({'settings': changed}))
        assert words in refused(f'--run={folder}')

    (folder / 'config.json').write_text('{')
    assert f'{folder}/config.json' in refused(f'--run={folder}')


def test_a_checkpoint_of_another_state_is_refused(finished, tmp_path):
    folder = tmp_path / 'moved'
    folder.mkdir()
    config = json.loads((finished / 'config.json').read_text())
    config['settings']['algorithm'] = 'dispfl'
    del config['digest']
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'checkpoints').symlink_to(finished / 'checkpoints')
    assert 'cannot be read' in refused(f'--run={folder}')


# ----------------------------------------------------------------------- configs that lie


def with_settings(finished, folder, **changed):
    """A copy of a run whose config.json was tampered with."""
    folder.mkdir()
    config = json.loads((finished / 'config.json').read_text())
    settings = config['settings'] | changed
    (folder / 'config.json').write_text(json.dumps({'settings': settings}))
    (folder / 'checkpoints').symlink_to(finished / 'checkpoints')
    return folder


@pytest.mark.parametrize('flag', ['algorithm', 'model', 'dataset'])
def test_code_that_a_config_names_is_not_run_unasked(flag, finished, tmp_path, monkeypatch):
    ran = tmp_path / 'ran'
    (tmp_path / 'trap.py').write_text(f'open({str(ran)!r}, "w")\nraise RuntimeError("sprung")\n')
    monkeypatch.syspath_prepend(tmp_path)
    folder = with_settings(finished, tmp_path / 'run', **{flag: 'trap:factory', 'hidden': None})
    line = refused(f'--run={folder}')
    assert f'--{flag}=trap:factory' in line and '--allow_imports' in line
    assert not ran.exists()
    assert 'sprung' in refused(f'--run={folder}', '--allow_imports')
    assert ran.exists()


@pytest.mark.parametrize(
    ('name', 'value'),
    [
        *(('clients', 'six'), ('clients', None), ('clients', True), ('clients', 6.0)),
        *(('clients', 0), ('alpha', '0.1'), ('alpha', [0.1]), ('alpha', 10**400)),
        *(('hidden', [8]), ('hidden', '8'), ('static_topology', 1), ('dataset', 5)),
        *(('gain', 'none'), ('algorithm', {'a': 1}), ('algorithm', None)),
        *(('allow_imports', True), ('out', 'elsewhere'), ('pdb', True), ('flagfile', 'x')),
    ],
)
def test_a_setting_that_no_run_has(name, value, finished, tmp_path):
    folder = with_settings(finished, tmp_path / 'run', **{name: value})
    line = refused(f'--run={folder}')
    assert re.search(rf'has (--)?{name}=', line), line
    assert not cli.FLAGS['allow_imports'].value


@pytest.mark.parametrize('text', ['', '{', '[]', 'null', '{}', '{"settings": []}', '[' * 100_000])
def test_a_config_that_is_none(text, tmp_path):
    (tmp_path / 'config.json').write_text(text)
    assert 'config.json' in refused(f'--run={tmp_path}')
    (tmp_path / 'config.json').unlink()
    (tmp_path / 'config.json').mkdir()
    assert 'config.json' in refused(f'--run={tmp_path}')


def test_what_cannot_be_written_is_told_before_the_work(finished, tmp_path):
    (tmp_path / 'file').touch()
    for out in (tmp_path / 'file', tmp_path / 'file' / 'deep', '/proc/nowhere'):
        line = refused(f'--run={finished}', f'--out={out}')
        assert f'--out={out}' in line and 'choose another --out' in line


def test_the_random_order_has_a_stream_of_its_own():
    """Not that of the split: as many clients as test samples would stand in the order of these."""
    for seed in range(5):
        test = Holdout(np.arange(20.0)[:, None], np.arange(20))
        rows = np.concatenate([half.y for half in selection.split(test, seed)])
        assert (selection.order(np.zeros(20), 'random', seed) != rows).any()


@pytest.mark.integration
def test_a_run_on_a_file_is_looked_into_from_another_folder(tmp_path, monkeypatch):
    home, elsewhere = tmp_path / 'home', tmp_path / 'elsewhere'
    home.mkdir(), elsewhere.mkdir()
    write_clusters(home / 'mine.npz')
    monkeypatch.chdir(home)
    train('run', '--algorithm=dfedavg', '--dataset=mine.npz', '--partition=iid')
    monkeypatch.chdir(elsewhere)
    assert chosen(f'--run={home}/run', '--out=first').succeeded().err == ''

    moved = (home / 'mine.npz').rename(tmp_path / 'moved.npz')
    line = refused(f'--run={home}/run', '--out=second')
    assert f'nor in {home}, where the run began; say where it is now by --dataset=PATH' in line
    done = chosen(f'--run={home}/run', '--out=second', f'--dataset={moved}').succeeded()
    assert done.err == ''
    one, other = (
        json.loads((elsewhere / n / 'selection.json').read_text()) for n in ('first', 'second')
    )
    assert one.pop('dataset') != other.pop('dataset') and one == other
    replayed = (f'--runs={home}/run', '--noprogress')
    assert 'by --dataset=PATH' in called(time, '--noprogress', *replayed)[2]
    assert called(time, '--noprogress', *replayed, f'--dataset={moved}').succeeded().err == ''

    other_data = write_clusters(tmp_path / 'other.npz', train=90)
    line = refused(f'--run={home}/run', '--out=third', f'--dataset={other_data}')
    assert 'the data (--dataset, --data_dir) changed since' in line
