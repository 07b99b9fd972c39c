"""Schedules from mixing matrices and from networkx graphs of one's own."""

import os
from collections.abc import Sequence
from numbers import Real
from typing import Any

import networkx as nx
import numpy as np

from dfl_jax.base import Graph
from dfl_jax.checks import ROW_SUM_TOLERANCE
from dfl_jax.files import check_file, expand
from dfl_jax.topology.family_settings import TopologyError, check_memory
from dfl_jax.topology.padding import arcs_of, padded_schedule, weighted_arcs


def from_matrix(matrix: np.ndarray | Sequence[np.ndarray], rounds: int) -> Graph:
    """A schedule with weights [T, M, K], that of a mixing matrix, or of several in turn.

    Args:
      matrix: [M, M], or of successive rounds [P, M, M], which are gone through again when they are
        used up; client i gives the model of client j the weight W[i, j], rows sum to one. Client i
        hears j where that is not zero; W[i, i] may be anything, negative too.
      rounds: T.

    Raises:
      TopologyError: not square, not finite real numbers, or a row of another sum.
    """
    matrices, what = np.asarray(matrix), 'the mixing matrix'
    arcs, weights = zip(*arcs_of_matrix(matrices, rounds, what), strict=True)
    return padded_schedule(arcs, matrices.shape[-1], rounds, weights, what)


def arcs_of_matrix(
    matrices: np.ndarray, rounds: int, what: str
) -> list[tuple[np.ndarray, np.ndarray]]:
    """The arcs [E, 2] and weights [E] of each round of mixing matrices, as `from_matrix`."""
    shape = matrices.shape
    if len(shape) not in (2, 3) or shape[-1] != shape[-2] or 0 in shape:
        raise TopologyError(
            f'{what} has the shape {shape}; give [M, M], or [T, M, M] of several rounds'
        )
    if matrices.dtype.kind not in 'fiu':
        raise TopologyError(f'{what} holds {matrices.dtype}; give real numbers')
    if matrices.ndim == 2:
        matrices = matrices[None]
    clients = matrices.shape[1]
    used = matrices[:rounds]
    size = 32 * used[0].size + 16 * np.count_nonzero(used)
    check_memory(f'copies of {what}', len(used), clients, size)
    found = []
    for number, each in enumerate(used, 1):
        each = np.asarray(each, np.float64)
        with np.errstate(invalid='ignore'):  # the sum of both infinities
            sums = each.sum(axis=1)
        wrong = np.flatnonzero(~(np.abs(sums - 1) <= ROW_SUM_TOLERANCE))
        if len(wrong):
            of_round = f' of round {number}' if len(matrices) > 1 else ''
            raise TopologyError(
                f'{what}: row {wrong[0]}{of_round} sums to {sums[wrong[0]]:.6g}, where the weights '
                'of an average sum to one; divide the row by its sum'
            )
        heard = each != 0
        np.fill_diagonal(heard, False)
        found.append((np.argwhere(heard).astype(np.int32), each[heard]))
    return found


def read_matrix(path: str | os.PathLike, clients: int) -> np.ndarray:
    """The mixing matrices [M, M] or [P, M, M] of a .npy file."""
    try:
        check_file(expand(path))
        matrix = np.lib.format.open_memmap(expand(path), mode='r')  # never unpickles
    except (OSError, ValueError) as error:
        first = str(error).splitlines()[0]
        raise TopologyError(
            f'mixing matrix {path} cannot be read: {first}; write it by numpy.save'
        ) from None
    if matrix.ndim and matrix.shape[-1] != clients:
        raise TopologyError(
            f'{path} has the shape {matrix.shape}, and the network {clients} clients; take '
            f'clients={matrix.shape[-1]} or another file'
        )
    return matrix


def from_networkx(graph: nx.Graph, rounds: int) -> Graph:
    """The static schedule [T, M, K] of a networkx graph, with its weights where it has some.

    Args:
      graph: undirected, or directed with an edge from j to i where i hears j. Nodes 0 to M - 1 are
        the clients; other names are numbered in the graph's order. Self-loops are left out. Edges
        that all have a `weight` make a mixing matrix: it is the receiver's weight, and what those
        of a client leave of one is its own. Without any, the method's mixing decides.
      rounds: T.

    Raises:
      TopologyError: no client, several links between two clients, some edges with weights and some
        without, one that is not finite, or weights of a client that exceed one.
    """
    what, clients, both_ways = 'the networkx graph', len(graph), not graph.is_directed()
    if not clients or graph.is_multigraph():
        raise TopologyError(
            f'{what} has {clients} nodes{" and several edges between two" * bool(clients)}; '
            'take a Graph or DiGraph of at least one'
        )
    links, weights = links_of_networkx(graph, what)
    if weights is None:
        return padded_schedule([arcs_of(links, clients, both_ways)], clients, rounds, what=what)
    arcs, weights = weighted_arcs(links, weights, clients, both_ways, what)
    return padded_schedule([arcs], clients, rounds, [weights], what)


def links_of_networkx(graph: nx.Graph, what: str) -> tuple[np.ndarray, np.ndarray | None]:
    """The links [E, 2] of a graph without self-loops and their weights [E], as `from_networkx`."""
    nodes = range(len(graph)) if set(graph) == {*range(len(graph))} else graph
    number = {node: i for i, node in enumerate(nodes)}
    links = np.array([(number[v], number[u]) for u, v in graph.edges if u != v], np.int32)
    weights = [w for u, v, w in graph.edges(data='weight') if u != v]
    return links.reshape(-1, 2), all_or_none(weights, what)


def all_or_none(weights: Sequence[Any], what: str) -> np.ndarray | None:
    """Weights [E] float64 of links that all have one; None where none has.

    Raises `TopologyError` where only some have, or one is not a finite number.
    """
    given = sum(weight is not None for weight in weights)
    if not given:
        return None
    if given < len(weights):
        raise TopologyError(
            f'{what}: {given} of {len(weights)} links have a weight; give one to all or to none'
        )
    for weight in weights:
        if not isinstance(weight, Real) or not np.isfinite(weight):
            raise TopologyError(f'{what}: weight {weight!s:.60} is no finite number; correct it')
    return np.array(weights, np.float64)
