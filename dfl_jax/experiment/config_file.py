"""config.json: what it records of a run, and whether a run goes on as it began."""

import contextlib
import json
import os
import platform
import warnings
from importlib.metadata import version
from typing import Any, TypeVar

import jax

from dfl_jax.experiment.build import BuiltExperiment
from dfl_jax.experiment.commit import commit
from dfl_jax.experiment.description import Description
from dfl_jax.experiment.fingerprint import check_same, fingerprint
from dfl_jax.experiment.network_file import write_network
from dfl_jax.experiment.run_directory import Row, RunDirectory
from dfl_jax.methods import EVENTS

Settled = TypeVar('Settled', bound=Description)
PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'numpy', 'networkx')


def describe(built: BuiltExperiment) -> dict[str, Any]:
    """What config.json records."""
    settings = built.experiment.settings()
    return {
        'settings': settings,
        'folder': os.getcwd(),
        'given': [name for name in settings if name in built.experiment.given],
        'label': built.configured.method.label,
        'algorithm': built.resolved,
        **({'privacy': built.spending.claim} if built.spending else {}),
        'inputs': fingerprint(built),
        'versions': {'python': platform.python_version()}
        | {package: version(package) for package in PACKAGES},
        'device': str(jax.devices()[0].device_kind),
        'devices': built.mesh.size if built.mesh else 1,
        'cores': os.cpu_count(),
        'commit': commit(),
    }


def begin(
    directory: RunDirectory, built: BuiltExperiment, config: Row | None, lock: contextlib.ExitStack
) -> Row | None:
    """Makes the directory of a new run, with config.json and network.json, and keeps other
    processes out by `lock`; or checks that an experiment goes on as `config` began.

    Returns the new config of a run that is extended, which is not written. Warns of what changed
    around a run and may change its last bits. Raises ValueError when another run was faster, or
    inputs differ, OSError when the directory cannot be written.
    """
    if config is not None:
        return _go_on(directory, built, config)
    directory.path.mkdir(parents=True, exist_ok=True)
    lock.enter_context(directory.locked())
    directory.check_free()
    directory.write_config(describe(built))
    write_network(directory, built)
    return None


def with_chunk_of(experiment: Settled, config: Row) -> Settled:
    """The experiment with the chunk, unless one is given, that its run has chosen by the memory
    that was free then.

    Other chunks have other last bits. On another kind of device it is chosen anew.
    """
    chunk = config.get('algorithm', {}).get('chunk')
    same = jax.devices()[0].device_kind == config.get('device')
    if 'chunk' in experiment.method.given or not isinstance(chunk, int) or not same:
        return experiment
    return experiment.replace_unasked(chunk=chunk)


def _go_on(directory: RunDirectory, built: BuiltExperiment, config: Row) -> Row | None:
    now = json.loads(json.dumps(describe(built)))
    check_same(config, built, now, directory.path)
    around = [(name, config.get(name), now[name]) for name in ('versions', 'device', 'devices')]
    around.append(('chunk', *(each.get('algorithm', {}).get('chunk') for each in (config, now))))
    for name, was, has in around:
        if was != has:
            _warn(f'{name} was {was} when the run began and is {has} now; its last bits may differ')
    if 'jax' not in config.get('inputs', {}):
        _warn(
            f'{directory.path} was begun by a version that did not record how JAX was set; under '
            'other settings than then (JAX_ENABLE_X64, JAX_DEFAULT_PRNG_IMPL, ...) its numbers '
            'differ'
        )
    rounds = now['settings']['rounds']
    if rounds == config['settings']['rounds']:
        return None
    widths = [each['inputs']['graphs']['width'] for each in (config, now) if 'inputs' in each]
    if len(set(widths)) > 1 and built.configured.method.graphs != EVENTS:
        _warn(
            f'the added rounds have clients of {widths[1] - 1} neighbours, those before of '
            f'{widths[0] - 1} at most; a run that was long from the start may differ in its last '
            'bits'
        )
    return config | {'settings': config['settings'] | {'rounds': rounds}, 'inputs': now['inputs']}


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)
