"""What the benchmark of SPARK's theorem makes of updates whose constants are known."""

import numpy as np
import pytest

from benchmarks.spark_theory import moments, smallest_bias, theorem


def test_the_step_and_the_bias_of_updates_that_have_both():
    """D = -0.3 (g + b), b orthogonal to all g: |g|^2 (1 - 0.3 / eta)^2 + |0.3 b / eta|^2."""
    gradients = np.random.default_rng(0).normal(size=(40, 50))
    gradients[:, 7] = 0
    off = np.zeros(50)
    off[7] = 2
    delta, eta = smallest_bias(-0.3 * (gradients + off), gradients)
    largest = (gradients**2).sum(axis=1).max()
    best = (0.09 * largest + 0.36) / (0.3 * largest)
    assert eta == pytest.approx(best, rel=1e-4)
    expected = largest * (1 - 0.3 / best) ** 2 + (0.6 / best) ** 2
    assert delta**2 == pytest.approx(expected, rel=1e-6)


def test_a_step_along_the_gradient_has_no_bias():
    gradients = np.random.default_rng(1).normal(size=(5, 20))
    delta, eta = smallest_bias(-0.02 * gradients, gradients)
    assert delta < 1e-3 and eta == pytest.approx(0.02, rel=1e-4)


def test_the_mean_and_the_noise_of_updates():
    rng = np.random.default_rng(2)
    drawn = [1 + np.array([[0.1], [0.5]]) * rng.normal(size=(2, 1000)) for _ in range(200)]
    mean, noise = moments(drawn)
    assert np.abs(mean - 1).max() < 0.1
    assert noise == pytest.approx(0.5**2 * 1000, rel=0.02)  # of the noisier client


def test_the_theorem_of_a_quadratic():
    """L(z) = |z|^2 from z = 4, halved twice: L = 2, 2 (1 - mu) (16 - 1) / (eta T) and noise."""
    points = np.array([[4.0], [2.0], [1.0]])
    rounds = {
        'points': points,
        'gradients': 2 * points,
        'losses': points[:, 0] ** 2,
        'noise': np.full(3, 0.3),
    }
    text = theorem(rounds, 30, 0.5, 0.1)
    start, noise = 2 * 0.1 * 15 / 0.3, 2 * 0.3 / (0.1 * 30 * 0.1)
    assert 'L = 2' in text and '= 0.0125, Eq. (25), is broken' in text
    assert f'{start:.3g} (start) + {noise:.3g} (noise) + 0.25 (bias)' in text
    assert 'min |grad L(z)|^2 = 4;' in text
