"""So2Sat LCZ42, third version, random split: satellite patches of 17 local climate zones.

Zhu et al., IEEE Geoscience and Remote Sensing Magazine 8(3), 2020. Of `training.h5` and
`testing.h5` only the chosen rows are read, and of these the ten bands of Sentinel-2.
"""

import math
from pathlib import Path
from typing import Any

import numpy as np

from dfl_jax.data.dataset import (
    DataError,
    Dataset,
    check_memory,
    choose_rows,
    folder_of,
    imported,
    reading,
)

FILES = ('training.h5', 'testing.h5')
URL = 'https://mediatum.ub.tum.de/1613658'
REMEDY = f'replace the file by the one of {URL}'
CLASSES = 17
PATCH = (32, 32, 10)  # rows, columns, bands B2 to B8, B8A, B11, B12
BLOCK = 1024  # rows read at once: 84 MB of the file's float64


def load(
    data_dir: str | Path | None, train_samples: int | None, test_samples: int | None, seed: int
) -> Dataset:
    """A seeded random subset of both sets, inputs [n, 32, 32, 10]; all where the number is None.

    Every band is shifted and scaled to mean 0 and standard deviation 1 over the training rows that
    were read: neither the data set nor the papers on it publish constants, and a network whose
    clients hold a small part of the data does not know those of the whole.
    """
    paths = _find(data_dir)
    train_x, train_y = _read(paths[0], train_samples, seed, 'training')
    test_x, test_y = _read(paths[1], test_samples, seed, 'test')
    mean = train_x.mean((0, 1, 2), dtype=np.float64).astype(np.float32)
    train_x -= mean
    square = np.einsum('nhwc,nhwc->c', train_x, train_x, dtype=np.float64)
    std = np.sqrt(square * (len(mean) / train_x.size)).astype(np.float32)
    if not std.all():
        raise DataError(
            f'{paths[0]}: sen2 does not vary in band {std.argmin()} of {len(train_y)} training '
            f'rows; {REMEDY}'
        )
    train_x /= std
    test_x -= mean
    test_x /= std
    return Dataset(train_x, train_y, test_x, test_y, CLASSES)


def _find(data_dir: str | Path | None) -> list[Path]:
    remedy = f'get them, of the random split of the third version, from {URL}'
    root = folder_of(
        data_dir,
        'so2sat is too large to be downloaded here: set data_dir to a folder that holds '
        f'{" and ".join(FILES)}; {remedy}',
    )
    home = root / 'so2sat'
    folders = (home, home / 'random', root, root / 'random')  # the archive has it in random/
    folder = next((f for f in folders if any((f / file).is_file() for file in FILES)), home)
    missing = [file for file in FILES if not (folder / file).is_file()]
    if missing:
        raise DataError(f'so2sat: {folder} lacks {" and ".join(missing)}: {remedy}')
    return [folder / file for file in FILES]


def _read(path: Path, n: int | None, seed: int, what: str) -> tuple[np.ndarray, np.ndarray]:
    """A seeded random subset of n rows, all if None: [n, 32, 32, 10] float32 and [n] int32."""
    h5py = imported('h5py', 'so2sat is read by h5py', 'h5py')
    # h5py has no exceptions of its own
    failure, anew = f'{path} is damaged or cut short', f'download it anew from {URL}'
    with reading(failure, anew, (OSError, RuntimeError)), h5py.File(path, 'r') as file:
        patches, labels = (_dataset(file, path, name) for name in ('sen2', 'label'))
        size = len(patches)
        if patches.shape != (size, *PATCH) or labels.shape != (size, CLASSES) or not size:
            raise DataError(
                f'{path}: sen2 is {patches.shape} and label is {labels.shape}, expected '
                f'[n, 32, 32, 10] and [n, {CLASSES}]; {REMEDY}'
            )
        rows = choose_rows(size, n, seed, what)
        check_memory(path, len(rows) * math.prod(PATCH) * 4)
        x = np.empty((len(rows), *PATCH), np.float32)
        y = np.empty(len(rows), np.int32)
        for start in range(0, len(rows), BLOCK):
            block = slice(start, start + BLOCK)
            x[block] = patches[rows[block]]
            y[block] = _classes(labels[rows[block]], path, rows[block])
    if not np.isfinite(x).all():
        raise DataError(f'{path}: sen2 is not finite; {REMEDY}')
    return x, y


def _dataset(file: Any, path: Path, name: str) -> Any:
    array = file.get(name)
    if getattr(array, 'shape', None) and array.dtype.kind in 'fiu':
        return array
    present = ', '.join(file) or 'nothing'
    raise DataError(f'{path} has no array of numbers {name}, only {present}; {REMEDY}')


def _classes(one_hot: np.ndarray, path: Path, rows: np.ndarray) -> np.ndarray:
    good = ((one_hot == 0) | (one_hot == 1)).all(axis=1) & (one_hot.sum(axis=1) == 1)
    if not good.all():
        raise DataError(f'{path}: label is not one-hot in row {rows[good.argmin()]}; {REMEDY}')
    return one_hot.argmax(axis=1)
