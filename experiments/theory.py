"""`python -m experiments.theory`, the same as `dfl-jax theory`."""

from dfl_jax.cli.__main__ import main

if __name__ == '__main__':
    main('theory')
