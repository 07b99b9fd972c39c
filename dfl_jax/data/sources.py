"""Training and test sets as NumPy arrays, by name.

What is small or made on the spot is here; every other kind of file has a module of its own.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from dfl_jax.data import image_folder, npz, official, so2sat, tabular
from dfl_jax.data.formats import DataError, Dataset, choose_rows
from dfl_jax.host import expand
from dfl_jax.tasks import CLASSIFICATION, Task

# And any path that ends in one of FILES
DATASETS = ('digits', 'synthetic', *official.SOURCES, 'so2sat', 'image_folder')
FILES = ('.npz', *tabular.SUFFIXES)


def load(
    name: str,
    data_dir: str | Path | None = None,
    *,
    train_samples: int | None = None,
    test_samples: int | None = None,
    seed: int = 0,
    image_size: int | None = None,
    task: Task = CLASSIFICATION,
    columns: Mapping[str, str] | None = None,
    test_share: float | None = None,
    progress: bool = False,
) -> Dataset:
    """A dataset by name, or a seeded random subset of it.

    `digits` is scikit-learn's bundled set (8x8 images) and `synthetic` is made on the spot; neither
    reads a file. The others are read from `data_dir/NAME/` or from `data_dir` itself, and what is
    missing is downloaded into `data_dir/NAME/`. `mnist` knows its writers where the folder also
    holds `train-writer-ids.npy` ([n] integers, the NIST writers as in QMNIST). `so2sat` needs h5py
    and its files in place, and reads no more of them than the subset. `image_folder` needs Pillow
    and reads data_dir/CLASS, or data_dir/train/CLASS and data_dir/test/CLASS.

    Args:
      name: one of `DATASETS`, or the path of an `.npz` file with the arrays train_x [n, ...],
        train_y [n], test_x and test_y, as by `npz.load`, or of a table, `.csv` or `.parquet`, as
        by `tabular.load`.
      data_dir: an existing folder; default, the user's cache folder.
      train_samples, test_samples, seed: a subset as by `subsample`; default, all. `so2sat` is
        normalised by the training samples of the subset, all others by those of the whole set.
      image_size: S of the inputs [n, S, S, 3] of `image_folder`; default, 64.
      task: what the targets of a file are: [n] labels, or what another task takes, [n, ...]; the
        datasets with names are of classification.
      columns: what the columns of a table are, {role: name}; the roles are those of the reader.
      test_share: of the samples of a table that are the test set; default, 0.2.
      progress: for `image_folder`, show a progress bar when reading takes more than a second.

    Raises:
      DataError: unknown name, no such folder, files missing and not to be had, damaged files, a
        subset larger than the set, or an argument that is for other datasets.
    """
    name = str(name)
    if task is not CLASSIFICATION and not name.endswith(FILES):
        raise DataError(
            f'{name} has classes, not the targets of {task.name}: give a file with these '
            f'({", ".join(FILES)}), or leave the task at classification'
        )
    if not name.endswith(tabular.SUFFIXES):
        for what, value in (('columns', columns), ('test_share', test_share)):
            if value is not None:
                raise DataError(f'{what} is for tables, got {name}: drop it')
    if name == 'image_folder':
        whole = image_folder.load(data_dir, image_size, progress=progress)
        return subsample(whole, train_samples, seed, test_samples)
    if image_size is not None:
        raise DataError(f'image_size is for image_folder only, got {name}: drop it')
    if name == 'so2sat':
        return so2sat.load(data_dir, train_samples, test_samples, seed)
    if name.endswith(tabular.SUFFIXES):
        whole = tabular.load(expand(name), columns or {}, test_share, task)
    else:
        whole = _load(name, data_dir, task)
    return subsample(whole, train_samples, seed, test_samples)


def subsample(
    dataset: Dataset, n: int | None, seed: int, test_samples: int | None = None
) -> Dataset:
    """A seeded random subset of n samples of the training set, and of the test set if asked for.

    Subsets of one seed are nested: the n samples are among those of every larger n. They keep the
    order of the dataset. None means all.

    Raises:
      DataError: less than 1, or more than there are samples.
    """
    if n is not None:
        chosen = choose_rows(len(dataset.train_y), n, seed)
        dataset = dataset._replace(
            train_x=dataset.train_x[chosen],
            train_y=dataset.train_y[chosen],
            owners=None if dataset.owners is None else dataset.owners[chosen],
        )
    if test_samples is not None:
        chosen = choose_rows(len(dataset.test_y), test_samples, seed, 'test')
        dataset = dataset._replace(test_x=dataset.test_x[chosen], test_y=dataset.test_y[chosen])
    return dataset


def _load(name: str, data_dir: str | Path | None, task: Task) -> Dataset:
    if name == 'digits':
        return _digits()
    if name == 'synthetic':
        return synthetic()
    if name.endswith('.npz'):
        return npz.load(expand(name), task)
    if name not in official.SOURCES:
        raise DataError(
            f'unknown dataset {name!r}: use one of {", ".join(DATASETS)}, or a {", ".join(FILES)}'
        )
    return official.load(name, data_dir)


def synthetic(
    train: int = 4000, test: int = 1000, features: int = 32, classes: int = 10, spread: float = 0.6
) -> Dataset:
    """Gaussian clusters of unit variance, one a class, always the same ones.

    Args:
      train, test: number of samples, about equally many a class.
      features: length of an input.
      classes: number of clusters.
      spread: standard deviation of the cluster centres along each axis; larger is easier.
    """
    rng = np.random.default_rng(0)
    centres = spread * rng.standard_normal((classes, features))
    y = rng.permutation(np.arange(train + test) % classes)
    x = centres[y] + rng.standard_normal((train + test, features))
    return _standardised(x[:train], y[:train], x[train:], y[train:], classes)


def _digits() -> Dataset:
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    bunch = load_digits()
    x, y = bunch.images[..., None] / 16, bunch.target
    train_x, test_x, train_y, test_y = train_test_split(
        x, y, test_size=0.2, random_state=0, stratify=y
    )
    return _standardised(train_x, train_y, test_x, test_y, 10)


def _standardised(train_x, train_y, test_x, test_y, classes: int) -> Dataset:
    mean, std = train_x.mean(), train_x.std()
    return Dataset(
        ((train_x - mean) / std).astype(np.float32),
        train_y.astype(np.int32),
        ((test_x - mean) / std).astype(np.float32),
        test_y.astype(np.int32),
        classes,
    )
