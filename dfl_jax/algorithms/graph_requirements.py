"""What the theory of a method asks of the network: checks of a whole schedule, before it is used.

Each raises ValueError, of one line with the remedy. graphs: [T, ...]; sizes: [M], of the clients.
"""

from fractions import Fraction

import jax
import numpy as np
from scipy.sparse import csgraph

from dfl_jax.base import Graph
from dfl_jax.gossip import mixing_matrix
from dfl_jax.setting_error import InputError

MOST_COUNTED = 2**31 - 1  # of `Info.sent`, int32
STOCHASTIC = 1e-6  # how far the columns of a doubly stochastic matrix may be from one


def unweighted(name: str, graphs: Graph) -> None:
    """That the graph has no mixing weights of its own, which the method would not use."""
    if graphs.weights is not None:
        raise InputError(
            f'{name} has weights of its own, and the graph has others; use a `topology` '
            'without weights (for links of your own edge_list or directed_edge_list)'
        )


def static(name: str, graphs: Graph, sizes: np.ndarray) -> None:
    """That all rounds have the same graph, on which nothing is lost."""
    del sizes
    for round, differs in enumerate(_changes(graphs), 1):
        if differs:
            raise InputError(
                f'{name} needs the same graph in every round, and round {round} has another; '
                'use `static_topology`, and no dropout'
            )


def balanced(name: str, mixing: str, graphs: Graph, sizes: np.ndarray) -> None:
    """That the mixing matrix of every round is doubly stochastic."""
    for round in _of_each_graph(graphs):
        columns = mixing_matrix(_round(graphs, round), sizes, mixing).sum(axis=0)
        worst = int(np.argmax(np.abs(columns - 1)))
        if abs(columns[worst] - 1) > STOCHASTIC:
            raise InputError(
                f'{name} needs a doubly stochastic mixing matrix; with mixing={mixing} the '
                f'weights on client {worst} sum to {columns[worst]:.3g} in round {round + 1}; '
                'leave out failures of one direction, use a topology whose links go both ways, or '
                '`mixing=metropolis`'
            )


def eigenvalues_above(
    name: str, bound: float, mixing: str, lazy: bool, graphs: Graph, sizes: np.ndarray
) -> None:
    """That W, or (I + W) / 2 if lazy, is symmetric, static, and has no eigenvalue below `bound`."""
    static(name, graphs, sizes)
    matrix = mixing_matrix(_round(graphs, 0), sizes, mixing).toarray()
    if np.abs(matrix - matrix.T).max() > STOCHASTIC:
        raise InputError(
            f'{name} needs a symmetric mixing matrix, which mixing={mixing} is not on this '
            'graph; leave out failures of one direction, use a topology whose links go both ways, '
            'or `mixing=metropolis`'
        )
    least = float(np.linalg.eigvalsh((np.eye(len(matrix)) + matrix) / 2 if lazy else matrix)[0])
    if least <= bound:
        raise InputError(
            f'{name} needs eigenvalues of the mixing matrix above {bound:.3g}, and the least '
            f'is {least:.3g}; use `lazy`'
        )


def tree(name: str, graphs: Graph, sizes: np.ndarray) -> None:
    """That the graph is static, connected and without a cycle."""
    unweighted(name, graphs)
    static(name, graphs, sizes)
    matrix = mixing_matrix(_round(graphs, 0), sizes, 'uniform')
    links = matrix.nnz - len(sizes)
    one_way = (matrix != 0).astype(int) - (matrix.T != 0).astype(int)
    parts = csgraph.connected_components(matrix, directed=False)[0]
    if abs(one_way).sum() or parts > 1 or links != 2 * (len(sizes) - 1):
        raise InputError(
            f'{name} needs a tree, a connected graph without a cycle; {len(sizes)} clients '
            f'have {links // 2} links in {parts} components here; use `topology=line`, star, '
            'or an edge list of a spanning tree, and no failures'
        )


def heard(name: str, graphs: Graph, sizes: np.ndarray) -> None:
    """That every client is heard by another in some round."""
    unweighted(name, graphs)
    counts = np.zeros(len(sizes), int)
    for round in _of_each_graph(graphs):
        members, mask, active = (np.asarray(a)[round] for a in graphs[:3])
        delivered = members[:, 1:][mask[:, 1:] & active[:, None]]
        counts += np.bincount(delivered, minlength=len(sizes))
    if len(alone := np.flatnonzero(counts == 0)):
        raise InputError(
            f'{name} needs every client to be heard, and nobody ever hears client {alone[0]}'
            f'{f" and {len(alone) - 1} more" if len(alone) > 1 else ""}; use another topology, '
            'a higher `degree` or fewer failures'
        )


def countable(
    name: str, outputs: int, share: Fraction, returned: bool, graphs: Graph, sizes: np.ndarray
) -> None:
    """That the outputs which a client sends in a round have a number that `Info.sent` can hold.

    outputs: of the network, of each sample. share: of a client's samples that it sends to all that
    hear it. returned: whether it sends something for each sample that it hears, too.
    """
    sizes = -(-np.asarray(sizes, np.int64) * share.numerator // share.denominator)
    members, mask, active = (np.asarray(a) for a in graphs[:3])
    if outputs * int(sizes.max()) * sum(members.shape[1:]) <= MOST_COUNTED:
        return
    for round in _of_each_graph(graphs):
        neighbours = members[round, :, 1:]
        delivered = mask[round, :, 1:] & active[round, :, None]
        messages = np.bincount(neighbours[delivered], minlength=len(sizes))
        samples = messages * sizes
        if returned:
            samples += np.where(delivered, sizes[neighbours], 0).sum(axis=1)
        most = int(np.argmax(samples))
        if outputs * int(samples[most]) > MOST_COUNTED:
            raise ValueError(
                f'client {most} sends {outputs * int(samples[most]):,} outputs in round '
                f'{round + 1}, {outputs} for each of its {sizes[most]} samples to each of '
                f'{messages[most]} that hear it, and {name} counts up to {MOST_COUNTED:,}; use a '
                'topology with fewer neighbours, or fewer samples'
            )


def _round(graphs: Graph, round: int) -> Graph:
    return jax.tree.map(lambda a: np.asarray(a)[round], graphs)


def _of_each_graph(graphs: Graph) -> list[int]:
    """The rounds whose graph is not that of the round before."""
    return [round for round, differs in enumerate(_changes(graphs)) if differs or not round]


def _changes(graphs: Graph) -> np.ndarray:
    """Whether the graph of each round differs from that of the round before, [T] bool."""
    arrays = [np.asarray(a) for a in graphs if a is not None]
    changed = np.zeros(len(arrays[0]), bool)
    for a in arrays:
        if a.strides[0]:  # else a static schedule's, held once
            changed[1:] |= (a[1:] != a[:-1]).any(axis=tuple(range(1, a.ndim)))
    return changed
