"""Targets that anneal from hard labels to a teacher's: SPARK, Algorithm 2, Eq. (7) to (11)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from dfl_jax.base import Array
from dfl_jax.checks import check_range


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """How the target anneals from hard labels to soft ones.

    Args:
      rounds: length R of the schedules, whatever the number of rounds of the run: a shorter run
        ends within them, a longer one stays at their last values. 0 as a flag: the rounds of the
        run.
      warmup: number R_warm of first rounds, which train on labels alone; None for R / 6, 5 of 30.
      alpha_init: weight of the labels against the soft labels after the warm-up, in [0, 1] (Eq. 8).
      alpha_final: weight of the labels in round R (Eq. 8); 1: labels alone throughout.
      tau_init: temperature of the soft labels after the warm-up, above 0 (Eq. 9).
      tau_final: temperature in round R (Eq. 9).

    Raises ValueError unless 0 <= R_warm < R, the alphas lie in [0, 1] and the temperatures above 0.
    """

    rounds: int = 30
    warmup: int | None = None
    alpha_init: float = 1.0
    alpha_final: float = 0.1
    tau_init: float = 1.0
    tau_final: float = 1.0

    def __post_init__(self):
        check_range('rounds', self.rounds, least=1)
        warmup = self.warmup_rounds
        if warmup < 0:
            raise ValueError(f'the warm-up has to last at least 0 rounds, got {warmup}')
        if warmup >= self.rounds:
            raise ValueError(
                f'a warm-up of {warmup} rounds has to end before the last of {self.rounds}; '
                'lower the warm-up or raise the number of rounds'
            )
        for name in ('alpha_init', 'alpha_final'):
            check_range(name, getattr(self, name), least=0, most=1)
        for name in ('tau_init', 'tau_final'):
            check_range(name, getattr(self, name), above=0)

    @property
    def warmup_rounds(self) -> int:
        """R_warm."""
        return self.rounds // 6 if self.warmup is None else self.warmup

    def schedule(self, k: Array) -> tuple[Array, Array]:
        """(alpha, tau) of round k = 1, ..., R: the weight of the labels, and the temperature.

        Both are 1 up to round R_warm; from there alpha follows a cosine and tau a line. Beyond R
        their last values hold.
        """
        alpha, tau = (self.alpha_init, self.alpha_final), (self.tau_init, self.tau_final)
        warmup = self.warmup_rounds
        p = jnp.clip((k - warmup) * (1 / (self.rounds - warmup)), 0, 1)  # Eq. (7)
        cosine = 0.5 * (alpha[0] - alpha[1]) * (1 + jnp.cos(jnp.pi * p))
        temperature = tau[0] + (tau[1] - tau[0]) * p  # Eq. (9)
        warm = k <= warmup
        return jnp.where(warm, 1.0, alpha[1] + cosine), jnp.where(warm, 1.0, temperature)  # Eq. (8)


def distillation_target(y: Array, logits: Array, alpha: Array, tau: Array) -> Array:
    """alpha y + (1 - alpha) softmax(z / tau), Eq. (10) and (11); y and logits z are [C, N]."""
    return alpha * y + (1 - alpha) * jax.nn.softmax(logits / tau, axis=0)
