"""The command line: one run, the papers' tables, and the plots."""

import sys


def _say_it_in_one_line(kind, error, trace) -> None:
    """Ctrl-C at a moment that no command looks out for, such as while it imports: no traceback."""
    if issubclass(kind, KeyboardInterrupt):
        print('error: interrupted; start again', file=sys.stderr)
        sys.exit(130)  # 128 + SIGINT, as shells report it
    sys.__excepthook__(kind, error, trace)


if sys.argv[:1] == ['-m']:  # until `python -m experiments.NAME` has found its module
    sys.excepthook = _say_it_in_one_line
