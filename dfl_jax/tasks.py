"""What clients learn: the loss of a sample, what is reported beside it, and the targets."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

Array = jax.Array


@dataclass(frozen=True)
class Loss:
    """The loss of a sample, and what is known of it; `Task.losses` is one, or any function.

    What is known belongs to the loss: a task whose losses are replaced does not inherit it.
    """

    of: Callable[[Array, Array], Array]  # (outputs, y) -> loss of each sample, [B]
    # The losses in whose closed forms NTK methods evolve its outputs; any other loss evolves by its
    # gradient. The first is this loss: `cross_entropy` exactly, `mse` up to a factor
    flow: tuple[str, ...] = ()
    one_output_each: bool = True  # it takes an output for each class, or for each target number

    def __call__(self, outputs: Array, y: Array) -> Array:
        return self.of(outputs, y)


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

    Nothing asks which task it is: what data and methods may do with it follows from its fields.
    Losses that are a plain function are used as they are, by every method; `Loss` says more.
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
    binary_targets: bool = False  # targets that are not whole are 0 or 1
    # Numbers of a table are shifted and scaled to mean 0 and standard deviation 1; None: they are,
    # but where all of them are 0 or 1, which may be labels, the task has to say so
    scaled_targets: bool | None = None

    @property
    def flow(self) -> tuple[str, ...]:
        """The losses in whose closed forms NTK methods evolve such outputs."""
        return getattr(self.losses, 'flow', ())

    @property
    def cross_entropy(self) -> bool:
        """Whether the loss is the cross-entropy of one label a sample, which has other forms."""
        return self.flow[:1] == ('cross_entropy',)

    @property
    def one_output_each(self) -> bool:
        """Whether it takes an output for each class, or for each number of a target.

        A plain function of whole targets does, one of other numbers need not.
        """
        return getattr(self.losses, 'one_output_each', self.whole_targets)

    @property
    def of_classes(self) -> bool:
        """Whether the target of a sample is one class."""
        return self.whole_targets and 0 in self.target_axes and not self.sequences

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
    Loss(cross_entropies, ('cross_entropy', 'mse')),
    'accuracy',
    correct,
    whole_targets=True,
    target_axes=(0,),
)
REGRESSION = Task(
    'regression',
    Loss(squared_errors, ('mse',)),
    'rmse',
    squared_errors,
    reported=np.sqrt,
    lower_is_better=True,
    scaled_targets=True,
)
MULTI_LABEL = Task(  # y [B, C], 0 or 1
    'multi_label',
    Loss(lambda logits, y: jnp.mean(jax.nn.softplus(logits) - y * logits, axis=1)),
    'accuracy',  # the share of labels that are right
    lambda logits, y: jnp.mean((logits > 0) == (y > 0), axis=1),
    target_axes=(1,),
    binary_targets=True,
)
NEXT_TOKEN = Task(  # outputs [B, L, C], y [B, L]
    'next_token',
    Loss(lambda logits, y: jnp.mean(cross_entropies(logits, y), axis=1)),
    'accuracy',  # the share of tokens that are right
    lambda logits, y: jnp.mean(correct(logits, y), axis=1),
    whole_targets=True,
    target_axes=(1,),
    sequences=True,
)
TASKS = {task.name: task for task in (CLASSIFICATION, REGRESSION, MULTI_LABEL, NEXT_TOKEN)}
