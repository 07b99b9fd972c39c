"""What a run was made of, recorded in config.json so that another input is noticed.

Digests are of what was read and drawn, not of files: a file may move or be written anew, and what
changes without a file (a package that draws other graphs from the same seed) is noticed too.
"""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dfl_jax.algorithms.dfml import OPEN_ENDED
from dfl_jax.asynchronous import Slots
from dfl_jax.base import Graph
from dfl_jax.experiment.build import BuiltExperiment
from dfl_jax.experiment.environment import check_settings_of_jax, settings_of_jax
from dfl_jax.experiment.poisoning import POISONS
from dfl_jax.setting_error import InputError

REASONS = {  # what may have changed, by the name of the digest
    'data': 'the data (`dataset`, `data_dir`)',
    'partition': 'the partition of the data over the clients (`partition_file`)',
    'validation': 'what clients keep for validation (`partition_file`)',
    'networks': "the clients' architectures (`architecture_file`)",
    'world': 'the network and device profile (`world`)',
    'evaluated': 'which test samples evaluate the clients (`client_eval_samples`)',
    'judged': 'the clients over which means are taken (`evaluate_clients`)',
    'attackers': 'the clients that lie (`attackers`)',
    'poison': 'what the clients that lie train on (`attack`)',
    'arrival': 'when samples arrive (`arrival`)',
    'code': 'the source file of an algorithm, a model, a task or a loader of your own',
}


def fingerprint(built: BuiltExperiment) -> dict[str, Any]:
    """SHA-256 of what a run is made of, by the names of REASONS and for its graphs, 16 digits each:
    data, partition, samples kept for validation, networks, world, the choice of test samples and
    of clients, when samples arrive, and code of one's own; and how JAX is set beside the flags."""
    evaluated, judged, arrival = built.evaluated, built.judged, built.clients.arrival
    attackers, attack = built.attackers, str(built.experiment.adversaries.attack)
    poisoned = attackers is not None and attack.partition(':')[0] in POISONS
    dataset, graphs, population = built.dataset, built.graphs, built.population
    networks = population.clients.items() if population else ()
    rounds, _, width = graphs.members.shape
    return {
        'data': _digest((dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y)),
        'partition': _digest(built.parts),
        'validation': _digest(map(np.asarray, jax.tree.leaves(built.validation))),
        'networks': _digest([a for name, c in networks for a in (np.array([name]), c)]),
        'world': _digest(map(np.asarray, jax.tree.leaves(built.world))),
        'evaluated': None if evaluated is None else _digest([evaluated]),
        'judged': None if judged is None else _digest([judged]),
        'attackers': None if attackers is None else _digest([attackers]),
        'poison': _digest(map(np.asarray, built.clients[:2])) if poisoned else None,
        'arrival': None if arrival is None else _digest([np.asarray(arrival)]),
        'code': built.rows.digest,
        'jax': settings_of_jax(),
        'graphs': {
            'rounds': rounds,
            'width': width,
            'sha256': digest_of_graphs(graphs, rounds, width),
        },
    }


def digest_of_graphs(graphs: Graph | Slots, rounds: int, width: int) -> str | None:
    """The digest of the first rounds, members [rounds, H, width] and so on; None if wider."""
    if rounds > len(graphs.members) or graphs.mask[:rounds, :, width:].any():
        return None
    if isinstance(graphs, Slots):  # padded as much as the fullest interval takes
        active = graphs.active[:rounds]
        each = [a[:rounds][active] for a in graphs if a is not None]
        return _digest([active.sum(axis=1), *(a[:, :width] if a.ndim > 1 else a for a in each)])
    arrays = map(np.asarray, jax.tree.leaves(graphs))
    # A static schedule is held once.
    held = (a[: rounds if a.strides[0] else 1] for a in arrays)
    return _digest(a[:, :, :width] if a.ndim > 2 else a for a in held)


def _digest(arrays: Iterable[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for array in map(np.ascontiguousarray, arrays):
        digest.update(f'{array.dtype} {array.shape}'.encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()[:16]


def check_same(
    before: dict[str, Any], built: BuiltExperiment, now: dict[str, Any], path: Path
) -> None:
    """Raises ValueError where an experiment would not go on as the run at `path` began.

    before, now: what config.json recorded and would record today.
    """
    check_inputs(before.get('inputs', {}), built, now['inputs'], path)
    if now['inputs']['evaluated'] and 'evaluated' not in before.get('inputs', {}):
        raise InputError(
            f'`resume`: the clients of {path} were evaluated on the first of the test samples, and '
            'this version draws those of `client_eval_samples` at random; resume with the version '
            'that it was started with, or start a new run'
        )
    old, new = before['settings']['rounds'], now['settings']['rounds']
    was, has = before.get('algorithm', {}), now['algorithm']
    # Settings that do not change the results so far
    free = {'chunk', 'rounds'} if has.get('schedule') in OPEN_ENDED else {'chunk'}
    for name in sorted((was.keys() & has.keys()) - free):
        if was[name] != has[name] and new > old:
            raise InputError(
                f'`rounds={new}` cannot extend {path}, a run of {old} rounds: its {name} follows '
                f'the number of rounds ({was[name]} then, {has[name]} now), and its first rounds '
                'would have been others; start a new run with another `out`'
            )
        if was[name] != has[name]:
            raise InputError(
                f'`resume`: {name} of {path} was {was[name]} by default and is {has[name]} in '
                'this version; resume with the version that it was started with'
            )


def check_inputs(
    before: dict[str, Any], built: BuiltExperiment, now: dict[str, Any], path: Path
) -> None:
    """Raises ValueError naming the input of the run at `path`, or the setting of JAX, that has
    changed."""
    check_settings_of_jax(before.get('jax', {}), now['jax'], path)
    check_digests(before, now, path)
    if 'graphs' in before:
        drawn = before['graphs']
        if drawn['sha256'] != digest_of_graphs(built.graphs, drawn['rounds'], drawn['width']):
            raise InputError(
                f'the graphs of the first {drawn["rounds"]} rounds of {path} are not those that '
                'it began with: `topology_file` changed, another version of networkx draws '
                'others, or they follow the number of rounds; start a new run'
            )


def check_digests(before: dict[str, Any], now: dict[str, Any], path: Path) -> None:
    """Raises ValueError naming the input of the run at `path` whose digest has changed.

    before, now: digests by the names of REASONS; those that are in both are compared.
    """
    for name, reason in REASONS.items():
        if name in before and name in now and before[name] != now[name]:
            raise ValueError(
                f'{reason} changed since {path} began ({name} {before[name]} then, {now[name]} '
                'now); bring back what it was, or start a new run'
            )
