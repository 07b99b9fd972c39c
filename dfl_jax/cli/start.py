"""How a command starts: its flags are read, or its help is shown.

Nothing heavy is imported here, so that a mistake is reported at once.
"""

import functools
import sys
from types import ModuleType

from absl import app, flags

from dfl_jax.cli.command import PathParser, as_typed, fail, in_flags, to_a_reader
from dfl_jax.flagfiles import with_flagfiles

HELP = ('--help', '-help', '-h', '--helpshort', '--helpfull')


def start(command: ModuleType) -> None:
    """Runs the command that this process is: a module with a `main`.

    Its `define_flags(arguments)`, if any, defines flags that are not there when it is imported.
    """
    for stream in (sys.stdout, sys.stderr):  # names of files need not be text
        stream.reconfigure(errors='backslashreplace')  # type: ignore[union-attr]
    app.run(command.main, flags_parser=functools.partial(parse, command=command))


def parse(argv: list[str], command: ModuleType) -> list[str]:
    """Sets the flags and returns the other arguments; after a wrong flag or --help, ends."""
    try:
        arguments = with_flagfiles(argv[1:])
        if define_flags := getattr(command, 'define_flags', None):
            define_flags(arguments)
        if asked_for := [a for a in arguments if a in HELP]:
            from dfl_jax.cli.help import show

            rest = [argv[0], *(a for a in arguments if a not in HELP)]
            with to_a_reader():
                show(command, as_typed(), rest, full='--helpfull' in asked_for)
            sys.exit(0)
        called, *rest = flags.FLAGS([argv[0], *arguments])
        return [called, *map(PathParser().parse, rest)]
    except (flags.Error, ValueError) as error:  # ValueError: --noprogress=1
        sys.exit(fail(f'{in_flags(error)}; see {as_typed()} --help'))
