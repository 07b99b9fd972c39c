"""SGP, stochastic gradient push: Assran, Loizou, Ballas & Rabbat, ICML 2019, Algorithm 1.

On directed graphs a client knows whom it sends to, not who else is heard, so that it can only
divide what it has: P is column-stochastic. A mass w, one at first, is divided as the weights x are,
and their ratio z is unbiased. With g the gradient at z:

    x <- P (x - lr g),    w <- P w,    z = x / w

One message a round, weights and mass.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dfl_jax.algorithms.client_models import ClientModels
from dfl_jax.algorithms.gossip_method import ONE_MINIBATCH, gossip_method, local_displacement
from dfl_jax.algorithms.graph_requirements import heard
from dfl_jax.base import Algorithm, Array, PyTree, Round
from dfl_jax.exchange import SENT, heard_messages, number_bits
from dfl_jax.gossip import mix, push_weights
from dfl_jax.models import Model
from dfl_jax.training import LocalTraining


class State(NamedTuple):
    params: PyTree  # z, leaves [M, ...]
    mass: Array  # w, [M]


def sgp(
    model: Model, *, training: LocalTraining = ONE_MINIBATCH, models: ClientModels = ClientModels()
) -> Algorithm:
    """Stochastic gradient push.

    Args:
      training: of every client at z; lr g is how far it moves the weights.
      models: start and consensus of the M models z.
    """
    displacement = local_displacement(model, training, models.chunk)

    def begin(x: PyTree) -> State:
        leaves = jax.tree.leaves(x)
        return State(x, jnp.ones(len(leaves[0]), jnp.result_type(*leaves)))

    def step(key: Array, state: State, round: Round) -> tuple:
        z, mass = state
        exchange, members = round.exchange, round.graph.members
        shares = push_weights(round.graph)  # P
        gradient, losses = displacement(key, z, round)  # lr g
        x = optax.tree.sub(scaled(z, mass), gradient)
        x = exchange.mean(jax.random.fold_in(key, SENT), round, shares, x)
        exchange.count('masses', heard_messages(round.graph, len(mass))[0], number_bits(mass.dtype))
        new_mass = mix(shares, members, mass)
        return (scaled(x, 1 / new_mass), new_mass), losses

    why = 'the weights of what a client receives sum to one only over the rounds'
    check = partial(heard, 'sgp')
    return gossip_method(
        model, models, [training], step, begin, check=check, linear=why, private=True
    )


def scaled(tree: PyTree, factors: Array) -> PyTree:
    """Leaves [M, ...], each client's times its factor [M]."""
    return jax.tree.map(lambda a: a * factors.reshape(-1, *[1] * (a.ndim - 1)), tree)
