"""Frozen dataclasses that describe a run, what builds it, and its directory; no flags here."""

from dfl_jax.experiment.experiment import Experiment
from dfl_jax.experiment.saved_run import SavedRun, load
