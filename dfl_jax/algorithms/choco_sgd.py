"""CHOCO-SGD: Koloskova, Stich & Jaggi, ICML 2019, Algorithm 2.

Clients send compressed differences. Every client keeps a public copy x^ of its weights, which its
neighbours keep, too, and which approaches the weights as differences are added to it, so that what
compression loses in a round is not lost for good. With g the gradient at x, Q the codec and W the
mixing matrix:

    x_half <- x - lr g
    x^     <- x^ + Q(x_half - x^)                  the message
    x      <- x_half + gamma (W - I) x^

One copy x^ a client stands here for those of all its neighbours, which are equal as long as none
misses a message: the graph has to be static.
"""

from functools import partial
from typing import NamedTuple

import jax
import optax

from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_method import ONE_MINIBATCH, gossip_method, local_displacement
from dfl_jax.algorithms.graph_requirements import static
from dfl_jax.base import Algorithm, Array, PyTree, Round
from dfl_jax.checks import check_range
from dfl_jax.exchange import COMBINED, Compression, Exchange
from dfl_jax.models import Model
from dfl_jax.training import LocalTraining


class State(NamedTuple):
    params: PyTree  # x, leaves [M, ...]
    public: PyTree  # x^, leaves [M, ...]


def choco_sgd(
    model: Model,
    *,
    training: LocalTraining = ONE_MINIBATCH,
    compression: Compression = Compression(sparsity=0.99),
    consensus_step: float = 0.046,
    gossip: Gossip = Gossip(),
) -> Algorithm:
    """CHOCO-SGD.

    Args:
      training: of every client; lr g is how far it moves the weights.
      compression: Q, of the differences; the default keeps the largest 1 % of every tensor.
      consensus_step: step size gamma of the averaging, in (0, 1]; stronger compression needs a
        smaller one.
      gossip: averages, start and consensus.
    """
    check_range('consensus_step', consensus_step, above=0, most=1)
    displacement = local_displacement(model, training, gossip.chunk)
    codec = compression.codec('stochastic', contracting=True)

    def step(key: Array, state: State, round: Round) -> tuple:
        k_train, k_codec = jax.random.split(key)
        x, public = state
        gradient, losses = displacement(k_train, x, round)  # lr g
        half = optax.tree.sub(x, gradient)
        public = round.exchange.send(k_codec, round, half, around=public)
        mixed = pulled(k_codec, round, gossip.rows(round), half, public, consensus_step)
        return (mixed, public), losses

    return gossip_method(
        *(model, gossip, [training], step, State),
        check=partial(static, 'choco_sgd'),
        exchange=Exchange(codec),
        linear='public copies are averaged, which are not what was sent in the round',
        private=True,
    )


def pulled(
    key: Array, round: Round, rows: Array, x: PyTree, public: PyTree, gamma: float
) -> PyTree:
    """x + gamma (W - I) x^: the weights, pulled towards their neighbours' copies; leaves [M, ...].

    rows: [M, K], those of W.
    """
    mixed = round.exchange.combine(jax.random.fold_in(key, COMBINED), round, rows, public)
    return jax.tree.map(lambda x, m, p: x + gamma * (m - p), x, mixed, public)
