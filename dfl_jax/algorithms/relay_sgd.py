"""RelaySGD: Vogels, He, Koloskova, Lin, Karimireddy, Stich & Jaggi, NeurIPS 2021, Algorithm 1.

On a tree a client relays to each neighbour what it has heard from all the others, so that after as
many rounds as the tree is wide all clients have the mean. With g the gradient of client i at x,
m_ji the sum that it heard from neighbour j, c_ji how many models are in it, and x0 where it began:

    x_half <- x - lr g
    m_ij   <- x_half + sum of m_ki over the neighbours k but j       the message to j, and
    c_ij   <- 1 + sum of c_ki over the same                          its count
    x      <- (x_half + sum_j m_ji + (M - 1 - sum_j c_ji) x0) / M

where what is sent is made of what was heard in the round before, and x0 stands for the models of
clients that none has told of yet, as in the authors' program. One message a link a round.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dfl_jax.algorithms.client_models import ClientModels
from dfl_jax.algorithms.gossip_method import ONE_MINIBATCH, gossip_method, local_displacement
from dfl_jax.algorithms.graph_requirements import tree
from dfl_jax.base import Algorithm, Array, PyTree, Round
from dfl_jax.checks import check_range
from dfl_jax.exchange import SENT, heard_messages, number_bits
from dfl_jax.models import Model
from dfl_jax.training import LocalTraining


class State(NamedTuple):
    params: PyTree  # x, leaves [M, ...]
    initial: PyTree  # x0, leaves [M, ...]
    heard: PyTree  # m_ji by the columns of the graph, leaves [M, K - 1, ...]
    counts: Array  # c_ji, [M, K - 1] int32


def relay_sgd(
    model: Model,
    *,
    members: int,
    training: LocalTraining = ONE_MINIBATCH,
    models: ClientModels = ClientModels(),
) -> Algorithm:
    """RelaySGD.

    Args:
      members: K, the columns of the graphs, or more.
      training: of every client; lr g is how far it moves the weights.
      models: start and consensus.
    """
    check_range('members', members, least=2)
    displacement = local_displacement(model, training, models.chunk)

    def begin(x: PyTree) -> State:
        links = (len(jax.tree.leaves(x)[0]), members - 1)
        heard = jax.tree.map(lambda a: jnp.zeros((*links, *a.shape[1:]), a.dtype), x)
        counts = jnp.zeros(links, jnp.int32)
        return State(x, jax.tree.map(jnp.copy, x), heard, counts)

    def step(key: Array, state: State, round: Round) -> tuple:
        (x, initial, *before), exchange = state, round.exchange
        gradient, losses = displacement(key, x, round)  # lr g
        half = optax.tree.sub(x, gradient)
        clients = len(round.sizes)
        own = half, jnp.ones_like(round.sizes)  # x_half, and 1 model
        delivered = round.graph.mask[:, 1:] & round.graph.active[:, None]
        sums, numbers = relayed(own, tuple(before), round.graph.members[:, 1:], delivered)
        k_sent = jax.random.fold_in(key, SENT)
        sums = exchange.send_to_each(k_sent, round, sums, kind='relays')
        messages, _ = heard_messages(round.graph, clients)
        exchange.count('counts', messages, number_bits(numbers.dtype))
        heard, counts = kept((sums, numbers), tuple(before), delivered)
        missing = clients - 1 - counts.sum(axis=1)

        def mean(half: Array, heard: Array, x0: Array) -> Array:
            absent = missing.reshape(-1, *[1] * (x0.ndim - 1))
            return (half + heard.sum(axis=1) + absent * x0) / clients

        new = jax.tree.map(mean, half, heard, initial)
        return (new, initial, heard, counts), losses

    why = 'what it relays are sums, from which a client takes what it has sent itself'
    check = partial(tree, 'relay_sgd')
    return gossip_method(
        model, models, [training], step, begin, check=check, linear=why, private=True
    )


def relayed(own: PyTree, heard: PyTree, neighbours: Array, delivered: Array) -> PyTree:
    """What every client is told in this round, by the columns of the graph.

    Args:
      own: leaves [M, ...], what each client adds.
      heard: leaves [M, L, ...], L at least K - 1: what it heard in the round before.
      neighbours, delivered: [M, K - 1].

    Returns:
      leaves [M, K - 1, ...], of any content where nothing is delivered.
    """
    clients, links = neighbours.shape
    # The column in which a client's neighbour j hears the client
    back = neighbours[neighbours] == jnp.arange(clients)[:, None, None]  # [M, K - 1, K - 1]
    back = jnp.sum(jnp.where(back & delivered[neighbours], jnp.arange(links), 0), axis=2)

    def of_leaf(mine: Array, before: Array) -> Array:
        total = mine + before.sum(axis=1, dtype=mine.dtype)
        return total[neighbours] - before[neighbours, back]  # the sender's, but what we said

    return jax.tree.map(of_leaf, own, heard)


def kept(told: PyTree, heard: PyTree, delivered: Array) -> PyTree:
    """What was delivered of what clients are told, zero elsewhere, in the shapes of `heard`."""
    clients, links = delivered.shape

    def of_leaf(message: Array, before: Array) -> Array:
        there = delivered.reshape(clients, links, *[1] * (message.ndim - 2))
        return jnp.zeros_like(before).at[:, :links].set(jnp.where(there, message, 0))

    return jax.tree.map(of_leaf, told, heard)
