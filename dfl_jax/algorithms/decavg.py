"""DecAvg: the decentralized average of the initialisation and topology paper, Algorithm 1, Table 1.

Eight minibatches of 16 a round by SGD with momentum 0.5, or by AdamW (`optimizer='adamw',
momentum=0.0, weight_decay=0.01`), then the average weighted by sample counts (Eq. 2). The state of
the optimiser starts afresh after every aggregation. Clients draw their first weights alone.
"""

from functools import partial

from dfl_jax.algorithms.gossip_sgd import gossip_sgd
from dfl_jax.training import LocalTraining

decavg = partial(
    gossip_sgd,
    training=LocalTraining(lr=1e-3, batch_size=16, local_epochs=None, local_steps=8, momentum=0.5),
    mixing='size',
    init='independent',
)
