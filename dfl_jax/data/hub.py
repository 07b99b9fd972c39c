"""Data sets in the format of Hugging Face's library `datasets`, by name or from a folder.

Axis letters: n samples, S rows and columns of an image.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dfl_jax.data import tabular
from dfl_jax.data.dataset import (
    DataError,
    Dataset,
    check_classes,
    check_learns_classes,
    check_memory,
    choose_test_rows,
    imported,
    normalised,
    number_names,
    one_line,
    reading,
)
from dfl_jax.data.images import channel_moments, check_size, pixels_of
from dfl_jax.data.npz import check_inputs
from dfl_jax.files import expand
from dfl_jax.setting_error import SettingError
from dfl_jax.tasks import CLASSIFICATION, Task

PREFIX = 'hf:'
ROLES = ('input', 'target', 'client')
SPLIT = 'split of the data set'  # the column that a table is given
Table = Any  # datasets.Dataset


def load(
    name: str,
    columns: Mapping[str, str] | None = None,
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
    channels] by `images.pixels_of`: one channel if all images are grey, otherwise three. Lists of
    numbers are taken as they are. Where there is neither, all columns are a table, as by
    `tabular.from_frame`; .csv files of a folder are read as by `tabular.read`.

    Class labels are known by their names, which may have other numbers in the test set than in the
    training set.

    Args:
      name: of a repository, NAME or NAME:CONFIGURATION; or the path of a folder, written by
        save_to_disk or with the files of a data set, such as train.parquet and test.parquet.
      columns: `input`, `target` (default: the one column of class labels) and `client`, whose
        values are the natural clients; those of `tabular.from_frame` for a table.
      test_share: of the samples that are the test set where there is no such split; default, 0.2.
      image_size: S to which images are brought; default, the size that all have.
      progress: show the library's progress bars.

    Raises:
      SettingError: a setting that these data do not take.
      DataError: no such data set, folder, split or column, values that are missing or fit neither,
        or a class that the test set has and the training set lacks.
    """
    columns = columns or {}
    train, test, texts = _splits(name, progress)
    if test is not None and test_share is not None:
        text = f'{name} has a test set of its own: drop the test share of {test_share}'
        raise SettingError.of(text, test_share=test_share)
    given = _input(name, train, columns)
    if given is None:
        if image_size is not None:
            raise SettingError.of(f'{name} has no images: drop image_size', image_size=image_size)
        return _of_table(name, train, test, columns, test_share, task, texts)
    if strangers := sorted(set(columns) - set(ROLES)):
        given, roles = f'{strangers[0]}={columns[strangers[0]]}', ', '.join(ROLES)
        raise SettingError.of(f'columns {given}: {name} has the roles {roles}', columns=columns)
    check_learns_classes(f'{name}: {given}', task, 'leave the task out')
    target = _target(name, train, columns)
    tables = [train] if test is None else [train, test]
    y, names = _classes(name, tables, target)
    owners = None
    if 'client' in columns:
        owners = number_names([str(user) for user in _values(name, train, columns['client'])])
    if test is None:
        testing = choose_test_rows(len(y), test_share, name)
        owners = owners if owners is None else owners[~testing]
    else:
        testing = np.arange(len(y)) >= len(train)
    check_classes(name, y[~testing], y[testing], names)
    x = _inputs(name, tables, given, image_size, testing)
    return Dataset(x[~testing], y[~testing], x[testing], y[testing], len(names), owners)


def _splits(name: str, progress: bool) -> tuple[Table, Table | None, bool]:
    """The training and the test set, None where there is none; and whether their columns are texts,
    as those of a .csv are.
    """
    datasets = imported('datasets', 'hf: is read by the package datasets', 'datasets pillow')
    if not progress:
        datasets.disable_progress_bars()
    folder, texts = expand(name), False
    remedy = 'give NAME or NAME:CONFIGURATION of the hub, or a folder'
    with reading(f'cannot load {name} by the package datasets', remedy):
        if (folder / 'dataset_dict.json').is_file() or (folder / 'state.json').is_file():
            found = datasets.load_from_disk(folder)
        elif folder.is_dir():
            builder = datasets.load_dataset_builder(str(folder))
            texts = builder.name == 'csv'
            if texts:
                files = builder.config.data_files
                found = datasets.DatasetDict({half: _of_csv(files[half]) for half in files})
            else:
                found = datasets.load_dataset(str(folder))
        else:
            repository, _, configuration = name.partition(':')
            found = datasets.load_dataset(repository, configuration or None)
    found = found.with_format(None)  # one that it was saved with
    if not isinstance(found, datasets.DatasetDict):
        return found, None, texts
    if 'train' not in found:
        raise DataError(f'{name} has the splits {", ".join(found)}, and none is train')
    return found['train'], found.get('test', found.get('validation')), texts


def _of_csv(paths: list[str]) -> Table:
    """The texts of .csv files, which the package itself would guess the types of."""
    import datasets
    import pandas

    frames = [tabular.read(Path(path)) for path in paths]
    return datasets.Dataset.from_pandas(pandas.concat(frames), preserve_index=False)


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


def _values(name: str, table: Table, column: str) -> list[Any]:
    """The values of a column, class labels by name. Raises DataError where some are missing."""
    values = _named(table, _present(name, table, column))
    if missing := sum(each is None for each in values):
        raise DataError(f'{name}: {missing} samples have no {column}: remove them')
    return values


def _named(table: Table, column: str) -> list[Any]:
    """The values of a column, class labels by name, None where they are missing."""
    values = table[column][:]
    if column not in _columns(table, 'ClassLabel'):
        return values
    names = table.features[column].names
    return [None if each is None or each < 0 else names[each] for each in values]


def _classes(name: str, tables: list[Table], target: str) -> tuple[np.ndarray, list[Any]]:
    """Classes [n] int32 of the samples of all tables, and the names of the classes."""
    labels = [_values(name, table, target) for table in tables]
    kinds = [{type(label).__name__ for label in each} for each in labels]
    if kinds[0] not in ({'int'}, {'str'}, {'bool'}):
        raise DataError(f'{name}: the target {target} must be classes: whole numbers or texts')
    if kinds[-1] != kinds[0]:
        raise DataError(
            f'{name}: the target {target} is {"".join(kinds[0])} in the training set and '
            f'{", ".join(sorted(kinds[-1]))} in the test set: write both in one way'
        )
    every = [label for each in labels for label in each]
    names = sorted(set(every))
    if target in _columns(tables[0], 'ClassLabel'):
        known = tables[0].features[target].names
        names = [*known, *(each for each in names if each not in known)]
    number = {each: i for i, each in enumerate(names)}
    return np.array([number[label] for label in every], np.int32), names


def _inputs(
    name: str, tables: list[Table], column: str, image_size: int | None, test: np.ndarray
) -> np.ndarray:
    """Inputs [n, ...] float32 of all tables: normalised images, or numbers as they are."""
    if column in _columns(tables[0], 'Image'):
        pixels = _pixels(name, tables, column, image_size)
        return normalised(pixels, *channel_moments(pixels[~test], name))
    if image_size is not None:
        text = f'{name}: the column {column} has no images: drop image_size'
        raise SettingError.of(text, image_size=image_size)
    values = [_values(name, table, column) for table in tables]
    try:
        x = np.concatenate([np.array(each) for each in values])
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
    for rows in (~test, test):
        check_inputs(f'{name}: {column}', x[rows])
    return x


def _pixels(name: str, tables: list[Table], column: str, image_size: int | None) -> np.ndarray:
    """Images [n, rows, columns, channels] uint8 of all tables."""
    if image_size is not None:
        check_size(image_size)
    samples, place = sum(map(len, tables)), 0
    pixels = np.empty((0, 1, 1, 1), np.uint8)
    try:
        for image in _images(name, tables, column):
            if image is None:
                raise ValueError('there is none')
            found = pixels_of(image, image_size)
            if place and found.shape[:2] != pixels.shape[1:3]:
                sizes = [(array.shape[-2], array.shape[-3]) for array in (pixels, found)]
                raise DataError(
                    f'{name}: images of {column} have {sizes[0]} pixels and {sizes[1]}: bring them '
                    'to one size by image_size'
                )
            if not place or found.shape[-1] > pixels.shape[-1]:
                check_memory(name, samples * found.size * 5)  # as they are read, and as float32
                kept = pixels  # of one channel
                pixels = np.empty((samples, *found.shape), np.uint8)
                pixels[:place] = kept[:place]
            pixels[place] = found
            place += 1
    except DataError:
        raise
    except Exception as error:  # Pillow's decoders each have their own
        raise DataError(
            f'{name}: cannot read the image {column} of sample {place} ({one_line(error)}): '
            'replace or remove it'
        ) from None
    return pixels


def _images(name: str, tables: list[Table], column: str) -> Iterator[Any]:
    """Every image of the tables, as Pillow's; None where it is missing."""
    for table in tables:
        feature = table.features[_present(name, table, column)]
        if not getattr(feature, 'decode', True):
            table = table.cast_column(column, type(feature)())
        for row in table.select_columns([column]):
            yield row[column]


def _of_table(
    name: str,
    train: Table,
    test: Table | None,
    columns: Mapping[str, str],
    test_share: float | None,
    task: Task,
    texts: bool,
) -> Dataset:
    """The data set of all columns, as of a table."""
    import pandas

    named = {*_columns(train, 'ClassLabel'), *_columns(test or train, 'ClassLabel')}
    if not task.whole_targets:  # 0 and 1 of several labels
        numbers = named & set(columns.get('target', '').split('+'))
        for column in sorted(numbers):
            if test is not None and train.features.get(column) != test.features.get(column):
                raise DataError(
                    f'{name}: the labels of {column} have other names in the test set than in the '
                    'training set: give them the same'
                )
        named -= numbers
    frame = _frame(train, named)
    if test is not None:
        if 'split' in columns:
            text = f'{name} has a test set of its own: drop columns split={columns["split"]}'
            raise SettingError.of(text, columns=columns)
        frame = pandas.concat(
            [frame.assign(**{SPLIT: 'train'}), _frame(test, named).assign(**{SPLIT: 'test'})]
        )
        columns, test_share = {**columns, 'split': SPLIT}, None
    categories = dict.fromkeys(named.intersection(_columns(train, 'ClassLabel')), 'category')
    return tabular.from_frame(frame.astype(categories), name, columns, test_share, task, texts)


def _frame(table: Table, named: set[str]) -> Any:
    """A pandas.DataFrame of the table, with the labels of these columns by name."""
    present = named.intersection(table.column_names)
    return table.to_pandas().assign(**{column: _named(table, column) for column in present})
