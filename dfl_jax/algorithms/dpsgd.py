"""D-PSGD: Lian, Zhang, Zhang, Hsieh, Zhang & Liu, NeurIPS 2017.

The default is the form that NTK-DFL compares with (ICML 2025, appendix C.2): one epoch of SGD with
batches of 10 a round, then averaging. Algorithm 1 as first published takes one minibatch a round,
and averages the models of before it: `local_epochs=None, local_steps=1, round_order='parallel'`.
"""

from functools import partial

from dfl_jax.algorithms.gossip_sgd import gossip_sgd
from dfl_jax.training import LocalTraining

dpsgd = partial(gossip_sgd, training=LocalTraining(lr=0.1, batch_size=10))
