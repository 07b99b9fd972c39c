"""The algorithm of a run: made of its settings, and checked where the code is not the library's."""

import re
from typing import Any

import jax
import jax.numpy as jnp

from dfl_jax.algorithms import make
from dfl_jax.base import Algorithm, Clients, Graph, Info
from dfl_jax.cli.experiment.method import Chosen
from dfl_jax.cli.experiment.method_flags import flag_of
from dfl_jax.cli.experiment.plugins import of_others, reporting
from dfl_jax.heterogeneous import Population
from dfl_jax.models import Model

BATCH = 2  # samples whose predictions are asked for


def make_algorithm(chosen: Chosen, network: Model | Population) -> Algorithm:
    """The method of a run. Raises ValueError for settings out of range, naming the flag."""
    try:
        with reporting('algorithm', chosen.name, 'factory'):
            return make(chosen.method.factory, network, **chosen.settings)
    except ImportError as error:  # a backend that is not installed
        raise ValueError(f'--algorithm={chosen.name}: {error}') from error
    except ValueError as error:
        setting = re.split(r'[ =]', str(error), maxsplit=1)[0]  # messages begin with its name
        flag = flag_of(setting)
        if of_others(chosen.name) or setting not in chosen.given or flag is None:
            raise
        raise ValueError(f'--{flag}={chosen.given[setting]}: {error}') from error


def check_algorithm(
    name: str, algorithm: Any, model: Model, key: jax.Array, clients: Clients, graphs: Graph
) -> None:
    """Raises ValueError where an algorithm of others is none, without computing anything.

    graphs: a schedule, of which the first round is taken.
    """
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

    graph = jax.tree.map(lambda leaf: leaf[0], graphs)
    x = jax.ShapeDtypeStruct((BATCH, *model.input_shape), jnp.float32)
    with reporting('algorithm', name, 'init'):
        state = jax.eval_shape(algorithm.init, key, clients)
    with reporting('algorithm', name, 'step'):
        after, info = jax.eval_shape(algorithm.step, key, state, graph, clients)
    if _shapes(after) != _shapes(state):
        raise ValueError(
            f'--algorithm={name}: its step returns another state than it is given: '
            f'{_difference(state, after)}'
        )
    with reporting('algorithm', name, 'predict'):
        logits = jax.eval_shape(algorithm.predict, state, x)
    count, classes = len(clients.y), model.classes
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
    told_of = {'loss': info.loss} | dict(info.sent)
    each = dict.fromkeys(told_of, (count,))
    check_shapes('step', each, told_of, f'of {count} clients')


def _shapes(state: Any) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): f'{leaf.dtype}{[*leaf.shape]}' for path, leaf in leaves}


def _difference(before: Any, after: Any) -> str:
    """The first leaf that is not the same."""
    had, has = _shapes(before), _shapes(after)
    name = next(name for name in {**had, **has} if had.get(name) != has.get(name))
    return f'state{name} is {has.get(name, "missing")} and was {had.get(name, "missing")}'
