"""Every flag of every command reaches what it is for: two values make another output.

The flags of a command are those that its --help names, so that a new one without an entry here
fails. What trains is replaced by a recorder where the flags are those of a run.
"""

import functools
import inspect
import json
import re
import shutil
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from helpers import started
from saved_runs import save_run
from test_cli import here, rows_of
from test_cli_time import called
from test_sweep import swept
from test_wiring import PAIRS, SPEEDS
from wiring import digest, experiment, write_files, write_mnist, written_in

from dfl_jax import simulate
from dfl_jax.cli.flags.run_flags import NOT_SETTINGS
from dfl_jax.cli.report import command as report
from dfl_jax.cli.run.loggers import requested
from dfl_jax.cli.sweep import command as sweep
from dfl_jax.cli.sweep.launchers import submitit
from dfl_jax.cli.sweep.launchers.options import options
from dfl_jax.cli.time import command as time
from dfl_jax.cli.watch import command as watch
from dfl_jax.data import load
from dfl_jax.experiment import Experiment
from dfl_jax.experiment.run_directory import RunDirectory
from dfl_jax.papers.reconstruct import command as reconstruct
from dfl_jax.papers.reconstruct import gradient, scene
from dfl_jax.papers.select import command as select
from dfl_jax.papers.tables import command as tables
from dfl_jax.papers.theory import command as theory

OPTIONS = {*simulate.Options.__annotations__, 'world', 'resume'} - {'on_compile', 'on_round'}
SMALL = '--clients=6 --degree=2 --rounds=3 --hidden=4 --algorithm=dpsgd --devices=1'
ALL = f'--validation_share=0.2 --alpha=5 --barrier --world={SPEEDS}'
EVALUATED = '--eval_every=2 --client_eval_samples=7 --membership'


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp('inputs'))


@pytest.fixture
def recorded(monkeypatch):
    """The arguments of all calls of `simulate.run` and `run_together`, which end the command."""
    calls = []

    def record(names, *arguments, **keywords):
        calls.append(dict(zip(names, arguments, strict=False)) | keywords)
        raise OSError('recorded')

    for name in ('run', 'run_together'):
        names = [*inspect.signature(getattr(simulate, name)).parameters]
        monkeypatch.setattr(simulate, name, functools.partial(record, names))
    return calls


# ------------------------------------------------------------------------------- run, sweep, theory


def test_a_run_hands_on_all_that_it_is(files, recorded, tmp_path):
    argv = [f'--dataset={files["images.npz"]}', *f'{SMALL} {ALL} {EVALUATED}'.split()]
    assert 'recorded' in here(*argv, '--devices=2', f'--out={tmp_path}/out').error
    (given,) = recorded
    made = experiment(*argv)
    assert set(given) >= OPTIONS
    assert given['eval_every'] == 2 and len(given['client_eval_samples']) == 7
    assert given['membership'] is True
    assert digest(given['client_eval_samples']) == digest(made.evaluated)
    assert given['rules'] == made.rules and given['rules'].barrier
    assert given['mesh'].size == 2 and given['resume'] is None
    for name in ('clients', 'graphs', 'test', 'key', 'validation', 'world'):
        assert digest(given[name]) == digest(getattr(made, name)), name


def runs_of(calls) -> list[dict]:
    """What each run of a sweep was given, without the axis R."""
    runs = []
    for given in calls:
        for r in range(len(given['keys'])):
            of_run = {n: None if given[n] is None else jax.tree.map(lambda a, r=r: a[r], given[n])
                      for n in ('clients', 'graphs', 'validation', 'values')}  # fmt: skip
            of_run |= {'key': given['keys'][r], 'test': given['test']}
            of_run['world'] = given['worlds'][r] if given['worlds'] else None
            of_run |= {n: given[n] for n in ('eval_every', 'client_eval_samples', 'rules', 'mesh')}
            of_run['algorithm'] = given['algorithm_of'](of_run['values'])
            runs.append(of_run)
    return runs


def sweeps_as_runs(argv, name, values, out, recorded, together=2) -> None:
    """A sweep gives every run what a run alone is given."""
    # Of equal sizes, as a group pads its clients to the largest of all
    swept(*argv, f'--sweep={name}:{",".join(values)}', f'--out={out}', f'--together={together}')
    runs = runs_of(recorded)
    assert len(runs) == 2
    for value, found in zip(values, runs, strict=True):
        made = experiment(*argv, f'--{name}={value}')
        for part in ('test', 'key', 'world', 'rules'):
            assert digest(found[part]) == digest(getattr(made, part)), part
        for part in ('clients', 'validation', 'graphs'):
            if (expected := getattr(made, part)) is None:
                assert found[part] is None
                continue
            cut = jax.tree.map(lambda a, b: a[tuple(map(slice, b.shape))], found[part], expected)
            assert digest(jax.tree.map(np.asarray, cut)) == digest(
                jax.tree.map(np.asarray, expected)
            ), part
        state = found['algorithm'].init(made.key, made.clients)
        assert digest(state) == digest(made.algorithm.init(made.key, made.clients))


def test_a_sweep_hands_on_all_that_its_runs_are(files, recorded, tmp_path):
    argv = [f'--dataset={files["images.npz"]}', *f'{SMALL} {ALL} {EVALUATED}'.split()]
    sweeps_as_runs(argv, 'seed', ('0', '1'), tmp_path / 'out', recorded)
    for given in recorded:
        assert (OPTIONS - {'world'} | {'worlds'}) <= set(given)
        assert given['eval_every'] == 2 and given['client_eval_samples'].shape[-1] == 7
        assert given['membership'] is True
        assert given['rules'].barrier and given['validation'] is not None and given['worlds']


@pytest.mark.parametrize('name', Experiment().traced)
def test_runs_of_a_sweep_differ_in_what_is_swept(name, files, recorded, tmp_path):
    first, second, beside, *_ = PAIRS.get(name, ('0.1', '0.2', ''))
    off = {None: 'noise:0.2' if name == 'feature_shift' else 'false'}
    values = [written_in(off.get(each, each), files) for each in (first, second)]
    away = {each.lstrip('-').partition('=')[0] for each in beside.split()}
    argv = [each for each in SMALL.split() if each.lstrip('-').partition('=')[0] not in away]
    argv += [f'--dataset={files["images.npz"]}', *beside.split()]
    if name == 'alpha' or 'dirichlet' in beside:
        argv += ['--partition=dirichlet']
    together = 2 - (name == 'feature_shift')  # the test set is in it, too
    sweeps_as_runs(argv, name, values, tmp_path / 'out', recorded, together)


def test_the_theory_follows_the_run_that_it_is_told(files, recorded, tmp_path, monkeypatch):
    argv = [f'--dataset={files["images.npz"]}', '--algorithm=ntk_dfl', '--clients=6', '--degree=2']
    argv += ['--rounds=2', '--hidden=4', '--ntk_timesteps=2,4']
    of_command = (*argv, '--client_eval_samples=7', f'--out={tmp_path}/out', '--noprogress')
    status, _, err = called(theory, '--compilation_cache=off', *of_command)
    (given,) = recorded
    made = experiment(*argv, '--client_eval_samples=7')
    assert digest(given['client_eval_samples']) == digest(made.evaluated), (status, err)
    for name in ('clients', 'graphs', 'test', 'key'):
        assert digest(given[name]) == digest(getattr(made, name)), name
    # What it does not hand on is refused
    refused = {'eval_every', 'membership', 'devices', 'distributed', 'world', 'resume', 'log'}
    assert refused <= set(theory.MEASURED)


# ------------------------------------------------------------------------- how a run is watched


def test_what_watches_a_run_is_what_was_asked_for():
    """Every flag that is no setting of a run has a test of what it does instead."""
    assert set(NOT_SETTINGS) == set(WATCHED)
    for file, test in WATCHED.values():
        text = (report.Path(__file__).parent / file).read_text()
        assert f'def {test}' in text, (file, test)


THIS = 'test_wiring_commands.py'
WATCHED = {
    'out': (THIS, 'test_a_run_hands_on_all_that_it_is'),
    'resume': ('test_resume.py', 'test_only_the_end_was_missing'),
    'allow_imports': ('test_resume.py', 'test_resume_imports_no_algorithm_that_only_the_config'),
    'progress': (THIS, 'test_flags_that_leave_something_behind'),
    'log': (THIS, 'test_the_loggers_are_those_that_were_asked_for'),
    'devices': (THIS, 'test_a_run_hands_on_all_that_it_is'),
    'distributed': ('test_devices.py', 'test_'),
    'tensorboard': (THIS, 'test_the_loggers_are_those_that_were_asked_for'),
    'wandb': (THIS, 'test_the_loggers_are_those_that_were_asked_for'),
    'wandb_project': (THIS, 'test_the_loggers_are_those_that_were_asked_for'),
    'plot_partition': (THIS, 'test_flags_that_leave_something_behind'),
    'compilation_cache': (THIS, 'test_flags_that_leave_something_behind'),
    'checkpoint': (THIS, 'test_flags_that_leave_something_behind'),
}


def test_the_loggers_are_those_that_were_asked_for(monkeypatch):
    def named(**given):
        flags = {'log': 'text', 'tensorboard': False, 'wandb': False, 'wandb_project': None}
        found = requested(SimpleNamespace(**flags | given))
        return [(type(each).__name__, vars(each).get('_project')) for each in found]

    monkeypatch.setitem(
        sys.modules, 'wandb', SimpleNamespace(Error=Exception, Histogram=None, init=None)
    )
    assert named() == []
    assert named(log='json') == [('JsonLines', None)]
    assert named(tensorboard=True) == [('TensorBoard', None)]
    assert named(wandb=True)[0][0] == 'WeightsAndBiases'
    assert named(wandb=True, wandb_project='a') != named(wandb=True, wandb_project='b')


@pytest.mark.integration
def test_flags_that_leave_something_behind(files, tmp_path, monkeypatch):
    argv = [f'--dataset={files["images.npz"]}', *SMALL.split(), '--eval_every=3']
    kept = {name: getattr(jax.config, name) for name in (
        'jax_compilation_cache_dir', 'jax_persistent_cache_min_compile_time_secs',
    )}  # fmt: skip
    assert here(*argv, f'--out={tmp_path}/plain').status == 0
    plain = {path.name for path in (tmp_path / 'plain').iterdir()}
    try:
        more = (f'--compilation_cache={tmp_path}/cache', '--nocheckpoint', '--plot_partition')
        done = here(*argv, '--progress', *more, f'--out={tmp_path}/more').succeeded()
        assert jax.config.jax_compilation_cache_dir == f'{tmp_path}/cache'
    finally:
        for name, value in kept.items():
            jax.config.update(name, value)
    found = {path.name for path in (tmp_path / 'more').iterdir()}
    assert plain - found == {'checkpoints'} and found - plain == {'partition.png'}
    assert '3/3' in done.err
    assert rows_of(tmp_path / 'plain', 'seconds') == rows_of(tmp_path / 'more', 'seconds')


# -------------------------------------------------------------------------------- other commands


def flags_of(command: str, cwd) -> set[str]:
    """The flags of a command, as its help names them; of one that takes those of a run its own."""
    text = started(command, '--help', cwd=cwd).outcome().out
    own = re.search(r'\n(?:flags|this command)\n((?:(?:  .*)?\n)+)', text)[1]
    return {*re.findall(r'^  --(?:\[no\])?(\w+)', own, re.M)}


FILES_OF_A_RUN = (  # which may have moved
    *('dataset', 'data_dir', 'partition_file', 'topology_file', 'architecture_file'),
    *('arrival', 'attackers', 'evaluate_clients'),
)
COMMANDS = {
    'time': {
        *('runs', 'map', 'targets', 'operations', 'joules_per_operation', 'joules_per_bit'),
        *('world', 'barrier', 'out', 'allow_imports', 'progress', *FILES_OF_A_RUN),
    },
    'select': {
        *('run', 'target', 'with_attackers', 'world', 'seed', 'out', 'progress', 'allow_imports'),
        *FILES_OF_A_RUN,
    },
    'reconstruct': {
        *('images', 'attack_sparsity', 'attack_projection', 'attack_training', 'attack_steps'),
        *('attack_restarts', 'attack_smoothness', 'attack_known', 'dataset', 'data_dir', 'seed'),
        *('sent', 'batch_size', 'dp_clip', 'dp_noise_multiplier', 'out', 'progress'),
    },
    'watch': {'port', 'target'},
    'report': {'runs', 'out', 'target', 'overwrite'},
    'tables': {
        *('runs', 'out', 'seeds', 'shard', 'data_dir', 'partitions', 'cells', 'run', 'progress'),
        *('latex', 'list'),
    },
    'sweep': {
        *('sweep', 'flagfiles', 'together', 'shard', 'launcher', 'launcher_workers', 'slurm'),
        *('launcher_cores', 'launcher_gpus', 'ray_address', 'submitit_cluster'),
    },
}


@pytest.mark.integration
@pytest.mark.parametrize('command', COMMANDS)
def test_every_flag_of_a_command_is_known_here(command, tmp_path):
    assert flags_of(command, tmp_path) == COMMANDS[command]


# Reports and watched pages


def test_the_report_is_of_what_its_flags_say(tmp_path, monkeypatch, capsys):
    for name, seed in (('a', 0), ('b', 1)):
        save_run(tmp_path / name / 'run', seed=seed)
    written = []
    plain = {'runs': str(tmp_path / 'a'), 'out': None, 'target': 0.85, 'overwrite': False}
    monkeypatch.setattr(report, 'report', lambda *of: f'{report.MARK} {of}')

    def made(**given):
        flags = SimpleNamespace(**plain | given)
        monkeypatch.setattr(report, 'FLAGS', flags)
        status = report.main(['report'])
        out = report.Path(flags.out or report.Path(flags.runs) / 'report.html')
        text = out.read_text() if out.exists() else ''
        written.append(out)
        return status, text

    first = made()
    assert first == made() and first[0] == 0
    assert made(target=0.5) != first and made(runs=str(tmp_path / 'b')) != first
    other = tmp_path / 'page.html'
    assert made(out=str(other)) == first and other.exists()
    other.write_text('mine')
    assert made(out=str(other))[0] == 1 and other.read_text() == 'mine'
    assert made(out=str(other), overwrite=True) == first
    assert str(other) in capsys.readouterr().out


def test_the_page_that_is_watched_is_what_its_flags_say(tmp_path, monkeypatch):
    asked = []

    def server(*given):
        asked.append(given)
        raise ValueError('seen')

    monkeypatch.setattr(watch, 'server', server)
    for port, target in ((8000, 0.85), (8001, 0.85), (8000, 0.5)):
        monkeypatch.setattr(watch, 'FLAGS', SimpleNamespace(port=port, target=target))
        assert watch.main(['watch', str(tmp_path)]) == 1
    assert asked == [
        (tmp_path, port, target) for port, target in ((8000, 0.85), (8001, 0.85), (8000, 0.5))
    ]
    found = []
    monkeypatch.setattr(watch, 'report', lambda *of: found.append(of) or '<body></body>')
    save_run(tmp_path / 'run')
    for target in (0.2, 0.9):
        watch.Pages(tmp_path, target).page()
    assert [of[-1] for of in found] == [0.2, 0.9]


# Replays


@pytest.fixture(scope='module')
def two_runs(files, tmp_path_factory):
    """Runs of two seeds whose data and partition are in files that can move; left as they are."""
    folder = tmp_path_factory.mktemp('runs')
    write_mnist(folder / 'data', 0)
    parts = [list(range(i, 60, 6)) for i in range(6)]
    (folder / 'parts.json').write_text(json.dumps(parts))
    small = [*SMALL.split(), '--dataset=mnist', f'--data_dir={folder}/data']
    small += [f'--partition_file={folder}/parts.json', '--link_dropout=0.3']
    for seed in (0, 1):
        out = folder / 'all' / f'seed{seed}'
        assert here(*small, f'--seed={seed}', f'--out={out}').status == 0
    return folder


def moved(two_runs, tmp_path):
    """A copy of the first run whose data and partition are elsewhere by now."""
    shutil.copytree(two_runs, tmp_path / 'copy')
    run = tmp_path / 'copy' / 'all' / 'seed0'
    config = RunDirectory(run).config()
    for name, file in (('data_dir', 'data'), ('partition_file', 'parts.json')):
        assert config['settings'][name] == f'{two_runs}/{file}'
        config['settings'][name] = f'{tmp_path}/gone/{file}'
    RunDirectory(run).write_config(config)
    return run, (f'--data_dir={tmp_path}/copy/data', f'--partition_file={tmp_path}/copy/parts.json')


def replayed(run, out, *argv):
    err = called(time, f'--runs={run}', f'--out={out}', *argv).succeeded().err
    return json.loads((out / 'time.json').read_text()), err


@pytest.mark.integration
def test_a_replay_is_of_what_its_flags_say(two_runs, tmp_path, monkeypatch):
    run = two_runs / 'all' / 'seed0'
    numbers = iter(range(100))

    def made(*argv, run=run):
        return replayed(run, tmp_path / str(next(numbers)), '--noprogress', *argv)[0]

    world = '--world=speed=lognormal:1e7:0.5,uplink=lognormal:1e6:0.5'
    plain = made(world)
    for argv in (
        ['--world=speed=lognormal:1e7:0.5,uplink=lognormal:2e6:0.5'],
        [world, '--barrier'],
        [world, '--targets=0.1'],
        [world, '--joules_per_operation=1e-3'],
        [world, '--joules_per_bit=1e-3'],
    ):
        assert made(*argv) != plain, argv
    assert made(world, run=two_runs / 'all' / 'seed1') != plain
    assert len(made(world, run=two_runs / 'all')) == 2
    away, flags = moved(two_runs, tmp_path)
    for kept in ((), flags[:1], flags[1:]):
        assert called(time, f'--runs={away}', world, *kept, f'--out={tmp_path}/t')[0] == 1, kept
    [found] = made(world, *flags, run=away)
    assert found['simulated_seconds'] == plain[0]['simulated_seconds']
    bars = [
        replayed(run, tmp_path / f'bar{flag}', flag)[1] for flag in ('--progress', '--noprogress')
    ]
    assert '1/1' in bars[0] and '1/1' not in bars[1]
    drawn = []
    monkeypatch.setattr(
        'dfl_jax.cli.time.fastest_map.draw_map', lambda out: drawn.append(out) or 'map'
    )
    assert called(time, '--map', f'--out={tmp_path}/map')[0] == 0
    assert drawn == [tmp_path / 'map']


@pytest.mark.integration
def test_operations_are_those_that_are_given_where_a_run_has_none(files, tmp_path):
    argv = ['--algorithm=ntk_dfl', '--clients=6', '--degree=2', '--rounds=2', '--hidden=4']
    argv += ['--ntk_timesteps=2,4', f'--dataset={files["images.npz"]}', '--nocheckpoint']
    assert here(*argv, f'--out={tmp_path}/whole').status == 0
    whole, bare = RunDirectory(tmp_path / 'whole'), RunDirectory(tmp_path / 'bare')
    bare.path.mkdir()
    bare.config_file.write_text(whole.config_file.read_text())
    clients = {row['round']: row for row in whole.client_rows()}
    for row in whole.rows():
        told = {n: v for n, v in row.items() if n not in ('operations_total', 'digest')}
        each = {n: v for n, v in clients[row['round']].items() if n not in ('round', 'digest')}
        bare.append(told | {'clients': each})
    seconds = [
        replayed(bare.path, tmp_path / f't{count}', f'--operations={count}')[0][0]
        for count in (1e9, 1e12)
    ]
    assert seconds[0]['simulated_seconds'] != seconds[1]['simulated_seconds']


@pytest.mark.integration
def test_final_averaging_is_of_what_its_flags_say(two_runs, tmp_path):
    numbers = iter(range(100))

    def made(*argv, run=two_runs / 'all' / 'seed0'):
        out = tmp_path / str(next(numbers))
        given = [f'--run={run}', f'--out={out}', *argv]
        status, _, err = called(select, *given)
        return (json.loads((out / 'selection.json').read_text()) if status == 0 else None), err

    plain, quiet = made('--noprogress')
    assert plain and made('--noprogress')[0] == plain
    for argv in (['--seed=1'], ['--target=0.1']):
        assert made('--noprogress', *argv)[0] != plain, argv
    assert made('--noprogress', run=two_runs / 'all' / 'seed1')[0] != plain
    assert 'model' in made('--progress')[1] and 'model' not in quiet
    away, flags = moved(two_runs, tmp_path)
    for kept in ((), flags[:1], flags[1:]):
        assert made(*kept, run=away)[0] is None, kept
    assert made('--noprogress', *flags, run=away)[0] == plain


@pytest.mark.integration
@pytest.mark.parametrize('command', ['time', 'select'])
def test_code_of_a_run_is_imported_where_that_is_allowed(command, files, tmp_path):
    argv = [f'--dataset={files["images.npz"]}', *SMALL.split(), '--model=wiring:Dropping']
    argv = [each for each in argv if not each.startswith('--hidden')]
    assert here(*argv, f'--out={tmp_path}/run').status == 0
    module, name = {'time': (time, 'runs'), 'select': (select, 'run')}[command]
    given = (f'--{name}={tmp_path}/run', f'--out={tmp_path}/out')
    assert '--allow_imports' in called(module, *given)[2]
    assert called(module, *given, '--allow_imports')[0] == 0


# The reconstruction


@functools.cache
def attacked(*argv: str) -> dict[str, str]:
    """Digests of what the attack does, without doing it."""
    found: dict[str, str] = {}

    def main(flags):
        dataset = load(flags.dataset, flags.data_dir)
        victim = scene.choose_victim(dataset)
        chosen = scene.settings(victim.known.shape[1])
        found['victim'], found['settings'] = digest(victim), str(chosen)
        for dimensions in (None, chosen[2].projection):
            made = scene.set_up(dataset, victim, dimensions)
            found[f'weights {dimensions is None}'] = digest(made.weights)
            w = made.weights['initial'].w
            keys = jax.random.split(jax.random.key(0), len(victim.images))
            sent = jax.eval_shape(
                lambda w, keys, seen, made=made: jax.vmap(
                    lambda k, x: scene.reconstruction.received(made.model, None, k, w, x)
                )(keys, seen),
                *(w, keys, made.seen),
            )
            for compared, by_name in made.attacks.items():
                for name, one in by_name.items():
                    found[f'{compared} {name} {dimensions is None}'] = str(
                        jax.make_jaxpr(one)(made.weights['initial'], keys, sent)
                    )

    reconstruct.define_flags()
    try:
        reconstruct.FLAGS(['reconstruct', *argv])
        with jax.numpy_rank_promotion('allow'):
            main(reconstruct.FLAGS)
    finally:
        reconstruct.FLAGS.unparse_flags()
    return found


ATTACKS = {
    'images': ('2', '3'),
    'attack_sparsity': ('0.25', '0.5'),
    'attack_projection': ('9', '8'),
    'attack_training': ('2', '3'),
    'attack_steps': ('3', '4'),
    'attack_restarts': ('1', '2'),
    'attack_smoothness': ('0.1', '0.2'),
    'attack_known': ('5', '6'),
    'dataset': ('digits', 'mnist'),
    'data_dir': ('{mnist0}', '{mnist1}'),
    'seed': ('0', '1'),
}


@pytest.mark.integration
@pytest.mark.parametrize('name', ATTACKS)
def test_two_values_of_a_flag_make_two_attacks(name, files):
    plain = {n: written_in(v[0], files) for n, v in ATTACKS.items() if n != 'data_dir'}
    second = plain | {name: written_in(ATTACKS[name][1], files)}
    if name == 'data_dir':
        plain |= {'dataset': 'mnist', 'data_dir': written_in(ATTACKS[name][0], files)}
        second |= {'dataset': 'mnist'}
    if name == 'dataset':
        second |= {'data_dir': str(files['mnist0'])}
    one, two = (attacked(*(f'--{n}={v}' for n, v in each.items())) for each in (plain, second))
    assert one != two
    if name == 'seed':
        assert {each for each in one if one[each] != two[each]} >= {'victim', 'weights True'}


OF_GRADIENT = {'batch_size': '2', 'dp_clip': '0.5', 'dp_noise_multiplier': '3'}


@pytest.mark.parametrize('name', OF_GRADIENT)
def test_two_values_of_a_flag_make_two_steps(name):
    def chosen(*argv):
        reconstruct.define_flags()
        try:
            reconstruct.FLAGS(['reconstruct', '--sent=gradient', *argv])
            return gradient.settings()
        finally:
            reconstruct.FLAGS.unparse_flags()

    given = chosen(f'--{name}={OF_GRADIENT[name]}')
    assert given != chosen()
    assert {getattr(each, name) for each in given} - {None} == {float(OF_GRADIENT[name])}


def test_every_flag_of_the_attack_has_two_values():
    elsewhere = {'sent', 'out', 'progress'}  # the first in test_gradient_inversion
    assert {*ATTACKS, *OF_GRADIENT, *elsewhere} == COMMANDS['reconstruct']


# Sweeps


def test_every_option_of_a_launcher_reaches_it(tmp_path):
    base = {'launcher': 'submitit', 'launcher_workers': 2, 'launcher_cores': 1, 'launcher_gpus': 0}
    base |= {'ray_address': None, 'submitit_cluster': 'slurm', 'slurm': ['mem=1GB']}

    def made(**given):
        values = base | given
        flags = {n: SimpleNamespace(value=v, present=False) for n, v in values.items()}

        class Flags(dict):
            __getattr__ = lambda self, name: self[name].value  # noqa: E731

        return options(Flags(flags))

    plain = made()
    changes = {'launcher_workers': 3, 'launcher_cores': 2, 'launcher_gpus': 1, 'slurm': ['mem=2GB']}
    for name, value in changes.items():
        assert made(**{name: value}) != plain
        changed = submitit._parameters(made(**{name: value}))
        assert changed != submitit._parameters(plain), name
    assert made(submitit_cluster='local', slurm=[]) != made(slurm=[])
    ray = made(launcher='ray', ray_address='auto', slurm=[])
    assert ray != made(launcher='ray', ray_address='host:1', slurm=[])


def test_a_sweep_is_planned_as_its_flags_say(files, tmp_path, monkeypatch):
    planned = []

    def train(read, groups, out, progress):
        planned.append([[one.name for one in group] for group in groups])
        return {}

    monkeypatch.setattr(sweep, 'train_groups', train)
    (tmp_path / 'a.flags').write_text('--lr=0.2\n')
    numbers = iter(range(100))
    argv = [f'--dataset={files["images.npz"]}', *SMALL.split()]

    def made(*given):
        swept(*argv, *given, f'--out={tmp_path}/{next(numbers)}')
        return planned[-1]

    plain = made('--sweep=seed:0..3', '--together=2')
    assert plain == [['seed=0', 'seed=1'], ['seed=2', 'seed=3']]
    assert made('--sweep=seed:0..2', '--together=2') != plain
    assert made('--sweep=seed:0..3', '--together=4') == [[*plain[0], *plain[1]]]
    assert made('--sweep=seed:0..3', '--together=2', '--shard=1/2') == plain[1:]
    flagfile = f'--flagfiles={tmp_path}/a.flags'
    assert made('--sweep=seed:0..3', '--together=4', flagfile)[0][0] == 'a,seed=0'


# Tables


def test_a_table_is_what_its_flags_say(tmp_path, monkeypatch, capsys):
    from test_tables_missing import CELLS, PUBLISHED, flags_of, kept  # its table

    folder = tmp_path / 'papers' / 'paper' / 'table'
    folder.mkdir(parents=True)
    (folder / 'published.json').write_text(json.dumps(PUBLISHED))
    for cell in CELLS:
        (folder / f'{cell}.flags').write_text(f'--algorithm={cell.split("-")[0]}\n--rounds=2\n')
    monkeypatch.setattr('dfl_jax.results.published.PAPERS', tmp_path / 'papers')
    trained = []
    monkeypatch.setattr(tables.missing, 'train', lambda *of: trained.append(of) or [])
    monkeypatch.setattr(tables, 'write_table', lambda *of: print('table', of))
    partitions = {}
    monkeypatch.setattr(
        tables.missing, 'partition_files', lambda _, p: partitions.setdefault(p, {})
    )

    def made(**given):
        monkeypatch.setattr(tables, 'FLAGS', flags_of(**given))
        assert tables.main(['tables', 'paper/table']) == 0
        return capsys.readouterr().out, trained[-1] if trained else None

    runs = [str(tmp_path / 'runs')]
    plain = made(runs=runs, list=True)
    assert made(runs=runs, list=True, seeds='0..1') != plain
    assert made(runs=runs, list=True, cells=[CELLS[0]]) != plain
    assert made(runs=runs, list=True, shard='0/2') != plain
    assert not trained
    _, once = made(runs=runs, run=True)
    assert made(runs=runs, run=True, data_dir='/d')[1][3:] == ('/d', *once[4:])
    assert made(runs=runs, run=True, progress=False)[1][3:] == (None, False) != once[3:]
    assert made(runs=[str(tmp_path / 'others')], run=True)[1][2] != once[2]
    assert len(made(runs=runs, run=True, shard='0/2')[1][0]) < len(once[0])
    made(runs=runs, list=True, partitions='/p')
    assert '/p' in partitions
    assert len(kept('a', 2)['round']) == 2
