"""The audit of a claimed epsilon: its bound, and what it finds with noise and without."""

import doctest
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks import audit
from benchmarks.audit import DELTA, audited, build, claimed_by, lower_bound


def probability(epsilon, right, guesses, canaries, delta):
    """That of so many right guesses, at most, by exact sums."""
    rate = Fraction(1 / (1 + math.exp(-epsilon)))
    terms = [
        math.comb(guesses, k) * rate**k * (1 - rate) ** (guesses - k) for k in range(guesses + 1)
    ]
    steps = [sum(terms[right - i : right]) / i for i in range(1, right + 1)]
    return float(sum(terms[right:]) + 2 * canaries * Fraction(delta) * max(steps, default=0))


@pytest.mark.parametrize('guesses', [5, 40, 1000])
def test_the_bound_of_guesses_that_are_all_right(guesses):
    rate = 0.05 ** (1 / guesses)
    expected = math.log(rate / (1 - rate))
    assert lower_bound(guesses, guesses, 2 * guesses, 0.0) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ('right', 'guesses', 'canaries', 'delta'),
    [(30, 40, 100, 0.0), (30, 40, 100, 1e-4), (40, 40, 1000, 1e-5), (38, 40, 40, 1e-3)],
)
def test_at_the_bound_the_guesses_have_a_probability_of_a_twentieth(
    right, guesses, canaries, delta
):
    bound = lower_bound(right, guesses, canaries, delta)
    assert bound > 0.3
    assert probability(bound, right, guesses, canaries, delta) == pytest.approx(0.05, rel=1e-6)


def test_the_bounds_of_the_paper():
    assert doctest.testmod(audit) == (0, 1)  # Appendix D
    assert lower_bound(1439, 1510, 100_000, 1e-5) == pytest.approx(2.675, abs=1e-3)  # Section 7


def test_the_bound_is_above_the_truth_once_in_twenty_times():
    """Of randomized response, whose guesses are right with probability e / (1 + e)."""
    above = [lower_bound(v, 200, 200, 0.0) > 1 for v in range(201)]
    wrong = binom.pmf(np.arange(201), 200, math.e / (1 + math.e)) @ above
    assert 0.03 < wrong <= 0.05


def test_more_right_guesses_bound_higher_and_delta_lower():
    bounds = [lower_bound(v, 100, 500, 1e-5) for v in range(101)]
    assert not any(bounds[:58]) and bounds[60] > 0
    assert all(np.diff(bounds[60:]) > 0)
    for more in [(500, 1e-4), (5000, 1e-5)]:
        assert 0 < lower_bound(90, 100, *more) < bounds[90]


def test_an_audit_finds_no_more_than_is_claimed_and_finds_that_noise_is_missing():
    clients, samples, runs = 4, 100, 6
    found = {}
    for noise in (4.5, None):
        built = build(noise, clients, samples, rounds=12)
        right, guesses = audited(built, runs)
        of_all = sum(right), runs * guesses, runs * clients * samples
        found[noise] = claimed_by(built), lower_bound(*of_all, DELTA)
    claim, bound = found[4.5]
    assert 1.8 < claim < 2.2 and 0.1 < bound <= claim
    claim, bound = found[None]
    assert claim is None and bound > 4
