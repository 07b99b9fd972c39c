"""The memory of the host: what is free of it, and sizes in words."""

from pathlib import Path

import psutil

OWN_GROUPS, ALL_GROUPS = Path('/proc/self/cgroup'), Path('/sys/fs/cgroup')  # of Linux


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
