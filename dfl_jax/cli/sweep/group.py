"""Trains the runs of one group of a sweep, as one program where they are alike."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from dfl_jax import simulate
from dfl_jax.base import Algorithm, Clients, Graph
from dfl_jax.checkpoint import Checkpoints, Saved
from dfl_jax.execution import SHARE, available_bytes, filled, placed_as_run
from dfl_jax.experiment.build import BuiltExperiment
from dfl_jax.experiment.restore import evaluations_until, missing_evaluations, restored
from dfl_jax.experiment.run_directory import RunDirectory
from dfl_jax.experiment.session import save_consensus, undisturbed
from dfl_jax.files import read_json, to_json, write_atomically
from dfl_jax.methods import make

DIVERGED = 'diverged.json'  # in a run directory
TOGETHER = '0'  # where the checkpoints of a group lie whose runs are one program


class Member(NamedTuple):
    """A run that is to be trained."""

    built: BuiltExperiment
    directory: RunDirectory


def fitting(built: BuiltExperiment) -> int:
    """How many runs such as this one the memory holds in one program.

    One for clients of several architectures on a CPU: under vmap the places that nobody takes in a
    meeting are computed, too (half as fast, docs/results_dfml.md).
    """
    if built.population is not None and jax.default_backend() == 'cpu':
        return 1
    return max(1, int(SHARE * available_bytes() / built.footprint.total))


def ended(directory: RunDirectory) -> bool:
    """Whether a run is done, or diverged, which no second try would change."""
    return directory.done.exists() or diverged(directory) is not None


def diverged(directory: RunDirectory) -> str | None:
    """What the run said when it diverged. Raises ValueError for a file that says nothing."""
    file = directory.path / DIVERGED
    if not os.path.lexists(file):
        return None
    content = read_json(file)
    if not isinstance(content, dict) or not isinstance(content.get('error'), str):
        raise ValueError(f'{file} is damaged; remove it, and the run goes on')
    return content['error']


def train_group(members: dict[int, Member], folder: Path, bar: tqdm, whole: bool) -> None:
    """Trains runs to their ends, from their last common evaluation, and marks them as done.

    A run that diverges is marked as such, and the others go on.

    members: the runs by their numbers in the group. folder: of their checkpoints, which are gone in
    the end. bar: advances by a round of each run. whole: whether all runs of the group are there;
    if not, each is a program of its own.
    """
    experiments = [one.built for one in members.values()]
    together = whole and _alike(experiments) and _traceable(experiments)
    together = together and not any(folder.glob('alone-*/*'))  # of an earlier version, or not whole
    if any(ended(one.directory) for one in members.values()):  # some while others could not start
        together = together and begun_together(folder)
    programs = {folder / TOGETHER: [*members.values()]}
    if not together:
        programs = {folder / f'alone-{number}': [one] for number, one in members.items()}
    for place, program in programs.items():
        if all(ended(one.directory) for one in program):
            bar.update(sum(len(one.built.graphs.active) for one in program))
        else:
            _train(program, place, bar)
    shutil.rmtree(folder, ignore_errors=True)


def begun_together(folder: Path) -> bool:
    """Whether there are checkpoints of all runs of a group as one program."""
    return any((folder / TOGETHER).glob('*'))


def _alike(experiments: Sequence[BuiltExperiment]) -> bool:
    """Whether runs differ only in arrays and in settings that can be traced."""
    first, *others = experiments
    return all(
        _static(other) == _static(first)
        and _same_population(other, first)
        and other.graphs.active.shape == first.graphs.active.shape
        and (other.graphs.weights is None) == (first.graphs.weights is None)
        and np.array_equal(other.judged, first.judged)
        and np.array_equal(other.attackers, first.attackers)
        and other.rows.values['attack'] == first.rows.values['attack']
        and jax.tree.all(jax.tree.map(np.array_equal, other.test, first.test))
        and (other.clients.arrival is None) == (first.clients.arrival is None)
        and (other.rules, other.world is None) == (first.rules, first.world is None)
        for other in others
    )


def _traceable(experiments: Sequence[BuiltExperiment]) -> bool:
    """Whether a factory, which may be of others, takes what differs as traced values."""
    algorithm_of, values, clients, _, _, keys = _stacked(experiments)
    try:
        jax.eval_shape(jax.vmap(lambda v, *of: algorithm_of(v).init(*of)), values, keys, clients)
    except jax.errors.ConcretizationTypeError:
        return False
    return True


def _traced(built: BuiltExperiment) -> list[str]:
    """The settings of the method that may differ within a program, a gain of each run's own among
    them."""
    return [*built.configured.method.traced, *['init'] * (built.configured.gain is not None)]


def _static(built: BuiltExperiment) -> dict[str, Any]:
    """The settings, of those that can be traced the shapes alone; what liars do is compared by
    itself."""
    settings, traced = built.configured.settings, _traced(built)
    return {
        name: jax.tree.map(np.shape, value) if name in traced else value
        for name, value in settings.items()
        if name != 'attack' or built.configured.attack is None
    }


def _same_population(one: BuiltExperiment, other: BuiltExperiment) -> bool:
    if one.population is None or other.population is None:
        return one.population is other.population
    places = one.population.clients, other.population.clients
    return jax.tree.all(jax.tree.map(np.array_equal, *places))


def _train(program: Sequence[Member], folder: Path, bar: tqdm) -> None:
    experiments, checkpoints = [one.built for one in program], Checkpoints(folder)
    rounds = len(experiments[0].graphs.active)
    every = experiments[0].experiment.evaluation.eval_every
    metric = experiments[0].model.task.metric

    def fault(saved: Saved) -> str | None:
        of_runs = zip(program, saved.progress, saved.notes, strict=True)
        faults = (
            missing_evaluations(one.directory, progress.round, note, every, rounds)
            for one, progress, note in of_runs
            if note is not None
        )
        return next(filter(None, faults), None)

    saved = restored(checkpoints, _states(experiments), fault)
    mesh = experiments[0].mesh
    resume = (placed_as_run(saved.state, mesh, axis=1), saved.progress) if saved else None
    state, kept = (resume[0], resume[1][0].round) if resume else (None, 0)
    for one in program:
        one.directory.keep(evaluations_until(one.directory, kept, every, rounds))
    bar.update(len(program) * kept)
    evaluated = [one.evaluated for one in experiments if one.evaluated is not None]
    for rows, state, progress in simulate.run_together(
        *_stacked(experiments),
        resume=resume,
        validation=_padded([one.validation for one in experiments]),
        membership=experiments[0].experiment.evaluation.membership,
        worlds=[one.world for one in experiments if one.world] or None,
        rules=experiments[0].rules,
        judged=experiments[0].judged,
        attackers=experiments[0].attackers,
        mesh=mesh,
        eval_every=every,
        client_eval_samples=np.stack(evaluated) if evaluated else None,
    ):
        with undisturbed():
            notes: list[str | None] = []  # of a run that diverged there are no evaluations
            for one, row in zip(program, rows, strict=True):
                done = one.built.completed(row) if isinstance(row, dict) else None
                notes.append(one.directory.append(done) if done else None)
                if not isinstance(row, dict) and diverged(one.directory) is None:
                    text = to_json({'error': str(row)}) + '\n'
                    write_atomically(one.directory.path / DIVERGED, text)
            checkpoints.save(state, *progress, notes=notes)
        bar.update(len(program) * (progress[0].round - kept))
        kept = progress[0].round
        reached = [row[f'consensus_{metric}'] for row in rows if isinstance(row, dict)]
        if reached:
            bar.set_postfix_str(f'{metric} {np.mean(reached):.4f}', refresh=False)
    bar.update(len(program) * (rounds - kept))
    for number, one in enumerate(program):
        if diverged(one.directory) is None:
            last = jax.tree.map(lambda leaf, n=number: leaf[n], state)
            save_consensus(one.built.consensus(last, rounds), one.directory.consensus)
            one.directory.finish()


def _states(experiments: Sequence[BuiltExperiment]) -> Any:
    """Structure, shapes and dtypes of the states of all runs, leaves [R, ...]."""
    one, runs = experiments[0], len(experiments)
    state = jax.eval_shape(one.algorithm.init, one.key, one.clients)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((runs, *leaf.shape), leaf.dtype), state)


def _stacked(experiments: Sequence[BuiltExperiment]) -> tuple[Any, ...]:
    """What `simulate.run_together` takes before its options, each with a leading axis R."""
    first, settings = experiments[0], [one.configured.settings for one in experiments]
    values = {
        name: jax.tree.map(_in_one_array, *(s[name] for s in settings))
        for name in _traced(first)
        if len({each.get(name) for each in settings}) > 1
    }

    def algorithm_of(values: dict[str, Any]) -> Algorithm:
        network = first.population or first.model
        return make(first.configured.method.factory, network, **settings[0] | values)

    clients = _padded([one.clients for one in experiments])
    graphs = _wide([one.graphs for one in experiments])
    keys = jnp.stack([one.key for one in experiments])
    return algorithm_of, values, clients, graphs, first.test, keys


def _in_one_array(*of_runs: Any) -> jax.Array:
    """Values of a setting, [R, ...]; seeds, which need 32 bits, without a sign."""
    values = np.asarray(of_runs)
    large = values.dtype == np.int64 and values.max() > np.iinfo(np.int32).max
    return jnp.asarray(values.astype(np.uint32) if large else of_runs)


def _padded(clients: Sequence[Clients | None]) -> Clients | None:
    """Arrays [R, M, N, ...], N of the largest client of all."""
    some = [one for one in clients if one is not None]
    if not some:
        return None
    width = max(one.y.shape[1] for one in some)
    padded = [filled(jax.tree.map(np.asarray, one), width, axis=1) for one in some]
    return jax.tree.map(lambda *leaves: np.stack(leaves), *padded)


def _wide(graphs: Sequence[Graph]) -> Graph:
    """Arrays [R, T, H, K], K of the largest aggregator of all; padding repeats the aggregator, or
    the client of an event."""
    width = max(one.members.shape[2] for one in graphs)

    def widened(one: Graph) -> Graph:
        extra = width - one.members.shape[2]
        wide = {
            name: np.concatenate([a, np.repeat(a[:, :, :1], extra, axis=2)], axis=2)
            if name in ('members', 'source')
            else np.pad(a, [(0, 0), (0, 0), (0, extra)])
            for name, a in one._asdict().items()
            if np.ndim(a) > 2
        }
        return one._replace(**wide)

    return jax.tree.map(lambda *leaves: np.stack(leaves), *map(widened, graphs))
