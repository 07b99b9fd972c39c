"""Gossip learning: Ormandi, Hegedus & Jelasity 2013; Hegedus, Danner & Jelasity 2021.

Models walk through the network. Every period a client sends its model w and its age t, the local
updates behind it, to a random neighbour, which merges it with its own by their ages and trains:

    w <- (t w + t' w') / (t + t'),  t <- max(t, t')
    w <- w - lr g(w),               t <- t + 1
"""

import itertools
from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp

from dfl_jax.asynchronous.events import Event, Network, Queue
from dfl_jax.asynchronous.slots import Slots
from dfl_jax.asynchronous.state import AgedModel, Events, Models, Train, Updated, event_method
from dfl_jax.base import Array

DONE, ARRIVES, SENDS = range(3)  # the order of what happens at one time
IN_VAIN = 10_000  # messages of each client in succession that nobody receives


def pushes(network: Network) -> Iterator[Event]:
    """The updates of gossip learning, in the order of their ends.

    A client sends whenever a period has passed, the time of a local update or of sending a model,
    whichever is longer; phases are random. It sends only while it is online. What arrives is lost
    while the receiver is offline. While it trains one message waits, and others, which have been
    sent all the same, are refused.
    """
    version = [0] * network.clients
    # time, what, client, its number among all, which tells equal ones apart, sender, version
    queue, numbers = Queue(), itertools.count()
    busy = [False] * network.clients
    waiting: list[tuple[int, int] | None] = [None] * network.clients
    arrived = [0] * network.clients  # messages of each, since its last update
    in_vain = 0

    def push(time: float, what: int, client: int, sender: int = 0, version: int = 0) -> None:
        queue.push(time, what, client, next(numbers), sender, version)

    def begin(client: int, time: float, message: tuple[int, int]) -> None:
        busy[client] = True
        start = network.next_online(client, time)
        push(start + network.update_seconds[client], DONE, client, *message)

    network.versions_in_use = lambda: {
        *((sender, sent) for _, what, *_, sender, sent in queue if what != SENDS),
        *(message for message in waiting if message is not None),
    }
    periods = [
        max(network.update_seconds[i], network.upload_seconds(i)) for i in range(network.clients)
    ]
    for i, period in enumerate(periods):
        push(network.next_online(i, period * network.phase(i)), SENDS, i)
    for time, what, i, _, sender, sent in queue.in_order():
        if in_vain > IN_VAIN * network.clients:
            raise ValueError(
                f'of {in_vain} messages in succession nobody has received any: clients are never '
                'online together; use a world in which they are'
            )
        if what == SENDS:
            j, lost = network.neighbour(i), network.is_lost(i)
            in_vain += lost
            if not lost:
                push(time + network.transfer_seconds(i, j), ARRIVES, j, i, version[i])
            push(network.next_online(i, time + periods[i]), SENDS, i)
        elif what == ARRIVES:
            online = network.is_online(i, time)
            arrived[sender] += online
            if online and not busy[i]:
                begin(i, time, (sender, sent))
            elif online and waiting[i] is None:
                waiting[i] = sender, sent
            else:
                in_vain += 1
                continue
            in_vain = 0
        else:
            counts, arrived[i] = (arrived[i], 0), 0
            yield Event(time, (i, sender), (version[i], sent), version[i], counts)
            in_vain = 0
            version[i] += 1
            message, waiting[i], busy[i] = waiting[i], None, False
            if message is not None:
                begin(i, time, message)


def update(event: Slots, models: Models, train: Train) -> Updated:
    (own, age), (theirs, their_age) = models.read(event, 0), models.read(event, 1)
    assert age is not None and their_age is not None
    total = age + their_age

    def merge(w: Array, v: Array) -> Array:
        wide = jnp.promote_types(w.dtype, jnp.float32)  # 16 bits do not hold every age
        part = their_age.astype(wide) / jnp.maximum(total, 1).astype(wide)
        part = jnp.where(total > 0, part, 0.5).astype(w.dtype)
        return (1 - part) * w + part * v

    trained, loss = train(jax.tree.map(merge, own, theirs))
    return (AgedModel(trained, jnp.maximum(age, their_age) + 1),), loss


gossip_learning = partial(event_method, Events(update, counts_age=True))
