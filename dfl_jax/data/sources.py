"""Training and test sets as NumPy arrays.

What is small or made on the spot is here; the official files of the image sets are read and
downloaded by `official`, So2Sat and folders of images have modules of their own.
"""

import math
import zipfile
from pathlib import Path

import numpy as np

from dfl_jax.data import image_folder, official, so2sat
from dfl_jax.data.formats import DataError, Dataset, check_memory, choose_rows, one_line
from dfl_jax.host import check_file, expand
from dfl_jax.tasks import CLASSIFICATION, Task

NPZ = ('train_x', 'train_y', 'test_x', 'test_y')
# And any path that ends in .npz
DATASETS = ('digits', 'synthetic', *official.SOURCES, 'so2sat', 'image_folder')


def load(
    name: str,
    data_dir: str | Path | None = None,
    *,
    train_samples: int | None = None,
    test_samples: int | None = None,
    seed: int = 0,
    image_size: int | None = None,
    task: Task = CLASSIFICATION,
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
        train_y [n], test_x and test_y. uint8 inputs are scaled to [0, 1]; other inputs are taken
        as they are.
      data_dir: an existing folder; default, the user's cache folder.
      train_samples, test_samples, seed: a subset as by `subsample`; default, all. `so2sat` is
        normalised by the training samples of the subset, all others by those of the whole set.
      image_size: S of the inputs [n, S, S, 3] of `image_folder`; default, 64.
      task: what train_y and test_y of an `.npz` are: [n] labels, or what another task takes,
        [n, ...]; all other datasets are of classification.
      progress: for `image_folder`, show a progress bar when reading takes more than a second.

    Raises:
      DataError: unknown name, no such folder, files missing and not to be had, damaged files, a
        subset larger than the set, or an image_size with another dataset.
    """
    if task is not CLASSIFICATION and not str(name).endswith('.npz'):
        raise DataError(
            f'{name} has classes, not the targets of {task.name}: give a .npz with these, or leave '
            'the task at classification'
        )
    if name == 'image_folder':
        whole = image_folder.load(data_dir, image_size, progress=progress)
        return subsample(whole, train_samples, seed, test_samples)
    if image_size is not None:
        raise DataError(f'image_size is for image_folder only, got {name}: drop it')
    if name == 'so2sat':
        return so2sat.load(data_dir, train_samples, test_samples, seed)
    return subsample(_load(name, data_dir, task), train_samples, seed, test_samples)


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
            writers=None if dataset.writers is None else dataset.writers[chosen],
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
    if str(name).endswith('.npz'):
        return _npz(expand(name), task)
    if name not in official.SOURCES:
        raise DataError(f'unknown dataset {name!r}: use one of {", ".join(DATASETS)}, or FILE.npz')
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


def _npz(path: Path, task: Task) -> Dataset:
    arrays = _arrays_of(path)
    for which, x, y in (('train', *arrays[:2]), ('test', *arrays[2:])):
        same = x.shape[:1] == y.shape[:1] and x.shape[1:] == arrays[0].shape[1:]
        axes = y.ndim - 1 in task.target_axes and y.shape[1:] == arrays[1].shape[1:]
        if x.ndim < 2 or not same or not axes or not y.size:
            targets = '[n] labels' if task is CLASSIFICATION else f'the targets of {task.name}'
            raise DataError(
                f'{path}: {which}_x is {x.shape} and {which}_y is {y.shape}: give [n, ...] inputs, '
                f'of one shape in training and test set, and {targets}, n at least 1'
            )
        if not x.size:
            raise DataError(f'{path}: {which}_x is {x.shape}, inputs without a feature: give some')
    outputs = _classes if task.whole_targets else _numbers
    classes = outputs(path, arrays[1], arrays[3])
    check_memory(path, 4 * sum(x.size for x in arrays[::2]))
    dtypes = [x.dtype for x in arrays[::2]]
    if (dtypes[0] == np.uint8) != (dtypes[1] == np.uint8):
        raise DataError(
            f'{path}: train_x is {dtypes[0]} and test_x {dtypes[1]}, and only uint8 is scaled to '
            '[0, 1]: give both in one dtype'
        )
    train_x, test_x = (
        _inputs(path, f'{which}_x', x)
        for which, x in zip(('train', 'test'), arrays[::2], strict=True)
    )
    kind = np.int32 if task.whole_targets else np.float32
    train_y, test_y = (y.astype(kind) for y in arrays[1::2])
    return Dataset(train_x, train_y, test_x, test_y, classes)


def _classes(path: Path, *targets: np.ndarray) -> int:
    """How many classes, or tokens, there are. Raises DataError for what are none."""
    for which, y in zip(('train', 'test'), targets, strict=True):
        if y.dtype.kind not in 'iu' or y.min() < 0:
            given = f'{y.dtype}, the least {y.min()}' if y.dtype.kind in 'iu' else y.dtype
            raise DataError(
                f'{path}: {which}_y must be integers from 0 to classes - 1, found {given}'
            )
    # In Python's integers: labels of 64 bits must not wrap, nor 10**9 of them be allocated for.
    classes, samples = 1 + max(int(y.max()) for y in targets), sum(y.size for y in targets)
    if classes > samples:
        raise DataError(
            f'{path}: the largest label is {classes - 1}, which makes more classes than the '
            f'{samples} samples; number the classes from 0'
        )
    return classes


def _numbers(path: Path, *targets: np.ndarray) -> int:
    """How many numbers a target has. Raises DataError for what are no finite numbers."""
    for which, y in zip(('train', 'test'), targets, strict=True):
        if y.dtype.kind not in 'biuf' or not np.isfinite(y).all():
            raise DataError(f'{path}: {which}_y ({y.dtype}) must be finite real numbers')
    return math.prod(targets[0].shape[1:])


def _arrays_of(path: Path) -> list[np.ndarray]:
    """The arrays NPZ of the file, which is never unpickled and fits into the memory."""
    how = f'write it with np.savez(FILE, {", ".join(f"{name}=..." for name in NPZ)})'
    try:
        check_file(path)
        with zipfile.ZipFile(path) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
    except Exception as error:
        raise DataError(f'cannot read {path} as a .npz ({one_line(error)}): {how}') from None
    lacking = [name for name in NPZ if f'{name}.npy' not in sizes]
    if lacking:
        present = ', '.join(name.removesuffix('.npy') for name in sizes)
        raise DataError(
            f'{path} lacks {", ".join(lacking)} and holds {present[:200] or "nothing"}: {how}'
        )
    check_memory(path, sum(sizes[f'{name}.npy'] for name in NPZ))
    try:
        with np.load(path) as file:
            return [file[name] for name in NPZ]
    except Exception as error:  # numpy, zipfile and zlib each have their own
        raise DataError(
            f'cannot read {", ".join(NPZ)} from {path} ({one_line(error)}): {how}'
        ) from None


def _inputs(path: Path, name: str, x: np.ndarray) -> np.ndarray:
    if x.dtype.kind in 'fiu':
        with np.errstate(over='ignore'):
            inputs = x.astype(np.float32)
        if x.dtype == np.uint8:
            inputs /= 255
        if np.isfinite(inputs).all():
            return inputs
    raise DataError(f'{path}: {name} ({x.dtype}) must be finite real numbers, as float32 holds')
