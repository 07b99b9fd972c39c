"""Partitions of the training samples over the clients, and the arrays that are made of one.

A partition is a list of M arrays of indices [n_i] int64 into the training set, none of them empty.
All but `from_file` sort them and take a NumPy generator first, whose state fixes the partition.
Axis letters: M clients, C classes, n training samples.
"""

import json
import reprlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from dfl_jax.base import Clients
from dfl_jax.checks import check_choice
from dfl_jax.data.dataset import DataError, Dataset
from dfl_jax.data.label_skew import (
    balanced,
    by_client,
    check_clients,
    dirichlet,
    dirichlet_split,
    shards,
    two_group,
    zipf,
)
from dfl_jax.files import read_text
from dfl_jax.setting_error import SettingError

MOST_SIGMA = 20.0  # beyond it one client has all


@dataclass(frozen=True)
class Partition:
    """A kind of partition: a row of `PARTITIONS`, or one of your own.

    `split(rng, labels [n, ...], clients, **settings)` returns the indices of the training samples
    of each client, M arrays [N_i], none empty.
    """

    split: Callable[..., list[np.ndarray]]
    takes: tuple[str, ...] = ()  # the settings of `partition` that are passed to it
    by_class: bool = True  # needs targets that are classes
    of_owners: bool = False  # is given the natural clients [n] or None in place of the labels


def partition(
    kind: str | Partition,
    dataset: Dataset,
    clients: int,
    *,
    seed: int | np.random.SeedSequence,
    path: str | Path | None = None,
    **settings: Any,
) -> list[np.ndarray]:
    """The indices [N_i] of the training samples of each client i of M = clients.

    >>> from dfl_jax import data
    >>> parts = partition('dirichlet', data.synthetic(), 3, seed=0, alpha=0.5)
    >>> [len(part) for part in parts]
    [1334, 1333, 1333]
    >>> in_order = Partition(lambda rng, labels, clients: np.array_split(np.arange(90), clients))
    >>> [len(part) for part in partition(in_order, data.synthetic(), 3, seed=0)]
    [30, 30, 30]

    Args:
      kind: a name of `PARTITIONS`, described by the function of that name; or a `Partition`.
      path: a partition file; when given it alone decides, whatever the kind.
      settings: alpha, overlap, exponent, lognormal_sigma, shards_per_client, samples_per_client,
        and those of a `Partition` of your own; a kind is given what it takes, with the defaults of
        its function.

    Raises:
      SettingError: settings out of range, or a partition that does not exist.
      DataError: a file, or a `Partition` of your own, that is none of these samples.
    """
    labels = dataset.train_y
    if path:
        return from_file(path, len(labels), clients)
    if isinstance(kind, Partition):
        name, row = getattr(kind.split, '__name__', 'of your own'), kind
    else:
        check_choice('partition', kind, PARTITIONS, colon=None)
        name, row = kind, PARTITIONS[kind]
    known = {*row.takes, *(setting for each in PARTITIONS.values() for setting in each.takes)}
    if unknown := sorted(settings.keys() - known):
        raise TypeError(f'no partition takes {unknown[0]}; use one of {", ".join(sorted(known))}')
    if settings.get('overlap') and 'overlap' not in row.takes:
        text = f'overlap is for the partition dirichlet only, got {name}: drop it'
        raise SettingError.of(text, overlap=True)
    if row.by_class and (labels.ndim > 1 or labels.dtype.kind == 'f'):
        others = ', '.join(other for other, each in PARTITIONS.items() if not each.by_class)
        raise SettingError.of(
            f'the partition {name} is by class, and these targets are no classes: use one of '
            f'{others}',
            partition=name,
        )
    taken = {setting: settings[setting] for setting in row.takes if setting in settings}
    of_whom = dataset.owners if row.of_owners else labels
    parts = row.split(np.random.default_rng(seed), of_whom, clients, **taken)
    if row is kind:
        _check_parts(parts, len(labels), clients, name)
    return parts


def _check_parts(parts: Sequence[np.ndarray], n: int, clients: int, name: str) -> None:
    """Raises DataError unless a split of others returns M arrays of indices, none empty."""
    if len(parts) != clients:
        raise DataError(f'the partition {name} makes {len(parts)} clients, not {clients}')
    for client, part in enumerate(map(np.asarray, parts)):
        indices = part.ndim == 1 and part.size and part.dtype.kind in 'iu'
        if not indices or not 0 <= part.min() <= part.max() < n:
            raise DataError(
                f'the partition {name}: client {client} must have a list of at least one index '
                f'from 0 to {n - 1}'
            )


def iid(rng: np.random.Generator, labels: np.ndarray, clients: int) -> list[np.ndarray]:
    """Random shares [N_i] of labels [n]: disjoint and complete, sizes equal up to one sample.

    >>> [len(part) for part in iid(np.random.default_rng(0), np.zeros(10), 3)]
    [4, 3, 3]
    """
    check_clients(clients, len(labels))
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]


def lognormal(
    rng: np.random.Generator, labels: np.ndarray, clients: int, lognormal_sigma: float = 1.0
) -> list[np.ndarray]:
    """Random shares of all samples, in proportion to exp(sigma z), z standard normal numbers.

    Disjoint and complete; every client has one sample at least, and the classes are mixed alike.

    >>> [len(part) for part in lognormal(np.random.default_rng(0), np.zeros(90), 4)]
    [20, 16, 34, 20]

    Args:
      labels: [n, ...], targets of any kind.
      lognormal_sigma: sigma, above 0; the largest client of many is about exp(2 sigma) times the
        median one.
    """
    n = len(labels)
    check_clients(clients, n)
    if not 0 < lognormal_sigma <= MOST_SIGMA:
        text = f'sigma is {lognormal_sigma}: use more than 0 and at most {MOST_SIGMA:g}'
        raise SettingError.of(text, lognormal_sigma=lognormal_sigma)
    weights = np.exp(lognormal_sigma * rng.standard_normal(clients))
    # One sample each, and of the others the nearest whole number to each cumulative share
    ends = np.rint((n - clients) * np.cumsum(weights) / weights.sum()).astype(np.int64)
    ends += np.arange(1, clients + 1)
    return [np.sort(part) for part in np.split(rng.permutation(n), ends[:-1])]


def writer(rng: np.random.Generator, owners: np.ndarray | None, clients: int) -> list[np.ndarray]:
    """Clients that are natural clients, or equal shares of them: disjoint and complete.

    Natural clients, as the writers of MNIST, are grouped at random, their numbers equal up to one.

    >>> [part.tolist() for part in writer(np.random.default_rng(0), np.array([7, 7, 8, 9]), 2)]
    [[0, 1, 3], [2]]

    Args:
      owners: [n], the natural client of each sample (`Dataset.owners`).
    """
    names, number = _natural_clients(owners, 'writer')
    check_clients(clients, len(names), 'writers')
    client_of = np.empty(len(names), np.int64)
    for client, group in enumerate(np.array_split(rng.permutation(len(names)), clients)):
        client_of[group] = client
    return by_client(client_of[number], clients)


def natural(rng: np.random.Generator, owners: np.ndarray | None, clients: int) -> list[np.ndarray]:
    """Clients that are natural clients, drawn at random where there are more: disjoint.

    They are in the order of their numbers. The samples of natural clients that were not drawn are
    not used. Draws of one seed are nested: those of M clients are among those of M + 1.

    >>> [part.tolist() for part in natural(np.random.default_rng(0), np.array([7, 7, 8, 9]), 2)]
    [[0, 1], [3]]

    Args:
      owners: [n], the natural client of each sample (`Dataset.owners`).
    """
    names, number = _natural_clients(owners, 'natural')
    check_clients(clients, len(names), 'natural clients')
    drawn = np.sort(rng.permutation(len(names))[:clients])
    return [np.flatnonzero(number == each) for each in drawn]


def _natural_clients(owners: np.ndarray | None, kind: str) -> tuple[np.ndarray, np.ndarray]:
    """The natural clients that there are, and the position of each sample's own among them."""
    if owners is None:
        raise SettingError.of(
            f'the partition {kind} needs a dataset that knows the client of each sample: a table '
            'with a client column, leaf, text, a .npz with the array client, or mnist with '
            'train-writer-ids.npy beside its files',
            partition=kind,
        )
    return np.unique(owners, return_inverse=True)


PARTITIONS: dict[str, Partition] = {
    'iid': Partition(iid, by_class=False),
    'balanced': Partition(balanced, ('samples_per_client',)),
    'dirichlet': Partition(dirichlet, ('alpha', 'overlap')),
    'dirichlet_split': Partition(dirichlet_split, ('alpha',)),
    'zipf': Partition(zipf, ('exponent',)),
    'lognormal': Partition(lognormal, ('lognormal_sigma',), by_class=False),
    'writer': Partition(writer, by_class=False, of_owners=True),
    'natural': Partition(natural, by_class=False, of_owners=True),
    'shards': Partition(shards, ('shards_per_client',)),
    'two_group': Partition(two_group),
}


def from_file(path: str | Path, n: int, clients: int | None = None) -> list[np.ndarray]:
    """The indices [N_i] of each client i in a JSON file of M lists, in the official order.

    The order of the file is kept. Clients may share samples; none may hold a sample twice.

    Args:
      n: training samples that there are.
      clients: M, where it must be a certain number.
    """
    try:
        parts = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        why = 'its brackets nest too deep' if isinstance(error, RecursionError) else error
        raise DataError(f'cannot read the partition file {path}: {why}') from None
    if not isinstance(parts, list) or not parts:
        raise DataError(f'{path} must hold a list of lists of training indices')
    if clients is not None and len(parts) != clients:
        raise DataError(
            f'{path} holds {len(parts)} clients, not {clients}: set clients to {len(parts)}'
        )
    for client, part in enumerate(parts):
        if not isinstance(part, list) or not part:
            raise DataError(f'{path}: client {client} must be a list of at least one index')
        bad = [i for i in part if type(i) is not int or not 0 <= i < n]  # None may be among them
        if bad:
            raise DataError(
                f'{path}: client {client} holds the index {reprlib.repr(bad[0])}, but the {n} '
                f'training samples have the indices 0 to {n - 1}: use the file with the dataset it '
                'was made for'
            )
        if len(set(part)) < len(part):
            twice = next(i for i, count in Counter(part).items() if count > 1)
            raise DataError(
                f'{path}: client {client} holds the index {twice} more than once: list every '
                'sample of a client once'
            )
    return [np.array(part, np.int64) for part in parts]


def split_validation(
    parts: list[np.ndarray], share: float, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Each client's samples, split at random into training and validation.

    DFML (section 4.1) takes share = 0.2. The nearest whole number of a client's samples validates,
    but at least one trains, so that a client of a single sample has an empty validation set. The
    split of client i follows from seed, i and its samples; both halves keep the client's order.

    Args:
      parts: M arrays [n_i] of indices, none of them empty.
      share: of a client's samples that validate, in [0, 1).
      seed: at least 0.

    Returns the training and the validation indices, M arrays each.

    Raises:
      SettingError: a share out of range.
    """
    if not 0 <= share < 1:
        text = f'the validation share is {share}: use 0 or more and less than 1'
        raise SettingError.of(text, validation_share=share)
    training, validation = [], []
    for part, stream in zip(parts, np.random.SeedSequence(seed).spawn(len(parts)), strict=True):
        n = len(part)
        validates = np.zeros(n, bool)
        size = min(int(share * n + 0.5), n - 1)
        validates[np.random.default_rng(stream).permutation(n)[:size]] = True
        training.append(part[~validates])
        validation.append(part[validates])
    return training, validation


def pack(
    x: np.ndarray, y: np.ndarray, parts: Sequence[np.ndarray], *, empty: bool = False
) -> Clients:
    """The samples of all clients, stacked and padded to the largest client by zeros.

    Args:
      x: [n, ...], inputs; their dtype is kept.
      y: [n] integer labels, or [n, ...] targets of another task; int32 or float32 in the end.
      parts: M arrays of indices into x and y.
      empty: whether some clients, but not all, may have no sample.

    Raises:
      DataError: no client, an empty client, or an index that is none of 0 to n - 1.
    """
    x, y, sizes = np.asarray(x), np.asarray(y), np.array([len(part) for part in parts])
    if not sizes.any() or not (empty or sizes.all()):
        empty = np.flatnonzero(sizes == 0).tolist()
        raise DataError(f'{len(parts)} clients, empty ones {empty}: give every client a sample')
    indices = np.concatenate([part for part in parts if len(part)])  # an empty one may be float64
    if indices.dtype.kind not in 'iu':
        raise DataError(f'the clients hold indices of {indices.dtype}: use whole numbers')
    if indices.min() < 0 or indices.max() >= len(y):
        raise DataError(
            f'the clients hold the indices {indices.min()} to {indices.max()} of {len(y)} samples: '
            'use a partition of this very training set'
        )
    mask = np.arange(sizes.max()) < sizes[:, None]  # [M, N]
    packed_x = np.zeros(mask.shape + x.shape[1:], x.dtype)
    packed_y = np.zeros(mask.shape + y.shape[1:], np.float32 if y.dtype.kind == 'f' else np.int32)
    packed_x[mask], packed_y[mask] = x[indices], y[indices]
    return Clients(jnp.asarray(packed_x), jnp.asarray(packed_y), jnp.asarray(mask))
