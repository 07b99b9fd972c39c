"""Whose models to average in the end: `python -m experiments.select --run=DIR`

Takes a finished run of experiments.run, restores its newest checkpoint and splits the test set into
validation, which ranks the clients, and test, which reports (NTK-DFL, ICML 2025, Figure 6).
Averages the first n clients best to worst, in random order, worst to best and along a ring, and
over denser final topologies. Writes selection.json, selection.md and selection.png into --out, the
run directory by default. --seed is that of the split, of the random orders and of the final
topologies; the run keeps its own. --data_dir and --partition_file replace the run's, because runs
move between machines.
"""

import json
import os
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

from dfl_jax.cli import command
from dfl_jax.cli.experiment.method_flags import of_a_run
from dfl_jax.cli.final_averaging.table import LABELS, NEIGHBOURS, TIMES, report
from dfl_jax.cli.run.recall import recall
from dfl_jax.cli.run.rundir import Row, RunDirectory, write_atomically
from dfl_jax.data.formats import one_line

if TYPE_CHECKING:
    import numpy as np

    from dfl_jax.cli.experiment.build import Experiment

FLAGS = flags.FLAGS
flags.DEFINE_string('run', None, 'The run directory whose clients are averaged.')
flags.DEFINE_float(
    'target', 0.84, 'Test accuracy whose clients are counted.', lower_bound=0.0, upper_bound=1.0
)
MOVED = ('data_dir', 'partition_file')  # settings that may differ from the run's
SHARED = (*MOVED, 'seed', 'out', 'progress', 'allow_imports')  # with experiments.run
for _name in SHARED:
    flags.declare_key_flag(_name)

DRAWS = 20  # of the random order
DEGREES = (5, 10, 20, 50, 100)  # of the final topology
FILES = ('selection.json', 'selection.md', 'selection.png')


class Trained(NamedTuple):
    """The clients of a run after its last checkpoint."""

    experiment: 'Experiment'
    state: Any
    round: int


def check() -> tuple[RunDirectory, Path]:
    """The run's directory and where the results go. Raises ValueError, one line."""
    if FLAGS.run is None:
        raise ValueError('name the run whose clients are averaged: --run=DIR')
    directory = RunDirectory(FLAGS.run)
    if not os.path.lexists(directory.config_file):
        raise ValueError(f'--run={FLAGS.run} holds no run; name the folder of its config.json')
    for flag in of_a_run():
        if flag.present and flag.name not in SHARED:
            raise ValueError(
                f'{flag.serialize()} does not apply: the run keeps its settings, all but '
                f'{" and ".join(f"--{moved}" for moved in MOVED)}; leave it out'
            )
    if FLAGS.seed < 0:
        raise ValueError(f'--seed has to be at least 0, got {FLAGS.seed}')
    out = Path(FLAGS.out or directory.path)
    for name in FILES:
        if os.path.lexists(out / name):
            raise ValueError(f'{out / name} exists; choose another folder with --out')
    command.check_writable(out, FILES)
    return directory, out


def restore(directory: RunDirectory) -> Trained:
    """Builds the run's experiment and reads its newest checkpoint. Raises ValueError, one line."""
    config = recall(directory, MOVED)
    import jax

    from dfl_jax.checkpoint import Checkpoints
    from dfl_jax.cli.experiment.build import build
    from dfl_jax.cli.run.fingerprint import check_inputs, fingerprint

    if not directory.checkpoints.is_dir():
        raise ValueError(f'--run={directory.path} has no checkpoint; run it without --nocheckpoint')
    checkpoints = Checkpoints(directory.checkpoints)
    newest = checkpoints.latest()
    if newest is None:
        raise ValueError(f'--run={directory.path} has no checkpoint yet; let it run on')
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # the run has printed its warnings
        experiment = build(FLAGS)
    check_inputs(config.get('inputs', {}), experiment, fingerprint(experiment), directory.path)
    if experiment.chosen.method.graphs == 'cohort':
        raise ValueError(
            f'--run={directory.path}: {FLAGS.algorithm} is centralized, its clients have no models '
            'of their own to average; choose a decentralized run'
        )
    if experiment.population is not None:
        raise ValueError(
            f'--run={directory.path}: clients of {FLAGS.algorithm} may differ in architecture and '
            'are not averaged; choose a run of a method whose clients share one --model'
        )
    like = jax.eval_shape(experiment.algorithm.init, experiment.key, experiment.clients)
    try:
        state, (progress,), _ = checkpoints.restore(like)
    except Exception as error:  # orbax, tensorstore and json each have their own
        raise ValueError(
            f'{directory.checkpoints / str(newest)} cannot be read ({one_line(error)}); '
            'run it anew with this version'
        ) from error
    return Trained(experiment, state, progress.round)


def orders(validation: 'np.ndarray', seed: int) -> Iterator[tuple[str, 'np.ndarray']]:
    """The growing averages of Figure 6 and of the ring: names and weights [M, M].

    validation: accuracies by which the clients are ranked, [M].
    """
    from dfl_jax.analysis import final_averaging as selection

    for how in selection.ORDERS:
        for draw in range(DRAWS if how == 'random' else 1):
            clients = selection.order(validation, how, seed * DRAWS + draw)
            yield how, selection.prefixes(clients)
    yield 'ring', selection.ring(len(validation))


def final_topologies(
    validation: 'np.ndarray', seed: int
) -> Iterator[tuple[dict[str, Any], 'np.ndarray']]:
    """Averages over a regular graph of each degree that M clients can have.

    validation: as of `orders`. Yields names and weights [len(TIMES) M, M], every client's after
    one averaging, then after two.
    """
    import jax
    import numpy as np

    from dfl_jax import topology
    from dfl_jax.analysis import final_averaging as selection

    clients = len(validation)
    for degree in DEGREES:
        if degree >= clients or degree * clients % 2:
            continue
        drawn = topology.schedule('regular', clients, 1, seed=seed, degree=degree)
        everyone = jax.tree.map(lambda a: a[0], drawn)
        for neighbours, graph in zip(
            NEIGHBOURS, (everyone, selection.shortlist(everyone, validation)), strict=True
        ):
            name = {
                'degree': degree,
                'neighbours': neighbours,
                'messages_an_averaging': int(graph.mask[:, 1:].sum()),
            }
            steps = range(1, len(TIMES) + 1)
            yield name, np.concatenate([selection.final_topology(graph, n) for n in steps])


def examine(trained: Trained, seed: int, target: float, progress: bool) -> Row:
    """What selection.json holds: every average, evaluated on the test half."""
    from tqdm import tqdm

    from dfl_jax.analysis import final_averaging as selection

    experiment, state, round = trained
    validation, test = selection.split(experiment.test, seed)
    ranking, reported = (
        selection.client_accuracies(experiment.algorithm, state, half)
        for half in (validation, test)
    )
    growing, graphs = list(orders(ranking, seed)), list(final_topologies(ranking, seed))
    curves: Row = {how: [] for how in LABELS}
    topologies = []
    total = sum(len(weights) for _, weights in (*growing, *graphs))
    with tqdm(total=total, unit='model', disable=not progress, dynamic_ncols=True) as bar:

        def evaluated(weights: 'np.ndarray') -> 'np.ndarray':
            accuracies = selection.averaged_accuracy(
                experiment.algorithm, experiment.model, state, weights, test
            )
            bar.update(len(weights))
            return accuracies

        for how, weights in growing:
            curves[how].append(_rounded(evaluated(weights)))
        for name, weights in graphs:
            accuracies = evaluated(weights).reshape(len(TIMES), -1)
            mean, worst = _rounded(accuracies.mean(axis=1)), _rounded(accuracies.min(axis=1))
            topologies.append(name | {'mean': mean, 'worst': worst})
    return {
        'algorithm': FLAGS.algorithm,
        'dataset': FLAGS.dataset,
        'run_seed': FLAGS.seed,
        'round': round,
        'seed': seed,
        'target': target,
        'validation_samples': len(validation.y),
        'test_samples': len(test.y),
        'client_accuracies': _rounded(reported),
        'average_of_all': curves['best_to_worst'][0][-1],
        'orders': {
            how: {
                'reach': [reaches(curve, target) for curve in drawn],
                'stay': [stays(curve, target) for curve in drawn],
                'accuracies': drawn,
            }
            for how, drawn in curves.items()
        },
        'final_topologies': topologies,
    }


def reaches(accuracies: Sequence[float], target: float) -> int | None:
    """The fewest clients whose average reaches the target, None where none does."""
    return next((n for n, value in enumerate(accuracies, 1) if value >= target), None)


def stays(accuracies: Sequence[float], target: float) -> int | None:
    """The fewest clients from which on no average is below the target, None likewise."""
    below = [n for n, value in enumerate(accuracies, 1) if value < target]
    first = max(below, default=0) + 1
    return first if first <= len(accuracies) else None


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(float(value), 5) for value in values]


# -------------------------------------------------------------------------------------- command


def write(selection: Row, out: Path) -> None:
    """The three files, and the report on stdout."""
    out.mkdir(parents=True, exist_ok=True)
    data, text, figure = (out / name for name in FILES)
    write_atomically(data, json.dumps(selection, separators=(',', ':')) + '\n')
    write_atomically(text, report(selection))
    print(f'{report(selection)}\n{data}\n{text}')
    with command.figure(figure):
        from dfl_jax.cli.final_averaging.plot import plot_select

        plot_select(selection, figure)


@command.one_line_errors('interrupted, and nothing written; start again', 'the run is --run=DIR')
def main(_: list[str]) -> int:
    seed = FLAGS.seed  # before it is the run's
    directory, out = check()
    trained = restore(directory)
    write(examine(trained, seed, FLAGS.target, FLAGS.progress), out)
    return 0
