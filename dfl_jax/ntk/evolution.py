"""Function-space evolution under a fixed kernel: Eq. (4), (5b) and (11) of NTK-DFL.

Gradient descent on the linearized network moves the outputs as f^(t) = f^(0) - (lr / N~) H S_t,
where S_t = sum_{u<t} (prediction(f^(u)) - Y) is the accumulated residual and the prediction is
softmax(f) for cross-entropy, f itself for half-MSE. The weights need S_t too (Eq. 5a), and the
outputs follow from it, so S is what is evolved here:

`euler`  one step of length lr at a time: Eq. (5) as written, `timesteps[-1]` kernel products.
`rkc`    the gradient flow dS/dt = prediction(f) - Y by a second-order Runge-Kutta-Chebyshev method,
         whose number of stages follows from a bound on the stiffest mode.
`eigh`   the closed form of Eq. (4), half-MSE only.

Outputs and residuals are stored [C, N]: a short, wide S times the symmetric H runs 1.5 to 1.8 times
as fast as H times a tall, narrow S^T (C = 10, N = 1180, 2-core AMD EPYC, 2026-11-20).
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dfl_jax.base import Array

Kernel = Array | Callable[[Array], Array]  # H [N, N], or S [C, N] -> its product with the kernel

EVOLUTIONS = ('rkc', 'euler', 'eigh')
LOSSES = ('cross_entropy', 'mse')

MAX_STAGES = 32
MAX_SUBSTEPS = 256  # beyond, the step is a hundred times too long for gradient descent
LONGEST = 200
DAMPING = 2 / 13  # Sommeijer, Shampine & Verwer 1998

POWER_ITERATIONS = 8
SAFETY = 1.5

product = partial(jnp.matmul, precision=lax.Precision.HIGHEST)


def apply(kernel: Kernel, total: Array) -> Array:
    """The kernel's product with S [C, N], [C, N]."""
    return kernel(total) if callable(kernel) else product(total, kernel)


def sample_losses(f: Array, y: Array, loss: str) -> Array:
    """Loss of each sample: f, y [C, N] (y one-hot) -> [N]. Half squared error for `mse`."""
    if loss == 'mse':
        return 0.5 * jnp.sum((f - y) ** 2, axis=0)
    return -jnp.sum(jax.nn.log_softmax(f, axis=0) * y, axis=0)


def evolve(
    kernel: Kernel,
    f0: Array,
    y: Array,
    mask: Array,
    lr: Array | float,
    *,
    timesteps: Sequence[int],
    loss: str = 'cross_entropy',
    method: str = 'rkc',
) -> Array:
    """Accumulated residuals S_t at each of `timesteps`, [len(timesteps), C, N].

    Args:
      kernel: H of Eq. (3), [N, N], which acts on every output alike, or any symmetric positive
        semi-definite map of S [C, N]. What belongs to padding is never read.
      f0: outputs at the start, [C, N].
      y: targets, [C, N]: one-hot labels, or distributions.
      mask: [N] bool, False for padding, whose residual stays zero.
      lr: length of one time step.
      timesteps: increasing numbers of steps.
      loss: `cross_entropy` or `mse` (half squared error).
      method: `rkc`, `euler` or `eigh`.

    Raises ValueError for `eigh` with cross-entropy or without a matrix, and for unknown names.
    """
    check(timesteps, loss, method)
    n = jnp.sum(mask)
    if not callable(kernel):
        kernel = jnp.where(mask[:, None] & mask[None, :], kernel, 0)
    mask = mask[None, :]

    if method == 'eigh':
        if callable(kernel):
            raise ValueError('evolution eigh needs the matrix of the kernel; use rkc or euler')
        totals = _closed_form(kernel, jnp.where(mask, f0 - y, 0), lr / n, timesteps)
        return jnp.where(mask[None], totals, 0)

    def residual(total):
        f = f0 - (lr / n) * apply(kernel, total)  # Eq. (5): f^(t) from S_t
        prediction = f if loss == 'mse' else jax.nn.softmax(f, axis=0)
        return jnp.where(mask, prediction - y, 0)

    start = jnp.zeros_like(f0)
    if method == 'euler':

        def steps(total, count):
            total = lax.fori_loop(0, count, lambda _, s: s + residual(s), total)
            return total, total

        return lax.scan(steps, start, jnp.diff(jnp.array([0, *timesteps])))[1]

    if callable(kernel):
        follow: Callable = partial(_stiffest_mode, kernel, mask, None if loss == 'mse' else y)
    else:
        # diag(p) - p p^T, the Jacobian of the softmax, has eigenvalues up to 1/2.
        bound = (1.0 if loss == 'mse' else 0.5) * _largest_eigenvalue_bound(kernel)
        follow = lambda slope, v: (v, bound)  # noqa: E731

    def interval(carry, length):
        total, slope, v = carry
        v, largest = follow(slope, v)
        total, slope = _chebyshev(residual, (lr / n) * largest, total, slope, length)
        return (total, slope, v), total

    slope = residual(start)
    v = lax.fori_loop(0, POWER_ITERATIONS, lambda _, v: follow(slope, v)[0], slope)
    lengths = _graded(timesteps)
    totals = lax.scan(interval, (start, slope, v), jnp.array(lengths))[1]
    return totals[np.searchsorted(np.cumsum(lengths), timesteps)]


def check(timesteps: Sequence[int], loss: str, method: str) -> None:
    """Raises ValueError for settings that `evolve` cannot follow."""
    if method not in EVOLUTIONS:
        raise ValueError(f'unknown evolution {method!r}; choose one of {", ".join(EVOLUTIONS)}')
    if loss not in LOSSES:
        raise ValueError(f'unknown loss {loss!r}; choose one of {", ".join(LOSSES)}')
    if method == 'eigh' and loss != 'mse':
        raise ValueError(
            'evolution eigh is the closed form of half-MSE; use rkc or euler with cross_entropy'
        )
    steps = [0, *timesteps]
    if len(steps) < 2 or any(late <= early for early, late in pairwise(steps)):
        raise ValueError(f'timesteps have to be positive and increasing, got {tuple(timesteps)}')


def _closed_form(kernel: Array, residual: Array, rate: Array, timesteps: Sequence[int]) -> Array:
    """Eq. (4) summed as Eq. (5b) asks: a geometric series in every eigendirection."""
    values, vectors = jnp.linalg.eigh(kernel)
    decay = rate * jnp.maximum(values, 0)  # the exponent of one step
    coordinates = product(residual, vectors)

    def at(t):
        # sum_{u<t} exp(-decay u), whose limit without decay is t
        series = jnp.where(decay > 0, jnp.expm1(-decay * t) / jnp.expm1(-decay), t)
        return product(coordinates * series[None, :], vectors.T)

    return jax.vmap(at)(jnp.array(timesteps, residual.dtype))


# ---------------------------------------------------------------------- Runge-Kutta-Chebyshev


def _graded(timesteps: Sequence[int]) -> list[int]:
    """Lengths of the integration steps, landing on every timestep.

    The stiff modes relax within the first few time steps, and one long Chebyshev step across that
    transient stays stable but is wrong by a third (benchmarks/evolution.py). Steps that double from
    one, up to LONGEST, cost a quarter more products and keep S within 1 to 3 % of the exact flow.
    """
    lengths, now = [], 0
    for end in timesteps:
        while now < end:
            lengths.append(min(max(now, 1), LONGEST, end - now))
            now += lengths[-1]
    return lengths


def _largest_eigenvalue_bound(kernel: Array) -> Array:
    """Collatz-Wielandt: max_m (|H| v)_m / v_m bounds the spectral radius for every v > 0.

    v is the vector of row sums, one power iteration from the all-ones vector.
    """
    magnitudes = jnp.abs(kernel)
    v = jnp.sum(magnitudes, axis=1)
    return jnp.max(jnp.where(v > 0, product(magnitudes, v) / v, 0))


def _stiffest_mode(
    kernel: Callable[[Array], Array], mask: Array, y: Array | None, slope: Array, v: Array
) -> tuple[Array, Array]:
    """(v, SAFETY times the rate of the stiffest mode), by one power iteration from v.

    The mode is that of (diag(p) - p p^T) K where the flow's slope is p - y. Its rate is 0.04 to
    0.13 of the largest eigenvalue of K and changes slowly (benchmarks/projection.py), so that one
    iteration an interval follows it; SAFETY covers the change within one. Half-MSE, y = None, has
    the rate of K.
    """
    image = jnp.where(mask, kernel(v), 0)
    if y is not None:
        p = slope + y
        image = p * (image - jnp.sum(p * image, axis=0, keepdims=True))
    norm = jnp.linalg.norm(image)
    return image / jnp.where(norm > 0, norm, 1), SAFETY * norm


def _stability_limit(stages):
    """Largest |eigenvalue| * step that s stages keep stable."""
    return 2 / 3 * (stages**2 - 1) * (1 - 2 / 15 * DAMPING)


def _coefficients() -> np.ndarray:
    """(mu, nu, mu~, gamma~) of stages 1..s for every s up to MAX_STAGES, [s, stage, 4].

    Sommeijer, Shampine & Verwer, "RKC: an explicit solver for parabolic PDEs", 1998, Eq. (2.3-2.7).
    """
    table = np.zeros((MAX_STAGES + 1, MAX_STAGES + 1, 4))
    for s in range(2, MAX_STAGES + 1):
        w0 = 1 + DAMPING / s**2
        t, dt, ddt = [1.0, w0], [0.0, 1.0], [0.0, 0.0]
        for _ in range(2, s + 1):  # Chebyshev polynomials and their derivatives at w0
            t.append(2 * w0 * t[-1] - t[-2])
            dt.append(2 * t[-2] + 2 * w0 * dt[-1] - dt[-2])
            ddt.append(4 * dt[-2] + 2 * w0 * ddt[-1] - ddt[-2])
        w1 = dt[s] / ddt[s]
        b = [ddt[2] / dt[2] ** 2] * 2 + [ddt[j] / dt[j] ** 2 for j in range(2, s + 1)]
        table[s, 1] = 0, 0, b[1] * w1, 0
        for j in range(2, s + 1):
            weight = 2 * b[j] * w1 / b[j - 1]
            table[s, j] = (
                2 * b[j] * w0 / b[j - 1],
                -b[j] / b[j - 2],
                weight,
                -(1 - b[j - 1] * t[j - 1]) * weight,
            )
    return table


COEFFICIENTS = _coefficients()
_WIDEST = _stability_limit(MAX_STAGES)


def _chebyshev(
    residual, rate: Array, total: Array, slope: Array, steps: Array
) -> tuple[Array, Array]:
    """Advances dS/dt = residual(S) by `steps` with as many stages as `rate` (per step) asks.

    Takes and returns S and its slope. NaN where even MAX_SUBSTEPS would not be stable: an endless
    integration is of no use.
    """
    stiffness = rate * steps
    substeps = jnp.ceil(stiffness / _WIDEST).clip(1)
    total = jnp.where(substeps > MAX_SUBSTEPS, jnp.nan, total)  # reported as divergence
    substeps = substeps.clip(1, MAX_SUBSTEPS)
    stages = jnp.ceil(jnp.sqrt(1 + stiffness / substeps / _stability_limit(math.sqrt(2))))
    stages = stages.clip(3, MAX_STAGES).astype(jnp.int32)
    length = (steps / substeps).astype(total.dtype)
    table = jnp.asarray(COEFFICIENTS, total.dtype)[stages]

    def substep(_, carry):
        y0, slope0 = carry

        def stage(j, carry):
            y_before, y = carry
            mu, nu, mu_slope, gamma = table[j]
            y_next = (
                (1 - mu - nu) * y0
                + mu * y
                + nu * y_before
                + length * (mu_slope * residual(y) + gamma * slope0)
            )
            return y, y_next

        first = y0 + length * table[1, 2] * slope0
        y = lax.fori_loop(2, stages + 1, stage, (y0, first))[1]
        return y, residual(y)

    return lax.fori_loop(0, substeps.astype(jnp.int32), substep, (total, slope))
