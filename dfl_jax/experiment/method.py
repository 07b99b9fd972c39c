"""The method of a run: its settings as given, by the run, and by default, and what they make.

An algorithm is checked where the code is not the library's.
"""

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dfl_jax.base import Algorithm, Clients, Graph, Info
from dfl_jax.experiment.own_code import (
    SETTINGS_OF_CODE,
    is_code,
    is_own,
    method_named,
    name_of,
    named,
    reporting,
)
from dfl_jax.experiment.run_settings import PART_OF
from dfl_jax.heterogeneous import Population
from dfl_jax.initialisation import gain_corrected
from dfl_jax.method_settings import Setting, assemble, described, resolve
from dfl_jax.methods import FLAT_NAMES, METHODS, Method, Run, make
from dfl_jax.models import Model
from dfl_jax.setting_error import SettingError
from dfl_jax.training.optimisers import learning_rate_factor, named_optimiser

BATCH = 2  # samples whose predictions are asked for
OF_THE_RUN = ('algorithm', 'rounds', 'seed')  # beside PART_OF
FROM_STREAMS = ('projection_seed',)  # settings of methods that follow from the seed


@dataclass(frozen=True)
class MethodSettings:
    """The method, and what is given of its settings.

    Args:
      algorithm: One of METHODS, or package.module:factory.
      given: Settings of the method by their flat names; all others are the method's defaults.
    """

    algorithm: Any = 'ntk_dfl'
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name, or package.module:factory."""
        return name_of(self.algorithm)

    @property
    def row(self) -> Method:
        """Its row of METHODS, or what stands in place of one. Raises ValueError."""
        return method_named(self.algorithm)


def flat_settings(method: Method) -> dict[str, Setting]:
    """The settings of a method that can be given, by their flat names.

    A setting of the library has the same name for all methods; an argument of a method of one's own
    is named by itself, and so is what follows from a setting of the run, such as its rounds.
    """
    of_the_run = method.from_run.keys() & {*PART_OF, *OF_THE_RUN}

    def flat(name: str, setting: Setting) -> str:
        names = FLAT_NAMES if setting.part else method.flat_names
        return name if name in of_the_run else names.get(name, name)

    return {
        flat(name, setting): setting
        for name, setting in described(method.factory).items()
        if setting.kind is not None and name not in FROM_STREAMS
    }


@functools.cache
def flat_settings_of_all() -> dict[str, Setting]:
    """The settings of all methods of the library by their flat names."""
    found: dict[str, Setting] = {}
    for row in METHODS.values():
        found = flat_settings(row) | found
    return {n: each for n, each in found.items() if n not in (*PART_OF, *OF_THE_RUN)}


@dataclass(frozen=True)
class ConfiguredMethod:
    """A method with what the experiment and the run say of its settings."""

    name: str
    method: Method
    given: dict[str, Any]  # settings by the names of the factory
    run: Run
    gain: float | np.ndarray | None = None  # of gain-corrected weights, once it is known
    target: tuple[tuple[int, ...], Any] = ((), np.int32)  # shape and dtype of a sample's

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
        return settings

    @property
    def corrected(self) -> bool:
        """Whether initial weights are scaled by a gain."""
        return self.given.get('init') == 'gain_corrected'

    @property
    def resolved(self) -> dict[str, Any]:
        """The settings with the method's defaults, as config.json records them."""
        resolved = resolve(self.method.factory, self.settings)
        own = {n: resolved[n] for n in SETTINGS_OF_CODE if callable(resolved.get(n))}
        resolved |= {name: name_of(value) for name, value in own.items()}
        if self.corrected:
            resolved['init'] = 'gain_corrected'
        if self.gain is not None:
            resolved['gain'] = float(np.mean(self.gain))
        return resolved


def configure(method: MethodSettings, run: Run) -> ConfiguredMethod:
    """The method in a run. Raises ValueError for settings out of range, before data are read."""
    settings = flat_settings(method.row)
    given = {
        settings[name].name: tuple(map(int, value)) if settings[name].kind is tuple else value
        for name, value in method.given.items()
    }
    parts = {setting.name: setting.part for setting in settings.values()}
    given |= _own_functions({name: value for name, value in given.items() if parts[name]})
    configured = ConfiguredMethod(method.name, method.row, given, run)
    with _by_flat_names(configured):
        assemble(configured.method.factory, configured.settings)  # its dataclasses check
    return configured


def _own_functions(given: Mapping[str, Any]) -> dict[str, Any]:
    """The optimizer and the schedule of one's own, checked. Raises SettingError."""
    options, found = given.get('optimizer_options', ''), {}
    checks = {
        'optimizer': lambda factory: named_optimiser(factory, options, 0.1),
        'lr_schedule': learning_rate_factor,
    }
    for name, check in checks.items():
        if is_code(name, value := given.get(name)):
            found[name] = named(name, value, {})
            with reporting(name, value, 'factory'):
                check(found[name])
    return found


def make_algorithm(configured: ConfiguredMethod, network: Model | Population) -> Algorithm:
    """The method of a run, checked where its code is not the library's.

    Raises ValueError for settings out of range.
    """
    name = configured.name
    with _by_flat_names(configured), reporting('algorithm', name, 'factory'):
        algorithm = make(configured.method.factory, network, **configured.settings)
    if is_own(name) and isinstance(network, Model):
        check_algorithm(configured, algorithm, network)
    return algorithm


@contextmanager
def _by_flat_names(configured: ConfiguredMethod) -> Iterator[None]:
    """Raises errors of a setting by its flat name, and of a missing package by the algorithm's."""
    try:
        yield
    except ImportError as error:  # a backend that is not installed
        raise SettingError('algorithm', configured.name, str(error)) from error
    except SettingError as error:
        name = error.setting
        if is_own(configured.name) or name not in configured.given:
            raise
        flat, value = FLAT_NAMES.get(name, name), configured.given[name]
        raise SettingError(flat, value, str(error)) from error


def check_algorithm(configured: ConfiguredMethod, algorithm: Any, model: Model) -> None:
    """Raises ValueError where an algorithm of others is none, without computing anything."""
    name, count = configured.name, configured.run.clients
    if not isinstance(algorithm, Algorithm):
        raise ValueError(
            f'`algorithm={name}` returns {type(algorithm).__name__}, not a dfl_jax.base.Algorithm'
        )

    def check_shapes(what: str, expected: dict[str, tuple], found: dict[str, Any], whose: str):
        for entry, shape in expected.items():
            if entry not in found:
                raise ValueError(f"`algorithm={name}`: its {what} returns no '{entry}' {whose}")
            if tuple(found[entry].shape) != shape:
                raise ValueError(
                    f"`algorithm={name}`: its {what} returns '{entry}' "
                    f'{tuple(found[entry].shape)} {whose}, not {shape}'
                )

    places = (
        (1, configured.resolved['cohort']) if configured.method.graphs == 'cohort' else (count, 3)
    )
    (axes, dtype), sample = configured.target, np.zeros((count, BATCH), bool)
    link, y = np.zeros(places, np.int32), np.zeros((count, BATCH, *axes), dtype)
    graph = Graph(link, link > 0, link[:, 0] > 0)
    inputs = np.zeros((count, BATCH, *model.input_shape), np.float32)
    clients = Clients(inputs, y, sample)
    if algorithm.task != model.task:
        raise ValueError(
            f'`algorithm={name}` learns {algorithm.task.name}, and the run {model.task.name}; give '
            'its Algorithm task=model.task, or leave `task` out'
        )
    key = jax.random.key(0)
    x = jax.ShapeDtypeStruct((BATCH, *model.input_shape), jnp.float32)
    with reporting('algorithm', name, 'init'):
        state = jax.eval_shape(algorithm.init, key, clients)
    with reporting('algorithm', name, 'step'):
        after, info = jax.eval_shape(algorithm.step, key, state, graph, clients)
    had, has = _shapes(state), _shapes(after)
    for leaf in had | has:
        if had.get(leaf) != has.get(leaf):
            raise ValueError(
                f'`algorithm={name}`: its step returns another state than it is given: state{leaf} '
                f'is {has.get(leaf, "missing")} and was {had.get(leaf, "missing")}'
            )
    with reporting('algorithm', name, 'predict'):
        logits = jax.eval_shape(algorithm.predict, state, x)
    outputs = jax.eval_shape(model.apply, model.shapes, x).shape
    expected = {'client': (count, *outputs), 'consensus': outputs}
    found = logits if isinstance(logits, dict) else {}
    check_shapes('predict', expected, found, f'of {BATCH} samples')
    if not isinstance(info, Info):
        raise ValueError(
            f'`algorithm={name}`: its step returns {type(info).__name__} beside the state, not a '
            'dfl_jax.base.Info'
        )
    for unit in info.sent:
        if unit not in algorithm.unit_bits:
            raise ValueError(
                f"`algorithm={name}`: its step counts '{unit}', but unit_bits has no {unit}"
            )
    reported = {'loss': info.loss} | dict(info.sent)
    each = dict.fromkeys(reported, (count,))
    check_shapes('step', each, reported, f'of {count} clients')


def _shapes(state: Any) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): f'{leaf.dtype}{[*leaf.shape]}' for path, leaf in leaves}
