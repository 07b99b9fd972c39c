"""The losses of labels: cross-entropy, and its forms for clients that lack classes."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dfl_jax.base import Array
from dfl_jax.tasks import Task

SUPERVISIONS = ('ce', 'ace', 'wsm')


def class_shares(y: Array, mask: Array, classes: int, dtype: jnp.dtype) -> Array:
    """The proportion of each class among the samples that count, beta of DFML Eq. (2), [C].

    y, mask: [N].
    """
    counts = jnp.sum(jax.nn.one_hot(y, classes, dtype=dtype) * mask[:, None], axis=0)
    return counts / jnp.maximum(counts.sum(), 1)


def label_losses(task: Task, supervision: str) -> Callable[[Array, Array, Array], Array]:
    """(outputs [B, ...], y [B, ...], class shares [C]) -> the loss of every sample, [B].

    That of the task, whatever it is; `ace` and `wsm` are forms of the cross-entropy alone.

    Raises ValueError where the loss of the task has no such form.
    """
    if task.cross_entropy:
        return lambda logits, y, shares: supervised_losses(logits, y, shares, supervision)
    if supervision != 'ce':
        raise ValueError(
            f'supervision={supervision} is a loss of classes, a form of the cross-entropy, not of '
            f'{task.name}; set supervision=ce, which is the loss of the task'
        )
    return lambda outputs, y, shares: task.losses(outputs, y)


def supervised_losses(logits: Array, y: Array, shares: Array, supervision: str) -> Array:
    """The loss of every sample, [B], from logits [B, C], labels y [B] and class shares [C].

    `ce`: cross-entropy. `wsm`: re-weighted softmax, log sum_c beta_c exp(z_c) - z_y (Legate et al.
    2023; DFML Eq. 2), which is cross-entropy less log C where all classes are equally frequent.
    `ace`: the same with beta_c one for every class that the data holds and zero for the others
    (asymmetric cross-entropy, Caccia et al. 2021).
    """
    weights = {
        'ce': jnp.ones_like(shares),
        'ace': (shares > 0).astype(shares.dtype),
        'wsm': shares,
    }[supervision]
    label_logits = jnp.sum(logits * jax.nn.one_hot(y, logits.shape[1], dtype=logits.dtype), axis=1)
    return jax.nn.logsumexp(logits, axis=1, b=weights[None]) - label_logits
