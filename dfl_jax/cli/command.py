"""What the commands share: flags that are paths, errors of one line, folders that can be written.

Nothing heavy is imported here, so that a mistake is reported at once.
"""

import contextlib
import functools
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from absl import flags, logging

from dfl_jax.flagfiles import found_file
from dfl_jax.paper_folder import CHECKOUT
from dfl_jax.plain_text import in_a_line
from dfl_jax.setting_error import rendered

flags.disclaim_key_flags()  # a flag that is defined here is of the module that asks

Main = Callable[[list[str]], int]


class PathParser(flags.ArgumentParser):
    """A path, or what may be one, with its ~ replaced by a home folder.

    A file below experiments/ that is not here is one of the papers' (`found_file`).

    before: pattern of what stands before a path.
    """

    def __init__(self, before: str = '^'):
        self._start = re.compile(f'({before})(~[^/;]*)')
        self._shipped = re.compile(f'({before})({CHECKOUT.name}/[^;]+)')

    def parse(self, argument: str) -> str:
        argument = self._start.sub(lambda found: found[1] + _home(found[2]), argument)
        return self._shipped.sub(lambda found: found[1] + found_file(found[2]), argument)


class PathsParser(flags.ListParser):
    """Paths separated by commas, each as by `PathParser`."""

    def parse(self, argument: str | list[str]) -> list[str]:
        return [PathParser().parse(path) for path in super().parse(argument)]


def _home(start: str) -> str:
    """The home folder that ~ or ~USER stands for. Raises ValueError where there is none."""
    home = os.path.expanduser(start)
    if home.startswith('~'):
        raise ValueError(f'{start} is no home folder here; write the path out, or ./{start}')
    return home


def define_path(name: str, default: str | None, text: str, before: str = '^', **how: Any) -> None:
    """Defines a flag that is a path, or may be one; before: as `PathParser` takes it."""
    written: Any = flags.ArgumentSerializer()
    flags.DEFINE(PathParser(before), name, default, text, serializer=written, **how)


def define_paths(name: str, default: list[str] | None, text: str, **how: Any) -> None:
    """Defines a flag that is a list of paths."""
    flags.DEFINE(PathsParser(), name, default, text, serializer=flags.ListSerializer(','), **how)


def as_typed() -> str:
    """The command as it was typed."""
    if sys.argv[0].startswith('dfl-jax'):
        return sys.argv[0]
    spec = getattr(sys.modules['__main__'], '__spec__', None)
    return f'python -m {spec.name.removesuffix(".__main__")}' if spec else Path(sys.argv[0]).name


@contextlib.contextmanager
def to_a_reader() -> Iterator[None]:
    """Prints whole, or in silence only what a reader wants who leaves, as of `--help | head`."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:  # the flush at the end must not fail, too
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def fail(message: str, status: int = 1) -> int:
    """Prints the error in one line; returns the status."""
    print(f'error: {in_a_line(message)}', file=sys.stderr)
    return status


def warn(message: object) -> None:
    """Prints the warning in one line."""
    text = in_flags(message) if isinstance(message, Exception) else str(message)
    print(f'warning: {in_a_line(text)}', file=sys.stderr)


def in_flags(error: BaseException) -> str:
    """The text of an error, with the settings that it names as flags."""
    return rendered(error, spelled) or type(error).__name__


def spelled(name: str, value: str | None) -> str:
    """A setting as a flag, where it has one: --topology=ring, --lazy, --nolazy."""
    known = flags.FLAGS
    if name not in known:
        return name if value is None else f'{name}={value}'
    if value in ('True', 'False') and known[name].boolean:
        return f'--{"no" * (value == "False")}{name}'
    return f'--{name}' if value is None else f'--{name}={value}'


@contextlib.contextmanager
def one_line_warnings() -> Iterator[None]:
    """Prints every warning of `warnings.warn` in one line."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: warn(message)
        yield


MISUSE = (
    *(ValueError, OSError, ImportError, flags.Error),
    *(MemoryError, OverflowError),  # of absurd settings
)


def one_line_errors(interrupted: str, hint: str | None = 'settings are flags') -> Callable:
    """Decorates the `main` of a command: an error is one line and its status, a warning one line.

    interrupted: what Ctrl-C leaves behind. hint: what to give instead of an argument, None for a
    command that takes some.
    """

    def decorate(main: Main) -> Main:
        @functools.wraps(main)
        def guarded(argv: list[str]) -> int:
            logging.set_verbosity(logging.FATAL)  # what libraries log is an error's second line
            if hint is not None and len(argv) > 1:
                return fail(f'unexpected argument {argv[1]!r}; {hint}')
            try:
                with one_line_warnings():
                    return main(argv)
            except MISUSE as error:
                return fail(in_flags(error))
            except KeyboardInterrupt:
                return fail(interrupted, status=130)

        return guarded

    return decorate


def whole_numbers(text: str) -> range | None:
    """The numbers of FIRST..LAST, not written out; None for what is no such text."""
    ends = re.fullmatch(r'(-?\d{1,18})\.\.(-?\d{1,18})', text, re.ASCII)
    return range(int(ends[1]), int(ends[2]) + 1) if ends else None


def share(text: str, entries: Sequence[Any]) -> list[int]:
    """The places of the entries that shard `text`, 'i/n' with i from 0, works on.

    Raises ValueError for what is no shard.
    """
    numbers = re.fullmatch(r'(\d{1,18})/(\d{1,18})', text, re.ASCII)
    if not numbers or not int(numbers[1]) < int(numbers[2]):
        raise ValueError(f'--shard={text}: write i/n with i from 0 to n - 1, e.g. --shard=0/4')
    return list(range(int(numbers[1]), len(entries), int(numbers[2])))


def check_empty(out: str | None) -> None:
    """Raises ValueError where --out holds files already or cannot be written."""
    folder = Path(out or 'runs')
    check_writable(folder)
    if out and folder.exists() and any(folder.iterdir()):
        raise ValueError(f'--out={out} exists and is not an empty folder; choose another --out')


def check_writable(folder: Path, files: Iterable[str] = (), flag: str = 'out') -> None:
    """Raises ValueError where these files could not be written into the folder; leaves nothing.

    folder: need not exist yet. flag: that named it.
    """
    advice = f'choose another --{flag}'
    there = next(path for path in (folder, *folder.parents) if os.path.lexists(path))
    if not there.is_dir():
        raise ValueError(f'--{flag}={folder}: {there} is no folder; {advice}')
    try:
        # In a folder of its own: another process may be at work on the same --out.
        with tempfile.TemporaryDirectory(dir=there, prefix='.dfl_jax-') as scratch:
            new = Path(scratch, *folder.parts[len(there.parts) :])
            new.mkdir(parents=True, exist_ok=True)
            for name in files:
                (new / name).touch()
    except OSError as error:
        why = error.strerror
        raise ValueError(f'--{flag}={folder} cannot be written: {why}; {advice}') from error
    for name in files:
        if (folder / name).is_dir():
            raise ValueError(f'{folder / name} is a folder, where a file would go; {advice}')
