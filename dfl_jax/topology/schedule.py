"""The schedule of a run: the graphs of all rounds, drawn on the host. Equal seeds, equal graphs."""

import warnings
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from dfl_jax.base import Graph
from dfl_jax.topology.checks import check
from dfl_jax.topology.edge_list import read_edges
from dfl_jax.topology.families import (
    ALWAYS_STATIC,
    DIRECTED,
    EDGE_LISTS,
    SEQUENCES,
    by_networkx,
    draw,
    links_of,
    most_members,
)
from dfl_jax.topology.family_settings import (
    BYTES_OF_PLACE,
    BYTES_OF_WEIGHT,
    Settings,
    Stream,
    TopologyError,
    check_memory,
)
from dfl_jax.topology.own_graphs import from_matrix, read_matrix
from dfl_jax.topology.padding import arcs_of, laid_out, weighted_links
from dfl_jax.topology.rewiring import rewire

# Bytes of a link while its graph is drawn, by NumPy and by networkx (tracemalloc, 2026-11-22: a
# complete graph of 3,000 took 104; regular graphs of degree 10 and others of 20,000, 200 to 280)
DRAWING, NETWORKX = 100, 280


def schedule(
    family: str,
    clients: int,
    rounds: int,
    *,
    seed: int,
    static: bool = False,
    **options: Any,
) -> Graph:
    """Draws the communication graphs of a whole run.

    Families: `regular` (random, every client has `degree` neighbours), `ring`, `line`, `complete`,
    `star`, `erdos_renyi` (mean degree `degree`), `barabasi_albert` (attachment count whose mean
    degree is nearest `degree`), `watts_strogatz` (`degree` even, links rewired with probability
    `rewiring`), `configuration` (power-law degrees, at random without self-loops and repeated
    links), `chung_lu` (power law of expected degrees), `torus` (periodic lattice of `dimensions`,
    the most even sides), `clustered` (disjoint cliques of about `degree + 1` clients, sizes
    differing by at most one), `two_group` (two complete meshes joined by one link), `hypercube` (a
    power of two of clients), `edge_list` (the file `path`, always static).

    Directed: `k_random` (every client hears `degree` others drawn at random, and any number may
    hear it), `epidemic` (every client is heard by `degree` others drawn at random, and may hear any
    number: the local form of epidemic learning, de Vos et al. 2023), `directed_ring` (each hears
    its predecessor), `exponential` (client i hears i - 2^j for all 2^j < M), `directed_edge_list`
    (the file `path`, always static).

    With weights of their own and without relabelling: `one_peer_exponential`, `one_peer_equi`
    and `base_graph` of at most `degree` neighbours (`sequences`), and `matrix` (the file `path`,
    `from_matrix`).

    Args:
      family: one of the above.
      clients: M.
      rounds: T.
      seed: non-negative.
      static: one draw for every round (held once in memory, read-only); otherwise every round is
        a new draw with the nodes relabelled at random.
      options: the following, with the defaults of `Settings`.
      degree: neighbours of a client without itself; ignored by families that have no choice.
      path: the edge list as networkx writes it: two node ids from 0 to M - 1 a line, apart by
        spaces or a comma, `#` comments; a number that follows them in all lines is the weight that
        both clients give each other, and what a client's weights leave of one is its own. In a
        directed one a line `j i` says that i hears j, and the weight is that which i gives. Or the
        mixing matrix as numpy.save writes it, [M, M] or [P, M, M].
      probability: `erdos_renyi` only, of a link, in place of the degree.
      rewiring: `watts_strogatz` only.
      exponent: above 2. `configuration`: p(k) ~ k^-exponent from k_min to M - 1, with the
        k_min >= 1 whose mean degree is nearest `degree`; repeated links are lost. `chung_lu`: the
        same law of expected degrees, continuous and without an upper end.
      dimensions: `torus` only, d >= 1; every client has 2d neighbours, so that 1 is the ring.
      assortativity: the degree assortativity, in [-1, 1], to which every draw is rewired
        (`rewiring.rewire`); None leaves the draws as they are, which are the same for any target.

    Returns:
      members [T, M, K] int32 (column 0 the aggregator, then its neighbours ascending, padding
      repeats the aggregator), mask [T, M, K] bool, active [T, M] bool, all True, weights [T, M, K]
      float64 or None; K = 1 + the largest degree of any round.

    Raises:
      TopologyError: with the numbers and the remedy; before anything is drawn, unless a draw
        cannot be rewired to the assortativity, or has clients of far higher degree than most.

    Warns:
      UserWarning: the graph of a static schedule is not connected.
    """
    settings = Settings(clients, **options)
    check_schedule(family, rounds, static, settings)
    what = f'{family} graphs'
    rng = np.random.default_rng([seed, Stream.GRAPH])
    if family in SEQUENCES:
        of_rounds, weights = zip(*SEQUENCES[family](settings, rounds, rng), strict=True)
        return laid_out(of_rounds, clients, rounds, weights, what)
    if family == 'matrix' and settings.path is not None:
        return from_matrix(read_matrix(settings.path, clients), rounds, str(settings.path))
    of_edges = None  # their weights
    if family in EDGE_LISTS and settings.path is not None:
        edges, of_edges = read_edges(settings.path, clients, family in DIRECTED)
        draws = [edges]
    elif static or family in ALWAYS_STATIC:
        draws = [draw(family, settings, rng)]
    else:
        draws = [rng.permutation(clients)[draw(family, settings, rng)] for _ in range(rounds)]
    if settings.assortativity is not None:
        if of_edges is not None:
            raise TopologyError(
                f'the links of {settings.path} have weights, which rewiring to '
                f'assortativity={settings.assortativity} would move; leave it out'
            )
        rng = np.random.default_rng([seed, Stream.REWIRING])
        draws = [rewire(links, settings.assortativity, rng) for links in draws]
    if of_edges is not None:
        both_ways, of_file = family not in DIRECTED, str(settings.path)
        graphs = weighted_links(draws[0], of_edges, clients, rounds, both_ways, of_file)
    else:
        arcs = [arcs_of(links, clients, family not in DIRECTED) for links in draws]
        graphs = laid_out(arcs, clients, rounds, what=what)
    if static or family in EDGE_LISTS:
        _warn_if_disconnected(family, draws[0], clients)
    return graphs


def check_schedule(family: str, rounds: int, static: bool, settings: Settings) -> None:
    """Raises `TopologyError` for a schedule that cannot be drawn, or not be held in memory.

    Nothing is drawn, and an edge list is not read.
    """
    check(family, rounds, settings)
    if static and family in SEQUENCES:
        raise TopologyError(
            f'{family} is a sequence of graphs, none of which averages all alone; leave out static'
        )
    clients = settings.clients
    draws = 1 if static or family in ALWAYS_STATIC else rounds
    # A first bound without any array of M, which may be too large itself.
    check_memory(f'{family} graphs', draws, clients, BYTES_OF_PLACE * draws * clients)
    members = most_members(family, draws, settings)
    links = links_of(family, members, settings)
    places = draws * clients * members
    # A draw [E, 2], both ways [2E, 2], and what drawing and sorting take of one draw.
    drawing = (24 * draws + (NETWORKX if by_networkx(family, settings) else DRAWING)) * links
    each = BYTES_OF_PLACE + (BYTES_OF_WEIGHT if family in (*SEQUENCES, 'matrix') else 0)
    check_memory(f'{family} graphs', draws, clients, each * places + drawing)


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
