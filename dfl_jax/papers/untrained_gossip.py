"""Gossip without learning: the numerical model of the initialisation and topology paper, section 4.

Every node holds d numbers; a round averages them with the neighbours' and adds Gaussian noise in
place of training. What is left of the initial deviation, and when, predicts how a network of
independently initialised models starts.
"""

import math
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

import jax
import numpy as np
import scipy.sparse

from dfl_jax.base import Array
from dfl_jax.checks import ROW_SUM_TOLERANCE

# The mixing matrix is dense from one entry in so many that is not zero.
DENSE_FROM_SHARE = 8
BLOCK = 2**17  # parameters worked on at once, which the cache of a core holds


class Deviations(NamedTuple):
    """The two standard deviations of section 3 after rounds 0 to T, [T + 1] each."""

    among_nodes: np.ndarray  # sigma_an: of a parameter over nodes, mean over parameters
    among_parameters: np.ndarray  # sigma_ap: of a node's parameters, mean over nodes


def simulate(
    key: Array,
    matrix: scipy.sparse.sparray,
    *,
    parameters: int,
    rounds: int,
    sigma_init: float = 1.0,
    sigma_noise: float = 0.0,
) -> Deviations:
    """The deviations of w <- W w + noise over `rounds`, from Gaussian w.

    Args:
      key: draws the initial values and the noise.
      matrix: [n, n], the mixing matrix W of every round (`spectra.mixing_matrix`), rows sum to one.
      parameters: d.
      rounds: T.
      sigma_init, sigma_noise: standard deviations.

    Raises:
      ValueError: no round, no parameter, a negative standard deviation, or a row of another sum.
    """
    if rounds < 1 or parameters < 1 or min(sigma_init, sigma_noise) < 0:
        raise ValueError(
            f'rounds={rounds} and parameters={parameters} have to be at least 1, '
            f'sigma_init={sigma_init} and sigma_noise={sigma_noise} at least 0'
        )
    coupling = scipy.sparse.csr_array(matrix)
    sums = coupling.astype(np.float64).sum(axis=1)
    if (wrong := np.flatnonzero(~np.isclose(sums, 1, rtol=0, atol=ROW_SUM_TOLERANCE))).size:
        raise ValueError(
            f'row {wrong[0]} sums to {sums[wrong[0]]:g}, where the weights of an average sum to one'
        )
    coupling = coupling.astype(np.float32)
    nodes = coupling.shape[0]
    if coupling.nnz * DENSE_FROM_SHARE > nodes**2:
        coupling = coupling.toarray()
    size = min(max(1, BLOCK // parameters), nodes)
    blocks = [slice(first, first + size) for first in range(0, nodes, size)]
    weights = [coupling[block] for block in blocks]
    # A stream a block, so that what is drawn does not depend on which thread is first.
    seeds = np.random.SeedSequence(np.asarray(jax.random.key_data(key)).tolist())
    streams = [np.random.Generator(np.random.SFC64(seed)) for seed in seeds.spawn(len(blocks))]

    # The parameters are common [d] + rest [n, d], and averaging leaves `common` alone, to which the
    # mean of `rest` goes. When both were averaged, the rounding of `common` in float32 drowned a
    # noise of 1e-8: sigma_an of 256 nodes ended at 1.17e-8 instead of 1.10e-8 (6-regular) and at
    # 1.37e-8 instead of 1.12e-8 (Barabási-Albert), and at 8e-10 and 7e-9 without any noise
    # (2026-11-22).
    common, mean = np.zeros((2, parameters), np.float32)
    rest, before = np.zeros((2, nodes, parameters), np.float32)
    curves = []

    def advance(t: int, number: int) -> np.ndarray:
        """Round t of a block, into `rest`; `_sums` of it."""
        new = rest[blocks[number]]
        if t > 0:
            np.subtract(weights[number] @ before, means[: len(new)], out=new)
        if sigma := sigma_noise if t else sigma_init:
            noise = normal(streams[number], new.shape)
            noise *= np.float32(sigma)
            new += noise
        return _sums(new, common)

    with ThreadPoolExecutor() as pool:
        for t in range(rounds + 1):
            rest, before = before, rest
            common = common + mean
            means = np.tile(mean, (size, 1))  # three times as fast to subtract as the one row
            sums = sum(pool.map(partial(advance, t), range(len(blocks)))) / nodes
            mean = sums[:parameters].astype(np.float32)
            variances = sums[parameters:-1] - sums[:parameters] ** 2
            curves.append((np.sqrt(np.maximum(variances, 0)).mean(), sums[-1]))
    return Deviations(*np.array(curves).T)


def normal(stream: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal numbers, float32, by the transform of Box and Muller (1958); at most 5.8.

    655,360 of them, in five calls, take 1.6 ms, and 5.4 ms by `stream.standard_normal`, which draws
    one after the other (one core of an AMD EPYC, 2026-11-26).
    """
    count = math.prod(shape)
    radius, angle = stream.random((2, -(-count // 2)), np.float32)
    np.subtract(1, radius, out=radius)  # in (0, 1], where the logarithm is finite
    np.log(radius, out=radius)
    radius *= -2
    np.sqrt(radius, out=radius)
    angle *= np.float32(2 * np.pi)
    pairs = np.stack([np.cos(angle), np.sin(angle)])
    pairs *= radius
    return pairs.ravel()[:count].reshape(shape)


def _sums(rest: np.ndarray, common: np.ndarray) -> np.ndarray:
    """Over the nodes of rest [B, d]: of its parameters and of their squares, d each, and of the
    standard deviations of the parameters common [d] + rest of each node; [2 d + 1]."""
    nodes, parameters = rest.shape
    each, share = np.ones(nodes, np.float32), np.full(parameters, 1 / parameters, np.float32)
    common = common - common.mean()
    squares = rest**2
    # The mean of (common + rest)^2 by its terms: products of BLAS take 0.2 ms where sums along the
    # short rows of [13107, 10] and np.std take 0.7 and 1.5 (2-core AMD EPYC, 2026-11-23).
    second = squares @ share + rest @ (2 * share * common) + share @ common**2
    variances = second - (rest @ share) ** 2
    deviations = np.sqrt(np.maximum(variances, 0)).sum(keepdims=True)
    return np.concatenate([each @ rest, each @ squares, deviations], dtype=np.float64)


def stabilisation(curve: np.ndarray, tolerance: float = 0.1) -> int:
    """The round from which a deviation stays near its end, by a relative tolerance (section 4.3).

    curve: [T + 1], e.g. sigma_an; its end is the mean of the last tenth. Raises ValueError where it
    is outside the tolerance somewhere in its last fifth.
    """
    curve = np.asarray(curve)
    tail = max(1, len(curve) // 10)
    end = curve[-tail:].mean()
    inside = np.abs(curve - end) <= tolerance * end
    stable_from = len(curve) - int(np.argmin(inside[::-1])) if not inside.all() else 0
    if stable_from > len(curve) - 2 * tail:
        raise ValueError(f'not stable after {len(curve) - 1} rounds; raise the rounds')
    return stable_from
