"""Rewiring towards a wanted degree assortativity rho (Initialisation and topology, 4.2).

That is the correlation of the degrees at the two ends of a link, in [-1, 1].
"""

import numpy as np

from dfl_jax.setting_error import SettingError
from dfl_jax.topology.family_settings import check_assortativity

SWEEPS = 100  # the most that are tried, each of E swaps at one temperature
COOLING = 0.93  # factor of the temperature from one sweep to the next


def rewire(
    links: np.ndarray, target: float, rng: np.random.Generator, *, tolerance: float = 0.01
) -> np.ndarray:
    """The links with ends of random pairs swapped until the assortativity is near the target.

    Simulated annealing: a swap of (a, b), (c, d) into (a, d), (c, b) that leads away from the
    target is accepted with probability exp(-change / temperature). It keeps every degree and makes
    no self-loop or repeated link. It can disconnect the graph: nothing here prevents that.

    Args:
      links: [E, 2] integer, undirected; repeated links count once.
      target: of the degree assortativity, in [-1, 1].
      rng: of the swaps.
      tolerance: the largest distance from the target that is near enough.

    Returns:
      links [E, 2] int32, each once.

    Raises:
      SettingError: a target outside [-1, 1], a graph whose degrees are all equal, or a target that
        is not reached, with the closest value that was.
    """
    check_assortativity(target)
    links = np.unique(np.sort(links, axis=1), axis=0).astype(np.int32)
    degrees = np.bincount(links.ravel())
    at_ends = degrees[links].astype(np.int64)  # [E, 2]
    if not at_ends.size or not at_ends.var():
        raise SettingError.of(
            f'a graph of {len(links)} links whose degrees are all equal has no assortativity to '
            f'bring to {target}; leave it out or take a family of unequal degrees',
            assortativity=target,
        )
    mean, variance = float(at_ends.mean()), float(at_ends.var())
    # rho is linear in the sum of k_i k_j over the links, which a swap changes by one product.
    scale = len(links) * variance
    goal = target * scale + len(links) * mean**2
    total = nearest = int(at_ends.prod(axis=1).sum())
    near = tolerance * scale
    k, ends = degrees.tolist(), links.tolist()
    neighbours: list[set[int]] = [set() for _ in k]
    for a, b in ends:
        neighbours[a].add(b)
        neighbours[b].add(a)
    temperature = 2 * variance  # a swap of four random ends changes the sum by so much, rms
    for _ in range(SWEEPS):
        pairs = rng.integers(len(ends), size=(len(ends), 2)).tolist()
        flips = (rng.random(len(ends)) < 0.5).tolist()
        slacks = rng.exponential(temperature, len(ends)).tolist()
        for (first, second), flip, slack in zip(pairs, flips, slacks, strict=True):
            distance = abs(total - goal)
            if distance <= near:
                break
            a, b = ends[first]
            c, d = reversed(ends[second]) if flip else ends[second]
            after = total + (k[a] - k[c]) * (k[d] - k[b])
            if abs(after - goal) - distance > slack:
                continue
            if a == d or b == c or d in neighbours[a] or b in neighbours[c]:
                continue
            ends[first], ends[second], total = [a, d], [c, b], after
            for end, old, new in ((a, b, d), (b, a, c), (c, d, b), (d, c, a)):
                neighbours[end].remove(old)
                neighbours[end].add(new)
            if abs(total - goal) < abs(nearest - goal):
                nearest = total
        if abs(total - goal) <= near:
            return np.array(ends, np.int32)
        temperature *= COOLING
    closest = (nearest - len(ends) * mean**2) / scale
    raise SettingError.of(
        f'assortativity {target} was not reached within {SWEEPS * len(ends)} swaps of '
        f'{len(ends)} links, the closest was {closest:.4f}; take a target nearer to that',
        assortativity=target,
    )
