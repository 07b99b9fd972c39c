"""The method of a run: its settings by flags, by the run, and by default, and what they make.

An algorithm is checked where the code is not the library's.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dfl_jax.base import Algorithm, Clients, Graph, Info
from dfl_jax.cli.flags.method_flags import flag_of, given_settings, settings_with_flags
from dfl_jax.experiment.applicable import check_applicable
from dfl_jax.experiment.own_code import method_named, of_others, reporting
from dfl_jax.experiment.values import check_values
from dfl_jax.heterogeneous import Population
from dfl_jax.initialisation import gain_corrected
from dfl_jax.method_settings import assemble, resolve
from dfl_jax.methods import Method, Run, make
from dfl_jax.models import Model

BATCH = 2  # samples whose predictions are asked for


@dataclass(frozen=True)
class Chosen:
    """A method with what flags and the run say of its settings."""

    name: str
    method: Method
    given: dict[str, Any]  # settings by flags
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
    chosen = Chosen(flags.algorithm, method, given_settings(flags, settings), run)
    with _naming_flags(chosen):
        assemble(method.factory, chosen.settings)  # its dataclasses check, before data are read
    return chosen


def make_algorithm(chosen: Chosen, network: Model | Population) -> Algorithm:
    """The method of a run, checked where its code is not the library's.

    Raises ValueError for settings out of range, naming the flag.
    """
    with _naming_flags(chosen), reporting('algorithm', chosen.name, 'factory'):
        algorithm = make(chosen.method.factory, network, **chosen.settings)
    if of_others(chosen.name) and isinstance(network, Model):
        check_algorithm(chosen, algorithm, network)
    return algorithm


@contextmanager
def _naming_flags(chosen: Chosen) -> Iterator[None]:
    """Raises ValueErrors about a setting, and ImportErrors, as ValueErrors that name the flag."""
    try:
        yield
    except ImportError as error:  # a backend that is not installed
        raise ValueError(f'--algorithm={chosen.name}: {error}') from error
    except ValueError as error:
        setting = re.split(r'[ =]', str(error), maxsplit=1)[0]  # messages begin with its name
        flag = flag_of(setting)
        if of_others(chosen.name) or setting not in chosen.given or flag is None:
            raise
        raise ValueError(f'--{flag}={chosen.given[setting]}: {error}') from error


def check_algorithm(chosen: Chosen, algorithm: Any, model: Model) -> None:
    """Raises ValueError where an algorithm of others is none, without computing anything."""
    name, count = chosen.name, chosen.run.clients
    if not isinstance(algorithm, Algorithm):
        raise ValueError(
            f'--algorithm={name} returns {type(algorithm).__name__}, not a dfl_jax.base.Algorithm'
        )

    def check_shapes(what: str, expected: dict[str, tuple], found: dict[str, Any], whose: str):
        for entry, shape in expected.items():
            if entry not in found:
                raise ValueError(f"--algorithm={name}: its {what} returns no '{entry}' {whose}")
            if tuple(found[entry].shape) != shape:
                raise ValueError(
                    f"--algorithm={name}: its {what} returns '{entry}' "
                    f'{tuple(found[entry].shape)} {whose}, not {shape}'
                )

    places = (1, chosen.resolved['cohort']) if chosen.method.graphs == 'cohort' else (count, 3)
    (axes, dtype), sample = chosen.target, np.zeros((count, BATCH), bool)
    link, y = np.zeros(places, np.int32), np.zeros((count, BATCH, *axes), dtype)
    graph = Graph(link, link > 0, link[:, 0] > 0)
    inputs = np.zeros((count, BATCH, *model.input_shape), np.float32)
    clients = Clients(inputs, y, sample)
    if algorithm.task != model.task:
        raise ValueError(
            f'--algorithm={name} learns {algorithm.task.name}, and the run {model.task.name}; give '
            'its Algorithm task=model.task, or leave --task out'
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
                f'--algorithm={name}: its step returns another state than it is given: state{leaf} '
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
            f'--algorithm={name}: its step returns {type(info).__name__} beside the state, not a '
            'dfl_jax.base.Info'
        )
    for unit in info.sent:
        if unit not in algorithm.unit_bits:
            raise ValueError(
                f"--algorithm={name}: its step counts '{unit}', but unit_bits has no {unit}"
            )
    reported = {'loss': info.loss} | dict(info.sent)
    each = dict.fromkeys(reported, (count,))
    check_shapes('step', each, reported, f'of {count} clients')


def _shapes(state: Any) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): f'{leaf.dtype}{[*leaf.shape]}' for path, leaf in leaves}
