"""Local SGD with gossip averaging: the round that the gradient methods share.

Every client trains on its own data and averages models with its neighbours. With T the local
training, W the mixing matrix of the round's graph and Q the codec of the exchange:

    x_i <- sum_j W_ij Q(T(x_j))                         `round_order='train_first'`
    x_i <- T(sum_j W_ij Q(x_j))                         `round_order='average_first'`
    x_i <- sum_j W_ij Q(x_j) + (T(x_i) - x_i)           `round_order='parallel'`

The first is decentralized federated averaging (Sun, Li & Wang 2021, Algorithm 1), the second what
the authors of the initialisation and topology paper ran, the third, with a single minibatch, D-PSGD
as first published (Lian et al. 2017, Algorithm 1). The methods differ in the local training and are
`partial` applications of this one.
"""

import jax

from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_method import State, Stepped, gossip_method
from dfl_jax.base import Algorithm, Array, PyTree, Round
from dfl_jax.checks import check_choice, check_range
from dfl_jax.metrics import update_norms
from dfl_jax.models import Model, first_weights
from dfl_jax.training import LocalTraining, local_training

ROUND_ORDERS = ('train_first', 'average_first', 'parallel')


def gossip_sgd(
    model: Model,
    *,
    training: LocalTraining,
    round_order: str = 'train_first',
    gossip_steps: int = 1,
    diagnostics: bool = False,
    gossip: Gossip = Gossip(mixing='uniform'),
) -> Algorithm:
    """One round of local training and gossip.

    Args:
      training: of every client on its own data.
      round_order: `train_first`; `average_first`, for gain-corrected initial weights; or
        `parallel`, which averages the models from before the training and adds the changes of
        training.
      gossip_steps: averaging steps in each round, over the same graph (DFedSAM-MGS).
      diagnostics: report how far training and averaging moved the models, and the cosine between
        the two moves, see `metrics.update_norms`.
      gossip: averages, start and consensus.

    Raises ValueError for settings out of range, before anything is traced.
    """
    check_choice('round_order', round_order, ROUND_ORDERS)
    check_range('gossip_steps', gossip_steps, least=1)
    train = local_training(model, training, gossip.chunk)
    first = first_weights(model) if diagnostics else ()

    def average(key: Array, params: PyTree, round: Round) -> PyTree:
        """x_i <- sum_j W_ij Q(x_j), gossip_steps times."""
        rows = gossip.rows(round)
        for k_step in jax.random.split(key, gossip_steps):
            params = round.exchange.mean(k_step, round, rows, params)
        return params

    def step(key: Array, state: State, round: Round) -> Stepped:
        k_train, k_sent = jax.random.split(key)
        (previous,), clients, k = state, round.clients, round.number
        if round_order == 'train_first':
            trained, losses = train(k_train, previous, clients, k)
            new = average(k_sent, trained, round)
            moves = (previous, trained), (trained, new)
        elif round_order == 'average_first':
            averaged = average(k_sent, previous, round)
            new, losses = train(k_train, averaged, clients, k)
            moves = (averaged, new), (previous, averaged)
        else:
            averaged = average(k_sent, previous, round)
            trained, losses = train(k_train, previous, clients, k)
            new = jax.tree.map(lambda m, z, x: m + (z - x), averaged, trained, previous)
            moves = (previous, trained), (previous, averaged)
        counted = round.graph.active if round.judged is None else round.graph.active & round.judged
        norms = update_norms(*moves, counted, first) if diagnostics else {}
        return Stepped((new,), losses, norms)

    overlaps = round_order == 'parallel'
    return gossip_method(model, gossip, [training], step, overlaps=overlaps)
