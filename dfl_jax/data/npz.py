"""Training and test sets in one .npz file."""

import math
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dfl_jax.data.dataset import (
    DataError,
    Dataset,
    check_classes,
    check_memory,
    number_names,
    reading,
)
from dfl_jax.files import check_file
from dfl_jax.tasks import CLASSIFICATION, Task

NPZ = ('train_x', 'train_y', 'test_x', 'test_y')
CLIENT = 'client'  # and perhaps this array
MOST_CHANNELS = 4  # of an image: grey, RGB, either with alpha
LARGEST_SPREAD = 10.0  # of scaled inputs; pixels from 0 to 255 have about 70


def load(path: Path, task: Task = CLASSIFICATION) -> Dataset:
    """The data set of the arrays `NPZ` in a file.

    train_x is [n, ...] and train_y [n] labels, or the targets of another task, [n, ...]; uint8
    inputs are scaled to [0, 1], other inputs are taken as they are, if `check_inputs` lets them. An
    array client [n], of whole numbers or texts, says whose each training sample is.

    Raises:
      DataError: a file that is none, arrays that are missing, or do not fit each other or the task.
    """
    return from_arrays(*_arrays_of(path), path, task)


def from_arrays(
    arrays: Sequence[np.ndarray],
    client: np.ndarray | None,
    path: object,
    task: Task = CLASSIFICATION,
) -> Dataset:
    """The data set of the arrays train_x, train_y, test_x and test_y, as in `load`.

    Args:
      arrays: the four of them.
      client: [n] whole numbers or texts, whose each training sample is; None, not known.
      path: where they come from, for messages.
    """
    train_x, train_y, test_x, test_y = arrays
    for which, x, y in (('train', train_x, train_y), ('test', test_x, test_y)):
        same = x.shape[:1] == y.shape[:1] and x.shape[1:] == train_x.shape[1:]
        axes = y.ndim - 1 in task.target_axes and y.shape[1:] == train_y.shape[1:]
        if x.ndim < 2 or not same or not axes or not y.size:
            targets = '[n] labels' if task.of_classes else f'the targets of {task.name}'
            raise DataError(
                f'{path}: {which}_x is {x.shape} and {which}_y is {y.shape}: give [n, ...] inputs, '
                f'of one shape in training and test set, and {targets}, n at least 1'
            )
        if not x.size:
            raise DataError(f'{path}: {which}_x is {x.shape}, inputs without a feature: give some')
    if task.whole_targets:
        classes = _classes(path, train_y, test_y)
        y = [each.astype(np.int32) for each in (train_y, test_y)]
    else:
        y = [_finite(path, 'train_y', train_y), _finite(path, 'test_y', test_y)]
        classes = math.prod(train_y.shape[1:])
    check_memory(path, 4 * (train_x.size + test_x.size))
    if (train_x.dtype == np.uint8) != (test_x.dtype == np.uint8):
        raise DataError(
            f'{path}: train_x is {train_x.dtype} and test_x {test_x.dtype}, and only uint8 is '
            'scaled to [0, 1]: give both in one dtype'
        )
    x = [_finite(path, 'train_x', train_x), _finite(path, 'test_x', test_x)]
    if train_x.dtype == np.uint8:
        for inputs in x:
            inputs /= 255
    for targets in y:
        check_targets(path, task, targets)
    if not task.sequences:
        for name, inputs in zip(('train_x', 'test_x'), x, strict=True):
            check_inputs(f'{path}: {name}', inputs)
        if task.whole_targets:
            check_classes(path, *y)
    return Dataset(x[0], y[0], x[1], y[1], classes, _owners(path, client, len(train_y)))


def check_dataset(given: object, origin: object, task: Task = CLASSIFICATION) -> Dataset:
    """The data set that a loader of others returned, its arrays [n, ...] checked as in `load`.

    origin: the loader, for messages.

    Raises:
      DataError: what is no data set, or has more classes than it says.
    """
    if not isinstance(given, Dataset):
        raise DataError(f'{origin} returns {type(given).__name__}, not a dfl_jax.data.Dataset')
    arrays, owners = [np.asarray(array) for array in given[:4]], given.owners
    owners = None if owners is None else np.asarray(owners)
    found = from_arrays(arrays, owners, origin, task)
    if not found.classes <= given.classes:
        raise DataError(
            f'{origin} says that it has {given.classes} classes, and has {found.classes}'
        )
    return found._replace(classes=given.classes)


def check_inputs(what: str, x: np.ndarray) -> None:
    """Raises DataError for images [n, ...] in another layout than [n, H, W, channels], and for
    inputs of several axes that are not scaled; warns where a plain list of numbers is not.

    what: names the inputs x, of the training set.
    """
    # No network is told which axis is which: three rows of 32 pixels with 32 channels would train
    first, rows, columns = x.shape[1:] if x.ndim == 4 else (0, 0, 0)
    square = rows == columns != first
    if min(rows, columns) > MOST_CHANNELS and (first <= MOST_CHANNELS or square):
        raise DataError(
            f'{what} is {x.shape}, [n, channels, H, W] as it seems, and images are [n, H, W, '
            'channels]: give x.transpose(0, 2, 3, 1)'
        )
    spread = float(x.std(dtype=np.float64))
    if spread <= LARGEST_SPREAD:
        return
    unscaled = (
        f'{what} has values from {x.min():g} to {x.max():g}, with a standard deviation of '
        f'{spread:.3g}, and only pixels of type uint8 are scaled'
    )
    remedy = 'give such, or scale the inputs to a standard deviation of about 1'
    if x.ndim > 2:
        raise DataError(f'{unscaled}: {remedy}')
    warnings.warn(f'{unscaled}; {remedy} if the clients do not learn', stacklevel=2)


def check_targets(origin: object, task: Task, y: np.ndarray) -> None:
    """Raises DataError for targets that are not 0 or 1 where they have to be."""
    if task.binary_targets and (wrong := ~np.isin(y, (0, 1))).any():
        found = f'{y[wrong][0]:g}'
        raise DataError(f'{origin}: the targets of {task.name} must be 0 or 1, found {found}')


def _owners(path: object, client: np.ndarray | None, n: int) -> np.ndarray | None:
    """The natural client of each training sample, [n] int32; None where the file does not say."""
    if client is None:
        return None
    if client.shape != (n,) or client.dtype.kind not in 'iuU':
        raise DataError(
            f'{path}: client is {client.shape} {client.dtype}, and must be ({n},) whole numbers or '
            'texts, one a training sample'
        )
    return number_names(client)


def _classes(path: object, *targets: np.ndarray) -> int:
    """How many classes, or tokens, there are. Raises DataError for what are none."""
    for which, y in zip(('train', 'test'), targets, strict=True):
        if y.dtype.kind not in 'biu' or y.min() < 0:
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


def _finite(path: object, name: str, array: np.ndarray) -> np.ndarray:
    """The numbers of an array in float32. Raises DataError for what are no finite numbers."""
    if array.dtype.kind in 'biuf':
        with np.errstate(over='ignore'):
            numbers = array.astype(np.float32)
        if np.isfinite(numbers).all():
            return numbers
    raise DataError(f'{path}: {name} ({array.dtype}) must be finite real numbers, as float32 holds')


def _arrays_of(path: Path) -> tuple[list[np.ndarray], np.ndarray | None]:
    """The arrays NPZ of the file, which is never unpickled and fits into the memory; and CLIENT."""
    how = f'write it with np.savez(FILE, {", ".join(f"{name}=..." for name in NPZ)})'
    with reading(f'cannot read {path} as a .npz', how):
        check_file(path)
        with zipfile.ZipFile(path) as archive:
            sizes = {info.filename: info.file_size for info in archive.infolist()}
    missing = [name for name in NPZ if f'{name}.npy' not in sizes]
    if missing:
        present = ', '.join(name.removesuffix('.npy') for name in sizes)
        raise DataError(
            f'{path} lacks {", ".join(missing)} and holds {present[:200] or "nothing"}: {how}'
        )
    check_memory(path, sum(sizes.get(f'{name}.npy', 0) for name in (*NPZ, CLIENT)))
    with reading(f'cannot read {", ".join(NPZ)} from {path}', how), np.load(path) as file:
        return [file[name] for name in NPZ], file.get(CLIENT)
