"""When each client has finished each round: the network's clock, on the host.

A round of client h begins when its last one has ended. It works, sends its messages at l_h, and has
finished when all that reach it this round are there,

    l_h <- max(t_h + work_h / speed_h,  l_h + bits_h / uplink_h of the round before),
    t_h <- max over delivered links m -> h of  l_m + latency_mh + bits_mh / rate,
    rate = min(uplink_m / links out of m, downlink_h / links into h),

its own work among them: messages leave when the work is done and the uplink has carried those of
the round before. They move at equal shares of the slower end, and every link of a round is counted
as if all were used at once. A client does not wait for those that it does not hear, so that a
straggler delays a client at a distance of d links only d rounds later. With a barrier all wait for
the last. The bits that a client sends in a round are spread evenly over its links.
"""

from typing import NamedTuple

import numpy as np

from dfl_jax.base import Graph
from dfl_jax.timing.world import World

BLOCK = 2**22  # links of rounds whose times are computed at once, 32 MiB an array


class NeverOnlineError(ValueError):
    """Clients wait for one that never comes back."""


class Counts(NamedTuple):
    """What each client does in each round."""

    bits: np.ndarray  # [T, M] that it sends over delivered links
    flops: np.ndarray  # [T, M]
    # [T, M] those that aggregators of meetings do when all messages are there; None: all of theirs
    combining_flops: np.ndarray | None = None


class Clock(NamedTuple):
    """Simulated seconds at which the clients may go on."""

    ready: np.ndarray  # [M] with the next round
    uplink_free: np.ndarray  # [M] when the uplink has carried all that the client has sent


class Rules(NamedTuple):
    """Who waits for what."""

    barrier: bool = False  # all for the last client of each round
    overlap: bool = False  # messages leave before the work of the round, as it does not change them
    meetings: bool = False  # aggregators combine messages when all are there
    replies: bool = False  # senders of meetings wait for what comes back
    period: float = 0.0  # seconds: round r = 0, 1, ... does not begin before r times so many


ROUNDS = Rules()


def finish_times(graphs: Graph, counts: Counts, world: World, rules: Rules = ROUNDS) -> np.ndarray:
    """Simulated seconds at which each client has finished each round, [T, M].

    Work begins only while a client is online, and then goes on to its end. An inactive client takes
    no time.

    Args:
      graphs: the schedule, [T, H, K]; column 0 of the members is the client that an aggregator is.
      counts: bits and flops.
      world: of M clients.
      rules: who waits for what.

    Raises NeverOnlineError where a client that others wait for never comes back online.

    >>> import numpy as np; from dfl_jax import topology; from dfl_jax.timing import world
    >>> ring = topology.schedule('ring', 4, 3, seed=0, static=True)
    >>> counts = Counts(np.full((3, 4), 2e6), np.full((3, 4), 1e9))
    >>> finish_times(ring, counts, world(4, speed=1e9, uplink=1e6, latency=0))[:, 0].tolist()
    [3.0, 6.0, 9.0]
    """
    return advance(graphs, counts, world, rules)[0]


def advance(
    graphs: Graph,
    counts: Counts,
    world: World,
    rules: Rules = ROUNDS,
    clock: Clock | None = None,
    first: int = 0,
) -> tuple[np.ndarray, Clock]:
    """`finish_times` [T, M] of rounds that go on from a clock (default, zero), and the one after.

    first: the number of the first of these rounds.
    """
    rounds, clients = counts.flops.shape
    working = counts.flops / world.speed
    combining = np.zeros_like(working)
    if rules.meetings:
        last = counts.combining_flops
        last = _of_aggregators(graphs, counts.flops) if last is None else last
        combining = last / world.speed
    times = np.zeros((rounds, clients))
    now, uplink_free = clock or (np.zeros(clients), np.zeros(clients))
    links = graphs.members[0].size
    block = max(1, BLOCK // links)
    for start in range(0, rounds, block):
        part = slice(start, start + block)
        there, back = _transfers(graphs, counts.bits, world, rules, part)
        for round in range(start, min(start + block, rounds)):
            members, active = graphs.members[round], graphs.active[round]
            delivered = graphs.mask[round] & active[:, None]
            homes = members[:, 0]
            uploading = counts.bits[round] / world.uplink
            began = world.next_online(np.maximum(now, (first + round) * rules.period))
            ready = began + (working[round] - combining[round])
            leaves = np.maximum(began if rules.overlap else ready, uplink_free)
            arrives = leaves[members] + there[round - start]
            arrives[:, 0] = ready[homes]
            done = np.maximum(np.where(delivered, arrives, -np.inf).max(axis=1), ready[homes])
            done = done + combining[round][homes]
            later = np.maximum(now, (first + round) * rules.period)
            later[homes[active]] = done[active]
            if rules.meetings and rules.replies:
                answers = np.maximum(done, uplink_free[homes])
                leaves[homes[active]] = answers[active]
            if rules.meetings:
                free = answers[:, None] + back[round - start] if rules.replies else ready[members]
                free = np.where(delivered, free, -np.inf)
                np.maximum.at(later, members[:, 1:], free[:, 1:])
            if not np.isfinite(later).all():
                _never(round, began, now)
            if rules.barrier:
                later[:] = later.max()
            uplink_free = np.where(uploading > 0, leaves + uploading, uplink_free)
            times[round] = now = later
    return times, Clock(now, uplink_free)


def _of_aggregators(graphs: Graph, flops: np.ndarray) -> np.ndarray:
    """The flops of the aggregators, zero elsewhere, [T, M]."""
    found = np.zeros_like(flops)
    homes = np.asarray(graphs.members)[:, :, 0]
    np.put_along_axis(found, homes, np.take_along_axis(flops, homes, axis=1), axis=1)
    return found


def _never(round: int, began: np.ndarray, now: np.ndarray) -> None:
    if np.isfinite(began).all():
        raise ValueError(f'a message of round {round + 1} takes for ever; give faster links')
    client = int(np.flatnonzero(~np.isfinite(began))[0])
    raise NeverOnlineError(
        f'client {client} never comes back after {now[client]:.6g} s, and others wait for it in '
        f'round {round + 1}; let absent clients be left out, or give them times online'
    )


def _transfers(
    graphs: Graph, bits: np.ndarray, world: World, rules: Rules, part: slice
) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of a message on each link of some rounds, and of what comes back, [rounds, H, K]."""
    members = np.asarray(graphs.members[part])
    delivered = graphs.mask[part] & graphs.active[part][:, :, None]
    delivered[:, :, 0] = False
    homes = np.broadcast_to(members[:, :, :1], members.shape)
    clients = len(world.speed)
    numbers = np.arange(len(members))[:, None, None] * clients
    leaving = np.bincount((numbers + members)[delivered], minlength=len(members) * clients)
    arriving = np.bincount((numbers + homes)[delivered], minlength=len(members) * clients)
    out, into = (n.reshape(len(members), clients) for n in (leaving, arriving))

    def seconds(senders, receivers, links_out, links_in):
        rows = np.arange(len(members))[:, None, None]
        shares_out = np.maximum(links_out[rows, senders], 1)
        shares_in = np.maximum(links_in[rows, receivers], 1)
        rate = np.minimum(world.uplink[senders] / shares_out, world.downlink[receivers] / shares_in)
        return world.delay(senders, receivers) + bits[part][rows, senders] / shares_out / rate

    there = seconds(members, homes, out, into)
    return there, seconds(homes, members, into, out) if rules.replies else there


def energy(counts: Counts, joules_per_operation: float, joules_per_bit: float) -> np.ndarray:
    """Joules that all clients have spent after each round, [T]: the work, and the bits sent."""
    spent = counts.flops * joules_per_operation + counts.bits * joules_per_bit
    return spent.sum(axis=1).cumsum()
