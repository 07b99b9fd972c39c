"""Links and clients that fail in a round: what is left of a schedule."""

import numpy as np

from dfl_jax.base import Graph
from dfl_jax.topology.settings import Stream, check_memory, check_probability


def drop_links(graph: Graph, probability: float, seed: int) -> Graph:
    """Loses every undirected link with `probability`, each round anew, in both directions.

    Args:
      graph: a schedule, members and mask [T, M, K]; the self column is never lost.
      probability: in [0, 1].
      seed: non-negative.

    Returns:
      The schedule with a new mask.

    Raises:
      TopologyError: probability outside [0, 1].
    """
    check_probability('link dropout', probability)
    rounds, clients, _ = graph.mask.shape
    check_memory('graphs that lose links', rounds, clients, graph.mask.size)
    rng = np.random.default_rng([seed, Stream.LINKS])
    mask = np.array(graph.mask)
    aggregators = np.arange(clients, dtype=np.int64)[:, None]
    for row, members in zip(mask, graph.members, strict=True):
        low, high = np.minimum(aggregators, members), np.maximum(aggregators, members)
        links = row & (low < high)
        names, which = np.unique((low * clients + high)[links], return_inverse=True)
        row[links] = (rng.random(len(names)) >= probability)[which]
    return graph._replace(mask=mask)


def drop_clients(graph: Graph, probability: float, seed: int) -> Graph:
    """Makes every client inactive with `probability`, each round anew.

    Args:
      graph: a schedule, members and mask [T, M, K], active [T, M].
      probability: in [0, 1].
      seed: non-negative.

    Returns:
      The schedule with new `active` and with every link of an inactive client masked at both
      ends; the self column stays.

    Raises:
      TopologyError: probability outside [0, 1].
    """
    check_probability('client dropout', probability)
    active, mask = _cut_off(graph, probability, np.random.default_rng([seed, Stream.CLIENTS]))
    return graph._replace(mask=mask, active=active)


def isolate_clients(graph: Graph, probability: float, seed: int) -> Graph:
    """Cuts every client off with `probability`, each round anew; it goes on training alone.

    The node occupation of Initialisation and topology, Figure 2(b), whose p is 1 - probability;
    in `drop_clients` a client that is away does not train either.

    Args:
      graph: a schedule, members and mask [T, M, K], active [T, M].
      probability: in [0, 1].
      seed: non-negative.

    Returns:
      The schedule with every link of an isolated client masked at both ends; the self column and
      `active` stay.

    Raises:
      TopologyError: probability outside [0, 1].
    """
    check_probability('client isolation', probability)
    _, mask = _cut_off(graph, probability, np.random.default_rng([seed, Stream.ISOLATED]))
    return graph._replace(mask=mask)


def _cut_off(
    graph: Graph, probability: float, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """The active clients that are reached [T, M], and the mask [T, M, K] of their links."""
    rounds, clients, _ = graph.mask.shape
    check_memory('graphs that lose clients', rounds, clients, 3 * graph.mask.size)
    reached = graph.active & (rng.random(graph.active.shape) >= probability)
    numbers = np.arange(rounds)[:, None, None]
    mask = graph.mask & reached[:, :, None] & reached[numbers, graph.members]
    mask[:, :, 0] = graph.mask[:, :, 0]
    return reached, mask
