"""Events of a network without rounds: local updates in the order in which they end.

Every method has a generator of its own, an event queue that yields `Event` after `Event`; here is
what they share. Nothing in it knows of models: an event names versions of them. A client's model
has version v after v changes, and what an event reads and writes follows from that.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from dfl_jax.base import Graph
from dfl_jax.checks import check_range
from dfl_jax.exchange import FLOAT_BITS, Codec
from dfl_jax.gossip import mixing_weights
from dfl_jax.setting_error import InputError
from dfl_jax.timing import World

Version = tuple[int, int]  # client, and how often its model had changed
STREAM = 31  # of random numbers, apart from those of topologies and worlds
SAMPLE = 10_000  # events that tell how many there will be
MOST = 5_000_000  # events of a plan: 450 to 560 bytes and 7 to 67 microseconds each (2026-11-25)


class Event(NamedTuple):
    """A local update that ends, and the models that it reads and writes."""

    time: float  # seconds
    members: tuple[int, ...]  # the client that updates, then those whose models it takes in
    versions: tuple[int, ...]  # of each member's model, the one that is read
    updates: int  # local ones that the client has made before
    sent: tuple[int, ...]  # messages of each member that arrived, or parameters
    written: int = 1  # the first so many members get new models
    weights: tuple[float, ...] = ()  # of each member in the average, where it is a fixed one
    fragments: tuple[int, ...] = ()  # of each member's model, the one that is read; none: all of it


class Queue(list):
    """What happens next: a heap of (time, ...)."""

    def push(self, time: float, *what: Any) -> None:
        """Adds what happens then, or nothing where it never does."""
        if time < math.inf:
            heapq.heappush(self, (time, *what))

    def in_order(self) -> Iterator[tuple]:
        """Takes out one after the other, with those that are pushed meanwhile."""
        while self:
            yield heapq.heappop(self)


class Network:
    """What event queues ask for: neighbours, durations, who is online, what is lost.

    Draws come from a stream of the client that they concern, so that they do not depend on the
    order in which events of different clients are worked on.
    """

    def __init__(
        self,
        graph: Graph,
        world: World,
        *,
        flops: np.ndarray | float,
        bits: int,
        number_bits: int = FLOAT_BITS,
        codec: Codec | None = None,
        loss: float = 0.0,
        mixing: str = 'uniform',
        sizes: np.ndarray | None = None,
        seed: int = 0,
    ):
        """The arguments are those of `plan`, but for the graph: one round, members [M, K].

        Raises ValueError, one line, for what cannot be simulated.
        """
        members, mask = np.asarray(graph.members), np.asarray(graph.mask)
        clients = len(members)
        if len(world.speed) != clients:
            raise ValueError(
                f'a world of {len(world.speed)} clients with a graph of {clients}; draw both for '
                'the same clients'
            )
        check_range('loss (a probability)', loss, least=0, below=1)
        check_range('bits of a model', bits, least=1)
        check_range('flops (of a local update)', float(np.min(flops)), above=0)
        self.clients, self.world, self.loss = clients, world, loss
        self.bits, self.number_bits, self.codec = bits, number_bits, codec
        self.hears = [members[i, 1:][mask[i, 1:]].tolist() for i in range(clients)]
        self.heard_by: list[list[int]] = [[] for _ in range(clients)]
        for i, others in enumerate(self.hears):
            for j in others:
                self.heard_by[j].append(i)
        for i in range(clients):
            if not self.hears[i] or not self.heard_by[i]:
                raise InputError(
                    f'client {i} has no neighbour to '
                    f'{"send to" if self.hears[i] else "hear from"}; use another topology or a '
                    'higher `degree`'
                )
        sizes = np.ones(clients, int) if sizes is None else np.asarray(sizes)
        host = Graph(members, mask, np.ones(clients, bool), graph.weights)
        rows = mixing_weights(host, sizes, mixing)
        mask = np.concatenate([np.ones((clients, 1), bool), mask[:, 1:]], axis=1)
        # Of the client itself, then of those that it hears
        self.weights = [tuple(rows[i][mask[i]].tolist()) for i in range(clients)]
        self.update_seconds = (np.broadcast_to(flops, clients) / world.speed).tolist()
        # The versions that the queue of events may still read, of its clients' past models too
        self.versions_in_use: Callable[[], set[Version]] = set
        self._random = [np.random.default_rng([seed, STREAM, i]) for i in range(clients)]

    def phase(self, client: int) -> float:
        """A number in [0, 1), by which the clocks of clients differ."""
        return float(self._random[client].random())

    def neighbour(self, client: int) -> int:
        """A random one of those that hear the client."""
        others = self.heard_by[client]
        return others[int(self._random[client].integers(len(others)))]

    def neighbours(self, client: int, count: int) -> list[int]:
        """So many different ones of those that hear the client, random."""
        return self.shuffled(client, self.heard_by[client])[:count]

    def shuffled(self, client: int, entries: list) -> list:
        """The entries in a random order."""
        return [entries[k] for k in self._random[client].permutation(len(entries))]

    def is_lost(self, sender: int) -> bool:
        """Whether a message is lost on its way."""
        return bool(self._random[sender].random() < self.loss)

    def transfer_seconds(
        self, sender: int, receiver: int, messages: int = 1, bits: int | None = None
    ) -> float:
        """From sending to arrival of a message, one of `messages` that share the uplink.

        A downlink is as wide for each message: what else its client receives is left out. bits:
        of the message, a model's by default.
        """
        bits = self.bits if bits is None else bits
        rate = min(self.world.uplink[sender] / messages, self.world.downlink[receiver])
        return float(self.world.delay(np.int64(sender), np.int64(receiver)) + bits / rate)

    def upload_seconds(self, sender: int, messages: int = 1, bits: int | None = None) -> float:
        """How long so many messages, of a model's bits by default, occupy the sender's uplink."""
        bits = self.bits if bits is None else bits
        return float(messages * bits / self.world.uplink[sender])

    def next_online(self, client: int, time: float) -> float:
        """The first time from `time` on at which the client is online; infinite for never."""
        online = self.world.online
        if online is None or math.isinf(time):
            return time
        alone = online.of(slice(client, client + 1))
        return float(self.world._replace(online=alone).next_online(np.array([time]))[0])

    def is_online(self, client: int, time: float) -> bool:
        return self.next_online(client, time) == time


def watched(
    events: Iterator[Event], network: Network, ends: np.ndarray, in_use: list[set[Version]]
) -> Iterator[Event]:
    """The events, which append to `in_use` what is still to be read when an interval has ended.

    So a longer run goes on from there. It does not depend on where the run ends.
    """
    for event in events:
        while len(in_use) < len(ends) and event.time > ends[len(in_use)]:
            read = zip(event.members, event.versions, strict=True)
            in_use.append(network.versions_in_use() | set(read))
        yield event


def recorded(
    events: Iterator[Event], seconds: float | None = None, updates: int | None = None
) -> list[Event]:
    """The events of the first `seconds`, or so many.

    Raises ValueError unless one of the two is given, where no event is in them, and for more than
    can be kept.
    """
    if (seconds is None) == (updates is None):
        raise ValueError(f'seconds={seconds} and updates={updates}: set one of them')
    if updates is not None:
        check_range('updates', updates, least=1)
    if seconds is not None:
        check_range('seconds', seconds, above=0)
    check_range('updates', updates or 0, most=MOST)
    kept: list[Event] = []
    for event in itertools.islice(events, updates):
        if seconds is not None and event.time > seconds:
            if not kept:
                raise ValueError(
                    f'no local update ends within {seconds:g} seconds, the first one does after '
                    f'{event.time:.3g}; simulate for longer'
                )
            break
        kept.append(event)
        if seconds is not None and len(kept) == SAMPLE:
            expected = SAMPLE * seconds / event.time if event.time else math.inf
            if expected > MOST:
                raise ValueError(
                    f'some {expected:.1g} local updates end within {seconds:g} seconds, and no '
                    f'more than {MOST:.0e} can be planned; simulate for fewer seconds, or take '
                    'slower clients'
                )
    if not kept or (updates is not None and len(kept) < updates):
        raise ValueError(
            f'the network comes to rest after {len(kept)} local updates: nobody is online any '
            'more; use a world whose clients come back'
        )
    return kept
