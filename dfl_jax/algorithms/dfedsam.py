"""DFedSAM: Shi, Shen, Wei, Sun, Yuan, Wang & Tao, ICML 2023.

Local sharpness-aware minimisation, then averaging; `gossip_steps` > 1 is DFedSAM-MGS.
Hyperparameters of NTK-DFL (ICML 2025), appendix C.2, which uses a single gossip step.
"""

from functools import partial

from dfl_jax.algorithms.gossip_sgd import gossip_sgd
from dfl_jax.training import LocalTraining

dfedsam = partial(
    gossip_sgd,
    training=LocalTraining(
        lr=0.01,
        lr_decay=0.95,
        batch_size=32,
        local_epochs=5,
        momentum=0.99,
        weight_decay=5e-4,
        sam_radius=0.01,
    ),
)
