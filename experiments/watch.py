"""`python -m experiments.watch`, the same as `dfl-jax watch`."""

from dfl_jax.cli.__main__ import main

if __name__ == '__main__':
    main('watch')
