"""Tables: CSV and Parquet files, one sample a row.

Numbers are standardised, everything else is one-hot, both by the training rows.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dfl_jax.data.formats import (
    DataError,
    Dataset,
    check_memory,
    held_out,
    imported,
    numbered,
    one_line,
)
from dfl_jax.data.npz import check_targets
from dfl_jax.host import check_file
from dfl_jax.tasks import CLASSIFICATION, Task

SUFFIXES = ('.csv', '.parquet')
ROLES = ('target', 'client', 'split', 'drop')
MOST_VALUES = 1000  # different ones of a column that is one-hot; identifiers have more
Frame = Any  # pandas.DataFrame


def load(
    path: Path,
    columns: Mapping[str, str],
    test_share: float | None = None,
    task: Task = CLASSIFICATION,
) -> Dataset:
    """The data set of the table in a .csv or .parquet file.

    Needs pandas, and pyarrow for Parquet. The arguments are those of `from_frame`.

    Raises:
      DataError: a file that cannot be read, or a table as in `from_frame`.
    """
    pandas = imported('pandas', f'{path.suffix} files are read by pandas', 'pandas pyarrow')
    try:
        check_file(path)
        check_memory(path, 4 * path.stat().st_size)
        frame = pandas.read_csv(path) if path.suffix == '.csv' else pandas.read_parquet(path)
    except DataError:
        raise
    except Exception as error:  # pandas and pyarrow each have their own
        raise DataError(f'cannot read {path} as a table ({one_line(error)})') from None
    return from_frame(frame, path, columns, test_share, task)


def from_frame(
    frame: Frame,
    origin: object,
    columns: Mapping[str, str],
    test_share: float | None = None,
    task: Task = CLASSIFICATION,
) -> Dataset:
    """The data set of a table, its inputs [n, features].

    Numbers are shifted and scaled to mean 0 and standard deviation 1 over the training rows; so are
    the targets of a regression, whose root mean squared error is then 1 for the mean as prediction,
    and those of any task that does not say otherwise (`Task.scaled_targets`).
    A column of texts or categories becomes one feature of 0 or 1 for each value that the training
    rows have; all are 0 in a test row with another value.

    Args:
      frame: a pandas.DataFrame.
      origin: where it comes from, for messages.
      columns: `target` names the column with the target (several joined by + for tasks whose
        targets have several numbers); `client`, whose values are the natural clients; `split`,
        where test rows hold the text test and all others train; `drop`, columns joined by + that
        are not used. All others are features.
      test_share: of the rows that are the test set, drawn at random where there is no `split`;
        default, 0.2.
      task: what the targets are. Classes of classification are numbered in their sorted order.

    Raises:
      DataError: columns that are missing, have missing values, or cannot be features or targets.
    """
    roles = _roles(frame, origin, columns)
    targets = roles['target']
    used = frame.drop(columns=roles['drop'])
    lacking = used.isna().sum()
    lacking = lacking[lacking > 0]
    if len(lacking):
        counts = ', '.join(f'{name} ({count})' for name, count in lacking.items())
        raise DataError(
            f'{origin}: of {len(used)} rows, some lack values in these columns: {counts}: fill '
            'them, remove these rows, or leave columns out by columns drop='
            + '+'.join(lacking.index)
        )
    test = _test_rows(used, origin, roles['split'], test_share)
    owners = numbered(used[roles['client'][0]].astype(str))[~test] if roles['client'] else None
    features = used.drop(columns=targets + roles['client'] + roles['split'])
    if not len(features.columns):
        raise DataError(f'{origin} has no column that is a feature: {", ".join(frame.columns)}')
    parts = [_feature(features[name], origin, test) for name in features.columns]
    check_memory(origin, 4 * len(test) * sum(part.shape[1] for part in parts))
    x = np.concatenate(parts, axis=1, dtype=np.float32)
    y, classes = _target(used, targets, origin, task, test)
    return Dataset(x[~test], y[~test], x[test], y[test], classes, owners)


def _roles(frame: Frame, origin: object, columns: Mapping[str, str]) -> dict[str, list[str]]:
    """The names of the columns that have each of `ROLES`. Raises DataError for unknown ones."""
    strangers = sorted(set(columns) - set(ROLES))
    if strangers:
        raise DataError(
            f'columns {strangers[0]}={columns[strangers[0]]}: a table has the roles '
            f'{", ".join(ROLES)}'
        )
    present = ', '.join(map(str, frame.columns))[:300]
    if not frame.columns.is_unique:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise DataError(f'{origin} has several columns {twice}: give each a name of its own')
    if 'target' not in columns:
        raise DataError(
            f'{origin}: name the column to be predicted by columns target=NAME; it has {present}'
        )
    # One column that has a + in its name is that column
    roles: dict[str, list[str]] = {role: [] for role in ROLES}
    for role, given in columns.items():
        roles[role] = [given] if given in frame.columns else given.split('+')
    taken: dict[str, str] = {}
    for role, names in roles.items():
        for name in names:
            if name not in frame.columns:
                raise DataError(f'{origin} has no column {name} ({role}); it has {present}')
            if name in taken:
                raise DataError(f'{origin}: the column {name} is both {taken[name]} and {role}')
            taken[name] = role
        if role in ('client', 'split') and len(names) > 1:
            raise DataError(f'{origin}: {role}={"+".join(names)}: use one column')
    return roles


def _test_rows(
    frame: Frame, origin: object, split: list[str], test_share: float | None
) -> np.ndarray:
    """Which rows are the test set, [n] bool."""
    if not split:
        return held_out(len(frame), test_share, origin)
    if test_share is not None:
        raise DataError(
            f'{origin}: the column {split[0]} says what is the test set: drop the '
            f'test share of {test_share}'
        )
    values = frame[split[0]].astype(str).to_numpy()
    strangers = sorted(set(values) - {'train', 'test'})
    test = values == 'test'
    if strangers or test.all() or not test.any():
        found = ', '.join(sorted(set(values)))[:100]
        raise DataError(
            f'{origin}: the column {split[0]} must hold train and test, and holds {found}'
        )
    return test


def _feature(column: Any, origin: object, test: np.ndarray) -> np.ndarray:
    """A column as features, [n, 1] of a number, or one for each value in training."""
    from pandas.api.types import infer_dtype

    if column.dtype.kind in 'biuf':
        return _standardised(column.to_numpy(np.float64), f'{origin}: {column.name}', test)[:, None]
    kind = infer_dtype(column, skipna=False)
    if kind not in ('string', 'boolean', 'categorical'):
        raise DataError(
            f'{origin}: the column {column.name} ({kind}) is neither numbers nor texts: '
            f'convert it, or leave it out by columns drop={column.name}'
        )
    values = column.astype(str).to_numpy(dtype=object)
    known = np.unique(values[~test])
    if len(known) > MOST_VALUES:
        raise DataError(
            f'{origin}: the column {column.name} has {len(known)} different texts, more than '
            f'{MOST_VALUES}: leave it out by columns drop={column.name}, or convert it'
        )
    return (values[:, None] == known).astype(np.float32)


def _standardised(values: np.ndarray, where: str, test: np.ndarray) -> np.ndarray:
    """Numbers [n, ...] with mean 0 and standard deviation 1 over the training rows."""
    if not np.isfinite(values).all():
        raise DataError(f'{where} must be finite numbers')
    mean, deviation = values[~test].mean(axis=0), values[~test].std(axis=0)
    # A constant becomes 0; rounding alone gives it a deviation of about 1e-16 of its size
    constant = deviation <= 1e-12 * np.abs(mean)
    return ((values - mean) / np.where(constant, 1, deviation)).astype(np.float32)


def _target(
    frame: Frame, names: list[str], origin: object, task: Task, test: np.ndarray
) -> tuple[np.ndarray, int]:
    """The targets [n] or [n, outputs], and how many classes or outputs there are."""
    where = f'{origin}: the target {"+".join(names)}'
    if task.sequences or (len(names) > 1 and 1 not in task.target_axes):
        raise DataError(f'{where} cannot be that of {task.name}: set another task')
    column = frame[names[0]]
    if task.whole_targets:
        if column.dtype.kind == 'f':
            raise DataError(
                f'{where} holds {column.dtype} and not classes: set task to regression, or give '
                'texts or whole numbers'
            )
        # Whole numbers keep their order: 2 comes before 10
        y = numbered(column.to_numpy() if column.dtype.kind in 'biu' else column.astype(str))
        classes = int(y.max()) + 1
        if strangers := sorted(set(y[test]) - set(y[~test])):
            value = column.to_numpy()[y == strangers[0]][0]
            raise DataError(f'{where}: no training row has the class {value} of the test set')
        return y, classes
    wrong = [name for name in names if frame[name].dtype.kind not in 'biuf']
    if wrong:
        raise DataError(
            f'{origin}: the target {wrong[0]} ({frame[wrong[0]].dtype}) must be numbers for the '
            f'task {task.name}'
        )
    values = frame[names].to_numpy(np.float64)
    several = len(names) > 1 or 0 not in task.target_axes
    values = values if several else values[:, 0]
    if _scaled(task, values, where):
        return _standardised(values, where, test), len(names)
    y = values.astype(np.float32)
    if not np.isfinite(y).all():
        raise DataError(f'{where} must be finite numbers')
    check_targets(where, task, y)
    return y, len(names)


def _scaled(task: Task, values: np.ndarray, where: str) -> bool:
    """Whether these targets are numbers that are scaled. Raises DataError where nothing says so."""
    if task.binary_targets or task.scaled_targets is not None:
        return bool(task.scaled_targets) and not task.binary_targets
    if np.isin(values, (0, 1)).all():
        raise DataError(
            f'{where} holds 0 and 1 alone, and {task.name} does not say whether these are labels: '
            'give its Task binary_targets=True, or scaled_targets=True or False'
        )
    return True
