"""The comparison with other simulators in benchmarks/peers and vs_peers; none is installed."""

import ast
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from absl import app

from benchmarks import _common, robust, vs_peers
from benchmarks.peers import _common as common
from benchmarks.peers import ours

SCRIPTS = Path(common.__file__).parent


def test_the_data_is_that_of_the_other_benchmarks():
    x, y = common.data(3, 40)
    clients = _common.random_clients(3, 40)
    np.testing.assert_array_equal(x, clients.x.reshape(x.shape))
    np.testing.assert_array_equal(y, clients.y)


@pytest.mark.parametrize('name', ['_common', '_torch', *vs_peers.ELSEWHERE, *vs_peers.names()])
def test_a_peer_needs_its_own_packages_only(name):
    tree = ast.parse((SCRIPTS / f'{name}.py').read_text())
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module)
    local = {module for module in imported if module.startswith(('benchmarks', 'dfl_jax'))}
    assert local <= {'benchmarks.peers'}
    assert 'jax' not in imported or name == 'fedjax'


@pytest.mark.parametrize('name', [*vs_peers.names(), vs_peers.OURS])
def test_a_script_takes_data_and_weights_and_reports_in_the_shared_way(name):
    source = (SCRIPTS / f'{name}.py').read_text()
    assert 'common.data(' in source or '_torch.tensors(' in source
    assert 'common.first_weights()' in source or '_torch.Network' in source
    assert 'common.report(' in source


def test_the_loss_is_the_mean_cross_entropy_of_all_clients():
    x, y = common.data(2, 10)
    flat = [np.zeros_like(w) for w in common.first_weights()]
    assert common.loss(flat, x, y) == pytest.approx(np.log(10))
    flat[3][y[0, 0]] = 1e3
    wrong = (y != y[0, 0]).mean()
    assert common.loss(flat, x, y) == pytest.approx(1e3 * wrong)


@pytest.mark.integration
def test_ours_trains_and_prints_one_line(monkeypatch, capsys):
    flags = ['--clients=6', '--rounds=2', '--samples=40']
    monkeypatch.setattr(sys, 'argv', ['ours', *flags])
    ours.main()
    line = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(line['seconds']) == 2
    assert line['median'] == np.median(line['seconds'])
    assert line['steps_per_second'] == pytest.approx(6 * 2 / line['median'])
    before, after = line['loss']
    assert after < 0.7 * before


def test_the_table_has_medians_and_quotients_within_a_turn(capsys):
    def line(peer, median):
        return {
            'peer': peer,
            'version': '1.0',
            'clients': 20,
            'median': median,
            'steps_per_second': 200 / median,
            'loss': [3.7, 0.25],
        }

    turns = [
        {'ours': line('dfl_jax', a), 'flower': line('Flower', b)}
        for a, b in [(0.02, 0.2), (0.01, 0.4), (0.04, 0.8)]
    ]
    vs_peers.print_table(turns)
    rows = capsys.readouterr().out.splitlines()
    assert rows[0].startswith('| 20 clients |')
    assert rows[2] == '| dfl_jax 1.0 | 20 | 10,000 | 1.0 (1.0-1.0) | 3.70, 0.25 |'
    assert rows[3] == '| Flower 1.0 | 400 | 500 | 20.0 (10.0-40.0) | 3.70, 0.25 |'


def test_a_peer_is_a_script_and_an_interpreter():
    name, python = vs_peers.interpreter('fluke:venv/bin/python')
    assert name == 'fluke'
    assert python == str(Path.cwd() / 'venv/bin/python')
    for wrong in ('fluke', 'ours:python', 'other:python'):
        with pytest.raises(app.UsageError, match='NAME one of'):
            vs_peers.interpreter(wrong)


def test_rules_take_turns_with_those_of_a_process_of_its_own(tmp_path, capfd, monkeypatch):
    """A stand-in answers as ByzFL would, with the mean of what each receiver hears."""
    stand_in = tmp_path / 'python'
    program = (
        'import json, sys, numpy as np\n'
        'arrays = np.load(sys.argv[3])\n'
        "new = arrays['models'][arrays['members']].mean(axis=1)[:, ::1000]\n"
        "print(json.dumps('stand-in'), flush=True)\n"
        'for line in sys.stdin:\n'
        '    print(json.dumps([0.5, new.tolist()]), flush=True)\n'
    )
    stand_in.write_text(f'#!{sys.executable}\n{program}')
    stand_in.chmod(0o755)
    rng = np.random.default_rng(0)
    models = [rng.normal(size=(4, 30, 50)).astype('float32'), np.ones((4, 3), 'float32')]
    members = np.array([[0, 1], [1, 2], [2, 3], [3, 0]])

    def combine(rule):
        shift = rule != 'mean'
        return lambda trees: [a[members].mean(axis=1) + shift for a in trees]

    monkeypatch.setattr(robust, 'BYZFL', {'mean': ['Average'], 'median': ['Median']})
    robust.beside(str(stand_in), combine, models, members, None, 2)
    words = [row.split(' | ') for row in capfd.readouterr().out.splitlines()]
    assert words[0][0].startswith('stand-in')
    assert [row[2] for row in words[3:]] == ['500', '500']
    assert [row[4] for row in words[3:]] == ['4 of 4', '0 of 4']
