"""`python -m experiments.attack`, the same as `dfl-jax attack`."""

from dfl_jax.cli.__main__ import main

if __name__ == '__main__':
    main('attack')
