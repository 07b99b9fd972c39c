"""The searches for the timestep of the lowest loss, against lists of losses."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dfl_jax.ntk.timestep_search import every, section


def found(search, losses):
    """(index of the lowest loss that was tried, how many were tried)."""
    losses = jnp.asarray(losses, jnp.float32)

    def attempt(state, index):
        lowest, chosen, tried = state
        loss = losses[index]
        return (jnp.minimum(loss, lowest), jnp.where(loss < lowest, index, chosen), tried + 1), loss

    begin = (jnp.float32(jnp.inf), jnp.int32(-1), jnp.int32(0))
    _, chosen, tried = jax.jit(lambda: search(attempt, begin, len(losses), begin[0]))()
    return int(chosen), int(tried)


def valleys(count):
    """Losses that fall to each of so many timesteps and then rise, by steps of many sizes."""
    rng = np.random.default_rng(count)
    for lowest in range(count):
        yield lowest, np.abs(np.arange(count) - lowest) * 1.0
        steps = rng.exponential(size=count) + 1e-3
        rise, fall = np.cumsum(steps), np.cumsum(steps[::-1])[::-1]
        yield lowest, np.where(np.arange(count) < lowest, fall - fall[lowest], rise - rise[lowest])


@pytest.mark.parametrize(('count', 'most'), [(1, 1), (2, 2), (4, 3), (7, 4), (8, 5), (12, 5)])
def test_a_section_finds_the_floor_of_every_valley(count, most):
    tried = []
    for lowest, losses in valleys(count):
        chosen, number = found(section, losses)
        assert chosen == lowest
        tried.append(number)
    assert max(tried) == most  # of n trials at most, among F_(n+2) - 1 timesteps


def test_the_last_of_eight_timesteps_takes_three_trials():
    assert found(section, range(8, 0, -1)) == (7, 3)


def test_every_timestep_is_tried():
    for losses in itertools.permutations(range(4)):
        assert found(every, losses) == (losses.index(0), 4)
