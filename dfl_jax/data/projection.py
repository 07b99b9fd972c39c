"""A random projection of the inputs that all clients share (NTK-DFL, appendix E.3)."""

import math

import numpy as np

from dfl_jax.data.dataset import Dataset
from dfl_jax.setting_error import SettingError


def projection_matrix(features: int, dimensions: int, seed: int) -> np.ndarray:
    """P [d1, d1'] float32 with entries N(0, 1/d1'), so that E[<x P, y P>] = <x, y>.

    Args:
      features: d1, the length of a flattened input.
      dimensions: d1', the length of a projected one.
      seed: common to all clients, every one of which therefore knows P.

    Raises SettingError for dimensions outside [1, d1].
    """
    if not 1 <= dimensions <= features:
        raise SettingError.of(
            f'projection to {dimensions} dimensions of inputs with {features} features: '
            f'choose from 1 to {features}',
            dimensions=dimensions,
        )
    rng = np.random.default_rng(seed)
    entries = rng.standard_normal((features, dimensions), np.float32)
    return entries / np.float32(math.sqrt(dimensions))


def project(dataset: Dataset, dimensions: int, seed: int) -> Dataset:
    """The data set with its inputs [n, ...] flattened to [n, d1] and projected, Z = X P [n, d1'].

    Raises SettingError for dimensions outside [1, d1].
    """
    matrix = projection_matrix(math.prod(dataset.train_x.shape[1:]), dimensions, seed)
    train, test = (x.reshape(len(x), -1) @ matrix for x in (dataset.train_x, dataset.test_x))
    return dataset._replace(train_x=train, test_x=test)
