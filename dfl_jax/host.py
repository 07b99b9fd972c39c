"""The host: its free memory, and the files that a user names."""

import os
import stat
from pathlib import Path

LARGEST_TEXT = 2**30  # bytes; a partition of a million samples has 7 MB

_KINDS = {
    stat.S_IFIFO: 'a named pipe',
    stat.S_IFDIR: 'a folder',
    stat.S_IFCHR: 'a device',
    stat.S_IFBLK: 'a device',
    stat.S_IFSOCK: 'a socket',
}


def free_bytes() -> int:
    """Free bytes of the machine's memory, its file cache included."""
    meminfo = Path('/proc/meminfo')
    if meminfo.exists():
        fields = dict(line.split(':', 1) for line in meminfo.read_text().splitlines())
        return 1024 * int(fields['MemAvailable'].split()[0])
    return os.sysconf('SC_AVPHYS_PAGES') * os.sysconf('SC_PAGE_SIZE')


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
