"""One session of a run: from its last checkpoint, or its start, to its end or an interruption."""

import contextlib
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from dfl_jax import simulate
from dfl_jax.base import PyTree, State
from dfl_jax.checkpoint import Checkpoints
from dfl_jax.evaluation import CLIENTS
from dfl_jax.execution import fetched, leads
from dfl_jax.experiment import restore
from dfl_jax.experiment.build import BuiltExperiment
from dfl_jax.experiment.run_directory import Row, RunDirectory
from dfl_jax.files import write_atomically
from dfl_jax.methods import EVENTS
from dfl_jax.tasks import Task


class Session:
    """Trains as it is iterated over, a row for every evaluation, into a run directory or none.

    Args:
      built: what to run.
      directory: of the run, which is locked; None writes nothing.
      progress: show a progress bar.
      checkpoint: save one at every evaluation.
      longer: the new config.json of a run that is extended.
      on_row: called with every new row as soon as it is kept, which Ctrl-C does not interrupt.

    Attributes:
      rows: the rows of all evaluations so far, those of earlier sessions among them.
      state: of the clients after the last of them; None before any.
      done: rounds of earlier sessions.
    """

    def __init__(
        self,
        built: BuiltExperiment,
        directory: RunDirectory | None,
        *,
        progress: bool = True,
        checkpoint: bool = True,
        longer: Row | None = None,
        on_row: Callable[[Row], Any] = lambda row: None,
    ):
        self.built, self.directory = built, directory
        self.rounds = len(built.graphs.active)
        self.rows: list[Row] = []
        self.state: State | None = None
        self.on_row = on_row
        self._progress, self._checkpoint = progress, checkpoint
        self._checkpoints: Checkpoints | None = None
        self._resume: tuple[State, simulate.Progress] | None = None
        if directory is not None:
            if (checkpoint or directory.checkpoints.exists()) and leads():
                self._checkpoints = Checkpoints(directory.checkpoints)
            self._resume_in(directory, longer)
        self.done = self._resume[1].round if self._resume else 0

    def _resume_in(self, directory: RunDirectory, longer: Row | None) -> None:
        """Puts the directory into the state of the last checkpoint."""
        every = self.built.experiment.evaluation.eval_every
        self._resume = restore.resume(self.built, self._checkpoints, directory, every)
        done = self._resume[1].round if self._resume else 0
        self.state = self._resume[0] if self._resume else None
        self.rows = restore.evaluations_until(directory, done, every, self.rounds)
        if not done and directory.undamaged_rows()[0]:
            text = f'no checkpoint in {directory.path}; the run starts again from its first round'
            warnings.warn(text, stacklevel=3)
        if directory.done.exists() and not longer and (fault := directory.unfinished()):
            warnings.warn(f'{fault}; it is made again', stacklevel=3)
        directory.done.unlink(missing_ok=True)
        if longer:
            directory.write_config(longer)
        directory.keep(self.rows)

    @property
    def kept(self) -> int:
        """The rounds that a later session need not train again."""
        return (self._checkpoints.latest() or 0) if self._checkpoints else 0

    @property
    def steps(self) -> tuple[list[int], str]:
        """How much is done at the start and after each round, [T + 1], and what of: rounds, or the
        local updates of a method without rounds, which are known before it runs."""
        active = np.asarray(self.built.graphs.active)
        if self.built.configured.method.graphs != EVENTS:
            return list(range(len(active) + 1)), 'round'
        return [0, *np.cumsum(active.reshape(len(active), -1).sum(axis=1)).tolist()], 'update'

    def __iter__(self) -> Iterator[Row]:
        """Trains to the last round; then saves the consensus model and the curves.

        Raises DivergenceError, CheckpointError, NeverOnlineError, OSError.
        """
        built, (steps, unit) = self.built, self.steps
        counting = unit != 'round' and self._progress
        with tqdm(
            total=steps[-1],
            initial=steps[self.done],
            unit=unit,
            disable=not self._progress,
            dynamic_ncols=True,
            mininterval=0,
        ) as bar:
            evaluations = simulate.run(
                *(built.algorithm, built.clients, built.graphs, built.test, built.key),
                eval_every=built.experiment.evaluation.eval_every,
                client_eval_samples=built.evaluated,
                validation=built.validation,
                membership=built.experiment.evaluation.membership,
                resume=self._resume,
                mesh=built.mesh,
                world=built.world,
                rules=built.rules,
                judged=built.judged,
                attackers=built.attackers,
                # Intervals of events are long, and how many updates each has is known
                on_round=(lambda r: bar.update(steps[r] - bar.n)) if counting else None,
                on_compile=lambda seconds: bar.set_postfix_str(f'compiled in {seconds:.1f} s'),
            )
            self._resume = None  # its memory is the run's
            for evaluated, state, reached in evaluations:
                row = built.completed(evaluated)
                with undisturbed():
                    self.state = state
                    self._keep(row, reached)
                _show(bar, row, built.model.task)
                bar.update(steps[row['round']] - bar.n)
                yield row
        if self.directory is not None:
            if self.state is not None:
                save_consensus(self.consensus(), self.directory.consensus)
            from dfl_jax.plots import plot_run

            plot_run(self.rows, self.directory.path / 'curves.png', built.model.task)
            self.directory.finish()

    def _keep(self, row: Row, reached: simulate.Progress) -> None:
        """Writes an evaluation down, and a checkpoint; of several processes the first does, with
        the parts of all."""
        if self.directory is None:
            del row[CLIENTS]
            self.rows.append(row)
        else:
            before = self.directory.append(row)
            del row[CLIENTS]  # they stand in clients.jsonl alone
            self.rows.append(row)
            if self._checkpoint:
                whole = fetched(self.state) if jax.process_count() > 1 else self.state
                if self._checkpoints:
                    self._checkpoints.save(whole, reached, notes=[before])
        self.on_row(row)

    def consensus(self) -> PyTree:
        """The parameters of the consensus model. Raises ValueError before the first evaluation."""
        if self.state is None:
            raise ValueError('there is no consensus model before the first evaluation')
        return self.built.consensus(self.state, self.rows[-1]['round'])


def save_consensus(params: Any, path: Path) -> None:
    """The consensus model's parameters as safetensors, named by their path joined with dots."""
    from flax.traverse_util import flatten_dict
    from safetensors.numpy import save

    whole = fetched(flatten_dict(params, sep='.'))
    if leads():
        write_atomically(path, save(whole))


def _show(bar: tqdm, row: Row, task: Task) -> None:
    bar.set_postfix_str(
        f'{task.metric} {row[f"consensus_{task.metric}"]:.4f}, '
        f'mean client {row[f"client_{task.metric}_mean"]:.4f}, '
        f'{row["seconds"] / row["round"]:.3g} s/round',
        refresh=False,
    )


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Holds Ctrl-C back until the block is through, so that what it writes belongs together."""
    if threading.current_thread() is not threading.main_thread():  # which gets no signals
        yield
        return
    arrived: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if arrived and callable(before):
        before(signal.SIGINT, None)
