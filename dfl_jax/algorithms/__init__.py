"""One file per paper's method, the table from names to factories, and how to call one by name."""

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from dfl_jax.algorithms.dec_fedavg import dec_fedavg, dec_fedprox
from dfl_jax.algorithms.dec_fml import dec_fml
from dfl_jax.algorithms.dec_partial import dec_fed_dropout, dec_fedrolex, dec_heterofl
from dfl_jax.algorithms.decavg import decavg
from dfl_jax.algorithms.def_kt import def_kt
from dfl_jax.algorithms.dfedavg import dfedavg, dfedavgm
from dfl_jax.algorithms.dfedsam import dfedsam
from dfl_jax.algorithms.dfml import dfml
from dfl_jax.algorithms.dispfl import dispfl
from dfl_jax.algorithms.dpsgd import dpsgd
from dfl_jax.algorithms.gossip_sgd import gossip_sgd
from dfl_jax.algorithms.ntk_dfl import ntk_dfl
from dfl_jax.algorithms.ntk_fl import ntk_fl
from dfl_jax.algorithms.spark import spark
from dfl_jax.base import Algorithm
from dfl_jax.heterogeneous.population import Population
from dfl_jax.models import Model
from dfl_jax.training.local import LocalTraining

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    'ntk_dfl': ntk_dfl,
    'dpsgd': dpsgd,
    'dfedavg': dfedavg,
    'dfedavgm': dfedavgm,
    'dfedsam': dfedsam,
    'dispfl': dispfl,
    'ntk_fl': ntk_fl,
    'decavg': decavg,
    'spark': spark,
    'dfml': dfml,
    'dec_fedavg': dec_fedavg,
    'dec_fedprox': dec_fedprox,
    'def_kt': def_kt,
    'dec_fed_dropout': dec_fed_dropout,
    'dec_heterofl': dec_heterofl,
    'dec_fedrolex': dec_fedrolex,
    'dec_fml': dec_fml,
}

__all__ = ['ALGORITHMS', 'gossip_sgd', 'make', 'settings_of', *ALGORITHMS]

REQUIRED = inspect.Parameter.empty
TRAINING = tuple(field.name for field in dataclasses.fields(LocalTraining))


def settings_of(factory: Callable[..., Algorithm]) -> dict[str, Any]:
    """The settings of a method by name, with their defaults, `REQUIRED` where there is none.

    Those of its local training are among them, in place of `training` itself.
    """
    _network, *parameters = inspect.signature(factory).parameters.values()
    found: dict[str, Any] = {}
    for parameter in parameters:
        if isinstance(parameter.default, LocalTraining):
            found |= {name: getattr(parameter.default, name) for name in TRAINING}
        else:
            found[parameter.name] = parameter.default
    return found


def make(
    method: str | Callable[..., Algorithm], network: Model | Population, **settings: Any
) -> Algorithm:
    """A method with some of its published settings replaced: `make('dfedavg', model, lr=0.05)`.

    Args:
      method: a name of `ALGORITHMS`, or a factory.
      network: the model of all clients, or the population of a method that takes one.
      settings: any of `settings_of`, those of the local training by their own names.

    Raises ValueError for a name that is not known or a setting out of range, TypeError for a
    setting that the method does not have, with the nearest of those that it has.
    """
    name = method if isinstance(method, str) else getattr(method, '__name__', str(method))
    if isinstance(method, str):
        if method not in ALGORITHMS:
            raise ValueError(
                f'unknown algorithm {method!r}{_nearest(method, ALGORITHMS)}; choose one of '
                f'{", ".join(ALGORITHMS)}'
            )
        method = ALGORITHMS[method]
    _check_settings(name, method, settings)
    training = inspect.signature(method).parameters.get('training')
    if training is not None and isinstance(training.default, LocalTraining):
        given = {name: settings.pop(name) for name in TRAINING if name in settings}
        base = settings.get('training', training.default)
        settings['training'] = dataclasses.replace(base, **given)
    return method(network, **settings)


def _check_settings(
    name: str, method: Callable[..., Algorithm], settings: Mapping[str, Any]
) -> None:
    """Raises TypeError for a setting that the method does not have."""
    parameters = inspect.signature(method).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    known = settings_of(method)
    for setting in settings:
        if setting not in known and setting not in parameters:
            raise TypeError(
                f'{name} has no setting {setting!r}{_nearest(setting, known)}; it has '
                f'{", ".join(known)}'
            )


def _nearest(word: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(word, known, 1)
    return f', did you mean {found[0]}?' if found else ''
