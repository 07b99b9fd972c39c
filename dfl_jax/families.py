"""The families of graphs that a schedule draws from, and what each of them needs."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import networkx as nx
import numpy as np


class TopologyError(ValueError):
    """A topology that cannot be built from the values given."""


def _regular(clients: int, degree: int, seed: int) -> nx.Graph:
    if 2 * degree < clients:
        return nx.random_regular_graph(degree, clients, seed=seed)
    return nx.complement(nx.random_regular_graph(clients - 1 - degree, clients, seed=seed))


def _barabasi_albert(clients: int, degree: int, seed: int) -> nx.Graph:
    attached = np.arange(1, clients // 2 + 1)
    means = 2 * attached * (clients - attached) / clients
    nearest = int(attached[np.argmin(np.abs(means - degree))])
    return nx.barabasi_albert_graph(clients, nearest, seed=seed)


def _torus_rows(clients: int) -> int:
    return next(r for r in range(math.isqrt(clients), 0, -1) if clients % r == 0)


def _torus(clients: int) -> nx.Graph:
    rows = _torus_rows(clients)
    lattice = nx.grid_2d_graph(rows, clients // rows, periodic=True)
    return nx.convert_node_labels_to_integers(lattice)


def _clustered(clients: int, degree: int, seed: int) -> nx.Graph:
    order = np.random.default_rng(seed).permutation(clients)
    parts = np.array_split(order, max(1, round(clients / (degree + 1))))
    return nx.compose_all([nx.complete_graph(p.tolist()) for p in parts])


def _two_group(clients: int) -> nx.Graph:
    first, second = np.array_split(np.arange(clients), 2)
    graph = nx.compose(nx.complete_graph(first.tolist()), nx.complete_graph(second.tolist()))
    graph.add_edge(int(first[-1]), int(second[0]))
    return graph


_FIXED: dict[str, Callable[[int], nx.Graph]] = {
    'ring': nx.cycle_graph,
    'line': nx.path_graph,
    'complete': nx.complete_graph,
    'star': lambda clients: nx.star_graph(clients - 1),
    'torus': _torus,
    'two_group': _two_group,
}
WITH_DEGREE: dict[str, Callable[..., nx.Graph]] = {
    'regular': _regular,
    'erdos_renyi': lambda m, degree, seed: nx.fast_gnp_random_graph(m, degree / (m - 1), seed=seed),
    'barabasi_albert': _barabasi_albert,
    'watts_strogatz': nx.watts_strogatz_graph,
    'clustered': _clustered,
}
FAMILIES = (*_FIXED, *WITH_DEGREE, 'edge_list')


def draw(
    family: str, clients: int, degree: int, rewiring: float, rng: np.random.Generator
) -> np.ndarray:
    """One graph of a family; undirected links [E, 2] int32, nodes 0 to M - 1."""
    if family in _FIXED:
        graph = _FIXED[family](clients)
    elif family == 'watts_strogatz':
        graph = nx.watts_strogatz_graph(clients, degree, rewiring, seed=int(rng.integers(2**31)))
    else:
        graph = WITH_DEGREE[family](clients, degree, seed=int(rng.integers(2**31)))
    return np.array(graph.edges, np.int32).reshape(-1, 2)


def read_edges(path: str | os.PathLike, clients: int) -> np.ndarray:
    """Links [E, 2] of an edge list, self loops left out."""
    try:
        lines = Path(path).read_text(encoding='utf-8').splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TopologyError(f'edge list {path} cannot be read: {error}; correct the path') from None
    links = []
    for number, line in enumerate(lines, 1):
        fields = line.split('#')[0].split()
        if not fields:
            continue
        if len(fields) != 2 or not all(f.isdecimal() for f in fields):
            raise TopologyError(f'{path}:{number}: two node ids expected, got {line.strip()!r}')
        link = [int(f) for f in fields]
        if max(link) >= clients:
            raise TopologyError(
                f'{path}:{number}: node {max(link)} is not one of the {clients} clients '
                f'0 to {clients - 1}; raise clients to {max(link) + 1} or renumber the file'
            )
        if link[0] != link[1]:
            links.append(link)
    return np.array(links, np.int32).reshape(-1, 2)


def check(
    family: str,
    clients: int,
    rounds: int,
    degree: int,
    path: str | os.PathLike | None,
    rewiring: float,
) -> None:
    """Raises `TopologyError` for a schedule that cannot be drawn."""
    if family not in FAMILIES:
        raise TopologyError(f'unknown topology {family!r}; known: {", ".join(FAMILIES)}')
    if rounds < 1:
        raise TopologyError(f'a schedule needs at least 1 round, got rounds={rounds}')
    least = 3 if family == 'ring' else 2
    if clients < least:
        raise TopologyError(f'{family} needs at least {least} clients, got clients={clients}')
    if family in WITH_DEGREE:
        if degree < 1:
            raise TopologyError(f'{family} needs a degree of at least 1, got degree={degree}')
        if degree >= clients:
            raise TopologyError(
                f'degree {degree} needs more than {degree} clients, got clients={clients}; '
                f'lower the degree to {clients - 1} or less'
            )
    if family == 'regular' and clients * degree % 2:
        raise TopologyError(
            f'degree {degree} needs clients*degree even, got clients={clients}; '
            f'take {clients + 1} clients or degree {degree - 1 or degree + 1}'
        )
    if family == 'watts_strogatz':
        check_probability('rewiring', rewiring)
        if degree % 2:
            raise TopologyError(
                f'watts_strogatz needs an even degree, got degree={degree}; '
                f'take {degree - 1 or degree + 1}'
            )
    if family == 'torus' and _torus_rows(clients) < 3:
        fits = next(n for n in range(max(clients, 9), 2 * clients + 9) if _torus_rows(n) >= 3)
        raise TopologyError(
            f'torus needs clients = rows*columns with both at least 3, got clients={clients}; '
            f'take {fits}'
        )
    if family == 'edge_list' and path is None:
        raise TopologyError('edge_list needs the path of a file of links, got none')
    if family != 'edge_list' and path is not None:
        raise TopologyError(f'{family} reads no file, got {path}; take edge_list')


def check_probability(name: str, value: float) -> None:
    """Raises `TopologyError` for a value outside [0, 1]."""
    if not 0 <= value <= 1:
        raise TopologyError(f'{name} is a probability between 0 and 1, got {value}')
