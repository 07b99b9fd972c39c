"""The host: its free memory, the files that a user names, and JSON."""

import json
import math
import os
import stat
from pathlib import Path
from typing import Any

import psutil

OWN_GROUPS, ALL_GROUPS = Path('/proc/self/cgroup'), Path('/sys/fs/cgroup')  # of Linux
LARGEST_TEXT = 2**30  # bytes; a partition of a million samples has 7 MB

_KINDS = {
    stat.S_IFIFO: 'a named pipe',
    stat.S_IFDIR: 'a folder',
    stat.S_IFCHR: 'a device',
    stat.S_IFBLK: 'a device',
    stat.S_IFSOCK: 'a socket',
}


def free_bytes(own: Path = OWN_GROUPS, root: Path = ALL_GROUPS) -> int:
    """Free bytes of the machine's memory, its file cache included, or what the limit of a Slurm job
    or of a container leaves of them.

    own: lists the control groups of the process; root: where all groups lie.
    """
    return min([psutil.virtual_memory().available, *_left_by_groups(own, root)])


def _left_by_groups(own: Path, root: Path) -> list[int]:
    """The bytes that each control group with a limit leaves."""
    left = []
    lines = _system_text(own).splitlines() if own.exists() else []
    for _, controllers, path in (line.split(':', 2) for line in lines):
        if not controllers:  # version 2
            top, limit, used, cache = root, 'memory.max', 'memory.current', 'inactive_file'
        elif 'memory' in controllers.split(','):
            top, limit, used = root / 'memory', 'memory.limit_in_bytes', 'memory.usage_in_bytes'
            cache = 'total_inactive_file'
        else:
            continue
        group = top / path.lstrip('/')
        # A job is inside of the group that has its limit. In a container its own group is the top.
        for folder in [group, *group.parents][: len(group.relative_to(top).parts) + 1]:
            try:
                most, taken = (int(_system_text(folder / name)) for name in (limit, used))
                details = _system_text(folder / 'memory.stat').splitlines()
                cached = int(dict(line.split() for line in details)[cache])
                left.append(max(0, most - taken + cached))
            except (OSError, ValueError, KeyError):  # no limit
                continue
    return left


def _system_text(file: Path) -> str:
    return file.read_text(encoding='utf-8', errors='replace')


def in_bytes(size: float) -> str:
    """A number of bytes in MiB or GiB."""
    return f'{size / 2**30:.1f} GiB' if size >= 2**30 else f'{size / 2**20:.1f} MiB'


def lack_of_memory(size: float) -> str:
    """A message about `size` bytes that the host lacks; '' where they are free."""
    free = free_bytes()
    return '' if size <= free else f'about {in_bytes(size)}, and {in_bytes(free)} are free'


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
        raise OSError(f'it is no text in UTF-8, from byte {error.start} on') from None
    if '\0' in text:
        raise OSError(f'it is no text: character {text.index(chr(0))} is a zero byte')
    return text


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
