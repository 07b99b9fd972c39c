"""The settings of a method: the names, types, defaults and meanings of what its factory takes.

A factory takes scalars and dataclasses of scalars (`LocalTraining`, `NtkUpdate`, ...) by keyword.
`make` and the flags of the command line take both as one flat list of names, which is made here
from the signature and from the `Args:` of the docstrings.
"""

import dataclasses
import difflib
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

REQUIRED = inspect.Parameter.empty


class Setting(NamedTuple):
    """One scalar that a method may be given."""

    name: str
    # bool, int, float, str, tuple of whole numbers, list of texts; None: not from a flag
    kind: type | None
    default: Any  # REQUIRED where there is none
    help: str  # what the docstring says of it
    part: str | None  # the argument of the factory that holds it, a dataclass; None: itself one


def described(factory: Callable) -> dict[str, Setting]:
    """The settings of a factory by name; those of its dataclasses stand in place of these."""
    plain = factory.func if isinstance(factory, functools.partial) else factory
    hints, meaning = _hints(plain), _meanings(plain.__doc__)
    _network, *parameters = inspect.signature(factory).parameters.values()
    settings: dict[str, Setting] = {}
    for parameter in parameters:
        name, default = parameter.name, parameter.default
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            continue
        if dataclasses.is_dataclass(default) and not isinstance(default, type):
            of_part = described_part(name, default)
            # What the factory itself says of a setting comes first
            settings |= {n: s._replace(help=meaning.get(n, s.help)) for n, s in of_part.items()}
        else:
            kind = _kind(hints.get(name), default)
            settings[name] = Setting(name, kind, default, meaning.get(name, ''), None)
    return settings


def settings_of(factory: Callable) -> dict[str, Any]:
    """The defaults of a factory's settings by name, REQUIRED where there is none."""
    return {name: setting.default for name, setting in described(factory).items()}


def assemble(factory: Callable, values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a factory that a flat list of settings asks for.

    Raises TypeError for a setting that the factory does not have, with the nearest that it has.
    """
    parameters = inspect.signature(factory).parameters
    known = described(factory)
    anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    arguments: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name in known and (part := known[name].part):
            parts.setdefault(part, {})[name] = value
        elif name in parameters or anything:
            arguments[name] = value
        else:
            raise TypeError(
                f'no setting {name!r}{nearest(name, known)}; there are {", ".join(known)}'
            )
    for part, replaced in parts.items():
        given = arguments.get(part, parameters[part].default)
        # A part may have a `replace` of its own, where one setting stands in place of another
        replace = getattr(given, 'replace', functools.partial(dataclasses.replace, given))
        arguments[part] = replace(**replaced)
    return arguments


def resolve(factory: Callable, values: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a factory by name, those given and the defaults of the others."""
    arguments = assemble(factory, values)
    parameters = inspect.signature(factory).parameters
    resolved = {name: value for name, value in arguments.items() if name not in parameters}
    for name, setting in described(factory).items():
        holder = setting.part or name
        value = arguments.get(holder, parameters[holder].default)
        if value is not REQUIRED:
            resolved[name] = getattr(value, name) if setting.part else value
    return resolved


def nearest(word: str, known: Iterable[str]) -> str:
    """', did you mean WORD?' where something similar is known, else ''."""
    similar = difflib.get_close_matches(word, list(known), 1)
    return f', did you mean {similar[0]}?' if similar else ''


def described_part(part: str, default: Any) -> dict[str, Setting]:
    """The settings of a dataclass by name. default: one that holds the defaults."""
    hints, meaning = _hints(type(default)), dict[str, str]()
    for cls in reversed(type(default).__mro__):
        meaning |= _meanings(cls.__doc__)
    values = {field.name: getattr(default, field.name) for field in dataclasses.fields(default)}
    return {
        name: Setting(name, _kind(hints.get(name), value), value, meaning.get(name, ''), part)
        for name, value in values.items()
    }


def _hints(annotated: Any) -> dict[str, Any]:
    try:
        return typing.get_type_hints(annotated)
    except Exception:  # code of others may name what does not exist
        return {}


def _kind(hint: Any, default: Any) -> type | None:
    """The type of a setting, by its annotation or else by its default."""
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = typing.get_args(hint) if union else (hint,)
    for option in options:
        if option in (bool, int, float, str):
            return option
        if typing.get_origin(option) in (tuple, list, Sequence):
            of = typing.get_args(option)
            return tuple if int in of else list if str in of else None
    scalar = type(default) in (bool, int, float, str)
    return type(default) if hint is None and scalar else None


def _meanings(doc: str | None) -> dict[str, str]:
    """What the `Args:` of a docstring say, by name; `a, b: text` says it of both."""
    lines = inspect.cleandoc(doc or '').splitlines()
    if 'Args:' not in lines:
        return {}
    meanings: dict[str, str] = {}
    names: list[str] = []
    for line in lines[lines.index('Args:') + 1 :]:
        if line and not line.startswith('  '):
            break
        item = re.match(r'  (\w+(?:, \w+)*): (.*)', line)
        names = item[1].split(', ') if item else names
        for name in names:
            text = item[2] if item else line.strip()
            meanings[name] = f'{meanings.get(name, "")} {text}'.strip()
    return meanings
