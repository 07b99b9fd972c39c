"""The schedule of a run: the graphs of all rounds, drawn on the host. Equal seeds, equal graphs."""

import warnings
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from dfl_jax.base import Graph
from dfl_jax.setting_error import SettingError
from dfl_jax.topology.families import family_named
from dfl_jax.topology.family import Family, check_settings, draw, links_of, most_members
from dfl_jax.topology.family_settings import (
    BYTES_OF_PLACE,
    BYTES_OF_WEIGHT,
    Settings,
    Stream,
    TopologyError,
    check_memory,
)
from dfl_jax.topology.padding import arcs_of, padded_schedule, weighted_arcs
from dfl_jax.topology.rewiring import rewire

# Bytes of a link while its graph is drawn, by NumPy and by networkx (tracemalloc, 2026-11-22: a
# complete graph of 3,000 took 104; regular graphs of degree 10 and others of 20,000, 200 to 280)
DRAWING, NETWORKX = 100, 280


def schedule(
    family: str | Family,
    clients: int,
    rounds: int,
    *,
    seed: int,
    static: bool = False,
    **options: Any,
) -> Graph:
    """Draws the communication graphs of a whole run.

    >>> graphs = schedule('ring', 5, rounds=3, seed=0, static=True)
    >>> graphs.members.shape, graphs.members[0, 2].tolist()  # client 2 and the two that it hears
    ((3, 5, 3), [2, 1, 3])
    >>> import networkx as nx  # a family of your own
    >>> wheel = Family(lambda settings, rng: nx.wheel_graph(settings.clients))
    >>> schedule(wheel, 5, rounds=3, seed=0).mask.sum(axis=2)[0].tolist()
    [4, 4, 5, 4, 4]

    Args:
      family: a name of `FAMILIES`, described by its function in `fixed_graphs`, `random_graphs`,
        `sequences` or `families`; or a `Family`.
      clients: M.
      rounds: T.
      seed: non-negative.
      static: one draw for every round (held once in memory, read-only); otherwise every round is
        a new draw with the nodes relabelled at random. Sequences and `matrix` are not relabelled,
        and edge lists are always static.
      options: the following, with the defaults of `Settings`; ignored by families without them.
      degree: neighbours of a client without itself.
      path: the edge list as networkx writes it: two node ids from 0 to M - 1 a line, apart by
        spaces or a comma, `#` comments; a number that follows them in all lines is the weight that
        both clients give each other, and what a client's weights leave of one is its own. In a
        directed one a line `j i` says that i hears j, and the weight is that which i gives. Or the
        mixing matrix as numpy.save writes it, [M, M] or [P, M, M].
      probability: `erdos_renyi` only, of a link, in place of the degree.
      rewiring: `watts_strogatz` only.
      exponent: above 2, of `configuration` and `chung_lu`.
      dimensions: `torus` only, d >= 1; every client has 2d neighbours, so that 1 is the ring.
      assortativity: the degree assortativity, in [-1, 1], to which every draw is rewired
        (`rewiring.rewire`); None leaves the draws as they are, which are the same for any target.

    Returns:
      members [T, M, K] int32 (column 0 the aggregator, then its neighbours ascending, padding
      repeats the aggregator), mask [T, M, K] bool, active [T, M] bool, all True, weights [T, M, K]
      float64 or None; K = 1 + the largest degree of any round.

    Raises:
      SettingError: with the numbers and the remedy; before anything is drawn, unless a draw
        cannot be rewired to the assortativity.
      TopologyError: a file that is no graph, or graphs that memory cannot hold; after drawing only
        where a draw has clients of far higher degree than most.

    Warns:
      UserWarning: the graph of a static schedule is not connected.
    """
    settings = Settings(clients, rounds=rounds, **options)
    check_schedule(family, static, settings)
    name, row = family_named(family)
    what = f'{name} graphs'
    rng = np.random.default_rng([seed, Stream.GRAPH])
    if row.sequence:
        of_rounds, weights = zip(*row.draw(settings, rng), strict=True)
        return padded_schedule(of_rounds, clients, rounds, weights, what)
    if static or row.static:
        draws = [draw(row, settings, rng, name)]
    else:
        draws = [_relabelled(row, settings, rng, name) for _ in range(rounds)]
    links, weights = zip(*draws, strict=True)
    weighted, source = any(each is not None for each in weights), str(settings.path or name)
    if weighted and any(each is None for each in weights):
        raise TopologyError(f'{name} draws graphs with weights and without; give weights to all')
    if weighted and settings.assortativity is not None:
        raise SettingError.of(
            f'the links of {source} have weights, which rewiring to '
            f'assortativity={settings.assortativity} would move; leave it out',
            assortativity=settings.assortativity,
        )
    if settings.assortativity is not None:
        rng = np.random.default_rng([seed, Stream.REWIRING])
        links = tuple(rewire(each, settings.assortativity, rng) for each in links)
    if weighted:
        each = [weighted_arcs(*drawn, clients, not row.directed, source) for drawn in draws]
        arcs, weights = zip(*each, strict=True)
        graphs = padded_schedule(arcs, clients, rounds, weights, what)
    else:
        arcs = tuple(arcs_of(each, clients, not row.directed) for each in links)
        graphs = padded_schedule(arcs, clients, rounds, what=what)
    if static or 'path' in row.takes:
        _warn_if_disconnected(name, links[0], clients)
    return graphs


def _relabelled(
    family: Family, settings: Settings, rng: np.random.Generator, name: str
) -> tuple[np.ndarray, np.ndarray | None]:
    """A draw whose clients have changed places at random."""
    places = rng.permutation(settings.clients)
    links, weights = draw(family, settings, rng, name)
    return places[links], weights


def check_schedule(family: str | Family, static: bool, settings: Settings) -> None:
    """Raises SettingError for a schedule that cannot be drawn, TopologyError where memory lacks.

    Nothing is drawn, and an edge list is not read.
    """
    name, row = family_named(family)
    check_settings(name, row, settings)
    if static and row.static is False:
        raise SettingError.of(
            f'{name} is a sequence of graphs, none of which averages all alone; leave out static',
            static=static,
        )
    clients = settings.clients
    draws = 1 if static or row.static else settings.rounds
    # A first bound without any array of M, which may be too large itself.
    check_memory(f'{name} graphs', draws, clients, BYTES_OF_PLACE * draws * clients)
    settings = settings._replace(rounds=draws)
    links = links_of(row, settings)
    places = draws * clients * most_members(row, settings)
    # A draw [E, 2], both ways [2E, 2], and what drawing and sorting take of one draw.
    drawing = (24 * draws + (NETWORKX if row.by_networkx(settings) else DRAWING)) * links
    each = BYTES_OF_PLACE + (BYTES_OF_WEIGHT if row.sequence else 0)
    check_memory(f'{name} graphs', draws, clients, each * places + drawing)


def graph_bytes(graphs: Graph) -> int:
    """Bytes that a schedule holds, one round of a static one."""
    arrays = [np.asarray(a) for a in graphs if a is not None]
    return sum((a[:1] if a.strides[0] == 0 else a).nbytes for a in arrays if len(a))


def _warn_if_disconnected(family: str, links: np.ndarray, clients: int) -> None:
    entries = (np.ones(len(links)), (links[:, 0], links[:, 1]))
    graph = scipy.sparse.coo_array(entries, shape=(clients, clients))
    components = csgraph.connected_components(graph, directed=False)[0]
    if components > 1:
        warnings.warn(
            f'the static {family} graph is not connected: {components} components never mix',
            stacklevel=3,
        )
