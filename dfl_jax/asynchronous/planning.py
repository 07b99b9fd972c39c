"""The plan of a run without rounds, and the method that carries it out."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

from dfl_jax.algorithms.requirements import static
from dfl_jax.asynchronous.ad_psgd import ad_psgd, exchanges
from dfl_jax.asynchronous.events import Event, Network, recorded
from dfl_jax.asynchronous.gossip_learning import gossip_learning, pushes
from dfl_jax.asynchronous.slots import Slots, pack
from dfl_jax.asynchronous.swift import broadcasts, swift
from dfl_jax.base import Algorithm, Graph
from dfl_jax.checks import check_choice, check_range
from dfl_jax.models import Model
from dfl_jax.settings import assemble
from dfl_jax.timing import World


class Method(NamedTuple):
    """A method without rounds."""

    factory: Callable[..., Algorithm]
    events: Callable[[Network], Iterator[Event]]
    pairs: bool  # an event has two members, at most; else the client and all its neighbours


METHODS = {
    'ad_psgd': Method(ad_psgd, exchanges, pairs=True),
    'gossip_learning': Method(gossip_learning, pushes, pairs=True),
    'swift': Method(swift, broadcasts, pairs=False),
}


@dataclasses.dataclass(frozen=True)
class Plan:
    """What happens when: the events of a run, and their slots."""

    method: str
    events: list[Event]
    slots: Slots  # the schedule for `simulate.run`
    places: int  # R, past models that the device keeps
    per_interval: int  # slots of an interval: `eval_every`
    ends: np.ndarray  # [intervals] simulated seconds at which intervals end

    @property
    def updates(self) -> np.ndarray:
        """Local updates until the end of each interval, [intervals]."""
        return np.searchsorted([event.time for event in self.events], self.ends, side='right')

    def staleness(self) -> np.ndarray:
        """By how many changes each model that an update reads is older than its client's own of
        that time, [E, K]; -1 where an event has fewer members."""
        changes: dict[int, int] = {}
        rows = np.full((len(self.events), self.slots.members.shape[2]), -1)
        for row, event in zip(rows, self.events, strict=True):
            members = zip(event.members, event.versions, strict=True)
            row[: len(event.members)] = [changes.get(client, 0) - v for client, v in members]
            for client in event.members[: event.written]:
                changes[client] = changes.get(client, 0) + 1
        return rows


def plan(
    method: str,
    graphs: Graph,
    world: World,
    *,
    work: np.ndarray | float,
    bits: int,
    seconds: float | None = None,
    updates: int | None = None,
    intervals: int = 1,
    loss: float = 0.0,
    mixing: str = 'metropolis',
    sizes: np.ndarray | None = None,
    seed: int = 0,
    width: int | None = None,
) -> Plan:
    """Simulates a network of clients that do not wait for rounds.

    Args:
      method: one of METHODS.
      graphs: a static schedule, whose links are there all the time.
      world: speed, links, latency and online times of the clients.
      work: operations of a local update, one number or [M].
      bits: of a message, e.g. 32 times the weights of a model.
      seconds: simulated ones, or
      updates: local updates of all clients together.
      intervals: of equal length, at whose ends the models are evaluated.
      loss: probability that a message is lost.
      mixing: the weights of `swift`, where the graph has none.
      sizes: [M] samples of each client, for mixing by `size`.
      seed: of neighbours, losses and phases.
      width: events of a slot, at most; None for a good number.

    Raises ValueError, one line, for what cannot be simulated.

    >>> from dfl_jax import topology
    >>> from dfl_jax.timing import world
    >>> ring = topology.schedule('ring', 8, 1, seed=0, static=True)
    >>> len(plan('swift', ring, world(8), work=1e9, bits=10**6, updates=80).events)
    80
    """
    check_choice('method', method, METHODS)
    check_range('intervals', intervals, least=1)
    static(method)(graphs, np.zeros(0))
    graph = jax.tree.map(lambda a: np.asarray(a)[0], graphs)
    network = Network(
        graph, world, work=work, bits=bits, loss=loss, mixing=mixing, sizes=sizes, seed=seed
    )
    events, end = recorded(METHODS[method].events(network), seconds, updates)
    ends = np.linspace(0, end, intervals + 1)[1:]
    columns = 2 if METHODS[method].pairs else 1 + max(map(len, network.hears))
    slots, places, per_interval = pack(events, network.clients, ends, columns, width)
    return Plan(method, events, slots, places, per_interval, ends)


def make(plan: Plan, model: Model, **settings: Any) -> Algorithm:
    """The method of a plan, with some of its settings given by name, flat as in `algorithms.make`.

    Raises TypeError for a setting that the method does not have.
    """
    factory = METHODS[plan.method].factory
    return factory(model, places=plan.places, **assemble(factory, settings))
