"""The data of a run, as the flags describe it: the data set, and which client holds what of it."""

from typing import Any, NamedTuple

import numpy as np

from dfl_jax import data


class Data(NamedTuple):
    """A data set, and indices into its training samples."""

    dataset: data.Dataset
    parts: list[np.ndarray]  # of each client, to train on
    validation: list[np.ndarray]  # of each client, kept from training


def build_data(flags: Any, seeds: dict[str, int]) -> Data:
    """Loads the data set and partitions it. Raises ValueError for what does not fit it."""
    dataset = load_data(flags, seeds)
    asked, available = flags.client_eval_samples, len(dataset.test_y)
    if asked is not None and asked > available:
        raise ValueError(f'--client_eval_samples={asked} of {available} test samples; lower it')
    return Data(dataset, *partition(flags, dataset, seeds))


def load_data(flags: Any, seeds: dict[str, int]) -> data.Dataset:
    """The data set of the flags, or their subset of it."""
    dataset = data.load(
        flags.dataset,
        flags.data_dir,
        train_samples=flags.train_samples,
        test_samples=flags.test_samples,
        seed=seeds['subset'],
        image_size=flags.image_size,
        progress=flags.progress,
    )
    if flags.input_projection is not None:
        dataset = data.project(dataset, flags.input_projection, seeds['projection'])
    return dataset


def partition(
    flags: Any, dataset: data.Dataset, seeds: dict[str, int]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Each client's training samples, and those that it keeps for validation."""
    parts = data.partition(
        flags.partition,
        dataset,
        flags.clients,
        seed=seeds['partition'],
        alpha=flags.alpha,
        overlap=flags.partition_overlap,
        exponent=flags.zipf_exponent,
        shards_per_client=flags.shards_per_client,
        samples_per_client=flags.samples_per_client,
        path=flags.partition_file,
    )
    return data.split_validation(parts, flags.validation_share or 0, seeds['validation'])
