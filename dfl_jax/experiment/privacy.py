"""What privacy a run spends: an epsilon for every client after every round, known before it runs.

Every release of a client is a clipped sum with Gaussian noise. Seen by somebody who knows all else,
and not the noise that neighbours share, it is one with the noise multiplier
1 / sqrt([S^-1]_ii) of the covariance S of the noise of all clients (for DECOR the theorem of
Allouah et al. 2024), so that one accountant serves all mechanisms and adversaries.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache, partial
from typing import Any

import jax
import numpy as np

from dfl_jax.base import Graph
from dfl_jax.experiment.accounting import (
    accountant,
    correlated_multipliers,
    epsilon_of,
    multipliers_to_neighbours,
    noise_for,
    shared_ratio,
)
from dfl_jax.experiment.configured_method import ConfiguredMethod
from dfl_jax.experiment.privacy_checks import (
    SHARED,
    check_accounted,
    check_nothing_claimed,
    check_server,
    check_sharing,
    private_settings,
)
from dfl_jax.experiment.run_settings import Privacy
from dfl_jax.gossip import mixing_matrix
from dfl_jax.setting_error import SettingError

MULTIPLIERS = {'eavesdropper': correlated_multipliers, 'neighbour': multipliers_to_neighbours}
EPSILON = 'epsilon'  # in a row of metrics.jsonl, and [M] in clients.jsonl


@dataclass(frozen=True)
class Spending:
    """What a run spends.

    Args:
      noise: the multiplier of the independent noise.
      shared: that of the noise of one link.
      rates: [M], the probability with which a sample is in a batch; 1 without Poisson sampling.
      releases: [M], of one sample, or of the client, in a round.
      asked: by the run, with the delta for which epsilon is given.
      training: whose clipping and sampling they are.
      accountant: what computes epsilon.
      multipliers: rounds -> the noise multiplier of each client's releases in all of them together,
        as if it were of one round, [M].
    """

    noise: float
    shared: float
    rates: np.ndarray
    releases: np.ndarray
    asked: Privacy
    training: Any
    accountant: str
    multipliers: Callable[[int], np.ndarray] = field(repr=False)

    @property
    def claim(self) -> dict[str, Any]:
        """What epsilon is of, as config.json records it."""
        return {
            'unit': self.training.dp_unit,
            'adversary': self.asked.dp_adversary,
            'sampling': self.training.batch_sampling,
            'delta': self.asked.dp_delta,
            'noise_multiplier': self.noise,
            'correlated_noise': self.shared,
            'accountant': self.accountant,
        }

    def after(self, rounds: int, clients: Sequence[int] | None = None) -> np.ndarray:
        """Epsilon of these clients, or of each, [M], after so many rounds."""
        assert self.asked.dp_delta is not None  # which is checked
        of_one = cache(partial(epsilon_of, delta=self.asked.dp_delta))
        each = [*zip(self.multipliers(rounds), self.rates, rounds * self.releases, strict=True)]
        chosen = each if clients is None else [each[client] for client in clients]
        return np.array([of_one(float(noise), float(q), int(n)) for noise, q, n in chosen])


def with_privacy(
    configured: ConfiguredMethod, asked: Privacy, sizes: np.ndarray, graphs: Graph, arrives: bool
) -> tuple[ConfiguredMethod, Spending | None, Graph]:
    """The method with the noise that an epsilon asks for, what the run spends, None where nothing
    is accounted for, and the graphs of the rounds that it may take.

    Args:
      sizes: [M].
      graphs: of all rounds, with failures.
      arrives: whether samples arrive while the run lasts.

    Raises SettingError.
    """
    training = private_settings(configured)
    if training is None or (training.dp_noise_multiplier is None and asked.dp_epsilon is None):
        check_nothing_claimed(asked, configured)
        return configured, None, graphs
    given, correlated = training.dp_noise_multiplier, configured.given.get(SHARED) or 0.0
    if asked.dp_share_noise:
        check_sharing(asked, configured)
    check_accounted(asked, training, sizes, arrives)
    if asked.dp_adversary == 'server':
        check_server(configured, training, graphs)
    rounds, counted_by = len(graphs.active), accountant()
    ratio = _ratio(asked, configured, sizes, graphs) if asked.dp_share_noise else 0.0

    def spending(noise: float) -> Spending:
        shared = correlated / noise or ratio
        return _spending(asked, training, counted_by, sizes, graphs, noise, shared)

    if given is None and asked.dp_epsilon is not None:
        given = _noise_within(asked.dp_epsilon, spending, rounds)
        found = {'dp_noise_multiplier': given}
        if ratio:
            found[SHARED] = ratio * given
        return replace(configured, given=configured.given | found), spending(given), graphs
    spent = spending(given)
    if asked.dp_epsilon is not None and (found := spent.after(rounds).max()) > asked.dp_epsilon:
        within = _rounds_within(spent, asked.dp_epsilon, rounds)
        if asked.stop_at_epsilon and within:
            text = f'{within} of {rounds} rounds are within an epsilon of {asked.dp_epsilon:g}'
            warnings.warn(f'the run ends early: {text}', stacklevel=2)
            return configured, spent, jax.tree.map(lambda array: array[:within], graphs)
        text = f'{rounds} rounds spend {found:.4g}; {within} rounds are within it'
        remedy = 'raise `dp_noise_multiplier`, or leave it out, and it follows'
        if within:
            remedy = f'set `stop_at_epsilon`, or {remedy}'
        raise SettingError('dp_epsilon', asked.dp_epsilon, text, remedy)
    return configured, spent, graphs


def _ratio(asked: Privacy, configured: ConfiguredMethod, sizes: np.ndarray, graphs: Graph) -> float:
    """Of shared to independent noise, by the graph of the first round; sizes [M]."""
    first, settings = jax.tree.map(lambda array: array[0], graphs), configured.resolved
    mixing = mixing_matrix(first, sizes, settings['mixing']).toarray()
    divisors = _divisors(private_settings(configured), sizes)
    averaged = settings['round_order'] == 'train_first'
    multipliers_of = MULTIPLIERS[asked.dp_adversary]
    return shared_ratio(_pairs(graphs, 0), mixing, divisors, multipliers_of, averaged)


def _divisors(training: Any, sizes: np.ndarray) -> np.ndarray:
    """By what each client divides its clipped sum with its noise, [M]."""
    if training.private_examples:
        return np.minimum(training.batch_size, sizes)
    return np.ones(len(sizes))


@lru_cache(512)  # a search for the noise asks for the same again
def _multipliers(pairs: bytes, clients: int, ratio: float, adversary: str) -> np.ndarray:
    """Of independent noise of one and shared noise of `ratio`, [M]."""
    links = np.frombuffer(pairs, bool).reshape(clients, clients)
    return MULTIPLIERS[adversary](links, 1.0, ratio)


def _spending(
    asked: Privacy,
    training: Any,
    counted_by: str,
    sizes: np.ndarray,
    graphs: Graph,
    noise: float,
    ratio: float,
) -> Spending:
    """What a run spends with this noise multiplier, and with so many times the noise on each link;
    sizes [M]."""
    size, epochs, steps = training.batch_size, training.local_epochs, training.local_steps
    in_epoch, clients = -(-sizes // size), len(sizes)
    rates = np.ones(clients)
    if training.dp_unit == 'client':
        releases = np.ones(clients, int)
    elif training.batch_sampling == 'poisson':
        rates = np.minimum(1, size / sizes)
        releases = epochs * in_epoch if epochs else np.full(clients, steps)
    else:  # a sample is in one batch of every pass
        releases = np.full(clients, epochs) if epochs else -(-steps // in_epoch)

    def multipliers(rounds: int) -> np.ndarray:
        if asked.dp_adversary == 'server':  # of an average, in which the noise of all adds up
            divisors = _divisors(training, sizes)
            return noise * divisors * np.linalg.norm(1 / divisors)
        if not ratio:
            return np.full(clients, noise)
        pairs = (_pairs(graphs, round).tobytes() for round in range(rounds))
        each = [noise * _multipliers(links, clients, ratio, asked.dp_adversary) for links in pairs]
        if (rates < 1).any():
            return np.min(each, axis=0)
        return np.mean(np.array(each) ** -2.0, axis=0) ** -0.5  # of Gaussians they add up

    return Spending(noise, ratio * noise, rates, releases, asked, training, counted_by, multipliers)


def _noise_within(epsilon: float, spending: Callable[[float], Spending], rounds: int) -> float:
    """The smallest noise of which no client spends more than epsilon.

    Searched for those clients who turn out to spend most: an epsilon takes a tenth of a second.
    """
    worst = [int(spending(1.0).after(rounds).argmax())]
    while True:
        found = noise_for(epsilon, lambda noise: spending(noise).after(rounds, worst).max())
        of_all = spending(found).after(rounds)
        if of_all.max() <= epsilon:
            return found
        worst.append(int(of_all.argmax()))


def _pairs(graphs: Graph, round: int) -> np.ndarray:
    """Which clients add the noise of which links in a round, [M, M] bool."""
    members, mask, active = (np.asarray(array[round]) for array in graphs[:3])
    pairs = np.zeros((len(members), len(members)), bool)
    rows, places = np.nonzero(mask[:, 1:] & active[:, None])
    pairs[members[rows, 0], members[rows, places + 1]] = True
    return pairs


def _rounds_within(spent: Spending, epsilon: float, rounds: int) -> int:
    """The largest number of rounds that spend at most epsilon."""
    low, high = 0, rounds
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if spent.after(middle).max() <= epsilon else (low, middle)
    return low
