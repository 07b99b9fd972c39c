"""Rounds in which senders meet at an aggregator: the schedules of DFML and its baselines.

Host side, like `topology`, from whose schedules of neighbours these are drawn.
"""

import numpy as np

from dfl_jax.base import Graph
from dfl_jax.checks import check_choice
from dfl_jax.topology.settings import Stream, TopologyError

CHOICES = ('uniform', 'walk', 'fixed')


def meetings(
    graph: Graph, senders: int, *, seed: int, aggregators: int = 1, choice: str = 'uniform'
) -> Graph:
    """Draws each round's aggregators, and their senders among the clients that they hear.

    Args:
      graph: a schedule of neighbours, links and clients dropped or not, [T, M, K].
      senders: |S|, dealt over the aggregators; an aggregator that hears fewer takes those.
      seed: non-negative.
      aggregators: aggregators of a round, disjoint (Def-KT has as many as senders; DFML one).
      choice: of the aggregator, `uniform` over the active clients (DFML, Algorithm 1); `walk`,
        client 0 at first and then one that the previous aggregator hears (DFML, section 3.1);
        `fixed`, always client 0 (DFML, A.4.2).

    Returns:
      members [T, A, 1 + |S| / A] int32, the aggregator in column 0, then its senders ascending,
      padding repeats it; mask of the same shape; active [T, A], False for an aggregator that is
      away.

    Raises:
      TopologyError: numbers that do not fit each other or the network, an unknown choice.
    """
    rounds, clients, _ = graph.members.shape
    check_choice('aggregator', choice, CHOICES, TopologyError)
    if not 1 <= aggregators <= clients:
        raise TopologyError(f'{aggregators} aggregators of {clients} clients; use 1 to {clients}')
    if senders < 1 or senders + aggregators > clients:
        raise TopologyError(
            f'{senders} senders and {aggregators} aggregator(s) of {clients} clients: use 1 to '
            f'{clients - aggregators} senders, or more clients'
        )
    if senders % aggregators:
        raise TopologyError(
            f'{senders} senders are not dealt evenly over {aggregators} aggregators; make one a '
            'multiple of the other'
        )
    if choice != 'uniform' and aggregators > 1:
        raise TopologyError(f'aggregator {choice} is a single one, not {aggregators}')
    rng = np.random.default_rng([seed, Stream.MEETINGS])
    each = senders // aggregators
    members = np.zeros((rounds, aggregators, 1 + each), np.int32)
    mask = np.zeros(members.shape, bool)
    active = np.zeros((rounds, aggregators), bool)
    last = None
    for r in range(rounds):
        chosen = _aggregators(graph, r, aggregators, choice, last, rng)
        busy = set(chosen)
        for h, aggregator in enumerate(chosen):
            free = [n for n in _heard(graph, r, aggregator) if n not in busy]
            drawn = sorted(rng.permutation(free)[:each].astype(int))
            busy.update(drawn)
            members[r, h] = [aggregator, *drawn, *[aggregator] * (each - len(drawn))]
            mask[r, h, : 1 + len(drawn)] = graph.active[r, aggregator]
            active[r, h] = graph.active[r, aggregator]
        last = chosen[0]
    return Graph(members, mask, active)


def _aggregators(
    graph: Graph, r: int, count: int, choice: str, last: int | None, rng: np.random.Generator
) -> list[int]:
    """The aggregators of round r; inactive clients only where there are too few active ones."""
    if choice == 'fixed' or (choice == 'walk' and last is None):
        return [0]
    if choice == 'walk' and last is not None:
        return [int(rng.choice(_heard(graph, r, last) or [last]))]
    shuffled = rng.permutation(graph.members.shape[1])
    return [int(n) for n in sorted(shuffled, key=lambda n: not graph.active[r, n])[:count]]


def _heard(graph: Graph, r: int, aggregator: int) -> list[int]:
    """The neighbours over whose delivered links client `aggregator` hears in round r."""
    if not graph.active[r, aggregator]:
        return []
    return [int(n) for n in graph.members[r, aggregator, 1:][graph.mask[r, aggregator, 1:]]]
