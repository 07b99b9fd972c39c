"""Many runs in one command: `python -m experiments.sweep --sweep=alpha:0.1,0.5 --sweep=seed:0..4`

Takes every flag of experiments.run, and runs all combinations of the swept ones, each into its own
run directory below --out, as experiments.run would. Runs that differ in what is traced (seed,
learning rate, data, graphs) are one compiled program, as many as memory holds; the others follow
one another. Give each process of a Slurm array or of GNU parallel its --shard=i/n.

The same command goes on after Ctrl-C or a crash: finished runs are skipped, unfinished ones start
from their last evaluation. results.csv (a line a run) and results.md (mean and std over seeds) hold
what is finished.
"""

import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from absl import flags
from tqdm import tqdm

from dfl_jax.cli.command import check_writable, fail, one_line_errors, share, with_flagfiles
from dfl_jax.cli.experiment.build import build
from dfl_jax.cli.experiment.method_flags import (
    defaults_of_a_run,
    of_a_run,
    renew,
    settings_of_a_run,
)
from dfl_jax.cli.experiment.plugins import define_flags_of_others, settle_defaults
from dfl_jax.cli.run import command as run
from dfl_jax.cli.run.rundir import RunDirectory
from dfl_jax.cli.sweep.group import Member, ended, fitting, train_group
from dfl_jax.cli.sweep.plan import Plan, Run, grid, grouped, settled
from dfl_jax.cli.sweep.results import write_results

FLAGS = flags.FLAGS
define_flags = define_flags_of_others  # those of a method of one's own
EXAMPLES = (
    '--sweep=alpha:0.1,0.5 --sweep=seed:0..4 --algorithm=dpsgd --out=runs/alphas',
    '--flagfiles=a.flags,b.flags --sweep=seed:0..2 --shard=0/4 --out=runs/grid',
)
flags.DEFINE_multi_string(
    'sweep',
    [],
    'NAME:VALUES of a flag, e.g. alpha:0.1,0.3,0.5 or seed:0..4; repeat it for a grid.',
)
flags.DEFINE_list(
    'flagfiles', [], 'Flagfiles, each of which is run with all combinations of --sweep.'
)
flags.DEFINE_integer(
    'together',
    None,
    'Runs of one program (default: what the memory holds; 1 for clients of several architectures '
    'on a CPU).',
    lower_bound=1,
)
flags.DEFINE_string('shard', '0/1', 'i/n: this process takes every n-th group of runs, from i.')
flags.adopt_module_key_flags(run)

# The same for all runs
OF_THE_SWEEP = ('sweep', 'flagfiles', 'together', 'shard', 'out', 'progress', 'compilation_cache')
REFUSED = ('resume', 'checkpoint', 'log', 'tensorboard', 'wandb', 'plot_partition')


class Command:
    """The command line, and the flags of each of its runs."""

    def __init__(self, argv: Sequence[str]):
        self.name, self.arguments = argv[0], _without(OF_THE_SWEEP, argv[1:])

    def read(self, one: Run) -> None:
        """Sets all flags to those of one run.

        Raises flags.Error or ValueError for what a flag cannot be, and for a flagfile that cannot
        be read.
        """
        kept = {name: FLAGS[name].value for name in OF_THE_SWEEP}
        first = [f'--flagfile={one.flagfile}'] if one.flagfile else []
        swept = [f'--{name}={value}' for name, value in one.values.items()]
        try:
            FLAGS.unparse_flags()
            for name in FLAGS:
                FLAGS[name].unparse()
                FLAGS[name].present = 0
            given = with_flagfiles([*first, *self.arguments, *swept])
            _, *rest = FLAGS([self.name, *given])
        finally:  # absl looks at flags of its own when the process ends
            FLAGS.mark_as_parsed()
            for name, value in kept.items():
                FLAGS[name].value = value
        if rest:
            raise ValueError(f'{one.flagfile or "the command"} holds {rest[0]!r}, which is no flag')
        renew(FLAGS)
        settle_defaults(FLAGS)


def _without(names: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The arguments but the flags of these names, with their values."""
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name, equals, _ = argument.lstrip('-').partition('=')
        known = name if name in FLAGS else name.removeprefix('no')
        takes_next = not equals and known in FLAGS and not FLAGS[known].boolean
        whole = [argument, next(rest)] if takes_next else [argument]
        if known not in names:
            kept += whole
    return kept


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
    check_writable(out, ('results.csv', 'results.md'))
    for one in runs:
        command.read(one)
    if together is None and not file.exists():
        command.read(runs[0])
        together = fitting(build(FLAGS))
    return settled(file, Plan(command.arguments, grouped(runs, together or 1)))


def train(command: Command, group: Sequence[Run], out: Path, folder: Path, bar: tqdm) -> None:
    """Brings the runs of a group to their ends. Raises ValueError or OSError for wrong flags."""
    if all(ended(RunDirectory(out / one.name)) for one in group):
        bar.update(_rounds(command, group))
        return
    with contextlib.ExitStack() as lock:
        members = []
        for one in group:
            command.read(one)
            directory, config = RunDirectory(out / one.name), None
            if directory.config_file.exists():
                lock.enter_context(directory.locked())
                config = directory.config()
                before = defaults_of_a_run() | config['settings']
                directory.check_settings(before, settings_of_a_run())
            else:
                directory.check_free()
            experiment = build(FLAGS)
            if config is None:
                run.claim(directory, experiment, lock)
            else:
                run.go_on(directory, experiment, config)
            members.append(Member(experiment, directory))
        train_group(
            members,
            folder,
            bar,
            eval_every=FLAGS.eval_every,
            client_eval_samples=FLAGS.client_eval_samples,
        )


def _rounds(command: Command, group: Sequence[Run]) -> int:
    total = 0
    for one in group:
        command.read(one)
        total += FLAGS.rounds
    return total


def sweep(command: Command, groups: Sequence[list[Run]], out: Path) -> dict[str, str]:
    """Trains the groups one after the other; returns why runs could not be, by name.

    A group that fails is tried a second time, from its last evaluation.
    """
    failed: dict[str, str] = {}
    total = sum(_rounds(command, group) for group in groups)
    with tqdm(total=total, unit='round', disable=not FLAGS.progress, dynamic_ncols=True) as bar:
        for group in groups:
            folder = out / 'groups' / group[0].name
            folder.mkdir(parents=True, exist_ok=True)
            before, why = bar.n, None
            for _ in range(2):
                try:
                    with RunDirectory(folder).locked():
                        train(command, group, out, folder / 'checkpoints', bar)
                    why = None
                    break
                except RuntimeError as error:  # of the device, its memory above all
                    bar.update(before - bar.n)
                    why = str(error)
                except (ValueError, OSError, flags.Error) as error:
                    why = str(error)
                    break
            if why is not None:
                failed |= dict.fromkeys((one.name for one in group), why)
    return failed


@one_line_errors('interrupted before the first run; start again')
def main(_: list[str]) -> int:
    command = Command(sys.argv)
    out = Path(FLAGS.out or f'runs/sweep-{time.strftime("%Y%m%d-%H%M%S")}')
    share(FLAGS.shard, ())  # before anything is written
    run.prepare_jax()
    plan = make_plan(command, out)
    mine = [plan.groups[i] for i in share(FLAGS.shard, plan.groups)]
    print(f'{len(plan.runs)} runs in {len(plan.groups)} programs, {len(mine)} of them here: {out}')
    try:
        failed = sweep(command, mine, out)
        print(write_results(plan.runs, out))
    except OSError as error:
        return fail(f'{error}; the same command goes on')
    except KeyboardInterrupt:
        done = sum((out / one.name / 'done').exists() for one in plan.runs)
        write_results(plan.runs, out)
        return fail(
            f'interrupted: {done} of {len(plan.runs)} runs are done; the same command with '
            f'--out={out} goes on',
            status=130,
        )
    for name, reason in failed.items():
        fail(f'{name}: {reason}')
    return 1 if failed else 0
