"""Searches for the timestep of the lowest loss, each trial of which costs a pass of the network.

A search takes attempt(state, index) -> (state, loss), the loss infinite where it is no number, a
state that remembers the best attempt, the number of timesteps, and an infinite loss. It returns the
last state.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from dfl_jax.base import Array, PyTree

Attempt = Callable[[PyTree, Array], tuple[PyTree, Array]]


def every(attempt: Attempt, state: PyTree, count: int, _: Array) -> PyTree:
    """Tries all timesteps, from the first on."""
    return lax.fori_loop(
        jnp.int32(0), jnp.int32(count), lambda index, state: attempt(state, index)[0], state
    )


class _Bracket(NamedTuple):
    """The timesteps, counted from one, that are left: those between two bounds."""

    state: PyTree
    low: Array  # int32, as are all three
    high: Array
    known: Array  # one between them that has been tried, or that lies beyond the last
    loss: Array  # its loss, infinite beyond the last


def section(attempt: Attempt, state: PyTree, count: int, infinite: Array) -> PyTree:
    """Fibonacci search, which finds the minimum of losses that first fall and then rise.

    Kiefer, "Sequential minimax search for a maximum", 1953. Of two timesteps within the bounds the
    one of the higher loss becomes a bound; the other one is the mirror image of the next.
    """
    known, high = 2, 3  # neighbours of the Fibonacci numbers, as are all distances to the bounds
    while known <= count:
        known, high = high, known + high

    def narrow(at: _Bracket) -> _Bracket:
        other = at.low + at.high - at.known
        state, loss = lax.cond(
            other <= count,
            lambda: attempt(at.state, other - 1),
            lambda: (at.state, infinite),
        )
        other_first = other < at.known
        first, last = jnp.minimum(other, at.known), jnp.maximum(other, at.known)
        early = jnp.where(other_first, loss, at.loss)
        late = jnp.where(other_first, at.loss, loss)
        return _Bracket(
            state,
            low=jnp.where(early <= late, at.low, first),
            high=jnp.where(early <= late, last, at.high),
            known=jnp.where(early <= late, first, last),
            loss=jnp.minimum(early, late),
        )

    begin = _Bracket(state, jnp.int32(0), jnp.int32(high), jnp.int32(known), infinite)
    return lax.while_loop(lambda at: at.high - at.low > 2, narrow, begin).state
