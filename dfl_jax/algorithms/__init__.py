"""One file per paper's method, and the table from names to factories."""

from dfl_jax.algorithms.ntk_dfl import ntk_dfl

ALGORITHMS = {
    'ntk_dfl': ntk_dfl,
}

__all__ = ['ALGORITHMS', 'ntk_dfl']
