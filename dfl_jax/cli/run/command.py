"""Runs one experiment: `dfl-jax run --algorithm=ntk_dfl --dataset=digits ...`

Without flags: 30 clients learn handwritten digits by NTK-DFL, in under a minute on two cores.
Writes config.json, metrics.jsonl, clients.jsonl, network.json, checkpoints/, curves.png and
consensus.safetensors below --out.
"""

import contextlib
import json
import os
import platform
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from absl import flags, logging

from dfl_jax.cli import interrupts
from dfl_jax.cli.command import MISUSE, fail, one_line_warnings, warn
from dfl_jax.cli.flags import method_flags
from dfl_jax.cli.flags.method_flags import defaults_of_a_run, renew, settings_of_a_run
from dfl_jax.cli.run.loggers import requested
from dfl_jax.cli.run.recall import recall
from dfl_jax.cli.run.train import train
from dfl_jax.execution import agreed_text, cores_as_devices, join, leads
from dfl_jax.experiment.build import Experiment, build
from dfl_jax.experiment.commit import commit
from dfl_jax.experiment.environment import check_jax
from dfl_jax.experiment.fingerprint import check_same, fingerprint
from dfl_jax.experiment.network_file import write_network
from dfl_jax.experiment.own_code import define_flags_of_others, settle_defaults
from dfl_jax.experiment.run_directory import RunDirectory, unused
from dfl_jax.experiment.values import check_values
from dfl_jax.methods import EVENTS

FLAGS = flags.FLAGS
define_flags = define_flags_of_others  # those of a method of one's own
EXAMPLES = (
    '--algorithm=spark --clients=50 --alpha=0.5 --rounds=20 --out=runs/spark',
    '--algorithm=dfedavg --topology=ring --static_topology --local_epochs=5 --link_dropout=0.2',
)
flags.adopt_module_key_flags(method_flags)


def describe(experiment: Experiment) -> dict[str, Any]:
    """What config.json records."""
    mesh, chosen = experiment.mesh, settings_of_a_run()
    packages = ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'networkx')
    return {
        'settings': chosen,
        'folder': os.getcwd(),
        'given': [name for name in chosen if FLAGS[name].present],
        'label': experiment.chosen.method.label,
        'algorithm': experiment.resolved,
        'inputs': fingerprint(experiment),
        'versions': {'python': platform.python_version()}
        | {package: version(package) for package in packages},
        'device': str(jax.devices()[0].device_kind),
        'devices': mesh.size if mesh else 1,
        'cores': os.cpu_count(),
        'commit': commit(),
    }


def prepare_jax(cores: int | None = None, compute: bool = True) -> None:
    """Devices of a CPU, and the compilation cache, as the flags have it.

    cores: that this process may use, None for all that the operating system lets it. compute: here,
    and not only by workers.

    Raises ValueError where JAX cannot compute (`check_jax`).
    """
    if FLAGS.devices != 'all' and not FLAGS.distributed:
        cores_as_devices(int(FLAGS.devices) if FLAGS.devices.isdecimal() else cores)
    if folder := cache_folder(FLAGS.compilation_cache):
        jax.config.update('jax_compilation_cache_dir', folder)
        jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.5)
    check_jax(compute)


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


def agree(done: bool) -> bool:
    """Gives all processes the settings of the first, and whether its run is done."""
    text = agreed_text(json.dumps([done, settings_of_a_run()]) if leads() else None)
    done, chosen = json.loads(str(text))
    for name, value in chosen.items():
        FLAGS[name].value = value
    return done


def prepare(
    lock: contextlib.ExitStack,
) -> tuple[Experiment | None, RunDirectory, dict[str, Any] | None]:
    """Checks the flags, builds the experiment and claims the run directory.

    lock: keeps other processes out of the directory until it is closed.

    Returns the experiment, None when it is done already; its directory; and the new config.json of
    a run that is extended. Raises ValueError or OSError, one line, for whatever is wrong with the
    flags or their files.
    """
    renew(FLAGS)
    check_values(FLAGS)
    if FLAGS.distributed:
        join_others()
    default = _default_out()
    directory = RunDirectory(FLAGS.out or default)
    config, done = None, False
    if FLAGS.resume:
        config, done = _resume(directory, lock)
    else:
        settle_defaults(FLAGS)
        if FLAGS.out is not None:
            directory.check_free()
        directory.check_lockable()
    if FLAGS.distributed:
        done = agree(done)
    if done:
        return None, directory, None

    prepare_jax()
    if config is not None:
        keep_chunk(config)
    experiment = build(FLAGS)
    longer = None
    if config is not None:
        longer = go_on(directory, experiment, config)
    else:
        if FLAGS.out is None:
            directory = RunDirectory(unused(default))
        claim(directory, experiment, lock)
    if FLAGS.plot_partition:
        from dfl_jax.cli.run.plots import plot_partition

        data, path = experiment.dataset, directory.path / 'partition.png'
        plot_partition(data.train_y, experiment.parts, data.classes, path)
        print(f'who holds what: {path}')
    return experiment, directory, longer


def _default_out() -> Path:
    name = f'{FLAGS.algorithm}-{Path(FLAGS.dataset).stem}'.replace(':', '.')
    return Path('runs') / f'{name}-{time.strftime("%Y%m%d-%H%M%S")}'


def _resume(directory: RunDirectory, lock: contextlib.ExitStack) -> tuple[dict[str, Any], bool]:
    """Gives the flags that were left out the values of the run; returns its config.json, and
    whether it is done.

    Raises ValueError, one line, for another value than the run's, apart from more rounds.
    """
    if FLAGS.out is None:
        raise ValueError('--resume: name the run to go on with, --out=DIR')
    if not directory.config_file.exists():
        raise ValueError(f'--resume: {directory.path} holds no run; start it without --resume')
    lock.enter_context(directory.locked())
    interrupts.advice = f'--resume --out={directory.path} goes on'
    config = recall(directory)
    before, now = defaults_of_a_run() | config['settings'], settings_of_a_run()
    began = before.get('rounds')
    extends = FLAGS['rounds'].present and isinstance(began, int) and FLAGS.rounds > began
    if extends:
        before = before | {'rounds': now['rounds']}
    directory.check_settings(before, now)
    return config, not extends and directory.unfinished() is None


def keep_chunk(config: dict[str, Any]) -> None:
    """Gives --chunk, unless it is given, what a run has chosen by the memory that was free then.

    Other chunks have other last bits. On another kind of device it is chosen anew.
    """
    chunk = config.get('algorithm', {}).get('chunk')
    same = jax.devices()[0].device_kind == config.get('device')
    if FLAGS.chunk is None and isinstance(chunk, int) and same:
        FLAGS['chunk'].value = chunk


def claim(directory: RunDirectory, experiment: Experiment, lock: contextlib.ExitStack) -> None:
    """Makes the directory with config.json and network.json; `lock` keeps other processes out.

    Raises ValueError when another run was faster, OSError when it cannot be written.
    """
    directory.path.mkdir(parents=True, exist_ok=True)
    lock.enter_context(directory.locked())
    directory.check_free()
    directory.write_config(describe(experiment))
    interrupts.advice = f'--resume --out={directory.path} goes on'
    write_network(directory, experiment)


def go_on(
    directory: RunDirectory, experiment: Experiment, config: dict[str, Any]
) -> dict[str, Any] | None:
    """Checks that the experiment goes on as `config` began; the new config of a longer run.

    Warns of what changed around it and may change its last bits. Raises ValueError.
    """
    now = json.loads(json.dumps(describe(experiment)))
    check_same(config, experiment, now, directory.path)
    around = [(name, config.get(name), now[name]) for name in ('versions', 'device', 'devices')]
    around.append(('chunk', *(each.get('algorithm', {}).get('chunk') for each in (config, now))))
    for name, was, has in around:
        if was != has:
            warn(f'{name} was {was} when the run began and is {has} now; its last bits may differ')
    if 'jax' not in config.get('inputs', {}):
        warn(
            f'{directory.path} was begun by a version that did not record how JAX was set; under '
            'other settings than then (JAX_ENABLE_X64, JAX_DEFAULT_PRNG_IMPL, ...) its numbers '
            'differ'
        )
    rounds = now['settings']['rounds']
    if rounds == config['settings']['rounds']:
        return None
    widths = [each['inputs']['graphs']['width'] for each in (config, now) if 'inputs' in each]
    if len(set(widths)) > 1 and experiment.chosen.method.graphs != EVENTS:
        warn(
            f'the added rounds have clients of {widths[1] - 1} neighbours, those before of '
            f'{widths[0] - 1} at most; a run that was long from the start may differ in its last '
            'bits'
        )
    return config | {'settings': config['settings'] | {'rounds': rounds}, 'inputs': now['inputs']}


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.FATAL)  # what orbax logs is reported again, in one line
    if len(argv) > 1:
        return fail(f'unexpected argument {argv[1]!r}; settings are flags, e.g. --dataset=digits')
    interrupts.advice = interrupts.START_AGAIN
    with one_line_warnings(), contextlib.ExitStack() as lock:
        try:
            loggers = requested(FLAGS)
            if FLAGS.log == 'json':  # nothing else may come between its lines
                lock.enter_context(contextlib.redirect_stdout(sys.stderr))
            experiment, directory, longer = prepare(lock)
        except MISUSE as error:
            return fail(str(error) or type(error).__name__)
        except KeyboardInterrupt:
            return fail(f'interrupted before the first round; {interrupts.advice}', status=130)
        if experiment is None:
            print(f'{directory.path} is done; nothing to resume')
            return 0
        return train(experiment, directory, FLAGS, loggers if leads() else (), longer)
