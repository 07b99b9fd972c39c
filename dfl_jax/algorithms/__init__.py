"""One file per paper's method, and the table from names to factories."""

from collections.abc import Callable

from dfl_jax.algorithms.dec_fedavg import dec_fedavg, dec_fedprox
from dfl_jax.algorithms.dec_fml import dec_fml
from dfl_jax.algorithms.dec_partial import dec_fed_dropout, dec_fedrolex, dec_heterofl
from dfl_jax.algorithms.decavg import decavg
from dfl_jax.algorithms.def_kt import def_kt
from dfl_jax.algorithms.dfedavg import dfedavg, dfedavgm
from dfl_jax.algorithms.dfedsam import dfedsam
from dfl_jax.algorithms.dfml import dfml
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
    'dfml': dfml,
    'dec_fedavg': dec_fedavg,
    'dec_fedprox': dec_fedprox,
    'def_kt': def_kt,
    'dec_fed_dropout': dec_fed_dropout,
    'dec_heterofl': dec_heterofl,
    'dec_fedrolex': dec_fedrolex,
    'dec_fml': dec_fml,
}

__all__ = ['ALGORITHMS', 'gossip_sgd', *ALGORITHMS]
