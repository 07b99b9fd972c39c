"""Algorithms and models of others, --algorithm and --model=package.module:factory.

Whatever their code raises, and whatever else it returns than it should, becomes a ValueError of one
line that names the flag, before the first round.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from absl import flags

from dfl_jax.algorithms import METHODS, Method
from dfl_jax.base import Algorithm, Clients, Graph, Info
from dfl_jax.cli.command import in_a_line
from dfl_jax.cli.experiment.method_flags import define_flags
from dfl_jax.models import Model

BATCH = 2  # samples whose predictions are asked for


def of_others(name: str) -> bool:
    """Whether it is package.module:factory, and so runs code that is not the library's."""
    return ':' in name


def method_named(name: str) -> Method:
    """A method of the table, or one's own: a factory, or a `Method` that says what it needs.

    Raises ValueError, one line.
    """
    if name in METHODS:
        return METHODS[name]
    factory = named('algorithm', name, {}, METHODS)
    return factory if isinstance(factory, Method) else Method(factory, name)


def settle_defaults(given: flags.FlagValues) -> None:
    """Gives the flags that were left out the defaults of the --algorithm. Raises ValueError."""
    for name, value in method_named(given.algorithm).defaults.items():
        if not given[name].present:
            given[name].value = value


def define_flags_of_others(arguments: Sequence[str]) -> None:
    """Defines the flags of the methods of one's own that a command line names.

    arguments: of the command, those of its flagfiles among them, which are not parsed yet.

    Raises ValueError, one line.
    """
    for argument in arguments:
        flag, _, value = argument.lstrip('-').partition('=')
        if flag == 'sweep':
            flag, _, value = value.partition(':')
        for name in value.split(',') if flag == 'algorithm' else ():
            if of_others(name):
                with told('algorithm', name, 'factory'):
                    define_flags(method_named(name))


def named(
    flag: str, name: str, known: Mapping[str, Callable], listed: Iterable[str] = ()
) -> Callable:
    """A factory by its name in the table, or by package.module:factory; listed: in an error."""
    if name in known:
        return known[name]
    if not of_others(name):
        raise ValueError(
            f'unknown --{flag}={name}; choose one of {", ".join(listed or known)}, or '
            'package.module:factory'
        )
    module, _, attribute = name.partition(':')
    try:
        factory = getattr(importlib.import_module(module), attribute)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may do anything while it is imported, even sys.exit
        raise ValueError(f'--{flag}={name} cannot be imported: {_reason(error)}') from error
    if not callable(factory) and not isinstance(factory, Method):
        raise ValueError(f'--{flag}={name} is no factory but of type {type(factory).__name__}')
    return factory


def _reason(error: BaseException) -> str:
    return in_a_line(f'{type(error).__name__}: {error}')


@contextlib.contextmanager
def told(flag: str, name: str, what: str) -> Iterator[None]:
    """What code of others raises in this block, in one line that names it.

    The library's own methods say themselves what is wrong, and a fault of theirs is to be seen.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if not of_others(name):
            raise
        reason = in_a_line(str(error)) if isinstance(error, ValueError) else _reason(error)
        raise ValueError(f'--{flag}={name}: its {what} failed: {reason}') from error


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
    graph = jax.tree.map(lambda leaf: leaf[0], graphs)
    x = jax.ShapeDtypeStruct((BATCH, *model.input_shape), jnp.float32)
    with told('algorithm', name, 'init'):
        state = jax.eval_shape(algorithm.init, key, clients)
    with told('algorithm', name, 'step'):
        after, info = jax.eval_shape(algorithm.step, key, state, graph, clients)
    if _shapes(after) != _shapes(state):
        raise ValueError(
            f'--algorithm={name}: its step returns another state than it is given: '
            f'{_difference(state, after)}'
        )
    with told('algorithm', name, 'predict'):
        logits = jax.eval_shape(algorithm.predict, state, x)
    count, classes = len(clients.y), model.classes
    expected = {'client': (count, BATCH, classes), 'consensus': (BATCH, classes)}
    found = logits if isinstance(logits, dict) else {}
    _check_shapes(name, 'predict', expected, found, f'of {BATCH} samples')
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
    _check_shapes(name, 'step', each, told_of, f'of {count} clients')


def _check_shapes(
    name: str, what: str, expected: dict[str, tuple], found: dict[str, Any], whose: str
) -> None:
    for entry, shape in expected.items():
        if entry not in found:
            raise ValueError(f"--algorithm={name}: its {what} returns no '{entry}' {whose}")
        if tuple(found[entry].shape) != shape:
            raise ValueError(
                f"--algorithm={name}: its {what} returns '{entry}' {tuple(found[entry].shape)} "
                f'{whose}, not {shape}'
            )


def _shapes(state: Any) -> dict[str, str]:
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): f'{leaf.dtype}{[*leaf.shape]}' for path, leaf in leaves}


def _difference(before: Any, after: Any) -> str:
    """The first leaf that is not the same."""
    had, has = _shapes(before), _shapes(after)
    name = next(name for name in {**had, **has} if had.get(name) != has.get(name))
    return f'state{name} is {has.get(name, "missing")} and was {had.get(name, "missing")}'
