"""What the commands share: how they start and fail, and whether they may write where they are told.

Nothing heavy is imported here, so that a mistake is told at once.
"""

import functools
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import ModuleType

from absl import app, flags

from dfl_jax.cli import papers

LONGEST = 1000  # characters of an error
HELP = ('--help', '-help', '-h', '--helpshort', '--helpfull')


def start(command: ModuleType) -> None:
    """Runs the command that this process is: a module with a `main`.

    Its `define_flags(arguments)`, if any, defines flags that are not there when it is imported.
    """
    for stream in (sys.stdout, sys.stderr):  # names of files need not be text
        stream.reconfigure(errors='backslashreplace')  # type: ignore[union-attr]
    app.run(command.main, flags_parser=functools.partial(parse, command=command))


def parse(argv: list[str], command: ModuleType) -> list[str]:
    """Sets the flags; what is no flag. Ends the process where one is wrong, or with the help."""
    try:
        arguments = with_flagfiles(argv[1:])
        if define_flags := getattr(command, 'define_flags', None):
            define_flags(arguments)
        if asked_for := [a for a in arguments if a in HELP]:
            from dfl_jax.cli.help import show

            rest = [argv[0], *(a for a in arguments if a not in HELP)]
            show(command, _called(), rest, full='--helpfull' in asked_for)
            sys.exit(0)
        return flags.FLAGS([argv[0], *arguments])
    except (flags.Error, ValueError) as error:  # ValueError: --noprogress=1
        sys.exit(fail(f'{error}; see {_called()} --help'))


def _called() -> str:
    """The command as it was typed."""
    spec = getattr(sys.modules['__main__'], '__spec__', None)
    return f'python -m {spec.name}' if spec else Path(sys.argv[0]).name


def fail(message: str, status: int = 1) -> int:
    """Prints the error in one line; returns the status."""
    print(f'error: {in_a_line(message)}', file=sys.stderr)
    return status


def in_a_line(text: str) -> str:
    """The text without line breaks and what would steer a terminal, cut where it is endless."""
    line = ' '.join(text.splitlines())
    shown = ''.join(c if c.isprintable() else ascii(c)[1:-1] for c in line)
    return shown if len(shown) <= LONGEST else f'{shown[:LONGEST]}...'


def with_flagfiles(arguments: Iterable[str], inside: Sequence[str] = ()) -> list[str]:
    """The arguments, with the lines of each flagfile in place of its --flagfile.

    A flagfile that is not in the current directory is one of the papers' (`papers.flagfile`).

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
            path = papers.flagfile(path)
            if path in inside:
                raise ValueError(f'--flagfile={path} includes itself; take that line out')
            expanded += with_flagfiles(flagfile_lines(path), (*inside, path))
    return expanded


def flagfile_lines(path: str) -> list[str]:
    """The lines of a flagfile but comments and empty ones. Raises ValueError, one line."""
    try:
        with open(path, encoding='utf-8') as file:
            lines = file.read().splitlines()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else 'it is no text'
        raise ValueError(f'--flagfile={path} cannot be read: {reason}') from error
    return [line.strip() for line in lines if line.strip() and not line.startswith(('#', '//'))]


def check_writable(folder: Path, files: Iterable[str] = (), flag: str = 'out') -> None:
    """Raises ValueError where these files could not be written into the folder, and leaves nothing.

    folder: need not exist yet. flag: that named it.
    """
    advice = f'choose another --{flag}'
    there = folder
    while not os.path.lexists(there) and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise ValueError(f'--{flag}={folder}: {there} is no folder; {advice}')
    try:
        # In a folder of its own: another process may be at work on the same --out.
        with tempfile.TemporaryDirectory(dir=there, prefix='.dfl_jax-') as own:
            new = Path(own, *folder.parts[len(there.parts) :]) if there != folder else Path(own)
            new.mkdir(parents=True, exist_ok=True)
            for name in files:
                (new / name).touch()
    except OSError as error:
        why = error.strerror
        raise ValueError(f'--{flag}={folder} cannot be written: {why}; {advice}') from error
    for name in files:
        if (folder / name).is_dir():
            raise ValueError(f'{folder / name} is a folder, where a file would go; {advice}')
