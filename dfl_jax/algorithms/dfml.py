"""DFML: decentralized federated mutual learning (Algorithm 1).

Every round senders train on their own data and send their models to an aggregator, where all
participants' models, of whatever architecture, learn from its labels and from each other for K
epochs of its data, with a weight alpha of the other models' opinion that rises and falls from round
to round. Peak models keep what was learnt where alpha was highest; they are what is judged.
"""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dfl_jax.base import Algorithm, Array, Clients, Graph, Info
from dfl_jax.checks import check_choice, check_range
from dfl_jax.heterogeneous import (
    TRAINING,
    Balance,
    Mutual,
    Population,
    Stacked,
    assign_participants,
    gather,
    initial_stacked,
    local_flops,
    losses_of_round,
    meeting_flops,
    meeting_method,
    mutual_learning,
    nan_if_diverged,
    participants_training,
    predictions,
    scatter,
    weights_sent,
)
from dfl_jax.initialisation import INITS
from dfl_jax.training import LocalTraining

OPEN_ENDED = ('half_cycle', 'cycle', 'fixed')  # the number of rounds does not change the first
SCHEDULES = (*OPEN_ENDED, 'annealed')
LATER = 10_000  # rounds for which open-ended schedules go on, at least
SCHEDULED = ('both', 'supervision', 'distillation', 'common')


class DfmlState(NamedTuple):
    params: Stacked  # W_n, leaves [M_a, ...]
    peak: Stacked  # \hat W_n, leaves [M_a, ...]
    best: Array  # [M], alpha_n, the largest alpha under which a client took part
    round: Array  # scalar int32, t


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
    schedule: AlphaSchedule = AlphaSchedule(),
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
      population: the clients and their networks.
      rounds: T, for which alpha is scheduled; the cycles go on in later rounds, `annealed` ends.
      mutual_epochs: passes K of mutual learning over the aggregator's data.
      schedule: of alpha, the weight of the distillation.
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
    check_choice('init', init, INITS)
    check_choice('teachers', teachers, ('size', 'equal'))
    check_choice('transfer', transfer, ('mutual', 'vanilla'))
    check_range('mutual_epochs (K)', mutual_epochs, least=1)
    check_range('temperature', temperature, above=0)
    length = max(rounds, LATER) if schedule.schedule in OPEN_ENDED else rounds
    plan = schedule.over(length)
    mutual = Mutual(
        mutual_epochs, teachers == 'size', transfer == 'vanilla', weighted_samples, temperature
    )
    local = participants_training(population, training, chunk)
    learn = mutual_learning(population, training, mutual, chunk)

    def init_state(key: Array, clients: Clients) -> DfmlState:
        params = initial_stacked(key, population, init)
        peak = jax.tree.map(jnp.copy, params)
        return DfmlState(params, peak, jnp.zeros(population.size, clients.x.dtype), jnp.int32(0))

    def step(
        key: Array, state: DfmlState, graph: Graph, clients: Clients
    ) -> tuple[DfmlState, Info]:
        k_train, k_learn = jax.random.split(key)
        t = state.round
        participants = assign_participants(population, graph)
        # Not a number beyond the schedule, which `check` refuses
        value = jnp.asarray(plan.alpha, clients.x.dtype).at[t].get(mode='fill')

        models, losses = local(
            k_train, gather(state.params, participants), participants, clients, t
        )
        models, _ = learn(
            k_learn, models, participants, graph, clients, t, balance_of(schedule.scheduled, value)
        )

        renew = (value >= state.best) | jnp.asarray(plan.peak)[t]  # [M]
        renewed = {
            name: group._replace(present=group.present & renew[group.client])
            for name, group in participants.items()
        }
        who = (graph.mask & graph.active[:, None]).ravel()
        taking_part = jnp.where(who, graph.members.ravel(), population.size)
        new = DfmlState(
            scatter(state.params, models, participants),
            scatter(state.peak, models, renewed),
            state.best.at[taking_part].max(value, mode='drop'),
            t + 1,
        )
        sizes = clients.mask.sum(axis=1)
        combining = meeting_flops(population, mutual, participants, graph, sizes)
        info = Info(
            losses_of_round(nan_if_diverged(models, losses), participants, graph, population.size),
            weights_sent(population, graph),
            {'alpha': value},
            local_flops(population, training, participants, sizes) + combining,
            combining,
        )
        return new, info

    def predict(state: DfmlState, x: Array) -> dict[str, Array]:
        regular = predictions(population, state.params, x, chunk)['client']
        return {**method.predict(state, x), 'regular': regular}

    method = meeting_method(population, init_state, step, chunk, judged='peak')
    check = partial(_check_rounds, rounds, schedule.schedule, length)
    return method._replace(predict=predict, check=check)


def _check_rounds(
    rounds: int, schedule: str, length: int, graphs: Graph, sizes: np.ndarray
) -> None:
    del sizes
    if (asked := len(graphs.active)) > length:
        raise ValueError(
            f'rounds={rounds}: alpha of schedule={schedule} ends after {length} rounds, and the '
            f'run has {asked}; set rounds={asked}'
        )
