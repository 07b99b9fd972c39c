"""`python -m experiments.run`, the same as `dfl-jax run`."""

from dfl_jax.cli.__main__ import main

if __name__ == '__main__':
    main('run')
