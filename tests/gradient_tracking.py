"""Gradient tracking: x+ = W(x - lr y), y+ = W y + beta (g+ - g), g the full gradients."""

from typing import NamedTuple

import jax

from dfl_jax import Algorithm, Info
from dfl_jax.algorithms.gossip_method import consensus_of, count_sent, stacked_predictions
from dfl_jax.base import Array, PyTree
from dfl_jax.gossip import mix, mixing_weights
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
        _, gradient = losses_and_gradients(params, *clients)
        return State(params, gradient, gradient)

    def step(key, state, graph, clients):
        weights = mixing_weights(graph, clients.mask.sum(axis=1), 'metropolis')
        moved = jax.tree.map(lambda x, y: x - lr * y, state.params, state.tracker)
        params, mixed = (mix(weights, graph.members, each) for each in (moved, state.tracker))
        losses, new = losses_and_gradients(params, *clients)
        tracker = jax.tree.map(lambda y, a, b: y + beta * (a - b), mixed, new, state.gradient)
        sent, _ = count_sent(graph, len(clients.y))
        info = Info(losses, {'weights': 2 * sent}, dispersion(params))
        return State(params, tracker, new), info

    mean = consensus_of('mean')
    bits = {'weights': 32 * model.size}
    return Algorithm(init, step, stacked_predictions(model, mean), bits, mean)


method = Method(tracking, label='Gradient tracking')
