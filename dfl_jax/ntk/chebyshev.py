"""A stabilised explicit integrator of stiff flows whose error is checked at every step.

The second-order Runge-Kutta-Chebyshev method of Sommeijer, Shampine & Verwer, "RKC: an explicit
solver for parabolic PDEs", 1998. A step takes stages in proportion to the square root of its length
times the rate of the stiffest mode, and that rate is known as an estimate of the power method at
best. An estimate that is too low shows in the error of the step: a mode that the stages do not keep
stable is amplified, its slope by its rate more than itself, so that the step is refused while what
the mode has added to S is still less than the error that is allowed.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from dfl_jax.base import Array

MAX_STAGES = 32
MAX_STEPS = 2048  # beyond, the step is a hundred times too long for gradient descent
DAMPING = 2 / 13

# Chosen by products against the worst error of S over 5 to 8 aggregators of Fashion-MNIST, SPARK's
# first round, 2026-11-22. Tolerances of 1e-3, 3e-3 and 1e-2 took 187, 152 and 129 products and left
# 0.07, 0.12 and 0.24 %; 3e-2, with the cheaper constants below, left 1.2 %. Constants below that
# took fewer products at the same error: EARLY 0.5 (152, not 176), POWER_ITERATIONS 3 (149, with 8
# 152), STRETCH 1.4 (92, not 98), FOLLOW 2 (86, not 92). SAFETY between 1.05 and 1.2 is all the
# same.
TOLERANCE = 1e-2  # of one step's estimated error in S, by the norm of S
EARLY = 0.5  # power of (first timestep / time) by which it is larger before
POWER_ITERATIONS = 3  # before the first step
FOLLOW = 2  # steps from one iteration to the next
SAFETY = 1.1  # of an estimated rate, which grows between two of them
OVERFLOW = 8.0  # by which the rate is raised where a step is not finite and shows no mode
CAUTION = 0.9  # of a step's length, that its error will be what the one before predicts
STRETCH = 1.4  # by which the last step may be longer than that
SHORTEN, LENGTHEN = 0.2, 5.0  # the most by which a step differs from the one before


class Progress(NamedTuple):
    """An integration under way, and its last step, within which S is interpolated."""

    time: Array  # reached
    total: Array  # S at that time, [C, N]
    slope: Array  # dS/dt there, [C, N]
    length: Array  # of the next step
    rate: Array  # of the stiffest mode, per unit of time, that the next step is to keep stable
    mode: Array  # that mode, [C, N], of length one
    refused: Array  # bool: the last step was
    steps: Array  # tried, int32
    products: Array  # of the kernel, int32
    last_time: Array  # the same three at the start of the last step
    last_total: Array
    last_slope: Array


def integration(
    slope_at: Callable[[Array], Array],
    jacobian: Callable[[Array, Array], Array],
    start: Array,
    slope: Array,
    timesteps: Sequence[int],
    tolerance: float = TOLERANCE,
) -> tuple[Progress, Callable[[Progress, Array], tuple[Progress, Array, Array]]]:
    """The begin of dS/dt = slope_at(S), and reach(progress, t) -> (progress, S and dS/dt at t).

    `reach` goes on from where the integration is, so that its times have to increase; it does not
    integrate beyond the step that passes t.

    A step is refused where its estimated error exceeds the tolerance, and tried again: with more
    stages where what has grown turns out to be stiffer than assumed, else shorter. Timesteps do not
    bound a step: the values at them are interpolated (cubic, by the slopes at both ends), which is
    as exact as the steps are. Before the first timestep the tolerance is (first / time) ** EARLY
    times as large. An error there is either of a mode that relaxes, and is forgotten, or of one in
    which S goes on growing.

    NaN where the flow is too stiff for MAX_STEPS steps, and where it is not finite.

    Args:
      slope_at: S [C, N] -> dS/dt [C, N], whose Jacobian has no positive eigenvalues.
      jacobian: (v, slope), both [C, N] -> that Jacobian where the slope is this one, times -v.
      start: S at time zero.
      slope: dS/dt there.
      timesteps: positive, increasing; no step goes beyond the last.
      tolerance: of the estimated error of one step, by the norm of S.
    """
    ends = jnp.array(timesteps, start.dtype)

    def follow(mode: Array, slope: Array) -> tuple[Array, Array]:
        """One step of the power method: the next mode, and the rate that its length gives."""
        image, norm = _unit(jacobian(mode, slope))
        return image, SAFETY * norm

    mode, rate = follow(_unit(slope)[0], slope)
    for _ in range(POWER_ITERATIONS - 1):
        mode, rate = follow(mode, slope)

    def goes_on(at: Progress) -> Array:
        reachable = at.rate * (ends[-1] - at.time) < _WIDEST * (MAX_STEPS - at.steps)
        return (at.time < ends[-1]) & reachable  # False for a rate of NaN, too

    def advance(at: Progress) -> Progress:
        left = ends[-1] - at.time
        length = jnp.minimum(at.length, _WIDEST / at.rate)
        reach = at.length * jnp.where(at.refused, 1, STRETCH)
        fits = left <= jnp.minimum(reach, _WIDEST / at.rate)
        length = jnp.where(fits, left, jnp.minimum(length, left / 2))
        time = jnp.where(fits, ends[-1], at.time + length)
        stages = jnp.ceil(jnp.sqrt(1 + length * at.rate / _stability_limit(math.sqrt(2))))
        stages = stages.clip(2, MAX_STAGES).astype(jnp.int32)
        total, slope = _step(slope_at, stages, length, at.total, at.slope)

        off = 0.8 * (at.total - total) + 0.4 * length * (at.slope + slope)
        growing, size = _unit(off)
        allowed = tolerance * jnp.maximum(ends[0] / time, 1) ** EARLY * jnp.linalg.norm(total)
        error = jnp.where(size > 0, size / allowed, 0)
        finite = jnp.isfinite(size) & jnp.isfinite(allowed)
        good = finite & (error <= 1)

        # What has grown in a refused step holds the modes that were not stable.
        mode = jnp.where(good | ~finite, at.mode, growing)
        followed = ~good | (at.steps % FOLLOW == 0)
        mode, rate = lax.cond(
            ~followed,
            lambda mode, slope: (mode, at.rate),
            follow,
            mode,
            jnp.where(good, slope, at.slope),
        )
        rate = jnp.where(good, rate, jnp.maximum(rate, at.rate))
        rate = jnp.where(finite, rate, OVERFLOW * at.rate)
        unstable = ~good & (rate * length > _stability_limit(stages))
        factor = (CAUTION * error ** (-1 / 3)).clip(SHORTEN, jnp.where(at.refused, 1, LENGTHEN))
        factor = jnp.where(unstable & ~at.refused, 1, jnp.where(finite, factor, SHORTEN))

        return Progress(
            time=jnp.where(good, time, at.time),
            total=jnp.where(good, total, at.total),
            slope=jnp.where(good, slope, at.slope),
            length=length * factor,
            rate=rate,
            mode=mode,
            refused=~good,
            steps=at.steps + 1,
            products=at.products + stages + followed,
            last_time=jnp.where(good, at.time, at.last_time),
            last_total=jnp.where(good, at.total, at.last_total),
            last_slope=jnp.where(good, at.slope, at.last_slope),
        )

    def reach(at: Progress, end: Array) -> tuple[Progress, Array, Array]:
        end = end.astype(start.dtype)
        at = lax.while_loop(lambda at: (at.time < end) & goes_on(at), advance, at)
        total, slope = (jnp.where(at.time < end, jnp.nan, each) for each in _between(at, end))
        return at, total, slope

    begin = Progress(
        time=jnp.zeros_like(ends[0]),
        total=start,
        slope=slope,
        length=1 / rate,
        rate=rate,
        mode=mode,
        refused=jnp.zeros_like(rate, bool),
        steps=jnp.int32(0),
        products=jnp.int32(POWER_ITERATIONS),
        last_time=jnp.zeros_like(ends[0]),
        last_total=start,
        last_slope=slope,
    )
    return begin, reach


def _unit(v: Array) -> tuple[Array, Array]:
    """v at length one, zero where it is, and its length."""
    norm = jnp.linalg.norm(v)
    return v / jnp.where(norm > 0, norm, 1), norm


def _between(at: Progress, end: Array) -> tuple[Array, Array]:
    """S and dS/dt at a time within the last step: of the cubic polynomial that has the values and
    slopes at both of its ends."""
    length = at.time - at.last_time
    share = (end - at.last_time) / length
    rest = 1 - share
    values = rest**2 * (1 + 2 * share) * at.last_total + share**2 * (1 + 2 * rest) * at.total
    total = values + length * share * rest * (rest * at.last_slope - share * at.slope)
    rise = 6 * share * rest * (at.total - at.last_total) / length
    slope = rest * (1 - 3 * share) * at.last_slope + share * (1 - 3 * rest) * at.slope
    return total, rise + slope


def _step(
    slope_at: Callable[[Array], Array], stages: Array, length: Array, start: Array, slope: Array
) -> tuple[Array, Array]:
    """S and its slope one step later, from those at its start, by so many stages."""
    table = jnp.asarray(COEFFICIENTS, start.dtype)[stages]

    def stage(j, carry):
        y_before, y = carry
        mu, nu, mu_slope, gamma = table[j]
        y_next = (
            (1 - mu - nu) * start
            + mu * y
            + nu * y_before
            + length * (mu_slope * slope_at(y) + gamma * slope)
        )
        return y, y_next

    first = start + length * table[1, 2] * slope
    end = lax.fori_loop(2, stages + 1, stage, (start, first))[1]
    return end, slope_at(end)


def _stability_limit(stages):
    """Largest |eigenvalue| * step that s stages keep stable."""
    return 2 / 3 * (stages**2 - 1) * (1 - 2 / 15 * DAMPING)


def _coefficients() -> np.ndarray:
    """(mu, nu, mu~, gamma~) of stages 1..s for every s up to MAX_STAGES, [s, stage, 4].

    Sommeijer, Shampine & Verwer 1998, Eq. (2.3-2.7).
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
