"""DecAvg: the decentralized average of the initialisation and topology paper, Algorithm 1, Table 1.

The average weighted by sample counts (Eq. 2), then eight minibatches of 16 by SGD with momentum 0.5
or by AdamW (`optimizer='adamw', momentum=0.0, weight_decay=0.01`), whose state starts afresh every
round. Clients draw their first weights alone. Algorithm 1 trains before it averages; the authors'
program averages first and caps the loss of a minibatch at 10, without which gain-corrected networks
do not learn on sparse graphs (docs/results_init_topology.md).
"""

from functools import partial

from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_sgd import gossip_sgd
from dfl_jax.training import LocalTraining

decavg = partial(
    gossip_sgd,
    training=LocalTraining(
        lr=1e-3, batch_size=16, local_epochs=None, local_steps=8, momentum=0.5, loss_cap=10.0
    ),
    round_order='average_first',
    gossip=Gossip(mixing='size', init='independent'),
)
