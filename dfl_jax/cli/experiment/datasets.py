"""The data set of a run, as the flags describe it."""

from collections.abc import Sequence
from typing import Any

from dfl_jax import data
from dfl_jax.cli.experiment.networks import task_named


def load_data(flags: Any, seeds: dict[str, int]) -> data.Dataset:
    """The data set of the flags, or their subset of it."""
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
        progress=flags.progress,
    )
    if flags.input_projection is not None:
        dataset = data.project(dataset, flags.input_projection, seeds['projection'])
    return dataset


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
