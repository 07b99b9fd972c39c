"""A stabilised explicit integrator of stiff flows whose error is checked at every step.

The second-order Runge-Kutta-Chebyshev method of Sommeijer, Shampine & Verwer, "RKC: an explicit
solver for parabolic PDEs", 1998. A step takes stages in proportion to the square root of its length
times the rate of the stiffest mode, and that rate is known as an estimate of the power method at
best. An estimate that is too low shows in the error of the step: a mode that the stages do not keep
stable is amplified, its slope by its rate more than itself, so that the step is refused while what
the mode has added to S is still less than the error that is allowed.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.base import Array
from dfl_jax.ntk.rkc_coefficients import COEFFICIENTS, MAX_STAGES, stability_limit

MAX_STEPS = 2048  # beyond, the step is a hundred times too long for gradient descent

# By products against the error that they leave (2026-11-22): docs/benchmarks.md, "Constants".
TOLERANCE = 1e-2  # of one step's estimated error in S, by the norm of S
EARLY_POWER = 0.5  # power of (first timestep / time) by which it is larger before
POWER_ITERATIONS = 3  # before the first step
STEPS_PER_ESTIMATE = 2  # steps from one iteration to the next
RATE_MARGIN = 1.1  # of an estimated rate, which grows between two of them
OVERFLOW_FACTOR = 8.0  # by which the rate is raised where a step is not finite and shows no mode
SAFETY = 0.9  # of a step's length, that its error will be what the one before predicts
LAST_FACTOR = 1.4  # by which the last step may be longer than that
FACTOR_MIN, FACTOR_MAX = 0.2, 5.0  # the most by which a step differs from the one before
_WIDEST = stability_limit(MAX_STAGES)


class Rest(NamedTuple):
    """What the exact map adds to the near one along the integration: a parabola in time."""

    value: Array  # R S at the time reached, [C, N]
    rise: Array  # mean slope over the last step
    bend: Array  # second divided difference over the last two

    def after(self, elapsed: Array, last: Array) -> Array:
        """So long after the time reached; last: length of the last step, zero before the first."""
        return self.value + elapsed * (self.rise + (elapsed + last) * self.bend)

    def moved(self, value: Array, length: Array, last: Array) -> 'Rest':
        """At the end of another step, where R S is `value`."""
        rise = (value - self.value) / length
        return Rest(value, rise, (rise - self.rise) / (length + last))


class RkcState(NamedTuple):
    """An integration under way."""

    time: Array  # reached
    total: Array  # S at that time, [C, N]
    slope: Array  # dS/dt there, [C, N]
    last_time: Array  # the same three at the start of the last step, within which S is interpolated
    last_total: Array
    last_slope: Array
    length: Array  # of the next step, about
    rate: Array  # of the stiffest mode, per unit of time, that the step is to keep stable
    mode: Array  # that mode, [C, N], of length one
    image: Array | None  # of S, [C, N], where `jacobian_of` asks for it
    rest: Rest | None  # where the flow has a map `near`
    refused: Array  # bool: the step before was
    steps: Array  # tried, int32
    products: Array  # of the exact map, int32
    near_products: Array  # of the map `near`, int32


class Flow(NamedTuple):
    """dS/dt = slope_of(linear(S)), and how exactly it is integrated."""

    linear: Callable[[Array], Array]  # v -> its image, both [C, N], a product of the kernel
    # image of S -> dS/dt, whose Jacobian with respect to S has no positive eigenvalues
    slope_of: Callable[[Array], Array]
    # (image of v, slope, image of S) -> that Jacobian where the slope is this one, times -v; the
    # image of S is None unless `integration` is given one
    jacobian_of: Callable[[Array, Array, Array | None], Array]
    ends: Array  # timesteps, of the type of S, positive, increasing; no step goes beyond the last
    tolerance: float = TOLERANCE  # of the estimated error of one step, by the norm of S
    near: Callable[[Array], Array] | None = None  # v -> its image by the stiff modes, and cheaper
    table: Any = None  # COEFFICIENTS, in the type of S, from `integration`

    @property
    def cheap(self) -> Callable[[Array], Array]:
        """The map of which only the stiff modes matter."""
        return self.near or self.linear


def integration(
    flow: Flow, start: Array, slope: Array, start_image: Array | None = None
) -> tuple[RkcState, Callable[[RkcState, Array], tuple[RkcState, Array, Array]]]:
    """The begin of a flow, and reach(state, t) -> (state, S, dS/dt).

    `reach` goes on from where the integration is, so that its times have to increase; it does not
    integrate beyond the step that passes t.

    A step is refused where its estimated error exceeds the tolerance, and tried again: with more
    stages where what has grown turns out to be stiffer than assumed, else shorter. Timesteps do not
    bound a step: the values at them are interpolated (cubic, by the slopes at both ends), which is
    as exact as the steps are. Before the first timestep the tolerance is larger by EARLY_POWER: an
    error there is either of a mode that relaxes, and is forgotten, or of one in which S goes on
    growing.

    Under `vmap` integrations share the steps, and each step has the stages of the one that takes
    most.

    NaN where the flow is too stiff for MAX_STEPS steps, and where it is not finite.

    start, slope: S and dS/dt at time zero, [C, N], S being zero where the flow has a map `near`.
    start_image: that of `start`, for a Jacobian that does not follow from the slope.
    """
    ends = flow.ends
    flow = flow._replace(table=jnp.asarray(COEFFICIENTS, start.dtype))

    def reach(at: RkcState, end: Array) -> tuple[RkcState, Array, Array]:
        end = end.astype(start.dtype)

        def goes_on(at: RkcState) -> Array:
            reachable = at.rate * (ends[-1] - at.time) < _WIDEST * (MAX_STEPS - at.steps)
            return (at.time < end) & reachable  # False for a rate of NaN, too

        at = lax.while_loop(goes_on, partial(_step, flow), at)
        total, slope = (jnp.where(at.time < end, jnp.nan, each) for each in _between(at, end))
        return at, total, slope

    v, size = _unit(slope)
    image = flow.linear(v)
    rest = None
    if flow.near is not None:
        zero = jnp.zeros_like(start)
        rest = Rest(zero, size * (image - flow.near(v)), zero)
    mode, rate = _estimated(flow, image, slope, start_image)
    for _ in range(POWER_ITERATIONS - 1):
        mode, rate = _estimated(flow, flow.cheap(mode), slope, start_image)
    zero = jnp.zeros_like(ends[0])
    near = flow.near is not None
    begin = RkcState(
        time=zero,
        total=start,
        slope=slope,
        last_time=zero,
        last_total=start,
        last_slope=slope,
        length=1 / rate,
        rate=rate,
        mode=mode,
        image=start_image,
        rest=rest,
        refused=jnp.zeros_like(rate, bool),
        steps=jnp.int32(0),
        products=jnp.int32(1 if near else POWER_ITERATIONS),
        near_products=jnp.int32(POWER_ITERATIONS if near else 0),
    )
    return begin, reach


def _estimated(flow: Flow, image: Array, slope: Array, total: Array | None) -> tuple[Array, Array]:
    """One step of the power method: the next mode, and the rate that its length gives.

    image, total: of the mode before and of S.
    """
    mode, norm = _unit(flow.jacobian_of(image, slope, total))
    return mode, RATE_MARGIN * norm


def _step(flow: Flow, at: RkcState) -> RkcState:
    """A step, accepted or refused by its error, and how long the next one is to be."""
    length, end, stages = _extent(flow, at)
    total = _stages(flow, at, length, stages)
    image = flow.linear(total)
    slope = flow.slope_of(image)
    growing, error = _error(flow, at, total, slope, length, end)
    good, finite = error <= 1, ~jnp.isnan(error)

    def kept(new: Any, old: Any) -> Any:
        return jax.tree.map(partial(jnp.where, good), new, old)

    rest = at.rest
    if rest is not None:
        assert flow.near is not None
        last = at.time - at.last_time
        rest = kept(rest.moved(image - flow.near(total), length, last), rest)
    new = (end, total, slope, at.time, at.total, at.slope)
    old = (at.time, at.total, at.slope, at.last_time, at.last_total, at.last_slope)
    time, total, slope, last_time, last_total, last_slope = kept(new, old)
    seen = None if at.image is None else kept(image, at.image)

    # What has grown in a refused step holds the modes that were not stable.
    mode = jnp.where(good | ~finite, at.mode, growing)
    followed = ~good | (at.steps % STEPS_PER_ESTIMATE == 0)
    mode, rate = lax.cond(
        followed,
        lambda: _estimated(flow, flow.cheap(mode), slope, seen),
        lambda: (mode, at.rate),
    )
    rate = jnp.where(good, rate, jnp.maximum(rate, at.rate))
    rate = jnp.where(finite, rate, OVERFLOW_FACTOR * at.rate)

    unstable = ~good & (rate * length > stability_limit(stages)) & ~at.refused
    longest = jnp.where(at.refused, 1, FACTOR_MAX)
    change = (SAFETY * error ** (-1 / 3)).clip(FACTOR_MIN, longest)
    change = jnp.where(unstable, 1, jnp.where(finite, change, FACTOR_MIN))
    near = flow.near is not None
    products = jnp.ones_like(stages) if near else stages + followed
    near_products = at.near_products + (stages + followed if near else 0)
    return RkcState(
        time=time,
        total=total,
        slope=slope,
        last_time=last_time,
        last_total=last_total,
        last_slope=last_slope,
        length=length * change,
        rate=rate,
        mode=mode,
        image=seen,
        rest=rest,
        refused=~good,
        steps=at.steps + 1,
        products=at.products + products,
        near_products=near_products,
    )


def _extent(flow: Flow, at: RkcState) -> tuple[Array, Array, Array]:
    """The length of the next step, about `at.length`, the time at its end, and its stages."""
    last = flow.ends[-1]
    left = last - at.time
    length = jnp.minimum(at.length, _WIDEST / at.rate)
    reach = at.length * jnp.where(at.refused, 1, LAST_FACTOR)
    fits = left <= jnp.minimum(reach, _WIDEST / at.rate)
    length = jnp.where(fits, left, jnp.minimum(length, left / 2))
    stages = jnp.ceil(jnp.sqrt(1 + length * at.rate / stability_limit(math.sqrt(2))))
    end = jnp.where(fits, last, at.time + length)
    return length, end, stages.clip(2, MAX_STAGES).astype(jnp.int32)


def _stages(flow: Flow, at: RkcState, length: Array, stages: Array) -> Array:
    """S at the end of a step of that length."""
    last = at.time - at.last_time
    first = flow.table[stages, 1, 2]

    def stage(carry):
        number, before, y, elapsed_before, elapsed = carry
        mu, nu, mu_slope, gamma = flow.table[stages, number]
        image = flow.cheap(y)
        if at.rest is not None:
            image = image + at.rest.after(length * elapsed, last)
        after = (
            (1 - mu - nu) * at.total
            + mu * y
            + nu * before
            + length * (mu_slope * flow.slope_of(image) + gamma * at.slope)
        )
        # The times of the stages are those of the flow dt/dt = 1.
        later = mu * elapsed + nu * elapsed_before + mu_slope + gamma
        return number + 1, y, after, elapsed, later

    y = at.total + length * first * at.slope
    begin = (jnp.int32(2), at.total, y, jnp.zeros_like(first), first)
    return lax.while_loop(lambda carry: carry[0] <= stages, stage, begin)[2]


def _error(
    flow: Flow, at: RkcState, total: Array, slope: Array, length: Array, end: Array
) -> tuple[Array, Array]:
    """Where a step errs, a direction [C, N], and its estimated error by the one that is allowed,
    NaN where it is not finite.

    total, slope: at its end.
    """
    off = 0.8 * (at.total - total) + 0.4 * length * (at.slope + slope)
    growing, size = _unit(off)
    early = jnp.maximum(flow.ends[0] / end, 1) ** EARLY_POWER
    allowed = flow.tolerance * early * jnp.linalg.norm(total)
    finite = jnp.isfinite(size) & jnp.isfinite(allowed)
    return growing, jnp.where(finite, jnp.where(size > 0, size / allowed, 0), jnp.nan)


def _unit(v: Array) -> tuple[Array, Array]:
    """v at length one, zero where it is, and its length."""
    norm = jnp.linalg.norm(v)
    return v / jnp.where(norm > 0, norm, 1), norm


def _between(at: RkcState, end: Array) -> tuple[Array, Array]:
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
