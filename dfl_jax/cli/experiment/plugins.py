"""Algorithms, models, tasks and loaders of others: --algorithm=package.module:factory and so on.

Whatever their code raises, and whatever else it returns than it should, becomes a ValueError of one
line that names the flag, before the first round.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from dfl_jax import data
from dfl_jax.algorithms import Method
from dfl_jax.cli.command import in_a_line
from dfl_jax.cli.experiment.method_flags import define_flags
from dfl_jax.cli.experiment.methods import METHODS


def of_others(name: str) -> bool:
    """Whether it is package.module:factory, and so runs code that is not the library's."""
    return ':' in name


def loader_of_others(name: str) -> bool:
    """Whether a --dataset is package.module:factory, and neither a file nor of Hugging Face."""
    try:
        data.kind_of(name)
    except data.DataError:
        return of_others(name)
    return False


def method_named(name: str) -> Method:
    """A method of the table, or one's own: a factory, or a `Method` that says what it needs.

    Raises ValueError, one line.
    """
    factory = named('algorithm', name, METHODS)
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
                with reporting('algorithm', name, 'factory'):
                    define_flags(method_named(name))


def named(flag: str, name: str, known: Mapping[str, Any]) -> Any:
    """A factory by its name in the table, or by package.module:factory, also of this folder."""
    if name in known:
        return known[name]
    if not of_others(name):
        raise ValueError(
            f'unknown --{flag}={name}; choose one of {", ".join(known)}, or package.module:factory'
        )
    module, _, attribute = name.partition(':')
    here = os.getcwd()
    if here not in sys.path and '' not in sys.path:
        sys.path.append(here)  # `dfl-jax` starts without it, unlike `python -m`
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
def reporting(flag: str, name: str, what: str) -> Iterator[None]:
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
