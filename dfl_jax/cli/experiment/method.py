"""The method of a run, and its settings by flags, by the run, and by default."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dfl_jax.algorithms import Method, Run
from dfl_jax.cli.experiment.applicable import check_applicable
from dfl_jax.cli.experiment.method_flags import given_settings, settings_with_flags
from dfl_jax.cli.experiment.plugins import method_named
from dfl_jax.cli.experiment.values import check_values
from dfl_jax.initialisation import gain_corrected
from dfl_jax.settings import resolve


@dataclass(frozen=True)
class Chosen:
    """A method with what flags and the run say of its settings."""

    name: str
    method: Method
    given: dict[str, Any]  # settings by flags
    run: Run
    gain: float | np.ndarray | None = None  # of gain-corrected weights, once it is known

    @property
    def settings(self) -> dict[str, Any]:
        """What the method is made of, by `make`."""
        of_run = {name: take(self.run) for name, take in self.method.from_run.items()}
        settings = of_run | self.given
        if 'chunk' in of_run:  # the flag is in it
            settings['chunk'] = of_run['chunk']
        if self.corrected:
            del settings['init']
        if self.gain is not None:
            settings['init'] = gain_corrected(self.gain)
        return settings

    @property
    def corrected(self) -> bool:
        """Whether initial weights are scaled by a gain."""
        return self.given.get('init') == 'gain_corrected'

    @property
    def resolved(self) -> dict[str, Any]:
        """The settings with the method's defaults, as config.json records them."""
        resolved = resolve(self.method.factory, self.settings)
        if self.corrected:
            resolved['init'] = 'gain_corrected'
        if self.gain is not None:
            resolved['gain'] = float(np.mean(self.gain))
        return resolved


def choose_method(flags: Any, projection_seed: int) -> Chosen:
    """The method of the flags. Raises ValueError for flags that are wrong or without effect."""
    check_values(flags)
    method = method_named(flags.algorithm)
    settings = settings_with_flags(method)
    check_applicable(flags, method, settings)
    run = Run(
        rounds=flags.rounds,
        clients=flags.clients,
        senders=flags.clients // 2 if flags.senders is None else flags.senders,
        clustered=flags.topology == 'clustered',
        projection_seed=projection_seed,
    )
    return Chosen(flags.algorithm, method, given_settings(flags, settings), run)
