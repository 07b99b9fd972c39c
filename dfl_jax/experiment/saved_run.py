"""A run that was written to a folder: its experiment, its rows, its models, and how to go on."""

import os
from typing import Any

import jax

from dfl_jax.base import PyTree, State
from dfl_jax.checkpoint import Checkpoints
from dfl_jax.experiment.build import build
from dfl_jax.experiment.config_file import with_chunk_of
from dfl_jax.experiment.environment import prepare_jax
from dfl_jax.experiment.recall import recall, to_go_on
from dfl_jax.experiment.restore import resume
from dfl_jax.experiment.run import Run
from dfl_jax.experiment.run_directory import Row, RunDirectory


class SavedRun:
    """A run directory, read as far as it is asked for.

    Attributes:
      directory: its files.
      experiment: what it runs.
      config: all that config.json records.
    """

    def __init__(self, path: str | os.PathLike, allow_imports: bool = False):
        self.directory = RunDirectory(path)
        if not self.directory.config_file.exists():
            raise ValueError(f'{path} holds no run')
        self.experiment, self.config = recall(self.directory, allow_imports=allow_imports)

    @property
    def rows(self) -> list[Row]:
        """The rows of metrics.jsonl. Raises ValueError where the file is damaged."""
        return self.directory.rows()

    @property
    def consensus(self) -> PyTree:
        """The parameters of the consensus model at the end. Raises ValueError before."""
        if not self.directory.consensus.exists():
            raise ValueError(f'{self.directory.path} has no consensus model yet; resume it first')
        from flax.traverse_util import unflatten_dict
        from safetensors.numpy import load_file

        return unflatten_dict(load_file(self.directory.consensus), sep='.')

    @property
    def state(self) -> State:
        """The state of the method at the last checkpoint: the clients' models and what else the
        method keeps. Raises ValueError where there is none."""
        prepare_jax(self.experiment.placement)
        built = build(with_chunk_of(self.experiment, self.config), progress=False)
        checkpoints = Checkpoints(self.directory.checkpoints)
        every = self.experiment.evaluation.eval_every
        found = resume(built, checkpoints, self.directory, every)
        if found is None:
            raise ValueError(f'{self.directory.path} has no checkpoint')
        return found[0]

    @property
    def clients(self) -> PyTree:
        """The clients' models at the last checkpoint, leaves [M, ...]. Raises ValueError where
        there is no checkpoint, or the method keeps no model a client."""
        state: Any = self.state
        state = getattr(state, 'slots', state)
        if not hasattr(state, 'params'):
            raise ValueError(f'{self.experiment.method.name} keeps no model of every client')
        return jax.device_get(state.params)

    def resume(self, rounds: int | None = None, progress: bool = True) -> Run:
        """The run that goes on from the last checkpoint, with the bits of one without a stop.

        rounds: a larger number extends the run. Raises ValueError where the run cannot go on.
        """
        longer = {} if rounds is None else {'rounds': rounds}
        experiment, config, _ = to_go_on(self.directory, longer, allow_imports=True)
        return Run(experiment, self.directory.path, progress=progress, config=config)


def load(path: str | os.PathLike, allow_imports: bool = False) -> SavedRun:
    """A run that was written by `Experiment.run(out=...)`, `dfl-jax run` or `sweep`.

    allow_imports: import the code of one's own that its config.json names.

    Raises ValueError or OSError, one line, for what is no run.

    >>> import tempfile
    >>> from dfl_jax.experiment import Experiment
    >>> small = dict(train_samples=60, test_samples=20, clients=3, degree=2, algorithm='dpsgd')
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for row in Experiment.of(rounds=2, **small).run(f'{folder}/run', progress=False):
    ...         pass
    ...     saved = load(f'{folder}/run')
    ...     for row in saved.resume(rounds=3, progress=False):
    ...         pass
    ...     len(load(f'{folder}/run').rows), saved.experiment.graphs.degree
    (3, 2)
    """
    return SavedRun(path, allow_imports)
