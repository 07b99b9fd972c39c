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


class RkcState(NamedTuple):
    """An integration under way: the step that it is in, and the last one that was accepted."""

    time: Array  # reached
    total: Array  # S at that time, [C, N]
    slope: Array  # dS/dt there, [C, N]
    last_time: Array  # the same three at the start of the last step, within which S is interpolated
    last_total: Array
    last_slope: Array
    length: Array  # of the step under way
    end: Array  # time at which it ends
    stages: Array  # that it takes, int32
    taken: Array  # products that it took so far, int32
    before: Array  # its stage before the current one, [C, N]
    argument: Array  # of the next product, [C, N]: its current stage, or `mode`
    error: Array  # estimated, of the step, by the one that is allowed; NaN where it is not finite
    rate: Array  # of the stiffest mode, per unit of time, that the step is to keep stable
    mode: Array  # that mode, [C, N], of length one
    image: Array | None  # of S, [C, N], where `jacobian_of` asks for it
    refused: Array  # bool: the step before was
    steps: Array  # tried, int32
    products: Array  # of the kernel, int32


class Flow(NamedTuple):
    """dS/dt = slope_of(linear(S)), and how exactly it is integrated."""

    linear: Callable[[Array], Array]  # v -> its image, both [C, N]: the product that a pass takes
    # image of S -> dS/dt, whose Jacobian with respect to S has no positive eigenvalues
    slope_of: Callable[[Array], Array]
    # (image of v, slope, image of S) -> that Jacobian where the slope is this one, times -v; the
    # image of S is None unless `integration` is given one
    jacobian_of: Callable[[Array, Array, Array | None], Array]
    ends: Array  # timesteps, of the type of S, positive, increasing; no step goes beyond the last
    tolerance: float = TOLERANCE  # of the estimated error of one step, by the norm of S
    table: Any = None  # COEFFICIENTS, in the type of S, from `integration`


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

    `reach` is one loop, each pass of which takes one product, whatever that is for: a stage, the
    slope at the end of a step or the power method. Under `vmap` integrations share the passes, not
    the steps, so that none waits while another one takes more stages.

    NaN where the flow is too stiff for MAX_STEPS steps, and where it is not finite.

    start, slope: S and dS/dt at time zero, [C, N]. start_image: that of `start`, for a Jacobian
    that does not follow from the slope.
    """
    ends = flow.ends
    flow = flow._replace(table=jnp.asarray(COEFFICIENTS, start.dtype))

    def reach(at: RkcState, end: Array) -> tuple[RkcState, Array, Array]:
        end = end.astype(start.dtype)

        def goes_on(at: RkcState) -> Array:
            reachable = at.rate * (ends[-1] - at.time) < _WIDEST * (MAX_STEPS - at.steps)
            another = (at.time < end) & reachable  # False for a rate of NaN, too
            return (at.taken > 0) | another

        at = lax.while_loop(goes_on, partial(_take_product, flow), at)
        total, slope = (jnp.where(at.time < end, jnp.nan, each) for each in _between(at, end))
        return at, total, slope

    mode, rate = _estimated(flow, flow.linear(_unit(slope)[0]), slope, start_image)
    for _ in range(POWER_ITERATIONS - 1):
        mode, rate = _estimated(flow, flow.linear(mode), slope, start_image)
    zero = jnp.zeros_like(ends[0])
    begin = RkcState(
        time=zero,
        total=start,
        slope=slope,
        last_time=zero,
        last_total=start,
        last_slope=slope,
        length=1 / rate,
        end=zero,
        stages=jnp.int32(0),
        taken=jnp.int32(0),
        before=start,
        argument=start,
        error=zero,
        rate=rate,
        mode=mode,
        image=start_image,
        refused=jnp.zeros_like(rate, bool),
        steps=jnp.int32(0),
        products=jnp.int32(POWER_ITERATIONS),
    )
    return _begin_step(flow, begin), reach


def _estimated(flow: Flow, image: Array, slope: Array, total: Array | None) -> tuple[Array, Array]:
    """One step of the power method: the next mode, and the rate that its length gives.

    image, total: of the mode before and of S.
    """
    mode, norm = _unit(flow.jacobian_of(image, slope, total))
    return mode, RATE_MARGIN * norm


def _begin_step(flow: Flow, at: RkcState) -> RkcState:
    """With the next step, about as long as `at.length`, before its first product."""
    last = flow.ends[-1]
    left = last - at.time
    length = jnp.minimum(at.length, _WIDEST / at.rate)
    reach = at.length * jnp.where(at.refused, 1, LAST_FACTOR)
    fits = left <= jnp.minimum(reach, _WIDEST / at.rate)
    length = jnp.where(fits, left, jnp.minimum(length, left / 2))
    stages = jnp.ceil(jnp.sqrt(1 + length * at.rate / stability_limit(math.sqrt(2))))
    stages = stages.clip(2, MAX_STAGES).astype(jnp.int32)
    return at._replace(
        length=length,
        end=jnp.where(fits, last, at.time + length),
        stages=stages,
        taken=jnp.int32(0),
        before=at.total,
        argument=at.total + length * flow.table[stages, 1, 2] * at.slope,
    )


def _take_stage(flow: Flow, at: RkcState, image: Array) -> RkcState:
    coefficients = flow.table[at.stages, at.taken + 1]  # the first stage took no product
    stages = at.before, at.argument, flow.slope_of(image)
    y = _stage(coefficients, at.length, at.total, at.slope, *stages)
    return at._replace(before=at.argument, argument=y)


def _judge(flow: Flow, at: RkcState, image: Array) -> RkcState:
    """Accepts or refuses the step, by the slope at its end."""
    total, slope = at.argument, flow.slope_of(image)
    off = 0.8 * (at.total - total) + 0.4 * at.length * (at.slope + slope)
    growing, size = _unit(off)
    early = jnp.maximum(flow.ends[0] / at.end, 1) ** EARLY_POWER
    allowed = flow.tolerance * early * jnp.linalg.norm(total)
    finite = jnp.isfinite(size) & jnp.isfinite(allowed)
    error = jnp.where(finite, jnp.where(size > 0, size / allowed, 0), jnp.nan)
    good = _accepted(error)
    # What has grown in a refused step holds the modes that were not stable.
    mode = jnp.where(good | ~finite, at.mode, growing)
    return at._replace(
        time=jnp.where(good, at.end, at.time),
        total=jnp.where(good, total, at.total),
        slope=jnp.where(good, slope, at.slope),
        last_time=jnp.where(good, at.time, at.last_time),
        last_total=jnp.where(good, at.total, at.last_total),
        last_slope=jnp.where(good, at.slope, at.last_slope),
        argument=mode,  # in case that it is followed
        image=None if at.image is None else jnp.where(good, image, at.image),
        error=error,
        mode=mode,
    )


def _follow_mode(flow: Flow, at: RkcState, image: Array) -> RkcState:
    mode, rate = _estimated(flow, image, at.slope, at.image)
    rate = jnp.where(_accepted(at.error), rate, jnp.maximum(rate, at.rate))
    rate = jnp.where(jnp.isnan(at.error), OVERFLOW_FACTOR * at.rate, rate)
    return at._replace(rate=rate, mode=mode)


def _next_step(flow: Flow, at: RkcState, _: Array) -> RkcState:
    """With the next step, of a length by the error of this one."""
    good, finite = _accepted(at.error), ~jnp.isnan(at.error)
    unstable = ~good & (at.rate * at.length > stability_limit(at.stages))
    longest = jnp.where(at.refused, 1, FACTOR_MAX)
    change = (SAFETY * at.error ** (-1 / 3)).clip(FACTOR_MIN, longest)
    change = jnp.where(unstable & ~at.refused, 1, jnp.where(finite, change, FACTOR_MIN))
    length, steps = at.length * change, at.steps + 1
    return _begin_step(flow, at._replace(length=length, refused=~good, steps=steps))


def _take_product(flow: Flow, at: RkcState) -> RkcState:
    """A pass of the loop: the product, and what it is for."""
    image = flow.linear(at.argument)
    at = at._replace(taken=at.taken + 1, products=at.products + 1)
    at = _where(at.taken < at.stages, partial(_take_stage, flow), at, image)
    at = _where(at.taken == at.stages, partial(_judge, flow), at, image)
    at = _where(at.taken > at.stages, partial(_follow_mode, flow), at, image)
    followed = ~_accepted(at.error) | (at.steps % STEPS_PER_ESTIMATE == 0)
    return _where(at.taken == at.stages + followed, partial(_next_step, flow), at, image)


def _accepted(error: Array) -> Array:
    """Whether a step of this error is accepted, which it is not where that is NaN."""
    return error <= 1


def _where(
    condition: Array, function: Callable[[RkcState, Array], RkcState], at: RkcState, image: Array
) -> RkcState:
    """function(at, image) where the condition holds, elsewhere `at`.

    On a CPU a loop of one pass at most, since the branches of `lax.cond` copy all that they pass
    on, which took 11 to 14 % of an evolution (1,194 samples, 2-core AMD EPYC, 2026-11-27). On other
    devices the host would have to read the condition of each loop.
    """

    def loop(condition: Array, at: RkcState, image: Array) -> RkcState:
        def once(carry: tuple[Array, RkcState]) -> tuple[Array, RkcState]:
            return jnp.zeros_like(condition), function(carry[1], image)

        return lax.while_loop(lambda carry: carry[0], once, (condition, at))[1]

    def choose(condition: Array, at: RkcState, image: Array) -> RkcState:
        return lax.cond(condition, function, lambda at, _: at, at, image)

    return lax.platform_dependent(condition, at, image, cpu=loop, default=choose)


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


def _stage(
    coefficients: Array,
    length: Array,
    start: Array,
    slope: Array,
    before: Array,
    y: Array,
    slope_at_y: Array,
) -> Array:
    """The next stage of a step, from the two before, of which y is the later one.

    coefficients: of the next stage; start, slope: S and its slope at the start of the step.
    """
    mu, nu, mu_slope, gamma = coefficients
    return (
        (1 - mu - nu) * start
        + mu * y
        + nu * before
        + length * (mu_slope * slope_at_y + gamma * slope)
    )
