"""Decentralized FML of DFML, A.3.4: heterogeneous models that stay, and memes that travel.

Every client has its own model and a meme, a model of one architecture that all share. In a round
the participants' two models teach each other on the participant's own data (Shen et al. 2020); the
memes alone are averaged at the aggregator.
"""

import jax
import jax.numpy as jnp
import numpy as np

from dfl_jax.base import Algorithm, Array, Clients, Graph, Info, Mean, Round
from dfl_jax.checks import check_choice, check_range
from dfl_jax.exchange import COMBINED, SENT
from dfl_jax.heterogeneous import (
    TRAINING,
    Balance,
    MeetingState,
    Mutual,
    Population,
    architecture_means,
    assign_participants,
    gather,
    heard_models,
    initial_stacked,
    losses_of_round,
    meeting_flops,
    meeting_method,
    mutual_learning,
    predictions,
    scatter,
    send_models,
)
from dfl_jax.initialisation import INITS
from dfl_jax.training import LocalTraining

MEME = 'meme'  # its models are one more architecture of the state, leaves [M, ...]


def dec_fml(
    population: Population,
    *,
    meme: str | None = None,
    alpha: float = 0.5,
    training: LocalTraining = TRAINING,
    init: str = 'same',
    chunk: int | None = None,
) -> Algorithm:
    """Decentralized FML; the defaults are those of DFML, A.2, where it names one.

    Args:
      meme: architecture of the meme models that clients exchange, one of the population's; None
        for the median in size.
      alpha: weight of the other model's predictions in the loss of each of the two models; the
        labels have 1 - alpha.
      training: of the two models of a client on its own data.
      init: `same` initial weights in an architecture, or `independent`.
      chunk: models worked on at once; None for one on a CPU, elsewhere what memory holds.

    Raises ValueError for training out of range, before anything is traced.
    """
    check_choice('init', init, INITS)
    if training.local_epochs is None:
        raise ValueError(
            f'dec_fml trains by epochs; set local_epochs, not local_steps={training.local_steps}'
        )
    check_range('alpha', alpha, least=0, most=1)
    by_size = sorted(population.models, key=lambda name: population.models[name].size)
    meme = meme or by_size[len(by_size) // 2]
    check_choice('meme', meme, by_size)
    # Client i's meme is number M + i of a population of twice as many.
    count = population.size
    memes = Population({MEME: population.models[meme]}, {MEME: np.arange(count)})
    pairs = Population(
        {**population.models, **memes.models},
        {**population.clients, MEME: count + memes.clients[MEME]},
    )
    mutual = Mutual(training.local_epochs, by_size=False)
    learn = mutual_learning(pairs, training, mutual, chunk)

    def init_state(key: Array, clients: Clients) -> MeetingState:
        return MeetingState(initial_stacked(key, pairs, init))

    def step(key: Array, state: MeetingState, round: Round) -> tuple[MeetingState, Info]:
        (params,), graph, clients = state, round.graph, round.clients
        own = graph.members.ravel()
        placed_pairs = Graph(
            jnp.stack([own, own + count], axis=1),
            jnp.broadcast_to(graph.mask.reshape(-1, 1), (len(own), 2)),
            (graph.mask & graph.active[:, None]).ravel(),
        )
        participants = assign_participants(pairs, placed_pairs)
        weight = jnp.asarray(alpha, clients.x.dtype)
        balance = Balance(1 - weight, weight)
        models, losses = learn(
            *(key, gather(params, participants), participants),
            *(placed_pairs, clients, round.number, balance),
        )
        params = scatter(params, models, participants)

        at_meeting = assign_participants(memes, graph)
        sizes = round.sizes.astype(clients.x.dtype)
        k_to, k_back = jax.random.split(jax.random.fold_in(key, SENT))
        met = gather({MEME: params[MEME]}, at_meeting)
        met = send_models(k_to, round, memes, met, at_meeting)
        k_lies = jax.random.fold_in(k_to, COMBINED)
        met = heard_models(k_lies, round, met, at_meeting, averaged=True)
        means = architecture_means(met, at_meeting, graph, sizes)
        means = send_models(k_back, round, memes, means, at_meeting, back=True)
        params |= scatter({MEME: params[MEME]}, means, at_meeting)

        of_clients = {name: participants[name] for name in population.models}
        of_meme = {MEME: participants[MEME]}
        of_memes = losses_of_round(models, losses, of_meme, placed_pairs, 2 * count)
        flops = meeting_flops(pairs, mutual, participants, placed_pairs, round.sizes)
        info = Info(
            losses_of_round(models, losses, of_clients, placed_pairs, count),
            {'meme_loss': Mean(of_memes[count:])},
            flops,
            jnp.zeros_like(flops),
        )
        return MeetingState(params), info

    def predict(state: MeetingState, x: Array, weights: Array | None = None) -> dict[str, Array]:
        of_memes = predictions(memes, state.params, x, chunk)['client']
        return {**method.predict(state, x, weights), MEME: of_memes}

    method = meeting_method(population, init_state, step, chunk)
    return method._replace(predict=predict)
