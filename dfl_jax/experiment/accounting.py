"""What privacy a number of releases costs: epsilon of Gaussian noise on clipped sums.

The accountants are those of dp-accounting (Google), by Renyi divergences (RDP); of noise that
cancels between neighbours it is the theorem of DECOR (Allouah, Koloskova, El Firdoussi, Jaggi &
Guerraoui, ICML 2024). A noise multiplier is the standard deviation of the noise on a clipped sum,
over the bound to which each summand is clipped.
"""

import functools
import math
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import numpy as np
from absl import logging

from dfl_jax.setting_error import InputError
from dfl_jax.training import OVERFLOW

# The share of delta that is kept for such batches, and within which they have to stay
OVERFLOW_SHARE = 1e-6
ZERO = 1e-10  # an eigenvalue below this share of the largest is none
MOST_NOISE = 1e6  # as a multiplier, in the search for an epsilon
# Rounds whose noise `shared_ratio` counts. With 50 the pairs that the authors of DECOR chose by the
# loss leave 1.0 to 1.3 times the noise of ours in 11 of 12 cases, and 1.7 in one (2026-12-01)
LASTS = 50
RATIOS = np.append(0, np.geomspace(0.1, 30, 60))  # of shared noise to independent noise


def _accounting() -> Any:
    """The package dp_accounting. Raises InputError with the remedy."""
    try:
        import dp_accounting
    except ImportError as error:
        raise InputError(
            'privacy is accounted for by the package dp-accounting, which is not installed: '
            "pip install 'dfl_jax[privacy]'"
        ) from error
    return dp_accounting


@functools.cache
def _divergences(noise: float, rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Orders, and the Renyi divergences of one release at them."""
    accounting = _accounting()
    event = accounting.GaussianDpEvent(noise)
    if rate < 1:
        event = accounting.PoissonSampledDpEvent(rate, event)
    accountant = accounting.rdp.RdpAccountant()
    before = logging.get_verbosity()
    logging.set_verbosity(logging.ERROR)  # it tells of every order that it leaves out
    try:
        accountant.compose(event)
    finally:
        logging.set_verbosity(before)
    return accountant._orders, accountant._rdp  # once for runs of any length


def epsilon_of(noise: float, rate: float, releases: int, delta: float) -> float:
    """Epsilon of releases of a sum with Gaussian noise, at this delta; infinite without noise.

    Args:
      noise: the noise multiplier.
      rate: the probability with which each sample takes part, each time anew (Poisson); 1 for
        samples that take part in all of them.
      releases: of one sample.

    For a rate of 1, the neighbouring data sets differ in one sample whose part is left out of the
    sum; below, one of them has a sample more.

    >>> round(epsilon_of(1.0, 0.01, 1000, 1e-5), 2)
    2.1
    """
    if not releases:
        return 0.0
    if not noise > 0:
        return math.inf
    orders, divergences = _divergences(noise, rate)
    rest = delta * (1 - OVERFLOW_SHARE) if rate < 1 else delta
    epsilon, _ = _accounting().rdp.compute_epsilon(orders, releases * divergences, rest)
    overflow = (1 + math.exp(min(epsilon, 700))) * releases * OVERFLOW
    if rate < 1 and overflow > OVERFLOW_SHARE * delta:
        return math.inf  # batches that overflow are no longer covered
    return float(epsilon)


def noise_for(
    epsilon: float, worst: Callable[[float], float], least: float = 0.0, exact: float = 1e-6
) -> float:
    """The smallest noise, to a relative `exact`, whose worst epsilon is at most that.

    worst: noise -> epsilon, decreasing. least: a noise to begin with. Raises InputError where no
    noise is enough.

    >>> round(noise_for(2.0, lambda noise: 3 / noise), 4)
    1.5
    """
    low, high = 0.0, max(least, 1.0)
    while worst(high) > epsilon:
        low, high = high, 2 * high
        if high > MOST_NOISE:
            raise InputError(f'no noise gives an epsilon of {epsilon}; raise it')
    while high - low > exact * high:
        middle = (low + high) / 2
        low, high = (low, middle) if worst(middle) <= epsilon else (middle, high)
    return high


def correlated_multipliers(pairs: np.ndarray, noise: float, correlated: float) -> np.ndarray:
    """The noise multiplier of each client's release, [M], to somebody who hears all clients and
    does not know the noise that they share: 1 / sqrt([S^-1]_ii), S the covariance of all noise.

    Everybody adds independent noise, and the two ends of a link the same with opposite signs
    (DECOR, Algorithm 2: S = noise^2 I + correlated^2 L, L the Laplacian). Where an end does not add
    it, as when it heard nothing, the other's stays.

    Args:
      pairs: [M, M] bool, whether client i adds the noise that it shares with j.
      noise: multiplier of the independent noise.
      correlated: of that of one link.

    In the authors' units, of clipped gradients that differ by 2 * 1.5 for neighbouring data:

    >>> ring = np.roll(np.eye(16), 1, axis=0) + np.roll(np.eye(16), -1, axis=0) > 0
    >>> multiplier = correlated_multipliers(ring, 22.59997321199106 / 3, 251 / 3)[0]
    >>> round(float(1 / (2 * multiplier**2)), 10)
    0.0006422547
    """
    laplacian = np.diag(pairs.sum(axis=1)) - (pairs & pairs.T).astype(float)
    values, vectors = np.linalg.eigh(laplacian)
    values = np.where(values > ZERO * values.max(initial=1), values, 0)
    return (vectors**2 @ (1 / (noise**2 + correlated**2 * values))) ** -0.5


def multipliers_to_neighbours(pairs: np.ndarray, noise: float, correlated: float) -> np.ndarray:
    """The noise multiplier of each client's release, [M], to any one of the other clients: the
    smallest over them. Each knows the noise of its own links, too.

    Args: as of `correlated_multipliers`, M + 1 times as long as which it takes.

    On a ring what is left is a path, whose ends share noise with one neighbour only:

    >>> ring = np.roll(np.eye(4), 1, axis=0) + np.roll(np.eye(4), -1, axis=0) > 0
    >>> [round(float(m), 3) for m in multipliers_to_neighbours(ring, 1.0, 100.0)]
    [1.732, 1.732, 1.732, 1.732]
    """
    least = correlated_multipliers(pairs, noise, correlated)
    for client in range(len(pairs)):
        others = pairs.copy()
        others[client] = others[:, client] = False
        to_client = correlated_multipliers(others, noise, correlated)
        to_client[client] = np.inf  # it hides nothing from itself
        least = np.minimum(least, to_client)
    return least


def shared_ratio(
    pairs: np.ndarray,
    mixing: np.ndarray,
    divisors: np.ndarray,
    multipliers_of: Callable[[np.ndarray, float, float], np.ndarray] = correlated_multipliers,
    averaged: bool = True,
) -> float:
    """The ratio of the noise of a link to the independent noise that leaves least noise in models,
    at any given epsilon.

    What is added in a round has the covariance S, and t averages later W^t S (W^t)'. Its mean over
    clients, summed over LASTS rounds, is compared at equal multipliers of the client with the
    smallest one.

    Args:
      pairs: [M, M] bool, as in `correlated_multipliers`.
      mixing: W, [M, M].
      divisors: [M], by which each client's noise is divided.
      multipliers_of: (pairs, noise, correlated) -> [M].
      averaged: whether models are averaged after the noise of the same round, rather than before.
    """
    laplacian = np.diag(pairs.sum(axis=1)) - (pairs & pairs.T).astype(float)
    power, of_own, of_links = np.diag(1 / divisors), 0.0, 0.0
    if averaged:
        power = mixing @ power
    for _ in range(LASTS):
        of_own += np.sum(power**2)
        of_links += np.sum(power @ laplacian * power)
        power = mixing @ power
    left = [
        (of_own + ratio**2 * of_links) / multipliers_of(pairs, 1.0, ratio).min() ** 2
        for ratio in RATIOS
    ]
    return float(RATIOS[np.argmin(left)])


def accountant() -> str:
    """What computes epsilon, with its version. Raises InputError where it is not installed."""
    _accounting()
    return f'Renyi divergences, dp-accounting {version("dp-accounting")}'


def epsilon_of_divergence(divergence: float, delta: float) -> float:
    """Epsilon at this delta of a mechanism whose Renyi divergence of order alpha is at most alpha
    times `divergence` (Mironov 2017, Proposition 3, at the best alpha).

    >>> round(epsilon_of_divergence(2500 * 0.0006422546903435712, 1e-5), 10)
    10.2046078152
    """
    return divergence + 2 * math.sqrt(divergence * math.log(1 / delta))
