"""NTK-DFL as the program that wrote the authors' logs has it: clients update in turn.

In the paper every client of a round begins with the models of the round before. In that program
client 0 updates first, and whoever hears it later in the same round hears its new model, so that
the last clients learn from neighbours that have nearly all learned already.
"""

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax import Algorithm, Graph, Info
from dfl_jax.algorithms import ntk_dfl
from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_method import State
from dfl_jax.base import Array, Round
from dfl_jax.exchange import one_round
from dfl_jax.metrics import dispersion
from dfl_jax.models import Model


def ntk_dfl_in_turn(model: Model) -> Algorithm:
    """NTK-DFL with its defaults, but that the clients update in the order of their numbers."""
    method = ntk_dfl(model, gossip=Gossip(mixing='size', chunk=1))

    def step(key: Array, state: State, round: Round) -> tuple[State, Info]:
        order, graph = jnp.arange(len(round.sizes)), round.graph

        def update(params, of_client):  # the round of one aggregator and those it hears
            key, i, members, mask, active = of_client
            heard, data = jax.tree.map(lambda a: a[members], (params, round.clients))
            alone = Graph(jnp.arange(len(members))[None], mask[None], active[None])
            state = State(heard)
            (own,), info = one_round(method, key, state, round.number, alone, data)
            return jax.tree.map(lambda a, new: a.at[i].set(new[0]), params, own), info

        keys = jax.random.split(key, len(order))
        params, info = lax.scan(update, state.params, (keys, order, *graph[:3]))
        for kind, sent in info.sent.items():  # [M, K], by the members of the aggregators
            counts = sent.messages.ravel(), graph.members.ravel(), len(order)
            round.exchange.count(kind, jax.ops.segment_sum(*counts), sent.bits)
        return State(params), Info(info.loss[:, 0], dispersion(params))

    return method._replace(step=step)
