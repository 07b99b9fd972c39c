"""DSGT, gradient tracking: Di Lorenzo & Scutari 2016; Pu & Nedić, Mathematical Programming 2021.

Beside its weights x every client holds a tracker y of the network's mean gradient. With g the
gradient of a client at its own x, and W the doubly stochastic mixing matrix of the round:

    y <- W y + g - g of the round before        the mean of y is the mean of g
    x <- W (x - lr y)

so that clients with different data come to rest at the minimum of their mean loss, which D-PSGD
misses by a distance that grows with lr. Two messages a round: x - lr y, and y.
"""

from functools import partial
from typing import NamedTuple

import jax
import optax

from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_method import ONE_MINIBATCH, gossip_method, local_gradient
from dfl_jax.algorithms.graph_requirements import balanced
from dfl_jax.base import Algorithm, Array, PyTree, Round
from dfl_jax.exchange import SENT
from dfl_jax.models import Model
from dfl_jax.training import LocalTraining


class State(NamedTuple):
    params: PyTree  # x, leaves [M, ...]
    tracker: PyTree  # W y, leaves [M, ...], in which the next gradient is still missing
    gradient_before: PyTree  # g of the round before, leaves [M, ...]


def dsgt(
    model: Model, *, training: LocalTraining = ONE_MINIBATCH, gossip: Gossip = Gossip()
) -> Algorithm:
    """Gradient tracking.

    Args:
      training: of every client; lr g is how far it moves the weights, more local steps
        taken together as one.
      gossip: averages, start and consensus.
      mixing: weights of the average: `metropolis`, or `uniform` or `size` where these are doubly
        stochastic, too.
    """
    local = local_gradient(model, training, gossip.chunk)

    def step(key: Array, state: State, round: Round) -> tuple:
        x, tracker, before = state
        rows, exchange = gossip.rows(round), round.exchange
        k_weights, k_tracker = jax.random.split(jax.random.fold_in(key, SENT))
        gradient, lr, losses = local(key, x, round)
        tracker = optax.tree.add(tracker, optax.tree.sub(gradient, before))
        moved = optax.tree.add_scale(x, -lr, tracker)
        mixed = exchange.mean(k_tracker, round, rows, tracker, kind='trackers')
        x = exchange.mean(k_weights, round, rows, moved)
        return (x, mixed, gradient), losses

    check = partial(balanced, 'dsgt', gossip.mixing)
    why = 'the mean of the trackers has to stay that of the gradients'
    return gossip_method(
        model, gossip, [training], step, State, check=check, linear=why, private=True
    )
