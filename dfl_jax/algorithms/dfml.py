"""DFML: decentralized federated mutual learning (Algorithm 1).

Every round senders train on their own data and send their models to an aggregator, where all
participants' models, of whatever architecture, learn from its labels and from each other for K
epochs of its data, with a weight alpha of the other models' opinion that rises and falls from round
to round. Peak models keep what was learnt where alpha was highest; they are what is judged.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dfl_jax.algorithms.gossip_method import keep_inactive
from dfl_jax.base import Algorithm, Array, Clients, Graph, Info, Round
from dfl_jax.checks import check_choice, check_range
from dfl_jax.heterogeneous import (
    TRAINING,
    Balance,
    MeetingState,
    Mutual,
    Population,
    Stacked,
    meeting_method,
    meeting_rounds,
    mutual_learning,
)
from dfl_jax.training import LocalTraining

OPEN_ENDED = ('half_cycle', 'cycle', 'fixed')  # the number of rounds does not change the first
SCHEDULES = (*OPEN_ENDED, 'annealed')
LATER = 10_000  # rounds for which open-ended schedules go on, at least
SCHEDULED = ('both', 'supervision', 'distillation', 'common')


class DfmlState(NamedTuple):
    params: Stacked  # W_n, leaves [M_a, ...]
    peak: Stacked  # \hat W_n, leaves [M_a, ...]
    best: Array  # [M], alpha_n, the largest alpha under which a client took part


class Plan(NamedTuple):
    """alpha of every round, and the rounds in which peak models are renewed anyway."""

    alpha: np.ndarray  # [T] float64
    peak: np.ndarray  # [T] bool


@dataclass(frozen=True, kw_only=True)
class AlphaSchedule:
    """How alpha, the weight of the distillation, changes over the rounds (Eq. 4, A.2, A.5.4).

    Half cycles alone gave the order of Table 9 (docs/results_dfml.md).

    Args:
      schedule: `half_cycle`: from near 0 to `alpha` in a whole period, then down at once, so that a
        period of 100 has its one peak at round 100 (A.5.4); `cycle`: up in half a period and back
        in the other half; `fixed`: always `alpha`; or `annealed`: from `alpha` to 0 along a line
        (teacher annealing of ANL-KD, Clark et al. 2019).
      alpha: the largest weight of the distillation. A.5.1 says 0.8 or 0.9 where labels mislead
        little, as with WSM, and 1 with `ce` on skewed classes.
      period: rounds of the first cycle of alpha.
      period_growth: rounds by which every cycle is longer than the one before.
      peak_updates: rounds of a cycle, those of the largest alpha, that renew the peak models
        (A.4.6).
      scheduled: which terms of Eq. (10) alpha moves: `both` in opposite directions (Eq. 1),
        `supervision` alone (the distillation at 1), `distillation` alone (the supervision at 1), or
        `common`, both alike.

    Raises ValueError for settings out of range.
    """

    schedule: str = 'half_cycle'
    alpha: float = 0.9
    period: int = 10
    period_growth: int = 1
    peak_updates: int = 1
    scheduled: str = 'both'

    def __post_init__(self) -> None:
        check_choice('schedule', self.schedule, SCHEDULES)
        check_choice('scheduled', self.scheduled, SCHEDULED)
        check_range('alpha', self.alpha, least=0, most=1)
        check_range('period', self.period, least=2)
        check_range('period_growth', self.period_growth, least=0)
        check_range('peak_updates', self.peak_updates, least=1)

    def over(self, rounds: int) -> Plan:
        """The plan of so many rounds T."""
        if self.schedule == 'fixed':
            return Plan(np.full(rounds, self.alpha), np.ones(rounds, bool))
        if self.schedule == 'annealed':
            return Plan(self.alpha * np.linspace(1, 0, rounds), np.ones(rounds, bool))
        half, period = self.schedule == 'half_cycle', self.period
        values: list[np.ndarray] = []
        renewed: list[np.ndarray] = []
        planned = 0
        while planned < rounds:
            rise = period if half else period // 2
            at = np.arange(period) + half
            phase = np.where(at <= rise, at / rise, 1 + (at - rise) / max(period - rise, 1))
            cycle = self.alpha / 2 * (1 - np.cos(np.pi * phase))  # Eq. (4)
            values.append(cycle)
            highest = np.argsort(-cycle, kind='stable')[: self.peak_updates]
            renewed.append(np.isin(np.arange(period), highest))
            planned, period = planned + period, period + self.period_growth
        return Plan(np.concatenate(values)[:rounds], np.concatenate(renewed)[:rounds])


def balance_of(scheduled: str, alpha: Array) -> Balance:
    """Eq. (1), or the ways of A.5.3 to schedule the terms of Eq. (10)."""
    one = jnp.ones_like(alpha)
    return {
        'both': Balance(1 - alpha, alpha),
        'supervision': Balance(1 - alpha, one),
        'distillation': Balance(one, alpha),
        'common': Balance(alpha, alpha),
    }[scheduled]


def dfml(
    population: Population,
    *,
    rounds: int,
    mutual_epochs: int = 10,
    alphas: AlphaSchedule = AlphaSchedule(),
    teachers: str = 'size',
    transfer: str = 'mutual',
    weighted_samples: bool = False,
    temperature: float = 1.0,
    training: LocalTraining = TRAINING,
    init: str = 'same',
    chunk: int | None = None,
) -> Algorithm:
    """DFML; the defaults are the paper's.

    Args:
      rounds: T, for which alpha is scheduled; the cycles go on in later rounds, `annealed` ends.
      mutual_epochs: passes K of mutual learning over the aggregator's data.
      alphas: the weight alpha of the distillation in every round.
      teachers: weights of the teachers: by their `size` (Eq. 3), or `equal`.
      transfer: who learns at an aggregator: all (`mutual`), or only the aggregator (`vanilla`,
        A.4.8).
      weighted_samples: weight the samples of the distillation (weighted soft labels, WSL, A.5.2).
      temperature: temperature of the softmax in the distillation.
      training: optimiser, batches and supervision (`wsm` is Eq. 2) of both trainings, epochs of the
        local one.
      init: `same` initial weights in an architecture, or `independent`.
      chunk: models worked on at once; None for one on a CPU, elsewhere what memory holds.

    Raises ValueError for settings out of range, before anything is traced.
    """
    check_choice('teachers', teachers, ('size', 'equal'))
    check_choice('transfer', transfer, ('mutual', 'vanilla'))
    check_range('mutual_epochs (K)', mutual_epochs, least=1)
    check_range('temperature', temperature, above=0)
    length = max(rounds, LATER) if alphas.schedule in OPEN_ENDED else rounds
    plan = alphas.over(length)
    mutual = Mutual(
        mutual_epochs, teachers == 'size', transfer == 'vanilla', weighted_samples, temperature
    )
    learn = mutual_learning(population, training, mutual, chunk)

    def alpha_of(round: Round) -> Array:
        # Not a number beyond the schedule, which `check` refuses
        alphas = jnp.asarray(plan.alpha, round.clients.x.dtype)
        return alphas.at[round.number].get(mode='fill')

    def taught(key, models, participants, round):
        balance = balance_of(alphas.scheduled, alpha_of(round))
        of_round = round.graph, round.clients, round.number
        return learn(key, models, participants, *of_round, balance, round.exchange)[0]

    regular = meeting_rounds(population, training, taught, init=init, chunk=chunk, mutual=mutual)

    def init_state(key: Array, clients: Clients) -> DfmlState:
        (params,) = regular.init(key, clients)
        peak = jax.tree.map(jnp.copy, params)
        return DfmlState(params, peak, jnp.zeros(population.size, clients.x.dtype))

    def step(key: Array, state: DfmlState, round: Round) -> tuple[DfmlState, Info]:
        (params,), info = regular.step(key, MeetingState(state.params), round)
        value, graph = alpha_of(round), round.graph
        who = (graph.mask & graph.active[:, None]).ravel()
        members = jnp.where(who, graph.members.ravel(), population.size)  # the others are dropped
        takes_part = jnp.zeros(population.size, bool).at[members].set(True, mode='drop')
        renewed = takes_part & ((value >= state.best) | jnp.asarray(plan.peak)[round.number])
        peak = {
            name: keep_inactive(renewed[of], params[name], state.peak[name])
            for name, of in population.clients.items()
        }
        best = jnp.where(takes_part, jnp.maximum(state.best, value), state.best)
        return DfmlState(params, peak, best), info._replace(metrics={'alpha': value})

    def predict(state: DfmlState, x: Array, weights: Array | None = None) -> dict[str, Array]:
        return {**method.predict(state, x, weights), 'regular': regular.predict(state, x)['client']}

    def check(graphs: Graph, sizes: np.ndarray) -> None:
        del sizes
        if (asked := len(graphs.active)) > length:
            raise ValueError(
                f'rounds={rounds}: alpha of schedule={alphas.schedule} ends after {length} '
                f'rounds, and the run has {asked}; set rounds={asked}'
            )

    method = meeting_method(population, init_state, step, chunk, evaluated='peak')
    return method._replace(predict=predict, check=check)
