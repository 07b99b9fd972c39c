"""Flagfiles, which hold flags of a command, a line each: found, read and put in their places."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from dfl_jax.paper_folder import CHECKOUT, PAPERS

# A flag or its value in quotes, which a shell would take off
QUOTED = re.compile(r"""(--?\w+[= ])?(['"]).*\2""")


def with_flagfiles(arguments: Iterable[str], inside: Sequence[str] = ()) -> list[str]:
    """The arguments, with the lines of each flagfile in place of its --flagfile.

    A flagfile that is not in the current directory is one of the papers' (`found_file`).

    inside: the flagfiles that lead here.

    Raises ValueError for a flagfile that cannot be read or that includes itself.
    """
    expanded: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        if argument == '--':
            return [*expanded, argument, *rest]
        name, equals, path = argument.partition('=')
        if name not in ('--flagfile', '-flagfile'):
            expanded.append(argument)
            continue
        path = path if equals else next(rest, '')
        if path:  # an empty one stands for none, as in absl
            path = found_file(path)
            if path in inside:
                raise ValueError(f'--flagfile={path} includes itself; take that line out')
            expanded += with_flagfiles(flagfile_lines(path), (*inside, path))
    return expanded


def found_file(name: str) -> str:
    """The path of a flagfile, or of a file that one names: `name`, or below the papers' folder.

    name: relative to the current directory, or to the papers' folder, where `experiments/`, as the
      documents write it from a checkout, may come first. A name that is in neither stays as it is.
    """
    path = Path(os.path.expanduser(name))
    if not path.is_absolute() and not os.path.lexists(path):
        parts = path.parts[1:] if path.parts[:1] == (CHECKOUT.name,) else path.parts
        shipped = PAPERS.joinpath(*parts)
        if shipped.is_file():
            return str(shipped)
    return os.path.expanduser(name)


def flagfile_lines(path: str) -> list[str]:
    """The lines of a flagfile but comments and empty ones. Raises ValueError, one line."""
    try:
        with open(path, encoding='utf-8-sig') as file:  # perhaps a pipe of the shell
            lines = file.read().splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else 'it is no text in UTF-8'
        raise ValueError(f'--flagfile={path} cannot be read: {reason}') from error
    kept = []
    for number, line in enumerate(map(str.strip, lines), 1):
        if QUOTED.fullmatch(line):
            raise ValueError(
                f'--flagfile={path}: line {number}, {line}, is in quotes, which would belong to '
                'the value; take them off'
            )
        if line and not line.startswith(('#', '//')):
            kept.append(line)
    return kept
