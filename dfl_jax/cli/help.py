"""`--help` of a command: its flags in groups, each with its default.

`--help --algorithm=NAME` shows what has an effect with that method, `--helpfull` everything.
"""

import inspect
import textwrap
from collections.abc import Container, Iterable, Iterator, Sequence
from types import ModuleType

from absl import flags

FLAGS = flags.FLAGS
WIDTH = 100


def show(command: ModuleType, called: str, argv: Sequence[str], full: bool) -> None:
    """Prints the help of a command.

    Args:
      command: its module, with the examples of a command that takes the flags of a run.
      called: the command as it was typed.
      argv: the arguments beside --help, for what applies.
      full: show every flag of every method.
    """
    print(inspect.cleandoc(command.__doc__ or '').split('\n\n')[0])
    own = FLAGS.get_key_flags_for_module(command.__name__)
    examples = getattr(command, 'EXAMPLES', ())
    if not examples:
        _print_group('flags', map(_line, own))
        return
    FLAGS(list(argv), known_only=True)
    from dfl_jax.cli.experiment.method_flags import OLD_NAMES, of_a_run

    of_runs = {flag.name for flag in of_a_run()} | OLD_NAMES.keys()
    _print_group('this command', (_line(flag) for flag in own if flag.name not in of_runs))
    for title, lines in _groups(full):
        _print_group(title, lines)
    print('\nexamples')
    for example in examples:
        print(f'  {called} {example}')
    if not full:
        print(
            f'\n{called} --help --algorithm=NAME shows the flags of that method, --helpfull those '
            'of all.'
        )


def _groups(full: bool) -> Iterator[tuple[str, Iterator[str]]]:
    """The flags of a run, in groups, under the flags that are given."""
    from dfl_jax.cli.experiment.applicable import idle_flags
    from dfl_jax.cli.experiment.flags import GROUPS
    from dfl_jax.cli.experiment.method_flags import METHOD, settings_with_flags
    from dfl_jax.cli.experiment.plugins import method_named, settle_defaults

    method = method_named(FLAGS.algorithm)
    settle_defaults(FLAGS)
    settings = settings_with_flags(method)
    idle: Container[str] = () if full else idle_flags(FLAGS, method, settings)
    titles = [title for title in GROUPS if title != METHOD]
    for title in (*titles[:-1], METHOD, titles[-1]):
        names = GROUPS[title]
        shown = [name for name in names if name not in idle]
        if title != METHOD:
            yield title, (_line(FLAGS[name]) for name in shown)
        elif full:
            yield 'methods', (_line(FLAGS[name], _defaults(name)) for name in shown)
        else:
            yield (
                f'method {FLAGS.algorithm}',
                (_line(FLAGS[n], _default(settings[n].default), settings[n].help) for n in shown),
            )


def _print_group(title: str, lines: Iterable[str]) -> None:
    text = '\n'.join(lines)
    if text:
        print(f'\n{title}\n{text}')


def _line(flag: flags.Flag, default: str | None = None, meaning: str | None = None) -> str:
    """A flag with its type, what it means, and its default."""
    if default is None:
        default = _default(flag.default)
    kind = flag.flag_type()
    value = {'string': '=TEXT', 'string enum': '=NAME', 'int': '=N', 'float': '=X'}.get(
        kind, '=A,B'
    )
    name = f'  --[no]{flag.name}' if flag.boolean else f'  --{flag.name}{value}'
    words = ' '.join((meaning or flag.help or '').split())
    words = words if words.startswith('`') else words[:1].upper() + words[1:]
    text = f'{words.replace("`", "").rstrip(".")}{default}.'
    return f'{name}\n' + textwrap.fill(
        text, WIDTH, initial_indent=' ' * 6, subsequent_indent=' ' * 6, break_on_hyphens=False
    )


def _default(value: object) -> str:
    """' (default ...)', nothing where there is none."""
    if value is None or value is inspect.Parameter.empty or value == []:
        return ''
    return f' (default {_plain(value)})'


def _plain(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ','.join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _defaults(name: str) -> str:
    """The defaults of a flag by method: ' (default 0.1: dpsgd, dfedavg; 0.01: spark)'."""
    from dfl_jax.cli.experiment.method_flags import settings_with_flags
    from dfl_jax.cli.experiment.methods import METHODS

    methods: dict[str, list[str]] = {}
    for method, row in METHODS.items():
        if setting := settings_with_flags(row).get(name):
            none = setting.default in (None, inspect.Parameter.empty)
            methods.setdefault('none' if none else _plain(setting.default), []).append(method)
    parts = '; '.join(f'{value}: {", ".join(of)}' for value, of in methods.items())
    return f' (default {parts})'
