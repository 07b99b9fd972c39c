"""The precision of the products that an NTK round is made of.

A TPU multiplies float32 in bfloat16, a GPU of NVIDIA's in TF32 where it may, unless they are asked
for more. Kernels, outputs, residuals and the networks that judge a timestep ask for the precision
that `at_precision` sets around the trace of a round; by themselves, for the highest.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.base import Array
from dfl_jax.checks import check_choice

PRECISIONS = ('highest', 'high', 'default')


def at_precision(precision: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, whose products ask for `precision` unless they name their own.

    Raises ValueError for a precision that is not one of PRECISIONS.
    """
    check_choice('precision', precision, PRECISIONS)

    @functools.wraps(function)
    def at(*args: Any, **options: Any) -> Any:
        with jax.default_matmul_precision(precision):
            return function(*args, **options)

    return at


def asked() -> lax.Precision | None:
    """The highest precision, or None, which means the one set around the trace."""
    around = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return None if around else lax.Precision.HIGHEST


def product(a: Array, b: Array) -> Array:
    """The matrix product a b at the precision `asked`."""
    return jnp.matmul(a, b, precision=asked())
