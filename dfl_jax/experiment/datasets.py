"""The data set of a run, as the flags describe it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dfl_jax import data
from dfl_jax.base import Clients
from dfl_jax.data import feature_shift
from dfl_jax.experiment.networks import task_named
from dfl_jax.experiment.own_code import loader_of_others, named, reporting
from dfl_jax.tasks import Task

Parts = list[np.ndarray]  # a partition: of each client the indices of its samples


def load_data(flags: Any, seeds: dict[str, int]) -> data.Dataset:
    """The data set of the flags, or their subset of it."""
    if flags.feature_shift is not None:  # before anything is read
        feature_shift.parse(flags.feature_shift)
        feature_shift.check_task(task_named(flags.task))
    if flags.input_projection is not None and task_named(flags.task).sequences:
        raise ValueError(
            f'--input_projection={flags.input_projection} is of numbers, and --task={flags.task} '
            'has tokens; leave it out'
        )
    if loader_of_others(flags.dataset):
        whole = _of_others(flags.dataset, task_named(flags.task))
        dataset = data.subsample(whole, flags.train_samples, seeds['subset'], flags.test_samples)
    else:
        dataset = data.load(
            flags.dataset,
            flags.data_dir,
            train_samples=flags.train_samples,
            test_samples=flags.test_samples,
            seed=seeds['subset'],
            image_size=flags.image_size,
            task=task_named(flags.task),
            columns=roles_of(flags.columns),
            test_share=flags.test_share,
            text_window=flags.text_window,
            progress=flags.progress,
        )
    if flags.input_projection is not None:
        dataset = data.project(dataset, flags.input_projection, seeds['projection'])
    return dataset


def _of_others(name: str, task: Task) -> data.Dataset:
    """What package.module:factory returns, checked. Raises ValueError."""
    factory = named('dataset', name, {})
    with reporting('dataset', name, 'factory'):
        given = factory()
    with reporting('dataset', name, 'data set'):
        return data.check_dataset(given, name, task)


def shifted(
    flags: Any, dataset: data.Dataset, parts: Parts, kept: Parts, seed: int
) -> tuple[Clients, Clients | None, np.ndarray]:
    """The clients, what they keep for validation if they do, and the inputs of the test set.

    All of them under --feature_shift, where there is one. Raises ValueError where it does not fit.
    """
    clients = data.pack(dataset.train_x, dataset.train_y, parts)
    validation = None
    if any(map(len, kept)):
        validation = data.pack(dataset.train_x, dataset.train_y, kept, empty=True)
    if flags.feature_shift is None:
        return clients, validation, dataset.test_x
    shift = feature_shift.parse(flags.feature_shift)
    clients = feature_shift.shift_clients(clients, shift, seed)
    if validation is not None:
        validation = feature_shift.shift_clients(validation, shift, seed, 'validation')
    test_x = feature_shift.shift_test(dataset.test_x, len(parts), shift, seed)
    return clients, validation, test_x


def roles_of(columns: Sequence[str] | None) -> dict[str, str] | None:
    """What --columns says, {role: name}. Raises ValueError for what is no ROLE=NAME, or twice."""
    if columns is None:
        return None
    roles: dict[str, str] = {}
    for each in columns:
        role, _, name = (part.strip() for part in each.partition('='))
        if not role or not name:
            raise ValueError(f'--columns={",".join(columns)}: {each!r} is not ROLE=NAME')
        if role in roles:
            raise ValueError(f'--columns={",".join(columns)}: {role} is there twice; give it once')
        roles[role] = name
    return roles
