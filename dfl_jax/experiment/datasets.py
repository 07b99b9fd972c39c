"""The data set of a run, and the clients that hold it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dfl_jax import data
from dfl_jax.base import Clients
from dfl_jax.data import feature_shift
from dfl_jax.experiment.networks import task_named
from dfl_jax.experiment.own_code import is_own_loader, name_of, named, reporting
from dfl_jax.experiment.run_settings import Data
from dfl_jax.setting_error import SettingError
from dfl_jax.tasks import Task

Parts = list[np.ndarray]  # a partition: of each client the indices of its samples


def load_data(settings: Data, seeds: dict[str, int], progress: bool = True) -> data.Dataset:
    """The data set, or its subset that is asked for.

    progress: as in `data.load`. Raises SettingError and DataError.
    """
    task = task_named(settings.task)
    if settings.feature_shift is not None:  # before anything is read
        feature_shift.parse(settings.feature_shift)
        feature_shift.check_task(task)
    if settings.input_projection is not None and task.sequences:
        raise SettingError(
            'input_projection',
            settings.input_projection,
            f'is of numbers, and `task={task.name}` has tokens; leave it out',
            colon=False,
        )
    if is_own_loader(settings.dataset):
        whole = _of_own_code(settings.dataset, task)
        dataset = data.subsample(
            whole, settings.train_samples, seeds['subset'], settings.test_samples
        )
    else:
        dataset = data.load(
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
    if settings.input_projection is not None:
        dataset = data.project(dataset, settings.input_projection, seeds['projection'])
    return dataset


def _of_own_code(value: Any, task: Task) -> data.Dataset:
    """What a factory of one's own returns, checked. Raises SettingError."""
    factory = named('dataset', value, {})
    with reporting('dataset', value, 'factory'):
        given = factory()
    with reporting('dataset', value, 'data set'):
        return data.check_dataset(given, name_of(value), task)


def shifted(
    asked: str | None, dataset: data.Dataset, parts: Parts, kept: Parts, seed: int
) -> tuple[Clients, Clients | None, np.ndarray]:
    """The clients, what they keep for validation if they do, and the inputs of the test set.

    asked: the feature shift of all of them, None for none. Raises DataError where it does not fit.
    """
    clients = data.pack(dataset.train_x, dataset.train_y, parts)
    validation = None
    if any(map(len, kept)):
        validation = data.pack(dataset.train_x, dataset.train_y, kept, empty=True)
    if asked is None:
        return clients, validation, dataset.test_x
    shift = feature_shift.parse(asked)
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
            raise ValueError(f'`columns={",".join(columns)}`: {each!r} is not ROLE=NAME')
        if role in roles:
            raise ValueError(f'`columns={",".join(columns)}`: {role} is there twice; give it once')
        roles[role] = name
    return roles
