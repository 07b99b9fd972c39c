"""The families of graphs that a schedule draws from, one row each, and those of files."""

from functools import partial

import numpy as np

from dfl_jax.checks import check_choice
from dfl_jax.topology import fixed_graphs as fixed
from dfl_jax.topology import random_graphs as drawn
from dfl_jax.topology.edge_list import read_edges
from dfl_jax.topology.family import Family
from dfl_jax.topology.family_settings import Settings
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


def _digits(settings: Settings) -> int:
    return (settings.clients - 1).bit_length()


_fixed = partial(Family, fixed_shape=True)
_sequence = partial(Family, sequence=True, static=False)
FAMILIES: dict[str, Family] = {
    'ring': _fixed(fixed.ring, neighbours=lambda s: 2, equal_degrees=True, least_clients=3),
    'line': _fixed(fixed.line, neighbours=lambda s: 2),
    'complete': Family(
        fixed.complete, neighbours=lambda s: s.clients - 1, static=True, equal_degrees=True
    ),
    'star': _fixed(fixed.star, neighbours=lambda s: s.clients - 1, links=lambda s: s.clients),
    'torus': _fixed(
        fixed.torus,
        ('dimensions',),
        neighbours=lambda s: 2 * s.dimensions,
        equal_degrees=True,
        check=fixed.check_torus,
    ),
    'two_group': _fixed(fixed.two_group, neighbours=lambda s: (s.clients + 1) // 2),
    'hypercube': _fixed(
        fixed.hypercube, neighbours=_digits, equal_degrees=True, check=fixed.check_hypercube
    ),
    'directed_ring': _fixed(fixed.directed_ring, neighbours=lambda s: 1, directed=True),
    'exponential': _fixed(fixed.exponential, neighbours=_digits, directed=True),
    'regular': Family(
        drawn.regular,
        ('degree',),
        neighbours=lambda s: s.degree,
        equal_degrees=True,
        check=drawn.check_regular,
        by_networkx=drawn.is_small,
    ),
    'erdos_renyi': Family(drawn.erdos_renyi, ('degree', 'probability'), by_networkx=lambda s: True),
    'barabasi_albert': Family(
        drawn.barabasi_albert,
        ('degree',),
        neighbours=drawn.most_of_barabasi_albert,
        by_networkx=lambda s: True,
    ),
    'watts_strogatz': Family(
        drawn.watts_strogatz,
        ('degree', 'rewiring'),
        check=drawn.check_watts_strogatz,
        by_networkx=lambda s: True,
    ),
    'clustered': _fixed(drawn.clustered, ('degree',), neighbours=drawn.most_of_clustered),
    'configuration': Family(
        drawn.configuration, ('degree', 'exponent'), neighbours=drawn.most_of_configuration
    ),
    'chung_lu': Family(
        drawn.chung_lu,
        ('degree', 'exponent'),
        neighbours=drawn.most_of_chung_lu,
        by_networkx=lambda s: True,
    ),
    'k_random': Family(drawn.k_random, ('degree',), neighbours=lambda s: s.degree, directed=True),
    'epidemic': Family(drawn.epidemic, ('degree',), directed=True),
    'one_peer_exponential': _sequence(one_peer_exponential, neighbours=lambda s: 1, directed=True),
    'one_peer_equi': _sequence(one_peer_equi, neighbours=lambda s: 1, directed=True),
    'base_graph': _sequence(base_graph, ('degree',), neighbours=lambda s: s.degree),
    # Before a file is read, it is taken for a ring
    'edge_list': Family(edge_list, ('path',), neighbours=lambda s: 2, static=True),
    'directed_edge_list': Family(
        directed_edge_list, ('path',), neighbours=lambda s: 1, static=True, directed=True
    ),
    'matrix': Family(matrix, ('path',), neighbours=lambda s: 1, static=True, sequence=True),
}


def family_named(family: str | Family) -> tuple[str, Family]:
    """A family of the table with its name, or one of your own with that of its `draw`.

    Raises SettingError for an unknown name.
    """
    if isinstance(family, Family):
        return getattr(family.draw, '__name__', 'the family'), family
    check_choice('topology', family, FAMILIES, colon=None)
    return family, FAMILIES[family]
