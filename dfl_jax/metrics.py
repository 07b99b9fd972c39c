"""What an evaluation reports."""

import jax
import jax.numpy as jnp

from dfl_jax.base import Array, PyTree

CONSENSUS = ('mean', 'size')  # plain, or weighted by sample counts


def consensus_model(params: PyTree, weights: Array | None = None) -> PyTree:
    """The aggregated model w_bar = sum_i v_i w_i of stacked parameters, leaves [M, ...] -> [...].

    weights: [M], normalised here; None for the plain mean of NTK-DFL section 3.2.
    """
    if weights is None:
        return jax.tree.map(lambda leaf: leaf.mean(axis=0), params)
    shares = weights / weights.sum()
    return jax.tree.map(lambda leaf: jnp.tensordot(shares.astype(leaf.dtype), leaf, 1), params)


def model_spread(params: PyTree) -> dict[str, Array]:
    """How far the M models lie from their mean, scalars.

    `model_deviation`: NTK-DFL Eq. (12), 1/P sum_p sqrt(sum_i (w_ip - w_bar_p)^2).
    `consensus_distance`: root mean square over clients of ||w_i - w_bar||.
    """
    leaves = jax.tree.leaves(params)
    squares = jnp.concatenate(  # [P]
        [jnp.sum((w - w.mean(axis=0, keepdims=True)) ** 2, axis=0).ravel() for w in leaves]
    )
    return {
        'model_deviation': jnp.sqrt(squares).mean(),
        'consensus_distance': jnp.sqrt(squares.sum() / leaves[0].shape[0]),
    }


def correct_and_loss(logits: Array, y: Array, mask: Array) -> tuple[Array, Array]:
    """Number of correct predictions and summed cross-entropy over the samples that count.

    logits [..., B, C], y [B], mask [B] -> ([...], [...]).
    """
    log_p = jax.nn.log_softmax(logits)
    labels = jnp.broadcast_to(y, logits.shape[:-1])
    losses = -jnp.take_along_axis(log_p, labels[..., None], axis=-1)[..., 0]
    hits = jnp.argmax(logits, axis=-1) == labels
    valid = jnp.broadcast_to(mask, hits.shape)
    return (
        jnp.sum(hits & valid, axis=-1, dtype=jnp.int32),
        jnp.sum(jnp.where(valid, losses, 0), axis=-1),
    )
