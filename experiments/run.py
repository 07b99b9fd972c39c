"""Runs one experiment: `python -m experiments.run --algorithm=ntk_dfl --dataset=digits ...`

Without flags: 30 clients learn handwritten digits by NTK-DFL, in under a minute on two cores.
Writes config.json, metrics.jsonl, checkpoints/, curves.png and consensus.safetensors below --out.
"""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import app, flags, logging

from experiments import flags as experiment_flags
from experiments import mirrors

if TYPE_CHECKING:
    from experiments.setup import Experiment

FLAGS = flags.FLAGS
flags.adopt_module_key_flags(experiment_flags)


def settings() -> dict[str, Any]:
    """Every flag that decides a run's result, by name."""
    defined = experiment_flags.of_a_run()
    return {f.name: f.value for f in defined if f.name not in experiment_flags.NOT_SETTINGS}


def describe(experiment: 'Experiment', chosen: dict[str, Any]) -> dict[str, Any]:
    """What config.json records."""
    import jax

    mesh = experiment.mesh
    packages = ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'networkx')
    return {
        'settings': chosen,
        'given': [name for name in chosen if FLAGS[name].present],
        'algorithm': {name: _plain(value) for name, value in experiment.resolved.items()},
        'versions': {'python': platform.python_version()}
        | {package: version(package) for package in packages},
        'device': str(jax.devices()[0].device_kind),
        'devices': mesh.size if mesh else 1,
        'cores': os.cpu_count(),
        'commit': _commit(),
    }


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _commit() -> str | None:
    if not shutil.which('git'):
        return None
    here = Path(__file__).parent
    found = subprocess.run(
        ['git', 'rev-parse', 'HEAD'], cwd=here, capture_output=True, text=True, check=False
    )
    return found.stdout.strip() or None


def prepare_jax() -> None:
    """Devices of a CPU, and the compilation cache, as the flags have it."""
    import jax

    from dfl_jax.devices import cores_as_devices

    if FLAGS.devices != 'all' and not FLAGS.distributed:
        cores_as_devices(int(FLAGS.devices) if FLAGS.devices.isdecimal() else None)
    folder = FLAGS.compilation_cache
    if folder == 'off':
        return
    cache = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache')
    jax.config.update('jax_compilation_cache_dir', folder or str(cache / 'dfl_jax' / 'xla'))
    jax.config.update('jax_persistent_cache_min_compile_time_secs', 0.5)


def _place() -> str:
    """Of the run directory; a scratch folder, and silence, for all processes but the first."""
    if FLAGS.distributed:
        from dfl_jax.devices import join, leads

        join(FLAGS.distributed)
        if not leads():
            for name in ('progress', 'resume'):
                FLAGS[name].value = False
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return tempfile.mkdtemp()
    name = f'{FLAGS.algorithm}-{Path(FLAGS.dataset).stem}'.replace(':', '.')
    return FLAGS.out or f'runs/{name}-{time.strftime("%Y%m%d-%H%M%S")}'


def prepare():
    """Checks the flags, builds the experiment and claims the run directory.

    Returns (experiment, directory); the experiment is None when the run is done already. Raises
    ValueError or OSError, one line, for whatever is wrong with the flags or their files.
    """
    from experiments.rundir import RunDirectory

    directory = RunDirectory(_place())
    experiment_flags.settle_defaults()
    chosen = settings()
    directory.check(chosen, FLAGS.resume)
    if directory.done.exists():
        return None, directory

    prepare_jax()
    from experiments.setup import build

    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: print(f'warning: {message}', file=sys.stderr)
        experiment = build(FLAGS)
    for remark in directory.claim(describe(experiment, chosen)):
        print(f'warning: {remark}', file=sys.stderr)
    if FLAGS.plot_partition:
        _plot_partition(experiment, directory.path / 'partition.png')
    return experiment, directory


def _plot_partition(experiment, path: Path) -> None:
    from dfl_jax.data import plot_partition

    data = experiment.dataset
    try:
        plot_partition(data.train_y, experiment.parts, data.classes, path)
        print(f'who holds what: {path}')
    except ImportError:
        print('no partition.png without matplotlib (pip install matplotlib)', file=sys.stderr)


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.ERROR)  # orbax warns of the remains of a kill, which it removes
    if len(argv) > 1:
        return fail(f'unexpected argument {argv[1]!r}; settings are flags, e.g. --dataset=digits')
    try:
        watched = mirrors.asked_for(FLAGS)
        experiment, directory = prepare()
    except (ValueError, OSError) as error:
        return fail(str(error))
    except KeyboardInterrupt:
        return fail('interrupted before the first round; start again', status=130)
    from dfl_jax.devices import leads
    from experiments.train import train

    if experiment is None:
        print(f'{directory.path} is done; nothing to resume')
        return 0
    return train(
        experiment,
        directory,
        eval_every=FLAGS.eval_every,
        client_eval_samples=FLAGS.client_eval_samples,
        checkpoint=FLAGS.checkpoint,
        progress=FLAGS.progress,
        mirrors=watched if leads() else (),
    )


def fail(message: str, status: int = 1) -> int:
    print(f'error: {message}', file=sys.stderr)
    return status


def parse(argv: list[str]) -> list[str]:
    try:
        return FLAGS(argv)
    except (flags.Error, ValueError) as error:  # ValueError: --noprogress=1
        sys.exit(fail(f'{error}; see python -m experiments.run --help'))
    except SystemExit:  # --help, which absl ends with status 1
        sys.exit(0)


if __name__ == '__main__':
    app.run(main, flags_parser=parse)
