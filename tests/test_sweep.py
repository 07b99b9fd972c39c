"""Sweeps: their plans, their programs, what a kill leaves of them."""

import csv
import functools
import itertools
import json
import random
import shutil
import sys
import time
from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np
import pytest
from helpers import started
from test_cli import NETWORK, QUIET, SMALL, called, here, rows_of, write_sums

from dfl_jax import asynchronous, timing, topology
from dfl_jax.cli.command import share
from dfl_jax.cli.sweep import command as sweep
from dfl_jax.cli.sweep import group as sweep_group
from dfl_jax.cli.sweep import plot
from dfl_jax.cli.sweep.plan import Plan, Run, grid, grouped, settled
from dfl_jax.cli.sweep.results import _plot_map as plotted
from dfl_jax.cli.sweep.results import write_results
from dfl_jax.evaluation import Holdout
from dfl_jax.experiment import Experiment
from dfl_jax.methods import METHODS
from dfl_jax.timing import Rules
from tests.torture.runs import lines_in

swept = functools.partial(called, sweep, *QUIET)


@pytest.fixture(scope='module')
def small(tiny):
    return (f'--dataset={tiny}', *SMALL)


GRID = ('--sweep=lr:0.01,0.05', '--sweep=seed:0..1')


@pytest.fixture(scope='module')
def finished(small, tmp_path_factory):
    """A sweep that is done; the tests leave it as it is."""
    out = tmp_path_factory.mktemp('sweeps') / 'done'
    swept(*small, *GRID, f'--out={out}').succeeded()
    return out


# ------------------------------------------------------------------------------------- the plan


def test_a_grid_is_every_combination_the_last_flag_fastest():
    runs = grid(['alpha:0.1,0.5', 'seed:0..2'], [])
    assert [run.name for run in runs][:4] == [
        'alpha=0.1,seed=0', 'alpha=0.1,seed=1', 'alpha=0.1,seed=2', 'alpha=0.5,seed=0'
    ]  # fmt: skip
    assert len(runs) == 6 and runs[4].values == {'alpha': '0.5', 'seed': '1'}
    both = grid(['seed:-1..0'], ['a/x.flags', 'b/y.flags'])
    assert [run.name for run in both] == ['x,seed=-1', 'x,seed=0', 'y,seed=-1', 'y,seed=0']
    assert grid(['partition_file:d/p.json,q.json'], [])[0].name == 'partition_file=p'


@pytest.mark.parametrize(
    ('specs', 'flagfiles', 'pattern'),
    [
        (['alpha'], [], r'--sweep=alpha cannot be read; write --sweep=alpha:0.1,0.5'),
        (['alpha:'], [], 'cannot be read'),
        (['alpha:0.1,'], [], 'cannot be read'),
        (['seed:4..2'], [], 'cannot be read'),
        (['seed:1,1'], [], 'has a value twice'),
        (['seed:1', 'seed:2'], [], 'names a flag twice'),
        ([], ['a/x.flags', 'b/x.flags'], 'two runs would be called x'),
        ([], [], 'nothing to sweep'),
        (['seed:0..99999999999'], [], 'makes 100,000,000,000 runs, more than 100,000; sweep fewer'),
        (['seed:0..999', 'degree:1..101'], [], 'makes 101,000 runs'),
        (['seed:0..99999'], ['a.flags', 'b.flags'], 'makes 200,000 runs'),
        ([], ['a/groups.flags'], 'a run cannot be called groups'),
    ],
)
def test_a_grid_that_is_refused(specs, flagfiles, pattern):
    with pytest.raises(ValueError, match=pattern):
        grid(specs, flagfiles)


def test_runs_go_together_where_only_traced_flags_differ():
    runs = grid(['degree:2,3', 'seed:0..4'], [])
    traced = [Experiment().traced] * len(runs)
    sizes = [len(group) for group in grouped(runs, traced, 10)]
    assert sizes == [5, 5]
    assert [len(group) for group in grouped(runs, traced, 2)] == [1, 2, 2, 1, 2, 2]
    assert [run for group in grouped(runs, traced, 2) for run in group] == runs


def test_a_method_says_which_of_its_settings_are_traced():
    untraced = METHODS['dpsgd']._replace(traced=())
    assert 'lr' in Experiment.of(algorithm='dpsgd').traced
    assert 'lr' not in Experiment.of(algorithm=untraced).traced


def test_shards_are_all_groups_once():
    parts = [share(f'{i}/3', range(7)) for i in range(3)]
    assert sorted(itertools.chain(*parts)) == list(range(7))
    for text in ('3/3', '1', 'a/b', '0/0'):
        with pytest.raises(ValueError, match='write i/n'):
            share(text, range(7))


def test_a_plan_is_settled_once(tmp_path):
    runs = grid(['seed:0..3'], [])
    traced = [['seed']] * 4
    first = settled(tmp_path / 's' / 'sweep.json', Plan(['--rounds=2'], grouped(runs, traced, 2)))
    again = settled(tmp_path / 's' / 'sweep.json', Plan(['--rounds=2'], grouped(runs, traced, 4)))
    assert again == first and len(first.groups) == 2
    with pytest.raises(ValueError, match=r'started with --rounds=2, not --rounds=3'):
        settled(tmp_path / 's' / 'sweep.json', Plan(['--rounds=3'], first.groups))
    with pytest.raises(ValueError, match='holds another sweep, of 4 runs such as seed=0'):
        settled(tmp_path / 's' / 'sweep.json', Plan(['--rounds=2'], [runs[:1]]))


def test_the_command_line_of_the_runs():
    sweep.define_flags()
    argv = ['x', '--rounds=3', '--sweep', 'seed:0..1', '--noprogress', '--degree', '2', '--out=a']
    assert sweep.Command(argv).arguments == ['--rounds=3', '--degree', '2']


# -------------------------------------------------------------------------------------- the runs


@pytest.mark.integration
def test_every_run_is_as_if_it_were_alone(finished, small, tmp_path):
    assert json.loads((finished / 'sweep.json').read_text())['groups'][0][3]['values'] == {
        'lr': '0.05', 'seed': '1'
    }  # fmt: skip
    here(*small, '--lr=0.05', '--seed=1', f'--out={tmp_path}/out').succeeded()
    ours, single = rows_of(finished / 'lr=0.05,seed=1'), rows_of(tmp_path / 'out')
    assert [row.keys() for row in ours] == [row.keys() for row in single]
    for row, other in zip(ours, single, strict=True):
        assert row['consensus_accuracy'] == pytest.approx(other['consensus_accuracy'], abs=0.03)
        assert row['consensus_loss'] == pytest.approx(other['consensus_loss'], rel=1e-3)
        assert row['mbytes_total'] == other['mbytes_total']
    config = json.loads((finished / 'lr=0.05,seed=1' / 'config.json').read_text())
    other = json.loads((tmp_path / 'out' / 'config.json').read_text())
    assert config['settings'] == other['settings'] and config['algorithm'] == other['algorithm']


@pytest.mark.integration
def test_every_run_evaluates_its_clients_on_the_samples_it_has_alone(small, tmp_path):
    flags = (*small, '--client_eval_samples=7', '--rounds=1')
    assert swept(*flags, '--sweep=seed:0..1', f'--out={tmp_path}/s').status == 0
    chosen = []
    for seed in range(2):
        assert here(*flags, f'--seed={seed}', f'--out={tmp_path}/{seed}').status == 0
        places = (tmp_path / 's' / f'seed={seed}', tmp_path / f'{seed}')
        ours, single = (json.loads((p / 'clients.jsonl').read_text()) for p in places)
        assert ours['loss'] == pytest.approx(single['loss'], rel=1e-3)
        one, same = (json.loads((p / 'network.json').read_text())['evaluated'] for p in places)
        assert one == same and len(one) == 7
        chosen.append(one)
    assert chosen[0] != chosen[1]


@pytest.mark.integration
@pytest.mark.parametrize('gain', ['graph', 'push_sum'])
def test_runs_of_a_gain_each_are_one_program_and_as_if_alone(gain, small, tmp_path, monkeypatch):
    programs = []

    def recorded(program, *of, train=sweep_group._train):
        programs.append(len(program))
        train(program, *of)

    monkeypatch.setattr(sweep_group, '_train', recorded)
    start = (f'--gain={gain}', '--init=gain_corrected', '--topology=erdos_renyi')
    flags = (small[0], '--algorithm=dpsgd', '--clients=6', '--degree=2', '--rounds=2', *start)
    assert swept(*flags, '--sweep=seed:0..1', '--together=2', f'--out={tmp_path}/s').status == 0
    assert programs == [2]
    assert here(*flags, '--seed=1', f'--out={tmp_path}/out').status == 0
    ours, single = (rows_of(p) for p in (tmp_path / 's' / 'seed=1', tmp_path / 'out'))
    for row, other in zip(ours, single, strict=True):
        assert row['consensus_loss'] == pytest.approx(other['consensus_loss'], rel=1e-5)


def test_seeds_that_need_all_of_32_bits_are_one_program(small, tmp_path):
    """That of the projections of SPARK follows from the seed: of 1, 4,245,214,700."""
    sizes = ('--clients=4', '--topology=ring', '--rounds=1', '--hidden=4')
    kernels = ('--algorithm=spark', '--ntk_timesteps=3,8', '--spark_projection_dim=8')
    flags = (small[0], *sizes, *kernels)
    assert swept(*flags, '--sweep=seed:0..1', '--together=2', f'--out={tmp_path}/s').status == 0
    assert here(*flags, '--seed=1', f'--out={tmp_path}/out').status == 0
    ours, single = rows_of(tmp_path / 's' / 'seed=1'), rows_of(tmp_path / 'out')
    assert ours[-1]['consensus_loss'] == pytest.approx(single[-1]['consensus_loss'], rel=1e-5)


@pytest.mark.integration
@pytest.mark.parametrize('name', [pytest.param('swift', marks=pytest.mark.slow), 'divshare'])
def test_runs_without_rounds_are_as_if_they_were_alone(name, small, tmp_path):
    world = ('--world=speed=1e6,latency=0.001', '--round_seconds=0.3', '--link_dropout=0.2')
    sizes = ('--clients=6', '--topology=ring', '--rounds=2', '--hidden=8')
    flags = (small[0], *sizes, f'--algorithm={name}', *world)
    assert swept(*flags, '--sweep=lr:0.1,0.2', '--together=2', f'--out={tmp_path}/s').status == 0
    assert here(*flags, '--lr=0.2', f'--out={tmp_path}/out').status == 0
    ours, single = rows_of(tmp_path / 's' / 'lr=0.2'), rows_of(tmp_path / 'out')
    assert len(ours) == len(single) > 1
    for row, other in zip(ours, single, strict=True):
        assert row['consensus_loss'] == pytest.approx(other['consensus_loss'], rel=1e-4)
        assert (row['updates'], row['mbytes_total']) == (other['updates'], other['mbytes_total'])


@pytest.mark.integration
def test_its_results(finished):
    with open(finished / 'results.csv') as file:
        rows = list(csv.DictReader(file))
    assert [row['run'] for row in rows][:2] == ['lr=0.01,seed=0', 'lr=0.01,seed=1']
    for row in rows:
        last = rows_of(finished / row['run'])[-1]
        assert row['state'] == 'done'
        assert float(row['accuracy']) == last['consensus_accuracy']
    lines = (finished / 'results.md').read_text().splitlines()
    mean = sum(float(row['accuracy']) for row in rows[:2]) / 2
    assert lines[2].startswith(f'| 0.01 | 2 | {mean:.4f} ± ')
    assert not (finished / 'groups' / 'lr=0.01,seed=0' / 'checkpoints').exists()
    assert (finished / 'results.png').stat().st_size > 10_000


@pytest.mark.parametrize('lower', [False, True])
def test_its_picture_has_the_best_settings_and_their_means(lower, tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(plot.plt, 'close', figures.append)
    count = len(plot.COLOURS) + 2
    curves = {f'lr {i}': [([1, 2, 4], [0, 1, i]), ([2, 4], [3, i + 2])] for i in range(count)}
    plot.plot_results(curves, 'accuracy', lower, tmp_path / 'x.png')
    (axes,) = figures[0].axes
    first = axes.lines[0]
    assert first.get_label() == ('lr 0' if lower else f'lr {count - 1}')
    assert first.get_xdata().tolist() == [2, 4]
    assert first.get_ydata().tolist() == [2, 1 if lower else count]
    assert axes.get_title() == f'the best {count - 2} of {count} settings'


def test_its_map_has_a_field_for_each_two_settings_and_none_of_runs_that_failed(
    tmp_path, monkeypatch
):
    figures = []
    monkeypatch.setattr(plot.plt, 'close', figures.append)
    final = {('a', 'x', 0): 0.1, ('a', 'x', 1): 0.3, ('b', 'x', 0): 0.5, ('b', 'y', 0): 0.7}
    runs = [
        (
            Run('', None, {'one': one, 'other': other, 'same': '1', 'seed': str(seed)}),
            {'state': 'done', 'final': value, 'client': value / 2, 'lower': False, 'metric': 'x'},
        )
        for (one, other, seed), value in final.items()
    ]
    failed = Run('', None, {'one': 'a', 'other': 'y', 'same': '1', 'seed': '0'})
    plotted([*runs, (failed, {'state': 'unfinished'})], 'accuracy', tmp_path / 'x.png')
    for axes, expected in zip(
        figures[0].axes, (['0.20', '0.50', '0.70'], ['0.10', '0.25', '0.35']), strict=True
    ):
        assert [text.get_text() for text in axes.texts] == expected
        places = [text.get_position() for text in axes.texts]
        assert places == [(0, 0), (0, 1), (1, 1)]
    assert [t.get_text() for t in figures[0].axes[0].get_yticklabels()] == ['a', 'b']
    plotted(runs[:2], 'accuracy', tmp_path / 'none.png')
    assert not (tmp_path / 'none.png').exists(), 'a map of one field'


@pytest.mark.integration
def test_a_sweep_of_rounds_has_both_their_number_and_those_to_the_target(small, tmp_path):
    assert swept(*small, '--sweep=rounds:1,2', f'--out={tmp_path}/out').status == 0
    with open(tmp_path / 'out' / 'results.csv') as file:
        rows = list(csv.DictReader(file))
    assert [row['rounds'] for row in rows] == ['1', '2'] and 'rounds_to_target' in rows[0]


@pytest.mark.integration
def test_defaults_that_swept_methods_do_not_share_are_told(small, tmp_path):
    swept(small[0], *NETWORK, '--sweep=algorithm:dpsgd,d2', f'--out={tmp_path}/out').succeeded()
    written = (tmp_path / 'out' / 'results.md').read_text()
    assert 'By default --static_topology is False for dpsgd, True for d2; give it' in written


@pytest.mark.integration
def test_a_sweep_of_another_task(tmp_path):
    path = write_sums(tmp_path / 'set.npz')
    swept(
        *(f'--dataset={path}', '--task=regression', '--partition=iid', '--algorithm=dfedavg'),
        *(*NETWORK, '--sweep=lr:0.01,0.02', f'--out={tmp_path}/out'),
    ).succeeded()
    with open(tmp_path / 'out' / 'results.csv') as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        errors = [each['consensus_rmse'] for each in rows_of(tmp_path / 'out' / row['run'])]
        assert (float(row['rmse']), float(row['best'])) == (errors[-1], min(errors))
        assert not row['rounds_to_target'] and 'accuracy' not in row
    heading = (tmp_path / 'out' / 'results.md').read_text().splitlines()[0]
    assert heading.startswith('| lr | runs | rmse | best |')


@pytest.mark.integration
def test_a_method_whose_checks_look_at_what_is_swept(small, tmp_path, monkeypatch):
    """Its runs follow one another, as their learning rates cannot be traced."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'checked_lr.py').write_text(
        'from dfl_jax.algorithms import dpsgd\n'
        'from dfl_jax.training import LocalTraining\n'
        'def factory(model, *, lr: float = 0.1):\n'
        '    assert lr > 0\n'
        '    return dpsgd(model, training=LocalTraining(lr=lr, batch_size=10, local_epochs=1))\n'
    )
    network = [flag for flag in small if '--evolution' not in flag and '--ntk' not in flag]
    mine, out = '--algorithm=checked_lr:factory', f'--out={tmp_path}/out'
    swept(*network, mine, '--sweep=lr:0.05,0.1', '--together=2', out).succeeded()
    with open(tmp_path / 'out' / 'results.csv') as file:
        assert [row['state'] for row in csv.DictReader(file)] == ['done', 'done']
    sys.modules.pop('checked_lr')


def test_a_sweep_that_is_done_does_nothing(finished, small):
    before = {path: path.stat().st_mtime for path in finished.rglob('metrics.jsonl')}
    again = swept(*small, *GRID, f'--out={finished}')
    assert again.status == 0 and '| 0.05 | 2 |' in again.out
    assert before == {path: path.stat().st_mtime for path in finished.rglob('metrics.jsonl')}


@pytest.mark.integration
def test_what_is_warned_of_is_one_line(small, tmp_path):
    graph = ('--topology=clustered', '--static_topology', '--rounds=1', '--sweep=seed:0..0')
    done = swept(*small, *graph, f'--out={tmp_path}/out')
    warning = 'warning: the static clustered graph is not connected: 2 components never mix'
    assert done.status == 0 and set(done.err.splitlines()) == {warning}


@pytest.mark.integration
def test_a_run_that_diverges_does_not_take_the_others_with_it(small, tmp_path):
    argv = (*small, '--algorithm=dpsgd', '--hidden=4', '--evolution=', '--ntk_timesteps=')
    argv = tuple(a for a in argv if not a.startswith(('--evolution', '--ntk')))
    done = swept(*argv, '--sweep=lr:0.1,1e30', f'--out={tmp_path}/out').succeeded()
    assert 'lr=1e30: round 1: the training loss of 6 client(s) is not finite' in done.out
    assert '| 0.1 | 1 |' in done.out and '| 1e30 | 0 of 1 | - |' in done.out
    assert (tmp_path / 'out' / 'lr=0.1' / 'done').exists()
    assert sweep_group.diverged(sweep_group.RunDirectory(tmp_path / 'out' / 'lr=1e30'))


@pytest.mark.integration
def test_a_run_that_cannot_start_does_not_take_the_others_with_it(small, tmp_path):
    """When it can, it is trained alone, and the others stay as they are."""
    for first, name in enumerate(('a', 'b', 'kept')):
        parts = np.arange(first, first + 12).reshape(6, 2).tolist()
        (tmp_path / f'{name}.json').write_text(json.dumps(parts))
    files = ','.join(str(tmp_path / f'{name}.json') for name in ('a', 'late', 'b'))
    argv = (*small, f'--sweep=partition_file:{files}', f'--out={tmp_path}/out')
    done = swept(*argv)
    assert done.status == 1 and done.err.count('\n') == 1, done
    assert 'partition_file=late: run partition_file=late cannot start' in done.err
    files = [tmp_path / 'out' / f'partition_file={name}' / 'done' for name in ('a', 'b', 'late')]
    assert [file.exists() for file in files] == [True, True, False]
    before = [file.stat().st_mtime_ns for file in files[:2]]
    (tmp_path / 'kept.json').rename(tmp_path / 'late.json')
    assert swept(*argv).status == 0 and files[2].exists()
    assert [file.stat().st_mtime_ns for file in files[:2]] == before
    group = tmp_path / 'out' / 'groups' / 'partition_file=a'
    assert not (group / 'checkpoints').exists()


@pytest.mark.integration
def test_what_runs_have_reached_together_is_kept_when_one_cannot_start_again(small, tmp_path):
    files = [tmp_path / f'{name}.json' for name in 'ab']
    for first, file in enumerate(files):
        file.write_text(json.dumps(np.arange(first, first + 12).reshape(6, 2).tolist()))
    out = tmp_path / 'out'
    argv = (*small, '--rounds=60', f'--sweep=partition_file:{files[0]},{files[1]}', f'--out={out}')
    rows = out / 'partition_file=a' / 'metrics.jsonl'
    process = started('sweep', *argv, *QUIET, '--together=2', cwd=tmp_path)
    process.until(lambda: lines_in(rows.parent) > 3)
    process.kill()
    process.outcome()
    before = rows.read_text()
    files[1].rename(tmp_path / 'away')
    done = swept(*argv, '--together=2')
    assert done.status == 1 and 'partition_file=b cannot start' in done.err
    assert rows.read_text() == before
    (tmp_path / 'away').rename(files[1])
    assert swept(*argv, '--together=2').status == 0
    assert rows.read_text().startswith(before[: before.rindex('\n', 0, -1)])


@pytest.mark.parametrize(
    ('argv', 'parts'),
    [
        ('--sweep=learning_rate:1', ['--sweep=learning_rate', 'no setting of a run']),
        ('--sweep=out:a,b', ['--sweep=out', 'no setting']),
        ('--sweep=lr:a', ['lr', "'a'"]),
        ('--sweep=seed:0..1 --resume', ['--resume', 'leave it out']),
        ('--sweep=seed:0..1 --wandb_project=x', ['--wandb_project', 'leave it out']),
        ('--sweep=seed:0..1 --shard=2/2', ['--shard=2/2', 'i/n']),
        ('--sweep=clients:7,9 --degree=3', ['clients*degree even', 'got clients=7']),
    ],
)
def test_what_is_refused(small, tmp_path, argv, parts):
    line = swept(*small, *argv.split(), f'--out={tmp_path}/out').error
    for part in parts:
        assert part in line


def test_what_another_process_works_on_is_left_to_it(small, tmp_path):
    folder = tmp_path / 'out' / 'groups' / 'seed=0'
    folder.mkdir(parents=True)
    with sweep.RunDirectory(folder).locked():
        done = swept(*small, '--sweep=seed:0,1', f'--out={tmp_path}/out')
    assert done.status == 1 and done.err.count(f'another process works in {folder}') == 2


@pytest.mark.parametrize(
    ('content', 'words'),
    [
        (None, 'cannot be read: No such file'),
        ('folder', 'cannot be read: Is a directory'),
        (b'\xff\xfe\x00', 'cannot be read: it is no text'),
        (b'--degree=x', '--degree=x'),
        (b'--nonsense=3', "'nonsense'"),
        (b'a line', "'a line', which is no flag"),
        (b'--flagfile=FILE', 'includes itself'),
        (b'--flagfile=absent', '--flagfile=absent cannot be read'),
    ],
)
def test_a_flagfile_that_is_none(content, words, small, tmp_path):
    file = tmp_path / 'one.flags'
    if content == 'folder':
        file.mkdir()
    elif content is not None:
        file.write_bytes(content.replace(b'FILE', str(file).encode()))
    for given in (f'--flagfiles={file}', f'--flagfile={file}'):
        argv = ('--sweep=seed:0..1', given, f'--out={tmp_path}/out')
        if content == b'a line' and given.startswith('--flagfile='):
            words = "unexpected argument 'a line'"
        assert words in swept(*small, *argv).error
    assert not (tmp_path / 'out').exists()


@pytest.mark.integration
def test_a_wrong_value_ends_the_process_in_one_line(small, tmp_path):
    """Also after absl has looked at its own flags, which it does when a process ends."""
    done = started('sweep', *small, '--sweep=lr:a', '--out=out', cwd=tmp_path).outcome()
    assert done.status == 1 and done.err.count('\n') == 1, done.err
    assert done.err.startswith('error: flag --lr=a: ')
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize(
    'text',
    [
        '', 'null', '[]', '{}', '[' * 100_000, '{"arguments": [], "groups": 3}',
        '{"arguments": [], "groups": [[]]}', '{"arguments": 3, "groups": []}',
        '{"arguments": [], "groups": [[{"name": "a"}]]}',
        '{"arguments": [], "groups": [[{"name": 3, "flagfile": null, "values": {}}]]}',
        '{"arguments": [], "groups": [[{"name": "a", "flagfile": null, "values": {"a": 1}}]]}',
        None,
    ],
)  # fmt: skip
def test_a_plan_that_is_none(text, tmp_path):
    file = tmp_path / 'sweep.json'
    if text is None:
        file.mkdir()
    else:
        file.write_text(text)
    with pytest.raises(ValueError, match=r'is damaged|cannot be read|holds another') as caught:
        settled(file, Plan([], grouped(grid(['seed:0..1'], []), [['seed']] * 2, 2)))
    assert '\n' not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ['sweep.json']


@pytest.mark.parametrize(
    ('file', 'text'),
    [
        ('metrics.jsonl', ''),
        ('metrics.jsonl', 'garbage\n'),
        ('metrics.jsonl', '{"round": 1, "consensus_accuracy": "high"}\n'),
        ('diverged.json', '[]'),
        ('diverged.json', '[' * 100_000),
    ],
)
def test_a_run_that_cannot_be_read_does_not_take_the_results_with_it(
    file, text, finished, tmp_path
):
    runs = grid(['lr:0.01,0.05', 'seed:0..1'], [])
    for one in runs:
        shutil.copytree(finished / one.name, tmp_path / one.name)
    (tmp_path / runs[1].name / file).write_text(text)
    table = write_results(runs, tmp_path)
    assert '| 0.01 | 1 of 2 |' in table and '| 0.05 | 2 |' in table
    assert f'{runs[1].name}: cannot be read: ' in table


def test_where_nothing_can_be_written(small, tmp_path):
    (tmp_path / 'file').touch()
    (tmp_path / 'full' / 'results.md').mkdir(parents=True)
    before = sorted(tmp_path.rglob('*'))
    for out in ('file', 'file/deep', 'full'):
        line = swept(*small, '--sweep=seed:0..1', f'--out={tmp_path / out}').error
        assert 'choose another --out' in line
    assert sorted(tmp_path.rglob('*')) == before


def test_ctrl_c_while_planning(small, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, 'make_plan', mock.Mock(side_effect=KeyboardInterrupt))
    done = swept(*small, '--sweep=seed:0..1', f'--out={tmp_path}/out')
    assert done.status == 130 and done.error.startswith('error: interrupted')


# ----------------------------------------------------------------------------------------- kills

KILLED = (
    '--dataset=synthetic', '--train_samples=600', *SMALL, '--rounds=8', '--noprogress',
    '--sweep=seed:0..1', '--sweep=degree:2,3',
)  # fmt: skip


def start(out, cache):
    flags = (f'--compilation_cache={cache}', *KILLED, f'--out={out}')
    return started('sweep', *flags, cwd=out.parent)


@pytest.mark.integration
@pytest.mark.parametrize('kills', [2, pytest.param(10, marks=pytest.mark.slow)])
def test_a_sweep_killed_at_random_ends_as_if_it_had_not_been(kills, tmp_path):
    cache = tmp_path / 'xla'
    assert start(tmp_path / 'whole', cache).outcome().status == 0
    out, moments = tmp_path / 'out', random.Random(kills)
    for _ in range(kills):
        process = start(out, cache)
        lines = sum(map(lines_in, out.glob('*')))
        process.until(lambda n=lines: sum(map(lines_in, out.glob('*'))) > n)
        time.sleep(moments.uniform(0, 0.4))
        process.kill()
        process.outcome()
    assert start(out, cache).outcome().status == 0
    for name in ('results.csv', 'results.md'):
        assert (out / name).read_text() == (tmp_path / 'whole' / name).read_text()


def test_runs_of_different_test_sets_are_not_one_program():
    """A run evaluates all members of a group on one test set."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4, 3)), np.arange(4)
    graphs = SimpleNamespace(active=np.ones((2, 3), bool))

    def experiment(
        x=x, y=y, lr=0.1, mixing='size', rounds=2, weights=None, barrier=False, judged=None
    ):
        return SimpleNamespace(
            configured=SimpleNamespace(
                settings={'lr': lr, 'mixing': mixing},
                method=METHODS['dpsgd'],
                gain=None,
                attack=None,
            ),
            attackers=None,
            rows=SimpleNamespace(values={'attack': None}),
            population=None,
            test=Holdout(x, y),
            graphs=SimpleNamespace(active=graphs.active[:rounds], weights=weights),
            world=None,
            judged=judged,
            clients=SimpleNamespace(arrival=None),
            rules=Rules(barrier=barrier),
        )

    assert sweep_group._alike([experiment(), experiment(lr=0.2)])
    for other in (
        experiment(judged=np.array([True, False, True])),
        experiment(x=-x),
        experiment(y=y[::-1]),
        experiment(mixing='uniform'),
        experiment(rounds=1),
        experiment(barrier=True),
        experiment(weights=np.ones((2, 3, 1))),
    ):
        assert not sweep_group._alike([experiment(), other])


def test_plans_of_different_widths_are_one_array():
    """Padding reads the client's own model and sends nothing."""
    ring = topology.schedule('ring', 6, 1, seed=0, static=True)
    drawn = timing.world(6, speed=1.0, uplink=1e4)
    plans = [
        asynchronous.plan(
            'divshare', ring, drawn, flops=1, bits=960, updates=30, width=3, recipients=count
        )
        for count in (1, 2)
    ]
    both = [jax.tree.map(lambda a: a[:, :30], asynchronous.intervals_of(p)) for p in plans]
    widths = [one.members.shape[2] for one in both]
    assert widths[0] != widths[1]
    wide = sweep_group._wide(both)
    for number, one in enumerate(both):
        for name, a in one._asdict().items():
            found = None if a is None else getattr(wide, name)[number]
            if a is None:
                assert getattr(wide, name) is None
            elif a.ndim < 3:
                np.testing.assert_array_equal(found, a)
            else:
                np.testing.assert_array_equal(found[..., : a.shape[2]], a)
                rest = a[..., :1] if name in ('members', 'source') else 0
                assert (found[..., a.shape[2] :] == rest).all()
