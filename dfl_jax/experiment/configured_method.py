"""The method of a run: its settings as given, by the run and by default, and what they make."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dfl_jax.exchange import Attack
from dfl_jax.experiment.description import Description
from dfl_jax.experiment.method import flat_settings
from dfl_jax.experiment.table_rows import SETTINGS_OF_CODE, is_own, name_of
from dfl_jax.initialisation import gain_corrected
from dfl_jax.method_settings import assemble, resolve
from dfl_jax.methods import FLAT_NAMES, Method, Run
from dfl_jax.setting_error import by_flat_names


@dataclass(frozen=True)
class ConfiguredMethod:
    """A method with what the experiment and the run say of its settings."""

    name: str
    method: Method
    given: dict[str, Any]  # settings by the names of the factory
    run: Run
    gain: float | np.ndarray | None = None  # of gain-corrected weights, once it is known
    attack: Attack | None = None  # on messages

    @property
    def settings(self) -> dict[str, Any]:
        """What the method is made of, by `make`."""
        of_run = {name: take(self.run) for name, take in self.method.from_run.items()}
        at_zero = {
            name: take(self.run)
            for name, take in self.method.from_run_at_zero.items()
            if self.given.get(name) == 0
        }
        settings = of_run | self.given | at_zero
        if 'chunk' in of_run:  # what is given is in it
            settings['chunk'] = of_run['chunk']
        if self.corrected:
            del settings['init']
        if self.gain is not None:
            settings['init'] = gain_corrected(self.gain)
        if self.attack is not None:
            settings['attack'] = self.attack
        return settings

    def takes(self, part: str) -> bool:
        """Whether it has these of the settings of exchanges (`methods.OF_EXCHANGES`), and no others
        of their names."""
        return part in getattr(self.method.factory, 'exchanging', ())

    @property
    def flat_names(self) -> Mapping[str, str]:
        """The flat names of settings whose own names differ, where these are the library's."""
        return {} if is_own(self.name) else FLAT_NAMES

    @property
    def corrected(self) -> bool:
        """Whether initial weights are scaled by a gain."""
        return self.given.get('init') == 'gain_corrected'

    @property
    def resolved(self) -> dict[str, Any]:
        """The settings with the method's defaults, as config.json records them."""
        resolved = resolve(self.method.factory, self.settings)
        if self.takes('attack'):  # which is the run's, not the method's
            del resolved['attack']
        own = {n: resolved[n] for n in SETTINGS_OF_CODE if callable(resolved.get(n))}
        resolved |= {name: name_of(value) for name, value in own.items()}
        if self.corrected:
            resolved['init'] = 'gain_corrected'
        if self.gain is not None:
            resolved['gain'] = float(np.mean(self.gain))
        return resolved


def configure(
    experiment: Description, functions: dict[str, Any], projection_seed: int
) -> ConfiguredMethod:
    """The method in a run, as far as the settings say it.

    functions: an optimizer and a schedule of one's own. Raises SettingError for settings out of
    range, before data are read.
    """
    clients, senders = experiment.partition.clients, experiment.architectures.senders
    run = Run(
        rounds=experiment.rounds,
        clients=clients,
        senders=clients // 2 if senders is None else senders,
        clustered=experiment.graphs.topology == 'clustered',
        projection_seed=projection_seed,
    )
    method, settings = experiment.method, flat_settings(experiment.method.row)
    given = {
        settings[name].name: tuple(map(int, value)) if settings[name].kind is tuple else value
        for name, value in method.given.items()
    }
    configured = ConfiguredMethod(method.name, method.row, given | functions, run)
    with by_flat_names(configured.flat_names):
        assemble(configured.method.factory, configured.settings)  # its dataclasses check
    return configured
