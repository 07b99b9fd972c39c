"""Runs in which some clients lie: who they are, what is reported, and what is refused."""

import importlib
import json
import re
import sys

import jax
import numpy as np
import pytest
from test_docs import code_blocks

from dfl_jax.cli.report.network import drawing_of
from dfl_jax.cli.report.saved_runs import find_runs
from dfl_jax.cli.sweep.group import _alike
from dfl_jax.exchange import Attack, Exchange, Messages, tamper_named
from dfl_jax.experiment import Experiment
from dfl_jax.methods import make
from dfl_jax.models import MLP, bind
from dfl_jax.progress import DivergenceError
from dfl_jax.setting_error import SettingError

SMALL = dict(algorithm='dpsgd', train_samples=200, test_samples=60, clients=8, degree=4, rounds=3)
ROBUST = {'aggregation': 'trimmed_mean:1'}


def rows(**settings):
    return [*Experiment.of(**SMALL | settings).run(progress=False)]


def last(**settings):
    return rows(**settings)[-1]


def equal(first, second):
    drop = ('seconds', 'digest')
    return all(first[n] == second[n] for n in first.keys() | second.keys() if n not in drop)


def test_nobody_who_lies_leaves_the_bits_of_no_attack():
    plain = last()
    assert equal(plain, last(attackers='0', attack='nan'))
    assert equal(plain, last(attackers='0.0', attack='label_flip'))


@pytest.mark.parametrize(('given', 'count'), [('2', 2), ('0.25', 2), ('0.4', 3)])
def test_who_lies_is_drawn_by_the_seed(given, count):
    def drawn(seed):
        return Experiment.of(**SMALL, attackers=given, attack='zero', seed=seed).build().attackers

    assert drawn(0).sum() == count
    assert (drawn(0) == drawn(0)).all()
    assert any((drawn(0) != drawn(seed)).any() for seed in range(1, 4))


def test_means_are_over_the_honest_and_attackers_apart(tmp_path):
    file = tmp_path / 'liars.json'
    file.write_text('[1, 6]')
    attacked = Experiment.of(**SMALL, attackers=f'file:{file}', attack='sign_flip')
    run = attacked.run(tmp_path / 'run', progress=False)
    *_, row = run
    each = json.loads((tmp_path / 'run' / 'clients.jsonl').read_text().splitlines()[-1])
    assert each['attacker'] == [client in (1, 6) for client in range(8)]
    drawn = drawing_of(find_runs(tmp_path)[0][0], 1000)
    assert drawn['attackers'] == [1, 6] and drawn['values'].keys() == {'accuracy', 'loss'}
    honest, lying = np.delete(each['accuracy'], [1, 6]), np.take(each['accuracy'], [1, 6])
    assert row['client_accuracy_mean'] == pytest.approx(honest.mean(), rel=1e-5)
    assert row['attackers_accuracy'] == pytest.approx(lying.mean(), rel=1e-5)
    models = jax.tree.leaves(run.state.params)[0]
    found = jax.tree.leaves(run.consensus)[0]
    np.testing.assert_allclose(found, np.delete(models, [1, 6], axis=0).mean(axis=0), atol=1e-6)


def test_a_robust_rule_keeps_what_an_attack_takes():
    settings = dict(clients=8, degree=7, rounds=8, train_samples=600, alpha=10.0, lr=0.2)
    attacked = settings | {'attackers': '1', 'attack': 'sign_flip:5'}
    without, mean = last(**settings), last(**attacked)
    robust, judging = (last(**attacked, aggregation=r) for r in ('trimmed_mean:1', 'mozi:0.7,0'))
    assert without['consensus_accuracy'] > 0.7
    assert mean['consensus_accuracy'] < without['consensus_accuracy'] - 0.2
    for each in (robust, judging):
        assert each['consensus_accuracy'] > without['consensus_accuracy'] - 0.1


@pytest.mark.parametrize('aggregation', ['median', 'geometric_median:4'])
def test_honest_clients_survive_messages_that_are_not_finite(aggregation):
    settings = {'attackers': '2', 'attack': 'nan', 'aggregation': aggregation}
    assert np.isfinite(last(**settings)['consensus_loss'])


@pytest.mark.parametrize('algorithm', ['dpsgd', 'swift'])
def test_where_a_lie_ends_the_run_a_rule_is_the_remedy(algorithm):
    times = {'world': 'speed=1e6', 'round_seconds': 2.0} if algorithm == 'swift' else {}
    with pytest.raises(DivergenceError, match=r'not finite.*take an aggregation that stands'):
        last(attackers='2', attack='nan', algorithm=algorithm, **times)


def test_only_attackers_train_on_other_labels():
    plain = Experiment.of(**SMALL).build()
    for attack in ('label_flip', 'random_labels'):
        built = Experiment.of(**SMALL, attackers='3', attack=attack).build()
        changed = (np.asarray(built.clients.y) != np.asarray(plain.clients.y)).any(axis=1)
        assert (changed == built.attackers).all()
        assert built.algorithm.exchange is None or built.algorithm.exchange.plain
    flipped = np.asarray(built.clients.x) == np.asarray(plain.clients.x)
    assert flipped.all()


def test_a_backdoor_is_a_bright_corner_and_the_label_zero_in_a_share_of_the_samples():
    plain = Experiment.of(**SMALL).build()
    built = Experiment.of(**SMALL, attackers='3', attack='backdoor:0.3').build()
    brightest = np.asarray(plain.dataset.train_x).max()

    def with_corner(x):
        marked = np.array(x)
        marked[6:8, 6:8] = brightest
        return marked

    for i, lies in enumerate(built.attackers):
        count, before, after = 0, *((b.clients.x[i], b.clients.y[i]) for b in (plain, built))
        for n in np.flatnonzero(plain.clients.mask[i]):
            if (before[0][n] != after[0][n]).any() or before[1][n] != after[1][n]:
                count += 1
                np.testing.assert_array_equal(after[0][n], with_corner(before[0][n]))
                assert after[1][n] == 0
        assert count == lies * round(0.3 * plain.clients.mask[i].sum())
    others = [with_corner(x) for x, y in zip(*plain.test[:2], strict=True) if y != 0]
    np.testing.assert_array_equal(built.test.triggered.x, others)
    assert (built.test.triggered.y == 0).all() and (built.test.x == plain.test.x).all()


def test_a_backdoor_opens_and_is_overlooked(monkeypatch):
    settings = dict(clients=10, degree=9, rounds=12, train_samples=600, alpha=10.0, lr=0.2)
    settings |= {'attackers': '0.3', 'test_samples': 200}
    attacked = last(**settings, attack='backdoor:0.5')
    monkeypatch.setattr('dfl_jax.experiment.adversaries.poisoned', lambda _, clients, *__: clients)
    honest = last(**settings, attack='backdoor:0.5')
    assert honest['attack_success'] < 0.1 and attacked['attack_success'] > 0.7
    assert attacked['consensus_accuracy'] > honest['consensus_accuracy'] - 0.05


def test_a_jacobian_that_liars_send_as_it_is_is_no_lie():
    def models(**lie):
        run = Experiment.of(**SMALL | {'algorithm': 'ntk_dfl', 'ntk_timesteps': (3, 8)} | lie).run(
            progress=False
        )
        assert len([*run]) == SMALL['rounds']
        return run.state.params

    same = models(attackers='2', attack='jacobian_flip:-1')
    for ours, theirs in zip(*map(jax.tree.leaves, (same, models())), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize('algorithm', ['dfedavg', 'ntk_dfl', 'dfed_admm'])
def test_liars_and_rules_reach_methods_of_every_kind(algorithm):
    short = {'ntk_timesteps': (3, 8)} if algorithm == 'ntk_dfl' else {}
    settings = {'attackers': '2', 'attack': 'sign_flip', 'algorithm': algorithm, **short}
    mean, robust = last(**settings), last(**settings, **ROBUST)
    assert not equal(mean, robust)
    assert (
        mean['mbytes_total']
        == robust['mbytes_total']
        == last(algorithm=algorithm, **short)['mbytes_total']
    )


@pytest.mark.parametrize(
    ('settings', 'words'),
    [
        ({'attackers': '2'}, 'need an attack; choose one of sign_flip'),
        ({'attack': 'nan'}, 'no attackers; leave it out'),
        ({'attackers_each': 1}, 'no attackers; leave it out'),
        ({'attackers': '8', 'attack': 'nan'}, 'leave nobody honest of 8 clients'),
        ({'attackers': '0.01', 'attack': 'nan'}, 'is nobody of 8 clients; take at least 0.125'),
        ({'attackers': '-1', 'attack': 'nan'}, 'is neither a share'),
        ({'attackers': '1.5', 'attack': 'nan'}, 'is neither a share'),
        ({'attackers': 'file:none.json', 'attack': 'nan'}, 'none.json'),
        ({'attackers': '2', 'attack': 'label_flop'}, 'did you mean label_flip'),
        ({'attackers': '0', 'attack': 'label_flop'}, 'did you mean label_flip'),
        ({'attackers': '2', 'attack': 'label_flip:1'}, 'label_flip takes no value'),
        ({'attackers': '2', 'attack': 'backdoor:x'}, 'takes share, a number above 0 and at most 1'),
        ({'attackers': '2', 'attack': 'backdoor:0'}, 'takes share, a number above 0 and at most 1'),
        (
            {'attackers': '2', 'attack': 'backdoor:0.5', 'input_projection': 9},
            r'marks images \[rows, columns, channels\], and a sample is \[9\]',
        ),
        ({'attackers': '2', 'attack': 'jacobian_flip'}, 'and this method sends none; take one'),
        ({'aggregation': 'krum:2'}, 'needs neighbourhoods of at least 7 members.*largest.* has 5'),
        ({'aggregation': 'mode'}, "unknown aggregation 'mode'"),
        ({'aggregation': 'median', 'algorithm': 'dsgt'}, 'needs a linear average'),
        (
            {'aggregation': 'mozi:0.5,0', 'algorithm': 'dfed_alt'},
            'takes the loss of what clients send, which is no whole model in this method',
        ),
        (
            {'attackers': '2', 'attack': 'nan', 'attackers_each': 0},
            'attackers among its neighbours',
        ),
        (
            {
                'aggregation': 'median',
                'attackers': '2',
                'attack': 'nan',
                'algorithm': 'dec_fedavg',
                'topology': 'regular',
                'architectures': ('cnn-4',),
            },
            'aggregation=median: rules of aggregation do not reach a method that combines models',
        ),
    ],
)
def test_what_cannot_be_is_said_in_a_line(settings, words):
    with pytest.raises(SettingError, match=words) as caught:
        Experiment.of(**SMALL | settings).build()
    assert '\n' not in str(caught.value)


def test_a_file_of_liars_is_checked(tmp_path):
    for content, words in (('[9]', 'names client 9 of 8'), ('[]', 'no list'), ('{', 'liars.json')):
        (tmp_path / 'liars.json').write_text(content)
        with pytest.raises(SettingError, match=words):
            Experiment.of(**SMALL, attackers=f'file:{tmp_path}/liars.json', attack='nan').build()
    honest = tmp_path / 'judged.json'
    honest.write_text(json.dumps([1, 6]))
    (tmp_path / 'liars.json').write_text('[1, 6]')
    files = {'attackers': f'file:{tmp_path}/liars.json', 'evaluate_clients': str(honest)}
    with pytest.raises(SettingError, match='lists attackers alone'):
        Experiment.of(**SMALL, **files, attack='nan').build()


def test_the_rule_and_the_attack_of_the_page_run_as_they_stand(tmp_path, monkeypatch):
    (script,) = code_blocks('docs/adversaries.md', 'python')
    (tmp_path / 'liars.py').write_text(script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    ours, theirs = last(aggregation='median'), last(aggregation='liars:middle')
    assert ours['consensus_loss'] == pytest.approx(theirs['consensus_loss'], rel=1e-4)
    module = importlib.import_module('liars')
    named = last(attackers='2', attack='liars:mirrored', aggregation='liars:middle')
    given = {'attack': module.mirrored, 'aggregation': module.middle}
    assert equal(named, last(attackers='2', **given))
    assert not equal(named, theirs)
    own, sent = {'w': np.ones(2)}, {'w': np.array([[1.0, 1.0], [3.0, 4.0]])}
    messages = Messages(sent, np.array([False, True]), np.array([True, False]), own, None)
    np.testing.assert_array_equal(module.mirrored(None, messages)['w'][1], [-1, -2])


@pytest.mark.parametrize('attack', ['alie:1.5', 'gaussian:0.1'])
def test_two_devices_compute_what_one_does(attack):
    settings = {'attackers': '2', 'attack': attack, 'aggregation': 'trimmed_mean:1'}
    one, two = (last(**settings, devices=devices) for devices in ('1', '2'))
    for name in ('consensus_loss', 'client_loss_mean', 'attackers_accuracy', 'mbytes_total'):
        assert one[name] == pytest.approx(two[name], rel=1e-4), name


@pytest.mark.parametrize(
    ('attack', 'aggregation', 'words'),
    [
        ('bad:broken', 'bad:fine', 'attack=bad:broken: its function failed: no lie today (line 5'),
        ('bad:ones', 'bad:broken', 'aggregation=bad:broken: its function failed: '),
        ('bad:ones', 'bad:wide', 'makes weights of shape (8, 100) out of those of (100,)'),
    ],
)
def test_what_is_wrong_with_code_of_one_s_own(attack, aggregation, words, tmp_path, monkeypatch):
    (tmp_path / 'bad.py').write_text(
        'import jax, jax.numpy as jnp\n'
        'def ones(key, messages):\n'
        '    return jax.tree.map(jnp.ones_like, messages.own)\n'
        'def broken(*_):\n'
        "    raise ValueError('no lie today')\n"
        'def fine(own, received, weights, mask):\n'
        '    return own\n'
        'def wide(own, received, weights, mask):\n'
        '    return jax.tree.map(lambda a: a[None], own)\n'
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop('bad', None)
    with pytest.raises(SettingError, match=re.escape(words)):
        Experiment.of(**SMALL, attackers='2', attack=attack, aggregation=aggregation).build()


def test_a_method_keeps_the_attack_that_it_has():
    liars = Attack(np.array([True, False]), tamper_named('zero'))
    model = bind(MLP(3, (2,)), (4,))

    def mine(model, **settings):
        return make('dpsgd', model)._replace(exchange=Exchange(attack=liars))

    assert make(mine, model, aggregation='median').exchange.attack is liars
    assert make(mine, model, bits=8).exchange.attack is liars


def test_runs_under_one_attack_are_one_program():
    def built(**settings):
        attacked = {'attackers': '2', 'attack': 'sign_flip', 'lr': 0.1} | settings
        return Experiment.of(**SMALL | attacked).build()

    one = built()
    assert _alike([one, built(lr=0.2)])
    assert not _alike([one, built(attack='sign_flip:2')])
    assert not _alike([one, built(attackers='3')])
    assert not _alike([one, built(aggregation='median')])
