"""How much gossip shrinks independent initial weights, and the gain that makes up for it.

Initialisation and topology paper, sections 4.1 and 4.2. Averaging takes every client to the mean of
the initial weights under v_steady, the stationary vector of A' (Eq. 3), which is the transpose of
our mixing matrix W: what was drawn with the standard deviation sigma has ||v_steady|| sigma then.
The gain is 1 / ||v_steady||: sqrt(M) where all clients count the same, less elsewhere.

Everything here is NumPy on the host and runs before the first round.
"""

import math
import warnings
from collections.abc import Sequence

import jax
import numpy as np
import scipy.sparse
from scipy.sparse import csgraph, linalg

from dfl_jax import topology
from dfl_jax.base import Graph
from dfl_jax.gossip.spectra import mixing_matrix
from dfl_jax.setting_error import SettingError
from dfl_jax.topology import TopologyError

TOLERANCE = 1e-12  # on the change of v_steady in a step, summed over clients
AGREEMENT = 2  # the largest ratio of two estimates of push-sum
POWER_STEPS = 2000  # slower networks are solved directly, which their sparse factors make cheap


def steady_vector(*matrices: scipy.sparse.sparray) -> np.ndarray:
    """v_steady [M], the share that each client's initial weights have in the consensus.

    v = W^T v, and of a schedule v = (W_T ... W_1)^T v; float64, non-negative, sums to one.

    Args:
      *matrices: the mixing matrices of successive rounds, [M, M], rows sum to one; the network goes
        through them again and again. One for a static graph, of any weights and directions.

    Raises:
      SettingError: some clients never hear, over all rounds, from some others.
      TopologyError: the vector of a schedule of several graphs does not settle.
    """
    steps = [scipy.sparse.csr_array(matrix.T) for matrix in reversed(matrices)]
    _check_connected(matrices)
    clients = steps[0].shape[0]
    v = np.full(clients, 1 / clients)
    for _ in range(POWER_STEPS):
        before = v
        for step in steps:
            v = step @ v
        v /= v.sum()
        if np.abs(v - before).sum() < TOLERANCE:
            return v
    if len(steps) > 1:
        raise TopologyError(
            f'the weights of {clients} clients do not settle in {POWER_STEPS} times the '
            f'{len(steps)} graphs of the schedule; raise the degree'
        )
    # One redundant equation of (W^T - 1) v = 0 gives way to sum v = 1, after v[0] = 1.
    system = (steps[0] - scipy.sparse.eye_array(clients)).tocsc()
    rest = linalg.spsolve(system[1:, 1:], -system[1:, [0]].toarray()[:, 0])
    v = np.concatenate([[1.0], np.atleast_1d(rest)])
    return v / v.sum()


def gain_of(*matrices: scipy.sparse.sparray) -> float:
    """1 / ||v_steady|| of a network that is known; arguments and errors as `steady_vector`."""
    return float(1 / np.linalg.norm(steady_vector(*matrices)))


def mixing_matrices(graphs: Graph, sizes: np.ndarray, kind: str) -> list[scipy.sparse.csr_array]:
    """The mixing matrices of a schedule [T, ...], only the first where all rounds are alike."""
    alike = all(np.asarray(a).strides[0] == 0 for a in jax.tree.leaves(graphs))
    rounds = 1 if alike else len(graphs.members)
    each = [jax.tree.map(lambda a, r=r: a[r], graphs) for r in range(rounds)]
    return [mixing_matrix(graph, sizes, kind) for graph in each]


def uniform_matrix(links: np.ndarray, clients: int) -> scipy.sparse.csr_array:
    """The mixing matrix of uniform averaging [M, M] over undirected links [E, 2].

    As `mixing_matrix` of the schedule, without its padding to the largest degree.
    """
    itself = np.arange(clients, dtype=np.int32)
    rows = np.concatenate([links[:, 0], links[:, 1], itself])
    columns = np.concatenate([links[:, 1], links[:, 0], itself])
    entries = (np.ones(len(rows)), (rows, columns))
    matrix = scipy.sparse.coo_array(entries, shape=(clients, clients)).tocsr()
    members = np.diff(matrix.indptr)  # repeated links have become one entry
    matrix.data = np.repeat(1 / members, members)
    return matrix


# ------------------------------------------------------------- without the whole graph, section 4.2


def gain_of_family(
    family: str | topology.Family,
    clients: int,
    *,
    mixing: str = 'uniform',
    rounds: int = 1,
    draws: int = 10,
    seed: int = 0,
    **options,
) -> float:
    """The mean gain of networks of a family, where it is known how the network came about.

    Args:
      family, options: as `topology.schedule` takes them.
      clients: n, as far as it is known.
      mixing: `uniform` or `metropolis`; sample counts are taken as equal. Where graphs have
        weights, they win.
      rounds: of each schedule, more than one where the graph changes.
      draws: connected networks drawn.
      seed: non-negative.

    Raises:
      ValueError: no such networks, or ten times as many draws did not give as many connected ones.
    """
    gains: list[float] = []
    static = rounds == 1 and topology.family_named(family)[1].static is not False
    for each in np.random.SeedSequence(seed).generate_state(10 * draws):
        with warnings.catch_warnings():
            warnings.simplefilter('ignore', UserWarning)  # a draw that is not connected
            graphs = topology.schedule(
                family, clients, rounds, seed=int(each), static=static, **options
            )
        matrices = mixing_matrices(graphs, np.ones(clients), mixing)
        if _components(matrices).max() == 0:
            gains.append(gain_of(*matrices))
        if len(gains) == draws:
            return float(np.mean(gains))
    raise TopologyError(
        f'{family} of {clients} clients is rarely connected, {len(gains)} times in {10 * draws}; '
        'raise the degree'
    )


def gain_of_degrees(degrees: Sequence[int] | np.ndarray, clients: int) -> float:
    """The gain of a network of n clients, from the degrees of some polled clients.

    In an undirected graph with uniform averaging v_i is proportional to k_i + 1, whatever the
    links: ||v||^2 = <(k + 1)^2> / (n <k + 1>^2), and the polled degrees give the two means.

    Args:
      degrees: [polled], neighbours of each polled client.
      clients: n, as far as it is known.

    Raises:
      SettingError: no client was polled.
    """
    with_self = np.asarray(degrees, np.float64) + 1
    if not with_self.size:
        raise SettingError.of('no degree was polled; ask at least one client', degrees=degrees)
    return float(math.sqrt(clients / (with_self**2).mean()) * with_self.mean())


def gain_of_size(clients: int | np.ndarray, exponent: float = 0.5) -> np.ndarray:
    """n^exponent: the gain where ||v_steady|| = n^-exponent (Figure 5a, b); n a scalar or [M]."""
    return np.asarray(clients, np.float64) ** exponent


def push_sum_size(graph: Graph, rounds: int) -> np.ndarray:
    """Every client's estimate of n by gossip, [M] (push-sum: Kempe, Dobra & Gehrke 2003).

    Every client starts with the value one, client 0 alone with the weight one; each round they
    share both equally among themselves and those that hear them, or by the graph's weights. Value
    over weight tends to n.

    Args:
      graph: a schedule, [T, M, K]; gossip goes through it again when it is used up.
      rounds: number of rounds of gossip.

    Raises:
      SettingError: the network is not connected.
      TopologyError: estimates differ by more than a factor of AGREEMENT.
    """
    clients = graph.members.shape[1]
    shares = [_shared(m, graph) for m in mixing_matrices(graph, np.ones(clients), 'uniform')]
    _check_connected(shares)
    pairs = np.stack([np.ones(clients), np.arange(clients) == 0], axis=1).astype(float)
    for r in range(rounds):
        pairs = shares[r % len(shares)] @ pairs
    estimates = pairs[:, 0] / np.maximum(pairs[:, 1], np.finfo(float).tiny)
    if estimates.max() > AGREEMENT * estimates.min():
        raise TopologyError(
            f'after {rounds} rounds of gossip the clients take themselves for '
            f'{estimates.min():.4g} to {estimates.max():.4g}; raise the rounds'
        )
    return estimates


def _shared(matrix: scipy.sparse.sparray, graph: Graph) -> scipy.sparse.sparray:
    """What each client, a row, gets of what the others, columns that sum to one, give away."""
    if graph.weights is not None:
        return scipy.sparse.csr_array(matrix.T)
    links = (matrix != 0).astype(float)
    return scipy.sparse.csr_array(links @ scipy.sparse.diags_array(1 / links.sum(axis=0)))


def polled_degrees(graph: Graph, sample: int, seed: int) -> np.ndarray:
    """Neighbours in the first round of `sample` random clients, [sample]."""
    degrees = np.asarray(graph.mask[0]).sum(axis=1) - 1
    if not 1 <= sample <= len(degrees):
        text = f'{sample} polled clients of {len(degrees)}: use 1 to {len(degrees)}'
        raise SettingError.of(text, sample=sample)
    return np.random.default_rng(seed).choice(degrees, sample, replace=False)


def _components(matrices: Sequence[scipy.sparse.sparray]) -> np.ndarray:
    """The index of each client's strongly connected component over all rounds, [M]."""
    heard = sum(map(abs, matrices[1:]), abs(matrices[0]))
    return csgraph.connected_components(heard, directed=True, connection='strong')[1]


def _check_connected(matrices: Sequence[scipy.sparse.sparray]) -> None:
    names = _components(matrices)
    if parts := names.max():
        raise SettingError.of(
            f'the graph is not connected: its {len(names)} clients fall into {parts + 1} '
            f'components, the largest of {np.bincount(names).max()}, and each would need a gain of '
            'its own; raise the degree, or take another `seed` or init',
            init='gain_corrected',
        )
