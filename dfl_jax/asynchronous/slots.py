"""Packs events into slots whose events do not depend on each other, for a scan on the device.

An event reads models as they are before its slot and writes after all of the slot have read, so
that it comes later than those that wrote what it reads or changes, and no later than it must. A
version that is still to be read after its client has changed gets a place among the past models in
the slot of the change, which the next one takes over in a slot after the last read. Of past models
there are as few at a time as the slots allow, and some more places to spare.
"""

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dfl_jax.asynchronous.events import Event, Version
from dfl_jax.base import Array
from dfl_jax.host_memory import lack_of_memory

NONE = -1  # no place among the past models
WIDTHS = (1.0, 1.3, 1.7)  # tried, as factors of the mean width of slots without a bound
BYTES_OF_MEMBER = 25  # its entries in the [S, H, K] arrays of `Slots`


class Slots(NamedTuple):
    """Slots of H events each, as data of a scan; axes as of a schedule of graphs.

    S slots stand in place of T rounds. Padding of members repeats the client that updates; events
    that are not active stand for nothing.
    """

    members: Array  # [S, H, K] int32; column 0 the client that updates
    mask: Array  # [S, H, K] bool, members whose models are read; none where it is not active
    active: Array  # [S, H] bool, there is such an event
    weights: Array | None  # [S, H, K] floating, of the members in an average; None: the method's
    source: Array  # [S, H, K] int32, place of the model among the past ones; NONE: the present one
    versions: Array  # [S, H, K] int32, how often the model had changed
    saved: Array  # [S, H] int32, place that the last member's model takes before it is overwritten
    updates: Array  # [S, H] int32, local ones that the client has made before
    sent: Array  # [S, H, K] int32, messages of the member that arrived, or parameters
    # [S, H, K] int32, the fragment that is read of the member's model; None: all of it
    fragments: Array | None = None


class Packed(NamedTuple):
    """What `pack` makes."""

    slots: Slots
    places: int  # R, of past models; at least one
    per_interval: int  # slots of an interval


def pack(
    events: Sequence[Event],
    clients: int,
    ends: np.ndarray,
    columns: int,
    width: int | None = None,
    in_use: Sequence[set[Version]] = (),
) -> Packed:
    """The slots of some events, the same number in each interval of simulated time.

    Args:
      events: in their order.
      clients: M.
      ends: [intervals] seconds at which intervals end, increasing; events at an end belong to the
        interval before, all after the last to the last one.
      columns: K, at least that of all events.
      width: H, the most events of a slot; None for the one of least padding in the first interval
        with events, which an accelerator works on like on events.
      in_use: of each interval, or of the first ones, the versions that are kept beyond its end.

    The slots of an interval and the places of past models do not depend on the events after it.
    Raises ValueError where the host's memory does not hold the slots.
    """
    times = np.array([event.time for event in events])
    intervals = np.minimum(np.searchsorted(ends, times, side='left'), len(ends) - 1)
    if width is None:
        count = int(np.sum(intervals == intervals[0]))
        first = events[:count], intervals[:count]
        counts = np.bincount(_levels(*first, clients))
        most, mean = int(counts.max()), count / len(counts)
        tried = {min(math.ceil(factor * mean), most) for factor in WIDTHS} | {most}
        width = min(tried, key=lambda w: w * (int(_levels(*first, w).max()) + 1))
    levels = _levels(events, intervals, width)
    per_interval = int(levels.max()) + 1
    of_events = intervals * per_interval + levels
    shape = len(ends) * per_interval, width, columns
    if lack := lack_of_memory(math.prod(shape) * BYTES_OF_MEMBER):
        raise ValueError(
            f'{shape[0]} slots of {width} events take {lack}; simulate fewer seconds, or in fewer '
            'intervals'
        )
    sources, saved, places = _places(events, of_events, in_use, per_interval)
    slots = _filled(events, of_events, sources, saved, shape, clients)
    # Some to spare, up to a half, so that most longer runs need as many
    step = 2 ** max((places - 1).bit_length() - 2, 0)
    return Packed(slots, max(-(-places // step) * step, 1), per_interval)


def _levels(events: Sequence[Event], intervals: np.ndarray, width: int) -> np.ndarray:
    """The slot of each event within its interval, [E]: the first that is after those that wrote
    what it reads or changes, and that has fewer than `width` events."""
    start = (-1, 0)  # interval and slot in which the first models were there
    written: dict[int, list[tuple[int, int]]] = defaultdict(lambda: [start])  # by version
    levels = np.zeros(len(events), int)
    counts: list[int] = []
    first_free: list[int] = []  # of each full slot one that may be free, else the slot itself
    current = -1
    for number, (event, interval) in enumerate(zip(events, intervals.tolist(), strict=True)):
        if interval != current:
            current, counts, first_free = interval, [], []
        level = 0
        for k, (client, version) in enumerate(zip(event.members, event.versions, strict=True)):
            before = [written[client][version]]
            if k < event.written:
                before.append(written[client][-1])
            level = max([level, *(slot + 1 for when, slot in before if when == interval)])
        passed = []
        while level < len(counts) and counts[level] >= width:
            passed.append(level)
            level = first_free[level] if first_free[level] > level else level + 1
        for full in passed:
            first_free[full] = level
        while len(counts) <= level:
            first_free.append(len(counts))
            counts.append(0)
        counts[level] += 1
        levels[number] = level
        for client in event.members[: event.written]:
            written[client].append((interval, level))
    return levels


def _places(
    events: Sequence[Event], slots: np.ndarray, in_use: Sequence[set[Version]], per_interval: int
) -> tuple[list[list[int]], list[int], int]:
    """Where each event finds the models that it reads, the place of what it overwrites, and the
    number of places."""
    writers: dict[int, list[int]] = defaultdict(list)  # client -> events, of versions 1, 2, ...
    for number, event in enumerate(events):
        for client in event.members[: event.written]:
            writers[client].append(number)

    def overwritten(client: int, version: int) -> float:
        """The slot in which the next version takes the place of this one; infinite for never."""
        writes = writers[client]
        return slots[writes[version]] if version < len(writes) else math.inf

    last_read: dict[Version, int] = {}  # slot, of the versions that are read too late
    for event, slot in zip(events, slots.tolist(), strict=True):
        for model in zip(event.members, event.versions, strict=True):
            if slot > overwritten(*model):
                last_read[model] = max(last_read.get(model, 0), slot)
    for interval, models in enumerate(in_use):
        last = (interval + 1) * per_interval - 1
        for model in models:
            if overwritten(*model) <= last:
                last_read[model] = max(last_read.get(model, 0), last)
    place_of: dict[Version, int] = {}
    saved = [NONE] * len(events)
    places = 0
    taken: list[tuple[int, int]] = []  # a heap of (slot of the last read, place)
    for model in sorted(last_read, key=lambda m: (overwritten(*m), m)):
        writer = writers[model[0]][model[1]]
        if taken and taken[0][0] < slots[writer]:
            place = heapq.heappop(taken)[1]
        else:
            place, places = places, places + 1
        heapq.heappush(taken, (last_read[model], place))
        place_of[model] = saved[writer] = place
        assert events[writer].members[events[writer].written - 1] == model[0]
    sources = [
        [
            place_of[model] if slot > overwritten(*model) else NONE
            for model in zip(event.members, event.versions, strict=True)
        ]
        for event, slot in zip(events, slots.tolist(), strict=True)
    ]
    return sources, saved, places


def _filled(events, of_events, sources, saved, shape, clients) -> Slots:
    """The arrays of the slots; shape: (S, H, K)."""
    number_of_slots, width, columns = shape
    if width < clients and all(max(event.members) < width for event in events):
        width += 1  # `check_shapes` takes a network without its last clients for another one
    filled = np.zeros(number_of_slots, int)
    rows = np.empty(len(events), int)
    for number, slot in enumerate(of_events.tolist()):
        rows[number], filled[slot] = filled[slot], filled[slot] + 1
    counts = [len(event.members) for event in events]
    column = np.concatenate([np.arange(count) for count in counts])
    of_members = np.repeat(of_events, counts), np.repeat(rows, counts), column

    def by_event(values: Sequence, empty: int = 0) -> np.ndarray:
        """[S, H] from a number for each event."""
        array = np.full((number_of_slots, width), empty, np.int32)
        array[of_events, rows] = values
        return array

    def by_member(values: Sequence, empty: int = 0, dtype: type = np.int32) -> np.ndarray:
        """[S, H, K] from a number for each member of each event."""
        array = np.full((number_of_slots, width, columns), empty, dtype)
        array[of_members] = [*itertools.chain.from_iterable(values)]
        return array

    active = by_event([1] * len(events)) > 0
    mask = by_member([[1] * count for count in counts]) > 0
    members = by_member([event.members for event in events], clients - 1)
    return Slots(
        np.where(active[:, :, None] & ~mask, members[:, :, :1], members),
        mask,
        active,
        by_member([e.weights for e in events], dtype=np.float64) if events[0].weights else None,
        by_member(sources, NONE),
        by_member([event.versions for event in events]),
        by_event(saved, NONE),
        by_event([event.updates for event in events]),
        by_member([event.sent for event in events]),
        by_member([event.fragments for event in events]) if events[0].fragments else None,
    )
