"""`python -m experiments.tables`, the same as `dfl-jax tables`."""

from dfl_jax.cli.__main__ import main

if __name__ == '__main__':
    main('tables')
