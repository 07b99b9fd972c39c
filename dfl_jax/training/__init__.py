"""What a client does alone: minibatches, losses, and a round of local training.

Everything is written for one client and mapped over the network.
"""

from dfl_jax.training.batches import OVERFLOW, Batch, batch_at, epoch_orders, take
from dfl_jax.training.local import (
    Lasting,
    augmented,
    batch_loss,
    client_training,
    gradient_flops,
    learning_rate,
    local_training,
    optimiser_of,
    training_flops,
    weighted_mean,
)
from dfl_jax.training.local_settings import LocalTraining
from dfl_jax.training.losses import class_shares, label_losses
