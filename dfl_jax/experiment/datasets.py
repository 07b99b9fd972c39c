"""The data set of a run, and the clients that hold it."""

from collections.abc import Sequence

import numpy as np

from dfl_jax import data
from dfl_jax.data import feature_shift
from dfl_jax.experiment.run_settings import OF_PARTITIONS, Data, Partition
from dfl_jax.experiment.table_rows import TableRows
from dfl_jax.setting_error import InputError, SettingError, by_flat_names

Parts = list[np.ndarray]  # a partition: of each client the indices of its samples


def load_data(
    settings: Data, rows: TableRows, seeds: dict[str, int], progress: bool = True
) -> data.Dataset:
    """The data set, or its subset that is asked for.

    progress: as in `data.load`. Raises SettingError and DataError.
    """
    task = rows.task
    if rows.shift is not None:  # before anything is read
        feature_shift.check_task(task)
    if settings.input_projection is not None and task.sequences:
        text = f'is of numbers, and `task={task.name}` has tokens; leave it out'
        raise SettingError('input_projection', settings.input_projection, text, colon=False)
    if rows.loader is not None:
        with rows.reporting('dataset', 'factory'):
            given = rows.loader()
        with rows.reporting('dataset', 'data set'):
            given = data.check_dataset(given, rows.name('dataset'), task)
        whole = data.subsample(
            given, settings.train_samples, seeds['subset'], settings.test_samples
        )
    else:
        whole = data.load(
            settings.dataset,
            settings.data_dir,
            train_samples=settings.train_samples,
            test_samples=settings.test_samples,
            seed=seeds['subset'],
            image_size=settings.image_size,
            task=task,
            columns=roles_of(settings.columns),
            test_share=settings.test_share,
            text_window=settings.text_window,
            progress=progress,
        )
    if settings.input_projection is None:
        return whole
    with by_flat_names({'dimensions': 'input_projection'}):
        return data.project(whole, settings.input_projection, seeds['projection'])


def partition(
    asked: Partition, rows: TableRows, dataset: data.Dataset, seeds: dict[str, int]
) -> tuple[Parts, Parts]:
    """Each client's training samples, and those that it keeps for validation.

    Raises SettingError where no client would keep any.
    """
    flat_names = {argument: name for name, argument in OF_PARTITIONS.items()}
    with by_flat_names(flat_names), rows.reporting('partition', 'split', but=(ValueError,)):
        parts = data.partition(
            *(rows.partition, dataset, asked.clients),
            seed=seeds['partition'],
            path=asked.partition_file,
            **rows.partition_options,
        )
    share = asked.validation_share or 0
    training, kept = data.split_validation(parts, share, seeds['validation'])
    if share and not any(map(len, kept)):
        text = f'keeps no sample of any client, the largest of which has {max(map(len, parts))}'
        raise SettingError(
            'validation_share', share, text, 'raise it, or have fewer clients', colon=False
        )
    return training, kept


def roles_of(columns: Sequence[str] | None) -> dict[str, str] | None:
    """What `columns` says, {role: name}. Raises ValueError for what is no ROLE=NAME, or twice."""
    if columns is None:
        return None
    roles: dict[str, str] = {}
    for each in columns:
        role, _, name = (part.strip() for part in each.partition('='))
        if not role or not name:
            raise InputError(f'`columns={",".join(columns)}`: {each!r} is not ROLE=NAME')
        if role in roles:
            raise InputError(f'`columns={",".join(columns)}`: {role} is there twice; give it once')
        roles[role] = name
    return roles
