"""The families of graphs that a schedule draws from, one row each, and those of files."""

import numpy as np

from dfl_jax.checks import check_choice
from dfl_jax.topology import fixed_graphs, random_graphs
from dfl_jax.topology.edge_list import read_edges
from dfl_jax.topology.family import Family
from dfl_jax.topology.family_settings import Settings, TopologyError
from dfl_jax.topology.own_graphs import arcs_of_matrix, read_matrix
from dfl_jax.topology.sequences import Arcs, base_graph, one_peer_equi, one_peer_exponential


def edge_list(settings: Settings, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray | None]:
    """The links of the file `path` and their weights (`read_edges`)."""
    return read_edges(settings.path or '', settings.clients)


def directed_edge_list(
    settings: Settings, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray | None]:
    """The links of the file `path`, whose line `j i` says that i hears j, and their weights."""
    return read_edges(settings.path or '', settings.clients, directed=True)


def matrix(settings: Settings, rng: np.random.Generator) -> list[Arcs]:
    """The links and weights of successive rounds in the file `path` (`from_matrix`)."""
    path = settings.path or ''
    return arcs_of_matrix(read_matrix(path, settings.clients), settings.rounds, str(path))


FAMILIES: dict[str, Family] = {
    'ring': Family(
        fixed_graphs.ring,
        fixed_shape=True,
        equal_degrees=True,
        least_clients=3,
        neighbours=lambda s: 2,
    ),
    'line': Family(fixed_graphs.line, fixed_shape=True, neighbours=lambda s: 2),
    'complete': Family(
        fixed_graphs.complete, static=True, equal_degrees=True, neighbours=lambda s: s.clients - 1
    ),
    'star': Family(
        fixed_graphs.star,
        fixed_shape=True,
        neighbours=lambda s: s.clients - 1,
        links=lambda s: s.clients,
    ),
    'torus': Family(
        fixed_graphs.torus,
        ('dimensions',),
        fixed_shape=True,
        equal_degrees=True,
        check=fixed_graphs.check_torus,
        neighbours=lambda s: 2 * s.dimensions,
    ),
    'two_group': Family(
        fixed_graphs.two_group, fixed_shape=True, neighbours=lambda s: (s.clients + 1) // 2
    ),
    'hypercube': Family(
        fixed_graphs.hypercube,
        fixed_shape=True,
        equal_degrees=True,
        check=fixed_graphs.check_hypercube,
        neighbours=lambda s: (s.clients - 1).bit_length(),
    ),
    'directed_ring': Family(
        fixed_graphs.directed_ring, directed=True, fixed_shape=True, neighbours=lambda s: 1
    ),
    'exponential': Family(
        fixed_graphs.exponential,
        directed=True,
        fixed_shape=True,
        neighbours=lambda s: (s.clients - 1).bit_length(),
    ),
    'regular': Family(
        random_graphs.regular,
        ('degree',),
        equal_degrees=True,
        check=random_graphs.check_regular,
        neighbours=lambda s: s.degree,
        by_networkx=random_graphs.is_small,
    ),
    'erdos_renyi': Family(
        random_graphs.erdos_renyi, ('degree', 'probability'), by_networkx=lambda s: True
    ),
    'barabasi_albert': Family(
        random_graphs.barabasi_albert,
        ('degree',),
        neighbours=random_graphs.most_of_barabasi_albert,
        by_networkx=lambda s: True,
    ),
    'watts_strogatz': Family(
        random_graphs.watts_strogatz,
        ('degree', 'rewiring'),
        check=random_graphs.check_watts_strogatz,
        by_networkx=lambda s: True,
    ),
    'clustered': Family(
        random_graphs.clustered,
        ('degree',),
        fixed_shape=True,
        neighbours=lambda s: -(-s.clients // random_graphs.clusters(s)) - 1,
    ),
    'configuration': Family(
        random_graphs.configuration,
        ('degree', 'exponent'),
        neighbours=random_graphs.most_of_configuration,
    ),
    'chung_lu': Family(
        random_graphs.chung_lu,
        ('degree', 'exponent'),
        neighbours=random_graphs.most_of_chung_lu,
        by_networkx=lambda s: True,
    ),
    'k_random': Family(
        random_graphs.k_random, ('degree',), directed=True, neighbours=lambda s: s.degree
    ),
    'epidemic': Family(random_graphs.epidemic, ('degree',), directed=True),
    'one_peer_exponential': Family(
        one_peer_exponential, directed=True, sequence=True, static=False, neighbours=lambda s: 1
    ),
    'one_peer_equi': Family(
        one_peer_equi, directed=True, sequence=True, static=False, neighbours=lambda s: 1
    ),
    'base_graph': Family(
        base_graph, ('degree',), sequence=True, static=False, neighbours=lambda s: s.degree
    ),
    # Before a file is read, it is taken for a ring
    'edge_list': Family(edge_list, ('path',), static=True, neighbours=lambda s: 2),
    'directed_edge_list': Family(
        directed_edge_list, ('path',), directed=True, static=True, neighbours=lambda s: 1
    ),
    'matrix': Family(matrix, ('path',), sequence=True, static=True, neighbours=lambda s: 1),
}


def family_named(family: str | Family) -> tuple[str, Family]:
    """A family of the table with its name, or one of your own with that of its `draw`.

    Raises `TopologyError` for an unknown name.
    """
    if isinstance(family, Family):
        return getattr(family.draw, '__name__', 'the family'), family
    check_choice('topology', family, FAMILIES, TopologyError)
    return family, FAMILIES[family]
