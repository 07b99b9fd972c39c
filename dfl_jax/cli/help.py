"""`--help` of a command: its flags in groups, each with its default.

`--help --algorithm=NAME` shows what has an effect with that method, `--helpfull` everything.
"""

import inspect
import textwrap
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from absl import flags

if TYPE_CHECKING:
    from dfl_jax.method_settings import Setting
    from dfl_jax.methods import Method

FLAGS = flags.FLAGS
WIDTH = 100
REPEATED = '.; repeat this option to specify a list of values'  # absl's words
SET_BY_RUN = 'set by the run'  # in place of a default


def show(command: ModuleType, called: str, argv: Sequence[str], full: bool) -> None:
    """Prints the help of a command.

    Args:
      command: its module, with MEANINGS, what flags of a run mean here if they mean something else,
        EXAMPLES where it takes all flags of a run, and REFUSED, those that it does not take.
      called: the command as it was typed.
      argv: the arguments beside --help, for what applies.
      full: show every flag of every method.
    """
    print(inspect.cleandoc(command.__doc__ or '').split('\n\n')[0])
    own = FLAGS.get_key_flags_for_module(command.__name__)
    examples = getattr(command, 'EXAMPLES', ())
    meanings = getattr(command, 'MEANINGS', {})
    if not examples:
        _print_group('flags', (_line(flag, meanings.get(flag.name)) for flag in own))
        return
    FLAGS(list(argv), known_only=True)
    from dfl_jax.cli.flags.run_flags import of_a_run

    of_runs = {flag.name for flag in of_a_run()}
    _print_group('this command', (_line(flag) for flag in own if flag.name not in of_runs))
    _print_groups_of_a_run(full, meanings, getattr(command, 'REFUSED', ()))
    _print_group('examples', (f'  {called} {example}' for example in examples))
    if not full:
        print(
            f'\n{called} --help --algorithm=NAME shows the flags of that method, --helpfull those '
            'of all.'
        )


def _print_groups_of_a_run(
    full: bool, meanings: Mapping[str, str], refused: Container[str]
) -> None:
    """The flags of a run but those `refused`, in groups, under the flags that are given."""
    from dfl_jax.cli.flags.run_flags import GROUPS, METHOD, given_settings
    from dfl_jax.experiment.applicable import unused_settings
    from dfl_jax.experiment.description import default_settings
    from dfl_jax.experiment.method import flat_settings
    from dfl_jax.experiment.table_rows import method_named

    method = method_named(FLAGS.algorithm)
    values = default_settings() | dict(method.defaults) | given_settings()
    settings = flat_settings(method)
    unused: Container[str] = () if full else unused_settings(values.get, method)
    titles = [title for title in GROUPS if title != METHOD]
    for title in (*titles[:-1], METHOD, titles[-1]):
        shown = [name for name in GROUPS[title] if name not in unused and name not in refused]
        if title != METHOD:
            defaults = {name: method.defaults.get(name, FLAGS[name].default) for name in shown}
            texts = {n: meanings.get(n) or _meaning(FLAGS[n].help, defaults[n]) for n in shown}
        elif full:
            title, texts = 'methods', dict(_of_methods(shown))
        else:
            title = f'method {FLAGS.algorithm}'
            chosen = {name: settings[name] for name in shown if _is_choice(method, settings[name])}
            texts = {n: _meaning(s.help, _default_of(method, s)) for n, s in chosen.items()}
        _print_group(title, (_line(FLAGS[name], text) for name, text in texts.items()))


def _print_group(title: str, lines: Iterable[str]) -> None:
    text = '\n'.join(lines)
    if text:
        print(f'\n{title}\n{text}')


def _line(flag: flags.Flag, text: str | None = None) -> str:
    """A flag with its type, what it means, and its default.

    text: the last two, where they are not those of the flag.
    """
    text = text or _meaning(flag.help, flag.default)
    kind = flag.flag_type()
    value = {
        'string': '=TEXT',
        'multi string': '=TEXT',
        'string enum': '=NAME',
        'int': '=N',
        'float': '=X',
    }.get(kind, '=A,B')
    name = f'  --[no]{flag.name}' if flag.boolean else f'  --{flag.name}{value}'
    indent = ' ' * 6
    return f'{name}\n' + textwrap.fill(
        f'{text}.', WIDTH, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def _sentence(words: str) -> str:
    """In one line, with a capital unless it begins with a value, and without its full stop.

    A docstring's 'None for ...' is what leaving the flag out does.
    """
    words = ' '.join(words.split()).removesuffix(REPEATED).replace('None for', 'by default')
    words = words if words.startswith('`') else words[:1].upper() + words[1:]
    words = words.replace('`', '')
    return words if words.endswith('...') else words.removesuffix('.')


def _meaning(words: str | None, default: object) -> str:
    """What a flag means, and its default, where there is one."""
    return _sentence(words or '') + ('' if _is_none(default) else f' (default {_plain(default)})')


def _is_none(value: object) -> bool:
    return value is inspect.Parameter.empty or value in (None, '', [])


def _plain(value: object) -> str:
    if _is_none(value):
        return 'none'
    if isinstance(value, (list, tuple)):
        return ','.join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_choice(method: 'Method', setting: 'Setting') -> bool:
    """Whether there is something to choose: not where a run alone can know the value."""
    return setting.name not in method.from_run or setting.default is not inspect.Parameter.empty


def _default_of(method: 'Method', setting: 'Setting') -> object:
    """What a setting is where its flag is left out."""
    return SET_BY_RUN if setting.name in method.from_run else setting.default


def _of_methods(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """What each flag means and its defaults, by method: 'Eta, ... (default 0.01: ntk_dfl, spark).
    Learning rate ... (default 0.1: dpsgd, dfedavg; 0.01: dfedavgm)'."""
    from dfl_jax.experiment.method import flat_settings
    from dfl_jax.methods import METHODS

    settings = {name: (row, flat_settings(row)) for name, row in METHODS.items()}
    for name in names:
        meanings: dict[str, dict[str, list[str]]] = {}
        for method, (row, known) in settings.items():
            if name in known and _is_choice(row, known[name]):
                by = meanings.setdefault(_sentence(known[name].help), {})
                by.setdefault(_plain(_default_of(row, known[name])), []).append(method)
        if meanings:
            parts = []
            for meaning, by in meanings.items():
                defaults = '; '.join(f'{value}: {", ".join(of)}' for value, of in by.items())
                parts.append(f'{meaning} (default {defaults})')
            yield name, '. '.join(parts)
