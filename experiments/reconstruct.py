"""`python -m experiments.reconstruct`, the same as `dfl-jax reconstruct`."""

from dfl_jax.cli.__main__ import main

if __name__ == '__main__':
    main('reconstruct')
