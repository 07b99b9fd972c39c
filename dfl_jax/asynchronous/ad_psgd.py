"""AD-PSGD, asynchronous decentralized SGD: Lian, Zhang, Zhang & Liu, ICML 2018, Algorithm 1.

Every client i repeats, without waiting,

    g <- gradient at the model x_i' that it has now, of a minibatch of its own
    x_i, x_j <- (x_i + x_j) / 2    atomically, with a random neighbour j
    x_i <- x_i - lr g

Neighbours average with it while it computes, so that x_i is no more x_i' in the end and the
gradient is stale. Its next update begins when the average is there.
"""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp

from dfl_jax.asynchronous.events import Event, Network, Queue
from dfl_jax.asynchronous.slots import Slots
from dfl_jax.asynchronous.state import AgedModel, Events, Models, Train, Updated, event_method
from dfl_jax.base import Array


def exchanges(network: Network) -> Iterator[Event]:
    """The updates of AD-PSGD, in the order of their ends; client by client where these are one.

    Two clients send each other their models at once, as soon as one of them is done, and both
    average when both have arrived. Where one of the two messages is lost, or a client offline at
    that time, neither averages, and the client applies its gradient alone. Several may average
    with one client at a time, one after the other. Raises ValueError for links that do not go both
    ways.
    """
    for i, others in enumerate(network.hears):
        for j in set(others) ^ set(network.heard_by[i]):
            raise ValueError(
                f'ad_psgd averages in pairs, and the link between clients {i} and {j} goes one '
                'way; use a topology whose links go both ways'
            )
    version, count = [0] * network.clients, [0] * network.clients
    queue = Queue()  # time of the average, client, neighbour, lost, version of the gradient

    def begin(i: int, time: float) -> None:
        j = network.neighbour(i)
        lost = any([network.is_lost(i), network.is_lost(i)])  # one of the two messages
        both = max(network.transfer_seconds(i, j), network.transfer_seconds(j, i))
        done = network.next_online(i, time) + network.update_seconds[i] + both
        queue.push(done, i, j, lost, version[i])

    network.versions_in_use = lambda: {(i, began) for _, i, _, _, began in queue}
    for i in range(network.clients):
        begin(i, 0.0)
    for time, i, j, lost, began in queue.in_order():
        if not lost and network.is_online(i, time) and network.is_online(j, time):
            yield Event(time, (i, j), (began, version[j]), count[i], (1, 1), written=2)
            version[j] += 1
        else:
            yield Event(time, (i,), (began,), count[i], (0,))
        version[i] += 1
        count[i] += 1
        begin(i, time)


def update(event: Slots, models: Models, train: Train) -> Updated:
    began = models.read(event, 0).params
    trained, loss = train(began)
    own, other = (models.present(event, k).params for k in (0, 1))
    own_sent, other_sent = (models.sent(event, k).params for k in (0, 1))

    def average(x: Array, y: Array) -> Array:
        return jnp.where(event.mask[1], (x + y) / 2, x)

    averages = jax.tree.map(average, own, other_sent)
    new = jax.tree.map(lambda a, z, x: a + (z - x), averages, trained, began)
    return (AgedModel(new), AgedModel(jax.tree.map(average, other, own_sent))), loss


ad_psgd = partial(event_method, Events(update, written=2))
