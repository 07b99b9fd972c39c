"""Standard streams that are closed: `dfl-jax run >&-`."""

import os
import sys

NAMES = ('stdin', 'stdout', 'stderr')  # by their descriptors


def open_closed() -> None:
    """Opens the standard streams that are closed, to nowhere.

    Else the next file that the process opens would take the place of the stream.
    """
    for descriptor, name in enumerate(NAMES):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest that is free, which is this one
        if getattr(sys, name) is None:
            mode = 'w' if descriptor else 'r'
            stream = open(descriptor, mode, encoding='utf-8', closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f'__{name}__', stream)
