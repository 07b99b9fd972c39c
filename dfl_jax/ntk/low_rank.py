"""A kernel near another one on its stiff modes, of low rank.

The Nystrom approximation of a positive semi-definite matrix by random directions, after one power
step: Halko, Martinsson & Tropp, "Finding structure with randomness", 2011, section 5.5.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.base import Array

# By the time of an evolution (2026-12-01): docs/benchmarks.md, "Constants".
RANK = 32  # modes
SHIFT = 16  # rounding errors of the trace, added to the diagonal of what may be singular


def low_rank(kernel: Array) -> Callable[[Array], Array]:
    """S [C, N] -> S F F^T, F [N, RANK], near S H for a symmetric positive semi-definite H [N, N].

    H - F F^T is positive semi-definite, but for rounding, and about as large as the eigenvalues of
    H from the RANK-th on.
    """
    # What is factorized has to be exact, whatever the precision of the round is.
    product = partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    directions = jax.random.normal(jax.random.key(0), (len(kernel), RANK), kernel.dtype)
    image = product(kernel, directions)
    basis = _whitened(image, product(image.T, image))
    image = product(kernel, basis)
    factor = _whitened(image, product(basis.T, image))
    return lambda total: product(product(total, factor), factor.T)


def low_rank_cost(samples: Array, outputs: int) -> tuple[Array, Array]:
    """The flops of S F F^T and of forming F, by those of S H."""
    return 2 * RANK / samples, 2 * RANK / outputs * (1 + RANK / samples)


def _whitened(tall: Array, square: Array) -> Array:
    """A L^-T [N, k] of A [N, k] and L L^T [k, k]."""
    limits = jnp.finfo(square.dtype)
    shift = SHIFT * limits.eps * jnp.trace(square) + limits.tiny  # a kernel may be zero
    lower = jnp.linalg.cholesky(square + shift * jnp.eye(len(square), dtype=square.dtype))
    return jax.scipy.linalg.solve_triangular(lower, tall.T, lower=True).T
