"""BEER, better compression for decentralized optimization: Zhao, Li, Li, Richtárik & Chi, NeurIPS
2022, Algorithm 1.

Gradient tracking over compressed links: weights x and tracker v have public copies h and c, which
compressed differences approach, as in CHOCO-SGD. With g the gradient of a client at x, Q the codec
and W the mixing matrix:

    v <- v + gamma (W - I) c + g - g of the round before,    c <- c + Q(v - c)
    x <- x + gamma (W - I) h - lr v,                         h <- h + Q(x - h)

Two messages a round. In the first v = g, which is not sent: c stays zero, so that there is
one message, and v = v + g - g of the round before in the second. The paper numbers the same
messages from the gradient at the new weights on, at the end of a round. Copies, and so the graph,
have to be the same in all rounds.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dfl_jax.algorithms.choco_sgd import pulled
from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_method import ONE_MINIBATCH, gossip_method, local_gradient
from dfl_jax.algorithms.graph_requirements import balanced, static
from dfl_jax.base import Algorithm, Array, Graph, PyTree, Round
from dfl_jax.checks import check_range
from dfl_jax.exchange import Compression, Exchange
from dfl_jax.models import Model
from dfl_jax.training import LocalTraining


class State(NamedTuple):
    params: PyTree  # x, leaves [M, ...]
    public: PyTree  # h, leaves [M, ...]
    tracker: PyTree  # v, leaves [M, ...]
    public_tracker: PyTree  # c, leaves [M, ...]
    gradient_before: PyTree  # g of the round before, leaves [M, ...]


def beer(
    model: Model,
    *,
    training: LocalTraining = ONE_MINIBATCH,
    compression: Compression = Compression(bits=5),
    consensus_step: float = 0.3,
    gossip: Gossip = Gossip(),
) -> Algorithm:
    """BEER.

    Args:
      training: of every client; lr g is how far it moves the weights.
      compression: Q, of both differences.
      consensus_step: step size gamma of the averaging, in (0, 1]; stronger compression needs a
        smaller one.
      gossip: averages, start and consensus.
      mixing: weights of the average: `metropolis`, or `uniform` or `size` where these are doubly
        stochastic, too.
    """
    check_range('consensus_step', consensus_step, above=0, most=1)
    local = local_gradient(model, training, gossip.chunk)
    codec = compression.codec('stochastic', contracting=True)

    def step(key: Array, state: State, round: Round) -> tuple:
        k_train, k_tracker, k_weights = jax.random.split(key, 3)
        x, h, v, c, before = state
        rows, exchange, sends = gossip.rows(round), round.exchange, round.number > 0
        gradient, lr, losses = local(k_train, x, round)
        v = pulled(k_tracker, round, rows, v, c, consensus_step)
        v = optax.tree.add(v, optax.tree.sub(gradient, before))
        sent = exchange.send(k_tracker, round.only(sends), v, around=c, kind='trackers')
        c = jax.tree.map(lambda new, old: jnp.where(sends, new, old), sent, c)
        x = optax.tree.add_scale(pulled(k_weights, round, rows, x, h, consensus_step), -lr, v)
        h = exchange.send(k_weights, round, x, around=h)
        return (x, h, v, c, gradient), losses

    def check(graphs: Graph, sizes) -> None:
        static('beer', graphs, sizes)
        balanced('beer', gossip.mixing, graphs, sizes)

    return gossip_method(
        *(model, gossip, [training], step, State),
        check=check,
        exchange=Exchange(codec),
        linear='public copies are averaged, and trackers keep the mean gradient',
        private=True,
    )
