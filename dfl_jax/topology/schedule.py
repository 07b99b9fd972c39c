"""Who talks to whom: graph schedules drawn on the host, their dropouts and their spectra.

Everything here is NumPy and networkx (the families themselves are in `families.py`); a schedule is
a `Graph` with a leading axis T that enters the simulator's scan as data. Equal seeds give equal
graphs.
"""

import math
import os
import warnings

import numpy as np
import scipy.sparse
from scipy.sparse import csgraph

from dfl_jax.base import Graph
from dfl_jax.topology.families import BY_NETWORKX, check, draw, links_of, most_members
from dfl_jax.topology.rewiring import rewire
from dfl_jax.topology.settings import (
    BYTES_OF_PLACE,
    Settings,
    Stream,
    TopologyError,
    check_memory,
    check_probability,
)

ALWAYS_STATIC = ('complete', 'edge_list')
# Of a link while its graph is drawn (tracemalloc, 2026-11-22: complete graph of 3,000, 104; regular
# graphs of degree 10 and others of 20,000 clients, 200 to 280)
DRAWING, NETWORKX = 100, 280


def schedule(
    family: str,
    clients: int,
    rounds: int,
    *,
    seed: int,
    degree: int = 5,
    static: bool = False,
    path: str | os.PathLike | None = None,
    rewiring: float = 0.1,
    exponent: float = 2.5,
    dimensions: int = 2,
    assortativity: float | None = None,
) -> Graph:
    """Draws the communication graphs of a whole run.

    Families: `regular` (random, every client has `degree` neighbours), `ring`, `line`, `complete`,
    `star`, `erdos_renyi` (mean degree `degree`), `barabasi_albert` (attachment count whose mean
    degree is nearest `degree`), `watts_strogatz` (`degree` even, links rewired with probability
    `rewiring`), `configuration` (power-law degrees, at random without self-loops and repeated
    links), `torus` (periodic lattice of `dimensions`, the most even sides), `clustered` (disjoint
    cliques of about `degree + 1` clients, sizes differing by at most one), `two_group` (two
    complete meshes joined by one link), `edge_list` (the file `path`, always static).

    Args:
      family: one of the above.
      clients: M.
      rounds: T.
      seed: non-negative.
      degree: neighbours of a client without itself; ignored by families that have no choice.
      static: one draw for every round (held once in memory, read-only); otherwise every round is
        a new draw with the nodes relabelled at random.
      path: the edge list as networkx writes it: two node ids from 0 to M - 1 a line, apart by
        spaces or a comma, `#` comments; what follows the two is not used.
      rewiring: `watts_strogatz` only.
      exponent: `configuration` only, above 2: p(k) ~ k^-exponent from k_min to M - 1, with the
        k_min >= 1 whose mean degree is nearest `degree`. Aggregators lose their repeated links.
      dimensions: `torus` only, d >= 1; every client has 2d neighbours, so that 1 is the ring.
      assortativity: the degree assortativity, in [-1, 1], to which every draw is rewired
        (`rewiring.rewire`); None leaves the draws as they are, which are the same for any target.

    Returns:
      members [T, M, K] int32 (column 0 the aggregator, then its neighbours ascending, padding
      repeats the aggregator), mask [T, M, K] bool, active [T, M] bool, all True; K = 1 + the
      largest degree of any round.

    Raises:
      TopologyError: with the numbers and the remedy; before anything is drawn, unless a draw
        cannot be rewired to the assortativity, or has far larger aggregators than most.

    Warns:
      UserWarning: the graph of a static schedule is not connected, or a file has weights.
    """
    settings = Settings(clients, degree, path, rewiring, exponent, dimensions, assortativity)
    check_schedule(family, rounds, static, settings)
    rng = np.random.default_rng([seed, Stream.GRAPH])
    if static or family in ALWAYS_STATIC:
        draws = [draw(family, settings, rng)]
    else:
        draws = [rng.permutation(clients)[draw(family, settings, rng)] for _ in range(rounds)]
    if assortativity is not None:
        rng = np.random.default_rng([seed, Stream.REWIRING])
        draws = [rewire(links, assortativity, rng) for links in draws]
    if static or family == 'edge_list':
        _warn_if_disconnected(family, draws[0], clients)

    links = [_both_ways(e, clients) for e in draws]
    degrees = [np.bincount(e[:, 0], minlength=clients) for e in links]
    shape = (len(draws), clients, 1 + max(int(d.max()) for d in degrees))
    check_memory(f'{family} graphs', len(draws), clients, BYTES_OF_PLACE * math.prod(shape))
    aggregators = np.arange(clients, dtype=np.int32)
    members = np.broadcast_to(aggregators[:, None], shape).copy()
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
    drawing = (24 * draws + (NETWORKX if family in BY_NETWORKX else DRAWING)) * links
    check_memory(f'{family} graphs', draws, clients, BYTES_OF_PLACE * places + drawing)


def graph_bytes(graphs: Graph) -> int:
    """Bytes that a schedule holds, one round of a static one."""
    arrays = map(np.asarray, graphs)
    return sum((a[:1] if a.strides[0] == 0 else a).nbytes for a in arrays if len(a))


def _both_ways(links: np.ndarray, clients: int) -> np.ndarray:
    """Links [E, 2] and their reverses, each once, [2E, 2] int32 sorted."""
    low, high = links[:, 0].astype(np.int64), links[:, 1].astype(np.int64)
    # A complete graph of 3,000 clients takes 1 s so; np.unique over rows 12 s (2026-11-22).
    names = np.sort(np.concatenate([low * clients + high, high * clients + low]))
    names = names[np.diff(names, prepend=-1) != 0]
    return np.stack(np.divmod(names, clients), axis=1).astype(np.int32)


def by_cluster(graph: Graph) -> Graph:
    """A schedule of disjoint cliques as one aggregator a cluster (NTK-DFL, appendix E.2).

    The clients of a cluster meet at one of them, the first that is active, so that what a
    aggregator computes is computed once for all.

    Args:
      graph: a schedule of `clustered`, members and mask [T, M, K], clients dropped or not.

    Returns:
      members [T, H, K] int32, the aggregator's client in column 0, padding repeats it; mask [T, H,
      K] bool, the clients that take part; active [T, H] bool, False where none of a cluster does.

    Raises:
      TopologyError: a link that is missing inside a cluster, or clusters that are no cliques.
    """
    rounds = len(graph.members)
    members, mask, active = [], [], []
    for r in range(rounds):
        first = graph.members[r].min(axis=1)  # the least client of a clique names it
        aggregators = np.unique(first)
        rows = graph.members[r, aggregators]
        real = np.concatenate(
            [np.ones((len(aggregators), 1), bool), rows[:, 1:] != rows[:, :1]], axis=1
        )
        present = real & graph.active[r][rows]
        complete = present.sum(axis=1)[np.searchsorted(aggregators, first)]
        heard = graph.mask[r].sum(axis=1)
        if (first[rows] != aggregators[:, None]).any() or (heard != complete)[
            graph.active[r]
        ].any():
            raise TopologyError(
                'clusters that share one model have to be cliques without lost links; '
                'take topology clustered without link dropout'
            )
        order = np.argsort(~present, axis=1, kind='stable')
        rows, present = np.take_along_axis(rows, order, 1), np.take_along_axis(present, order, 1)
        members.append(np.where(present, rows, rows[:, :1]))
        mask.append(present)
        active.append(present.any(axis=1))
    return Graph(np.stack(members), np.stack(mask), np.stack(active))


def cohorts(clients: int, rounds: int, size: int, *, seed: int, dropout: float = 0.0) -> Graph:
    """The schedule of a centralized method: one aggregator, the server, hears a random cohort a
    round.

    Args:
      clients: M.
      rounds: T.
      size: clients drawn each round without replacement.
      seed: non-negative.
      dropout: probability that a client which was drawn does not take part; it is not replaced.

    Returns:
      members [T, 1, size] int32, mask [T, 1, size] bool, active [T, 1] bool, False where nobody
      takes part. No column is the aggregator itself.

    Raises:
      TopologyError: size outside [1, M], dropout outside [0, 1].
    """
    if not 1 <= size <= clients:
        raise TopologyError(
            f'a cohort of {size} has to lie in [1, {clients}], the clients of the network'
        )
    check_probability('client dropout', dropout)
    # The draw of a round is an array of its own until all are stacked.
    check_memory('cohorts', rounds, clients, rounds * (128 + (16 + BYTES_OF_PLACE) * size))
    rng = np.random.default_rng([seed, Stream.COHORTS])
    members = np.stack([rng.choice(clients, size, replace=False) for _ in range(rounds)])
    mask = rng.random(members.shape) >= dropout
    return Graph(members.astype(np.int32)[:, None], mask[:, None], mask.any(axis=1, keepdims=True))


def _warn_if_disconnected(family: str, links: np.ndarray, clients: int) -> None:
    entries = (np.ones(len(links)), (links[:, 0], links[:, 1]))
    graph = scipy.sparse.coo_array(entries, shape=(clients, clients))
    components = csgraph.connected_components(graph, directed=False)[0]
    if components > 1:
        warnings.warn(
            f'the static {family} graph is not connected: {components} components never mix',
            stacklevel=3,
        )
