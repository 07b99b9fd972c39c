"""Runs one experiment: `dfl-jax run --algorithm=ntk_dfl --dataset=digits ...`

Without flags: 30 clients learn handwritten digits by NTK-DFL, in under a minute on two cores.
Writes config.json, metrics.jsonl, clients.jsonl, network.json, checkpoints/, curves.png and
consensus.safetensors below --out.
"""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
from absl import flags, logging

from dfl_jax.cli import interrupts
from dfl_jax.cli.command import MISUSE, fail, in_flags, one_line_warnings
from dfl_jax.cli.flags import run_flags
from dfl_jax.cli.flags.run_flags import check_flags, experiment_of_flags, given_settings
from dfl_jax.cli.run.loggers import requested
from dfl_jax.cli.run.train import train
from dfl_jax.execution import agreed_text, join, leads
from dfl_jax.experiment import environment
from dfl_jax.experiment.build import BuiltExperiment, build
from dfl_jax.experiment.config_file import begin, with_chunk_of
from dfl_jax.experiment.experiment import Experiment
from dfl_jax.experiment.recall import to_go_on
from dfl_jax.experiment.run_directory import Row, RunDirectory, unused
from dfl_jax.experiment.run_settings import Placement
from dfl_jax.experiment.session import Session
from dfl_jax.experiment.table_rows import name_of

FLAGS = flags.FLAGS
EXAMPLES = (
    '--algorithm=spark --clients=50 --alpha=0.5 --rounds=20 --out=runs/spark',
    '--algorithm=dfedavg --topology=ring --static_topology --local_epochs=5 --link_dropout=0.2',
)


def define_flags(arguments: Sequence[str] = ()) -> None:
    """Defines the flags of a run, and those of a method of one's own among the arguments."""
    run_flags.define()
    run_flags.define_flags_of_others(arguments)


def prepare_jax(cores: int | None = None, compute: bool = True) -> None:
    """As `environment.prepare_jax`, with the compilation cache of the flags."""
    use_cache(FLAGS.compilation_cache)
    environment.prepare_jax(Placement(FLAGS.devices, FLAGS.distributed), cores, compute)


def use_cache(given: str | None) -> None:
    """Has XLA keep compiled programs in `cache_folder(given)`."""
    if folder := cache_folder(given):
        jax.config.update('jax_compilation_cache_dir', folder)
        jax.config.update('jax_persistent_cache_min_compile_time_secs', 0)


def cache_folder(given: str | None) -> str | None:
    """The folder of XLA's compilation cache, None for no cache.

    given: by --compilation_cache. Without it there is none for a user without a home folder, as in
    a container.
    """
    if given is not None:
        return None if given == 'off' else given
    cache = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
    return None if cache.startswith('~') else os.path.join(cache, 'dfl_jax', 'xla')


def join_others() -> None:
    """Joins the processes of --distributed, all but the first with a scratch folder, and silent."""
    join(FLAGS.distributed)
    if not leads():
        for name in ('progress', 'resume'):
            FLAGS[name].value = False
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.stdout = sys.__stdout__  # which --log=json has turned to standard error
        FLAGS['out'].value = tempfile.mkdtemp()


def agree(experiment: Experiment, done: bool) -> tuple[Experiment, bool]:
    """The experiment of the first of all processes, and whether its run is done."""
    text = agreed_text(json.dumps([done, experiment.settings()]) if leads() else None)
    done, settings = json.loads(str(text))
    here = {name: value for name, value in vars(experiment.placement).items()}
    of_first = {name: value for name, value in settings.items() if value is not None}
    return Experiment.of_settings(of_first | here, given=()), done


def prepare(lock: contextlib.ExitStack) -> tuple[BuiltExperiment | None, RunDirectory, Row | None]:
    """Checks the flags, builds the experiment and claims the run directory.

    lock: keeps other processes out of the directory until it is closed.

    Returns the experiment, None when it is done already; its directory; and the new config.json of
    a run that is extended. Raises ValueError or OSError, one line, for whatever is wrong with the
    flags or their files.
    """
    check_flags()
    if FLAGS.distributed:
        join_others()
    default = _default_out()
    directory = RunDirectory(FLAGS.out or default)
    config, done = None, False
    if FLAGS.resume:
        experiment, config, done = _resume(directory, lock)
    else:
        experiment = experiment_of_flags()
        if FLAGS.out is not None:
            directory.check_free()
        directory.check_lockable()
    if FLAGS.distributed:
        experiment, done = agree(experiment, done)
    if done:
        return None, directory, None

    prepare_jax()
    if config is not None:
        experiment = with_chunk_of(experiment, config)
    built = build(experiment, FLAGS.progress)
    if config is None and FLAGS.out is None:
        directory = RunDirectory(unused(default))
    return built, directory, begin(directory, built, config, lock)


def _show_partition(built: BuiltExperiment, path: Path) -> None:
    from dfl_jax.plots import plot_partition

    plot_partition(built.dataset.train_y, built.parts, built.dataset.classes, path)
    print(f'who holds what: {path}')


def _default_out() -> Path:
    name = f'{FLAGS.algorithm}-{Path(name_of(FLAGS.dataset)).stem}'.replace(':', '.')
    return Path('runs') / f'{name}-{time.strftime("%Y%m%d-%H%M%S")}'


def _resume(directory: RunDirectory, lock: contextlib.ExitStack) -> tuple[Experiment, Row, bool]:
    """The experiment of the run, its config.json, and whether it is done.

    Raises ValueError, one line, for another value than the run's, apart from more rounds.
    """
    if FLAGS.out is None:
        raise ValueError('--resume: name the run to go on with, --out=DIR')
    if not directory.config_file.exists():
        raise ValueError(f'--resume: {directory.path} holds no run; start it without --resume')
    lock.enter_context(directory.locked())
    given = given_settings()
    allowed = FLAGS.allow_imports
    experiment, config, extends = to_go_on(directory, given, allow_imports=allowed)
    experiment = replace(experiment, given=frozenset(given))  # none without effect
    return experiment, config, not extends and directory.unfinished() is None


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.FATAL)  # JAX tells of every kind of device that is not there
    if len(argv) > 1:
        return fail(f'unexpected argument {argv[1]!r}; settings are flags, e.g. --dataset=digits')
    with one_line_warnings(), contextlib.ExitStack() as lock:
        try:
            loggers = requested(FLAGS)
            if FLAGS.log == 'json':  # nothing else may come between its lines
                lock.enter_context(contextlib.redirect_stdout(sys.stderr))
            built, directory, longer = prepare(lock)
            if built is None:
                print(f'{directory.path} is done; nothing to resume')
                return 0
        except MISUSE as error:
            return fail(in_flags(error))
        except KeyboardInterrupt:
            begun = FLAGS.out and RunDirectory(FLAGS.out).config_file.exists()
            left = f'--resume --out={FLAGS.out} goes on' if begun else 'start again'
            return fail(f'interrupted before the first round; {left}', status=130)
        goes_on = f'--resume --out={directory.path} goes on'
        interrupts.advise(goes_on)
        try:
            if FLAGS.plot_partition:
                _show_partition(built, directory.path / 'partition.png')
            asked = {'progress': FLAGS.progress, 'checkpoint': FLAGS.checkpoint}
            session = Session(built, directory, longer=longer, **asked)
        except (ValueError, OSError) as error:
            return fail(in_flags(error))
        except KeyboardInterrupt:
            return fail(f'interrupted; {goes_on}', status=130)
        return train(session, directory, loggers if leads() else ())
