"""The data set of a run, and the clients that hold it."""

from collections.abc import Sequence

import numpy as np

from dfl_jax import data
from dfl_jax.base import Clients
from dfl_jax.data import feature_shift
from dfl_jax.experiment.own_code import TableRows
from dfl_jax.experiment.run_settings import Data, Partition
from dfl_jax.setting_error import InputError, SettingError

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
    return data.project(whole, settings.input_projection, seeds['projection'])


def partition(
    asked: Partition, rows: TableRows, dataset: data.Dataset, seeds: dict[str, int]
) -> tuple[Parts, Parts]:
    """Each client's training samples, and those that it keeps for validation.

    Raises SettingError where no client would keep any.
    """
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


def shifted(
    shift: feature_shift.FeatureShift | None,
    dataset: data.Dataset,
    parts: Parts,
    kept: Parts,
    seed: int,
) -> tuple[Clients, Clients | None, np.ndarray]:
    """The clients, what they keep for validation if they do, and the inputs of the test set, all
    under the feature shift, if any. Raises DataError where it does not fit."""
    clients = data.pack(dataset.train_x, dataset.train_y, parts)
    validation = None
    if any(map(len, kept)):
        validation = data.pack(dataset.train_x, dataset.train_y, kept, empty=True)
    if shift is None:
        return clients, validation, dataset.test_x
    clients = feature_shift.shift_clients(clients, shift, seed)
    if validation is not None:
        validation = feature_shift.shift_clients(validation, shift, seed, 'validation')
    test_x = feature_shift.shift_test(dataset.test_x, len(parts), shift, seed)
    return clients, validation, test_x


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
