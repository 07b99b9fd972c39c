"""`python -m experiments.report`, the same as `dfl-jax report`."""

from dfl_jax.cli.__main__ import main

if __name__ == '__main__':
    main('report')
