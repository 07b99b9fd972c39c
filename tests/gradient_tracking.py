"""Gradient tracking: x+ = W(x - lr y), y+ = W y + beta (g+ - g), g the full gradients."""

from typing import NamedTuple

import jax

from dfl_jax import Algorithm, Info
from dfl_jax.algorithms.gossip_method import mean_params, stacked_predictions
from dfl_jax.base import Array, PyTree
from dfl_jax.gossip import mixing_weights
from dfl_jax.initialisation import initial_params
from dfl_jax.methods import Method
from dfl_jax.metrics import dispersion
from dfl_jax.training import Batch, batch_loss


class State(NamedTuple):
    params: PyTree  # x, leaves [M, ...]
    tracker: PyTree  # y, leaves [M, ...]
    gradient: PyTree  # g at x, leaves [M, ...]


def tracking(model, *, lr: float = 0.5, beta: float = 1.0) -> Algorithm:
    """Gradient tracking.

    Args:
      lr: length of a step along the tracked gradient.
      beta: weight of the gradient's change in the tracker; 1 is DSGT.
    """

    def loss(w: PyTree, x: Array, y: Array, mask: Array) -> Array:
        return batch_loss(model, w, Batch(x, y, mask.astype(x.dtype)))

    losses_and_gradients = jax.vmap(jax.value_and_grad(loss))

    def init(key, clients):
        params = initial_params(key, model, len(clients.y), 'same')
        _, gradient = losses_and_gradients(params, *clients[:3])
        return State(params, gradient, gradient)

    def step(key, state, round):
        rows, mean = mixing_weights(round.graph, round.sizes, 'metropolis'), round.exchange.mean
        moved = jax.tree.map(lambda x, y: x - lr * y, state.params, state.tracker)
        params = mean(key, round, rows, moved)
        mixed = mean(key, round, rows, state.tracker, kind='trackers')
        losses, new = losses_and_gradients(params, *round.clients[:3])
        tracker = jax.tree.map(lambda y, a, b: y + beta * (a - b), mixed, new, state.gradient)
        return State(params, tracker, new), Info(losses, dispersion(params))

    return Algorithm(init, step, stacked_predictions(model), mean_params)


method = Method(tracking, label='Gradient tracking')
