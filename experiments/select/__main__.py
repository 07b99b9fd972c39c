"""`python -m experiments.select`, the same as `dfl-jax select`."""

from dfl_jax.cli.__main__ import main

if __name__ == '__main__':
    main('select')
