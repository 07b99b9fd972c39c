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

import optax

from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_method import ONE_MINIBATCH, Stepped, gossip_method, local_gradient
from dfl_jax.algorithms.graph_requirements import balanced
from dfl_jax.base import Algorithm, Array, Clients, Graph, PyTree
from dfl_jax.gossip import mix
from dfl_jax.models import Model
from dfl_jax.training import LocalTraining


class State(NamedTuple):
    params: PyTree  # x, leaves [M, ...]
    tracker: PyTree  # W y, leaves [M, ...], in which the next gradient is still missing
    gradient_before: PyTree  # g of the round before, leaves [M, ...]
    sizes: Array  # [M] int32, N_i
    round: Array  # scalar int32


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

    def step(key: Array, state: State, graph: Graph, clients: Clients) -> Stepped:
        x, tracker, before, sizes, k = state
        rows = gossip.rows(graph, sizes)
        gradient, lr, losses = local(key, x, clients, k)
        tracker = optax.tree.add(tracker, optax.tree.sub(gradient, before))
        x, mixed = mix(rows, graph.members, (optax.tree.add_scale(x, -lr, tracker), tracker))
        return Stepped((x, mixed, gradient), losses, messages=2)

    check = partial(balanced, 'dsgt', gossip.mixing)
    return gossip_method(model, gossip, [training], step, begin=State, check=check)
