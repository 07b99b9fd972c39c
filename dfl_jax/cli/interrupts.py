"""Ctrl-C while a command starts: one line and no traceback."""

import functools
import os
import signal
import sys
import threading

STATUS = 130  # 128 + SIGINT, as shells report it
SOON = 0.05  # seconds


def _end_or_raise(advice: str, _, frame) -> None:
    """Ctrl-C, which ends the process at once while it imports.

    An exception would pass through extensions that are half imported, where it crashes jaxlib or is
    swallowed (of three interrupted starts of `theory`, one in a segmentation fault).
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith('<frozen importlib'):
            os.write(2, f'error: interrupted; {advice}\n'.encode())
            os._exit(STATUS)
        frame = frame.f_back
    raise KeyboardInterrupt


def _come_again(dropped) -> None:
    """Ctrl-C in what the garbage collector calls, whose exceptions Python drops."""
    if issubclass(dropped.exc_type, KeyboardInterrupt):
        threading.Timer(SOON, os.kill, (os.getpid(), signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(dropped)


def _say_it_in_one_line(advice: str, kind, error, trace) -> None:
    """Ctrl-C at a moment that no command looks out for: no traceback."""
    if issubclass(kind, KeyboardInterrupt):
        print(f'error: interrupted; {advice}', file=sys.stderr)
        sys.exit(STATUS)
    sys.__excepthook__(kind, error, trace)


def watch(advice: str = 'start again') -> None:
    """Takes over what Ctrl-C does, until the command itself does."""
    sys.excepthook = functools.partial(_say_it_in_one_line, advice)
    sys.unraisablehook = _come_again
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a background job ignores it
        signal.signal(signal.SIGINT, functools.partial(_end_or_raise, advice))


def advise(advice: str) -> None:
    """Has Ctrl-C say so from now on, in a process that `watch` has taken over."""
    if sys.unraisablehook is _come_again:
        watch(advice)
