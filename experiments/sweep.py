"""`python -m experiments.sweep`, the same as `dfl-jax sweep`."""

from dfl_jax.cli.__main__ import main

if __name__ == '__main__':
    main('sweep')
