"""NTK-DFL as the program that wrote the authors' logs has it: clients update in turn.

In the paper every client of a round begins with the models of the round before. In that program
client 0 updates first, and whoever hears it later in the same round hears its new model, so that
the last clients learn from neighbours that have nearly all learned already.
"""

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax import Algorithm, Clients, Graph, Info
from dfl_jax.algorithms import ntk_dfl
from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_method import State
from dfl_jax.base import Array
from dfl_jax.metrics import dispersion
from dfl_jax.models import Model


def ntk_dfl_in_turn(model: Model) -> Algorithm:
    """NTK-DFL with its defaults, but that the clients update in the order of their numbers."""
    method = ntk_dfl(model, gossip=Gossip(mixing='size', chunk=1))

    def step(key: Array, state: State, graph: Graph, clients: Clients) -> tuple[State, Info]:
        params, sizes, k = state
        order = jnp.arange(len(sizes))

        def update(params, of_client):  # the round of one aggregator and those it hears
            key, i, members, mask, active = of_client
            heard, data = jax.tree.map(lambda a: a[members], ((params, sizes), clients))
            alone = Graph(jnp.arange(len(members))[None], mask[None], active[None])
            (own, *_), info = method.step(key, State(*heard, k), alone, data)
            return jax.tree.map(lambda a, new: a.at[i].set(new[0]), params, own), info

        keys = jax.random.split(key, len(order))
        params, info = lax.scan(update, params, (keys, order, *graph[:3]))
        sent = {  # [M, K] of each, by the members of the aggregators
            unit: jax.ops.segment_sum(units.ravel(), graph.members.ravel(), len(order))
            for unit, units in info.sent.items()
        }
        return State(params, sizes, k + 1), Info(info.loss[:, 0], sent, dispersion(params))

    return method._replace(step=step)
