"""What the methods do in a slot on the device, whatever an event is.

The models of the clients lie beside those of the past that are still to be read; the events of a
slot read, work on their own, and write. A slot costs its H events, whatever M is.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol, cast

import jax
import jax.numpy as jnp
import optax

from dfl_jax.algorithms.client_models import ClientModels
from dfl_jax.algorithms.gossip_method import ONE_MINIBATCH, mean_params, stacked_method
from dfl_jax.asynchronous.slots import Slots
from dfl_jax.base import Algorithm, Array, Clients, Info, PyTree, Round
from dfl_jax.checks import check_range
from dfl_jax.exchange import SENT, Exchange, bits_of, number_bits
from dfl_jax.execution import available_bytes, bytes_of, map_present
from dfl_jax.host_memory import in_bytes
from dfl_jax.initialisation import Init, initial_params
from dfl_jax.models import Model
from dfl_jax.training import LocalTraining
from dfl_jax.training.local import client_training


class AgedModel(NamedTuple):
    """What clients send each other; leaves [...] of one, [M, ...] or [R, ...] of many."""

    params: PyTree
    age: Array | None = None  # int32, local updates behind the model, where the method counts them


class State(NamedTuple):
    """The clients' models and those of the past."""

    params: PyTree  # leaves [M, ...], in the method's layout
    age: Array | None  # [M] int32; None where the method does not count it
    past: AgedModel  # leaves [R, ...], versions that are read later than they last
    losses: Array  # [M], of each client's last update, zero before the first
    keys: Array  # [M, 2] uint32, from which the randomness of each client's updates derives


class Layout(NamedTuple):
    """How the method holds a model: cut(params) -> leaves of any shapes, and join back."""

    cut: Callable[[PyTree], PyTree]
    join: Callable[[PyTree], PyTree]


AS_IT_IS = Layout(lambda params: params, lambda params: params)


class Read(Protocol):
    """The model of member k of an event; of leaves that begin with fragments only one `part`."""

    def __call__(self, event: Slots, k: int | Array, part: Array | None = None) -> AgedModel: ...


class Models(NamedTuple):
    """The models that an event finds."""

    read: Read  # that the event names, of others as it decodes them
    present: Read  # that of now
    sent: Read  # that of now, as the other one decodes it


Train = Callable[[PyTree], tuple[PyTree, Array]]
Updated = tuple[tuple[AgedModel, ...], Array]  # new models of the members that are written, loss
# (event, models, train) -> Updated of one event, a `Slots` without its leading axes; train(params)
# is the local training on the data of member 0
Update = Callable[[Slots, Models, Train], Updated]


class Events(NamedTuple):
    """What an event of a method is."""

    update: Update
    written: int = 1  # members that get a new model
    counts_age: bool = False  # whether models carry ages
    layout: Layout = AS_IT_IS  # how models are held, sent and averaged; they train as they are
    # exchange -> the kind of what `Event.sent` counts and its bits; a model's `weights` by default
    unit: Callable[[Exchange], tuple[str, int]] | None = None


def event_method(
    events: Events,
    model: Model,
    *,
    places: int,
    training: LocalTraining = ONE_MINIBATCH,
    models: ClientModels = ClientModels(),
) -> Algorithm:
    """The `Algorithm` whose step advances one slot.

    `Info.sent` counts messages that arrived, with the update of their sender that follows.
    `Info.loss` is that of each client's last update.

    Args:
      events: of the method.
      places: R, models of the past that are kept, from the plan of the events.
      training: a local update; lr g is how far it moves the weights, one minibatch's gradient by
        default. Round k of its schedules is the client's k-th update.
      models: start and consensus.
      chunk: events worked on at once; None for one on a CPU, elsewhere what memory holds.

    Raises ValueError where memory does not hold the past models.
    """
    check_range('places', places, least=1)
    train_one = client_training(model, training)
    update, written, layout = events.update, events.written, events.layout
    unit_of = events.unit or partial(_whole_models, events, model)
    _check_memory(model, places)

    def joined(state: State) -> State:
        return state._replace(params=jax.vmap(layout.join)(state.params))

    def consensus_model(state: State, weights: Array | None = None) -> PyTree:
        return layout.join(mean_params(state, weights))

    def step(key: Array, state: State, round: Round) -> tuple[State, Info]:
        del key  # An update's randomness is that of its client, whatever the slot.
        slot, clients = cast(Slots, round.graph), round.clients
        check_without_rounds(round)
        held, nowhere = AgedModel(state.params, state.age), len(state.keys)

        def present(event: Slots, k: int | Array, part: Array | None = None) -> AgedModel:
            return jax.tree.map(lambda leaf: leaf[_index(event.members[..., k], part)], held)

        # The past is written, then all is read, then the models are written. So each is changed in
        # place; and what loops might read while they last would be copied whole, all M models.
        saved = jnp.where(slot.active & (slot.saved >= 0), slot.saved, places)
        past = _written(state.past, saved, present(slot, written - 1))

        def read(event: Slots, k: int | Array, part: Array | None = None) -> AgedModel:
            place = event.source[k]

            def leaf(past: Array, present: Array) -> Array:
                return jnp.where(place < 0, present, past[_index(jnp.maximum(place, 0), part)])

            model = jax.tree.map(leaf, past, present(event, k, part))
            numbers = 0, event.versions[k], 0 if part is None else part  # each version once for all
            return _decoded(round.exchange, state, event, k, model, numbers, k > 0)

        def sent(event: Slots, k: int | Array, part: Array | None = None) -> AgedModel:
            numbers = 1, event.updates, event.members[0]  # once for each event
            return _decoded(round.exchange, state, event, k, present(event, k, part), numbers)

        def of_event(event: Slots) -> Updated:
            def train(params: PyTree) -> tuple[PyTree, Array]:
                i, updates = event.members[0], event.updates
                k_event = jax.random.fold_in(jax.random.wrap_key_data(state.keys[i]), updates)
                own = jax.tree.map(lambda leaf: leaf[i], clients)
                trained, loss = train_one(k_event, layout.join(params), own, updates)
                return layout.cut(trained), loss

            found = _with_lies(round.exchange, state, event, Models(read, present, sent))
            return update(event, found, train)

        def of_none(event: Slots) -> Updated:
            return optax.tree.zeros_like(jax.eval_shape(of_event, event))

        size = training.bytes_of_client(model, clients.y.shape[1])
        if round.exchange.attack is not None:
            size += 4 * slot.members.shape[1] * bytes_of(model.shapes)
        new, losses = map_present(of_event, of_none, slot, slot.active, models.chunk, size)
        targets = jnp.where(slot.mask, slot.members, nowhere)
        for k in range(written):
            held = _written(held, targets[:, k], new[k])
        counts = jax.ops.segment_sum(slot.sent.ravel(), slot.members.ravel(), nowhere)
        losses = state.losses.at[targets[:, 0]].set(losses, mode='drop')
        state = state._replace(params=held.params, age=held.age, past=past, losses=losses)
        kind, bits = unit_of(round.exchange)
        round.exchange.count(kind, counts, bits)
        return state, Info(losses)

    begin = partial(_initial_state, model, events, places, models.init)
    whole = stacked_method(model, begin, step, models.consensus)
    own: Any = whole.predict_own
    return whole._replace(
        predict=lambda state, x, weights=None: whole.predict(joined(state), x, weights),
        predict_own=lambda state, x: own(joined(state), x),
        consensus=consensus_model,
    )


def check_without_rounds(round: Round) -> None:
    """Raises ValueError for what needs rounds."""
    if round.exchange.errors is not None or round.clients.arrival is not None:
        raise ValueError(
            'clients without rounds take neither error_feedback nor samples that arrive over '
            'time; leave these out'
        )


def _whole_models(events: Events, model: Model, exchange: Exchange) -> tuple[str, int]:
    """Whole models are sent, with their ages where these are counted."""
    age = number_bits(jnp.int32) if events.counts_age else 0
    return 'weights', age + exchange.bits(jax.eval_shape(events.layout.cut, model.shapes))


def _decoded(
    exchange: Exchange,
    state: State,
    event: Slots,
    k: int | Array,
    model: AgedModel,
    numbers: tuple[int | Array, ...],
    sent: bool | Array = True,
) -> AgedModel:
    """The model of member k as others decode it, where it is sent.

    numbers: what tells the message from others of this client.
    """
    if exchange.codec is None or sent is False:
        return model
    decoded = exchange.decoded(_key_of(state, event, k, numbers), model.params)
    params = jax.tree.map(partial(jnp.where, sent), decoded, model.params)
    return model._replace(params=params)


def _key_of(state: State, event: Slots, k: int | Array, numbers: tuple[int | Array, ...]) -> Array:
    key = jax.random.wrap_key_data(state.keys[event.members[k]])
    for number in (SENT, *numbers):
        key = jax.random.fold_in(key, number)
    return key


def _with_lies(exchange: Exchange, state: State, event: Slots, models: Models) -> Models:
    """The models that an event finds, with lies in place of those of attackers that an honest
    client hears. Ages are true.

    An attack is on what one client hears in the event, or on the copies of one fragment, all alike
    but where the event has weights.
    """
    if exchange.attack is None:
        return models

    def heard(of: PyTree, members: Array, delivered: Array, *numbers: int | Array) -> PyTree:
        key = _key_of(state, event, 0, (*numbers, event.updates))
        alike = delivered / jnp.maximum(delivered.sum(), 1)
        weights = alike if event.weights is None else event.weights
        return exchange.heard(key, of, members, delivered, weights)

    def of_part(part: Array | None) -> PyTree:
        columns = jnp.arange(len(event.members))
        sent = jax.vmap(lambda k: models.read(event, k, part).params)(columns)
        if part is None:
            return heard(sent, event.members, event.mask, 2, 0)
        assert event.fragments is not None
        copies = event.mask & ((event.fragments == part) | (columns == 0))
        return heard(sent, event.members, copies, 2, part)

    if event.fragments is None:
        heard_of_all = of_part(None)
    else:
        fragments = jnp.arange(len(jax.tree.leaves(state.params)[0][0]))
        heard_of_all = jax.vmap(of_part, out_axes=1)(fragments)

    def read(event: Slots, k: int | Array, part: Array | None = None) -> AgedModel:
        told = jax.tree.map(lambda leaf: leaf[_index(k, part)], heard_of_all)
        return models.read(event, k, part)._replace(params=told)

    def sent(event: Slots, k: int | Array, part: Array | None = None) -> AgedModel:
        pair = jnp.array([1 - k, k])  # who hears the model, and who sends it
        true = models.sent(event, k, part)
        both = jax.tree.map(
            lambda *a: jnp.stack(a), models.present(event, 1 - k, part).params, true.params
        )
        told = heard(both, event.members[pair], event.mask[pair], 3, k)
        return true._replace(params=jax.tree.map(lambda leaf: leaf[1], told))

    return Models(read, models.present, sent)


def _check_memory(model: Model, places: int) -> None:
    needed, free = places * bits_of(model.shapes) // 8, available_bytes()
    if needed > free:
        raise ValueError(
            f'{places} past models of {model.size} weights take {in_bytes(needed)}, and '
            f'{in_bytes(free)} are free; use a smaller model, fewer clients, or a world of less '
            'latency and more even speeds'
        )


def _initial_state(
    model: Model, events: Events, places: int, init: Init, key: Array, clients: Clients
) -> State:
    counts_age, layout = events.counts_age, events.layout
    count = len(clients.mask)
    numbers = jnp.arange(count)
    # The key itself draws the weights, the same as those of a method in rounds.
    k_train = jax.random.fold_in(key, 1)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(k_train, numbers)
    one = jax.eval_shape(layout.cut, model.shapes)
    past = jax.tree.map(lambda leaf: jnp.zeros((places, *leaf.shape), leaf.dtype), one)
    return State(
        jax.vmap(layout.cut)(initial_params(key, model, count, init)),
        jnp.zeros(count, jnp.int32) if counts_age else None,
        AgedModel(past, jnp.zeros(places, jnp.int32) if counts_age else None),
        jnp.zeros(count, clients.x.dtype),
        jax.vmap(jax.random.key_data)(keys),
    )


def _index(rows: int | Array, part: Array | None) -> Any:
    return rows if part is None else (rows, part)


def _written(tree: PyTree, places: Array, values: PyTree) -> PyTree:
    """Leaves [R, ...] with values [H, ...] at places [H], those at R dropped."""
    return jax.tree.map(lambda leaf, v: leaf.at[places].set(v, mode='drop'), tree, values)
