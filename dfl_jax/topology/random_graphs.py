"""Families of graphs that are drawn at random, each by its settings.

Their seeds are drawn from the generator of the schedule, since networkx takes whole numbers.
"""

import networkx as nx
import numpy as np

from dfl_jax.topology.family import mean_degree
from dfl_jax.topology.family_settings import Settings
from dfl_jax.topology.fixed_graphs import clique

# Clients of the largest regular graph that networkx draws, so that those of trained runs stay. Of
# larger ones only ||v_steady|| is kept, which all regular graphs share.
REGULAR_BY_NETWORKX = 1_000


def _seed(rng: np.random.Generator) -> int:
    return int(rng.integers(2**31))


def regular(settings: Settings, rng: np.random.Generator) -> nx.Graph | np.ndarray:
    """A random graph in which every client has `degree` neighbours.

    >>> regular(Settings(8, degree=3), np.random.default_rng(0)).size()
    12
    """
    clients, degree, seed = settings.clients, settings.degree, _seed(rng)
    if not is_small(settings):
        return _regular_of_pairs(settings, seed)
    if 2 * degree < clients:
        return nx.random_regular_graph(degree, clients, seed=seed)
    return nx.complement(nx.random_regular_graph(clients - 1 - degree, clients, seed=seed))


def is_small(settings: Settings) -> bool:
    """Whether networkx draws the regular graph."""
    return settings.clients <= REGULAR_BY_NETWORKX or 2 * settings.degree >= settings.clients


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


def check_regular(settings: Settings) -> None:
    clients, degree = settings.clients, settings.degree
    if clients * degree % 2:
        remedy = f'take {clients + 1} clients or degree {degree - 1 or degree + 1}'
        raise settings.error('clients', f'degree {degree} needs clients*degree even', remedy)


def erdos_renyi(settings: Settings, rng: np.random.Generator) -> nx.Graph:
    """Links that are there or not by one `probability`, or that of the mean degree `degree`.

    >>> erdos_renyi(Settings(4, probability=1.0), np.random.default_rng(0)).size()
    6
    """
    probability = mean_degree(settings) / (settings.clients - 1)
    return nx.fast_gnp_random_graph(settings.clients, probability, seed=_seed(rng))


def barabasi_albert(settings: Settings, rng: np.random.Generator) -> nx.Graph:
    """Preferential attachment, by as many links as make the mean degree nearest `degree`.

    >>> barabasi_albert(Settings(20, degree=2), np.random.default_rng(0)).size()
    19
    """
    clients = settings.clients
    attached = np.arange(1, clients // 2 + 1)
    means = 2 * attached * (clients - attached) / clients
    nearest = int(attached[np.argmin(np.abs(means - settings.degree))])
    return nx.barabasi_albert_graph(clients, nearest, seed=_seed(rng))


def most_of_barabasi_albert(settings: Settings) -> float:
    """Hubs have about m sqrt(M) neighbours, m = degree / 2; three times that is rare."""
    return max(1.5 * settings.degree * settings.clients**0.5, settings.degree)


def watts_strogatz(settings: Settings, rng: np.random.Generator) -> nx.Graph:
    """A ring lattice of an even `degree` whose links are moved with probability `rewiring`.

    >>> watts_strogatz(Settings(20, degree=4), np.random.default_rng(0)).size()
    40
    """
    degree, rewiring = settings.degree, settings.rewiring
    return nx.watts_strogatz_graph(settings.clients, degree, rewiring, _seed(rng))


def check_watts_strogatz(settings: Settings) -> None:
    if settings.degree % 2:
        remedy = f'take {settings.degree - 1 or settings.degree + 1}'
        raise settings.error('degree', 'watts_strogatz needs an even degree', remedy)


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


def configuration(settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """Power-law degrees, linked at random without self-loops and repeated links, which are lost.

    p(k) ~ k^-exponent from k_min to M - 1, with the k_min >= 1 whose mean degree is nearest
    `degree`.

    >>> configuration(Settings(20, degree=3), np.random.default_rng(0)).shape
    (30, 2)
    """
    rng = np.random.default_rng(_seed(rng))
    k, law = _power_law(settings.clients, settings.degree, settings.exponent)
    degrees = rng.choice(k, settings.clients, p=law / law.sum())  # [M]
    degrees[np.argmin(degrees)] += degrees.sum() % 2
    stubs = rng.permutation(np.repeat(np.arange(settings.clients), degrees))
    links = np.sort(stubs.reshape(-1, 2), axis=1)
    return np.unique(links[links[:, 0] < links[:, 1]], axis=0)


def most_of_configuration(settings: Settings) -> float:
    k, law = _power_law(settings.clients, settings.degree, settings.exponent)
    beyond = np.cumsum(law[::-1])[::-1]  # P(degree >= k)
    return float(k[np.sum(beyond * settings.clients * settings.rounds >= 1) - 1])


def chung_lu(settings: Settings, rng: np.random.Generator) -> nx.Graph:
    """Links with probabilities w_i w_j / sum w, of weights w with a Pareto tail.

    As the authors of Initialisation and topology draw heavy tails (Figure 5); the weights, whose
    mean is `degree`, are the expected degrees, of the law k^-exponent without an upper end.

    >>> chung_lu(Settings(20, degree=3), np.random.default_rng(0)).size()
    25
    """
    exponent, seed = settings.exponent, _seed(rng)
    tail = np.random.default_rng(seed).pareto(exponent - 1, settings.clients) + 1
    return nx.expected_degree_graph(_least_weight(settings) * tail, seed=seed, selfloops=False)


def _least_weight(settings: Settings) -> float:
    return settings.degree * (settings.exponent - 2) / (settings.exponent - 1)


def most_of_chung_lu(settings: Settings) -> float:
    draws = settings.clients * settings.rounds
    return 3 * _least_weight(settings) * draws ** (1 / (settings.exponent - 1))


def k_random(settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """Links [M k, 2] from each client to the k = `degree` others that it hears, drawn at random.

    >>> k_random(Settings(3, degree=2), np.random.default_rng(0)).tolist()
    [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
    """
    clients, degree = settings.clients, settings.degree
    rng = np.random.default_rng(_seed(rng))
    listeners = np.arange(clients)
    heard = np.empty((clients, degree), np.int64)
    for place, last in enumerate(range(clients - 1 - degree, clients - 1)):  # Floyd's sampling
        drawn = rng.integers(last + 1, size=clients)
        repeated = (heard[:, :place] == drawn[:, None]).any(axis=1)
        heard[:, place] = np.where(repeated, last, drawn)
    heard += heard >= listeners[:, None]  # no client hears itself
    return np.stack([np.repeat(listeners, degree), heard.ravel()], axis=1)


def epidemic(settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """Links [M k, 2] to each client from the k = `degree` others that hear it, drawn at random.

    The local form of epidemic learning (de Vos et al. 2023).

    >>> epidemic(Settings(3, degree=2), np.random.default_rng(0)).tolist()
    [[1, 0], [2, 0], [0, 1], [2, 1], [0, 2], [1, 2]]
    """
    return k_random(settings, rng)[:, ::-1]


def clustered(settings: Settings, rng: np.random.Generator) -> np.ndarray:
    """Disjoint cliques of about `degree` + 1 clients, their sizes equal up to one.

    >>> len(clustered(Settings(12, degree=3), np.random.default_rng(0)))  # three of six links
    18
    """
    order = np.random.default_rng(_seed(rng)).permutation(settings.clients)
    return np.concatenate([clique(p) for p in np.array_split(order, _clusters(settings))])


def most_of_clustered(settings: Settings) -> int:
    return -(-settings.clients // _clusters(settings)) - 1


def _clusters(settings: Settings) -> int:
    return max(1, round(settings.clients / (settings.degree + 1)))
