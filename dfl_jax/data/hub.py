"""Data sets in the format of Hugging Face's library `datasets`, by name or from a folder.

Axis letters: n samples, S rows and columns of an image.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dfl_jax.data import tabular
from dfl_jax.data.formats import (
    DataError,
    Dataset,
    check_classes,
    check_memory,
    held_out,
    imported,
    normalised,
    numbered,
    one_line,
)
from dfl_jax.data.image_folder import SIZES, channel_moments
from dfl_jax.host import expand
from dfl_jax.tasks import CLASSIFICATION, Task

PREFIX = 'hf:'
ROLES = ('input', 'target', 'client')
SPLIT = 'split of the data set'  # the column that a table is given
BILINEAR = 2  # of Pillow, as in image_folder
Table = Any  # datasets.Dataset


def load(
    name: str,
    columns: Mapping[str, str],
    test_share: float | None = None,
    image_size: int | None = None,
    task: Task = CLASSIFICATION,
    *,
    progress: bool = False,
) -> Dataset:
    """The data set of a repository on the hub, or of a folder in one of the library's formats.

    Needs the package datasets, of version 4 at least, which runs no code of a data set. What was
    downloaded once is read from its cache. The splits train and test are taken as they are; without
    test, validation is the test set, and without that a random share of the samples.

    The input is the column of that role, or the one that holds images. Images become [n, S, S,
    channels] as by `image_folder`, grey ones with one channel; lists of numbers are taken as they
    are. Where there is neither, all columns are a table, as by `tabular.from_frame`.

    Args:
      name: of a repository, NAME or NAME:CONFIGURATION; or the path of a folder, written by
        save_to_disk or with the files of a data set, such as train.parquet and test.parquet.
      columns: `input`, `target` (default: the one column of class labels) and `client`, whose
        values are the natural clients; those of `tabular.from_frame` for a table.
      test_share: of the samples that are the test set where there is no such split; default, 0.2.
      image_size: S to which images are brought; default, the size that all have.
      progress: show the library's progress bars.

    Raises:
      DataError: no such data set, folder, split or column, or values that fit neither.
    """
    train, test = _splits(name, progress)
    if test is not None and test_share is not None:
        raise DataError(f'{name} has a test set of its own: drop the test share of {test_share}')
    given = _input(name, train, columns)
    if given is None:
        if image_size is not None:
            raise DataError(f'{name} has no images: drop image_size')
        return _of_table(name, train, test, columns, test_share, task)
    if strangers := sorted(set(columns) - set(ROLES)):
        raise DataError(
            f'columns {strangers[0]}={columns[strangers[0]]}: {name} has the roles '
            f'{", ".join(ROLES)}'
        )
    check_classes(f'{name}: {given}', task, 'leave the task out')
    target = _target(name, train, columns)
    tables = [train] if test is None else [train, test]
    labels = [value for table in tables for value in table[target]]
    client = _present(name, train, columns['client']) if 'client' in columns else None
    owners = numbered([str(value) for value in train[client]]) if client else None
    y, classes = _classes(name, target, train.features[target], labels)
    if test is None:
        testing = held_out(len(labels), test_share, name)
        owners = owners if owners is None else owners[~testing]
    else:
        testing = np.arange(len(labels)) >= len(train)
    x = _inputs(name, tables, given, image_size, testing)
    return Dataset(x[~testing], y[~testing], x[testing], y[testing], classes, owners)


def _splits(name: str, progress: bool) -> tuple[Table, Table | None]:
    """The training and the test set; None where there is none."""
    datasets = imported('datasets', 'hf: is read by the package datasets', 'datasets pillow')
    if not progress:
        datasets.disable_progress_bars()
    folder = expand(name)
    try:
        if (folder / 'dataset_dict.json').is_file() or (folder / 'state.json').is_file():
            found = datasets.load_from_disk(folder)
        elif folder.is_dir():
            found = datasets.load_dataset(str(folder))
        else:
            repository, _, configuration = name.partition(':')
            found = datasets.load_dataset(repository, configuration or None)
    except Exception as error:  # of the network, the hub, pyarrow: each has its own
        raise DataError(
            f'cannot load {name} by the package datasets ({one_line(error)}): give NAME or '
            'NAME:CONFIGURATION of the hub, or a folder'
        ) from None
    if not isinstance(found, datasets.DatasetDict):
        return found, None
    if 'train' not in found:
        raise DataError(f'{name} has the splits {", ".join(found)}, and none is train')
    return found['train'], found.get('test', found.get('validation'))


def _input(name: str, table: Table, columns: Mapping[str, str]) -> str | None:
    """The column of the inputs, None where all columns are a table."""
    if 'input' in columns:
        return _present(name, table, columns['input'])
    images = _columns(table, 'Image')
    if len(images) > 1:
        raise DataError(
            f'{name} has images in {", ".join(images)}: choose one by columns input=NAME'
        )
    return images[0] if images else None


def _target(name: str, table: Table, columns: Mapping[str, str]) -> str:
    """The column of the labels."""
    if 'target' in columns:
        return _present(name, table, columns['target'])
    labels = _columns(table, 'ClassLabel')
    if len(labels) != 1:
        raise DataError(
            f'{name}: name the column of the classes by columns target=NAME; it has '
            f'{", ".join(table.column_names)}'
        )
    return labels[0]


def _present(name: str, table: Table, column: str) -> str:
    if column not in table.column_names:
        raise DataError(
            f'{name} has no column {column}; it has {", ".join(table.column_names)[:300]}'
        )
    return column


def _columns(table: Table, kind: str) -> list[str]:
    """The columns of images (kind Image) or of labels (ClassLabel)."""
    return [each for each in table.column_names if type(table.features[each]).__name__ == kind]


def _classes(name: str, target: str, feature: Any, labels: list[Any]) -> tuple[np.ndarray, int]:
    """Classes [n] int32 of the labels, and how many there are."""
    if any(not isinstance(label, int | str) for label in labels):
        raise DataError(f'{name}: the target {target} must be classes: whole numbers or texts')
    if type(feature).__name__ != 'ClassLabel':
        y = numbered(labels)
        return y, int(y.max()) + 1
    y = np.array(labels, np.int32)
    if y.min() < 0:
        raise DataError(f'{name}: {int((y < 0).sum())} samples have no {target}: remove them')
    return y, feature.num_classes


def _inputs(
    name: str, tables: list[Table], column: str, image_size: int | None, test: np.ndarray
) -> np.ndarray:
    """Inputs [n, ...] float32 of all tables: normalised images, or numbers as they are."""
    if column in _columns(tables[0], 'Image'):
        pixels = _pixels(name, tables, column, image_size)
        return normalised(pixels, *channel_moments(pixels[~test], name))
    if image_size is not None:
        raise DataError(f'{name}: the column {column} has no images: drop image_size')
    try:
        x = np.concatenate([np.array(table[column][:]) for table in tables])
    except ValueError:
        raise DataError(f'{name}: the samples differ in the shape of {column}') from None
    if x.ndim < 2 or x.dtype.kind not in 'biuf':
        raise DataError(
            f'{name}: the column {column} must hold images or lists of numbers: choose another by '
            'columns input=NAME'
        )
    x = x.astype(np.float32)
    if not np.isfinite(x).all():
        raise DataError(f'{name}: {column} must be finite numbers')
    return x


def _pixels(name: str, tables: list[Table], column: str, image_size: int | None) -> np.ndarray:
    """Images [n, rows, columns, channels] uint8 of all tables."""
    if image_size is not None and not SIZES[0] <= image_size <= SIZES[1]:
        raise DataError(f'image_size is {image_size}: use {SIZES[0]} to {SIZES[1]}')
    first = tables[0][0][column]
    mode = 'L' if first.mode in ('1', 'L') else 'RGB'
    size = first.size if image_size is None else (image_size, image_size)
    samples = sum(map(len, tables))
    check_memory(name, samples * size[0] * size[1] * len(mode) * 5)
    pixels = np.empty((samples, size[1], size[0], len(mode)), np.uint8)
    place = 0
    for table in tables:
        for row in table.select_columns([column]):
            image = row[column]
            if image.mode.startswith(('I', 'F')):  # Pillow would clip them at 255
                raise DataError(f'{name}: pixels of {column} have more than 8 bits: convert them')
            if image_size is None and image.size != size:
                raise DataError(
                    f'{name}: images of {column} have {size} pixels and {image.size}: bring them '
                    'to one size by image_size'
                )
            resized = image.convert(mode).resize(size, BILINEAR)
            pixels[place] = np.asarray(resized).reshape(pixels.shape[1:])
            place += 1
    return pixels


def _of_table(
    name: str,
    train: Table,
    test: Table | None,
    columns: Mapping[str, str],
    test_share: float | None,
    task: Task,
) -> Dataset:
    """The data set of all columns, as of a table."""
    import pandas

    frame = train.to_pandas()
    if test is None:
        return tabular.from_frame(frame, name, columns, test_share, task)
    if 'split' in columns:
        raise DataError(f'{name} has a test set of its own: drop columns split={columns["split"]}')
    both = pandas.concat(
        [frame.assign(**{SPLIT: 'train'}), test.to_pandas().assign(**{SPLIT: 'test'})]
    )
    return tabular.from_frame(both, name, {**columns, 'split': SPLIT}, None, task)
