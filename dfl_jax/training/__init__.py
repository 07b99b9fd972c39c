"""What a client does alone: minibatches, losses, and a round of local training."""

from dfl_jax.training.batches import Batch, epoch_orders, take
from dfl_jax.training.local import (
    LocalTraining,
    batch_loss,
    client_training,
    local_training,
    losses_of_all_data,
)
from dfl_jax.training.losses import SUPERVISIONS, class_shares, supervised_losses

__all__ = [
    'SUPERVISIONS',
    'Batch',
    'LocalTraining',
    'batch_loss',
    'class_shares',
    'client_training',
    'epoch_orders',
    'local_training',
    'losses_of_all_data',
    'supervised_losses',
    'take',
]
