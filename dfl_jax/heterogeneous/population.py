"""Clients of different architectures, one stacked pytree each, and the participants of a round.

In a round only the members of its aggregators take part, each at a position, the H K places of the
graph's `members`. Every architecture keeps room for as many participants, S, as a round could have,
so that shapes stay what they are from round to round; what is computed for an empty one is
dropped.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dfl_jax.base import Array, Graph, PyTree
from dfl_jax.execution import mesh_size
from dfl_jax.initialisation import initial_params
from dfl_jax.models import Model
from dfl_jax.setting_error import InputError
from dfl_jax.tasks import Task

Stacked = dict[str, PyTree]  # by architecture


class Population(NamedTuple):
    """The architectures of a network, and the clients that have each of them."""

    models: Mapping[str, Model]  # by architecture
    clients: Mapping[str, np.ndarray]  # numbers of an architecture's clients, [M_a] ascending

    @property
    def size(self) -> int:
        """M, the number of clients."""
        return sum(map(len, self.clients.values()))

    @property
    def classes(self) -> int:
        return next(iter(self.models.values())).classes

    @property
    def task(self) -> Task:
        return next(iter(self.models.values())).task


class Participants(NamedTuple):
    """A round's group of participants of one architecture; only those `present` mean anything."""

    present: Array  # [S] bool, those present first, or dealt to the devices in turns
    position: Array  # [S] int32, in [0, H K)
    client: Array  # [S] int32, in [0, M)
    row: Array  # [S] int32, of the stacked parameters, in [0, M_a)


Groups = dict[str, Participants]  # by architecture


def populate(models: Mapping[str, Model], assigned: Sequence[str]) -> Population:
    """The population in which client i has architecture `assigned[i]`.

    Raises ValueError for an architecture that no client has or that is unknown, and for models that
    differ in inputs, classes or task, or whose task has no classes.
    """
    names = np.array(assigned)
    for name in models:
        if not (names == name).any():
            raise InputError(
                f'architecture {name} has no client among {len(names)}; leave it out, change its '
                'ratio or raise `clients`'
            )
    for i, name in enumerate(assigned):
        if name not in models:
            raise ValueError(f'client {i} has the unknown architecture {name}')
    shapes = {(model.input_shape, model.classes) for model in models.values()}
    if len(shapes) > 1:
        raise ValueError(f'the models of a population differ in inputs or classes: {shapes}')
    for model in models.values():
        if not model.task.of_classes:
            raise ValueError(
                f'clients of different architectures learn classes from each other, not '
                f'{model.task.name}; take a gradient method, such as dfedavg'
            )
    if len({model.task for model in models.values()}) > 1:
        names_of = ', '.join(model.task.name for model in models.values())
        raise ValueError(f'the models of a population learn different tasks: {names_of}')
    return Population(dict(models), {name: np.flatnonzero(names == name) for name in models})


def assign_architectures(
    architectures: Sequence[str], clients: int, ratios: Sequence[float]
) -> list[str]:
    """Architectures of clients 0 to M - 1, in the given ratios and as evenly interleaved as can be.

    With equal ratios they take turns. Raises ValueError for ratios that are not positive or not as
    many as architectures.
    """
    if len(ratios) != len(architectures):
        raise ValueError(f'{len(ratios)} ratios for {len(architectures)} architectures')
    if not all(ratio > 0 for ratio in ratios):
        raise ValueError(f'ratios have to be positive, got {", ".join(map(str, ratios))}')
    shares = np.array(ratios) / sum(ratios)
    due, assigned = np.zeros(len(shares)), []
    for _ in range(clients):
        due += shares
        most = int(np.argmax(due.round(9)))  # the first where several are due alike
        due[most] -= 1
        assigned.append(architectures[most])
    return assigned


def initial_stacked(key: Array, population: Population, init: str = 'same') -> Stacked:
    """Initial weights, leaves [M_a, ...] of each architecture: one draw for all its clients
    (`same`) or a draw for each (`independent`)."""
    return {
        name: initial_params(
            jax.random.fold_in(key, number), model, len(population.clients[name]), init
        )
        for number, (name, model) in enumerate(population.models.items())
    }


def assign_participants(population: Population, graph: Graph) -> Groups:
    """A round's participants by architecture; a client is a member of one aggregator at most.

    They are dealt to the devices of the mesh in turns, one architecture where the last ended, so
    that each device has as many models to train as the others, or one fewer.
    """
    devices = mesh_size()
    members = graph.members.ravel()  # [H K]
    delivered = (graph.mask & graph.active[:, None]).ravel()
    participants = {}
    dealt = jnp.int32(0)
    for name, clients in population.clients.items():
        row_of = np.full(population.size, len(clients), np.int32)
        row_of[clients] = np.arange(len(clients))
        row = jnp.asarray(row_of)[members]
        here = delivered & (row < len(clients))
        places = min(len(clients), len(members))
        order = jnp.argsort(~here, stable=True)[:places].astype(jnp.int32)
        position, present = order, here[order]
        if devices > 1:
            fill = (0, -places % devices)
            turns = np.arange(places + fill[1]).reshape(-1, devices).T.ravel()  # [S]
            position, present = (
                jnp.roll(jnp.pad(a, fill), dealt % devices)[turns] for a in (position, present)
            )
            dealt += present.sum()
        row = jnp.where(present, row[position], 0)
        client = jnp.where(present, members[position], int(clients[0]))
        participants[name] = Participants(present, position, client, row)
    return participants


def gather(stacked: Stacked, participants: Groups) -> Stacked:
    """The participants' entries of stacked leaves [M_a, ...], as leaves [S, ...]."""
    return {
        name: jax.tree.map(lambda leaf, rows=group.row: leaf[rows], stacked[name])
        for name, group in participants.items()
    }


def scatter(stacked: Stacked, new: Stacked, participants: Groups) -> Stacked:
    """Leaves [M_a, ...] with the participants' entries replaced by `new`, leaves [S, ...] of any
    floating type."""

    def put(old: Array, fresh: Array, group: Participants) -> Array:
        rows = jnp.where(group.present, group.row, len(old))  # the others are dropped
        return old.at[rows].set(fresh.astype(old.dtype), mode='drop')

    return {
        name: jax.tree.map(lambda old, fresh, g=group: put(old, fresh, g), stacked[name], new[name])
        for name, group in participants.items()
    }


def by_position(values: dict[str, Array], participants: Groups, graph: Graph) -> Array:
    """Values [S, ...] of the participants of every architecture, at their positions: [H, K, ...].

    Positions without a participant hold zeros.
    """
    aggregators, members = graph.members.shape
    example = next(iter(values.values()))
    table = jnp.zeros((aggregators * members, *example.shape[1:]), example.dtype)
    for name, group in participants.items():
        places = jnp.where(group.present, group.position, len(table))  # the others are dropped
        table = table.at[places].set(values[name], mode='drop')
    return table.reshape(aggregators, members, *table.shape[1:])


def by_client(values: dict[str, Array], population: Population) -> Array:
    """Values [M_a, ...] of every architecture in the order of the clients, [M, ...]."""
    order = np.argsort(np.concatenate(list(population.clients.values())))
    return jnp.concatenate([values[name] for name in population.clients])[order]
