"""One file per paper's method, and the table from names to factories."""

from collections.abc import Callable

from dfl_jax.algorithms.decavg import decavg
from dfl_jax.algorithms.dfedavg import dfedavg, dfedavgm
from dfl_jax.algorithms.dfedsam import dfedsam
from dfl_jax.algorithms.dispfl import dispfl
from dfl_jax.algorithms.dpsgd import dpsgd
from dfl_jax.algorithms.gossip_sgd import gossip_sgd
from dfl_jax.algorithms.ntk_dfl import ntk_dfl
from dfl_jax.algorithms.ntk_fl import ntk_fl
from dfl_jax.algorithms.spark import spark
from dfl_jax.base import Algorithm

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    'ntk_dfl': ntk_dfl,
    'dpsgd': dpsgd,
    'dfedavg': dfedavg,
    'dfedavgm': dfedavgm,
    'dfedsam': dfedsam,
    'dispfl': dispfl,
    'ntk_fl': ntk_fl,
    'decavg': decavg,
    'spark': spark,
}

__all__ = ['ALGORITHMS', 'gossip_sgd', *ALGORITHMS]
