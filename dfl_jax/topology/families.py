"""The families of graphs that a schedule draws from, and how large they are."""

import itertools
import math
from collections.abc import Callable

import networkx as nx
import numpy as np

from dfl_jax.topology.family_settings import Settings
from dfl_jax.topology.sequences import SEQUENCES

# Clients of the largest regular graph that networkx draws, so that those of trained runs stay. Of
# larger ones only ||v_steady|| is kept, which all regular graphs share.
REGULAR_BY_NETWORKX = 10_000


def mean_degree(settings: Settings) -> float:
    """The neighbours of a client, or their mean."""
    if settings.probability is None:
        return settings.degree
    return settings.probability * (settings.clients - 1)


def _regular(settings: Settings, seed: int) -> nx.Graph | np.ndarray:
    clients, degree = settings.clients, settings.degree
    if not by_networkx('regular', settings):
        return _regular_of_pairs(settings, seed)
    if 2 * degree < clients:
        return nx.random_regular_graph(degree, clients, seed=seed)
    return nx.complement(nx.random_regular_graph(clients - 1 - degree, clients, seed=seed))


def _regular_of_pairs(settings: Settings, seed: int) -> np.ndarray:
    """A random regular graph from random pairs of stubs, `degree` of each client.

    Pairs that are loops or repeat another, about degree^2 / 2, exchange their second ends among
    themselves and as many others at random, until there are none. 131,072 clients of degree 8 take
    0.15 s and 24 MB, networkx 7.4 s and 333 MB (2-core AMD EPYC, 2026-11-23).
    """
    clients, degree = settings.clients, settings.degree
    rng = np.random.default_rng(seed)
    stubs = np.repeat(np.arange(clients, dtype=np.int32), degree)
    links = rng.permutation(stubs).reshape(-1, 2)
    while True:
        names = links.min(axis=1).astype(np.int64) * clients + links.max(axis=1)
        ordered = np.sort(names)
        repeated = np.isin(names, ordered[1:][np.diff(ordered) == 0])
        wrong = np.flatnonzero(repeated | (links[:, 0] == links[:, 1]))
        if not wrong.size:
            return links
        moved = np.union1d(wrong, rng.integers(len(links), size=wrong.size))
        links[moved, 1] = rng.permutation(links[moved, 1])


def _erdos_renyi(settings: Settings, seed: int) -> nx.Graph:
    probability = mean_degree(settings) / (settings.clients - 1)
    return nx.fast_gnp_random_graph(settings.clients, probability, seed=seed)


def _barabasi_albert(settings: Settings, seed: int) -> nx.Graph:
    clients = settings.clients
    attached = np.arange(1, clients // 2 + 1)
    means = 2 * attached * (clients - attached) / clients
    nearest = int(attached[np.argmin(np.abs(means - settings.degree))])
    return nx.barabasi_albert_graph(clients, nearest, seed=seed)


def _power_law(clients: int, degree: int, exponent: float) -> tuple[np.ndarray, np.ndarray]:
    """The law p(k) ~ k^-exponent, k_min <= k < M, with the k_min whose mean is nearest `degree`.

    Returns:
      k [D] int64, the degrees of the law ascending, and their probabilities [D] float64.
    """
    k = np.arange(1, clients)
    logs = -exponent * np.log(k)
    # Sums over the tail from every k_min, in logarithms lest a steep law underflow.
    mass, moment = (np.logaddexp.accumulate(a[::-1])[::-1] for a in (logs, logs + np.log(k)))
    least = int(np.argmin(np.abs(np.exp(moment - mass) - degree)))
    return k[least:], np.exp(logs[least:] - mass[least])


def _configuration(settings: Settings, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    k, law = _power_law(settings.clients, settings.degree, settings.exponent)
    degrees = rng.choice(k, settings.clients, p=law / law.sum())  # [M]
    degrees[np.argmin(degrees)] += degrees.sum() % 2
    stubs = rng.permutation(np.repeat(np.arange(settings.clients), degrees))
    links = np.sort(stubs.reshape(-1, 2), axis=1)
    return np.unique(links[links[:, 0] < links[:, 1]], axis=0)


def _chung_lu(settings: Settings, seed: int) -> nx.Graph:
    """Links with probabilities w_i w_j / sum w, of weights w with a Pareto tail.

    As the authors of Initialisation and topology draw heavy tails (Figure 5); the weights, whose
    mean is `degree`, are the expected degrees.
    """
    exponent = settings.exponent
    tail = np.random.default_rng(seed).pareto(exponent - 1, settings.clients) + 1
    weights = settings.degree * (exponent - 2) / (exponent - 1) * tail
    return nx.expected_degree_graph(weights, seed=seed, selfloops=False)


def _k_random(settings: Settings, seed: int) -> np.ndarray:
    """Links [M k, 2] from each client to the k others that it hears (Floyd's sampling)."""
    clients, degree = settings.clients, settings.degree
    rng = np.random.default_rng(seed)
    listeners = np.arange(clients)
    heard = np.empty((clients, degree), np.int64)
    for place, last in enumerate(range(clients - 1 - degree, clients - 1)):
        drawn = rng.integers(last + 1, size=clients)
        repeated = (heard[:, :place] == drawn[:, None]).any(axis=1)
        heard[:, place] = np.where(repeated, last, drawn)
    heard += heard >= listeners[:, None]  # nobody hears itself
    return np.stack([np.repeat(listeners, degree), heard.ravel()], axis=1)


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


def _torus(settings: Settings) -> np.ndarray:
    sides = min(sides_of(settings.clients, settings.dimensions), key=sum)
    nodes = np.arange(settings.clients).reshape(sides)
    links = [np.stack([nodes, np.roll(nodes, -1, axis)], axis=-1) for axis in range(nodes.ndim)]
    return np.concatenate([along.reshape(-1, 2) for along in links])


def _clusters(settings: Settings) -> int:
    return max(1, round(settings.clients / (settings.degree + 1)))


def _clustered(settings: Settings, seed: int) -> np.ndarray:
    order = np.random.default_rng(seed).permutation(settings.clients)
    return np.concatenate([_clique(p) for p in np.array_split(order, _clusters(settings))])


def _two_group(settings: Settings) -> np.ndarray:
    first, second = np.array_split(np.arange(settings.clients), 2)
    bridge = np.array([[first[-1], second[0]]])
    return np.concatenate([_clique(first), _clique(second), bridge])


def _ring(settings: Settings) -> np.ndarray:
    nodes = np.arange(settings.clients, dtype=np.int32)
    return np.stack([nodes, np.roll(nodes, -1)], axis=1)


def _exponential(settings: Settings) -> np.ndarray:
    """Links [M tau, 2] from client i to i - 2^j mod M for all 2^j < M (Ying et al. 2021)."""
    nodes = np.arange(settings.clients)
    offsets = 2 ** np.arange((settings.clients - 1).bit_length())
    heard = (nodes[:, None] - offsets) % settings.clients
    return np.stack([np.repeat(nodes, len(offsets)), heard.ravel()], axis=1)


def _hypercube(settings: Settings) -> np.ndarray:
    nodes = np.arange(settings.clients, dtype=np.int32)
    sides = 2 ** np.arange((settings.clients - 1).bit_length(), dtype=np.int32)
    return np.concatenate([np.stack([nodes, nodes ^ s], axis=1)[nodes & s == 0] for s in sides])


def _star(settings: Settings) -> np.ndarray:
    leaves = np.arange(1, settings.clients, dtype=np.int32)
    return np.stack([np.zeros_like(leaves), leaves], axis=1)


def _clique(nodes: np.ndarray) -> np.ndarray:
    """The links of a complete graph; networkx takes a hundred times the memory."""
    first, second = np.triu_indices(len(nodes), 1)
    return np.stack([nodes[first], nodes[second]], axis=1)


_FIXED: dict[str, Callable[[Settings], np.ndarray]] = {
    'ring': _ring,
    'line': lambda settings: _ring(settings)[:-1],
    'complete': lambda settings: _clique(np.arange(settings.clients, dtype=np.int32)),
    'star': _star,
    'torus': _torus,
    'two_group': _two_group,
    'hypercube': _hypercube,
    'directed_ring': lambda settings: _ring(settings)[:, ::-1],  # each hears its predecessor
    'exponential': _exponential,
}
_DRAWN: dict[str, Callable[[Settings, int], nx.Graph | np.ndarray]] = {
    'regular': _regular,
    'erdos_renyi': _erdos_renyi,
    'barabasi_albert': _barabasi_albert,
    'watts_strogatz': lambda s, seed: nx.watts_strogatz_graph(
        s.clients, s.degree, s.rewiring, seed
    ),
    'clustered': _clustered,
    'configuration': _configuration,
    'chung_lu': _chung_lu,
    'k_random': _k_random,
    'epidemic': lambda settings, seed: _k_random(settings, seed)[:, ::-1],
}
BY_NETWORKX = ('erdos_renyi', 'barabasi_albert', 'watts_strogatz', 'chung_lu')
EDGE_LISTS = ('edge_list', 'directed_edge_list')
FROM_FILE = (*EDGE_LISTS, 'matrix')
ONE_PEER = ('one_peer_exponential', 'one_peer_equi')
WITH_DEGREE = (*_DRAWN, 'base_graph')
EQUAL_DEGREES = ('regular', 'ring', 'torus', 'complete', 'hypercube')
# Their links lead from a client to those that it hears
DIRECTED = (
    *('k_random', 'epidemic', 'directed_ring', 'exponential', 'directed_edge_list'),
    *ONE_PEER,
)
FAMILIES = (*_FIXED, *_DRAWN, *SEQUENCES, *FROM_FILE)
ALWAYS_STATIC = ('complete', *FROM_FILE)
# Always the same graph, but for which client is where
FIXED_SHAPE = tuple(family for family in (*_FIXED, 'clustered') if family not in ALWAYS_STATIC)


def draw(family: str, settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """One graph of a family; links [E, 2] int32, undirected but of DIRECTED, nodes 0 to M - 1.

    Neither of a sequence nor from a file.
    """
    if family in _FIXED:
        graph = _FIXED[family](settings)
    else:
        graph = _DRAWN[family](settings, int(rng.integers(2**31)))
    links = graph if isinstance(graph, np.ndarray) else list(graph.edges)
    return np.asarray(links, np.int32).reshape(-1, 2)


def by_networkx(family: str, settings: Settings) -> bool:
    """Whether networkx draws the graph, in objects of Python."""
    small = settings.clients <= REGULAR_BY_NETWORKX or 2 * settings.degree >= settings.clients
    return family in BY_NETWORKX or (family == 'regular' and small)


def most_members(family: str, rounds: int, settings: Settings) -> int:
    """K of a schedule: exact where the family fixes it, else a bound that is rarely exceeded.

    The largest of M T binomial degrees is bounded by Bernstein's inequality. Hubs of a
    Barabasi-Albert graph have about m sqrt(M) neighbours, m = degree / 2; three times that is rare.
    An edge list is taken for a ring and a matrix for a directed one, before they are read.
    """
    clients, degree = settings.clients, settings.degree
    if family in ('ring', 'line', 'edge_list'):
        neighbours: float = 2
    elif family in ('directed_ring', 'directed_edge_list', 'matrix', *ONE_PEER):
        neighbours = 1
    elif family in ('hypercube', 'exponential'):
        neighbours = (clients - 1).bit_length()
    elif family in ('complete', 'star'):
        neighbours = clients - 1
    elif family == 'torus':
        neighbours = 2 * settings.dimensions
    elif family == 'two_group':
        neighbours = (clients + 1) // 2
    elif family == 'clustered':
        neighbours = -(-clients // _clusters(settings)) - 1
    elif family in ('regular', 'k_random', 'base_graph'):
        neighbours = degree
    elif family == 'barabasi_albert':
        neighbours = max(1.5 * degree * math.sqrt(clients), degree)
    elif family == 'chung_lu':
        least = degree * (settings.exponent - 2) / (settings.exponent - 1)
        neighbours = 3 * least * (clients * rounds) ** (1 / (settings.exponent - 1))
    elif family == 'configuration':
        k, law = _power_law(clients, degree, settings.exponent)
        beyond = np.cumsum(law[::-1])[::-1]  # P(degree >= k)
        neighbours = float(k[np.sum(beyond * clients * rounds >= 1) - 1])
    else:
        surprise = math.log(clients) + math.log(rounds)
        mean = mean_degree(settings)
        neighbours = mean + surprise / 3 + math.sqrt(surprise**2 / 9 + 2 * mean * surprise)
    return 1 + min(math.ceil(neighbours), clients - 1)


def links_of(family: str, members: int, settings: Settings) -> int:
    """About the number of links E of one draw, in directed families those of both directions.

    members: K.
    """
    clients = settings.clients
    if family in ('star', 'ring', 'line', 'directed_ring', *ONE_PEER, *FROM_FILE):
        return clients
    if family in ('complete', 'two_group'):
        return clients * (members - 1) // 2
    mean = mean_degree(settings) if family in WITH_DEGREE else members - 1
    heard = int(clients * min(mean, clients - 1))
    return heard if family in (*DIRECTED, *SEQUENCES) else heard // 2
