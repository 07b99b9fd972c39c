"""Function-space evolution under a fixed kernel: Eq. (4), (5b) and (11) of NTK-DFL.

Gradient descent on the linearized network moves the outputs as f^(t) = f^(0) - (lr / N~) H S_t,
where S_t = sum_{u<t} (prediction(f^(u)) - Y) is the accumulated residual and the prediction is
softmax(f) for cross-entropy, f itself for half-MSE. The weights need S_t too (Eq. 5a), and the
outputs follow from it, so S is what is evolved here:

`euler`  one step of length lr at a time: Eq. (5) as written, `timesteps[-1]` kernel products.
`rkc`    the gradient flow dS/dt = prediction(f) - Y by a Runge-Kutta-Chebyshev method that checks
         the error of every step, see `dfl_jax.ntk.chebyshev`.
`eigh`   the closed form of Eq. (4), half-MSE only.

Outputs and residuals are stored [C, N]: S H, with S short and wide, runs 1.5 to 1.8 times as fast
as H S^T (C = 10, N = 1180, 2-core AMD EPYC, 2026-11-20).
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.checks import check_choice
from dfl_jax.ntk.chebyshev import TOLERANCE, integration
from dfl_jax.ntk.precision import product

Kernel = Array | Callable[[Array], Array]  # H [N, N], or S [C, N] -> its product with the kernel

EVOLUTIONS = ('rkc', 'euler', 'eigh')
LOSSES = ('cross_entropy', 'mse')


def apply(kernel: Kernel, total: Array) -> Array:
    """The kernel's product with S [C, N], [C, N]."""
    return kernel(total) if callable(kernel) else product(total, kernel)


def sample_losses(f: Array, y: Array, loss: str) -> Array:
    """Loss of each sample: f, y [C, N] (y one-hot) -> [N]. Half squared error for `mse`."""
    if loss == 'mse':
        return 0.5 * jnp.sum((f - y) ** 2, axis=0)
    return -jnp.sum(jax.nn.log_softmax(f, axis=0) * y, axis=0)


def evolution(
    kernel: Kernel,
    f0: Array,
    y: Array,
    mask: Array,
    lr: Array | float,
    *,
    timesteps: Sequence[int],
    loss: str = 'cross_entropy',
    method: str = 'rkc',
    tolerance: float = TOLERANCE,
) -> tuple[PyTree, Callable[[PyTree, Array], tuple[PyTree, Array]]]:
    """The begin of an evolution, and reach(progress, t) -> (progress, S_t [C, N]).

    `reach` takes the timesteps one after the other, from the first on, and costs what lies between
    two of them: who stops early has not computed what comes after.

    Args:
      kernel: H of Eq. (3), [N, N], which acts on every output alike, or any symmetric positive
        semi-definite map of S [C, N]. Entries of padding are never read.
      f0: outputs at the start, [C, N].
      y: targets, [C, N]: one-hot labels, or distributions.
      mask: [N] bool, False for padding, whose residual stays zero.
      lr: length of one time step.
      timesteps: increasing numbers of steps.
      loss: `cross_entropy` or `mse` (half squared error).
      method: `rkc`, `euler` or `eigh`.
      tolerance: of `rkc`, the estimated error of a step by the norm of S_t.

    Raises ValueError for `eigh` with cross-entropy or without a matrix, and for unknown names.
    """
    check(timesteps, loss, method)
    n = jnp.maximum(jnp.sum(mask), 1)  # an aggregator without samples stays where it is
    if not callable(kernel):
        kernel = jnp.where(mask[:, None] & mask[None, :], kernel, 0)
    mask = mask[None, :]
    start = jnp.zeros_like(f0)

    def residual_of(f):
        prediction = f if loss == 'mse' else jax.nn.softmax(f, axis=0)
        return jnp.where(mask, prediction - y, 0)

    def residual(total):
        return residual_of(f0 - (lr / n) * apply(kernel, total))  # Eq. (5): f^(t) from S_t

    if method == 'eigh':
        if callable(kernel):
            raise ValueError('evolution eigh needs the matrix of the kernel; use rkc or euler')
        at = _closed_form(kernel, jnp.where(mask, f0 - y, 0), lr / n)
        return (), lambda progress, t: (progress, jnp.where(mask, at(t.astype(f0.dtype)), 0))

    if method == 'euler':

        def steps(progress, t):
            reached, total = progress
            total = lax.fori_loop(reached, t, lambda _, s: s + residual(s), total)
            return (t, total), total

        return (jnp.int32(0), start), steps

    # diag(p) - p p^T, the Jacobian of the softmax, has eigenvalues up to 1/2.
    steepest = 1.0 if loss == 'mse' else 0.5
    bound = jnp.inf if callable(kernel) else steepest * _largest_eigenvalue_bound(kernel)

    def jacobian(v, slope):  # of `residual`, with the other sign, where it is `slope`
        image = jnp.where(mask, lr / n * apply(kernel, v), 0)
        if loss == 'mse':
            return image
        p = slope + y
        return p * (image - jnp.sum(p * image, axis=0, keepdims=True))

    slope = residual_of(f0)
    return integration(residual, jacobian, lr / n * bound, start, slope, timesteps, tolerance)


def evolve(*arguments, timesteps: Sequence[int], **settings) -> Array:
    """S_t at each of `timesteps`, [len(timesteps), C, N]; arguments as in `evolution`."""
    begin, reach = evolution(*arguments, timesteps=timesteps, **settings)
    return lax.scan(reach, begin, jnp.array(timesteps, jnp.int32))[1]


def check(timesteps: Sequence[int], loss: str, method: str) -> None:
    """Raises ValueError for settings that `evolve` cannot follow."""
    check_choice('evolution', method, EVOLUTIONS)
    check_choice('loss', loss, LOSSES)
    if method == 'eigh' and loss != 'mse':
        raise ValueError(
            'evolution eigh is the closed form of half-MSE; use rkc or euler with cross_entropy'
        )
    steps = [0, *timesteps]
    if len(steps) < 2 or any(late <= early for early, late in pairwise(steps)):
        raise ValueError(f'timesteps have to be positive and increasing, got {tuple(timesteps)}')


def _closed_form(kernel: Array, residual: Array, rate: Array) -> Callable[[Array], Array]:
    """t -> Eq. (4) summed as Eq. (5b) asks: a geometric series in every eigendirection."""
    values, vectors = jnp.linalg.eigh(kernel)
    decay = rate * jnp.maximum(values, 0)  # the exponent of one step
    coordinates = product(residual, vectors)

    def at(t: Array) -> Array:
        # sum_{u<t} exp(-decay u), whose limit without decay is t
        series = jnp.where(decay > 0, jnp.expm1(-decay * t) / jnp.expm1(-decay), t)
        return product(coordinates * series[None, :], vectors.T)

    return at


def _largest_eigenvalue_bound(kernel: Array) -> Array:
    """Collatz-Wielandt: max_m (|H| v)_m / v_m bounds the spectral radius for every v > 0.

    v is the vector of row sums, one power iteration from the all-ones vector.
    """
    magnitudes = jnp.abs(kernel)
    v = jnp.sum(magnitudes, axis=1)
    return jnp.max(jnp.where(v > 0, product(magnitudes, v) / v, 0))
