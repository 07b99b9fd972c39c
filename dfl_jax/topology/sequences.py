"""Sequences of weighted graphs that average all clients in fewer rounds than each of them alone.

A round is its arcs [E, 2], a client and one that it hears, and their weights [E]. Every mixing
matrix is doubly stochastic, and the labels are fixed: the property is of the sequence.
"""

import functools

import numpy as np

from dfl_jax.topology.family_settings import Settings

Arcs = tuple[np.ndarray, np.ndarray]  # [E, 2], and their weights [E]
Rounds = list[list[Arcs]]  # of each round, the arcs of its parts


def one_peer_exponential(settings: Settings, rng: np.random.Generator) -> list[Arcs]:
    """Client i hears i - 2^r in round r of ceil(log2 M), half and half (Ying et al. 2021).

    The exact average where M is a power of two, and only there.

    >>> [arcs[0].tolist() for arcs, _ in one_peer_exponential(Settings(8), None)]
    [[0, 7], [0, 6], [0, 4]]
    """
    clients = np.arange(settings.clients)
    offsets = 2 ** np.arange((settings.clients - 1).bit_length())
    half = np.full(settings.clients, 0.5)
    return [(np.stack([clients, (clients - o) % settings.clients], axis=1), half) for o in offsets]


def one_peer_equi(settings: Settings, rng: np.random.Generator) -> list[Arcs]:
    """Client i hears i - u in a round, u drawn anew from 1 to M - 1: OD-EquiDyn (Song et al. 2022).

    W = I / 2 + A_u / 2 with A_u = I / M + (M - 1) / M times the shift by u. The squared distance
    from the mean shrinks by (1 - 1 / M) / 2 a round in expectation, with any number of clients.

    >>> len(one_peer_equi(Settings(6, rounds=4), np.random.default_rng(0)))
    4
    """
    clients = np.arange(settings.clients)
    weight = np.full(settings.clients, (settings.clients - 1) / (2 * settings.clients))
    offsets = rng.integers(1, settings.clients, size=settings.rounds)
    return [
        (np.stack([clients, (clients - u) % settings.clients], axis=1), weight) for u in offsets
    ]


def base_graph(settings: Settings, rng: np.random.Generator) -> list[Arcs]:
    """The base-(k+1) graph, k = degree: the exact average of any number of clients.

    Takezawa et al., "Beyond Exponential Graph" (NeurIPS 2023); at most k neighbours each.
    M = p q, p the largest divisor without a prime factor above k + 1: the simple base-(k+1) graph
    averages p groups of q clients, then a hyper-hypercube one client of each group; or the simple
    graph averages all, where that takes no more rounds. A client may be without a link in a round,
    where the authors' program can link such clients to each other.

    >>> len(base_graph(Settings(6, degree=1), None))  # rounds until all have the mean
    4
    """
    clients, base = settings.clients, settings.degree + 1
    every_client = np.arange(clients)
    parts_of_rounds = _simple_base(every_client[None], base)
    p = max(d for d in range(1, clients + 1) if clients % d == 0 and _factors(d, base) is not None)
    if 1 < p < clients:
        groups = every_client.reshape(p, -1)
        two_steps = _simple_base(groups, base) + _hyper_hypercube(groups.T, base)
        parts_of_rounds = min(parts_of_rounds, two_steps, key=len)
    return [tuple(map(np.concatenate, zip(*parts, strict=True))) for parts in parts_of_rounds]


def _simple_base(networks: np.ndarray, base: int) -> Rounds:
    """The simple base-(k+1) graphs of networks [B, n] apart from each other.

    n = sum_l a_l base^p_l, the digits of n: parts of so many clients average each by itself, then
    every client of the later parts hears one of each of the a_l rows of part l, after which both
    sides have the mean of all, and part l averages again.
    """
    count, n = networks.shape
    if _factors(n, base) is not None:
        return _hyper_hypercube(networks, base)
    powers = [base**p for p in reversed(range(n.bit_length())) if base**p <= n]
    sizes = [(n // power % base * power, power) for power in powers]
    sizes = [(size, power) for size, power in sizes if size]
    ends = np.cumsum([size for size, _ in sizes])
    parts = np.split(networks, ends[:-1], axis=1)
    averaged = [_hyper_hypercube(part, base) for part in parts]
    begin = len(averaged[0])
    rounds: Rounds = [[] for _ in range(begin + len(powers))]
    for number, (part, (size, power)) in enumerate(zip(parts, sizes, strict=True)):
        later = networks[:, ends[number] :]  # [B, R], R < power
        again: Rounds = []
        if later.size:
            rows = part.reshape(count, -1, power)
            near = rows[:, :, : later.shape[1]]  # [B, a, R]
            pairs = np.stack([near, np.broadcast_to(later[:, None], near.shape)], -1).reshape(-1, 2)
            share = power / (size + later.shape[1])
            both = np.concatenate([pairs, pairs[:, ::-1]])
            rounds[begin + number].append((both, np.full(len(both), share)))
            again = _hyper_hypercube(rows.reshape(-1, power), base)
        for first, steps in ((0, averaged[number]), (begin + number + 1, again)):
            for place, step in enumerate(steps, first):
                rounds[place] += step
    return rounds


def _hyper_hypercube(networks: np.ndarray, base: int) -> Rounds:
    """The k-peer hyper-hypercube graphs of networks [B, n] apart from each other.

    A round for each factor of n, in which cliques of so many clients average.
    """
    factors = _factors(networks.shape[1], base) or ()
    rounds: Rounds = []
    for axis, size in enumerate(factors, 1):
        cliques = np.moveaxis(networks.reshape(-1, *factors), axis, -1).reshape(-1, size)
        first, second = np.nonzero(~np.eye(size, dtype=bool))
        arcs = np.stack([cliques[:, first], cliques[:, second]], axis=-1).reshape(-1, 2)
        rounds.append([(arcs, np.full(len(arcs), 1 / size))])
    return rounds


@functools.cache
def _factors(n: int, most: int) -> tuple[int, ...] | None:
    """The shortest factorisation of n into factors up to `most`; None where there is none."""
    if n == 1:
        return ()
    found = [
        (first, *rest)
        for first in range(2, min(n, most) + 1)
        if n % first == 0 and (rest := _factors(n // first, most)) is not None
    ]
    return min(found, key=len, default=None)
