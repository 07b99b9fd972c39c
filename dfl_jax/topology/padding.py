"""From links to the arrays of a schedule: who hears whom in which column, and by what weight."""

import math
from collections.abc import Sequence

import jax
import numpy as np

from dfl_jax.base import Graph
from dfl_jax.checks import ROW_SUM_TOLERANCE
from dfl_jax.topology.family_settings import (
    BYTES_OF_PLACE,
    BYTES_OF_WEIGHT,
    TopologyError,
    check_memory,
)


def arcs_of(links: np.ndarray, clients: int, both_ways: bool) -> np.ndarray:
    """Links [E, 2], and their reverses where they go both ways, each once; int32, sorted."""
    first, second = links[:, 0].astype(np.int64), links[:, 1].astype(np.int64)
    # A complete graph of 3,000 clients takes 1 s so; np.unique over rows 12 s (2026-11-22).
    names = first * clients + second
    if both_ways:
        names = np.concatenate([names, second * clients + first])
    names.sort()
    names = names[np.diff(names, prepend=-1) != 0]
    return np.stack(np.divmod(names, clients), axis=1).astype(np.int32)


def padded_schedule(
    arcs: Sequence[np.ndarray],
    clients: int,
    rounds: int,
    weights: Sequence[np.ndarray] | None = None,
    what: str = 'graphs',
) -> Graph:
    """The schedule [T, M, K] that goes through the given graphs, again when they are used up.

    Args:
      arcs: of each graph, [E, 2], a client and one that it hears, each once, sorted without
        weights.
      clients: M.
      rounds: T.
      weights: of each graph, [E], those of the arcs; what they leave of one is the client's own.
      what: named in errors.

    Raises:
      TopologyError: arrays that the host cannot hold.
    """
    arcs = arcs[:rounds]
    degrees = [np.bincount(each[:, 0], minlength=clients) for each in arcs]
    shape = (len(arcs), clients, 1 + max(int(d.max()) for d in degrees))
    stored = 1 if len(arcs) == 1 else rounds
    each_place = BYTES_OF_PLACE + (0 if weights is None else BYTES_OF_WEIGHT)
    check_memory(what, stored, clients, each_place * stored * math.prod(shape[1:]))
    members = np.broadcast_to(np.arange(clients, dtype=np.int32)[:, None], shape).copy()
    rows = None if weights is None else np.zeros(shape)
    for number, (each, d) in enumerate(zip(arcs, degrees, strict=True)):
        column = 1 + np.arange(len(each)) - np.repeat(np.cumsum(d) - d, d)
        order = slice(None) if weights is None else np.lexsort(each.T[::-1])
        members[number, each[order, 0], column] = each[order, 1]
        if rows is not None and weights is not None:
            rows[number, each[order, 0], column] = weights[number][order]
            rows[number, :, 0] = 1 - rows[number].sum(axis=1)
    mask = np.arange(shape[2]) <= np.stack(degrees)[:, :, None]
    active = np.ones(shape[:2], bool)
    return jax.tree.map(lambda a: _repeated(a, rounds), Graph(members, mask, active, rows))


def weighted_arcs(
    links: np.ndarray, weights: np.ndarray, clients: int, both_ways: bool, what: str
) -> tuple[np.ndarray, np.ndarray]:
    """Weighted links [E, 2], each once, as arcs with their weights, those of both ways alike.

    weights: [E]; what those of a client leave of one is its own. what: the source, named in errors.

    Raises:
      TopologyError: weights of a client that exceed one.
    """
    if both_ways:
        links, weights = np.concatenate([links, links[:, ::-1]]), np.tile(weights, 2)
    sums = np.bincount(links[:, 0], weights, clients)
    worst = int(np.argmax(sums))
    if sums[worst] > 1 + ROW_SUM_TOLERANCE:
        raise TopologyError(
            f'{what}: the weights of the links of client {worst} sum to {sums[worst]:.6g}, and as '
            "shares of an average to at most one with the client's own; divide them all, or leave "
            'the weights out'
        )
    return links, weights


def _repeated(array: np.ndarray, rounds: int) -> np.ndarray:
    """[T, ...] from [P, ...], entry after entry, again and again; a single one is held once."""
    if len(array) == 1:
        return np.broadcast_to(array, (rounds, *array.shape[1:]))
    return array if len(array) == rounds else array[np.arange(rounds) % len(array)]
