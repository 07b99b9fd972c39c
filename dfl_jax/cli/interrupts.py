"""Ctrl-C while a command starts: one line and no traceback."""

import os
import signal
import sys
import threading

STATUS = 130  # 128 + SIGINT, as shells report it
SOON = 0.05  # seconds
START_AGAIN = 'start again'
advice = START_AGAIN  # what Ctrl-C leaves to do; a run that has a directory is resumed


def _end_or_raise(_, frame) -> None:
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


def _say_it_in_one_line(kind, error, trace) -> None:
    """Ctrl-C at a moment that no command looks out for: no traceback."""
    if issubclass(kind, KeyboardInterrupt):
        print(f'error: interrupted; {advice}', file=sys.stderr)
        sys.exit(STATUS)
    sys.__excepthook__(kind, error, trace)


def watch() -> None:
    """Takes over what Ctrl-C does, until the command itself does."""
    sys.excepthook = _say_it_in_one_line
    sys.unraisablehook = _come_again
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a background job ignores it
        signal.signal(signal.SIGINT, _end_or_raise)
