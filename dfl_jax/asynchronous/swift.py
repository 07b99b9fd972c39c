"""SWIFT, wait-free asynchronous D-PSGD: Bornstein, Rabbani, Wang, Bedi & Huang, ICLR 2023.

Every client i repeats, without waiting,

    g <- gradient at its model x_i, of a minibatch of its own
    x_i <- sum_j W_ij x_j - lr g    x_j the latest model that it has received from j, however old
    broadcast x_i to its neighbours

Where all are equally fast and messages take no time it is D-PSGD (Lian et al. 2017, Algorithm 1).
W is the mixing matrix of the graph; the paper also has one that makes up for different speeds.
"""

from collections.abc import Iterator
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.asynchronous.events import Event, Network, Queue
from dfl_jax.asynchronous.slots import Slots
from dfl_jax.asynchronous.state import AgedModel, Events, Models, Train, Updated, event_method
from dfl_jax.base import Array, PyTree
from dfl_jax.gossip.mixing import GATHER_UNROLL

DONE, ARRIVES = range(2)  # what arrives at one time is for updates that end later


def broadcasts(network: Network) -> Iterator[Event]:
    """The updates of SWIFT, in the order of their ends; client by client where these are one.

    The first models are known to all neighbours. The messages of a broadcast share the uplink, and
    a model that is done while the one before is still on it is not sent. A client that is offline
    does not send, and what arrives at a client that is offline is lost.
    """
    version, uplink_free = [0] * network.clients, [0.0] * network.clients
    latest = [dict.fromkeys(others, 0) for others in network.hears]  # version, by neighbour
    queue = Queue()  # time, what, client, sender, version

    def begin(i: int, time: float) -> None:
        queue.push(network.next_online(i, time) + network.update_seconds[i], DONE, i, i, 0)

    def broadcast(i: int, time: float) -> int:
        """How many neighbours will get the model that the client has now."""
        if time < uplink_free[i] or not network.is_online(i, time):
            return 0
        others, arrived = network.heard_by[i], 0
        uplink_free[i] = time + network.upload_seconds(i, len(others))
        for j in others:
            arrival = time + network.transfer_seconds(i, j, len(others))
            if not network.is_lost(i) and network.is_online(j, arrival):
                queue.push(arrival, ARRIVES, j, i, version[i])
                arrived += 1
        return arrived

    network.versions_in_use = lambda: {
        *((sender, sent) for _, what, _, sender, sent in queue if what == ARRIVES),
        *(model for models in latest for model in models.items()),
    }
    for i in range(network.clients):
        begin(i, 0.0)
    for time, what, i, sender, sent in queue.in_order():
        if what == ARRIVES:
            latest[i][sender] = max(latest[i][sender], sent)
            continue
        members, versions = (i, *latest[i]), (version[i], *latest[i].values())
        count, version[i] = version[i], version[i] + 1
        arrived = broadcast(i, time), *[0] * len(latest[i])
        yield Event(time, members, versions, count, arrived, weights=network.weights[i])
        begin(i, time)


def update(event: Slots, models: Models, train: Train) -> Updated:
    own = models.present(event, 0).params
    trained, loss = train(own)
    assert event.weights is not None
    weights = jnp.asarray(event.weights)

    def add(k: int | Array, total: PyTree) -> PyTree:
        theirs = models.read(event, k).params
        return jax.tree.map(lambda t, x: t + weights[k].astype(x.dtype) * x, total, theirs)

    zeros = jax.tree.map(jnp.zeros_like, own)
    mixed = lax.fori_loop(0, len(weights), add, zeros, unroll=min(GATHER_UNROLL, len(weights)))
    new = jax.tree.map(lambda m, z, x: m + (z - x), mixed, trained, own)
    return (AgedModel(new),), loss


swift = partial(event_method, Events(update))
