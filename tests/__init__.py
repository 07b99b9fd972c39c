"""The tests. A package, so that `python -m tests.torture` is this one and not another's `tests`."""
