"""Robust rules and attacks in plain NumPy, one receiver at a time, from their papers.

A receiver has vectors [n, P] of those that it heard, its own first; of b it assumes that they lie.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np


def median(vectors):
    """The middle value of every coordinate, of an even number the mean of the two middle ones."""
    return np.array([np.median(column) for column in vectors.T])


def trimmed_mean(vectors, b):
    """Yin et al. 2018, Definition 2: without the b smallest and the b largest of a coordinate.

    As in the program of He et al., b is lowered until somebody is left.
    """
    n = len(vectors)
    while n - 2 * b <= 0:
        b -= 1
    return np.array([np.mean(sorted(column)[b : n - b]) for column in vectors.T])


def geometric_median(vectors, steps, nu=0.1):
    """Pillutla, Kakade & Harchaoui 2022, Algorithm 2 (smoothed Weiszfeld), of equal weights."""
    z = np.zeros(vectors.shape[1])
    for _ in range(steps):
        betas = [1 / len(vectors) / max(nu, np.linalg.norm(z - v)) for v in vectors]
        z = sum(beta * v for beta, v in zip(betas, vectors, strict=True)) / sum(betas)
    return z


def krum_scores(vectors, b):
    """Blanchard et al. 2017, section 4: squared distances to the n - b - 2 closest others."""
    n = len(vectors)
    scores = []
    for i in range(n):
        others = sorted(np.sum((vectors[i] - vectors[j]) ** 2) for j in range(n) if j != i)
        scores.append(sum(others[: max(1, n - b - 2)]))
    return np.array(scores)


def krum(vectors, b):
    return vectors[np.argmin(krum_scores(vectors, b))]


def multi_krum(vectors, b):
    """The mean of the n - b vectors of the lowest scores."""
    order = np.argsort(krum_scores(vectors, b), kind='stable')
    return vectors[order[: max(1, len(vectors) - b)]].mean(axis=0)


def clipping(vectors, weights, tau):
    """He, Karimireddy & Jaggi, ClippedGossip: x_i + sum_j W_ij clip(x_j - x_i, tau)."""
    own = vectors[0]
    moved = own.copy()
    for vector, weight in zip(vectors[1:], weights[1:], strict=True):
        step = vector - own
        length = np.linalg.norm(step)
        moved = moved + weight * step * (min(1, tau / length) if length > 0 else 1)
    return moved


def adaptive_radius(vectors, weights):
    """tau^2 = 1/delta sum_(j in S) W_ij ||x_i - x_j||^2, S the nearest neighbours that hold half of
    the weight of all, delta the weight of the others."""
    order = sorted(range(1, len(vectors)), key=lambda j: np.linalg.norm(vectors[j] - vectors[0]))
    half, trusted, total = sum(weights[1:]) / 2, [], 0.0
    for j in order:
        if total >= half - 1e-12:
            break
        trusted.append(j)
        total += weights[j]
    others = sum(weights[j] for j in order if j not in trusted)
    if others <= 0:
        return np.inf
    squares = sum(weights[j] * np.sum((vectors[j] - vectors[0]) ** 2) for j in trusted)
    return np.sqrt(squares / others)


def nearest_mixed(vectors, b):
    """Allouah et al. 2023, nearest neighbour mixing: each vector becomes the mean of the n - b
    nearest to it, itself among them; then their trimmed mean."""
    n = len(vectors)
    mixed = []
    for i in range(n):
        order = np.argsort([np.sum((v - vectors[i]) ** 2) for v in vectors], kind='stable')
        mixed.append(vectors[order[: n - min(b, (n - 1) // 2)]].mean(axis=0))
    return trimmed_mean(np.array(mixed), b)


def nearest_to_own(vectors, b):
    """Farhadkhani et al. 2023 (MoNNA): the mean of the n - b nearest to its own, which is one."""
    order = np.argsort([np.sum((v - vectors[0]) ** 2) for v in vectors], kind='stable')
    n = len(vectors)
    return vectors[order[: n - min(b, (n - 1) // 2)]].mean(axis=0)


def mozi(vectors, loss, rho, epsilon):
    """Guo et al. 2021: of the share rho of neighbours that are nearest those whose loss is lower
    than its own by epsilon, else the one of the lowest; the mean of their mean and its own."""
    own, others = vectors[0], list(vectors[1:])
    others.sort(key=lambda v: np.linalg.norm(v - own))
    near = [v for v in others[: max(1, int(rho * len(others)))] if np.isfinite(loss(v))]
    if not near:
        return own
    chosen = [v for v in near if loss(v) <= loss(own) - epsilon] or [min(near, key=loss)]
    return 0.5 * own + 0.5 * np.mean(chosen, axis=0)


# --------------------------------------------------------------------------------------- attacks


def alie(vectors, lies, z):
    """Baruch et al. 2019: mean - z std of what the honest send, the receiver's own among it."""
    honest = vectors[~lies]
    deviation = honest.std(axis=0, ddof=1) if len(honest) > 1 else 0 * honest[0]
    return honest.mean(axis=0) - z * deviation


def inner_product(vectors, lies, epsilon):
    """Xie, Koyejo & Gupta 2020: -epsilon times the mean of what the honest send."""
    return -epsilon * vectors[~lies].mean(axis=0)


def dissensus(vectors, lies, weights, epsilon, own=None):
    """He, Karimireddy & Jaggi: x_i - epsilon sum_(honest j) W_ij (x_j - x_i) / sum_(liars) W_ij.

    own: x_i; None for the first vector.
    """
    own, pull = vectors[0] if own is None else own, np.zeros_like(vectors[0])
    for vector, lie, weight in zip(vectors, lies, weights, strict=True):
        if not lie:
            pull = pull + weight * (vector - own)
    return own - epsilon * pull / sum(weights[lies])


class Liars(NamedTuple):
    """Clients that lie, and what they say."""

    attackers: np.ndarray  # [M] bool
    # (vectors [n, P] of honest members and of liars, lies [n] bool, weights [n], the receiver's own
    # vector [P]) -> what liars say, [P]
    lie: Callable

    def heard(self, members, vectors, weights=None, own=None):
        """What a client, the first of the members, hears of all of them, [n, P]."""
        lies = self.attackers[[*members]]
        if lies[0] or not lies.any():
            return vectors
        told = vectors.copy()
        told[lies] = self.lie(vectors, lies, weights, vectors[0] if own is None else own)
        return told
