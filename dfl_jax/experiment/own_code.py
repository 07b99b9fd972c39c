"""Algorithms, models, tasks and loaders of others: --algorithm=package.module:factory and so on.

Whatever their code raises, and whatever else it returns than it should, becomes a ValueError of one
line that names the flag, before the first round.
"""

import contextlib
import hashlib
import importlib
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from absl import flags

from dfl_jax import data
from dfl_jax.cli.flags.method_flags import define_flags
from dfl_jax.methods import METHODS, Method
from dfl_jax.plain_text import in_a_line

FLAGS_OF_CODE = ('algorithm', 'model', 'task', 'dataset')  # may be package.module:factory


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


def is_code(flag: str, name: str) -> bool:
    """Whether the value of one of FLAGS_OF_CODE runs code that is not the library's."""
    return (loader_of_others if flag == 'dataset' else of_others)(name)


def digest_of_code(given: flags.FlagValues) -> str | None:
    """16 digits of the source files of the modules that the flags name; None without any.

    Of what these import in their turn nothing is known.

    Raises ValueError for a module that cannot be imported.
    """
    code = [(flag, str(given[flag].value)) for flag in FLAGS_OF_CODE]
    modules = [_imported(flag, name) for flag, name in code if is_code(flag, name)]
    files = sorted({file for each in modules if (file := getattr(each, '__file__', None))})
    digest = hashlib.sha256(b''.join(Path(file).read_bytes() for file in files))
    return digest.hexdigest()[:16] if modules else None


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
    try:
        factory = getattr(_imported(flag, name), name.partition(':')[2])
    except Exception as error:
        raise ValueError(f'--{flag}={name} cannot be imported: {_reason(error)}') from error
    if not callable(factory) and not isinstance(factory, Method):
        raise ValueError(f'--{flag}={name} is no factory but of type {type(factory).__name__}')
    return factory


def _imported(flag: str, name: str) -> ModuleType:
    """The module of package.module:factory, also of this folder. Raises ValueError."""
    here = os.getcwd()
    if here not in sys.path and '' not in sys.path:
        sys.path.append(here)  # `dfl-jax` starts without it, unlike `python -m`
    try:
        return importlib.import_module(name.partition(':')[0])
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a module may do anything while it is imported, even sys.exit
        raise ValueError(f'--{flag}={name} cannot be imported: {_reason(error)}') from error


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
        where = _line_of(error, name)
        raise ValueError(f'--{flag}={name}: its {what} failed: {reason}{where}') from error


def _line_of(error: BaseException, name: str) -> str:
    """' (line N of FILE)', the last of the module that raised the error; '' where none did."""
    module = sys.modules.get(name.partition(':')[0])
    file = getattr(module, '__file__', None)
    lines = [
        each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == file
    ]
    return f' (line {lines[-1]} of {file})' if lines else ''
