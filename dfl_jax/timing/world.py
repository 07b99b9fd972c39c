"""The world that a run is replayed in: what clients compute with, and what lies between them."""

from typing import NamedTuple

import numpy as np

from dfl_jax.setting_error import SettingError

FIELDS = ('speed', 'uplink', 'downlink', 'latency')
UNITS = {
    'speed': 'operations a second',
    'uplink': 'bits a second',
    'downlink': 'bits a second',
    'latency': 'seconds',
}
STREAM = 24  # of random numbers, apart from those of topologies


class Online(NamedTuple):
    """When clients are online: intervals, which repeat with the period."""

    starts: np.ndarray  # [M, J] seconds, increasing; infinite where a client has fewer than J
    ends: np.ndarray  # [M, J]
    period: float | np.ndarray = np.inf  # seconds, of all clients or of each, [M]

    def of(self, clients: np.ndarray | slice) -> 'Online':
        """The times of these clients."""
        each = self.period if np.ndim(self.period) == 0 else np.asarray(self.period)[clients]
        return Online(self.starts[clients], self.ends[clients], each)


class World(NamedTuple):
    """What each client computes with, and what its messages pass."""

    speed: np.ndarray  # [M] operations a second
    uplink: np.ndarray  # [M] bits a second, of all that it sends at a time
    downlink: np.ndarray  # [M] bits a second, of all that it receives at a time
    latency: np.ndarray  # [M] seconds that a message of the client takes; [M, M]: from i to j
    online: Online | None = None  # None: always

    def is_online(self, times: np.ndarray) -> np.ndarray:
        """Whether each client is online at its time of `times` [M]."""
        if self.online is None:
            return np.ones(len(self.speed), bool)
        starts, ends, _ = self.online
        within = (times - self._period_begins(times))[:, None]
        return ((starts <= within) & (within < ends)).any(axis=1)

    def next_online(self, times: np.ndarray) -> np.ndarray:
        """The first time from `times` [M] on at which each client is online; infinite for never."""
        if self.online is None:
            return times
        starts, ends, period = self.online
        starts = np.where(ends > starts, starts, np.inf)
        begin = self._period_begins(times)
        later = np.where(starts > (times - begin)[:, None], starts, np.inf)
        again = period + starts.min(axis=1, initial=np.inf)
        then = begin + np.minimum(later.min(axis=1, initial=np.inf), again)
        return np.where(self.is_online(times), times, then)

    def _period_begins(self, times: np.ndarray) -> np.ndarray:
        period = np.broadcast_to(self.online.period if self.online else np.inf, times.shape)
        repeats = np.isfinite(period)
        period = np.where(repeats, period, 1.0)
        return np.where(repeats, np.floor(times / period) * period, 0.0)

    def delay(self, senders: np.ndarray, receivers: np.ndarray) -> np.ndarray:
        """Seconds of latency from senders to receivers, arrays of one shape."""
        if self.latency.ndim == 1:
            return self.latency[senders]
        return self.latency[senders, receivers]


def world(
    clients: int,
    seed: int = 0,
    *,
    speed: str | float = 1e10,
    uplink: str | float = 5.6e6,
    downlink: str | float | None = None,
    latency: str | float = 0.05,
    online: str = 'always',
) -> World:
    """Draws a world. Equal seeds, equal worlds.

    Args:
      clients: M.
      seed: non-negative.
      speed: operations a second: a number for all; `lognormal:MEDIAN:SIGMA`, with SIGMA of the
        logarithm; or `two:SLOW:FAST:SHARE`, the slow ones being a random share of the clients.
      uplink, downlink: bits a second, likewise; a downlink is as fast as its uplink by default.
      latency: seconds of a message, likewise.
      online: `always`, or `sine:PERIOD:SHARE`: in every period a client is online for that share
        of it, at a phase of its own, as devices by time zone are.

    Raises SettingError for a text that is none of these, and ValueError for numbers that no client
    can have.

    >>> world(4, speed='two:1e9:1e10:0.5').speed.tolist()
    [10000000000.0, 1000000000.0, 10000000000.0, 1000000000.0]
    """
    texts = {'speed': speed, 'uplink': uplink, 'latency': latency}
    if downlink is not None:
        texts['downlink'] = downlink
    arrays = {
        name: _draw(name, str(text), clients, _generator(seed, FIELDS.index(name)))
        for name, text in texts.items()
    }
    arrays.setdefault('downlink', arrays['uplink'].copy())
    return checked(World(**arrays, online=_online(online, clients, _generator(seed, len(FIELDS)))))


def _generator(seed: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng([seed, STREAM, purpose])


def _draw(name: str, text: str, clients: int, rng: np.random.Generator) -> np.ndarray:
    kind, *numbers = text.split(':')
    try:
        match kind, [float(number) for number in numbers]:
            case 'lognormal', [median, sigma] if sigma >= 0:
                return median * np.exp(sigma * rng.standard_normal(clients))
            case 'two', [slow, fast, share] if 0 <= share <= 1:
                are_slow = rng.permutation(clients) < round(share * clients)
                return np.where(are_slow, slow, fast)
            case _, []:
                return np.full(clients, float(kind))
    except ValueError:
        pass
    forms = f'a number of {UNITS[name]}, lognormal:MEDIAN:SIGMA or two:SLOW:FAST:SHARE'
    raise SettingError(name, text, f'write {forms}')


def _online(text: str, clients: int, rng: np.random.Generator) -> Online | None:
    if text == 'always':
        return None
    try:
        kind, *numbers = text.split(':')
        period, share = map(float, numbers)
        if kind != 'sine' or not (0 < period < np.inf and 0 < share <= 1):
            raise ValueError
    except ValueError:
        forms = 'always or sine:PERIOD:SHARE, e.g. sine:86400:0.5'
        raise SettingError('online', text, f'write {forms}') from None
    if share == 1:
        return None
    start = rng.random(clients) * period
    end = start + share * period
    # What passes the end of the period begins the next one
    starts = np.stack([np.zeros(clients), start], axis=1)
    ends = np.stack([np.maximum(end - period, 0), np.minimum(end, period)], axis=1)
    return Online(starts, ends, period)


def checked(world: World) -> World:
    """The world. Raises ValueError for numbers that no client can have."""
    found = len(world.speed)
    for name in FIELDS:
        array = getattr(world, name)
        least = 0 if name == 'latency' else np.nextafter(0, 1)
        bad = ~(np.isfinite(array) if name in ('speed', 'latency') else ~np.isnan(array))
        bad |= ~(array >= least)
        if bad.any():
            at = np.argwhere(bad)[0]
            raise ValueError(
                f'{name} of client {at[0]} is {array[tuple(at)]:g} {UNITS[name]}; it has to be '
                + ('at least 0' if name == 'latency' else 'above 0')
            )
        if array.shape[0] != found or array.shape[1:] not in ((), (found,) * (name == 'latency')):
            raise ValueError(f'{name} of shape {array.shape} for {found} clients')
    if world.online is not None:
        _check_online(world.online, found)
    return world


def _check_online(online: Online, clients: int) -> None:
    starts, ends, period = online
    if starts.shape != ends.shape or starts.ndim != 2 or len(starts) != clients:
        raise ValueError(
            f'online times of shapes {starts.shape} and {ends.shape} for {clients} clients'
        )
    if np.shape(period) not in ((), (clients,)):
        raise ValueError(
            f'a period of shape {list(np.shape(period))} for {clients} clients; give one number, '
            'or one for each client'
        )
    each = np.broadcast_to(period, clients)
    if not (each > 0).all():
        least = each[~(each > 0)][0]
        raise ValueError(f'online times repeat after {least:g} seconds; it has to be above 0')
    given = np.isfinite(starts)
    follows = np.concatenate(
        [np.zeros((clients, 1)), np.where(given, ends, np.inf)[:, :-1]], axis=1
    )
    bad = given & ~((starts >= follows) & (ends >= starts) & (ends <= each[:, None]))
    if bad.any() or np.isnan(starts).any():
        client = int(np.argwhere(bad | np.isnan(starts))[0][0])
        raise ValueError(
            f'online times of client {client} run backwards, overlap or pass the period of '
            f'{each[client]:g} s'
        )


def subset(world: World, clients: int, seed: int) -> World:
    """So many clients of a world, drawn at random in random order; all of it as it is where it has
    no more. Raises SettingError where it has fewer."""
    found = len(world.speed)
    if found < clients:
        text = f'a world of {found} clients for {clients}; name a larger one'
        raise SettingError.of(text, clients=clients)
    if found == clients:
        return world
    chosen = _generator(seed, len(FIELDS) + 1).permutation(found)[:clients]
    latency = world.latency[chosen] if world.latency.ndim == 1 else world.latency[chosen][:, chosen]
    online = world.online and world.online.of(chosen)
    speed, uplink, downlink = (a[chosen] for a in world[:3])
    return World(speed, uplink, downlink, latency, online)
