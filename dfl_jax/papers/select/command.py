"""Whose models to average in the end: `dfl-jax select --run=DIR`

Takes a finished run of experiments.run, restores its newest checkpoint and splits the test set into
validation, which ranks the clients, and test, which reports (NTK-DFL, ICML 2025, Figure 6).
Averages the first n clients best to worst, in random order, worst to best and along a ring, and
over denser final topologies; attackers are left out unless --with_attackers is given. Writes
selection.json, selection.md and selection.png into --out, the run directory by default. --seed is
that of the split, of the random orders and of the final topologies; the run keeps its own.
--dataset, --data_dir and the other files replace the run's, because runs move between machines.
"""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
from absl import flags

from dfl_jax.checkpoint import Checkpoints
from dfl_jax.cli import command
from dfl_jax.cli.flags.run_flags import MOVED_MEANINGS, given_settings, refuse_others
from dfl_jax.cli.run import command as run
from dfl_jax.data.dataset import one_line
from dfl_jax.experiment.build import BuiltExperiment
from dfl_jax.experiment.environment import check_jax
from dfl_jax.experiment.fingerprint import check_inputs, fingerprint
from dfl_jax.experiment.recall import recall
from dfl_jax.experiment.run_directory import Row, RunDirectory
from dfl_jax.experiment.table_rows import name_of, task_named
from dfl_jax.files import to_json, write_atomically
from dfl_jax.papers.select.final_averaging import examine
from dfl_jax.papers.select.table import report
from dfl_jax.tasks import CLASSIFICATION

FLAGS = flags.FLAGS
MOVED = (*MOVED_MEANINGS, 'world')  # settings that may differ from the run's
SHARED = (*MOVED, 'seed', 'out', 'progress', 'allow_imports')  # with experiments.run
MEANINGS = {
    'seed': 'Seed of the split of the test set, of the random orders and of the final topologies; '
    'the run keeps its own (default 0)',
    **MOVED_MEANINGS,
    'world': 'World file of the run, where it has moved',
    'out': 'Folder of the results (default: the run directory)',
}

FILES = ('selection.json', 'selection.md', 'selection.png')


def define_flags(arguments: Sequence[str] = ()) -> None:
    """Defines the flags of this command beside those of runs."""
    run.define_flags(arguments)
    if 'run' in FLAGS:
        return
    for name in SHARED:
        flags.declare_key_flag(name)
    command.define_path('run', None, 'The run directory whose clients are averaged.')
    flags.DEFINE_float(
        'target',
        0.84,
        'Test accuracy for which it is counted how many clients the average needs.',
        lower_bound=0.0,
        upper_bound=1.0,
    )
    flags.DEFINE_boolean('with_attackers', False, "Average the attackers' models, too.")


def check() -> tuple[RunDirectory, Path]:
    """The run's directory and where the results go. Raises ValueError, one line."""
    if FLAGS.run is None:
        raise ValueError('name the run whose clients are averaged: --run=DIR')
    directory = RunDirectory(FLAGS.run)
    if not os.path.lexists(directory.config_file):
        raise ValueError(f'--run={FLAGS.run} holds no run; name the folder of its config.json')
    moved = ', '.join(f'--{name}' for name in MOVED)
    refuse_others(SHARED, f': the run keeps its settings, all but {moved}')
    out = Path(FLAGS.out or directory.path)
    for name in FILES:
        if os.path.lexists(out / name):
            raise ValueError(f'{out / name} exists; choose another folder with --out')
    command.check_writable(out, FILES)
    return directory, out


def restore(directory: RunDirectory) -> tuple[BuiltExperiment, Any, int]:
    """The run's experiment, and the clients' state and the round of its newest checkpoint.

    Raises ValueError, one line.
    """
    experiment, config = recall(
        directory, given_settings(), allow_imports=FLAGS.allow_imports, may_differ=MOVED
    )
    check_jax()
    if not directory.checkpoints.is_dir():
        raise ValueError(
            f'--run={directory.path} has no checkpoint, as runs of a sweep and those with '
            '--nocheckpoint; train it by dfl-jax run'
        )
    checkpoints = Checkpoints(directory.checkpoints)
    newest = checkpoints.latest()
    if newest is None:
        raise ValueError(f'--run={directory.path} has no checkpoint yet; let it run on')
    name, method = experiment.method.name, experiment.method.row
    task = task_named(experiment.data.task)
    if method.graphs == 'cohort':
        raise ValueError(
            f'--run={directory.path}: {name} is centralized, its clients have no models '
            'of their own to average; choose a decentralized run'
        )
    if task.metric != CLASSIFICATION.metric or task.lower_is_better:
        raise ValueError(
            f'--run={directory.path} learns {task.name}, whose models have no accuracy to choose '
            'by; name a run of a task that has one'
        )
    if method.heterogeneous:
        raise ValueError(
            f'--run={directory.path}: clients of {name} may differ in architecture and '
            'are not averaged; choose a run of a method whose clients share one --model'
        )
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # the run has printed its warnings
        built = experiment.build()
    check_inputs(config.get('inputs', {}), built, fingerprint(built), directory.path)
    like = jax.eval_shape(built.algorithm.init, built.key, built.clients)
    try:
        state, (progress,), _ = checkpoints.restore(like)
    except Exception as error:  # NumPy, zipfile, json and orbax each have their own
        raise ValueError(
            f'{directory.checkpoints / str(newest)} cannot be read ({one_line(error)}); '
            'run it anew with this version'
        ) from error
    return built, state, progress.round


def write(selection: Row, out: Path) -> None:
    """The three files, and the report on stdout."""
    from dfl_jax.papers.select.plot import plot_select

    out.mkdir(parents=True, exist_ok=True)
    data, text, figure = (out / name for name in FILES)
    write_atomically(data, to_json(selection, separators=(',', ':')) + '\n')
    write_atomically(text, report(selection))
    print(f'{report(selection)}\n{data}\n{text}')
    plot_select(selection, figure)
    print(figure)


@command.one_line_errors('interrupted, and nothing written; start again', 'the run is --run=DIR')
def main(_: list[str]) -> int:
    directory, out = check()
    trained = restore(directory)
    if FLAGS['with_attackers'].present and trained[0].attackers is None:
        raise ValueError(f'--with_attackers: no client of --run={FLAGS.run} lies; leave it out')
    run_of = trained[0].experiment
    of_run = {
        'algorithm': run_of.method.name,
        'dataset': name_of(run_of.data.dataset),
        'run_seed': run_of.seed,
    }
    averages = examine(*trained, FLAGS.seed, FLAGS.target, FLAGS.progress, FLAGS.with_attackers)
    write(of_run | averages, out)
    return 0
