"""Clients of different architectures: one stacked pytree an architecture, and who sits where.

In a round only the members of its aggregators take part, each at a position, the H K places of the
graph's `members`. Of every architecture as many participants are kept as could be needed, so that
shapes stay what they are from round to round; what is worked out in an empty group goes nowhere.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dfl_jax.base import Array, Graph, PyTree
from dfl_jax.initialisation import INITS
from dfl_jax.models import Model

Stacked = dict[str, PyTree]  # by architecture


class Population(NamedTuple):
    """Who has which network."""

    models: Mapping[str, Model]  # by architecture
    clients: Mapping[
        str, np.ndarray
    ]  # by architecture: the numbers of its clients, [M_a] ascending

    @property
    def size(self) -> int:
        """M, the number of clients."""
        return sum(map(len, self.clients.values()))

    @property
    def classes(self) -> int:
        return next(iter(self.models.values())).classes


class Participants(NamedTuple):
    """The participants of one architecture in a round, in participants S of which some are
    empty."""

    taken: Array  # [S] bool, the taken ones first
    position: Array  # [S] int32, in [0, H K)
    client: Array  # [S] int32, in [0, M)
    row: Array  # [S] int32, of the stacked parameters, in [0, M_a)


def populate(models: Mapping[str, Model], assigned: Sequence[str]) -> Population:
    """The population in which client i has architecture `assigned[i]`.

    Raises ValueError for an architecture that nobody has or that is unknown, and for models that
    differ in inputs or classes.
    """
    names = np.array(assigned)
    for name in models:
        if not (names == name).any():
            raise ValueError(
                f'architecture {name} has no client among {len(names)}; leave it out, change its '
                'ratio or raise --clients'
            )
    for i, name in enumerate(assigned):
        if name not in models:
            raise ValueError(f'client {i} has the unknown architecture {name}')
    shapes = {(model.input_shape, model.classes) for model in models.values()}
    if len(shapes) > 1:
        raise ValueError(f'the models of a population differ in inputs or classes: {shapes}')
    return Population(dict(models), {name: np.flatnonzero(names == name) for name in models})


def dealt(architectures: Sequence[str], clients: int, ratios: Sequence[float]) -> list[str]:
    """Architectures of clients 0 to M - 1, in the given ratios and as evenly interleaved as can be.

    Equal ratios deal them in turn. Raises ValueError for ratios that are not positive or not as
    many as architectures.
    """
    if len(ratios) != len(architectures):
        raise ValueError(f'{len(ratios)} ratios for {len(architectures)} architectures')
    if not all(ratio > 0 for ratio in ratios):
        raise ValueError(f'ratios have to be positive, got {", ".join(map(str, ratios))}')
    shares = np.array(ratios) / sum(ratios)
    due, found = np.zeros(len(shares)), []
    for _ in range(clients):
        due += shares
        most = int(np.argmax(due.round(9)))  # the first where several are due alike
        due[most] -= 1
        found.append(architectures[most])
    return found


def initial_stacked(key: Array, population: Population, init: str = 'same') -> Stacked:
    """Initial weights, of each architecture leaves [M_a, ...]: one draw for all its clients
    (`same`) or a draw for each (`independent`)."""
    if init not in INITS:
        raise ValueError(f'unknown init {init!r}; choose one of {", ".join(INITS)}')
    stacked = {}
    for number, (name, model) in enumerate(population.models.items()):
        k_model, count = jax.random.fold_in(key, number), len(population.clients[name])
        if init == 'same':
            one = model.init(k_model)
            stacked[name] = jax.tree.map(
                lambda leaf, n=count: jnp.broadcast_to(leaf, (n, *leaf.shape)), one
            )
        else:
            stacked[name] = jax.vmap(model.init)(jax.random.split(k_model, count))
    return stacked


def assign_participants(population: Population, graph: Graph) -> dict[str, Participants]:
    """The participants of every architecture in a round; a client sits at one aggregator at
    most."""
    members = graph.members.ravel()  # [H K]
    present = (graph.mask & graph.active[:, None]).ravel()
    participants = {}
    for name, clients in population.clients.items():
        row_of = np.full(population.size, len(clients), np.int32)
        row_of[clients] = np.arange(len(clients))
        row = jnp.asarray(row_of)[members]
        here = present & (row < len(clients))
        position = jnp.argsort(~here, stable=True)[: min(len(clients), len(members))].astype(
            jnp.int32
        )
        taken = here[position]
        row = jnp.where(taken, row[position], 0)
        participants[name] = Participants(
            taken, position, jnp.where(taken, members[position], int(clients[0])), row
        )
    return participants


def gather(stacked: Stacked, participants: dict[str, Participants]) -> Stacked:
    """The participants' entries of stacked leaves [M_a, ...], as leaves [S, ...]."""
    return {
        name: jax.tree.map(lambda leaf, s=group: leaf[s.row], stacked[name])
        for name, group in participants.items()
    }


def scatter(stacked: Stacked, new: Stacked, participants: dict[str, Participants]) -> Stacked:
    """Leaves [M_a, ...] with the participants' entries replaced by `new`, leaves [S, ...]."""

    def put(old: Array, fresh: Array, group: Participants) -> Array:
        rows = jnp.where(
            group.taken, group.row, len(old)
        )  # the others out of bounds, to be dropped
        return old.at[rows].set(fresh, mode='drop')

    return {
        name: jax.tree.map(lambda old, fresh, s=group: put(old, fresh, s), stacked[name], new[name])
        for name, group in participants.items()
    }


def by_position(
    values: dict[str, Array], participants: dict[str, Participants], graph: Graph
) -> Array:
    """Values [S, ...] of the participants of every architecture, at their positions: [H, K, ...].

    Empty positions hold zeros.
    """
    aggregators, members = graph.members.shape
    some = next(iter(values.values()))
    found = jnp.zeros((aggregators * members, *some.shape[1:]), some.dtype)
    for name, group in participants.items():
        found = found.at[jnp.where(group.taken, group.position, len(found))].set(
            values[name], mode='drop'
        )
    return found.reshape(aggregators, members, *found.shape[1:])


def by_client(values: dict[str, Array], population: Population) -> Array:
    """Values [M_a, ...] of every architecture in the order of the clients, [M, ...]."""
    order = np.argsort(np.concatenate(list(population.clients.values())))
    return jnp.concatenate([values[name] for name in population.clients])[order]
