"""QG-DSGDm, quasi-global momentum: Lin, Karimireddy, Stich & Jaggi, ICML 2021, Algorithm 1.

A client's momentum is made of the steps between its averaged models, in which the gradients of its
neighbours are, too, not of its own gradients alone. With g the gradient at x and W the mixing
matrix of the round:

    x_half <- x - lr (mu m + g)
    x_new  <- W x_half
    m      <- mu m + (1 - mu) (x - x_new) / lr

With mu = 0 it is D-PSGD. One message a round.
"""

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
from dfl_jax.base import Algorithm, Array, PyTree, Round
from dfl_jax.checks import check_range
from dfl_jax.exchange import SENT
from dfl_jax.models import Model
from dfl_jax.training import LocalTraining


class State(NamedTuple):
    params: PyTree  # x, leaves [M, ...]
    momentum: PyTree  # m, leaves [M, ...]


def qg_dsgdm(
    model: Model,
    *,
    training: LocalTraining = ONE_MINIBATCH,
    global_momentum: float = 0.9,
    gossip: Gossip = Gossip(),
) -> Algorithm:
    """Quasi-global momentum.

    Args:
      training: of every client; lr g is how far it moves the weights.
      global_momentum: factor mu of the quasi-global momentum, in [0, 1).
      gossip: averages, start and consensus.
    """
    check_range('global_momentum', global_momentum, least=0, below=1)
    local, mu = local_gradient(model, training, gossip.chunk), global_momentum

    def step(key: Array, state: State, round: Round) -> tuple:
        x, momentum = state
        gradient, lr, losses = local(key, x, round)
        half = jax.tree.map(lambda x, m, g: x - lr * (mu * m + g), x, momentum, gradient)
        k_sent = jax.random.fold_in(key, SENT)
        mixed = round.exchange.mean(k_sent, round, gossip.rows(round), half)
        moved = per_rate(optax.tree.sub(x, mixed), lr)
        momentum = jax.tree.map(lambda m, d: mu * m + (1 - mu) * d, momentum, moved)
        return (mixed, momentum), losses

    why = 'a step between averages is taken for the mean gradient'
    return gossip_method(model, gossip, [training], step, State, linear=why, private=True)
