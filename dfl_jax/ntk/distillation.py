"""Targets that anneal from hard labels to a teacher's: SPARK, Algorithm 2, Eq. (7) to (11)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from dfl_jax.base import Array
from dfl_jax.checks import check_range


def annealing(
    rounds: int, warmup: int, alpha: tuple[float, float], temperature: tuple[float, float]
) -> Callable[[Array], tuple[Array, Array]]:
    """k -> (alpha, tau) of round k = 1, ..., R: the weight of the labels, and the temperature.

    Both are 1 up to round R_warm; from there alpha follows a cosine and tau a line. Beyond R their
    last values hold.

    Args:
      rounds: R.
      warmup: R_warm.
      alpha: (alpha_init, alpha_final).
      temperature: (tau_init, tau_final).

    Raises ValueError unless 0 <= R_warm < R, the alphas lie in [0, 1] and the temperatures above 0.
    """
    if warmup < 0:
        raise ValueError(f'the warm-up has to last at least 0 rounds, got {warmup}')
    if warmup >= rounds:
        raise ValueError(
            f'a warm-up of {warmup} rounds has to end before the last of {rounds}; '
            'lower the warm-up or raise the number of rounds'
        )
    for name, value in zip(('alpha_init', 'alpha_final'), alpha, strict=True):
        check_range(name, value, least=0, most=1)
    for name, value in zip(('tau_init', 'tau_final'), temperature, strict=True):
        check_range(name, value, above=0)

    def schedule(k: Array) -> tuple[Array, Array]:
        p = jnp.clip((k - warmup) * (1 / (rounds - warmup)), 0, 1)  # Eq. (7)
        cosine = 0.5 * (alpha[0] - alpha[1]) * (1 + jnp.cos(jnp.pi * p))
        tau = temperature[0] + (temperature[1] - temperature[0]) * p  # Eq. (9)
        warm = k <= warmup
        return jnp.where(warm, 1.0, alpha[1] + cosine), jnp.where(warm, 1.0, tau)  # Eq. (8)

    return schedule


def distillation_target(y: Array, logits: Array, alpha: Array, tau: Array) -> Array:
    """alpha y + (1 - alpha) softmax(z / tau), Eq. (10) and (11); y and logits z are [C, N]."""
    return alpha * y + (1 - alpha) * jax.nn.softmax(logits / tau, axis=0)
