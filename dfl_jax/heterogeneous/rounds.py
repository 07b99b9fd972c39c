"""What the methods share whose clients meet at an aggregator and may have any architecture.

Their graphs are `topology.meetings`: the members of an aggregator are itself and its senders, and a
client that is no member of any does nothing in the round. A state holds `params` by architecture,
leaves [M_a, ...].
"""

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from dfl_jax.base import Algorithm, Array, Clients, Graph, Info, PyTree, Round, State
from dfl_jax.checks import check_choice
from dfl_jax.exchange import COMBINED, SENT, Exchange
from dfl_jax.exchange.aggregation import weighted_sum
from dfl_jax.execution import map_in_chunks, map_present
from dfl_jax.heterogeneous.mutual import Mutual
from dfl_jax.heterogeneous.mutual_flops import local_flops, meeting_flops
from dfl_jax.heterogeneous.population import (
    Groups,
    Participants,
    Population,
    Stacked,
    assign_participants,
    by_client,
    by_position,
    gather,
    initial_stacked,
    scatter,
)
from dfl_jax.initialisation import INITS
from dfl_jax.metrics import consensus_model
from dfl_jax.training import LocalTraining, client_training

TRAINING = LocalTraining(  # DFML, A.2
    lr=0.01, momentum=0.9, weight_decay=5e-4, batch_size=64, supervision='wsm'
)


class MeetingState(NamedTuple):
    """The state of methods in which every client holds one model and nothing else."""

    params: Stacked  # leaves [M_a, ...]


def meeting_rounds(
    population: Population,
    settings: LocalTraining,
    combine: Callable[[Array, Stacked, Groups, Round], Stacked],
    *,
    init: str = 'same',
    chunk: int | None = None,
    aggregators_train: bool = True,
    back: bool = True,
    shared: bool = False,
    mutual: Mutual | None = None,
) -> Algorithm:
    """A method in which participants train and aggregators combine what they send.

    Args:
      population: the clients and their networks.
      settings: of the local training.
      combine: (key, models, participants, round) -> the models that participants go on with, both
        leaves [S, ...].
      init: `same` initial weights in an architecture, or `independent`.
      chunk: models worked on at once; None for one on a CPU, elsewhere what memory holds.
      aggregators_train: whether aggregators train on their own data before, as their senders do.
      back: whether models travel back to the senders, who wait for them.
      mutual: how models teach each other while they are combined, where `combine` does not average
        them.
      shared: whether all clients of an architecture go on with its first participant's model, as
        if a server handed it out before their next training.

    Raises ValueError for an unknown init.
    """
    check_choice('init', init, INITS)
    local = participants_training(population, settings, chunk)

    def init_state(key: Array, clients: Clients) -> MeetingState:
        return MeetingState(initial_stacked(key, population, init))

    def step(key: Array, state: MeetingState, round: Round) -> tuple[MeetingState, Info]:
        k_train, k_combine = jax.random.split(key)
        k_to, k_back = jax.random.split(jax.random.fold_in(key, SENT))
        (params,), graph, clients = state, round.graph, round.clients
        participants = assign_participants(population, graph)
        training = participants if aggregators_train else without_aggregators(participants, graph)
        own, losses = local(k_train, gather(params, participants), training, clients, round.number)
        models = send_models(k_to, round, population, own, participants)
        k_lies = jax.random.fold_in(k_to, COMBINED)
        models = heard_models(k_lies, round, models, participants, averaged=mutual is None)
        models = combine(k_combine, models, participants, round)
        if back:
            models = send_models(k_back, round, population, models, participants, back=True)
        if mutual is not None:
            models = _without_lies(round, models, own, participants)
        sizes = round.sizes
        flops = local_flops(population, settings, training, sizes)
        combining = jnp.zeros_like(flops)
        if mutual is not None:
            heard = graph.active & (aggregators_train | graph.mask[:, 1:].any(axis=1))
            learning = assign_participants(population, graph._replace(active=heard))
            combining = meeting_flops(population, mutual, learning, graph, sizes)
        info = Info(
            losses_of_round(models, losses, training, graph, population.size),
            flops=flops + combining,
            combining_flops=combining,
        )
        replace = to_everyone if shared else scatter
        return MeetingState(replace(params, models, participants)), info

    return meeting_method(population, init_state, step, chunk)._replace(replies=back)


def meeting_method(
    population: Population,
    init: Callable[[Array, Clients], State],
    step: Callable[[Array, State, Round], tuple[State, Info]],
    chunk: int | None,
    evaluated: str = 'params',
) -> Algorithm:
    """The `Algorithm` of a state that holds models by architecture, leaves [M_a, ...].

    evaluated: the field of the models that are evaluated, and whose mean is the consensus.
    """
    models = attrgetter(evaluated)
    return Algorithm(
        init,
        step,
        lambda state, x, weights=None: predictions(population, models(state), x, chunk, weights),
        lambda state, weights=None: consensus_of_architectures(population, models(state), weights),
        predict_own=lambda state, x: own_predictions(population, models(state), x, chunk),
        clients_of=population.clients,
        task=population.task,
    )


def without_aggregators(participants: Groups, graph: Graph) -> Groups:
    """The participants that are senders; aggregators count as not present."""
    members = graph.members.shape[1]
    return {
        name: group._replace(present=group.present & (group.position % members != 0))
        for name, group in participants.items()
    }


def to_everyone(stacked: Stacked, models: Stacked, participants: Groups) -> Stacked:
    """Leaves [M_a, ...] that all hold the model of their architecture's first participant, if any,
    of those on the first device that has one."""
    return {
        name: jax.tree.map(
            lambda old, new, g=group: jnp.where(
                g.present.any(), new[jnp.argmax(g.present)].astype(old.dtype), old
            ),
            stacked[name],
            models[name],
        )
        for name, group in participants.items()
    }


def architecture_means(
    models: Stacked, participants: Groups, graph: Graph, weights: Array
) -> Stacked:
    """For each participant the weighted mean of its architecture at its aggregator (DFML Eq. 5).

    models, and what is returned: leaves [S, ...]; weights: [M] of the clients.
    """
    aggregators, members = graph.members.shape
    means = {}
    for name, group in participants.items():
        weight = jnp.where(group.present, weights[group.client], 0)
        home = group.position // members
        shares = jax.nn.one_hot(home, aggregators, dtype=weight.dtype) * weight[:, None]  # [S, H]
        total = shares.sum(axis=0, keepdims=True)
        shares = shares / jnp.maximum(total, jnp.finfo(weight.dtype).tiny)
        known = total[0, home] > 0  # else nobody there has samples yet, and all keep their own

        def mean(leaf: Array, shares=shares, home=home, known=known) -> Array:
            of_home = jnp.tensordot(shares.T, leaf, 1, precision='highest')[home]
            return jnp.where(known.reshape(-1, *[1] * (leaf.ndim - 1)), of_home, leaf)

        means[name] = jax.tree.map(mean, models[name])
    return means


def participants_training(
    population: Population, settings: LocalTraining, chunk: int | None
) -> Callable[..., tuple[Stacked, dict[str, Array]]]:
    """train(key, models, participants, clients, round) -> (models, losses), leaves [S, ...] and
    [S]."""

    def train(
        key: Array, models: Stacked, participants: Groups, clients: Clients, round: Array
    ) -> tuple[Stacked, dict[str, Array]]:
        keys = jax.random.split(key, len(clients.x))
        new, losses = {}, {}
        for name, group in participants.items():
            train_one = client_training(population.models[name], settings)

            def one(args, train_one=train_one):
                params, client = args
                data = jax.tree.map(lambda a: jnp.asarray(a)[client], clients)
                return train_one(keys[client], params, data, round)

            new[name], losses[name] = map_present(
                one,
                lambda args: (args[0], jnp.zeros((), clients.x.dtype)),
                (models[name], group.client),
                group.present,
                chunk,
                settings.bytes_of_client(population.models[name], clients.y.shape[1]),
            )
        return new, losses

    return train


def losses_of_round(
    models: Stacked, losses: dict[str, Array], participants: Groups, graph: Graph, clients: int
) -> Array:
    """Each client's training loss, [M], not a number for a model whose weights are not finite.

    Those that took no part have the mean of the participants whose loss is finite, so that nobody
    else diverges with one of them.

    models, losses: of the participants by architecture, leaves [S, ...] and [S].
    """

    def of_model(model: PyTree, loss: Array) -> Array:
        finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(model)]).all()
        return jnp.where(finite, loss, jnp.nan)

    each = {name: jax.vmap(of_model)(models[name], losses[name]) for name in participants}
    values = by_position(each, participants, graph).ravel()
    present = {name: group.present for name, group in participants.items()}
    trained = by_position(present, participants, graph).ravel()
    finite = trained & jnp.isfinite(values)
    mean = jnp.sum(jnp.where(finite, values, 0)) / jnp.maximum(finite.sum(), 1)
    members = jnp.where(trained, graph.members.ravel(), clients)  # the others are dropped
    return jnp.full(clients, mean, values.dtype).at[members].set(values, mode='drop')


def send_models(
    key: Array,
    round: Round,
    population: Population,
    models: Stacked,
    participants: Groups,
    back: bool = False,
) -> Stacked:
    """The models of senders as their aggregators decode them, or `back` as the senders do; leaves
    [S, ...].

    A client sends and receives models of its own architecture, which are counted by it. What an
    aggregator has of its own is not sent.
    """
    graph, exchange = round.graph, round.exchange
    delivered = (graph.mask[:, 1:] & graph.active[:, None]).astype(jnp.int32)  # [H, K - 1]
    senders = graph.members[:, 1:]
    places = jnp.broadcast_to(graph.members[:, :1], senders.shape) if back else senders
    sent = {}
    for number, (name, clients) in enumerate(population.clients.items()):
        has = jnp.zeros(population.size, jnp.int32).at[clients].set(1)
        counts = jnp.zeros_like(has).at[places].add(delivered * has[senders])
        exchange.count(f'weights/{name}', counts, exchange.bits(population.models[name].shapes))
        k_coded = jax.random.fold_in(key, number)
        group, members = participants[name], graph.members.shape[1]
        sent[name] = _decoded(k_coded, exchange, models[name], group, members)
    return sent


def heard_models(
    key: Array, round: Round, models: Stacked, participants: Groups, *, averaged: bool
) -> Stacked:
    """The models of participants as they are heard at their meetings, leaves [S, ...].

    A sender that attacks lies to an honest aggregator. An aggregator that attacks lies where its
    model is `averaged` with those of honest senders, whose messages it hears as they are. An attack
    is on the members of one architecture at one aggregator: it knows the aggregator's model if that
    is of the architecture, else the mean of the honest ones, and weighs them by their samples.
    """
    graph, exchange = round.graph, round.exchange
    if exchange.attack is None:
        return models
    members, sizes = graph.members, round.sizes[graph.members]
    attackers = jnp.asarray(exchange.attack.attackers)
    honest = ~attackers[members] & graph.mask & graph.active[:, None]
    hearers = jnp.broadcast_to(members[:, :1], members.shape)
    if averaged:
        first_honest = jnp.argmax(honest, axis=1, keepdims=True)  # itself where nobody is
        hearers = hearers.at[:, :1].set(jnp.take_along_axis(members, first_honest, axis=1))
    heard = {}
    for number, (name, group) in enumerate(participants.items()):
        count = len(group.position)
        rows = by_position({name: 1 + jnp.arange(count)}, {name: group}, graph)  # [H, K]
        rows = jnp.where(rows > 0, rows - 1, count)  # that where there is none of them

        def at_meeting(told, inputs, sent=models[name], count=count):
            key, rows, members, hearers, honest, sizes = inputs
            here = rows < count
            sent = jax.tree.map(
                lambda a: jnp.take(a, rows, axis=0, mode='fill', fill_value=0), sent
            )
            rank = here * (1 + honest + 2 * (jnp.arange(len(rows)) == 0))
            known = here & (rank == rank.max())
            own = weighted_sum(known / jnp.maximum(known.sum(), 1), sent)
            samples = (here * sizes).sum()
            weights = here * sizes / jnp.maximum(samples, 1)
            met = here & (samples > 0) if averaged else here  # else there is no mean, and no lie
            lies = exchange.heard(key, sent, members, met, weights, own, hearers)
            return jax.tree.map(lambda t, x: t.at[rows].set(x, mode='drop'), told, lies), None

        keys = jax.random.split(jax.random.fold_in(key, number), len(rows))
        of_meetings = keys, rows, members, hearers, honest, sizes
        heard[name], _ = lax.scan(at_meeting, models[name], of_meetings)
    return heard


def _without_lies(round: Round, models: Stacked, own: Stacked, participants: Groups) -> Stacked:
    """The models that were taught, leaves [S, ...], but the `own` ones of senders that sent a lie:
    what became of a lie is nobody's model."""
    graph, attack = round.graph, round.exchange.attack
    if attack is None:
        return models
    attackers, kept = jnp.asarray(attack.attackers), {}
    for name, group in participants.items():
        aggregator = graph.members[group.position // graph.members.shape[1], 0]
        lied = attackers[group.client] & ~attackers[aggregator]
        kept[name] = jax.vmap(optax.tree.where)(lied, own[name], models[name])
    return kept


def _decoded(
    key: Array, exchange: Exchange, models: PyTree, group: Participants, members: int
) -> PyTree:
    """The models [S, ...] of a group, those of its senders coded; members: K."""
    if exchange.codec is None:
        return models
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, group.position)
    coded = jax.vmap(exchange.decoded)(keys, models)
    sends = group.position % members != 0
    return jax.tree.map(
        lambda c, m: jnp.where(sends.reshape(-1, *[1] * (m.ndim - 1)), c, m), coded, models
    )


def consensus_of_architectures(
    population: Population, stacked: Stacked, weights: Array | None = None
) -> Stacked:
    """The mean model of every architecture; weights [M] of the clients, None for the plain mean."""
    return {
        name: consensus_model(stacked[name], None if weights is None else weights[clients])
        for name, clients in population.clients.items()
    }


def predictions(
    population: Population,
    stacked: Stacked,
    x: Array,
    chunk: int | None,
    weights: Array | None = None,
) -> dict[str, Array]:
    """Logits of the models [M_a, ...] on x [B, ...], and of their consensus models; weights: [M].

    'client' [M, B, C]; 'consensus' [B, C] of the largest architecture's consensus model; where
    there are several, 'client/ARCHITECTURE' [M_a, B, C] and 'consensus/ARCHITECTURE' [B, C].
    """
    models = population.models
    each = {  # [M_a, B, C]
        name: map_in_chunks(lambda params, m=model: m.apply(params, x), stacked[name], chunk)
        for name, model in models.items()
    }
    means = consensus_of_architectures(population, stacked, weights)
    consensus = {name: models[name].apply(means[name], x) for name in models}
    largest = max(models, key=lambda name: models[name].size)
    logits = {'client': by_client(each, population), 'consensus': consensus[largest]}
    if len(models) > 1:
        logits |= {f'client/{name}': z for name, z in each.items()}
        logits |= {f'consensus/{name}': z for name, z in consensus.items()}
    return logits


def own_predictions(population: Population, stacked: Stacked, x: Array, chunk: int | None) -> Array:
    """Logits [M, B, C] of every client's model on its own samples, x [M, B, ...]."""
    each = {
        name: map_in_chunks(
            lambda one, apply=model.apply: apply(*one),
            (stacked[name], x[population.clients[name]]),
            chunk,
        )
        for name, model in population.models.items()
    }
    return by_client(each, population)
