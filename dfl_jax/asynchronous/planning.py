"""The plan of a run without rounds, and the method that carries it out."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dfl_jax.algorithms.graph_requirements import static
from dfl_jax.asynchronous.ad_psgd import ad_psgd, exchanges
from dfl_jax.asynchronous.divshare import divshare, fragments_sent
from dfl_jax.asynchronous.events import Event, Network, Version, recorded, watched
from dfl_jax.asynchronous.gossip_learning import gossip_learning, pushes
from dfl_jax.asynchronous.slots import Slots, pack
from dfl_jax.asynchronous.swift import broadcasts, swift
from dfl_jax.base import Algorithm, Graph
from dfl_jax.checks import check_choice, check_range
from dfl_jax.exchange import FLOAT_BITS, Codec, Exchange, chain
from dfl_jax.exchange import number_bits as bits_of_number
from dfl_jax.method_settings import assemble
from dfl_jax.models import Model
from dfl_jax.timing import World


class EventMethod(NamedTuple):
    """A method without rounds."""

    factory: Callable[..., Algorithm]
    events: Callable[..., Iterator[Event]]  # (network, **settings)
    counts_age: bool = False  # models carry an int32 more
    in_parts: bool = False  # parts of models are sent, and numbers of one type are counted
    settings: tuple[str, ...] = ()  # those of the factory that the events follow from


EVENT_METHODS = {
    'ad_psgd': EventMethod(ad_psgd, exchanges),
    'gossip_learning': EventMethod(gossip_learning, pushes, counts_age=True),
    'swift': EventMethod(swift, broadcasts),
    'divshare': EventMethod(
        divshare, fragments_sent, in_parts=True, settings=('fragments', 'recipients')
    ),
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
    settings: Mapping[str, Any]  # of the method, those that were given and the events follow from
    number_bits: int = FLOAT_BITS  # of one number that is sent
    codec: Codec | None = None  # of what is sent

    @property
    def updates(self) -> np.ndarray:
        """Local updates until the end of each interval, [intervals]."""
        return np.searchsorted([event.time for event in self.events], self.ends, side='right')


def plan(
    method: str,
    graphs: Graph,
    world: World,
    *,
    flops: np.ndarray | float,
    bits: int,
    number_bits: int = FLOAT_BITS,
    codec: Codec | None = None,
    seconds: float | None = None,
    updates: int | None = None,
    intervals: int = 1,
    ends: np.ndarray | None = None,
    loss: float = 0.0,
    mixing: str = 'metropolis',
    sizes: np.ndarray | None = None,
    seed: int = 0,
    width: int | None = None,
    **settings: Any,
) -> Plan:
    """Simulates a network of clients that do not wait for rounds.

    Args:
      method: one of EVENT_METHODS.
      graphs: a static schedule, whose links are there all the time.
      world: speed, links, latency and online times of the clients.
      flops: of a local update, one number or [M].
      bits: of a model that is sent, e.g. by `model_bits`.
      number_bits: of one of its numbers, e.g. by `weight_bits`, for a method that sends parts.
      codec: of what is sent; None leaves it.
      seconds: simulated ones, or
      updates: local updates of all clients together.
      intervals: of equal length, at whose ends the models are evaluated.
      ends: seconds at which intervals end, increasing, in place of `seconds` and `intervals`. A
        plan whose ends begin with those of another one goes on where that ends.
      loss: probability that a message is lost.
      mixing: the weights of `swift`, where the graph has none.
      sizes: [M] samples of each client, for mixing by `size`.
      seed: of neighbours, losses and phases.
      width: events of a slot, at most; None for a good number.
      **settings: of the method, those that its events follow from: `fragments` and `recipients` of
        `divshare`.

    Raises ValueError, one line, for what cannot be simulated.

    >>> from dfl_jax import topology
    >>> from dfl_jax.timing import world
    >>> ring = topology.schedule('ring', 8, 1, seed=0, static=True)
    >>> len(plan('swift', ring, world(8), flops=1e9, bits=10**6, updates=80).events)
    80
    """
    check_choice('method', method, EVENT_METHODS)
    check_range('intervals', intervals, least=1)
    if unknown := settings.keys() - set(EVENT_METHODS[method].settings):
        raise ValueError(f'the events of {method} do not depend on {min(unknown)}; leave it out')
    static(method, graphs, np.zeros(0))
    graph = jax.tree.map(lambda a: np.asarray(a)[0], graphs)
    network = Network(
        *(graph, world),
        flops=flops,
        bits=bits,
        number_bits=number_bits,
        codec=codec,
        loss=loss,
        mixing=mixing,
        sizes=sizes,
        seed=seed,
    )
    if ends is not None and seconds is not None:
        raise ValueError('seconds and ends both say how long it goes on; leave one out')
    if seconds is not None:
        ends = np.linspace(0, seconds, intervals + 1)[1:]
    in_use: list[set[Version]] = []
    all_events = EVENT_METHODS[method].events(network, **settings)
    if ends is None:
        events = recorded(all_events, updates=updates)
        ends = np.linspace(0, events[-1].time, intervals + 1)[1:]
    else:
        events = recorded(watched(all_events, network, ends, in_use), float(ends[-1]), updates)
    _check_counts(events, ends)
    columns = max(2, *(len(event.members) for event in events))
    slots, places, per_interval = pack(events, network.clients, ends, columns, width, in_use)
    return Plan(method, events, slots, places, per_interval, ends, settings, number_bits, codec)


def model_bits(method: str, model: Model, codec: Codec | None = None) -> int:
    """The bits of a model that a client of the method sends; of one that sends parts, those of all
    its numbers, not coded."""
    if EVENT_METHODS[method].in_parts:
        return model.size * weight_bits(model)
    age = bits_of_number(np.int32) if EVENT_METHODS[method].counts_age else 0
    return (codec or chain()).bits(model.shapes) + age


def weight_bits(model: Model) -> int:
    """The bits of one weight, of the widest of their types."""
    return bits_of_number(jnp.result_type(*jax.tree.leaves(model.shapes)))


def _check_counts(events: list[Event], ends: np.ndarray) -> None:
    """Raises ValueError where what a client sends in an interval is too much for the counter."""
    sent: Counter[tuple[int, int]] = Counter()
    for interval, event in zip(
        np.searchsorted(ends, [e.time for e in events]), events, strict=True
    ):
        for client, count in zip(event.members, event.sent, strict=True):
            sent[int(interval), client] += count
    (interval, client), most = sent.most_common(1)[0]
    if most > (bound := np.iinfo(np.int32).max):
        raise ValueError(
            f'client {client} sends {most} parameters in interval {interval + 1}, and no more than '
            f'{bound} can be counted; use shorter intervals'
        )


def method_of(plan: Plan, model: Model, **settings: Any) -> Algorithm:
    """The method of a plan, with some of its settings given by name, flat as in `methods.make`.

    Raises TypeError for a setting that the method does not have, and ValueError for one that is the
    plan's, and for a model whose numbers are not those of a plan that counts them.
    """
    if EVENT_METHODS[plan.method].in_parts and plan.number_bits != weight_bits(model):
        raise ValueError(
            f'the plan is of numbers of {plan.number_bits} bits, and those of the model have '
            f'{weight_bits(model)}; plan with number_bits={weight_bits(model)}'
        )
    factory, of_events = EVENT_METHODS[plan.method].factory, EVENT_METHODS[plan.method].settings
    if given := [name for name in of_events if name in settings]:
        raise ValueError(
            f'{given[0]}={settings[given[0]]}: the events follow from it; plan with it'
        )
    arguments = assemble(factory, settings)
    algorithm = factory(model, places=plan.places, **plan.settings, **arguments)
    return algorithm._replace(exchange=Exchange(plan.codec))
