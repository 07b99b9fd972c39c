"""Schedules with fewer aggregators than clients: meetings, clusters, and cohorts of a server.

Meetings are those of DFML and its baselines, drawn from a schedule of neighbours.
"""

import numpy as np

from dfl_jax.base import Graph
from dfl_jax.checks import check_choice
from dfl_jax.setting_error import SettingError
from dfl_jax.topology.family_settings import (
    BYTES_OF_PLACE,
    Stream,
    TopologyError,
    check_memory,
    check_probability,
)

CHOICES = ('uniform', 'walk', 'fixed')


def meetings(
    graph: Graph, senders: int, *, seed: int, aggregators: int = 1, choice: str = 'uniform'
) -> Graph:
    """A schedule in which each round's aggregators hear some of their neighbours, the senders.

    Args:
      graph: a schedule of neighbours, links and clients dropped or not, [T, M, K].
      senders: |S|, the same number for every aggregator, which has fewer where it hears fewer.
      seed: non-negative.
      aggregators: A, aggregators of a round, of disjoint senders (DFML has one, Def-KT |S|).
      choice: of the aggregator, `uniform` over the active clients (DFML, Algorithm 1); `walk`,
        client 0 at first and then one that the previous aggregator hears (DFML, section 3.1);
        `fixed`, always client 0 (DFML, A.4.2).

    Returns:
      members [T, A, 1 + |S| / A] int32, the aggregator in column 0, then its senders ascending,
      padding repeats it; mask of the same shape; active [T, A], False for an inactive aggregator.

    Raises:
      SettingError: numbers that do not fit each other or the network, an unknown choice.
      TopologyError: a graph with weights.
    """
    _check_unweighted(graph, 'meetings average by the numbers of samples')
    rounds, clients, _ = graph.members.shape
    check_choice('aggregator', choice, CHOICES)
    if not 1 <= aggregators <= clients:
        text = f'{aggregators} aggregators of {clients} clients; use 1 to {clients}'
        raise SettingError.of(text, aggregators=aggregators)
    if senders < 1 or senders + aggregators > clients:
        raise SettingError.of(
            f'{senders} senders and {aggregators} aggregator(s) of {clients} clients: use 1 to '
            f'{clients - aggregators} senders, or more clients',
            senders=senders,
        )
    if senders % aggregators:
        raise SettingError.of(
            f'{senders} senders are not dealt evenly over {aggregators} aggregators; make one a '
            'multiple of the other',
            senders=senders,
        )
    if choice != 'uniform' and aggregators > 1:
        text = f'aggregator {choice} is a single one, not {aggregators}'
        raise SettingError.of(text, aggregators=aggregators)
    rng = np.random.default_rng([seed, Stream.MEETINGS])
    each = senders // aggregators
    members = np.zeros((rounds, aggregators, 1 + each), np.int32)
    mask = np.zeros(members.shape, bool)
    active = np.zeros((rounds, aggregators), bool)
    chosen = [0]
    for r in range(rounds):
        if choice == 'uniform':  # inactive clients only where there are too few active ones
            shuffled = rng.permutation(clients)
            order = np.argsort(~graph.active[r, shuffled], kind='stable')
            chosen = shuffled[order[:aggregators]].tolist()
        elif choice == 'walk' and r > 0:
            chosen = [int(rng.choice(_heard(graph, r, chosen[0]) or chosen))]
        busy = set(chosen)
        for h, aggregator in enumerate(chosen):
            free = [n for n in _heard(graph, r, aggregator) if n not in busy]
            drawn = sorted(rng.permutation(free)[:each].astype(int))
            busy.update(drawn)
            members[r, h] = aggregator
            members[r, h, 1 : 1 + len(drawn)] = drawn
            mask[r, h, : 1 + len(drawn)] = graph.active[r, aggregator]
            active[r, h] = graph.active[r, aggregator]
    return Graph(members, mask, active)


def _check_unweighted(graph: Graph, why: str) -> None:
    if graph.weights is not None:
        raise TopologyError(
            f'{why}, not by the weights of a graph; take a topology without weights'
        )


def _heard(graph: Graph, r: int, aggregator: int) -> list[int]:
    """The neighbours over whose delivered links client `aggregator` hears in round r."""
    if not graph.active[r, aggregator]:
        return []
    return [int(n) for n in graph.members[r, aggregator, 1:][graph.mask[r, aggregator, 1:]]]


def by_cluster(graph: Graph) -> Graph:
    """A schedule of disjoint cliques with one aggregator a cluster (NTK-DFL, appendix E.2).

    The clients of a cluster meet at the first of them that is active, so that an aggregator
    computes once for all.

    Args:
      graph: a schedule of `clustered`, members and mask [T, M, K], clients dropped or not.

    Returns:
      members [T, H, K] int32, the aggregator's client in column 0, padding repeats it; mask [T, H,
      K] bool, the clients that take part; active [T, H] bool, False where none of a cluster does.

    Raises:
      TopologyError: a link that is missing inside a cluster, or clusters that are no cliques.
    """
    _check_unweighted(graph, 'a cluster that shares one model averages as its method does')
    members, mask, active = [], [], []
    for r in range(len(graph.members)):
        first = graph.members[r].min(axis=1)  # the least client of a clique names it
        aggregators = np.unique(first)
        rows = graph.members[r, aggregators]
        padding = rows == rows[:, :1]
        padding[:, 0] = False
        present = ~padding & graph.active[r][rows]
        complete = present.sum(axis=1)[np.searchsorted(aggregators, first)]
        incomplete = (graph.mask[r].sum(axis=1) != complete)[graph.active[r]]
        if (first[rows] != aggregators[:, None]).any() or incomplete.any():
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
    """The schedule of a centralized method: each round the server hears a random cohort.

    Args:
      clients: M.
      rounds: T.
      size: clients drawn each round without replacement.
      seed: non-negative.
      dropout: probability that a drawn client does not take part; it is not replaced.

    Returns:
      members [T, 1, size] int32, mask [T, 1, size] bool, active [T, 1] bool, False where no
      client takes part. No column is the aggregator itself.

    Raises:
      SettingError: size outside [1, M], dropout outside [0, 1].
    """
    if not 1 <= size <= clients:
        text = f'a cohort of {size} has to lie in [1, {clients}], the clients of the network'
        raise SettingError.of(text, cohort=size)
    check_probability('client dropout', dropout)
    # The draw of a round is an array of its own until all are stacked.
    check_memory('cohorts', rounds, clients, rounds * (128 + (16 + BYTES_OF_PLACE) * size))
    rng = np.random.default_rng([seed, Stream.COHORTS])
    members = np.stack([rng.choice(clients, size, replace=False) for _ in range(rounds)])
    mask = rng.random(members.shape) >= dropout
    return Graph(members.astype(np.int32)[:, None], mask[:, None], mask.any(axis=1, keepdims=True))
