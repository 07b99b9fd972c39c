"""Intervals of simulated time in place of rounds: what runs and evaluations count by."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.asynchronous.planning import Plan
from dfl_jax.asynchronous.slots import Slots
from dfl_jax.asynchronous.state import State, check_without_rounds
from dfl_jax.base import Algorithm, Array, Graph, Info, Round
from dfl_jax.exchange import one_round
from dfl_jax.metrics import dispersion
from dfl_jax.models import Model
from dfl_jax.training import training_flops


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

        def step(key: Array, state: State, round: Round) -> tuple[State, Info]:
            check_without_rounds(round)
            slots, clients, sizes = cast(Slots, round.graph), round.clients, round.sizes
            exchanging = method._replace(exchange=round.exchange)

            def one(state: State, slot: Slots) -> tuple[State, Info]:
                return one_round(exchanging, key, state, round.number, cast(Graph, slot), clients)

            each = jax.tree.map(lambda a: a.reshape(-1, width, *a.shape[1:]), slots)
            state, infos = lax.scan(one, state, each)
            ledger = round.exchange.ledger
            ledger.coded = ledger.heard = True  # `one_round` has looked into it
            for kind, sent in infos.sent.items():
                round.exchange.count(kind, sent.messages.sum(axis=0), sent.bits)
            updates = jax.ops.segment_sum(
                slots.active.astype(jnp.int32), slots.members[:, 0], len(sizes)
            )
            done = round.number + 1
            metrics = {
                'simulated_seconds': done.astype(jnp.float32) * seconds,
                'updates': updates.sum(),
                **dispersion(state.params, round.judged),
            }
            done_flops = updates * flops(sizes)
            return state, Info(infos.loss[-1], metrics, done_flops)

        return method._replace(step=step)

    own = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY) for n in ('width', 'seconds')]
    made = cast(Any, make)
    made.__signature__ = inspect.Signature([*parameters.values(), *own])
    return made
