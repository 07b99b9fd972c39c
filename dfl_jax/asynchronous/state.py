"""What the methods do in a slot on the device, whatever an event is.

The models of the clients lie beside those of the past that somebody is still to read; the events
of a slot read, work on their own, and write. A slot costs its H events, whatever M is.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dfl_jax.algorithms.common import consensus_of, own_predictions, stacked_predictions
from dfl_jax.asynchronous.slots import Slots
from dfl_jax.base import Algorithm, Array, Clients, Info, PyTree
from dfl_jax.checks import check_range
from dfl_jax.compression import FLOAT_BITS
from dfl_jax.execution import available_bytes, map_present
from dfl_jax.host import in_bytes
from dfl_jax.initialisation import Init, check_init, initial_params
from dfl_jax.models import Model
from dfl_jax.training import LocalTraining
from dfl_jax.training.local import client_training


class Held(NamedTuple):
    """What clients send each other; leaves [...] of one, [M, ...] or [R, ...] of many."""

    params: PyTree
    age: Array | None = None  # int32, local updates behind the model, where the method counts them


class State(NamedTuple):
    """The clients' models and those of the past."""

    params: PyTree  # leaves [M, ...]
    age: Array | None  # [M] int32; None where the method does not count it
    past: Held  # leaves [R, ...], versions that are read later than they last
    sizes: Array  # [M] int32, N_i
    losses: Array  # [M], of each client's last update, zero before the first
    keys: Array  # [M, 2] uint32, from which the randomness of each client's updates derives


Read = Callable[[int | Array], Held]
Train = Callable[[PyTree], tuple[PyTree, Array]]
# (event, read, present, train) -> (new models of the members that are written, loss):
# read(k) is the model of member k that the event names, present(k) the one of now, and
# train(params) the local training on the data of member 0
Update = Callable[[Slots, Read, Read, Train], tuple[tuple[Held, ...], Array]]


def event_method(
    model: Model,
    update: Update,
    *,
    places: int,
    training: LocalTraining,
    written: int = 1,
    counts_age: bool = False,
    consensus: str,
    init: Init,
    chunk: int | None,
) -> Algorithm:
    """The `Algorithm` whose step advances one slot.

    `Info.sent` counts delivered messages, those that are lost are not in it. `Info.loss` is that of
    each client's last update.

    Args:
      model: the network, bound to its input shape.
      update: what an event does.
      places: R, from the plan of the events.
      training: a local update; round k of its schedules is the client's k-th update.
      written: members that get a new model.
      counts_age: whether models carry ages.
      consensus: the aggregated model is the `mean` or `size`-weighted mean of the M models.
      init: `same`, `independent` or a function, as of `initial_params`.
      chunk: events worked on at once; None for one on a CPU, elsewhere what memory holds.

    Raises ValueError where memory does not hold the past models.
    """
    check_init(init)
    check_range('places', places, least=1)
    mean = consensus_of(consensus)
    train_one = client_training(model, training)
    age_bits = FLOAT_BITS * counts_age
    _check_memory(model, places)

    def init_state(key: Array, clients: Clients) -> State:
        sizes = clients.mask.sum(axis=1, dtype=jnp.int32)
        numbers = jnp.arange(len(sizes))
        # The key itself draws the weights, the same as those of a method in rounds.
        k_train = jax.random.fold_in(key, 1)
        keys = jax.vmap(jax.random.fold_in, (None, 0))(k_train, numbers)
        past = jax.tree.map(lambda leaf: jnp.zeros((places, *leaf.shape), leaf.dtype), model.shapes)
        return State(
            initial_params(key, model, len(sizes), init),
            jnp.zeros(len(sizes), jnp.int32) if counts_age else None,
            Held(past, jnp.zeros(places, jnp.int32) if counts_age else None),
            sizes,
            jnp.zeros(len(sizes), clients.x.dtype),
            jax.vmap(jax.random.key_data)(keys),
        )

    def step(key: Array, state: State, slot: Slots, clients: Clients) -> tuple[State, Info]:
        del key  # An update's randomness is that of its client, whatever the slot.
        models = Held(state.params, state.age)

        def of_event(event: Slots) -> tuple[tuple[Held, ...], Array]:
            client = event.members[0]

            def read(k: int | Array) -> Held:
                place = event.source[k]

                def leaf(past: Array, present: Array) -> Array:
                    return jnp.where(
                        place < 0, present[event.members[k]], past[jnp.maximum(place, 0)]
                    )

                return jax.tree.map(leaf, state.past, models)

            def present(k: int | Array) -> Held:
                return jax.tree.map(lambda leaf: leaf[event.members[k]], models)

            def train(params: PyTree) -> tuple[PyTree, Array]:
                own = jax.tree.map(lambda leaf: leaf[client], clients)
                k_client = jax.random.wrap_key_data(state.keys[client])
                return train_one(
                    jax.random.fold_in(k_client, event.count), params, own, event.count
                )

            return update(event, read, present, train)

        def of_none(event: Slots) -> tuple[tuple[Held, ...], Array]:
            shapes = jax.eval_shape(of_event, event)
            return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        size = training.bytes_of_client(model, clients.y.shape[1])
        new, losses = map_present(of_event, of_none, slot, slot.active, chunk, size)
        nobody = len(state.sizes)
        targets = jnp.where(slot.mask & slot.active[:, None], slot.members, nobody)
        saved = jnp.where(slot.active & (slot.saved >= 0), slot.saved, places)
        overwritten = slot.members[:, written - 1]
        past = jax.tree.map(
            lambda past, leaf: past.at[saved].set(leaf[overwritten], mode='drop'),
            state.past,
            models,
        )
        for k in range(written):
            models = jax.tree.map(
                lambda leaf, value, k=k: leaf.at[targets[:, k]].set(value, mode='drop'),
                models,
                new[k],
            )
        sent = jax.ops.segment_sum(slot.sent.ravel(), slot.members.ravel(), nobody)
        losses = state.losses.at[targets[:, 0]].set(losses, mode='drop')
        state = state._replace(params=models.params, age=models.age, past=past, losses=losses)
        return state, Info(losses, {'weights': sent})

    return Algorithm(
        init_state,
        step,
        stacked_predictions(model, mean),
        unit_bits={'weights': FLOAT_BITS * model.size + age_bits},
        consensus=mean,
        predict_own=own_predictions(model),
        task=model.task,
    )


def _check_memory(model: Model, places: int) -> None:
    needed, free = places * FLOAT_BITS // 8 * model.size, available_bytes()
    if needed > free:
        raise ValueError(
            f'{places} past models of {model.size} weights take {in_bytes(needed)}, and '
            f'{in_bytes(free)} are free; use a smaller --model, fewer clients, or a world of less '
            'latency and more even speeds'
        )
