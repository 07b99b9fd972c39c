"""Samples that a client keeps from training, to measure its local performance."""

import numpy as np

from dfl_jax.data.label_skew import PartitionError


def split_validation(
    parts: list[np.ndarray], share: float, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Each client's samples, split at random into training and validation.

    DFML (section 4.1) takes share = 0.2. The nearest whole number of a client's samples validates,
    but at least one trains, so that a client of a single sample has an empty validation set. The
    split of client i follows from seed, i and its samples; both halves keep the client's order.

    Args:
      parts: M arrays [n_i] of indices, none of them empty.
      share: of a client's samples that validate, in [0, 1).
      seed: at least 0.

    Returns the training and the validation indices, M arrays each.

    Raises:
      PartitionError: a share out of range.
    """
    if not 0 <= share < 1:
        raise PartitionError(f'the validation share is {share}: use 0 or more and less than 1')
    training, validation = [], []
    for part, stream in zip(parts, np.random.SeedSequence(seed).spawn(len(parts)), strict=True):
        n = len(part)
        validates = np.zeros(n, bool)
        size = min(int(share * n + 0.5), n - 1)
        validates[np.random.default_rng(stream).permutation(n)[:size]] = True
        training.append(part[~validates])
        validation.append(part[validates])
    return training, validation
