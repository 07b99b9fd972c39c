"""Many runs in one command: `dfl-jax sweep --sweep=alpha:0.1,0.5 --sweep=seed:0..4`

Takes every flag of experiments.run, and runs all combinations of the swept ones, each into its own
run directory below --out, as experiments.run would. Runs that differ in what is traced (seed,
learning rate, data, graphs) are one compiled program, as many as memory holds; the others follow
one another. Give each process of a Slurm array or of GNU parallel its --shard=i/n.

The same command goes on after Ctrl-C or a crash: finished runs are skipped, unfinished ones start
from their last evaluation. results.csv (a line a run), results.md (mean and std over seeds) and
results.png (curves) hold what is finished.
"""

import importlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from dfl_jax.cli.command import check_writable, define_paths, fail, in_flags, one_line_errors, share
from dfl_jax.cli.flags.run_flags import of_a_run
from dfl_jax.cli.run import command as run
from dfl_jax.cli.sweep.group import ended, fitting
from dfl_jax.cli.sweep.launchers.options import LAUNCHERS, options
from dfl_jax.cli.sweep.launchers.supervise import Engine, supervise
from dfl_jax.cli.sweep.launchers.task import task_of
from dfl_jax.cli.sweep.plan import RESULTS, Plan, grid, grouped, settled
from dfl_jax.cli.sweep.results import write_results
from dfl_jax.cli.sweep.train_runs import OF_THE_SWEEP, Command, Run, rounds_of, train_groups
from dfl_jax.experiment.environment import check_settings_of_jax, settings_of_jax
from dfl_jax.experiment.experiment import Experiment
from dfl_jax.experiment.fingerprint import check_digests
from dfl_jax.experiment.run_directory import RunDirectory
from dfl_jax.experiment.table_rows import digest_of_code
from dfl_jax.plain_text import counted

FLAGS = flags.FLAGS
EXAMPLES = (
    '--sweep=alpha:0.1,0.5 --sweep=seed:0..4 --algorithm=dpsgd --out=runs/alphas',
    '--flagfiles=a.flags,b.flags --sweep=seed:0..2 --shard=0/4 --out=runs/grid',
)
MEANINGS = {'out': 'Folder of all runs and of what compares them (default: runs/sweep-TIME)'}


def define_flags(arguments: Sequence[str] = ()) -> None:
    """Defines the flags of a sweep, of its runs, and of a method of one's own among the
    arguments."""
    run.define_flags(arguments)
    if 'sweep' in FLAGS:
        return
    flags.DEFINE_multi_string(
        'sweep',
        [],
        'NAME:VALUES of a flag, e.g. alpha:0.1,0.3,0.5 or seed:0..4; several make a grid.',
    )
    define_paths(
        'flagfiles', [], 'Flagfiles, each of which is run with all combinations of --sweep.'
    )
    flags.DEFINE_integer(
        'together',
        None,
        'Largest number of runs that are trained as one program, a group (default: what half of '
        'the free memory holds; 1 for clients of several architectures on a CPU).',
        lower_bound=1,
    )
    flags.DEFINE_string(
        'shard',
        '0/1',
        'Written i/n: this process takes every n-th group of runs, beginning with group i, '
        'counted from 0.',
    )
    flags.DEFINE_enum(
        'launcher',
        None,
        LAUNCHERS,
        'Let workers train the groups of runs: ray, those of a Ray cluster or of a local one, '
        'without a shared disk; submitit, jobs of Slurm. Needs --together.',
    )
    flags.DEFINE_integer(
        'launcher_workers',
        None,
        'Groups that are trained at the same time (default: as many as there is room for).',
        lower_bound=1,
    )
    flags.DEFINE_integer(
        'launcher_cores',
        None,
        'Cores of each group (default: those of this machine, divided among the workers; 1 on a '
        'cluster).',
        lower_bound=1,
    )
    flags.DEFINE_integer('launcher_gpus', 0, 'GPUs of each group.', lower_bound=0)
    flags.DEFINE_string(
        'ray_address',
        None,
        'HOST:PORT of the Ray cluster that this machine is part of, or auto (default: a local '
        'one).',
    )
    flags.DEFINE_enum(
        'submitit_cluster',
        'slurm',
        ('slurm', 'local'),
        'What runs the jobs of --launcher=submitit: slurm, or local processes on this machine.',
    )
    flags.DEFINE_list(
        'slurm',
        [],
        'Parameters NAME=VALUE of the jobs, as sbatch calls them, e.g. '
        'partition=gpu,mem=16GB,time=240 (time in minutes, by default 60; a job whose time is up '
        'is queued again and continues).',
    )


REFUSED = (
    *('resume', 'checkpoint', 'distributed', 'plot_partition'),
    *('log', 'tensorboard', 'wandb', 'wandb_project'),
)


def make_plan(command: Command, out: Path) -> Plan:
    """The plan of the command. Raises ValueError or flags.Error for flags no run can start with."""
    runs = grid(FLAGS.sweep, FLAGS.flagfiles)
    known = of_a_run()
    for name in runs[0].values:
        if name not in {flag.name for flag in known} - {*OF_THE_SWEEP, *REFUSED}:
            raise ValueError(f'--sweep={name}:... is no setting of a run; see --help')
    for name in REFUSED:
        if FLAGS[name].present:
            raise ValueError(
                f'--{name} is of a single run; leave it out (a sweep always keeps checkpoints and '
                'goes on from them)'
            )
    together, file = FLAGS.together, out / 'sweep.json'
    if FLAGS.launcher and together is None and not file.exists():
        raise ValueError(
            f'--launcher={FLAGS.launcher}: give --together=N, the runs of a group, of which a '
            'worker trains one at a time; what its memory holds is not known here'
        )
    check_writable(out, RESULTS)
    RunDirectory(out).check_lockable()
    traced = []
    for one in runs:
        experiment = command.read(one)
        check_begun(RunDirectory(out / one.name), experiment)
        traced.append(experiment.traced)
    if together is None and not file.exists():
        together = fitting(command.read(runs[0]).build())
    return settled(file, Plan(command.arguments, grouped(runs, traced, together or 1)))


def check_begun(directory: RunDirectory, experiment: Experiment) -> None:
    """Raises ValueError where a run was made, or begun, by other code of one's own than today's, or
    under other settings of JAX."""
    if directory.config_file.exists():
        before = directory.config().get('inputs', {})
        check_digests(before, {'code': digest_of_code(experiment.flat())}, directory.path)
        check_settings_of_jax(before.get('jax', {}), settings_of_jax(), directory.path)


def sweep_elsewhere(
    engine: Engine, command: Command, groups: Sequence[list[Run]], out: Path
) -> dict[str, str]:
    """Has the workers of an engine train the groups; returns why runs could not be, by name."""
    tasks = []
    failed: dict[str, str] = {}
    for group in groups:
        try:
            if not all(ended(RunDirectory(out / one.name)) for one in group):
                rounds = rounds_of(command.read, group)
                tasks.append(task_of(command, group, rounds, FLAGS.compilation_cache))
        except ValueError as error:
            failed |= dict.fromkeys((one.name for one in group), in_flags(error))
    return failed | supervise(engine, tasks, out, FLAGS.progress)


@one_line_errors('interrupted before the first run; start again')
def main(_: list[str]) -> int:
    command = Command(sys.argv)
    out = Path(FLAGS.out or f'runs/sweep-{time.strftime("%Y%m%d-%H%M%S")}')
    share(FLAGS.shard, ())  # before anything is written
    asked = options(FLAGS)
    run.prepare_jax(compute=asked is None)
    if asked is None:
        return _sweep(command, out, None)
    launcher = importlib.import_module(f'dfl_jax.cli.sweep.launchers.{FLAGS.launcher}')
    with launcher.engine(asked, out) as engine:
        return _sweep(command, out, engine)


def _sweep(command: Command, out: Path, engine: Engine | None) -> int:
    """Makes the plan and trains its groups, here or by an engine; returns the exit status."""
    plan = make_plan(command, out)
    mine = [plan.groups[i] for i in share(FLAGS.shard, plan.groups)]
    programs = counted(len(plan.groups), 'program')
    goes_on = f'the same command with --out={out} goes on'
    print(f'{counted(len(plan.runs), "run")} in {programs}, {len(mine)} of them here: {out}')
    try:
        if engine is None:
            failed = train_groups(command.read, mine, out, FLAGS.progress)
        else:
            print(f'on {engine.description}')
            failed = sweep_elsewhere(engine, command, mine, out)
        print(write_results(plan.runs, out))
    except OSError as error:
        return fail(f'{error}; {goes_on}')
    except KeyboardInterrupt:
        done = sum((out / one.name / 'done').exists() for one in plan.runs)
        write_results(plan.runs, out)
        return fail(f'interrupted: {done} of {len(plan.runs)} runs are done; {goes_on}', status=130)
    for name, reason in failed.items():
        fail(f'{name}: {reason}')
    return 1 if failed else 0
