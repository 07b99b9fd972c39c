"""Training and test sets as NumPy arrays, by name.

What is small or made on the spot is here; every other kind of file has a module of its own.
"""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from dfl_jax.data import hub, image_folder, leaf, npz, official, so2sat, tabular, text
from dfl_jax.data.dataset import DataError, Dataset, check_learns_classes, choose_rows
from dfl_jax.files import expand
from dfl_jax.setting_error import SettingError
from dfl_jax.tasks import CLASSIFICATION, Task

DIGITS_TRAIN = 1437
# What `train_test_split(range(1797), test_size=0.2, random_state=0, stratify=y)` of scikit-learn
# draws: the training samples, then the others
DIGITS_ORDER = Path(__file__).with_name('digits_order.npy')
# Arguments of `load` that are for some sources only
OPTIONS = ('image_size', 'columns', 'test_share', 'text_window', 'data_dir')


@dataclass(frozen=True)
class Source:
    """A source of data: a row of `SOURCES`, or one of your own.

    `load(**arguments)` returns a data set: the whole, or a subset if it takes `train_samples`.
    """

    load: Callable[..., Dataset]
    takes: tuple[str, ...] = ()  # those arguments of `load` here that it is given, `path` or `name`


def kind_of(name: str) -> str:
    """The kind of data of that name: one of `DATASETS`, of `FILES` for the path of a file, or hf:.

    Raises DataError for any other.
    """
    if name in DATASETS:
        return name
    if name.startswith(hub.PREFIX):
        return hub.PREFIX
    for suffix in FILES:
        if name.endswith(suffix):
            return suffix
    raise DataError(
        f'unknown dataset {name!r}: use one of {", ".join(DATASETS)}, a file that ends in '
        f'{", ".join(FILES)}, or {hub.PREFIX}NAME'
    )


def load(
    source: str | Path | Source | Callable[[], Dataset],
    data_dir: str | Path | None = None,
    *,
    train_samples: int | None = None,
    test_samples: int | None = None,
    seed: int = 0,
    image_size: int | None = None,
    task: Task = CLASSIFICATION,
    columns: Mapping[str, str] | None = None,
    test_share: float | None = None,
    text_window: int | None = None,
    progress: bool = False,
) -> Dataset:
    """A dataset by name or from a source of your own, or a seeded random subset of it.

    >>> load('digits', train_samples=300).train_x.shape
    (300, 8, 8, 1)
    >>> load(lambda: synthetic(train=90, classes=3)).classes
    3

    `digits` is scikit-learn's bundled set (8x8 images), `synthetic` is made on the spot, and
    `sonnets` is a text of the package; none of them takes a folder. The others are read from
    `data_dir/NAME/` or from `data_dir` itself, and what is missing is downloaded into
    `data_dir/NAME/`. `mnist` knows its writers where the folder also holds `train-writer-ids.npy`
    ([n] integers, the NIST writers as in QMNIST). `so2sat` needs h5py and its files in place, and
    reads no more of them than the subset. `image_folder` needs Pillow
    and reads data_dir/CLASS, or data_dir/train/CLASS and data_dir/test/CLASS. `leaf` reads the
    JSON files in data_dir/train and data_dir/test.

    Args:
      source: one of `DATASETS`, or the path of an `.npz` file with the arrays train_x [n, ...],
        train_y [n], test_x and test_y, as by `npz.load`; of a table, `.csv` or `.parquet`, as by
        `tabular.load`; or of a `.txt`, as by `text.load`. `hf:NAME` is read by `hub.load`. Or a
        `Source`, or a function without arguments that returns a data set (`check_dataset`).
      data_dir: an existing folder; default, the user's cache folder.
      train_samples, test_samples, seed: a subset as by `subsample`; default, all. `so2sat` is
        normalised by the training samples of the subset, all others by those of the whole set.
      image_size: S of the inputs [n, S, S, 3] of `image_folder` (default, 64) or of hf:NAME.
      task: what the targets of a file are: [n] labels, or what another task takes, [n, ...]; texts
        are of tasks of sequences, and other datasets with names of tasks of classes.
      columns: what the columns of a table or of hf:NAME are, {role: name}; the roles are those of
        the reader.
      test_share: of the samples of a table or text that are the test set; default, 0.2.
      text_window: characters of a sample of a text; default, 40.
      progress: for `image_folder`, show a progress bar when reading takes more than a second.

    Raises:
      SettingError: no such folder, a subset larger than the set, or an argument that is for other
        datasets.
      DataError: unknown name, files missing and not to be had, or damaged files.
    """
    name, row = _source_named(source)
    arguments = {
        'path': expand(name),
        'name': name.removeprefix(hub.PREFIX),
        'data_dir': data_dir,
        'train_samples': train_samples,
        'test_samples': test_samples,
        'seed': seed,
        'image_size': image_size,
        'task': task,
        'columns': columns,
        'test_share': test_share,
        'text_window': text_window,
        'progress': progress,
    }
    for what in OPTIONS:
        if arguments[what] is not None and what not in row.takes:
            takers = ', '.join(kind for kind, each in SOURCES.items() if what in each.takes)
            text = f'{what} is for {takers}, got {name}: drop it'
            raise SettingError.of(text, **{what: arguments[what]})
    by_name = isinstance(source, str | Path)
    if by_name:
        _check_task(name, row, task)
        if kind_of(name) in FILES and not expand(name).exists():
            raise DataError(
                f'there is no file {name}, seen from {Path.cwd()}: write its whole path'
            )
    dataset = row.load(**{what: arguments[what] for what in row.takes})
    if not by_name:
        dataset = npz.check_dataset(dataset, name, task)
    if 'train_samples' in row.takes:
        return dataset
    return subsample(dataset, train_samples, seed, test_samples)


def _source_named(source: str | Path | Source | Callable[[], Dataset]) -> tuple[str, Source]:
    """A row with its name, that of its function where it is not of `SOURCES`."""
    if isinstance(source, str | Path):
        return str(source), SOURCES[kind_of(str(source))]
    row = source if isinstance(source, Source) else Source(source)
    return getattr(row.load, '__name__', 'the source'), row


def _check_task(name: str, source: Source, task: Task) -> None:
    """Raises ValueError for a task that does not fit, unless the source finds out itself."""
    if 'text_window' in source.takes:
        if not task.sequences:
            text = f'{name} is a text: set task to next_token, got {task.name}'
            raise SettingError.of(text, task=task.name)
    elif 'task' not in source.takes:
        check_learns_classes(name, task, f'give a file with these ({", ".join(FILES)})')


def subsample(
    dataset: Dataset, n: int | None, seed: int, test_samples: int | None = None
) -> Dataset:
    """A seeded random subset of n samples of the training set, and of the test set if asked for.

    Subsets of one seed are nested: the n samples are among those of every larger n. They keep the
    order of the dataset. None means all.

    Raises:
      SettingError: less than 1, or more than there are samples.
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
    """scikit-learn's 1,797 images of 8 x 8; its file is read without importing it, which takes a
    second and a half."""
    package = importlib.util.find_spec('sklearn')
    if package is None or not package.submodule_search_locations:
        raise DataError('the digits are those of scikit-learn, which is not installed')
    table = Path(package.submodule_search_locations[0], 'datasets/data/digits.csv.gz')
    rows = np.loadtxt(table, delimiter=',')[np.load(DIGITS_ORDER)]
    x, y = rows[:, :-1].reshape(-1, 8, 8, 1) / 16, rows[:, -1]
    return _standardised(x[:DIGITS_TRAIN], y[:DIGITS_TRAIN], x[DIGITS_TRAIN:], y[DIGITS_TRAIN:], 10)


def _standardised(train_x, train_y, test_x, test_y, classes: int) -> Dataset:
    mean, std = train_x.mean(), train_x.std()
    return Dataset(
        ((train_x - mean) / std).astype(np.float32),
        train_y.astype(np.int32),
        ((test_x - mean) / std).astype(np.float32),
        test_y.astype(np.int32),
        classes,
    )


SOURCES: dict[str, Source] = {  # by the name, the suffix of a file, or hf:
    'digits': Source(_digits),
    'synthetic': Source(synthetic),
    'sonnets': Source(partial(text.load, text.SONNETS), ('text_window', 'test_share')),
    **dict.fromkeys(official.IMAGE_SETS, Source(official.load, ('name', 'data_dir'))),
    'so2sat': Source(so2sat.load, ('data_dir', 'train_samples', 'test_samples', 'seed')),
    'image_folder': Source(image_folder.load, ('data_dir', 'image_size', 'progress')),
    'leaf': Source(leaf.load, ('data_dir', 'task')),
    '.npz': Source(npz.load, ('path', 'task')),
    **dict.fromkeys(
        tabular.SUFFIXES, Source(tabular.load, ('path', 'columns', 'test_share', 'task'))
    ),
    '.txt': Source(text.load, ('path', 'text_window', 'test_share')),
    hub.PREFIX: Source(
        hub.load, ('name', 'columns', 'test_share', 'image_size', 'task', 'progress')
    ),
}
FILES = tuple(kind for kind in SOURCES if kind.startswith('.'))
DATASETS = tuple(kind for kind in SOURCES if kind not in (*FILES, hub.PREFIX))
