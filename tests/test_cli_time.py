"""Simulated seconds of runs, and `dfl-jax time`, which replays them."""

import json
import re
import shutil
from unittest import mock

import numpy as np
import pytest
from test_cli import NETWORK, called, here, write_sums

from dfl_jax.cli.time import command as time
from dfl_jax.cli.time import fastest_map, plot
from dfl_jax.experiment.run_directory import RunDirectory

SMALL = [
    *('--noprogress', '--nocheckpoint', '--clients=6', '--degree=2', '--rounds=4', '--alpha=1'),
    *('--train_samples=120', '--test_samples=50', '--hidden=8'),
]
DPSGD = '--algorithm=dpsgd'
WORLD = 'speed=lognormal:1e7:0.5,uplink=lognormal:1e6:0.5,latency=0.1'


def rows_of(path):
    return RunDirectory(path).rows()


def simulated(path):
    return [row['simulated_seconds'] for row in rows_of(path)]


@pytest.mark.integration
@pytest.mark.parametrize(
    ('method', 'barrier'),
    [
        ('--algorithm=dsgt', '--nobarrier'),
        ('--algorithm=dpsgd', '--barrier'),
        ('--algorithm=ntk_dfl --ntk_timesteps=5,10', '--nobarrier'),
    ],
)
def test_a_replay_takes_the_seconds_of_the_run(tmp_path, method, barrier):
    argv = (*SMALL, *method.split(), f'--world={WORLD}', barrier)
    out = here(*argv, f'--out={tmp_path}/a').succeeded().out
    seconds = simulated(tmp_path / 'a')
    assert f'{"simulated seconds":<22}{seconds[-1]:,.1f}' in out
    assert all(np.diff(seconds, prepend=0) > 0)
    called(
        time, f'--runs={tmp_path}/a', f'--world={WORLD}', barrier, f'--out={tmp_path}/time'
    ).succeeded()
    (replayed,) = json.loads((tmp_path / 'time' / 'time.json').read_text())
    # Of NTK methods the run tells the operations of all clients, which are shared evenly
    tolerance = 0.3 if 'ntk' in method else 1e-6
    np.testing.assert_allclose(replayed['simulated_seconds'], seconds, rtol=tolerance)


@pytest.fixture(scope='module')
def plain(tmp_path_factory):
    """A run of D-PSGD in no world; the tests leave it as it is."""
    out = tmp_path_factory.mktemp('runs') / 'plain'
    assert here(*SMALL, DPSGD, f'--out={out}').status == 0
    return out


@pytest.mark.integration
def test_a_regression_has_seconds_but_no_target(tmp_path):
    path = write_sums(tmp_path / 'set.npz')
    of_it = (f'--dataset={path}', '--task=regression', '--partition=iid', *NETWORK, DPSGD)
    here(*of_it, '--lr=0.01', f'--out={tmp_path}/a').succeeded()
    status, out, err = called(
        time, f'--runs={tmp_path}/a', f'--world={WORLD}', '--targets=0.2', f'--out={tmp_path}/t'
    )
    assert status == 0 and '| seconds a round | rmse | s to 0.2 |' in out, err
    (replayed,) = json.loads((tmp_path / 't' / 'time.json').read_text())
    assert replayed['rmse'] == [row['consensus_rmse'] for row in rows_of(tmp_path / 'a')]
    assert replayed['seconds_to'] == {'0.2': None}


@pytest.mark.integration
def test_many_runs_in_many_worlds(tmp_path, plain):
    shutil.copytree(plain, tmp_path / 'runs' / '0')
    assert here(*SMALL, DPSGD, '--seed=1', f'--out={tmp_path}/runs/1').status == 0
    worlds = 'speed=1e8,uplink=1e6;speed=1e8,uplink=2e6,latency=0.05'
    argv = (f'--runs={tmp_path}/runs', f'--world={worlds}', '--targets=0.01,1')
    out = called(time, *argv, f'--out={tmp_path}/t').succeeded().out
    table = [line.split('|')[1:-1] for line in out.splitlines() if line.startswith('|')]
    assert len(table) == 2 + 4 and (tmp_path / 't' / 'time.png').stat().st_size > 10_000
    assert (tmp_path / 't' / 'worlds.png').stat().st_size > 10_000
    rows = json.loads((tmp_path / 't' / 'time.json').read_text())
    slow, fast = rows[:2]
    assert slow['simulated_seconds'][-1] > 1.2 * fast['simulated_seconds'][-1]
    assert slow['seconds_to']['0.01'] == slow['simulated_seconds'][0]
    assert slow['seconds_to']['1'] is None and table[2][-1].strip() == '-'
    assert slow['joules'] == fast['joules']
    sent = rows_of(tmp_path / 'runs' / '0')[-1]
    joules = sent['operations_total'] * 1e-11 + sent['mbytes_total'] * 8e6 * 1e-7
    assert slow['joules'][-1] == pytest.approx(joules)


@pytest.mark.integration
def test_who_is_offline_sits_a_round_out(tmp_path, plain):
    """Where rounds begin at given times; else others wait for it."""
    world = '--world=speed=1e8,online=sine:100:0.5'
    assert here(*SMALL, DPSGD, world, f'--out={tmp_path}/wait').status == 0
    sits_out = (world, '--round_seconds=30', '--barrier')
    assert here(*SMALL, DPSGD, *sits_out, f'--out={tmp_path}/out').status == 0
    every, wait, out = map(rows_of, (plain, tmp_path / 'wait', tmp_path / 'out'))
    assert [r['mbytes_total'] for r in wait] == [r['mbytes_total'] for r in every]
    assert wait[-1]['consensus_accuracy'] == every[-1]['consensus_accuracy']
    assert wait[-1]['simulated_seconds'] > 25
    assert out[-1]['mbytes_total'] < 0.9 * every[-1]['mbytes_total']
    assert out[-1]['operations_total'] < 0.9 * every[-1]['operations_total']
    assert 90 < out[-1]['simulated_seconds'] < 100
    argv = (f'--runs={tmp_path}/out', world, '--barrier', f'--out={tmp_path}/t')
    called(time, *argv).succeeded()
    (replayed,) = json.loads((tmp_path / 't' / 'time.json').read_text())
    assert replayed['simulated_seconds'] == pytest.approx(simulated(tmp_path / 'out'), rel=1e-6)


@pytest.mark.integration
def test_a_resumed_clock(tmp_path):
    flags = [each for each in SMALL if each != '--nocheckpoint']
    here(*flags, DPSGD, f'--world={WORLD}', f'--out={tmp_path}/whole')
    two = [each.replace('rounds=4', 'rounds=2') for each in flags]
    assert here(*two, DPSGD, f'--world={WORLD}', f'--out={tmp_path}/a').status == 0
    assert here('--resume', '--rounds=4', f'--out={tmp_path}/a').status == 0
    assert simulated(tmp_path / 'a') == simulated(tmp_path / 'whole')


@pytest.mark.integration
def test_a_run_that_is_older_than_a_flag_resumes(tmp_path):
    flags = [each for each in SMALL if each != '--nocheckpoint']
    assert here(*flags, DPSGD, f'--out={tmp_path}/a').status == 0
    directory = RunDirectory(tmp_path / 'a')
    config = directory.config()
    for name in ('barrier', 'task', 'world'):
        del config['settings'][name]
    directory.write_config({k: v for k, v in config.items() if k != 'digest'})
    longer = ('--resume', '--rounds=5', '--task=classification', '--noprogress')
    here(*longer, f'--out={tmp_path}/a').succeeded()
    assert (
        'was started with --barrier=' in here('--resume', '--barrier', f'--out={tmp_path}/a').error
    )


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        ('--algorithm=dpsgd --barrier', '--barrier does not apply to the default, no --world'),
        ('--algorithm=dpsgd --world=speed=0', 'speed of client 0 is 0 operations a second'),
        ('--algorithm=ntk_fl --world=devices', 'the server of ntk_fl is none of the clients'),
        (
            '--algorithm=dpsgd --world=devices --round_seconds=5',
            'in --world=devices all are always online; add online=sine:PERIOD:SHARE',
        ),
        (
            '--algorithm=dpsgd --world=online=sine:9:0.5 --round_seconds=0',
            '--round_seconds=0.0: round_seconds has to be above 0, got 0.0',
        ),
        ('--algorithm=dpsgd --world=no.csv', 'no.csv cannot be read'),
    ],
)
def test_worlds_that_do_not_fit(tmp_path, flags, message):
    small = [each for each in SMALL if 'ntk_fl' not in flags or 'degree' not in each]
    assert message in here(*small, *flags.split(), f'--out={tmp_path}/out').error
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        ('', 'name finished runs, --runs=DIR, or draw the --map'),
        ('--runs=nowhere', '--runs=nowhere holds no run'),
        ('--runs=RUN --lr=0.1', '--lr=0.1 does not apply: runs keep their settings'),
        ('--runs=RUN --world=speed=nan', 'speed of client 0 is nan'),
        ('--runs=RUN --targets=high', '--targets=high: could not convert'),
        ('--runs=RUN --targets=0.8,nan', '--targets=nan is no accuracy'),
        ('--runs=RUN --world=speed=1e9;', 'a world between semicolons is empty'),
        ('--runs=RUN --operations=1e9', '--operations: these runs have counted their own'),
        ('--map --runs=RUN', '--runs is of runs, and the --map takes none'),
    ],
)
def test_what_time_refuses(tmp_path, plain, flags, message):
    flags = flags.replace('RUN', str(plain))
    assert message in called(time, *flags.split(), f'--out={tmp_path}/time', '--noprogress').error
    assert not (tmp_path / 'time').exists()


@pytest.mark.integration
def test_a_run_that_has_not_counted_its_operations(tmp_path):
    assert here(*SMALL, '--ntk_timesteps=5,10', f'--out={tmp_path}/a').status == 0
    directory = RunDirectory(tmp_path / 'a')
    rows = [
        {k: v for k, v in r.items() if k not in ('operations_total', 'digest')}
        for r in directory.rows()
    ]
    directory.metrics_file.unlink()
    for row in rows:
        directory.append(row)
    argv = (f'--runs={tmp_path}/a', '--world=speed=1e9', '--noprogress', f'--out={tmp_path}/t')
    assert 'replay a run that has counted it (operations_total' in called(time, *argv).error
    assert called(time, *argv, '--operations=1e9')[0] == 0
    (replayed,) = json.loads((tmp_path / 't' / 'time.json').read_text())
    assert replayed['simulated_seconds'][-1] > 4 * 1.0


@pytest.mark.integration
def test_runs_below_a_folder_and_those_that_cannot_be_replayed(tmp_path, plain):
    shutil.copytree(plain, tmp_path / 'runs' / 'sweep' / 'seed=0')
    shutil.copytree(plain, tmp_path / 'runs' / 'alone')
    shutil.copytree(plain, tmp_path / 'runs' / 'begun')
    (tmp_path / 'runs' / 'begun' / 'metrics.jsonl').write_text('')
    status, _, err = called(time, f'--runs={tmp_path}/runs', f'--out={tmp_path}/t')
    assert status == 0 and re.search(r'left out: \S*begun', err), err
    rows = json.loads((tmp_path / 't' / 'time.json').read_text())
    assert [row['run'] for row in rows] == ['alone', 'sweep/seed=0']


@pytest.mark.integration
@pytest.mark.parametrize('method', ['dpsgd', 'ntk_dfl --ntk_timesteps=5,10'])
def test_a_client_that_never_comes_back(tmp_path, method):
    """Found before the first round where the work is known then, in a line in any case."""
    ends = np.array([[1e9]] * 5 + [[0.5]])
    np.savez(
        tmp_path / 'world.npz',
        speed=np.full(6, 1e7),
        uplink=np.full(6, 1e6),
        online_starts=np.zeros((6, 1)),
        online_ends=ends,
    )
    argv = (*SMALL, *f'--algorithm={method} --barrier --world={tmp_path}/world.npz'.split())
    status, _, err = here(*argv, '--rounds=20', f'--out={tmp_path}/a')
    assert status == 1 and err.count('\n') == 1
    assert re.search(r'error: client 5 never comes back after \S+ s, and others wait for it', err)
    assert (tmp_path / 'a').exists() == ('ntk' in method)


@pytest.mark.integration
def test_a_method_that_counts_nothing(tmp_path, monkeypatch):
    (tmp_path / 'quiet.py').write_text(
        'from dfl_jax.algorithms import dpsgd\n'
        'def quiet(model):\n'
        '    method = dpsgd(model)\n'
        '    def step(*arguments):\n'
        '        state, info = method.step(*arguments)\n'
        '        return state, info._replace(flops=None)\n'
        '    return method._replace(step=step)\n'
    )
    monkeypatch.syspath_prepend(tmp_path)
    quiet = '--algorithm=quiet:quiet'
    line = here(*SMALL, quiet, '--world=devices', f'--out={tmp_path}/a').error
    assert 'the method does not count its operations (Info.flops)' in line
    assert here(*SMALL, quiet, f'--out={tmp_path}/a').status == 0
    assert 'operations_total' not in rows_of(tmp_path / 'a')[-1]
    argv = (f'--runs={tmp_path}/a', '--world=speed=1e9', '--noprogress', f'--out={tmp_path}/t')
    assert 'does not count its operations' in called(time, *argv, '--allow_imports').error
    assert called(time, *argv, '--allow_imports', '--operations=1e9')[0] == 0


# -------------------------------------------------------------------------------- without rounds

CLOCKS = ('--world=speed=two:2e6:2e7:0.3,latency=0.01', '--round_seconds=0.5')


# Of the others test_asynchronous.py has runs, which differ from these in the method alone.
SLOW = [pytest.param(n, marks=pytest.mark.slow) for n in ('gossip_learning', 'swift', 'divshare')]


@pytest.mark.integration
@pytest.mark.parametrize('method', ['ad_psgd', *SLOW])
def test_methods_without_rounds(tmp_path, method):
    flags = [each for each in SMALL if each != '--nocheckpoint']
    flags += ['--topology=ring', '--lr=0.2', '--link_dropout=0.2']
    flags = [each for each in flags if 'degree' not in each]
    argv = (*flags, f'--algorithm={method}', *CLOCKS)
    out = here(*argv, f'--out={tmp_path}/whole').succeeded().out
    rows = rows_of(tmp_path / 'whole')
    assert f'{sum(row["updates"] for row in rows):,} local updates in 4 intervals' in out
    assert [row['simulated_seconds'] for row in rows] == [0.5, 1.0, 1.5, 2.0]
    assert [row['round'] for row in rows] == [1, 2, 3, 4]
    assert all(row['updates'] > 5 for row in rows)
    assert rows[-1]['consensus_loss'] < 0.7 * np.log(10)  # of guessing
    each = rows[-1]['operations_total'] / sum(row['updates'] for row in rows)
    assert each == pytest.approx(2 * (64 * 8 * 2 + 8 * 10 * 3) * 20, rel=0.2)  # of about 20 samples
    shutil.copytree(tmp_path / 'whole', tmp_path / 'a')
    (tmp_path / 'a' / 'done').unlink()  # as if it was killed after the second evaluation
    for last in (3, 4):
        shutil.rmtree(tmp_path / 'a' / 'checkpoints' / str(last), ignore_errors=True)
    here('--resume', f'--out={tmp_path}/a').succeeded()
    same = ('consensus_accuracy', 'consensus_loss', 'mbytes_total', 'updates')
    again = rows_of(tmp_path / 'a')
    assert [[r[name] for name in same] for r in again] == [[r[n] for n in same] for r in rows]
    with mock.patch('dfl_jax.experiment.build.build', side_effect=AssertionError):
        status, _, err = called(time, f'--runs={tmp_path}/whole', f'--out={tmp_path}/t')
    assert status == 1 and f'{method} has no rounds, and' in err  # what is left out is not planned
    shown = here(*argv, '--progress', '--eval_every=4', f'--out={tmp_path}/b')[2]
    counts = [int(count) for count in re.findall(r'(\d+)/\d+ \[', shown)]
    ends = np.cumsum([row['updates'] for row in rows])
    assert {*ends} <= {*counts} and f'/{ends[-1]} [' in shown  # after every interval
    assert rows_of(tmp_path / 'b')[-1]['consensus_loss'] == rows[-1]['consensus_loss']


@pytest.mark.integration
@pytest.mark.parametrize('method', ['ad_psgd', pytest.param('divshare', marks=pytest.mark.slow)])
def test_a_longer_run_without_rounds_goes_on(tmp_path, method):
    """As if it had been that long from the start."""
    flags = [each for each in SMALL if each != '--nocheckpoint' and 'degree' not in each]
    argv = (*flags, f'--algorithm={method}', '--topology=complete', *CLOCKS)
    assert here(*argv, '--rounds=3', f'--out={tmp_path}/a').status == 0
    assert here('--resume', '--rounds=5', f'--out={tmp_path}/a').succeeded().err == ''
    assert here(*argv, '--rounds=5', f'--out={tmp_path}/long').status == 0
    same = ('consensus_accuracy', 'consensus_loss', 'client_loss_mean', 'mbytes_total', 'updates')
    longer, anew = (rows_of(tmp_path / name) for name in ('a', 'long'))
    assert [[r[n] for n in same] for r in longer] == [[r[n] for n in same] for r in anew]
    assert [r['simulated_seconds'] for r in longer] == [0.5, 1, 1.5, 2, 2.5]


@pytest.mark.parametrize(
    ('flags', 'message'),
    [
        ('', '--algorithm=swift has no rounds; give it a --world, and'),
        ('--world=devices', '--algorithm=swift has no rounds; give it a --world, and'),
        ('--world=speed=1 --round_seconds=1', 'no local update ends within 4 seconds'),
        *(
            (f'--world=devices --round_seconds=1 --{flag}', 'have clocks of their own; leave it')
            for flag in ('barrier', 'link_dropout_directed=0.5', 'isolate_dropout=0.5')
        ),
        (
            '--world=devices --round_seconds=1 --nostatic_topology',
            'swift needs the same graph in every round',
        ),
        (
            '--world=devices --round_seconds=1 --link_dropout=1',
            '--link_dropout=1.0: link_dropout has to lie in [0, 1), got 1.0',
        ),
        (
            '--algorithm=divshare --world=devices --round_seconds=1 --recipients=3',
            'client 0 has 2 neighbours; use fewer recipients',
        ),
        (
            '--algorithm=divshare --world=devices --round_seconds=1 --fragments=0',
            'fragments of 610 parameters has to lie in [1, 610], got 0',
        ),
        ('--world=devices --round_seconds=1 --fragments=2', 'does not apply to --algorithm=swift'),
    ],
)
def test_what_methods_without_rounds_refuse(tmp_path, flags, message):
    small = [each for each in SMALL if 'degree' not in each]
    argv = ('--algorithm=swift', '--topology=ring', *flags.split(), f'--out={tmp_path}/out')
    assert message in here(*small, *argv).error
    assert not (tmp_path / 'out').exists()


# ------------------------------------------------------------------------------------------- map


def test_the_map_is_that_of_the_documents():
    """The stored table, made anew from the stored curves."""
    definition, folder = fastest_map.read_definition()
    text = fastest_map.report(definition, fastest_map.rounds_to_targets(definition, folder))
    assert text + '\n' == (folder / 'time-map.md').read_text()


def test_times_in_words():
    seconds = (0.0123, 1, 59, 60, 5400, 86400 * 3, np.inf)
    found = [fastest_map.in_units(each) for each in seconds]
    assert found == [
        '0.0123 seconds',
        '1 second',
        '59 seconds',
        '1 minute',
        '1.5 hours',
        '3 days',
        '-',
    ]


def test_seeds_of_a_run_share_a_colour_and_a_name(tmp_path, monkeypatch):
    monkeypatch.setattr(plot.plt, 'close', lambda _: None)
    names = (
        *('dpsgd-seed0', 'dpsgd-seed1', 'dfedavg-seed0', '/runs/alpha=0.1,seed=3'),
        *('seed=4', 'seeds'),
    )
    same = {'world': 'slow', 'metric': 'accuracy', 'accuracy': [0.1, 0.2]}
    rows = [same | {'run': name, 'simulated_seconds': [1, 2]} for name in names]
    plot.plot_times(rows, tmp_path / 'time.png')
    (axis,) = plot.plt.gcf().axes
    legend = [text.get_text() for text in axis.get_legend().get_texts()]
    assert legend == ['dpsgd (2 seeds)', 'dfedavg', '/runs/alpha=0.1', 'seed=4', 'seeds']
    first, second, *others = [line.get_color() for line in axis.lines]
    assert first == second and len({first, *others}) == 5
