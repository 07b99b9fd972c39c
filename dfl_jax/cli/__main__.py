"""`dfl-jax COMMAND --flags`: the commands and what each of them is for."""

import importlib
import re
import sys
from pathlib import Path

from dfl_jax.cli import interrupts, streams
from dfl_jax.cli.command import as_typed, fail, to_a_reader
from dfl_jax.method_settings import nearest

COMMANDS = {  # name -> the package and what it does
    'run': ('cli.run', 'train one network of clients'),
    'sweep': ('cli.sweep', 'many runs in one command'),
    'tables': ('papers.tables', 'the tables and figures of the papers, from finished or new runs'),
    'report': ('cli.report', 'an interactive page that compares runs'),
    'watch': ('cli.watch', 'the same page, live, while runs go on'),
    'select': ('papers.select', 'whose models to average in the end'),
    'time': ('cli.time', 'finished runs in seconds of any world'),
    'theory': ('papers.theory', 'the convergence theorem of NTK-DFL on a run'),
    'reconstruct': ('papers.reconstruct', 'reconstruct images from Jacobians or gradients'),
}


def main(name: str | None = None) -> None:
    """Runs a command: the named one, or the one that is the first argument."""
    streams.open_closed()
    interrupts.watch()
    if name is None:
        name = sys.argv[1] if len(sys.argv) > 1 else '--help'
        if name in ('--help', '-h', 'help'):
            print(_usage())
            sys.exit(0)
        if name not in COMMANDS:
            hint = nearest(name, COMMANDS)
            sys.exit(fail(f'unknown command {name!r}{hint}; see dfl-jax --help'))
        sys.argv[:2] = [f'dfl-jax {name}']
    package, _ = COMMANDS[name]
    if sys.argv[1:] in (['--help'], ['-h']) and (text := stored_help(name)):
        with to_a_reader():
            print(text, end='')
        sys.exit(0)
    try:
        command = importlib.import_module(f'dfl_jax.{package}.command')
    except (ImportError, ValueError) as error:  # ValueError: JAX_ENABLE_X64=maybe
        sys.exit(fail(f'dfl-jax {name} cannot start: {error}'))
    from dfl_jax.cli.start import start

    start(command)


def stored_help(name: str) -> str | None:
    """What `--help` of a command that takes the flags of a run prints, None for the others.

    To import all methods for it takes two seconds. `dfl-jax NAME --helpshort` makes the text anew.
    """
    file = Path(__file__).parent / name / 'help.txt'
    if not file.is_file():
        return None
    text, called = file.read_text(encoding='utf-8'), as_typed()
    return re.sub(f'^( *)dfl-jax {name}', lambda found: found[1] + called, text, flags=re.M)


def _usage() -> str:
    lines = [f'  {name:11} {what}' for name, (_, what) in COMMANDS.items()]
    first = 'Simulate decentralized federated learning: dfl-jax COMMAND [--flags]'
    return '\n'.join([first, '', *lines, '', 'dfl-jax COMMAND --help lists its flags.'])


if __name__ == '__main__':
    main()
