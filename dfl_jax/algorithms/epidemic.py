"""Epidemic learning: de Vos, Farhadkhani, Guerraoui, Kermarrec, Pires & Sharma, NeurIPS 2023.

D-PSGD whose graph is drawn anew in every round: each client hears others at random. EL-Local is
`--topology=k_random`, where a client draws without regard to the others, the default here;
EL-Oracle, whose draws leave everybody with as many links, is `--topology=regular`.
"""

from functools import partial

from dfl_jax.algorithms.common import ONE_MINIBATCH
from dfl_jax.algorithms.gossip_sgd import gossip_sgd

epidemic = partial(gossip_sgd, training=ONE_MINIBATCH)
