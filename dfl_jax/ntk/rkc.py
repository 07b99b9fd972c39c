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
from jax import lax

from dfl_jax.base import Array
from dfl_jax.ntk.rkc_coefficients import COEFFICIENTS, MAX_STAGES, stability_limit

MAX_STEPS = 2048  # beyond, the step is a hundred times too long for gradient descent

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
_WIDEST = stability_limit(MAX_STAGES)


class Progress(NamedTuple):
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
    place: Array | None  # image of S, [C, N], where `jacobian_of` asks for it
    refused: Array  # bool: the step before was
    steps: Array  # tried, int32
    products: Array  # of the kernel, int32


def integration(
    linear: Callable[[Array], Array],
    slope_of: Callable[[Array], Array],
    jacobian_of: Callable[[Array, Array, Array | None], Array],
    start: Array,
    slope: Array,
    timesteps: Sequence[int],
    tolerance: float = TOLERANCE,
    place: Array | None = None,
) -> tuple[Progress, Callable[[Progress, Array], tuple[Progress, Array, Array]]]:
    """The begin of dS/dt = slope_of(linear(S)), and reach(progress, t) -> (progress, S, dS/dt).

    `reach` goes on from where the integration is, so that its times have to increase; it does not
    integrate beyond the step that passes t.

    A step is refused where its estimated error exceeds the tolerance, and tried again: with more
    stages where what has grown turns out to be stiffer than assumed, else shorter. Timesteps do not
    bound a step: the values at them are interpolated (cubic, by the slopes at both ends), which is
    as exact as the steps are. Before the first timestep the tolerance is (first / time) ** EARLY
    times as large. An error there is either of a mode that relaxes, and is forgotten, or of one in
    which S goes on growing.

    `reach` is one loop, each pass of which takes one product, whatever that is for: a stage, the
    slope at the end of a step or the power method. Under `vmap` integrations share the passes, not
    the steps, so that none waits while another takes more stages.

    NaN where the flow is too stiff for MAX_STEPS steps, and where it is not finite.

    Args:
      linear: a linear map, v -> its image, both [C, N]: the product that a pass takes.
      slope_of: image of S -> dS/dt, whose Jacobian with respect to S has no positive eigenvalues.
      jacobian_of: (image of v, slope, place) -> that Jacobian where the slope is this one, times
        -v; the place is the image of S there, None unless it is given here.
      start: S at time zero.
      slope: dS/dt there.
      timesteps: positive, increasing; no step goes beyond the last.
      tolerance: of the estimated error of one step, by the norm of S.
      place: the image of `start`, for a Jacobian that does not follow from the slope.
    """
    ends = jnp.array(timesteps, start.dtype)
    table = jnp.asarray(COEFFICIENTS, start.dtype)

    def follow(image: Array, slope: Array, place: Array | None) -> tuple[Array, Array]:
        """One step of the power method: the next mode, and the rate that its length gives."""
        mode, norm = _unit(jacobian_of(image, slope, place))
        return mode, SAFETY * norm

    def begin_step(at: Progress) -> Progress:
        """With the next step, about as long as `at.length`, before its first product."""
        left = ends[-1] - at.time
        length = jnp.minimum(at.length, _WIDEST / at.rate)
        reach = at.length * jnp.where(at.refused, 1, STRETCH)
        fits = left <= jnp.minimum(reach, _WIDEST / at.rate)
        length = jnp.where(fits, left, jnp.minimum(length, left / 2))
        stages = jnp.ceil(jnp.sqrt(1 + length * at.rate / stability_limit(math.sqrt(2))))
        stages = stages.clip(2, MAX_STAGES).astype(jnp.int32)
        return at._replace(
            length=length,
            end=jnp.where(fits, ends[-1], at.time + length),
            stages=stages,
            taken=jnp.int32(0),
            before=at.total,
            argument=at.total + length * table[stages, 1, 2] * at.slope,
        )

    def take_stage(at: Progress, image: Array) -> Progress:
        coefficients = table[at.stages, at.taken + 1]  # the first stage took no product
        start, stages = (at.total, at.slope), (at.before, at.argument, slope_of(image))
        y = _stage(coefficients, at.length, *start, *stages)
        return at._replace(before=at.argument, argument=y)

    def judge(at: Progress, image: Array) -> Progress:
        """Accepts or refuses the step, by the slope at its end."""
        total, slope = at.argument, slope_of(image)
        off = 0.8 * (at.total - total) + 0.4 * at.length * (at.slope + slope)
        growing, size = _unit(off)
        allowed = tolerance * jnp.maximum(ends[0] / at.end, 1) ** EARLY * jnp.linalg.norm(total)
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
            place=None if at.place is None else jnp.where(good, image, at.place),
            error=error,
            mode=mode,
        )

    def follow_mode(at: Progress, image: Array) -> Progress:
        mode, rate = follow(image, at.slope, at.place)
        rate = jnp.where(_accepted(at.error), rate, jnp.maximum(rate, at.rate))
        rate = jnp.where(jnp.isnan(at.error), OVERFLOW * at.rate, rate)
        return at._replace(rate=rate, mode=mode)

    def is_over(at: Progress) -> Array:
        followed = ~_accepted(at.error) | (at.steps % FOLLOW == 0)
        return at.taken == at.stages + followed

    def next_step(at: Progress, _: Array) -> Progress:
        """With the next step, of a length by the error of this one."""
        good, finite = _accepted(at.error), ~jnp.isnan(at.error)
        unstable = ~good & (at.rate * at.length > stability_limit(at.stages))
        longest = jnp.where(at.refused, 1, LENGTHEN)
        change = (CAUTION * at.error ** (-1 / 3)).clip(SHORTEN, longest)
        change = jnp.where(unstable & ~at.refused, 1, jnp.where(finite, change, SHORTEN))
        length, steps = at.length * change, at.steps + 1
        return begin_step(at._replace(length=length, refused=~good, steps=steps))

    def take_product(at: Progress) -> Progress:
        image = linear(at.argument)
        at = at._replace(taken=at.taken + 1, products=at.products + 1)
        at = _where(at.taken < at.stages, take_stage, at, image)
        at = _where(at.taken == at.stages, judge, at, image)
        at = _where(at.taken > at.stages, follow_mode, at, image)
        return _where(is_over(at), next_step, at, image)

    def reach(at: Progress, end: Array) -> tuple[Progress, Array, Array]:
        end = end.astype(start.dtype)

        def goes_on(at: Progress) -> Array:
            reachable = at.rate * (ends[-1] - at.time) < _WIDEST * (MAX_STEPS - at.steps)
            another = (at.time < end) & reachable  # False for a rate of NaN, too
            return (at.taken > 0) | another

        at = lax.while_loop(goes_on, take_product, at)
        total, slope = (jnp.where(at.time < end, jnp.nan, each) for each in _between(at, end))
        return at, total, slope

    mode, rate = follow(linear(_unit(slope)[0]), slope, place)
    for _ in range(POWER_ITERATIONS - 1):
        mode, rate = follow(linear(mode), slope, place)
    zero = jnp.zeros_like(ends[0])
    begin = Progress(
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
        place=place,
        refused=jnp.zeros_like(rate, bool),
        steps=jnp.int32(0),
        products=jnp.int32(POWER_ITERATIONS),
    )
    return begin_step(begin), reach


def _accepted(error: Array) -> Array:
    """Whether a step of this error is accepted, which it is not where that is NaN."""
    return error <= 1


def _where(
    condition: Array, function: Callable[[Progress, Array], Progress], at: Progress, image: Array
) -> Progress:
    """function(at, image) where the condition holds, elsewhere `at`.

    On a CPU a loop of one pass at most, since the branches of `lax.cond` copy all that they pass
    on, which took 11 to 14 % of an evolution (1,194 samples, 2-core AMD EPYC, 2026-11-27). On other
    devices the host would have to read the condition of each loop.
    """

    def loop(condition: Array, at: Progress, image: Array) -> Progress:
        def once(carry: tuple[Array, Progress]) -> tuple[Array, Progress]:
            return jnp.zeros_like(condition), function(carry[1], image)

        return lax.while_loop(lambda carry: carry[0], once, (condition, at))[1]

    def choose(condition: Array, at: Progress, image: Array) -> Progress:
        return lax.cond(condition, function, lambda at, _: at, at, image)

    return lax.platform_dependent(condition, at, image, cpu=loop, default=choose)


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
