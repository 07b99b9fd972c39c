"""Packs events into slots whose events do not depend on each other, for a scan on the device.

An event reads models as they are before its slot and writes after all of the slot have read, so
that it comes later than those that wrote what it reads or changes, and no later than it must. A
version that is still to be read after its client has changed gets a place among the past models in
the slot of the change, which the next one takes over in a slot after the last read. Of past models
there are as few at a time as the slots allow, and some more places to spare.
"""

import heapq
import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dfl_jax.asynchronous.events import Event, Version
from dfl_jax.base import Array
from dfl_jax.host import lack_of_memory

NONE = -1  # no place among the past models
WIDTHS = (1.0, 1.3, 1.7)  # tried, as factors of the mean width of slots without a bound
BYTES_OF_MEMBER = 21  # its entries in the [S, H, K] arrays of `Slots`


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
    held: Sequence[set[Version]] = (),
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
      held: of each interval, or of the first ones, the versions that are kept beyond its end.

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
    if lack := lack_of_memory(len(ends) * per_interval * width * columns * BYTES_OF_MEMBER):
        raise ValueError(
            f'{len(ends) * per_interval} slots of {width} events take {lack}; simulate fewer '
            'seconds, or in fewer intervals'
        )
    sources, saved, places = _places(events, of_events, held, per_interval)
    slots = _filled(
        events, of_events, sources, saved, (len(ends) * per_interval, width, columns), clients
    )
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
    events: Sequence[Event], slots: np.ndarray, held: Sequence[set[Version]], per_interval: int
) -> tuple[list[list[int]], list[int], int]:
    """Where each event finds the models that it reads, the place of what it overwrites, and the
    number of places."""
    writers: dict[int, list[int]] = defaultdict(list)  # client -> events, of versions 1, 2, ...
    for number, event in enumerate(events):
        for client in event.members[: event.written]:
            writers[client].append(number)
    last_read: dict[tuple[int, int], int] = {}  # slot, of the versions that are read too late
    for number, event in enumerate(events):
        for model in zip(event.members, event.versions, strict=True):
            client, version = model
            if version < len(writers[client]) and slots[number] > slots[writers[client][version]]:
                last_read[model] = max(last_read.get(model, 0), int(slots[number]))
    for interval, models in enumerate(held):
        last = (interval + 1) * per_interval - 1
        for client, version in models:
            if version < len(writers[client]) and slots[writers[client][version]] <= last:
                model = client, version
                last_read[model] = max(last_read.get(model, 0), last)
    place_of: dict[tuple[int, int], int] = {}
    saved = [NONE] * len(events)
    places = 0
    taken: list[tuple[int, int]] = []  # a heap of (slot of the last read, place)
    for model in sorted(last_read, key=lambda m: (slots[writers[m[0]][m[1]]], m)):
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
            place_of[client, version]
            if version < len(writers[client]) and slots[number] > slots[writers[client][version]]
            else NONE
            for client, version in zip(event.members, event.versions, strict=True)
        ]
        for number, event in enumerate(events)
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
    at = of_events, rows

    def padded(entries: list, padding: list, dtype: type) -> np.ndarray:
        """[E, K] from lists of different lengths."""
        return np.array(
            [[*e, *[p] * (columns - len(e))] for e, p in zip(entries, padding, strict=True)], dtype
        )

    def placed(values: np.ndarray, empty: int) -> np.ndarray:
        """[S, H, ...] from [E, ...]."""
        array = np.full((number_of_slots, width, *values.shape[1:]), empty, values.dtype)
        array[at] = values
        return array

    zeros = [0] * len(events)
    members = [event.members for event in events]
    weights = None
    if events[0].weights:
        weights = placed(padded([event.weights for event in events], zeros, np.float64), 0)
    fragments = None
    if events[0].fragments:
        fragments = placed(padded([event.fragments for event in events], zeros, np.int32), 0)
    return Slots(
        placed(padded(members, [m[0] for m in members], np.int32), clients - 1),
        placed(padded([[True] * len(m) for m in members], zeros, np.bool_), False),
        placed(np.ones(len(events), bool), False),
        weights,
        placed(padded(sources, [NONE] * len(events), np.int32), NONE),
        placed(np.array(saved, np.int32), NONE),
        placed(np.array([event.updates for event in events], np.int32), 0),
        placed(padded([event.sent for event in events], zeros, np.int32), 0),
        fragments,
    )
