"""Epidemic learning: de Vos, Farhadkhani, Guerraoui, Kermarrec, Pires & Sharma, NeurIPS 2023.

D-PSGD whose graph is drawn anew in every round. EL-Local is `--topology=epidemic`, the default:
every client sends to some others that it draws by itself. EL-Oracle, whose draws leave all
with as many links, is `--topology=regular`.
"""

from functools import partial

from dfl_jax.algorithms.gossip_method import ONE_MINIBATCH
from dfl_jax.algorithms.gossip_sgd import gossip_sgd

epidemic = partial(gossip_sgd, training=ONE_MINIBATCH)
