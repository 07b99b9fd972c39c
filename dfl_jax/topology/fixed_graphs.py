"""Families of graphs that are the same in every draw, up to the places of the clients."""

import itertools
from collections.abc import Iterable

import numpy as np

from dfl_jax.topology.family_settings import Settings

SEARCHED = 1000  # how many numbers of clients are searched for one that has a torus


def sides_of(clients: int, dimensions: int, least: int = 3) -> list[tuple[int, ...]]:
    """The factorisations of clients into `dimensions` ascending sides, none below `least`."""
    if dimensions == 1:
        return [(clients,)] if clients >= least else []
    firsts = itertools.takewhile(lambda n: n**dimensions <= clients, itertools.count(least))
    return [
        (first, *rest)
        for first in firsts
        if clients % first == 0
        for rest in sides_of(clients // first, dimensions - 1, first)
    ]


def torus(settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """A periodic lattice of d = `dimensions`, the most even sides: 2 d neighbours each.

    >>> len(torus(Settings(12, dimensions=2), np.random.default_rng(0)))  # 3 x 4
    24
    """
    sides = min(sides_of(settings.clients, settings.dimensions), key=sum)
    nodes = np.arange(settings.clients).reshape(sides)
    links = [np.stack([nodes, np.roll(nodes, -1, axis)], axis=-1) for axis in range(nodes.ndim)]
    return np.concatenate([along.reshape(-1, 2) for along in links])


def check_torus(settings: Settings) -> None:
    clients, dimensions = settings.clients, settings.dimensions
    if dimensions < 1:
        raise settings.error('dimensions', 'torus needs at least 1 dimension')
    most = 0  # dimensions, of so many clients
    while 3 ** (most + 1) <= clients:
        most += 1
    if dimensions > most or not sides_of(clients, dimensions):
        near: Iterable[int] = ()
        if dimensions <= most + 1:
            start = max(clients, 3**dimensions)
            near = range(start, start + SEARCHED)
        fits = next((n for n in near if sides_of(n, dimensions)), None)
        raise settings.error(
            'clients',
            f'torus needs clients to be a product of {dimensions} sides of at least 3',
            f'take {fits or f"dimensions={max(min(most, dimensions - 1), 1)}"}',
        )


def two_group(settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """Two complete graphs of half of the clients, joined by one link.

    >>> two_group(Settings(4), np.random.default_rng(0)).tolist()
    [[0, 1], [2, 3], [1, 2]]
    """
    first, second = np.array_split(np.arange(settings.clients), 2)
    bridge = np.array([[first[-1], second[0]]])
    return np.concatenate([clique(first), clique(second), bridge])


def ring(settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """A ring.

    >>> ring(Settings(4), np.random.default_rng(0)).tolist()
    [[0, 1], [1, 2], [2, 3], [3, 0]]
    """
    nodes = np.arange(settings.clients, dtype=np.int32)
    return np.stack([nodes, np.roll(nodes, -1)], axis=1)


def line(settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """A ring without its last link.

    >>> line(Settings(4), np.random.default_rng(0)).tolist()
    [[0, 1], [1, 2], [2, 3]]
    """
    return ring(settings, rng)[:-1]


def directed_ring(settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """A ring in which each client hears its predecessor.

    >>> directed_ring(Settings(3), np.random.default_rng(0)).tolist()
    [[1, 0], [2, 1], [0, 2]]
    """
    return ring(settings, rng)[:, ::-1]


def exponential(settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """Links [M tau, 2] from client i to i - 2^j mod M for all 2^j < M (Ying et al. 2021).

    >>> exponential(Settings(8), np.random.default_rng(0))[:3].tolist()
    [[0, 7], [0, 6], [0, 4]]
    """
    nodes = np.arange(settings.clients)
    offsets = 2 ** np.arange((settings.clients - 1).bit_length())
    heard = (nodes[:, None] - offsets) % settings.clients
    return np.stack([np.repeat(nodes, len(offsets)), heard.ravel()], axis=1)


def hypercube(settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """Links between clients, a power of two of them, whose numbers differ in one binary digit.

    >>> hypercube(Settings(4), np.random.default_rng(0)).tolist()
    [[0, 1], [2, 3], [0, 2], [1, 3]]
    """
    nodes = np.arange(settings.clients, dtype=np.int32)
    sides = 2 ** np.arange((settings.clients - 1).bit_length(), dtype=np.int32)
    return np.concatenate([np.stack([nodes, nodes ^ s], axis=1)[nodes & s == 0] for s in sides])


def check_hypercube(settings: Settings) -> None:
    clients = settings.clients
    if clients & (clients - 1):
        below = 2 ** (clients.bit_length() - 1)
        remedy = f'take {below} or {2 * below}'
        raise settings.error('clients', 'hypercube needs a power of two of clients', remedy)


def star(settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """Links between client 0 and all others.

    >>> star(Settings(4), np.random.default_rng(0)).tolist()
    [[0, 1], [0, 2], [0, 3]]
    """
    leaves = np.arange(1, settings.clients, dtype=np.int32)
    return np.stack([np.zeros_like(leaves), leaves], axis=1)


def complete(settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """Links between all clients.

    >>> complete(Settings(3), np.random.default_rng(0)).tolist()
    [[0, 1], [0, 2], [1, 2]]
    """
    return clique(np.arange(settings.clients, dtype=np.int32))


def clique(nodes: np.ndarray) -> np.ndarray:
    """The links of a complete graph; networkx takes a hundred times the memory."""
    first, second = np.triu_indices(len(nodes), 1)
    return np.stack([nodes[first], nodes[second]], axis=1)
