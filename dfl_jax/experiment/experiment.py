"""An experiment as a value, and how it is built and run."""

import os

from dfl_jax.experiment.build import BuiltExperiment, build
from dfl_jax.experiment.description import Description
from dfl_jax.experiment.run import Run


class Experiment(Description):
    """An experiment: a method, its network and data, and for how long; one value.

    Most are made by `Experiment.of`, from flat names. Two of equal settings are equal, and lead to
    the same bits, from Python and from the command line. Its fields are those of `Description`.

    >>> experiment = Experiment.of(algorithm='dfedavg', topology='ring', lr=0.05, rounds=3)
    >>> experiment.graphs.topology, experiment.rounds
    ('ring', 3)
    >>> Experiment.of(topology='ring', degree=4)
    Traceback (most recent call last):
    dfl_jax.setting_error.SettingError: degree=4 does not apply to topology=ring; leave it out
    """

    def build(self) -> BuiltExperiment:
        """Everything that a run is made of: arrays, algorithm, key and placement.

        Raises SettingError, DataError, TopologyError, ... for whatever is wrong with the settings
        or their files, before any long computation.
        """
        return build(self)

    def run(self, out: str | os.PathLike | None = None, progress: bool = True) -> Run:
        """The run, which trains as it is iterated over: a row for every evaluation.

        Args:
          out: folder of the run directory that `dfl-jax report`, `tables`, `time` and `select`
            read; None writes nothing.
          progress: show a progress bar.

        Raises as `build`, and ValueError or OSError where `out` holds a run already or cannot be
        written.

        >>> small = dict(train_samples=60, test_samples=20, clients=3, degree=2)
        >>> run = Experiment.of(algorithm='dpsgd', rounds=2, **small).run(progress=False)
        >>> [row['round'] for row in run]
        [1, 2]
        """
        return Run(self, out, progress=progress)
