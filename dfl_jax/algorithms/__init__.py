"""The methods that advance in rounds, a file each that reads like its paper.

A factory takes a network and settings by name: `model`, bound to its input shape, or `population`,
the clients and their networks, one for each architecture.

What they share is in `gossip_method`, what their theory asks of a network in `graph_requirements`;
the table of all methods is `dfl_jax.methods`.
"""

from dfl_jax.algorithms.beer import beer
from dfl_jax.algorithms.choco_sgd import choco_sgd
from dfl_jax.algorithms.d2 import d2
from dfl_jax.algorithms.dec_fedavg import dec_fedavg, dec_fedprox
from dfl_jax.algorithms.dec_fml import dec_fml
from dfl_jax.algorithms.dec_partial import dec_fed_dropout, dec_fedrolex, dec_heterofl
from dfl_jax.algorithms.decavg import decavg
from dfl_jax.algorithms.def_kt import def_kt
from dfl_jax.algorithms.dfed_admm import dfed_admm
from dfl_jax.algorithms.dfed_alt import dfed_alt
from dfl_jax.algorithms.dfedavg import dfedavg, dfedavgm, dfedprox
from dfl_jax.algorithms.dfedsam import dfedsam
from dfl_jax.algorithms.dfml import dfml
from dfl_jax.algorithms.dispfl import dispfl
from dfl_jax.algorithms.dpsgd import dpsgd
from dfl_jax.algorithms.dsgt import dsgt
from dfl_jax.algorithms.epidemic import epidemic
from dfl_jax.algorithms.ntk_dfl import ntk_dfl
from dfl_jax.algorithms.ntk_fl import ntk_fl
from dfl_jax.algorithms.qg_dsgdm import qg_dsgdm
from dfl_jax.algorithms.relay_sgd import relay_sgd
from dfl_jax.algorithms.sgp import sgp
from dfl_jax.algorithms.spark import spark
