"""Sweeps on the workers of Ray and submitit: what is handed out, sent back and done again."""

import json
import os
import re
import shutil
import signal
import socket
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import slurm_stand_in
from absl.testing import flagsaver
from helpers import started
from test_cli import QUIET, rows_of
from test_sweep import swept

from dfl_jax.cli.start import parse
from dfl_jax.cli.sweep import command as sweep
from dfl_jax.cli.sweep.launchers import ray
from dfl_jax.cli.sweep.launchers.files import Files, scratch
from dfl_jax.cli.sweep.launchers.options import options
from dfl_jax.cli.sweep.launchers.supervise import DEATHS, Ending, supervise
from dfl_jax.cli.sweep.launchers.task import Task
from dfl_jax.cli.sweep.plan import Run
from dfl_jax.experiment.run_directory import RunDirectory

# Two groups of two runs. One device each, as the workers have one core
GRID = (
    '--dataset=synthetic', '--train_samples=600', '--clients=6', '--degree=2', '--hidden=8',
    '--algorithm=dpsgd', '--rounds=400', '--eval_every=20', '--devices=1', '--sweep=seed:0..1',
    '--sweep=local_steps:1,2', '--together=2',
)  # fmt: skip


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """The folder of an undisturbed sweep without a launcher."""
    out = tmp_path_factory.mktemp('sweeps') / 'whole'
    swept(*GRID, f'--out={out}').succeeded()
    return out


def assert_same(out: Path, whole: Path, *begun: dict[Path, list[str]]) -> None:
    """The tables and the files of all runs of two sweeps are equal, but for seconds and folders.

    begun: rows of earlier, on which the sweep went on: these, seconds and all, are the same.
    """
    for name in ('results.csv', 'results.md', 'sweep.json'):
        assert (out / name).read_text() == (whole / name).read_text()
    runs = sorted(path.parent.name for path in whole.glob('*/config.json'))
    assert len(runs) == 4
    for name in runs:
        files = sorted(path.name for path in (whole / name).iterdir())
        assert sorted(path.name for path in (out / name).iterdir()) == files
        for file in ('consensus.safetensors', 'done'):
            assert (out / name / file).read_bytes() == (whole / name / file).read_bytes()
        configs = [json.loads((of / name / 'config.json').read_text()) for of in (out, whole)]
        for config in configs:  # but for where the commands were given
            del config['folder'], config['digest']
        assert configs[0] == configs[1]
        ours, theirs = rows_of(out / name), rows_of(whole / name)
        for row in (*ours, *theirs):
            del row['seconds']
        assert ours == theirs
    assert not list(out.glob('groups/*/checkpoints'))
    after = lines(out)
    for file, rows in (each for earlier in begun for each in earlier.items()):
        assert after[file][: len(rows[:-1])] == rows[:-1]


def workers_below(pid: int, words: str) -> list[int]:
    """The processes started by a process, or by these, whose command line holds the words."""
    parents, found = {}, []
    for folder in Path('/proc').glob('[0-9]*'):
        try:
            stat = (folder / 'stat').read_text().rpartition(')')[2].split()
            parents[int(folder.name)] = int(stat[1])
            if words in (folder / 'cmdline').read_text():
                found.append(int(folder.name))
        except OSError:  # it has ended
            continue

    def below(one: int) -> bool:
        return one == pid or (one in parents and below(parents[one]))

    return [one for one in found if below(one)]


def lines(out: Path) -> dict[Path, list[str]]:
    """The rows of all runs so far."""
    return {file: file.read_text().splitlines() for file in out.glob('*/metrics.jsonl')}


def of_task_1(out: Path) -> list[Path]:
    """The rows of the second group."""
    return [out / f'seed={seed},local_steps=2' / 'metrics.jsonl' for seed in (0, 1)]


# ----------------------------------------------------------------------------------------- files


def test_files_reach_the_other_side_as_they_are(tmp_path):
    here, there = tmp_path / 'here', tmp_path / 'there'
    run = Run('seed=0', None, {})
    step = here / 'groups' / 'seed=0' / 'checkpoints' / '0' / '4'
    (step / 'state').mkdir(parents=True)
    (step / 'state' / 'array').write_bytes(b'\x00\x01')
    (step.parent / '5.partial').mkdir()
    (here / 'seed=0').mkdir()
    for name in ('config.json', 'metrics.jsonl', 'lock', 'done.1.tmp'):
        (here / 'seed=0' / name).write_text(name)
    (here / 'seed=1').mkdir()
    (here / 'seed=1' / 'metrics.jsonl').write_text('of another group')
    ours, theirs = Files(here, [run]), Files(there, [run])

    theirs.apply(ours.changes())
    below = sorted(str(path.relative_to(there)) for path in there.rglob('*') if path.is_file())
    assert below == [
        'groups/seed=0/checkpoints/0/4/state/array', 'seed=0/config.json', 'seed=0/metrics.jsonl'
    ]  # fmt: skip
    copied = there / step.relative_to(here)
    assert (copied / 'state' / 'array').read_bytes() == b'\x00\x01'
    assert not any(ours.changes())

    step.rename(step.with_name('8'))
    (here / 'seed=0' / 'metrics.jsonl').write_text('longer than before')
    update = ours.changes()
    assert list(update.files) == ['seed=0/metrics.jsonl'] and len(update.checkpoints) == 1
    theirs.apply(update)
    assert (there / 'seed=0' / 'metrics.jsonl').read_text() == 'longer than before'
    assert [path.name for path in copied.parent.iterdir()] == ['8']

    theirs.finish()
    assert not (there / 'groups' / 'seed=0' / 'checkpoints').exists()


def test_a_checkpoint_that_was_made_again_replaces_the_one_before(tmp_path):
    run, step = Run('a', None, {}), Path('groups/a/checkpoints/0/4')
    ours, theirs = Files(tmp_path / 'here', [run]), Files(tmp_path / 'there', [run])
    for text in ('first', 'second'):
        folder = tmp_path / 'here' / step
        if folder.exists():
            folder.rename(tmp_path / 'aside')
        folder.mkdir(parents=True)
        (folder / text).write_text(text)
        theirs.apply(ours.changes())
    assert [path.name for path in (tmp_path / 'there' / step).iterdir()] == ['second']


def test_the_folder_of_a_worker_is_removed_at_the_latest_by_the_next(tmp_path, monkeypatch):
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))
    with scratch() as first:
        (first / 'large').write_text('checkpoint')
        abandoned = first.with_name('killed')
        shutil.copytree(first, abandoned)
        with scratch() as second:
            assert (first / 'large').exists() and second != first
            assert not abandoned.exists()
    assert not first.exists() and not second.exists()


def test_workers_come_and_go_without_removing_the_folders_of_others(tmp_path, monkeypatch):
    monkeypatch.setattr('tempfile.tempdir', str(tmp_path))

    def work(number: int) -> None:
        for turn in range(30):
            with scratch() as folder:
                assert [path.name for path in folder.iterdir()] == ['lock']
                for file in range(20):
                    (folder / str(file)).write_text(f'{number} {turn}')
                assert (folder / '19').read_text() == f'{number} {turn}'

    with ThreadPoolExecutor(4) as workers:
        list(workers.map(work, range(4)))
    assert [path.name for path in tmp_path.glob('*/*')] == ['lock']


# ------------------------------------------------------------------------------------- who works


class Planned:
    """An engine whose workers do as it is written down: an ending and the rounds until then."""

    description = 'planned workers'

    def __init__(self, out: Path, plans: dict[str, list[tuple[int, Ending]]], workers: int):
        self.out, self.plans, self.workers = out, plans, workers
        self.most, self.at_work, self.order = 0, 0, list[str]()

    def room(self) -> int:
        return self.workers

    def start(self, tasks: Sequence[Task]) -> list['PlannedJob']:
        self.at_work += len(tasks)
        self.most = max(self.most, self.at_work)
        self.order += [task.name for task in tasks]
        return [PlannedJob(self, task.name, *self.plans[task.name].pop(0)) for task in tasks]

    def receive(self, seconds: float) -> None:
        pass


class PlannedJob:
    def __init__(self, engine: Planned, name: str, round: int, end: Ending):
        self.engine, self.end, self.looks = engine, end, 0
        (engine.out / name).mkdir(exist_ok=True)
        self.metrics, self.row = engine.out / name / 'metrics.jsonl', {'round': round}

    def ending(self) -> Ending | None:
        self.looks += 1
        if self.looks < 3:
            return None
        if self.row['round']:
            self.metrics.write_text(json.dumps(self.row) + '\n')
        return self.end

    def close(self, trained: bool) -> None:
        assert trained == (self.end.why is None)
        self.engine.at_work -= 1


TRAINED, DIED = (9, Ending(None)), (0, Ending('its worker died', died=True))


def supervised(tmp_path: Path, plans: dict[str, list], workers: int = 2):
    tasks = [Task((), (Run(name, None, {}),), 9, None) for name in plans]
    engine = Planned(tmp_path, plans, workers)
    return engine, supervise(engine, tasks, tmp_path, progress=False)


def test_groups_are_handed_out_as_workers_have_room(tmp_path):
    engine, failed = supervised(tmp_path, {name: [TRAINED] for name in 'abcde'})
    assert not failed and engine.order == list('abcde') and engine.most == 2


def test_a_group_whose_worker_died_is_handed_out_again_before_others(tmp_path):
    plans = {'a': [DIED, DIED, TRAINED], 'b': [TRAINED], 'c': [TRAINED]}
    engine, failed = supervised(tmp_path, plans, workers=1)
    assert not failed and engine.order == ['a', 'a', 'a', 'b', 'c']


def test_a_group_that_kills_every_worker_is_given_up(tmp_path):
    engine, failed = supervised(tmp_path, {'a': [DIED] * 9, 'b': [TRAINED]}, workers=1)
    assert failed == {'a': 'its worker died'} and engine.order == ['a'] * DEATHS + ['b']


def test_workers_may_die_any_number_of_times_while_a_group_gets_on(tmp_path):
    plan = [*((round, DIED[1]) for round in (0, 1, 0, 2, 0, 3)), TRAINED]
    engine, failed = supervised(tmp_path, {'a': plan})
    assert not failed and engine.order == ['a'] * 7 and DEATHS < 6


def test_a_group_that_fails_is_not_handed_out_again(tmp_path):
    engine, failed = supervised(tmp_path, {'a': [(0, Ending('no memory'))], 'b': [TRAINED]})
    assert failed == {'a': 'no memory'} and engine.order == ['a', 'b']


def test_a_group_that_another_process_works_on_is_left_to_it_by_ray(tmp_path):
    (tmp_path / 'b').mkdir()
    task = Task((), (Run('a', None, {}), Run('b', None, {})), 9, None)
    with RunDirectory(tmp_path / 'b').locked():
        refused = ray._Job(None, task, tmp_path)
        ending = refused.ending()
    assert ending and not ending.died
    assert ending.why.startswith(f'another process works in {tmp_path / "b"}')
    again = ray._Job(None, task, tmp_path)
    assert again.refused is None  # what was locked before is free
    again.close(trained=False)


# ------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        ('--launcher_workers=2', '--launcher_workers is of a launcher; add --launcher=ray'),
        ('--slurm=partition=a', '--slurm is of a launcher; add --launcher=submitit'),
        ('--launcher=ray --slurm=mem=3GB', '--slurm is of --launcher=submitit, not of ray'),
        ('--launcher=submitit --ray_address=auto', '--ray_address is of --launcher=ray'),
        ('--launcher=submitit --slurm=partition', '--slurm=partition: write NAME=VALUE'),
        (
            '--launcher=submitit --submitit_cluster=local --slurm=mem=3GB',
            '--slurm is of Slurm; leave it out',
        ),
        (
            '--launcher=submitit --submitit_cluster=local --launcher_gpus=1',
            '--launcher_gpus=1: local jobs of submitit would all get the same; take --launcher=ray',
        ),
    ],
)
def test_flags_that_do_not_go_together(flags, words, tmp_path):
    done = swept('--sweep=seed:0..1', '--together=1', *flags.split(), f'--out={tmp_path}/out')
    assert words in done.error
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize(
    ('given', 'workers', 'cores'),
    [
        ('', 8, 1),
        ('--launcher_workers=3', 3, 2),
        ('--launcher_cores=4', 2, 4),
        ('--launcher_workers=2 --launcher_cores=1', 2, 1),
        ('--launcher_workers=16', 16, 1),
        ('--launcher_cores=16', 1, 16),
        ('--ray_address=auto', None, 1),
        ('--ray_address=auto --launcher_workers=2', 2, 1),
    ],
)
def test_workers_share_the_cores_of_this_machine(given, workers, cores, monkeypatch):
    monkeypatch.setattr('dfl_jax.cli.sweep.launchers.options.own_cores', lambda: 8)
    with flagsaver.flagsaver():
        parse(['sweep', '--launcher=ray', *given.split()], sweep)
        asked = options(sweep.FLAGS)
    sweep.FLAGS.unparse_flags()
    assert (asked.workers, asked.cores, asked.gpus) == (workers, cores, 0)


@pytest.mark.parametrize('name', ['ray', 'submitit'])
def test_a_launcher_that_is_not_installed(name, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    argv = ('--sweep=seed:0..1', '--together=1', f'--launcher={name}', f'--out={tmp_path}/out')
    assert f"pip install 'dfl_jax[{name}]'" in swept(*argv).error
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('address', ['nowhere', 'ray://host:1', '127.0.0.1:PORT'])
def test_a_cluster_that_does_not_answer(address, tmp_path):
    pytest.importorskip('ray')
    with socket.socket() as unused:
        unused.bind(('127.0.0.1', 0))  # and does not listen
        address = address.replace('PORT', str(unused.getsockname()[1]))
        argv = ('--sweep=seed:0..1', '--together=1', f'--out={tmp_path}/out')
        line = swept(*argv, '--launcher=ray', f'--ray_address={address}').error
    words = 'nothing answers there' if 'PORT' not in address and address[0] == '1' else 'HOST:PORT'
    assert line.startswith(f'error: --ray_address={address}: ') and words in line
    assert not (tmp_path / 'out').exists()


def test_slurm_that_is_not_there(tmp_path, monkeypatch):
    pytest.importorskip('submitit')
    monkeypatch.setenv('PATH', str(tmp_path))
    argv = ('--sweep=seed:0..1', '--together=1', f'--out={tmp_path}/out')
    line = swept(*argv, '--launcher=submitit').error
    assert 'srun' in line and '--submitit_cluster=local' in line
    assert not (tmp_path / 'out').exists()


def test_how_many_runs_are_a_group_has_to_be_said(tmp_path):
    pytest.importorskip('submitit')
    argv = ('--launcher=submitit', '--submitit_cluster=local', f'--out={tmp_path}/out')
    assert 'give --together=N' in swept('--sweep=seed:0..1', *argv).error
    assert not (tmp_path / 'out' / 'sweep.json').exists()


# ------------------------------------------------------------------------------------ whole sweeps


@pytest.mark.slow
@pytest.mark.integration
def test_a_worker_of_ray_that_is_killed_changes_nothing(whole, tmp_path):
    """Nor does a sweep that was begun without a launcher, and killed, too."""
    pytest.importorskip('ray')
    out = tmp_path / 'out'
    argv = (*GRID, *QUIET, f'--out={out}')
    alone = started('sweep', *argv, cwd=tmp_path)
    assert alone.until(lambda: any(len(rows) > 3 for rows in lines(out).values()))
    alone.kill()
    alone.outcome()
    begun = lines(out)
    assert len(begun) == 2  # the runs of the first group

    head = started('sweep', *argv, '--launcher=ray', '--launcher_workers=2', cwd=tmp_path)
    others = of_task_1(out)
    assert head.until(lambda: all(len(lines(out).get(file, ())) > 3 for file in others))
    victims = workers_below(head.pid, 'ray::_train')
    assert victims
    for one in victims:
        os.kill(one, signal.SIGKILL)
    before = lines(out)
    assert all(len(before[file]) < 20 for file in others)
    done = head.outcome()
    assert done.status == 0, done.err
    assert_same(out, whole, begun, before)


@pytest.mark.slow
@pytest.mark.integration
def test_local_jobs_of_submitit_make_the_same_sweep(whole, tmp_path):
    pytest.importorskip('submitit')
    out = tmp_path / 'out'
    argv = ('--launcher=submitit', '--submitit_cluster=local', '--launcher_workers=2')
    swept(*GRID, *argv, f'--out={out}').succeeded()
    assert_same(out, whole)


@pytest.mark.slow  # submitit waits 15 s for the result of a job that is gone
def test_a_job_of_submitit_that_is_killed_changes_nothing(whole, tmp_path):
    pytest.importorskip('submitit')
    out = tmp_path / 'out'
    argv = ('--launcher=submitit', '--submitit_cluster=local', '--launcher_workers=1')
    head = started('sweep', *GRID, *QUIET, *argv, f'--out={out}', cwd=tmp_path)
    assert head.until(lambda: any(len(rows) > 3 for rows in lines(out).values()))
    victims = workers_below(head.pid, 'submitit')
    before = lines(out)
    assert len(victims) >= 2  # the job, and what watches it
    for one in victims:
        os.kill(one, signal.SIGKILL)
    done = head.outcome()
    assert done.status == 0, done.err
    assert_same(out, whole, before)


@pytest.mark.slow
def test_a_job_of_slurm_whose_time_is_up_is_queued_again(whole, tmp_path):
    pytest.importorskip('submitit')
    out, slurm = tmp_path / 'out', tmp_path / 'slurm'
    argv = ('--launcher=submitit', '--slurm=partition=gpu,mem=16GB', '--launcher_cores=1')
    environment = slurm_stand_in.install(slurm)
    head = started('sweep', *GRID, *QUIET, *argv, f'--out={out}', cwd=tmp_path, env=environment)
    assert head.until(lambda: all(len(lines(out).get(file, ())) > 3 for file in of_task_1(out)))
    os.kill(json.loads((slurm / '1.json').read_text())['pid'], signal.SIGUSR2)  # as Slurm does
    before = lines(out)
    done = head.outcome()
    assert done.status == 0, done.err
    assert (slurm / '1.requeued').exists()
    assert_same(out, whole, before)
    script = (out / 'jobs' / f'{slurm_stand_in.JOB}_submission.sh').read_text()
    asked = re.findall(r'#SBATCH --(\S+)', script)
    wanted = {'partition=gpu', 'mem=16GB', 'cpus-per-task=1', 'time=60', 'array=0-1%2'}
    assert wanted <= {*asked}


@pytest.mark.slow
@pytest.mark.integration
def test_what_a_worker_cannot_train_is_said_and_the_others_go_on(tmp_path):
    pytest.importorskip('submitit')
    out = tmp_path / 'out'
    group = out / 'groups' / 'clients=8'
    group.mkdir(parents=True)
    argv = (
        '--dataset=synthetic', '--train_samples=100', '--degree=3', '--hidden=4', '--rounds=1',
        '--algorithm=dpsgd', '--sweep=clients:6,7,8', '--together=1', '--launcher=submitit',
        '--submitit_cluster=local', '--launcher_workers=3', f'--out={out}',
    )  # fmt: skip
    with RunDirectory(group).locked():
        done = swept(*argv)
    assert done.status == 1 and len(done.err.splitlines()) == 2, done.err
    assert 'error: clients=7: ' in done.err and 'clients*degree even' in done.err
    assert f'error: clients=8: another process works in {group}' in done.err
    assert (out / 'clients=6' / 'done').exists()
