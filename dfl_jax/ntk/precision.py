"""The precision of the products that an NTK round is made of.

Without an explicit precision a TPU multiplies float32 in bfloat16, and NVIDIA's GPUs may in TF32.
Kernels, outputs, residuals and the networks that evaluate a timestep take the precision that
`at_precision` sets around the trace of a round; outside of it, the highest.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.base import Array
from dfl_jax.checks import check_choice

# Of a Gram matrix; four and eight take longer (2026-11-23): docs/benchmarks.md, "Constants".
STRIPS = 6

# The names of JAX, and of its presets where a name says less than it seems to: `bfloat16` is one of
# JAX's, too, and means the default, which is TF32 on NVIDIA's GPUs
PRECISIONS = {
    'highest': 'highest',
    'high': 'high',
    'default': 'default',
    'bfloat16': 'BF16_BF16_F32',
    'float16_kernel': 'highest',
}


def at_precision(precision: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with products of `precision`, unless they name another.

    `float16_kernel` is about one matrix (`in_float16`): all other products have the highest.

    Raises ValueError for a precision that is not one of PRECISIONS.
    """
    check_choice('precision', precision, PRECISIONS)
    return jax.default_matmul_precision(PRECISIONS[precision])(function)


def traced_precision() -> lax.Precision | None:
    """The precision of products: None, which is the one set around the trace, else the highest."""
    around = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
    return None if around else lax.Precision.HIGHEST


def product(a: Array, b: Array) -> Array:
    """The matrix product a b at the `traced_precision`."""
    return jnp.matmul(a, b, precision=traced_precision())


def in_float16(kernel: Array) -> Callable[[Array], Array]:
    """S [C, N] -> S H, of a symmetric positive semi-definite H [N, N] kept in float16.

    Both factors are divided by their largest entries, so that nothing overflows; products are
    added up in float32. An evolution reads H some 20 to 100 times, and then half as many bytes.
    """
    smallest = jnp.finfo(kernel.dtype).tiny
    top = jnp.maximum(jnp.max(jnp.diagonal(kernel)), smallest)  # no entry of H is larger
    short = (kernel / top).astype(jnp.float16)

    def apply(total: Array) -> Array:
        size = jnp.maximum(jnp.max(jnp.abs(total)), smallest)
        scaled = (total / size).astype(jnp.float16)
        options = {'precision': lax.Precision.DEFAULT, 'preferred_element_type': jnp.float32}
        return (jnp.matmul(scaled, short, **options) * (top * size)).astype(total.dtype)

    return apply


def symmetric(block: Callable[[slice, slice], Array], size: int) -> Array:
    """A symmetric matrix [N, N] from block(rows, columns) -> its entries there.

    STRIPS x STRIPS blocks, those below the diagonal mirrored: of 36 blocks 21 are computed.
    """
    height = -(-size // STRIPS)
    starts = range(0, size, height)
    strips = [block(slice(i, i + height), slice(i, size)) for i in starts]

    def below(i: int) -> list[Array]:
        """The blocks of strip i left of the diagonal, from the strips above it."""
        return [strips[j][:, (i - j) * height :][:, : len(strips[i])].T for j in range(i)]

    return jnp.concatenate(
        [jnp.concatenate([*below(i), strip], axis=1) for i, strip in enumerate(strips)]
    )


def gram(rows: Array) -> Array:
    """rows rows^T [N, N] of rows [N, d]."""
    return symmetric(lambda i, j: product(rows[i], rows[j].T), len(rows))
