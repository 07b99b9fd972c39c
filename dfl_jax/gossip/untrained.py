"""Gossip without learning: the numerical model of the initialisation and topology paper, section 4.

Every node holds d numbers; a round averages them with the neighbours' and adds Gaussian noise in
place of training. What is left of the initial deviation, and when, predicts how a network of
independently initialised models starts.
"""

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from jax import lax
from jax.experimental import sparse

from dfl_jax.base import Array

# The mixing matrix is dense from one entry in so many that is not zero.
DENSE_FROM_SHARE = 8
ROW_SUM_TOLERANCE = 1e-6  # allows for the rounding of float32 weights


class Deviations(NamedTuple):
    """The two standard deviations of section 3 after rounds 0 to T, [T + 1] each."""

    among_nodes: np.ndarray  # sigma_an: of a parameter over nodes, mean over parameters
    among_parameters: np.ndarray  # sigma_ap: of a node's parameters, mean over nodes


def deviations(w: Array) -> tuple[Array, Array]:
    """sigma_an and sigma_ap of parameters [n, d]."""
    return jnp.std(w, axis=0).mean(), jnp.std(w, axis=1).mean()


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
    dense = coupling.nnz * DENSE_FROM_SHARE > math.prod(coupling.shape)
    w = jnp.asarray(coupling.toarray()) if dense else sparse.BCOO.from_scipy_sparse(coupling)
    scales = jnp.asarray([sigma_init, sigma_noise], jnp.float32)
    curves = _simulate(key, w, scales, parameters=parameters, rounds=rounds)
    return Deviations(*map(np.asarray, curves))


@partial(jax.jit, static_argnames=('parameters', 'rounds'))
def _simulate(key, coupling, scales, *, parameters, rounds):
    k_init, k_noise = jax.random.split(key)
    shape = (coupling.shape[0], parameters)
    multiply = sparse.sparsify(partial(jnp.matmul, precision='highest'))

    def measured(common, rest):
        return deviations(rest)[0], deviations(common + rest)[1]

    # The parameters are common [1, d] + rest [n, d], and averaging leaves `common` alone. When both
    # were averaged, the rounding of `common` in float32 drowned a noise of 1e-8: sigma_an of 256
    # nodes ended at 1.17e-8 instead of 1.10e-8 (6-regular) and at 1.37e-8 instead of 1.12e-8
    # (Barabási-Albert), and at 8e-10 and 7e-9 without any noise (2026-11-22).
    def one(carry, number):
        common, rest = carry
        noise = jax.random.normal(jax.random.fold_in(k_noise, number), shape)
        rest = multiply(coupling, rest) + scales[1] * noise
        mean = rest.mean(axis=0, keepdims=True)
        common, rest = common + mean, rest - mean
        return (common, rest), measured(common, rest)

    start = jnp.zeros((1, parameters)), scales[0] * jax.random.normal(k_init, shape)
    _, curves = lax.scan(one, start, jnp.arange(rounds))
    return [jnp.concatenate([s[None], c]) for s, c in zip(measured(*start), curves, strict=True)]


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
