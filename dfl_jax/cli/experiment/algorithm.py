"""The algorithm of a run: made of its settings, and checked where the code is not the library's."""

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dfl_jax.algorithms import make
from dfl_jax.base import Algorithm, Clients, Graph, Info
from dfl_jax.cli.experiment.method import Chosen
from dfl_jax.cli.experiment.method_flags import flag_of
from dfl_jax.cli.experiment.plugins import of_others, reporting
from dfl_jax.heterogeneous import Population
from dfl_jax.models import Model

BATCH = 2  # samples whose predictions are asked for


def make_algorithm(chosen: Chosen, network: Model | Population) -> Algorithm:
    """The method of a run, checked where its code is not the library's.

    Raises ValueError for settings out of range, naming the flag.
    """
    try:
        with reporting('algorithm', chosen.name, 'factory'):
            algorithm = make(chosen.method.factory, network, **chosen.settings)
    except ImportError as error:  # a backend that is not installed
        raise ValueError(f'--algorithm={chosen.name}: {error}') from error
    except ValueError as error:
        setting = re.split(r'[ =]', str(error), maxsplit=1)[0]  # messages begin with its name
        flag = flag_of(setting)
        if of_others(chosen.name) or setting not in chosen.given or flag is None:
            raise
        raise ValueError(f'--{flag}={chosen.given[setting]}: {error}') from error
    if of_others(chosen.name) and isinstance(network, Model):
        check_algorithm(chosen, algorithm, network)
    return algorithm


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
    link, sample = np.zeros(places, np.int32), np.zeros((count, BATCH), np.int32)
    graph = Graph(link, link > 0, link[:, 0] > 0)
    inputs = np.zeros((count, BATCH, *model.input_shape), np.float32)
    clients = Clients(inputs, sample, sample > 0)
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
    classes = model.classes
    expected = {'client': (count, BATCH, classes), 'consensus': (BATCH, classes)}
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
