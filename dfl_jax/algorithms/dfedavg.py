"""DFedAvg, DFedAvgM and DFedProx: Sun, Li & Wang, "Decentralized Federated Averaging", 2021.

Many local epochs a round, without and with heavy-ball momentum, then averaging. Hyperparameters of
NTK-DFL (ICML 2025), appendix C.2. The momentum starts at zero every round (Algorithm 1).

DFedProx is DFedAvg with the pull of FedProx (Li et al., MLSys 2020) towards where the round began,
mu/2 ||w - w_i||^2; mu = 0.01 is one of the values tried there.
"""

from functools import partial

from dfl_jax.algorithms.gossip_sgd import gossip_sgd
from dfl_jax.training import LocalTraining

dfedavg = partial(gossip_sgd, training=LocalTraining(lr=0.1, batch_size=25, local_epochs=20))
dfedavgm = partial(
    gossip_sgd, training=LocalTraining(lr=0.01, batch_size=50, local_epochs=20, momentum=0.9)
)
dfedprox = partial(
    gossip_sgd, training=LocalTraining(lr=0.1, batch_size=25, local_epochs=20, proximal=0.01)
)
