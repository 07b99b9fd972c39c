"""What clients learn: the loss of a sample, what is reported beside it, and the targets."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


class Task(NamedTuple):
    """A task; one's own is another of these.

    With outputs [B, ...] of a model and targets y [B, ...]:

        REGRESSION = Task(
            name='regression',
            losses=lambda outputs, y: jnp.mean((outputs - y) ** 2, axis=1),
            metric='rmse',
            scores=lambda outputs, y: jnp.mean((outputs - y) ** 2, axis=1),
            reported=np.sqrt,
            lower_is_better=True,
        )
    """

    name: str
    losses: Callable[[Array, Array], Array]  # (outputs, y) -> loss of each sample, [B]
    metric: str  # what evaluations report beside the loss: consensus_METRIC, client_METRIC_mean
    scores: Callable[[Array, Array], Array]  # (outputs, y) -> of each sample, [B]
    # Of mean scores, NumPy: what they become in the report
    reported: Callable[[np.ndarray], np.ndarray] = lambda mean: mean
    lower_is_better: bool = False
    whole_targets: bool = False  # targets are whole numbers from 0 to C - 1, and not any numbers
    target_axes: tuple[int, ...] = (0, 1)  # how many axes the target of a sample may have
    sequences: bool = False  # outputs are [B, L, C], not [B, C]
    flow: tuple[str, ...] = ()  # the losses under which NTK methods evolve such outputs

    def summed(self, outputs: Array, y: Array, mask: Array) -> tuple[Array, Array]:
        """Scores and losses of one model, summed over the samples that count; scalars.

        outputs [B, ...], y [B, ...], mask [B].
        """
        scores, losses = self.scores(outputs, y), self.losses(outputs, y)
        return jnp.sum(jnp.where(mask, scores, 0)), jnp.sum(jnp.where(mask, losses, 0))


def cross_entropies(logits: Array, y: Array) -> Array:
    """-log softmax(z)_y of every prediction: logits [..., C], y [...] -> [...]."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], axis=-1)[..., 0]


def correct(logits: Array, y: Array) -> Array:
    """Whether the largest logit is the label's: logits [..., C], y [...] -> bool [...]."""
    return jnp.argmax(logits, axis=-1) == y


def squared_errors(outputs: Array, y: Array) -> Array:
    """Mean squared error over the outputs of every sample: [B, C] and [B, C], or [B], -> [B]."""
    return jnp.mean((outputs - y.reshape(outputs.shape)) ** 2, axis=1)


CLASSIFICATION = Task(
    'classification',
    cross_entropies,
    'accuracy',
    correct,
    whole_targets=True,
    target_axes=(0,),
    flow=('cross_entropy', 'mse'),
)
REGRESSION = Task(
    'regression',
    squared_errors,
    'rmse',
    squared_errors,
    reported=np.sqrt,
    lower_is_better=True,
    flow=('mse',),
)
MULTI_LABEL = Task(  # y [B, C], 0 or 1
    'multi_label',
    lambda logits, y: jnp.mean(jax.nn.softplus(logits) - y * logits, axis=1),
    'accuracy',  # the share of labels that are right
    lambda logits, y: jnp.mean((logits > 0) == (y > 0), axis=1),
    target_axes=(1,),
)
NEXT_TOKEN = Task(  # outputs [B, L, C], y [B, L]
    'next_token',
    lambda logits, y: jnp.mean(cross_entropies(logits, y), axis=1),
    'accuracy',  # the share of tokens that are right
    lambda logits, y: jnp.mean(correct(logits, y), axis=1),
    whole_targets=True,
    target_axes=(1,),
    sequences=True,
)
TASKS = {task.name: task for task in (CLASSIFICATION, REGRESSION, MULTI_LABEL, NEXT_TOKEN)}
