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

from dfl_jax.algorithms.gossip_method import ONE_MINIBATCH, Stepped, gossip_method, local_gradient
from dfl_jax.algorithms.graph_requirements import balanced
from dfl_jax.base import Algorithm, Array, Clients, Graph, PyTree
from dfl_jax.checks import check_choice
from dfl_jax.compression import bits_of
from dfl_jax.gossip import MIXINGS, mix, mixing_weights
from dfl_jax.initialisation import Init
from dfl_jax.models import Model
from dfl_jax.training import LocalTraining


class State(NamedTuple):
    params: PyTree  # x, leaves [M, ...]
    tracker: PyTree  # W y, leaves [M, ...], in which the next gradient is still missing
    gradient_before: PyTree  # g of the round before, leaves [M, ...]
    sizes: Array  # [M] int32, N_i
    round: Array  # scalar int32


def dsgt(
    model: Model,
    *,
    training: LocalTraining = ONE_MINIBATCH,
    mixing: str = 'metropolis',
    consensus: str = 'mean',
    init: Init = 'same',
    chunk: int | None = None,
) -> Algorithm:
    """Gradient tracking.

    Args:
      model: the network, bound to its input shape.
      training: of every client; lr g is how far it moves the weights, one minibatch's gradient by
        default, more local steps taken together as one.
      mixing: weights of the average: `metropolis`, or `uniform` or `size` where these are doubly
        stochastic, too.
      consensus: the consensus model is the `mean` or `size`-weighted mean of the M models.
      init: `same`, `independent` or `gain_corrected` weights, see `dfl_jax.initialisation`.
      chunk: clients trained at once; None for one on a CPU, elsewhere what memory holds.
    """
    check_choice('mixing', mixing, MIXINGS)
    local = local_gradient(model, training, chunk)

    def step(key: Array, state: State, graph: Graph, clients: Clients) -> Stepped:
        x, tracker, before, sizes, k = state
        rows = mixing_weights(graph, sizes, mixing)
        gradient, lr, losses = local(key, x, clients, k)
        tracker = optax.tree.add(tracker, optax.tree.sub(gradient, before))
        x, mixed = mix(rows, graph.members, (optax.tree.add_scale(x, -lr, tracker), tracker))
        return Stepped((x, mixed, gradient), losses, messages=2)

    bits = {'weights': bits_of(model.shapes)}
    check = partial(balanced, 'DSGT', mixing)
    return gossip_method(model, [training], init, step, consensus, bits, State, check)
