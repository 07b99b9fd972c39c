"""Drives one run: what it says, progress bar, metrics, checkpoints, the trained model."""

import contextlib
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from dfl_jax import simulate
from dfl_jax.base import State
from dfl_jax.checkpoint import Checkpoints
from dfl_jax.cli.command import fail, warn
from dfl_jax.cli.run.loggers import Logger, LoggerError
from dfl_jax.data.dataset import one_line
from dfl_jax.evaluation import CLIENTS
from dfl_jax.execution import fetched, leads
from dfl_jax.experiment import restore
from dfl_jax.experiment.build import Experiment
from dfl_jax.experiment.run_directory import Row, RunDirectory, write_atomically
from dfl_jax.methods import EVENTS
from dfl_jax.tasks import Task
from dfl_jax.timing import NeverOnlineError
from dfl_jax.topology import FAMILIES

INTERRUPTED = 130  # 128 + SIGINT, as shells report it
REPORTED = {  # of the methods that have it
    'regular_accuracy': '  regular models',
    'meme_accuracy': '  memes',
    'local_accuracy_mean': '  on their own data',
}


def train(
    experiment: Experiment,
    directory: RunDirectory,
    flags: Any,
    loggers: Sequence[Logger],
    longer: Row | None,
) -> int:
    """Runs `experiment` to its last round, from its last checkpoint; returns the exit status.

    `loggers` show every row of metrics.jsonl, those of the rounds before the checkpoint first.
    `longer` is the new config.json of a run that is extended.
    """
    rounds = len(experiment.graphs.active)
    checkpoints, rows = None, []
    opened: list[Logger] = []
    status = 1
    try:
        needed = (flags.checkpoint or directory.checkpoints.exists()) and leads()
        checkpoints = Checkpoints(directory.checkpoints) if needed else None
        resume = restore.resume(experiment, checkpoints, directory, flags.eval_every)
        done = resume[1].round if resume else 0
        rows = restore.evaluations_until(directory, done, flags.eval_every, rounds)
        _begin(directory, rows, done, longer)
        _announce(experiment, rounds, directory.path, flags)
        for logger in loggers:
            logger.open(directory)
            opened.append(logger)
            for row in rows:
                logger.row(row)
        steps, unit = _steps(experiment)
        counting = unit != 'round' and flags.progress
        with tqdm(
            total=steps[-1],
            initial=steps[done],
            unit=unit,
            disable=not flags.progress,
            dynamic_ncols=True,
            mininterval=0,
        ) as bar:
            evaluations = simulate.run(
                experiment.algorithm,
                experiment.clients,
                experiment.graphs,
                experiment.test,
                experiment.key,
                eval_every=flags.eval_every,
                client_eval_samples=experiment.evaluated,
                validation=experiment.validation,
                resume=resume,
                mesh=experiment.mesh,
                world=experiment.world,
                rules=experiment.rules,
                # Intervals of events are long, and how many updates each has is known
                on_round=(lambda r: bar.update(steps[r] - bar.n)) if counting else None,
                on_compile=lambda seconds: bar.set_postfix_str(f'compiled in {seconds:.1f} s'),
            )
            state = resume[0] if resume else None
            for row, state, reached in evaluations:
                with undisturbed():
                    before = directory.append(row)
                    del row[CLIENTS]  # they stand in clients.jsonl alone
                    rows.append(row)
                    if flags.checkpoint:
                        _save(checkpoints, state, reached, before)
                    for logger in opened:
                        logger.row(row)
                _show(bar, row, experiment.model.task)
                bar.update(steps[row['round']] - bar.n)
        if state is not None:
            save_consensus(experiment.algorithm.consensus(state), directory.consensus)
        _finish(directory, rows, experiment.model.task)
        status = 0
    except KeyboardInterrupt:
        kept = (checkpoints.latest() or 0) if checkpoints else 0
        goes_on = f'--resume --out={directory.path} goes on from there'
        print(f'interrupted: {kept} of {rounds} rounds kept; {goes_on}', file=sys.stderr)
        status = INTERRUPTED
    except simulate.DivergenceError as error:
        kept_rows = f'{len(rows)} evaluations are kept in {directory.path}'
        fail(f'{error} and take another --out; {kept_rows}')
    except (restore.CheckpointError, LoggerError, NeverOnlineError) as error:
        fail(str(error))
    except OSError as error:  # a full disk, a folder that is gone
        goes_on = f'--resume --out={directory.path} goes on from the last checkpoint'
        fail(f'{one_line(error)}; when that is mended, {goes_on}')
    finally:
        for logger in opened:
            with contextlib.suppress(BrokenPipeError):  # said above
                logger.close(status)
    return status


def _begin(directory: RunDirectory, rows: list[Row], done: int, longer: Row | None) -> None:
    """Puts the directory into the state of the round `done`, whose evaluations are `rows`."""
    if not done and directory.sound_rows()[0]:
        warn(f'no checkpoint in {directory.path}; the run starts again from its first round')
    if directory.done.exists() and not longer:
        warn(f'{directory.unfinished()}; it is made again')
    directory.done.unlink(missing_ok=True)
    if longer:
        directory.write_config(longer)
    directory.keep(rows)


def _steps(experiment: Experiment) -> tuple[list[int], str]:
    """How much is done at the start and after each round, [T + 1], and what of: rounds, or the
    local updates of a method without rounds, which are known before it runs."""
    active = np.asarray(experiment.graphs.active)
    if experiment.chosen.method.graphs != EVENTS:
        return list(range(len(active) + 1)), 'round'
    return [0, *np.cumsum(active.reshape(len(active), -1).sum(axis=1)).tolist()], 'update'


def _announce(experiment: Experiment, rounds: int, path: Path, flags: Any) -> None:
    """Prints who takes part, for how long, where, how much memory it takes, and of a graph that
    could be one for all rounds that it is not."""
    sizes = [len(part) for part in experiment.parts]
    samples = str(sizes[0]) if min(sizes) == max(sizes) else f'{min(sizes)} to {max(sizes)}'
    chunk = experiment.resolved.get('chunk')
    at_once = f', {chunk} worked on at once' if chunk else ''
    print(
        f'{len(sizes)} clients of {samples} samples, {_networks(experiment)}, '
        f'{_length(experiment, rounds)} on {_devices(experiment)}, into {path}\n'
        f'memory: about {experiment.footprint}{at_once}'
    )
    moves = not flags.static_topology and experiment.chosen.method.graphs != 'cohort'
    if moves and FAMILIES[flags.topology].fixed_shape:
        print(
            f'--topology={flags.topology}: which client has which place is drawn anew in every '
            'round; --static_topology keeps one graph'
        )


def _length(experiment: Experiment, rounds: int) -> str:
    steps, unit = _steps(experiment)
    if unit == 'round':
        return f'{rounds} rounds'
    return f'{steps[-1]:,} local updates in {rounds} intervals'


def _devices(experiment: Experiment) -> str:
    kind = jax.devices()[0].device_kind
    return f'{experiment.mesh.size} devices ({kind})' if experiment.mesh else kind


def _networks(experiment: Experiment) -> str:
    if experiment.population is None or len(experiment.population.models) == 1:
        return f'{experiment.model.size:,} parameters each'
    sizes = [model.size for model in experiment.population.models.values()]
    return f'{len(sizes)} architectures of {min(sizes):,} to {max(sizes):,} parameters'


def save_consensus(params: Any, path: Path) -> None:
    """The consensus model's parameters as safetensors, named by their path joined with dots."""
    from flax.traverse_util import flatten_dict
    from safetensors.numpy import save

    whole = fetched(flatten_dict(params, sep='.'))
    if leads():
        write_atomically(path, save(whole))


def _finish(directory: RunDirectory, rows: list[Row], task: Task) -> None:
    """Draws the curves, marks the run as done, which needs no reader, and prints the result."""
    from dfl_jax.cli.run.plots import plot_run

    metric, least = task.metric, task.lower_is_better
    consensus, worst = f'consensus_{metric}', f'client_{metric}_{"max" if least else "min"}'
    last, best = rows[-1], (min if least else max)(rows, key=lambda row: row[consensus])
    lines = [
        ('round', f'{last["round"]}'),
        (f'consensus {metric}', f'{last[consensus]:.4f}'),
        ('  best', f'{best[consensus]:.4f} at round {best["round"]}'),
        (f'mean client {metric}', f'{last[f"client_{metric}_mean"]:.4f}'),
        ('  std over clients', f'{last[f"client_{metric}_std"]:.4f}'),
        ('  worst client', f'{last[worst]:.4f}'),
        *((label, f'{last[name]:.4f}') for name, label in REPORTED.items() if name in last),
        ('sent by all clients', f'{last["mbytes_total"]:,.1f} MB'),
        ('seconds of rounds', f'{last["seconds"]:.1f}'),
    ]
    if 'simulated_seconds' in last:
        lines.append(('simulated seconds', f'{last["simulated_seconds"]:,.1f}'))
    lines.append(('curves', str(directory.path / 'curves.png')))
    plot_run(rows, directory.path / 'curves.png', task)
    directory.finish()
    print('\n'.join(f'{name:<22}{value}' for name, value in lines), flush=True)


def _save(
    checkpoints: Checkpoints | None, state: State, progress: simulate.Progress, before: str
) -> None:
    """Saves a checkpoint; of several processes the first does, with the parts of all."""
    whole = fetched(state) if jax.process_count() > 1 else state
    if checkpoints:
        checkpoints.save(whole, progress, notes=[before])


def _show(bar: tqdm, row: Row, task: Task) -> None:
    bar.set_postfix_str(
        f'{task.metric} {row[f"consensus_{task.metric}"]:.4f}, '
        f'mean client {row[f"client_{task.metric}_mean"]:.4f}, '
        f'{row["seconds"] / row["round"]:.3g} s/round',
        refresh=False,
    )


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Holds Ctrl-C back until the block is through: orbax's threads do not take it well."""
    arrived: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if arrived and callable(before):
        before(signal.SIGINT, None)
