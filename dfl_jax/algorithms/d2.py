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

from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_method import (
    ONE_MINIBATCH,
    gossip_method,
    local_gradient,
    per_rate,
)
from dfl_jax.algorithms.graph_requirements import eigenvalues_above
from dfl_jax.base import Algorithm, Array, PyTree, Round
from dfl_jax.exchange import SENT
from dfl_jax.models import Model
from dfl_jax.training import LocalTraining


class State(NamedTuple):
    params: PyTree  # x, leaves [M, ...]
    correction: PyTree  # c, leaves [M, ...]


def d2(
    model: Model,
    *,
    training: LocalTraining = ONE_MINIBATCH,
    lazy: bool = True,
    gossip: Gossip = Gossip(),
) -> Algorithm:
    """D^2.

    Args:
      training: of every client; lr g is how far it moves the weights.
      lazy: average by the matrix (I + W) / 2 in place of W.
      gossip: averages, start and consensus.
      mixing: weights of W: `metropolis`, `uniform` or `size`; W has to be symmetric.
    """
    local = local_gradient(model, training, gossip.chunk)

    def step(key: Array, state: State, round: Round) -> tuple:
        x, correction = state
        rows = gossip.rows(round)
        if lazy:
            rows = (rows / 2).at[:, 0].add(0.5)
        gradient, lr, losses = local(key, x, round)
        corrected = jax.tree.map(lambda x, g, c: x - lr * (g - c), x, gradient, correction)
        k_sent = jax.random.fold_in(key, SENT)
        mixed = round.exchange.mean(k_sent, round, rows, corrected)
        moved = per_rate(optax.tree.sub(x, mixed), lr)
        return (mixed, optax.tree.sub(gradient, moved)), losses

    check = partial(eigenvalues_above, 'd2', -1 / 3, gossip.mixing, lazy)
    why = 'its correction is that of a symmetric mixing matrix'
    return gossip_method(
        model, gossip, [training], step, State, check=check, linear=why, private=True
    )
