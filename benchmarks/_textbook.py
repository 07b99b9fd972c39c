"""NTK-DFL as the equations stand: the dense Jacobian of one client, 800 Euler steps.

What `benchmarks/round.py` compares with. It is not slowed down anywhere: the products are matrix
products of the whole, all timesteps in one, and the Jacobian is formed in the blocks that were
fastest.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from benchmarks._common import jacobian
from dfl_jax.base import Array, PyTree
from dfl_jax.models import Model
from dfl_jax.ntk import evolve
from dfl_jax.ntk.evolution import sample_losses


class Aggregator(NamedTuple):
    """What one aggregator works on: its averaged weights, its samples and its neighbours'."""

    params: PyTree  # w_bar
    x: Array  # [N~, ...]
    y: Array  # [C, N~] one-hot
    mask: Array  # [N~] bool
    rate: Array  # learning rate of this round


def textbook(
    model: Model, timesteps: Sequence[int]
) -> Callable[[Aggregator], tuple[PyTree, Array]]:
    """update(aggregator) -> its new weights and the timestep chosen, by Algorithm 4.

    J [N~, C, P] is in memory whole: 3.8 GB for 1,182 samples of the MLP 784-100-10.
    """
    block = 16 if jax.default_backend() == 'cpu' else 128

    def update(aggregator: Aggregator) -> tuple[PyTree, Array]:
        w, x, y, mask, rate = aggregator
        n = jnp.sum(mask)
        flat, unravel = ravel_pytree(w)
        j = jacobian(model, w, x, block)  # Eq. (2)
        rows = j.reshape(len(x), -1)
        h = jnp.matmul(rows, rows.T, precision='highest') / model.classes  # Eq. (3)
        h = jnp.where(mask[:, None] & mask[None, :], h, 0)
        f0 = model.apply(w, x).T
        totals = evolve(h, f0, y, mask, rate, timesteps=tuple(timesteps), method='euler')
        signals = totals.transpose(0, 2, 1).reshape(len(timesteps), -1)  # Eq. (5b), [T, N~ C]
        tried = flat - rate / n * (signals @ j.reshape(signals.shape[1], -1))  # Eq. (5a), [T, P]

        def loss(flat: Array) -> Array:
            losses = sample_losses(model.apply(unravel(flat), x).T, y, 'cross_entropy')
            return jnp.sum(jnp.where(mask, losses, 0)) / n

        best = jnp.argmin(lax.map(loss, tried))
        return unravel(tried[best]), jnp.asarray(timesteps)[best]

    return update
