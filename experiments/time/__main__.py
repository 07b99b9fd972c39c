"""`python -m experiments.time`, the same as `dfl-jax time`."""

from dfl_jax.cli.__main__ import main

if __name__ == '__main__':
    main('time')
