"""Links and clients that fail in a round.

Each function takes a schedule (members and mask [T, M, K], active [T, M]) and returns it with new
arrays; all but `drop_absent` take a probability in [0, 1] and a non-negative seed, too, and raise
SettingError for another probability. The self column is never lost.
"""

import numpy as np

from dfl_jax.base import Graph
from dfl_jax.topology.family_settings import Stream, check_memory, check_probability


def drop_links(graph: Graph, probability: float, seed: int, *, directed: bool = False) -> Graph:
    """The schedule without the links that are lost, each round anew.

    directed: each direction of a link fails by itself, instead of both together.
    """
    check_probability('link dropout', probability)
    rounds, clients, _ = graph.mask.shape
    check_memory('graphs that lose links', rounds, clients, graph.mask.size)
    rng = np.random.default_rng([seed, Stream.LINKS])
    mask = np.array(graph.mask)
    ends = np.arange(clients, dtype=np.int64)[:, None]
    for row, members in zip(mask, graph.members, strict=True):
        if directed:
            row &= (rng.random(row.shape) >= probability) | (members == ends)
            continue
        low, high = np.minimum(ends, members), np.maximum(ends, members)
        links = row & (low < high)
        names, which = np.unique((low * clients + high)[links], return_inverse=True)
        row[links] = (rng.random(len(names)) >= probability)[which]
    return graph._replace(mask=mask)


def drop_clients(graph: Graph, probability: float, seed: int) -> Graph:
    """The schedule with clients inactive, each round anew, and their links masked at both ends."""
    return drop_absent(graph, _spared(graph, 'client', probability, seed, Stream.CLIENTS))


def drop_absent(graph: Graph, present: np.ndarray) -> Graph:
    """The schedule with the clients inactive that are not present, bool [T, M], and their links
    masked at both ends."""
    _check_memory(graph)
    reached = graph.active & present
    return _cut_off(graph, reached)._replace(active=reached)


def isolate_clients(graph: Graph, probability: float, seed: int) -> Graph:
    """The schedule with clients cut off, each round anew: their links fail in both directions, and
    they train on their own.

    The inactive nodes of Initialisation and topology, Figure 2(b), whose p is 1 - probability.
    """
    return _cut_off(graph, _spared(graph, 'isolate', probability, seed, Stream.ISOLATED))


def drop_receivers(graph: Graph, probability: float, seed: int) -> Graph:
    """The schedule with clients that receive nothing, each round anew, while others still receive
    from them: they train on their own."""
    spared = _spared(graph, 'receive', probability, seed, Stream.RECEIVERS)
    mask = graph.mask & spared[:, :, None]
    mask[:, :, 0] = graph.mask[:, :, 0]
    return graph._replace(mask=mask)


def _spared(
    graph: Graph, failure: str, probability: float, seed: int, stream: Stream
) -> np.ndarray:
    """Which clients a failure of that probability leaves as they are, bool [T, M]."""
    check_probability(f'{failure} dropout', probability)
    _check_memory(graph)
    return np.random.default_rng([seed, stream]).random(graph.active.shape) >= probability


def _cut_off(graph: Graph, reached: np.ndarray) -> Graph:
    """The schedule whose links are masked where one of their ends is not reached, bool [T, M]."""
    numbers = np.arange(len(graph.mask))[:, None, None]
    mask = graph.mask & reached[:, :, None] & reached[numbers, graph.members]
    mask[:, :, 0] = graph.mask[:, :, 0]
    return graph._replace(mask=mask)


def _check_memory(graph: Graph) -> None:
    rounds, clients, _ = graph.mask.shape
    check_memory('graphs that lose clients', rounds, clients, 3 * graph.mask.size)
