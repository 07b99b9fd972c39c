"""Files that are read and checked, or written whole; and JSON with numbers that are not finite."""

import csv
import io
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from dfl_jax.host_memory import in_bytes

LARGEST_TEXT = 2**30  # bytes; a partition of a million samples has 7 MB

_KINDS = {
    stat.S_IFIFO: 'a named pipe',
    stat.S_IFDIR: 'a folder',
    stat.S_IFCHR: 'a device',
    stat.S_IFBLK: 'a device',
    stat.S_IFSOCK: 'a socket',
}


def expand(path: str | os.PathLike) -> Path:
    """The path with its ~ replaced by a home folder, where there is one."""
    return Path(os.path.expanduser(path))


def check_file(path: str | os.PathLike) -> None:
    """Raises OSError unless it is a plain file: a pipe would block, and a device never ends."""
    kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind != stat.S_IFREG:
        raise OSError(f'it is {_KINDS.get(kind, "something else")}, not a file')


def read_text(path: str | os.PathLike) -> str:
    """The text of a file, in UTF-8 with or without a byte order mark; a ~ is a home folder.

    Raises OSError with a message of one line for anything but a readable text file.
    """
    path = expand(path)
    check_file(path)
    size = os.stat(path).st_size
    if size > LARGEST_TEXT:
        raise OSError(f'it has {in_bytes(size)}, more than the {in_bytes(LARGEST_TEXT)} of a text')
    try:
        text = path.read_text(encoding='utf-8-sig')
    except UnicodeDecodeError as error:
        raise OSError(
            f'it is no text in UTF-8, from byte {error.start} on; save it in UTF-8'
        ) from None
    if '\0' in text:
        raise OSError(f'it is no text: character {text.index(chr(0))} is a zero byte')
    return text


class TableText(NamedTuple):
    """The text of a CSV file whose lines all have as many fields as the first, which names them."""

    text: str
    delimiter: str
    names: list[str]
    begin: int  # lines of the text that are taken by the names

    def body(self) -> io.StringIO:
        """The text below the names."""
        lines = io.StringIO(self.text)
        for _ in range(self.begin):
            lines.readline()
        return lines

    def rows(self) -> Iterator[list[str]]:
        """The fields of every line below the names that is not empty, as texts."""
        return _rows(csv.reader(self.body(), **_form(self.delimiter)))


def read_table(path: str | os.PathLike, comments: bool = False) -> TableText:
    """The text of a CSV file, checked.

    Fields are apart by commas, or by semicolons or tabs where the first line has no comma; they may
    be in double quotes. Empty lines count for nothing. A column without a name is called as pandas
    calls it, `Unnamed: 0`.

    comments: leave out lines that begin with #.

    Raises OSError as `read_text`, and ValueError, one line, for two columns of one name, or a line
    that has not as many fields as the first.
    """
    text = read_text(path)
    if comments:
        lines = text.splitlines(keepends=True)
        # Empty ones keep the numbers of the others
        text = ''.join('\n' if line.startswith('#') else line for line in lines)
    first = next((line for line in io.StringIO(text) if line.strip()), '')
    delimiter = next((each for each in ',;\t' if each in first), ',')
    reader = csv.reader(io.StringIO(text), **_form(delimiter))
    rows = _rows(reader)
    try:
        head = next(rows, [])
        begin = reader.line_num
        for row in rows:
            if len(row) != len(head):
                raise ValueError(
                    f'line {reader.line_num} has {len(row)} fields, and the first line names '
                    f'{len(head)}: give every line as many fields as there are names'
                )
    except csv.Error as error:
        raise ValueError(f'line {reader.line_num} is no line of a CSV file: {error}') from None
    names = [name.strip() or f'Unnamed: {place}' for place, name in enumerate(head)]
    for name, count in Counter(names).items():
        if count > 1:
            raise ValueError(f'it has several columns {name}: give each a name of its own')
    return TableText(text, delimiter, names, begin)


def _rows(reader: Iterable[list[str]]) -> Iterator[list[str]]:
    """Those that are not empty."""
    return (row for row in reader if row and row != [''])


def _form(delimiter: str) -> dict[str, Any]:
    """What csv.reader is told of a file."""
    return {'delimiter': delimiter, 'skipinitialspace': True, 'strict': True}


NOT_FINITE = 'not_finite'  # of an object: {name: which}, of the numbers that are null in it
_WORDS = ('inf', '-inf', 'nan')


def to_json(content: Any, **options: Any) -> str:
    """The content as JSON, which has no word for numbers that are not finite.

    Such a number is null, and the object that has it says which it was: {"loss": null,
    "not_finite": {"loss": "inf"}}; that of place 3 in a list `losses` is called "losses/3".

    options: those of `json.dumps`.
    """
    return json.dumps(_finite(content), allow_nan=False, **options)


def from_json(text: str | bytes) -> Any:
    """What `to_json` wrote, or `json.dumps`. Raises ValueError for what is no JSON."""
    return json.loads(text, object_hook=_restored)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        lost: dict[str, str] = {}
        found = {name: _cleared(value, str(name), lost) for name, value in content.items()}
        return found | {NOT_FINITE: lost} if lost else found
    return [*map(_finite, content)] if isinstance(content, list | tuple) else content


def _cleared(value: Any, place: str, lost: dict[str, str]) -> Any:
    """The value of an object at this place of it; what is not finite goes into `lost`."""
    if isinstance(value, float) and not math.isfinite(value):
        lost[place] = str(float(value))
        return None
    if isinstance(value, list | tuple):
        return [_cleared(each, f'{place}/{n}', lost) for n, each in enumerate(value)]
    return _finite(value)


def _restored(content: dict[str, Any]) -> dict[str, Any]:
    lost = content.get(NOT_FINITE)
    if not isinstance(lost, dict):
        return content
    content = {name: value for name, value in content.items() if name != NOT_FINITE}
    for place, word in lost.items():
        name, *within = (place,) if place in content else place.split('/')
        try:
            holder, key = content, name
            for number in within:
                holder, key = holder[key], int(number)
            if holder[key] is not None or word not in _WORDS:
                raise ValueError(word)
            holder[key] = float(word)
        except (LookupError, TypeError, ValueError):
            raise ValueError(f'{NOT_FINITE} names {place!r}, which is none') from None
    return content


def read_json(path: Path) -> Any:
    """What a JSON file holds. Raises ValueError, one line, whatever is wrong with it."""
    try:
        check_file(path)
        return from_json(path.read_text(encoding='utf-8'))
    except OSError as error:
        raise ValueError(f'{path} cannot be read ({error.strerror or error})') from None
    except (ValueError, RecursionError) as error:
        fault = 'nested too deeply' if isinstance(error, RecursionError) else 'no JSON'
        raise ValueError(f'{path} is damaged: {fault}') from None


def write_atomically(path: Path, content: str | bytes) -> None:
    """Writes all of the file or leaves it as it was."""
    temporary = path.with_name(f'{path.name}.{os.getpid()}.tmp')
    data = content.encode() if isinstance(content, str) else content
    try:
        with open(temporary, 'wb') as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
