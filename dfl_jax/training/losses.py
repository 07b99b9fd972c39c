"""The losses of labels: cross-entropy, and its forms for clients that lack classes."""

import jax
import jax.numpy as jnp

from dfl_jax.base import Array

SUPERVISIONS = ('ce', 'ace', 'wsm')


def class_shares(y: Array, mask: Array, classes: int, dtype: jnp.dtype) -> Array:
    """The proportion of each class among the samples that count, beta of DFML Eq. (2), [C].

    y, mask: [N].
    """
    counts = jnp.sum(jax.nn.one_hot(y, classes, dtype=dtype) * mask[:, None], axis=0)
    return counts / jnp.maximum(counts.sum(), 1)


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
