"""Mixing matrices of a round as sparse matrices on the host, and their eigenvalues."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
import scipy.sparse
from scipy.sparse import csgraph, linalg

from dfl_jax.base import Graph
from dfl_jax.gossip.mixing import mixing_weights

DENSE_SPECTRUM_UP_TO = 1000
ROUNDING = 1e-9  # of a modulus that is one, which the iterations find to 1e-10


class Spectrum(NamedTuple):
    """How fast gossip with one fixed mixing matrix reaches consensus."""

    second_modulus: float  # |lambda_2|, the second largest modulus of an eigenvalue
    spectral_gap: float  # 1 - |lambda_2|


def mixing_matrix(graph: Graph, sizes: np.ndarray, kind: str = 'size') -> scipy.sparse.csr_array:
    """The mixing matrix of one round, [M, M] float64, whose rows sum to one.

    graph: one round, [M, K]; sizes: [M], samples of each client; kind: as in `mixing_weights`,
    which takes the graph's weights where it has some.

    >>> from dfl_jax import topology
    >>> graphs = topology.schedule('ring', 6, rounds=10, seed=0)
    >>> first = jax.tree.map(lambda leaf: leaf[0], graphs)
    >>> mixing_matrix(first, np.ones(6), 'metropolis').shape
    (6, 6)

    Raises ValueError for graphs of several rounds, or of other clients than `sizes`.
    """
    graph, sizes = jax.tree.map(np.asarray, graph), np.asarray(sizes)
    if graph.members.ndim != 2 or np.where(graph.mask, graph.members, 0).max() >= len(sizes):
        raise ValueError(
            f'members {graph.members.shape} and sizes {sizes.shape}: give one round of a schedule, '
            'jax.tree.map(lambda leaf: leaf[0], graphs), and the size of each of its clients'
        )
    members, weights = graph.members, mixing_weights(graph, sizes, kind)
    aggregators, columns = np.nonzero(weights)
    entries = (weights[aggregators, columns], (aggregators, members[aggregators, columns]))
    return scipy.sparse.coo_array(entries, shape=(len(sizes), len(sizes))).tocsr()


def spectrum(matrix: scipy.sparse.sparray) -> Spectrum:
    """The second largest modulus of the eigenvalues of a mixing matrix, and the gap to one.

    The gap is 1 - |lambda_2|; NTK-DFL, Definition 4.2, calls (1 - lambda)^2 the gap instead. A
    disconnected network has second modulus one and gap zero; negative weights may bring a modulus
    above one, with which gossip diverges. Dense eigenvalues up to M = 1000, Arnoldi or Lanczos
    iterations beyond, unless these do not converge on directed links.

    Where the matrix is not symmetric, as with directed links, the modulus is the rate in the end:
    what is left after t rounds shrinks as |lambda_2|^t, but may grow at first. The consensus is
    v^T x of the left eigenvector v (`gain.steady_vector`), the mean only if columns sum to one.

    matrix: [M, M], rows sum to one, of any weights and directions.
    """
    matrix = scipy.sparse.csr_array(matrix)
    clients = matrix.shape[0]
    if clients == 1:
        return Spectrum(0.0, 1.0)
    if csgraph.connected_components(matrix, directed=False)[0] > 1:
        return Spectrum(1.0, 0.0)
    symmetric = abs(matrix - matrix.T).max() < 1e-12
    if clients <= DENSE_SPECTRUM_UP_TO:
        eigenvalues = (np.linalg.eigvalsh if symmetric else np.linalg.eigvals)(matrix.toarray())
    else:
        eigenvalues = _extreme_eigenvalues(matrix, linalg.eigsh if symmetric else linalg.eigs)
    others = np.delete(eigenvalues, np.argmin(np.abs(eigenvalues - 1)))
    second = float(np.abs(others).max())
    second = 1.0 if 1 < second < 1 + ROUNDING else second
    return Spectrum(second, 1.0 - second)


def _extreme_eigenvalues(matrix: scipy.sparse.csr_array, solve: Callable) -> np.ndarray:
    """The few eigenvalues of largest modulus, the eigenvalue one among them."""
    start = np.random.default_rng(0).standard_normal(matrix.shape[0])
    options = {'k': 4, 'v0': start, 'return_eigenvectors': False}
    try:
        return solve(matrix, which='LM', ncv=64, maxiter=300, tol=1e-10, **options)
    except linalg.ArpackNoConvergence:
        if (matrix.astype(bool) != matrix.T.astype(bool)).nnz:  # eigenvalues all over the disk
            return np.linalg.eigvals(matrix.toarray())
        # A slowly mixing network separates easily: its factorisation about +-1 is sparse.
        ends = [solve(matrix.tocsc(), sigma=s * (1 + 1e-6), **options) for s in (1, -1)]
        return np.concatenate(ends)
