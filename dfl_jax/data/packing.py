"""From a dataset and a partition to the arrays that the simulator runs on."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from dfl_jax.base import Clients
from dfl_jax.data.formats import DataError


def pack(x: np.ndarray, y: np.ndarray, parts: Sequence[np.ndarray]) -> Clients:
    """The samples of all clients, stacked and padded to the largest client by zeros.

    Args:
      x: [n, ...], inputs; their dtype is kept.
      y: [n], integer labels.
      parts: M arrays of indices into x and y, none of them empty.

    Raises:
      DataError: no client, an empty client, or an index outside of 0 to n - 1.
    """
    sizes = np.array([len(part) for part in parts])
    if not sizes.size or not sizes.all():
        empty = np.flatnonzero(sizes == 0).tolist()
        raise DataError(f'{len(parts)} clients, empty ones {empty}: give every client a sample')
    indices = np.concatenate(parts)
    if indices.min() < 0 or indices.max() >= len(y):
        raise DataError(
            f'the clients hold the indices {indices.min()} to {indices.max()} of {len(y)} samples: '
            'use a partition of this very training set'
        )
    mask = np.arange(sizes.max()) < sizes[:, None]  # [M, N]
    packed_x = np.zeros(mask.shape + x.shape[1:], x.dtype)
    packed_y = np.zeros(mask.shape, np.int32)
    packed_x[mask], packed_y[mask] = x[indices], y[indices]
    return Clients(jnp.asarray(packed_x), jnp.asarray(packed_y), jnp.asarray(mask))
