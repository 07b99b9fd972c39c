"""The schedule of a run: the graphs of all rounds, drawn on the host. Equal seeds, equal graphs."""

import math
import warnings
from typing import Any

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from dfl_jax.base import Graph
from dfl_jax.topology.families import DIRECTED, by_networkx, check, draw, links_of, most_members
from dfl_jax.topology.rewiring import rewire
from dfl_jax.topology.settings import BYTES_OF_PLACE, Settings, Stream, check_memory

ALWAYS_STATIC = ('complete', 'edge_list')
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
    differing by at most one), `two_group` (two complete meshes joined by one link), `k_random`
    (every client hears `degree` others, who need not hear it), `edge_list` (the file `path`, always
    static).

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
        spaces or a comma, `#` comments; what follows the two is not used.
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
      repeats the aggregator), mask [T, M, K] bool, active [T, M] bool, all True; K = 1 + the
      largest degree of any round.

    Raises:
      TopologyError: with the numbers and the remedy; before anything is drawn, unless a draw
        cannot be rewired to the assortativity, or has clients of far higher degree than most.

    Warns:
      UserWarning: the graph of a static schedule is not connected, or a file has weights.
    """
    settings = Settings(clients, **options)
    check_schedule(family, rounds, static, settings)
    rng = np.random.default_rng([seed, Stream.GRAPH])
    if static or family in ALWAYS_STATIC:
        draws = [draw(family, settings, rng)]
    else:
        draws = [rng.permutation(clients)[draw(family, settings, rng)] for _ in range(rounds)]
    if settings.assortativity is not None:
        rng = np.random.default_rng([seed, Stream.REWIRING])
        draws = [rewire(links, settings.assortativity, rng) for links in draws]
    if static or family == 'edge_list':
        _warn_if_disconnected(family, draws[0], clients)

    links = [_arcs(e, clients, both_ways=family not in DIRECTED) for e in draws]
    degrees = [np.bincount(e[:, 0], minlength=clients) for e in links]
    shape = (len(draws), clients, 1 + max(int(d.max()) for d in degrees))
    check_memory(f'{family} graphs', len(draws), clients, BYTES_OF_PLACE * math.prod(shape))
    members = np.broadcast_to(np.arange(clients, dtype=np.int32)[:, None], shape).copy()
    for row, e, d in zip(members, links, degrees, strict=True):
        column = 1 + np.arange(len(e)) - np.repeat(np.cumsum(d) - d, d)
        row[e[:, 0], column] = e[:, 1]
    mask = np.arange(shape[2]) <= np.stack(degrees)[:, :, None]
    active = np.ones((len(draws), clients), bool)
    return Graph(*(np.broadcast_to(a, (rounds, *a.shape[1:])) for a in (members, mask, active)))


def check_schedule(family: str, rounds: int, static: bool, settings: Settings) -> None:
    """Raises `TopologyError` for a schedule that cannot be drawn, or not be held in memory.

    Nothing is drawn, and an edge list is not read.
    """
    check(family, rounds, settings)
    clients = settings.clients
    draws = 1 if static or family in ALWAYS_STATIC else rounds
    # A first bound without any array of M, which may be too large itself.
    check_memory(f'{family} graphs', draws, clients, BYTES_OF_PLACE * draws * clients)
    members = most_members(family, draws, settings)
    links = links_of(family, members, settings)
    places = draws * clients * members
    # A draw [E, 2], both ways [2E, 2], and what drawing and sorting take of one draw.
    drawing = (24 * draws + (NETWORKX if by_networkx(family, settings) else DRAWING)) * links
    check_memory(f'{family} graphs', draws, clients, BYTES_OF_PLACE * places + drawing)


def graph_bytes(graphs: Graph) -> int:
    """Bytes that a schedule holds, one round of a static one."""
    arrays = map(np.asarray, graphs)
    return sum((a[:1] if a.strides[0] == 0 else a).nbytes for a in arrays if len(a))


def _arcs(links: np.ndarray, clients: int, both_ways: bool) -> np.ndarray:
    """Links [E, 2], and their reverses where they go both ways, each once; int32, sorted."""
    first, second = links[:, 0].astype(np.int64), links[:, 1].astype(np.int64)
    # A complete graph of 3,000 clients takes 1 s so; np.unique over rows 12 s (2026-11-22).
    names = first * clients + second
    if both_ways:
        names = np.concatenate([names, second * clients + first])
    names.sort()
    names = names[np.diff(names, prepend=-1) != 0]
    return np.stack(np.divmod(names, clients), axis=1).astype(np.int32)


def _warn_if_disconnected(family: str, links: np.ndarray, clients: int) -> None:
    entries = (np.ones(len(links)), (links[:, 0], links[:, 1]))
    graph = scipy.sparse.coo_array(entries, shape=(clients, clients))
    components = csgraph.connected_components(graph, directed=False)[0]
    if components > 1:
        warnings.warn(
            f'the static {family} graph is not connected: {components} components never mix',
            stacklevel=3,
        )
