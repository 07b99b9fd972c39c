"""Training data of clients that lie about their labels."""

from collections.abc import Sequence

import numpy as np

from dfl_jax.base import Clients

Seed = int | Sequence[int]

POISONS = ('label_flip', 'random_labels')


def poisoned(
    kind: str, clients: Clients, liars: np.ndarray, classes: int, seed: Seed = 0
) -> Clients:
    """The data of a network in which some clients train on other labels than the true ones.

    Args:
      kind: `label_flip`, C - 1 - y in place of y; or `random_labels`, drawn anew for each sample.
      clients: whose targets are classes, [M, N] whole numbers.
      liars: [M] bool.
      classes: C.
      seed: of random labels.

    >>> clients = Clients(np.zeros((2, 3, 1)), np.array([[0, 1, 2]] * 2), np.ones((2, 3), bool))
    >>> poisoned('label_flip', clients, np.array([False, True]), 3).y.tolist()
    [[0, 1, 2], [2, 1, 0]]
    """
    y = np.asarray(clients.y)
    if kind == 'label_flip':
        other = classes - 1 - y
    else:
        other = np.random.default_rng(seed).integers(classes, size=y.shape, dtype=y.dtype)
    return clients._replace(y=np.where(np.asarray(liars)[:, None], other, y))
