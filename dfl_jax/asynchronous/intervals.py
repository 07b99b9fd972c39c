"""Intervals of simulated time in place of rounds: what runs and evaluations count by."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.asynchronous.planning import Plan
from dfl_jax.asynchronous.slots import Slots
from dfl_jax.asynchronous.state import State as SlotState
from dfl_jax.base import Algorithm, Array, Clients, Info
from dfl_jax.metrics import dispersion
from dfl_jax.models import Model
from dfl_jax.training import training_flops


class State(NamedTuple):
    """The clients, and the time."""

    slots: SlotState
    interval: Array  # scalar int32, those done


def intervals_of(plan: Plan) -> Slots:
    """The slots of a plan by interval, arrays [T, S H, ...]: the schedule of `by_interval`."""
    return jax.tree.map(lambda a: a.reshape(len(plan.ends), -1, *a.shape[2:]), plan.slots)


def by_interval(factory: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """The factory of a method whose step advances an interval of simulated time.

    It takes `width`, H of the plan's slots, and `seconds`, the length of an interval, beside what
    the method takes. A round of such a run is an interval; its metrics have `simulated_seconds` and
    the local `updates` of the interval.
    """
    parameters = inspect.signature(factory).parameters

    @functools.wraps(getattr(factory, 'func', factory))  # of a partial, what it is of
    def make(model: Model, *, width: int, seconds: float, **settings: Any) -> Algorithm:
        method = factory(model, **settings)
        flops = training_flops(model, settings.get('training', parameters['training'].default))

        def init(key: Array, clients: Clients) -> State:
            return State(method.init(key, clients), jnp.int32(0))

        def step(key: Array, state: State, slots: Slots, clients: Clients) -> tuple[State, Info]:
            each = jax.tree.map(lambda a: a.reshape(-1, width, *a.shape[1:]), slots)
            inner, infos = lax.scan(
                lambda s, slot: method.step(key, s, slot, clients), state.slots, each
            )
            updates = jax.ops.segment_sum(
                slots.active.astype(jnp.int32), slots.members[:, 0], len(inner.sizes)
            )
            done = state.interval + 1
            metrics = {
                'simulated_seconds': done.astype(jnp.float32) * seconds,
                'updates': updates.sum(),
                **dispersion(inner.params),
            }
            sent = jax.tree.map(lambda counts: counts.sum(axis=0), infos.sent)
            done_flops = updates * flops(inner.sizes)
            return State(inner, done), Info(infos.loss[-1], sent, metrics, done_flops)

        own: Any = method.predict_own
        return method._replace(
            init=init,
            step=cast(Any, step),
            predict=lambda state, x: method.predict(state.slots, x),
            consensus=lambda state, weights=None: method.consensus(state.slots, weights),
            predict_own=lambda state, x: own(state.slots, x),
        )

    own = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in ('width', 'seconds')]
    made = cast(Any, make)
    made.__signature__ = inspect.Signature([*parameters.values(), *own])
    return made
