"""DivShare: Biswas, Kermarrec, Marouani, Pires, Sharma & de Vos, WWW 2025 (arXiv 2410.12918).

Every client i repeats, without waiting,

    x_i[p] <- (x_i[p] + sum of the copies of p that it received) / (1 + their number)  for each p
    x_i <- local training of x_i
    cut x_i into 1 / Omega fragments, send each to J random clients, in a random order

A parameter p belongs to one fragment, the same one at all clients. Fragments leave one after the
other, at the speed of the uplink, while the client trains again; those that have not left when that
ends make room for the new ones. Of a fragment of one sender the latest copy counts, and an average
empties the box of those received. So a client with a slow uplink is heard in parts, not late.
"""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dfl_jax.algorithms.client_models import ClientModels
from dfl_jax.algorithms.gossip_method import ONE_MINIBATCH
from dfl_jax.asynchronous.events import Event, Network, Queue
from dfl_jax.asynchronous.slots import Slots
from dfl_jax.asynchronous.state import (
    AgedModel,
    Events,
    Layout,
    Models,
    Train,
    Updated,
    event_method,
)
from dfl_jax.base import Algorithm, Array, PyTree
from dfl_jax.checks import check_range
from dfl_jax.exchange import Codec, Exchange, Message, chain, number_bits
from dfl_jax.models import Model
from dfl_jax.setting_error import InputError
from dfl_jax.training import LocalTraining

FRAGMENTS = 10  # Omega = 0.1, as in the paper's experiments
DONE, ARRIVES, BEGINS = range(3)  # what arrives at one time is for the rounds that begin then


def fragments_sent(
    network: Network, *, fragments: int = FRAGMENTS, recipients: int | None = None
) -> Iterator[Event]:
    """The updates of DivShare, in the order of their ends; client by client where these are one.

    `Event.sent` counts the units of `fragment_bits`. An upload begins only while the client is
    online, and what arrives at a client that is offline is lost. Raises ValueError for more
    recipients than hear a client, and for more fragments than a model has parameters.
    """
    fewest = min(network.heard_by, key=len)
    if recipients is None:
        recipients = min(math.ceil(math.log2(network.clients)), len(fewest))
    check_range('recipients', recipients, least=1)
    if recipients > len(fewest):
        raise InputError(
            f'recipients={recipients}, and client {network.heard_by.index(fewest)} has '
            f'{len(fewest)} neighbours; use fewer recipients, or `topology=complete`'
        )
    parameters = network.bits // network.number_bits
    check_range(f'fragments of {parameters} parameters', fragments, least=1, most=parameters)
    fewer, more, unit = fragment_bits(
        parameters, fragments, network.number_bits, network.codec or chain()
    )
    sizes = [more if f < parameters % fragments else fewer for f in range(fragments)]
    version = [0] * network.clients
    received: list[dict[tuple[int, int], int]] = [{} for _ in version]  # by sender and fragment
    averaged: list[list[tuple[int, int, int]]] = [[] for _ in version]  # sender, fragment, version
    queue = Queue()  # time, what, client, and of what arrives (sender, fragment) and version

    def send(i: int, time: float, until: float) -> int:
        """How many units arrive of what leaves until then."""
        others = [(f, j) for f in range(fragments) for j in network.neighbours(i, recipients)]
        arrived, free = 0, time
        for fragment, j in network.shuffled(i, others):
            begin, bits = network.next_online(i, free), sizes[fragment]
            free = begin + network.upload_seconds(i, bits=bits)
            if free > until or math.isinf(free):
                break
            arrival = begin + network.transfer_seconds(i, j, bits=bits)
            if not network.is_lost(i) and network.is_online(j, arrival):
                queue.push(arrival, ARRIVES, j, (i, fragment), version[i])
                arrived += sizes[fragment] // unit
        return arrived

    network.versions_in_use = lambda: {
        *((key[0], copy) for _, what, _, key, copy in queue if what == ARRIVES),
        *((sender, copy) for box in received for (sender, _), copy in box.items()),
        *((sender, copy) for copies in averaged for sender, _, copy in copies),
    }
    for i in range(network.clients):
        queue.push(network.next_online(i, 0.0), BEGINS, i, (), 0)
    for time, what, i, key, copy in queue.in_order():
        if what == ARRIVES:
            received[i][key] = max(received[i].get(key, 0), copy)
        elif what == BEGINS:
            averaged[i] = [(*key, copy) for key, copy in received[i].items()]
            received[i] = {}
            queue.push(time + network.update_seconds[i], DONE, i, (), 0)
        else:
            copies = [(i, 0, version[i]), *averaged[i]]
            count, version[i] = version[i], version[i] + 1
            begin = network.next_online(i, time)
            arrived = send(i, time, begin + network.update_seconds[i])
            members, parts, versions = zip(*copies, strict=True)
            sent = arrived, *[0] * len(averaged[i])
            yield Event(time, members, versions, count, sent, fragments=parts)
            queue.push(begin, BEGINS, i, (), 0)


def fragment_bits(
    parameters: int, fragments: int, number_bits: int, codec: Codec
) -> tuple[int, int, int]:
    """The bits of a fragment, of one with one parameter more, and the unit that both are made of:
    one parameter where nothing is coded."""
    few, one = (
        codec.compressed(Message(n, number_bits, 0)).bits for n in (parameters // fragments, 1)
    )
    return few, few + one, math.gcd(few, one)


def layout_of(model: Model, fragments: int) -> Layout:
    """A model's weights by fragment, [F, Q], and those that remain, [P - F Q, 1]: the first
    fragments have one weight more.

    Which weights belong together is drawn once and for all. All are of the widest of their types.
    """
    leaves, tree = jax.tree.flatten(model.shapes)
    order = np.random.default_rng(0).permutation(model.size)
    back = np.argsort(order)
    starts = np.cumsum([leaf.size for leaf in leaves])[:-1]
    even = model.size // fragments * fragments
    widest = jnp.result_type(*leaves)

    def cut(params: PyTree) -> PyTree:
        vector = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(params)])[order]
        parts = [vector[:even].reshape(fragments, -1), vector[even:, None]]
        return parts if even < model.size else parts[:1]

    def join(parts: PyTree) -> PyTree:
        vector = jnp.concatenate([part.ravel() for part in parts])[back]
        pieces = zip(jnp.split(vector, starts), leaves, strict=True)
        return jax.tree.unflatten(tree, [of_leaf(piece, leaf) for piece, leaf in pieces])

    def of_leaf(piece: Array, leaf: jax.ShapeDtypeStruct) -> Array:
        piece = piece.reshape(leaf.shape)
        return piece if leaf.dtype == widest else piece.astype(leaf.dtype)

    return Layout(cut, join)


def divshare(
    model: Model,
    *,
    places: int,
    fragments: int = FRAGMENTS,
    recipients: int | None = None,
    training: LocalTraining = ONE_MINIBATCH,
    models: ClientModels = ClientModels(),
) -> Algorithm:
    """Averages of the fragments received, parameter by parameter.

    Args:
      places: R, models of the past that are kept, from the plan of the events.
      fragments: number 1 / Omega of parts into which a model is cut; the same as in the plan.
      recipients: number J of random neighbours to which each fragment is sent, drawn by the plan;
        by default log2 M, or all neighbours if there are fewer.
      training: of a client between two averages, one minibatch by default. Round k of its schedules
        is the client's k-th update.
      models: start and consensus.
      chunk: events worked on at once; None for one on a CPU, elsewhere what memory holds.
    """
    del recipients  # the events follow from it, and the device reads these
    check_range(f'fragments of {model.size} parameters', fragments, least=1, most=model.size)
    layout = layout_of(model, fragments)

    def update(event: Slots, models: Models, train: Train) -> Updated:
        assert event.fragments is not None
        own, parts = models.present(event, 0).params, jnp.asarray(event.fragments)

        def add(k: int | Array, sums: tuple[PyTree, Array]) -> tuple[PyTree, Array]:
            total, copies = sums
            received = models.read(event, k, parts[k]).params
            # A fragment without one of the weights that remain adds nothing to them
            total = [
                t.at[parts[k]].add(x, mode='drop') for t, x in zip(total, received, strict=True)
            ]
            return total, copies.at[parts[k]].add(1)

        start = own, jnp.ones(fragments, own[0].dtype)
        total, copies = lax.fori_loop(1, event.mask.sum(), add, start)
        trained, loss = train([t / copies[: len(t), None] for t in total])
        return (AgedModel(trained),), loss

    def unit(exchange: Exchange) -> tuple[str, int]:
        bits = number_bits(jnp.result_type(*jax.tree.leaves(model.shapes)))
        codec = exchange.codec or chain()
        return 'parameters', fragment_bits(model.size, fragments, bits, codec)[2]

    events = Events(update, layout=layout, unit=unit)
    return event_method(events, model, places=places, training=training, models=models)
