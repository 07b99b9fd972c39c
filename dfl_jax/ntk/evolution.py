"""Function-space evolution under a fixed kernel: Eq. (4), (5b) and (11) of NTK-DFL.

The outputs follow the gradient flow df/dt = -rate H (prediction(f) - Y), Eq. (11), where the
prediction is softmax(f) for cross-entropy, f itself for half-MSE, and the rate is lr by the terms
of the mean that the loss is (`mean_rate`). What is evolved here is not f but the accumulated
residual S_t: it moves the weights (Eq. 5a), and its integral I_t over the flow from 0 to t is what
the outputs follow from, f^(t) = f^(0) - rate H I_t.

`rkc`      S_t = I_t: dI/dt = prediction(f) - Y by a Runge-Kutta-Chebyshev method that checks the
           error of every step, see `dfl_jax.ntk.rkc`.
`sampled`  S_t = sum_{u<t} (prediction(f^(u)) - Y), the residual of the same flow sampled at whole
           steps u: Eq. (5b) as it is written and as the authors compute it.
`euler`    that sum, of the iterates of Euler's method with steps of one in place of the flow, from
           which the outputs follow, too: `timesteps[-1]` kernel products.
`eigh`     the sum of `sampled` in closed form, Eq. (4), half-MSE only.

Outputs and residuals are stored [C, N]: S H runs 1.5 to 1.8 times as fast as H S^T (2026-11-20).
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.checks import check_choice
from dfl_jax.ntk.low_rank import low_rank, low_rank_cost
from dfl_jax.ntk.precision import in_float16, product
from dfl_jax.ntk.rkc import TOLERANCE, Flow, RkcState, integration

Kernel = Array | Callable[[Array], Array]  # H [N, N], or S [C, N] -> its product with the kernel

EVOLUTIONS = ('rkc', 'sampled', 'euler', 'eigh')
LOSSES = ('cross_entropy', 'mse')
OWN = 'task'  # the name of the loss of the task itself, whatever it is
# One of LOSSES, or any other: (f [C, N], y) -> [N], whose y is whatever it takes
SampleLoss = str | Callable[[Array, Array], Array]
FOR_ANY = 'rkc, sampled or euler'  # loss and kernel

# Of `sampled`; more do not lessen the error (2026-11-23): docs/benchmarks.md, "Constants".
SAMPLED_STEPS = 4
LOW_RANK_SAMPLES = 256  # of a kernel from which on the one of low rank saves time


class Accumulated(NamedTuple):
    """The residual accumulated up to a time step t, [C, N], and what it took."""

    total: Array  # S_t, which moves the weights
    integral: Array  # I_t, from which the outputs follow: f^(t) = f^(0) - rate H I_t
    products: Array  # of the kernel with a matrix like S that it took so far, by their flops


def apply(kernel: Kernel, total: Array) -> Array:
    """The kernel's product with S [C, N], [C, N]."""
    return kernel(total) if callable(kernel) else product(total, kernel)


def sample_losses(f: Array, y: Array, loss: SampleLoss) -> Array:
    """Loss of each sample: f, y [C, N] (y one-hot) -> [N]. Half mean squared error for `mse`."""
    if callable(loss):
        return loss(f, y)
    if loss == 'mse':
        return 0.5 * jnp.mean((f - y) ** 2, axis=0)
    return -jnp.sum(jax.nn.log_softmax(f, axis=0) * y, axis=0)


def mean_rate(lr: Array | float, mask: Array, outputs: int, loss: SampleLoss) -> Array:
    """lr / N~, and lr / (N~ C) of `mse`, whose mean is over the outputs, too.

    Outputs and weights move by the same rate. With the lr / N~ that Eq. (4) has for half-MSE beside
    the lr / (N~ C) of Eq. (5b), outputs would evolve C times as far as the weights take them.
    """
    n = jnp.maximum(jnp.sum(mask), 1)  # an aggregator without samples stays where it is
    return lr / n / (outputs if loss == 'mse' else 1)


def evolution(
    kernel: Kernel,
    f0: Array,
    y: Array,
    mask: Array,
    lr: Array | float,
    *,
    timesteps: Sequence[int],
    loss: SampleLoss = 'cross_entropy',
    method: str = 'rkc',
    tolerance: float = TOLERANCE,
    sampled_steps: int = SAMPLED_STEPS,
    float16_kernel: bool = False,
) -> tuple[PyTree, Callable[[PyTree, Array], tuple[PyTree, Accumulated]]]:
    """The begin of an evolution, and reach(progress, t) -> (progress, Accumulated up to t).

    `reach` takes the timesteps one after the other, from the first on, and costs what lies between
    two of them: stopping early saves what comes after.

    Args:
      kernel: H of Eq. (3), [N, N], which acts on every output alike, or any symmetric positive
        semi-definite map of S [C, N]. Entries of padding are never read.
      f0: outputs at the start, [C, N].
      y: targets, [C, N]: one-hot labels, or distributions; of another loss what it takes.
      mask: [N] bool, False for padding, whose residual stays zero.
      lr: length of one time step.
      timesteps: increasing numbers of steps.
      loss: `cross_entropy`, `mse` (half of the mean squared error), or another as a function (f
        [C, N], y) -> [N], whose gradient by f then stands for the residual.
      method: `rkc`, `sampled`, `euler` or `eigh`.
      tolerance: of `rkc` and `sampled`, the estimated error of a step by the norm of I_t.
      sampled_steps: of `sampled`, the whole steps that are added up one by one; see `_sampled`.
      float16_kernel: keep H in float16, `dfl_jax.ntk.precision.in_float16`.

    Raises ValueError for `eigh` with cross-entropy, for `eigh` or float16 without a matrix, and for
    unknown names.
    """
    check(timesteps, loss, method)
    rate = mean_rate(lr, mask, len(f0), loss)
    kernel, near = _without_padding(kernel, mask, float16_kernel, loss == 'cross_entropy')
    mask = mask[None, :]
    start = jnp.zeros_like(f0)

    def moved(integral):  # by which the outputs have moved, a product with the kernel
        return rate * apply(kernel, integral)

    def residual_after(image):
        return _residual(f0 - image, y, mask, loss)

    def residual(integral):
        return residual_after(moved(integral))

    if method == 'eigh':
        if callable(kernel):
            raise ValueError(f'evolution eigh needs the matrix of the kernel; use {FOR_ANY}')
        at = _closed_form(kernel, jnp.where(mask, f0 - y, 0), rate)

        def closed(progress, t):
            total, integral = at(t.astype(f0.dtype))
            total, integral = (jnp.where(mask, each, 0) for each in (total, integral))
            return progress + 4, Accumulated(total, integral, progress + 4)

        # About 9 N^3 operations, and four products with the eigenvectors a timestep
        return jnp.int32(9 * len(kernel) // (2 * len(f0))), closed

    if method == 'euler':

        def steps(progress, t):
            reached, total = progress
            total = lax.fori_loop(reached, t, lambda _, s: s + residual(s), total)
            return (t, total), Accumulated(total, total, t)

        return (jnp.int32(0), start), steps

    def jacobian_of(image, slope, total_image):  # of `residual`, with the other sign
        image = jnp.where(mask, image, 0)
        if callable(loss):
            of_outputs = partial(_residual, y=y, mask=mask, loss=loss)
            return jax.jvp(of_outputs, (f0 - total_image,), (image,))[1]
        if loss == 'mse':
            return image
        p = slope + y
        return p * (image - jnp.sum(p * image, axis=0, keepdims=True))

    slope = _residual(f0, y, mask, loss)
    times = set(timesteps)
    if method == 'sampled':  # before its first time the integrator allows for larger errors
        times.add(min(SAMPLED_STEPS, timesteps[0]))
    start_image = start if callable(loss) else None  # in closed forms the slope says enough
    ends = jnp.array(sorted(times), start.dtype)
    stiff = None if near is None else lambda integral: rate * near(integral)
    flow = Flow(moved, residual_after, jacobian_of, ends, tolerance, stiff)
    begin, reach = integration(flow, start, slope, start_image)

    def accumulate(at, t):
        at, integral, _ = reach(at, t)
        return at, at, integral, integral

    if method == 'sampled':
        begin, accumulate = _sampled(begin, reach, slope, sampled_steps)

    def products(at: RkcState) -> Array:
        if near is None:
            return at.products
        share, forming = low_rank_cost(jnp.maximum(jnp.sum(mask), 1), len(f0))
        return at.products + forming + share * at.near_products

    def integrated(progress, t):
        progress, at, total, integral = accumulate(progress, t)
        return progress, Accumulated(total, integral, products(at))

    return begin, integrated


def _without_padding(
    kernel: Kernel, mask: Array, float16: bool, saturates: bool
) -> tuple[Kernel, Callable | None]:
    """The kernel, zero between samples that are padding, and one of low rank where that pays.

    float16: keep the kernel in float16. saturates: the slope of the flow falls as outputs move, as
    that of cross-entropy does. Elsewhere what low rank leaves of a flat spectrum may be so stiff
    that extrapolating it takes more steps than the whole kernel takes products.
    """
    if not callable(kernel):
        kernel = jnp.where(mask[:, None] & mask[None, :], kernel, 0)
        large = saturates and len(kernel) >= LOW_RANK_SAMPLES
        near = low_rank(kernel) if large else None
        return in_float16(kernel) if float16 else kernel, near
    if float16:
        raise ValueError(
            'precision=float16_kernel needs the matrix of the kernel, which is not formed here; '
            'use precision=highest'
        )
    return kernel, None


def _residual(f: Array, y: Array, mask: Array, loss: SampleLoss) -> Array:
    """The gradient of the summed loss by the outputs f [C, N], e.g. softmax(f) - y."""
    if callable(loss):
        return jnp.where(mask, jax.grad(lambda f: jnp.sum(loss(f, y)))(f), 0)
    prediction = f if loss == 'mse' else jax.nn.softmax(f, axis=0)
    return jnp.where(mask, prediction - y, 0)


def evolve(*arguments, timesteps: Sequence[int], **settings) -> Array:
    """S_t at each of `timesteps`, [len(timesteps), C, N]; arguments as in `evolution`."""
    begin, reach = evolution(*arguments, timesteps=timesteps, **settings)
    return lax.scan(reach, begin, jnp.array(timesteps, jnp.int32))[1].total


def check(timesteps: Sequence[int], loss: SampleLoss, method: str) -> None:
    """Raises ValueError for settings that `evolve` cannot follow."""
    check_choice('evolution', method, EVOLUTIONS)
    if not callable(loss):
        check_choice('loss', loss, LOSSES)
    if method == 'eigh' and loss != 'mse':
        raise ValueError(
            f'evolution eigh is the closed form of half-MSE; use {FOR_ANY} with any other loss'
        )
    steps = [0, *timesteps]
    if len(steps) < 2 or any(late <= early for early, late in pairwise(steps)):
        raise ValueError(f'timesteps have to be positive and increasing, got {tuple(timesteps)}')


def _sampled(
    begin: RkcState, reach: Callable, slope: Array, steps: int
) -> tuple[PyTree, Callable[[PyTree, Array], tuple[PyTree, RkcState, Array, Array]]]:
    """The evolution whose S_t adds up the flow's residuals r(u) at whole steps u = 0, ..., t - 1.

    Up to m = min(t, steps) they are added one by one. From there on the residual changes little
    within a step, and the trapezoidal rule, half of r(m) and r(t) and all between them, is the
    integral (Euler and Maclaurin):

      S_t = sum_{u<m} r(u) + (I_t - I_m) + (r(m) - r(t)) / 2

    with all r as the integrator interpolates them.

    begin, reach: of the integral I_t and r(t); slope: r(0).
    """

    def sample(u, carry):
        at, total, _ = carry
        at, integral, now = reach(at, u)
        total = total + now
        return at, total, total - integral - now / 2

    def summed(progress, t):
        at, reached, total, excess = progress  # total: of r(0), ..., r(reached)
        end = jnp.minimum(t, steps)
        # excess: of the sum over the integral, sum_{u<m} r(u) - I_m + r(m) / 2
        at, total, excess = lax.fori_loop(reached + 1, end + 1, sample, (at, total, excess))
        at, integral, now = reach(at, t)
        return (at, end, total, excess), at, integral + excess - now / 2, integral

    return (begin, jnp.int32(0), slope, slope / 2), summed


def _closed_form(
    kernel: Array, residual: Array, rate: Array
) -> Callable[[Array], tuple[Array, Array]]:
    """t -> Eq. (4) summed as Eq. (5b) asks, a geometric series in every eigendirection, and its
    integral.
    """
    values, vectors = jnp.linalg.eigh(kernel)
    decay = rate * jnp.maximum(values, 0)  # the exponent of one step
    coordinates = product(residual, vectors)

    def at(t: Array) -> tuple[Array, Array]:
        # sum_{u<t} exp(-decay u) and the integral from 0 to t, whose limits without decay are t
        series = jnp.where(decay > 0, jnp.expm1(-decay * t) / jnp.expm1(-decay), t)
        area = jnp.where(decay > 0, -jnp.expm1(-decay * t) / decay, t)
        total, integral = (product(coordinates * s[None, :], vectors.T) for s in (series, area))
        return total, integral

    return at
