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
import jax.numpy as jnp
import optax

from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_method import State, Stepped, gossip_method
from dfl_jax.base import Algorithm, Array, PyTree, Round
from dfl_jax.checks import check_choice, check_range
from dfl_jax.exchange import shared_noise
from dfl_jax.metrics import update_norms
from dfl_jax.models import Model, first_weights
from dfl_jax.setting_error import SettingError
from dfl_jax.training import Lasting, LocalTraining, local_training, optimiser_of

ROUND_ORDERS = ('train_first', 'average_first', 'parallel')
SHARED = 2**31 - 1  # stream of a round's key for training, which is split into small numbers, too


def check_shared_noise(training: LocalTraining, correlated: float) -> None:
    """Raises SettingError where noise that neighbours share has no place."""
    check_range('dp_correlated_noise', correlated, least=0)
    if not correlated:
        return

    def fault(text: str, remedy: str) -> SettingError:
        return SettingError('dp_correlated_noise', correlated, text, remedy, colon=False)

    if training.dp_clip is None:
        raise fault('is a multiple of `dp_clip`', 'set it')
    if training.private_examples and training.local_steps != 1:
        text = 'is drawn once a round, for one minibatch'
        raise fault(text, 'set `local_steps=1`, or `dp_unit=client`')


def gossip_sgd(
    model: Model,
    *,
    training: LocalTraining,
    round_order: str = 'train_first',
    gossip_steps: int = 1,
    lasting_optimizer: bool = False,
    dp_correlated_noise: float = 0.0,
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
      lasting_optimizer: the state of the optimiser, such as its momentum, lasts from round to
        round, in place of starting afresh.
      dp_correlated_noise: beside the independent noise of `dp_noise_multiplier`, noise that the two
        ends of every link share with opposite signs, so that it cancels in an average (DECOR): its
        standard deviation over dp_clip, for each link.
      diagnostics: report how far training and averaging moved the models, and the cosine between
        the two moves, see `metrics.update_norms`.
      gossip: averages, start and consensus.

    Raises ValueError for settings out of range, before anything is traced.
    """
    check_choice('round_order', round_order, ROUND_ORDERS)
    check_range('gossip_steps', gossip_steps, least=1)
    check_shared_noise(training, dp_correlated_noise)
    optimiser = optimiser_of(training, jnp.float32(0))
    if lasting_optimizer and not jax.tree.leaves(jax.eval_shape(optimiser.init, model.shapes)):
        remedy = 'set `momentum`' if training.optimizer == 'sgd' else 'leave it out'
        text = f'the optimizer {training.optimizer} keeps nothing that could last'
        raise SettingError('lasting_optimizer', True, text, remedy)
    train = local_training(model, training, gossip.chunk)
    first = first_weights(model) if diagnostics else ()

    def average(key: Array, params: PyTree, round: Round) -> PyTree:
        """x_i <- sum_j W_ij Q(x_j), gossip_steps times."""
        rows = gossip.rows(round)
        for k_step in jax.random.split(key, gossip_steps):
            params = round.exchange.mean(k_step, round, rows, params)
        return params

    def shared(key: Array, params: PyTree, round: Round) -> PyTree:
        """The noise that clients share, on a mean of clipped gradients or on a clipped change."""
        noise = shared_noise(jax.random.fold_in(key, SHARED), round.graph, params)
        noise = optax.tree.scale(dp_correlated_noise * (training.dp_clip or 0), noise)
        if training.dp_unit == 'client':
            return noise
        size = jnp.minimum(training.batch_size, round.sizes)
        return jax.tree.map(lambda n: n / size.reshape(-1, *[1] * (n.ndim - 1)), noise)

    def local(
        key: Array, params: PyTree, moments: list[PyTree], round: Round
    ) -> tuple[PyTree, list[PyTree], Array]:
        start = Lasting(params, *moments) if moments else params
        noise = shared(key, params, round) if dp_correlated_noise else None
        of_steps = noise if training.private_examples else None
        trained, losses = train(key, start, round.clients, round.number, None, of_steps)
        params, *new = trained if moments else (trained,)
        if noise is not None and of_steps is None:
            params = optax.tree.add(params, noise)
        return params, new, losses

    def step(key: Array, state: State | Lasting, round: Round) -> Stepped:
        k_train, k_sent = jax.random.split(key)
        previous, *moments = state

        if round_order == 'train_first':
            trained, moments, losses = local(k_train, previous, moments, round)
            new = average(k_sent, trained, round)
            moves = (previous, trained), (trained, new)
        elif round_order == 'average_first':
            averaged = average(k_sent, previous, round)
            new, moments, losses = local(k_train, averaged, moments, round)
            moves = (averaged, new), (previous, averaged)
        else:
            averaged = average(k_sent, previous, round)
            trained, moments, losses = local(k_train, previous, moments, round)
            new = jax.tree.map(lambda m, z, x: m + (z - x), averaged, trained, previous)
            moves = (previous, trained), (previous, averaged)
        counted = round.graph.active if round.judged is None else round.graph.active & round.judged
        norms = update_norms(*moves, counted, first) if diagnostics else {}
        return Stepped((new, *moments), losses, norms)

    def begin(params: PyTree) -> Lasting:
        return Lasting(params, jax.vmap(optimiser.init)(params))

    start, overlaps = begin if lasting_optimizer else State, round_order == 'parallel'
    return gossip_method(model, gossip, [training], step, start, overlaps=overlaps, private=True)
