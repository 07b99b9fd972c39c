"""How long does a robust rule take, against the mean of the neighbours' models, and in ByzFL?

    python -m benchmarks.robust [--clients=300 --members=6] [--peer=byzfl/bin/python --turns=5]

Every client combines the models of its neighbours in a regular graph, as `Exchange.combine` does
within a round: 79,510 weights each, in two tensors, with each core as a device. The column `sorted`
is of rules that order the values of every weight, with `jnp.sort` in place of a network of
comparisons.

With the interpreter of an environment that has ByzFL (docs/benchmarks.md, "Robust rules") its
rules take turns with ours, call by call on the same models, with as many threads as we have
devices. The times are medians over the turns; `times ours` is the median of the quotients within a
turn, with its range; `the same` is for how many clients both find the same, to 1e-5.
"""

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax.sharding import Mesh

from benchmarks import _common as common
from dfl_jax import topology
from dfl_jax.base import Clients, PyTree
from dfl_jax.exchange import Exchange, aggregation, aggregation_named, round_of
from dfl_jax.execution.devices import cores_as_devices, mesh_of_cores, own_cores, placed
from dfl_jax.gossip import mixing_weights

FLAGS = flags.FLAGS
ROOT = Path(__file__).resolve().parents[1]
SHAPES = ((784, 100), (1110,))
RULES = (
    *('mean', 'median', 'trimmed_mean:1', 'geometric_median:8', 'krum:1', 'multi_krum:1'),
    *('clipping:1', 'clipping:adaptive', 'nearest:1', 'nna:1'),
)
OF_PLACES = ('median', 'trimmed_mean:1', 'nearest:1')
# Class and values of the same rule in ByzFL. Its Krum and Multi-Krum score by n - f - 1 others,
# where Blanchard et al. have n - f - 2: Krum is ours with another f, Multi-Krum with none.
BYZFL: dict[str, list[Any]] = {
    'mean': ['Average'],
    'median': ['Median'],
    'trimmed_mean:1': ['TrMean', 1],
    'geometric_median:8': ['GeometricMedian', aggregation.SMOOTHING, 8],
    'krum:1': ['Krum', 2],
    'multi_krum:1': ['MultiKrum', 1],
    'clipping:1': ['CenteredClipping', None, 1, 1.0],
    'nearest:1': ['NNM+TrMean', 1],
    'nna:1': ['MoNNA', 1],
}


def define_flags() -> None:
    flags.DEFINE_integer('clients', 300, 'clients', 2)
    flags.DEFINE_integer('members', 6, 'members of a neighbourhood, itself among them', 2)
    flags.DEFINE_string('peer', None, 'the interpreter of an environment that has ByzFL')
    flags.DEFINE_integer('turns', 5, 'calls of every rule beside the peer', 1)


def main() -> None:
    cores_as_devices()
    print(common.about())
    clients = FLAGS.clients
    drawn = topology.schedule('regular', clients, 1, seed=0, degree=FLAGS.members - 1)
    graph = jax.tree.map(lambda a: jnp.asarray(a[0]), drawn)
    one = jnp.zeros((clients, 1), int)
    data = Clients(jnp.zeros((clients, 1, 1)), one, one == 0)
    keys = jax.random.split(jax.random.key(0), len(SHAPES))
    models = [
        jax.random.normal(k, (clients, *shape)) for k, shape in zip(keys, SHAPES, strict=True)
    ]

    def combine(rule: str) -> Callable[[PyTree], PyTree]:
        round = round_of(0, graph, data, Exchange(aggregation=aggregation_named(rule)))
        rows = mixing_weights(graph, round.sizes, 'uniform')
        return lambda models: round.exchange.combine(jax.random.key(1), round, rows, models)

    mesh = mesh_of_cores(clients)
    with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
        if FLAGS.peer:
            beside(FLAGS.peer, combine, models, np.asarray(graph.members), mesh, FLAGS.turns)
        else:
            alone(combine, placed(models, mesh))


def alone(combine: Callable[[str], Callable[[PyTree], PyTree]], models: PyTree) -> None:
    """Prints the table of our rules."""
    table = common.Table('rule', 'ms', 'times the mean', 'ms, sorted')
    mean = common.median_seconds(combine('mean'), models)
    for rule in RULES:
        took, by_sort = common.median_seconds(combine(rule), models), '-'
        if rule in OF_PLACES:
            with mock.patch.object(aggregation, 'NETWORK_UP_TO_MEMBERS', 0):
                by_sort = f'{1e3 * common.median_seconds(combine(rule), models):.0f}'
        table.row(rule, (1e3 * took, '.0f'), (took / mean, '.1f'), by_sort)


def beside(
    python: str,
    combine: Callable[[str], Callable[[PyTree], PyTree]],
    models: PyTree,
    members: np.ndarray,
    mesh: Mesh | None,
    turns_of_each: int,
) -> None:
    """Prints the table of the rules that ByzFL has, too."""
    flat = np.concatenate([np.reshape(leaf, (len(leaf), -1)) for leaf in models], axis=1)
    models = placed(models, mesh)
    with peer(python, flat, members) as ask:
        table = common.Table('rule', 'ms', 'ByzFL, ms', 'times ours', 'the same', 'compiled in s')
        for rule, theirs in BYZFL.items():
            program, compiled = common.compiled(combine(rule), models)
            turns = []
            for _ in range(1 + turns_of_each):  # the first to warm up
                seconds, new = common.seconds_of(program, models)
                turns.append((seconds, *ask(theirs)))
            ours, byzfl = np.array([turn[:2] for turn in turns[1:]]).T
            found = np.concatenate([np.reshape(a, (len(flat), -1)) for a in new], axis=1)
            apart = np.abs(found[:, ::1000] - turns[-1][2]).max(axis=1)
            ratios = byzfl / ours
            table.row(
                rule,
                (1e3 * np.median(ours), '.0f'),
                (1e3 * np.median(byzfl), ',.0f'),
                f'{np.median(ratios):.1f} ({ratios.min():.1f}-{ratios.max():.1f})',
                f'{(apart < 1e-5).sum()} of {len(flat)}',
                (compiled, '.1f'),
            )


@contextlib.contextmanager
def peer(
    python: str, models: np.ndarray, members: np.ndarray
) -> Iterator[Callable[[list], tuple[float, list]]]:
    """A process of ByzFL, which answers with the seconds of a rule and what it makes of a few
    weights."""
    with tempfile.TemporaryDirectory() as folder:
        path = f'{folder}/models.npz'
        np.savez(path, models=models, members=members)
        command = [python, '-m', 'benchmarks.peers.byzfl', path, str(own_cores())]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, cwd=ROOT, stdin=pipe, stdout=pipe, encoding='utf-8'
        ) as process:
            asked, answers = process.stdin, process.stdout
            assert asked and answers

            def ask(rule: list) -> tuple[float, list]:
                print(json.dumps(rule), file=asked, flush=True)
                return tuple(json.loads(answers.readline()))

            print(f'{json.loads(answers.readline())}, {own_cores()} threads')
            yield ask
            asked.close()


if __name__ == '__main__':
    define_flags()
    common.start(main)
