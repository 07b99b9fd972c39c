"""A run from Python: it trains as it is iterated over."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

from dfl_jax.base import PyTree, State
from dfl_jax.experiment.build import BuiltExperiment, build
from dfl_jax.experiment.config_file import begin, with_chunk_of
from dfl_jax.experiment.description import Description
from dfl_jax.experiment.environment import prepare_jax
from dfl_jax.experiment.run_directory import Row, RunDirectory
from dfl_jax.experiment.session import Session


class Run:
    """A run of an experiment; iterating over it trains, and gives a row for every evaluation.

    A row is a dict as in metrics.jsonl: `round`, `consensus_accuracy`, `mbytes_total`, `seconds`
    and so on (docs/reference.md). A second iteration gives the rows again and goes on from where
    the first was left; it raises ValueError where that was by an error, or by Ctrl-C.

    Args:
      experiment: what to run.
      out: folder of its run directory, None for none.
      progress: show a progress bar.
      config: that of a run in `out` which is gone on with.

    Attributes:
      experiment: as given.
      rows: those so far.
    """

    def __init__(
        self,
        experiment: Description,
        out: str | os.PathLike | None = None,
        *,
        progress: bool = True,
        config: Row | None = None,
    ):
        self.experiment, self.directory = experiment, None if out is None else RunDirectory(out)
        self._progress, self._config = progress, config
        self._session: Session | None = None
        self._trained: Iterator[Row] | None = None
        self._lock = contextlib.ExitStack()  # of the directory, until the run ends or is dropped
        if self.directory is not None and config is None:
            self.directory.check_free()
            self.directory.check_lockable()

    @property
    def rows(self) -> list[Row]:
        """The rows of all evaluations so far."""
        return [] if self._session is None else self._session.rows

    @property
    def built(self) -> BuiltExperiment | None:
        """What the run is made of, once it has begun."""
        return None if self._session is None else self._session.built

    @property
    def state(self) -> State | None:
        """The state of the method after the last evaluation; None before any."""
        return None if self._session is None else self._session.state

    @property
    def consensus(self) -> PyTree:
        """The parameters of the consensus model after the last evaluation.

        Raises ValueError before the first.
        """
        if self._session is None:
            raise ValueError('there is no consensus model before the first evaluation')
        return self._session.consensus()

    def __iter__(self) -> Iterator[Row]:
        if self._trained is None:
            self._trained = iter(())  # of a run that cannot begin
            with self._released_by_errors():
                self._trained = iter(self._begin())
        given = 0
        while True:
            while given < len(self.rows):
                yield self.rows[given]
                given += 1
            with self._released_by_errors():
                if next(self._trained, None) is None:
                    break
        self._lock.close()
        session = self._session
        if session is None or not self.rows or self.rows[-1]['round'] < session.rounds:
            raise ValueError(
                'this run was interrupted; start another, or resume what it has written'
            )

    @contextlib.contextmanager
    def _released_by_errors(self) -> Iterator[None]:
        """Lets other runs into the directory after an error in this block."""
        try:
            yield
        except BaseException:
            self._lock.close()
            raise

    def _begin(self) -> Session:
        prepare_jax(self.experiment.placement)
        directory, experiment, longer = self.directory, self.experiment, None
        if directory is not None and self._config is not None:
            self._lock.enter_context(directory.locked())
            experiment = with_chunk_of(experiment, self._config)
        built = build(experiment, self._progress)
        if directory is not None:
            longer = begin(directory, built, self._config, self._lock)
        self._session = Session(built, directory, progress=self._progress, longer=longer)
        return self._session

    def last(self) -> dict[str, Any]:
        """The last row, after training to the end.

        >>> from dfl_jax.experiment import Experiment
        >>> small = dict(train_samples=60, test_samples=20, clients=3, degree=2)
        >>> Experiment.of(algorithm='dpsgd', rounds=2, **small).run(progress=False).last()['round']
        2
        """
        return [*self][-1]
