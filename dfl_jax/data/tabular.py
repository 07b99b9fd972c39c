"""Tables: CSV and Parquet files, one sample a row.

Numbers are standardised, categories are one-hot, both by the training rows. `columns` knows which
is which.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dfl_jax.data.columns import (
    MOST_VALUES,
    PADDED,
    check_copy,
    check_few,
    check_header,
    check_index,
    check_texts,
    not_numbers,
    numbers_of,
    parse_texts,
)
from dfl_jax.data.dataset import (
    DataError,
    Dataset,
    check_classes,
    check_memory,
    choose_test_rows,
    imported,
    number_names,
    reading,
)
from dfl_jax.data.npz import check_targets
from dfl_jax.files import check_file, read_table
from dfl_jax.setting_error import SettingError
from dfl_jax.tasks import CLASSIFICATION, Task

SUFFIXES = ('.csv', '.parquet')
ROLES = ('target', 'client', 'split', 'drop', 'number', 'category')
TEXTS = ('client', 'split', 'category')  # these stay texts, whatever they look like
KINDS = ROLES[-2:]  # of features, as the user says; a target may be a category, too
SEEN = ('numbers', 'texts', 'values')  # of features, as they look; values are declared categories
Frame = Any  # pandas.DataFrame


def load(
    path: Path,
    columns: Mapping[str, str] | None = None,
    test_share: float | None = None,
    task: Task = CLASSIFICATION,
) -> Dataset:
    """The data set of the table in a .csv or .parquet file.

    Needs pandas, and pyarrow for Parquet. The arguments are those of `from_frame`.

    Raises:
      DataError: a file that cannot be read, or a table as in `from_frame`.
    """
    columns = columns or {}
    roles = (*TEXTS, 'target') if task.whole_targets else TEXTS
    given = [columns[role] for role in roles if role in columns]
    texts = {*given, *(name for names in given for name in names.split('+'))}
    return from_frame(read(path, texts), path, columns, test_share, task, path.suffix == '.csv')


def read(path: Path, texts: Collection[str] | None = None) -> Frame:
    """The table in a file. In a .csv nothing but an empty field is missing.

    texts: the columns of a .csv that stay texts; None, all. Of the others those are numbers, or
      truth values, whose every field is one.

    Raises DataError for a file that cannot be read.
    """
    pandas = imported('pandas', f'{path.suffix} files are read by pandas', 'pandas pyarrow')
    with reading(f'cannot read {path} as a table'):
        check_file(path)
        if path.suffix == '.parquet':
            check_memory(path, 4 * path.stat().st_size)
            return pandas.read_parquet(path)
        check_memory(path, 10 * path.stat().st_size)  # the text itself is held by 4 bytes each
        table = read_table(path)
        kept = table.names if texts is None else set(table.names).intersection(texts)
        frame = pandas.read_csv(
            table.body(),
            sep=table.delimiter,
            header=None,
            names=table.names,
            index_col=False,
            dtype=dict.fromkeys(kept, object),
            keep_default_na=False,
            na_values=[''],
            skipinitialspace=True,
            low_memory=False,  # which would look at pieces of a column, one by one
        )
    check_header(frame, path)
    return frame


def from_frame(
    frame: Frame,
    origin: object,
    columns: Mapping[str, str],
    test_share: float | None = None,
    task: Task = CLASSIFICATION,
    texts: bool = False,
) -> Dataset:
    """The data set of a table, its inputs [n, features].

    Numbers are shifted and scaled to mean 0 and standard deviation 1 over the training rows; so are
    the targets of a regression, whose root mean squared error is then 1 for the mean as prediction,
    and those of any task that does not say otherwise (`Task.scaled_targets`).
    A column of texts or categories becomes one feature of 0 or 1 for each value that the training
    rows have; all are 0 in a test row with another value. What may be neither a number nor a
    category, or counts the rows, or is the target again, is refused as by `columns`.

    Args:
      frame: a pandas.DataFrame.
      origin: where it comes from, for messages.
      columns: `target` names the column with the target (several joined by + for tasks whose
        targets have several numbers); `client`, whose values are the natural clients; `split`,
        where test rows hold the text test and all others train; `drop`, columns joined by + that
        are not used. All others are features; `number` and `category`, joined by +, say which of
        them are numbers and which are categories, whatever their values look like.
      test_share: of the rows that are the test set, drawn at random where there is no `split`;
        default, 0.2.
      task: what the targets are. Classes of classification are numbered in their sorted order.
      texts: the table is of a .csv, as by `read`: columns of texts are numbers if all values are,
        but for clients, and for classes with leading zeros.

    Raises:
      SettingError: a role that no table has, or a share of the test set where a column says it.
      DataError: columns that are missing, have missing values, or cannot be features or targets.
    """
    roles = _roles(frame, origin, columns)
    targets = roles['target']
    used = frame.drop(columns=roles['drop']).apply(_stripped)
    if texts:
        used = _typed(used, roles, task)
    missing = used.isna().sum()
    missing = missing[missing > 0]
    if len(missing):
        counts = ', '.join(f'{name} ({count})' for name, count in missing.items())
        raise DataError(
            f'{origin}: of {len(used)} rows, some lack values in these columns: {counts}: fill '
            'them, remove these rows, or leave columns out by columns drop='
            + '+'.join(missing.index)
        )
    test = _test_rows(used, origin, roles['split'], test_share)
    owners = number_names(used[roles['client'][0]].astype(str))[~test] if roles['client'] else None
    y, classes = _target(used, targets, origin, task, test, roles['category'])
    features = used.drop(columns=targets + roles['client'] + roles['split'])
    if not len(features.columns):
        raise DataError(f'{origin} has no column that is a feature: {", ".join(frame.columns)}')
    kinds = {name: _kind(used[name], origin, roles) for name in features.columns}
    parts = []
    for name, kind in kinds.items():
        where = f'{origin}: the column {name}'
        for target in targets if kind in SEEN else ():
            check_copy(used[name], used[target], where, _remedy(name))
        parts.append(_feature(features[name], where, test, kind))
    check_memory(origin, 4 * len(test) * sum(part.shape[1] for part in parts))
    x = np.concatenate(parts, axis=1, dtype=np.float32)
    return Dataset(x[~test], y[~test], x[test], y[test], classes, owners)


def _remedy(name: str, kind: str | None = None) -> str:
    """What to do with a column that is no feature, unless the user says of which kind it is."""
    remedy = f'leave it out by columns drop={name}'
    return f'{remedy}, or say by columns {kind}={name} that it is one' if kind else remedy


def _typed(frame: Frame, roles: dict[str, list[str]], task: Task) -> Frame:
    """A table of a .csv, with columns of texts as numbers where all are."""
    kept = {name for role in TEXTS for name in roles[role]}
    classes = roles['target'] if task.whole_targets else []
    columns = {}
    for name in frame.columns:
        if frame[name].dtype.kind != 'O' or name in kept:
            continue
        padded = name in classes and frame[name].str.fullmatch(PADDED).any()
        columns[name] = frame[name].astype('category') if padded else parse_texts(frame[name])
    return frame.assign(**columns)


def _roles(frame: Frame, origin: object, columns: Mapping[str, str]) -> dict[str, list[str]]:
    """The names of the columns that have each of `ROLES`. Raises SettingError for others."""
    if strangers := sorted(set(columns) - set(ROLES)):
        given = f'{strangers[0]}={columns[strangers[0]]}'
        text = f'columns {given}: a table has the roles {", ".join(ROLES)}'
        raise SettingError.of(text, columns=columns)
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
            if name in taken and (taken[name], role) != ('target', 'category'):
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
        return choose_test_rows(len(frame), test_share, origin)
    if test_share is not None:
        raise SettingError.of(
            f'{origin}: the column {split[0]} says what is the test set: drop the '
            f'test share of {test_share}',
            test_share=test_share,
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


def _stripped(column: Any) -> Any:
    """A column of texts without spaces around them, any other as it is."""
    from pandas.api.types import infer_dtype

    return column.str.strip() if infer_dtype(column, skipna=True) == 'string' else column


def _kind(column: Any, origin: object, roles: dict[str, list[str]]) -> str:
    """One of `KINDS` if the user says so, of `SEEN` by the type of the values."""
    from pandas.api.types import infer_dtype

    for kind in KINDS:
        if column.name in roles[kind]:
            return kind
    if column.dtype.kind in 'biuf':
        return 'numbers'
    found = infer_dtype(column, skipna=False)
    if found not in ('string', 'boolean', 'categorical'):
        raise DataError(
            f'{origin}: the column {column.name} ({found}) is neither numbers nor texts: '
            f'convert it, or {_remedy(str(column.name), "category")}'
        )
    return 'texts' if found == 'string' else 'values'


def _feature(column: Any, where: str, test: np.ndarray, kind: str) -> np.ndarray:
    """A column as features, [n, 1] of a number, or one for each value in training."""
    name = str(column.name)
    if kind in SEEN:
        said = 'number' if kind == 'numbers' else 'category'
        check_index(column, where, _remedy(name, said), test)
    if kind in ('number', 'numbers'):
        return _standardised(numbers_of(column, where), where, test)[:, None]
    values = column.astype(str).to_numpy(dtype=object)
    known = np.unique(values[~test])
    if len(known) > MOST_VALUES:
        raise DataError(
            f'{where} has {len(known)} different texts, more than {MOST_VALUES}: '
            f'{_remedy(name)}, or convert it'
        )
    if kind == 'texts':
        check_texts(column, where, _remedy(name, 'category'), test)
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
    frame: Frame,
    names: list[str],
    origin: object,
    task: Task,
    test: np.ndarray,
    categories: list[str],
) -> tuple[np.ndarray, int]:
    """The targets [n] or [n, outputs], and how many classes or outputs there are."""
    where = f'{origin}: the target {"+".join(names)}'
    if task.sequences or (len(names) > 1 and 1 not in task.target_axes):
        raise DataError(f'{where} cannot be that of {task.name}: set another task')
    column = frame[names[0]]
    if task.whole_targets:
        if column.dtype.kind == 'f' and names[0] not in categories:
            raise DataError(
                f'{where} holds {column.dtype} and not classes: set task to regression, or give '
                'texts or whole numbers'
            )
        whole = column.dtype.kind in 'biu'
        if names[0] not in categories:
            remedy = f'give it as classes, or say by columns category={names[0]} that they are'
            if whole:
                check_few(column, where, f'set task to regression, {remedy}', test)
            elif column.dtype != 'category':
                check_texts(column, where, remedy, test, numbers=True)
        # Whole numbers keep their order: 2 comes before 10
        values = column.to_numpy() if whole else column.astype(str).to_numpy(dtype=object)
        y = number_names(values)
        check_classes(where, y[~test], y[test], np.unique(values), 'row')
        return y, int(y.max()) + 1
    wrong = [name for name in names if frame[name].dtype.kind not in 'biuf']
    if wrong:
        odd = not_numbers(frame[wrong[0]].astype(str))
        value = odd.iloc[0] if len(odd) else frame[wrong[0]].iloc[0]
        raise DataError(
            f'{origin}: the target {wrong[0]} must be numbers for the task {task.name}, and holds '
            f'{value!r} ({frame[wrong[0]].dtype})'
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
