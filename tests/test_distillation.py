"""The annealed targets of SPARK: Eq. (7) to (11), by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dfl_jax.ntk.distillation import Distillation, distillation_target

SETTINGS = {
    'rounds': 13,
    'warmup': 5,
    'alpha_init': 0.9,
    'alpha_final': 0.1,
    'tau_init': 2.0,
    'tau_final': 4.0,
}

# round k: (alpha, tau), p = (k - 5) / 8; cos(pi / 8) = 0.9238795325, cos(pi / 4) = 0.7071067812
BY_HAND = {
    1: (1.0, 1.0),
    5: (1.0, 1.0),  # the last of the warm-up
    6: (0.869551813, 2.25),
    7: (0.782842712, 2.5),
    9: (0.5, 3.0),  # midway
    11: (0.217157288, 3.5),
    13: (0.1, 4.0),  # the last
    14: (0.1, 4.0),
    40: (0.1, 4.0),
}


def test_the_schedule_by_hand():
    schedule = jax.jit(Distillation(**SETTINGS).schedule)
    for k, expected in BY_HAND.items():
        assert np.array(schedule(jnp.int32(k))) == pytest.approx(expected, rel=1e-6), k
    together = jnp.stack(schedule(jnp.array(list(BY_HAND))), axis=1)
    np.testing.assert_allclose(together, list(BY_HAND.values()), rtol=1e-6)


def test_without_a_warm_up_the_first_round_is_on_its_way():
    schedule = Distillation(rounds=2, warmup=0, alpha_final=0.0, tau_final=5.0).schedule
    assert np.array(schedule(1)) == pytest.approx((0.5, 3.0))
    assert np.array(schedule(2)) == pytest.approx((0.0, 5.0), abs=1e-7)


def test_the_target_by_hand():
    """Logits tau log(1, 2, 5) are probabilities 1/8, 2/8, 5/8; two samples, three outputs."""
    tau, alpha = 3.0, 0.2
    y = np.array([[1, 0], [0, 0], [0, 1]], np.float32)
    logits = tau * np.log([[1, 5], [2, 2], [5, 1]]).astype(np.float32) + np.array([[40, -7.0]])
    expected = [[0.2 + 0.1, 0.5], [0.2, 0.2], [0.5, 0.2 + 0.1]]
    np.testing.assert_allclose(distillation_target(y, logits, alpha, tau), expected, rtol=1e-5)
    teacher = distillation_target(y, logits, 0.0, tau)
    np.testing.assert_allclose(teacher, np.array([[1, 5], [2, 2], [5, 1]]) / 8, rtol=1e-5)


def test_a_target_is_a_distribution_and_alpha_1_gives_the_labels():
    rng = np.random.default_rng(0)
    y = np.eye(4, dtype=np.float32)[rng.integers(4, size=9)].T
    logits = (30 * rng.normal(size=(4, 9))).astype(np.float32)
    for alpha in (0.0, 0.3, 1.0):
        for tau in (0.1, 1.0, 20.0):
            target = np.asarray(distillation_target(y, logits, alpha, tau))
            assert (target >= 0).all()
            np.testing.assert_allclose(target.sum(axis=0), 1, rtol=1e-6)
    np.testing.assert_array_equal(target, y)


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'warmup': 13}, 'warm-up of 13 rounds .* before the last of 13; lower the warm-up'),
        ({'warmup': 20}, 'warm-up of 20 rounds .* before the last of 13; lower the warm-up'),
        ({'rounds': 0}, 'rounds has to be at least 1, got 0'),
        ({'warmup': -1}, 'warm-up .* at least 0 rounds, got -1'),
        ({'alpha_init': 1.1}, r'alpha_init has to lie in \[0, 1\], got 1.1'),
        ({'alpha_final': -0.1}, r'alpha_final has to lie in \[0, 1\], got -0.1'),
        ({'alpha_init': float('nan')}, r'alpha_init has to lie in \[0, 1\], got nan'),
        ({'tau_init': 0.0}, 'tau_init has to be above 0, got 0.0'),
        ({'tau_final': -2.0}, 'tau_final has to be above 0, got -2.0'),
    ],
)
def test_what_is_refused(change, message):
    Distillation(**SETTINGS)
    with pytest.raises(ValueError, match=message) as caught:
        Distillation(**SETTINGS | change)
    assert '\n' not in str(caught.value)
