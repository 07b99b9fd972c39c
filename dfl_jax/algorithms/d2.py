"""D^2, exact diffusion: Tang, Lian, Yan, Zhang & Liu, ICML 2018; Yuan, Ying, Zhao & Sayed 2019.

With g the gradient of a client at its weights x, and x_, g_ those of the round before:

    x <- W (2 x - x_ - lr (g - g_)),

W (x - lr g) in the first round. A correction c of the gradient, zero at first, carries this out:

    x_new <- W (x - lr (g - c)),    c <- g - (x - x_new) / lr

c is g_ where x has come to rest, so that a change of the learning rate does not move it. Clients
with different data come to rest at the minimum of their mean loss at the price of one message a
round, if W stays the same, is symmetric and has no eigenvalue of -1/3 or below, which (I + W) / 2
never has.
"""

from functools import partial
from typing import NamedTuple

import jax
import optax

from dfl_jax.algorithms.gossip_method import ONE_MINIBATCH, gossip_method, local_gradient, per_rate
from dfl_jax.algorithms.graph_requirements import eigenvalues_above
from dfl_jax.base import Algorithm, Array, Clients, Graph, PyTree
from dfl_jax.checks import check_choice
from dfl_jax.compression import bits_of
from dfl_jax.gossip import MIXINGS, mix, mixing_weights
from dfl_jax.initialisation import Init
from dfl_jax.models import Model
from dfl_jax.training import LocalTraining


class State(NamedTuple):
    params: PyTree  # x, leaves [M, ...]
    correction: PyTree  # c, leaves [M, ...]
    sizes: Array  # [M] int32, N_i
    round: Array  # scalar int32


def d2(
    model: Model,
    *,
    training: LocalTraining = ONE_MINIBATCH,
    mixing: str = 'metropolis',
    lazy: bool = True,
    consensus: str = 'mean',
    init: Init = 'same',
    chunk: int | None = None,
) -> Algorithm:
    """D^2.

    Args:
      model: the network, bound to its input shape.
      training: of every client; lr g is how far it moves the weights, one minibatch's gradient by
        default.
      mixing: weights of W: `metropolis`, `uniform` or `size`; W has to be symmetric.
      lazy: average by the matrix (I + W) / 2 in place of W.
      consensus: the consensus model is the `mean` or `size`-weighted mean of the M models.
      init: `same`, `independent` or `gain_corrected` weights, see `dfl_jax.initialisation`.
      chunk: clients trained at once; None for one on a CPU, elsewhere what memory holds.
    """
    check_choice('mixing', mixing, MIXINGS)
    local = local_gradient(model, training, chunk)

    def step(key: Array, state: State, graph: Graph, clients: Clients) -> tuple:
        x, correction, sizes, k = state
        rows = mixing_weights(graph, sizes, mixing)
        if lazy:
            rows = (rows / 2).at[:, 0].add(0.5)
        gradient, lr, losses = local(key, x, clients, k)
        corrected = jax.tree.map(lambda x, g, c: x - lr * (g - c), x, gradient, correction)
        mixed = mix(rows, graph.members, corrected)
        moved = per_rate(optax.tree.sub(x, mixed), lr)
        return (mixed, optax.tree.sub(gradient, moved)), losses

    bits = {'weights': bits_of(model.shapes)}
    check = partial(eigenvalues_above, 'D^2', -1 / 3, mixing, lazy)
    return gossip_method(model, [training], init, step, consensus, bits, State, check)
