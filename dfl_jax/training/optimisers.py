"""Optimisers of optax by name, and schedules of the learning rate over rounds."""

import inspect
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from dfl_jax.base import Array

Optimizer = str | Callable[[Array], optax.GradientTransformation]
Schedule = str | Callable[[Any], Any]
WEIGHT = jax.ShapeDtypeStruct((1,), jnp.float32)
SCHEDULES = ('cosine', 'step', 'warmup')


def named_optimiser(
    name: Optimizer,
    options: str,
    rate: Array | float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> tuple[optax.GradientTransformation, ...]:
    """The decay of the weights and the optimiser, to be chained; arguments as in `LocalTraining`.

    Raises ValueError for one that optax does not have or that cannot serve here, and for arguments
    that it does not take.
    """
    arguments, called = _options(options), getattr(name, '__name__', name)
    factory: Callable[..., Any] = name if callable(name) else getattr(optax, name, dict)
    takes = list(inspect.signature(factory).parameters) if factory is not dict else []
    if not callable(name) and takes[:1] != ['learning_rate']:
        raise ValueError(f'optax has no optimizer {name!r}; use e.g. sgd, adam, adamw or lion')
    if unknown := sorted(arguments.keys() - {*takes[1:]} | arguments.keys() & {'weight_decay'}):
        raise ValueError(
            f'optimizer_options={options}: {called} takes no {unknown[0]} there; '
            f'it takes {", ".join(t for t in takes[1:] if t != "weight_decay")}'
        )
    if not callable(name) and {'key', 'seed'} & {*takes}:
        raise ValueError(
            f'optimizer={name!r} draws noise of its own, the same for every client in every round; '
            'use e.g. sgd, adam, adamw or lion'
        )
    if name == 'sgd' and momentum:
        arguments.setdefault('momentum', momentum)
    decoupled = {'weight_decay': weight_decay} if 'weight_decay' in takes else {}
    try:
        optimiser = factory(rate, **decoupled, **arguments)
        if not isinstance(optimiser, optax.GradientTransformation):
            raise TypeError(f'it is of type {type(optimiser).__name__}, none of optax')
        jax.eval_shape(lambda w: optimiser.update(w, optimiser.init(w), w), WEIGHT)
    except TypeError as error:
        raise ValueError(
            f'optimizer={called!r} needs more than gradient, state and weights ({error}); use e.g. '
            'sgd, adam, adamw or lion'
        ) from error
    decay = [optax.add_decayed_weights(weight_decay)] if weight_decay and not decoupled else []
    return (*decay, optimiser)


def learning_rate_factor(schedule: Schedule) -> Callable[[Any], Any]:
    """round k -> the factor on the learning rate; the product of the terms of the text.

    Args:
      schedule: `cosine:T`, from 1 in round 0 to 0 in round T; `step:A-B:F`, times F from round A
        and again from round B; `warmup:W`, rising evenly to 1 in round W - 1; several with commas
        between them, none for 1; or a function of the round.

    Raises ValueError for a term that is not one of these.

    >>> round(float(learning_rate_factor('warmup:4,step:30-60:0.1')(45)), 3)
    0.1
    """
    if callable(schedule):
        factor = jax.eval_shape(schedule, jax.ShapeDtypeStruct((), jnp.int32))
        if getattr(factor, 'shape', None) != ():
            raise ValueError(f'lr_schedule returns {factor} for a round, not a number')
        return schedule
    factors = [_factor(term) for term in filter(None, schedule.split(','))]
    return lambda k: math.prod(factor(k) for factor in factors)


def _factor(term: str) -> optax.Schedule:
    name, *arguments = term.split(':')
    try:
        match name, arguments:
            case 'cosine', [rounds] if int(rounds) > 0:
                return optax.cosine_decay_schedule(1.0, int(rounds))
            case 'warmup', [rounds] if int(rounds) > 0:
                return optax.linear_schedule(1 / int(rounds), 1.0, max(int(rounds) - 1, 1))
            case 'step', [rounds, factor] if float(factor) > 0:
                return optax.piecewise_constant_schedule(
                    1.0, {int(k): float(factor) for k in rounds.split('-')}
                )
    except ValueError:
        pass
    raise ValueError(
        f'lr_schedule: {term!r} is no schedule; write cosine:ROUNDS, warmup:ROUNDS or '
        'step:ROUND-ROUND-...:FACTOR, e.g. warmup:5,cosine:100'
    )


def _options(text: str) -> dict[str, float | bool]:
    """`a=0.9,b=true` as a dictionary. Raises ValueError for what is neither number nor boolean."""
    options: dict[str, float | bool] = {}
    for item in filter(None, text.split(',')):
        name, _, value = item.partition('=')
        try:
            words = {'true': True, 'false': False}
            options[name.strip()] = words[value] if value in words else float(value)
        except ValueError:
            raise ValueError(
                f'optimizer_options={text}: {item!r} is no NAME=NUMBER; write e.g. b1=0.8,eps=1e-6'
            ) from None
    return options
