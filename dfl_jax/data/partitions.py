"""Partitions of the training samples over the clients, and the arrays that are made of one.

A partition is a list of M arrays of indices [n_i] int64 into the training set, none of them empty.
All but `from_file` sort them and take a NumPy generator first, whose state fixes the partition.
Axis letters: M clients, C classes, n training samples.
"""

import json
import reprlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from dfl_jax.base import Clients
from dfl_jax.checks import check_choice
from dfl_jax.data.formats import DataError, Dataset
from dfl_jax.data.label_skew import (
    PartitionError,
    balanced,
    by_client,
    check_clients,
    dirichlet,
    dirichlet_split,
    shards,
    zipf,
)
from dfl_jax.files import read_text

KINDS = (
    'iid',
    'balanced',
    'dirichlet',
    'dirichlet_split',
    'zipf',
    'lognormal',
    'writer',
    'natural',
    'shards',
)

MOST_SIGMA = 20.0  # beyond it one client has all
ANY_TARGETS = ('iid', 'lognormal', 'writer', 'natural')  # the others are by class


def partition(
    kind: str,
    dataset: Dataset,
    clients: int,
    *,
    seed: int | np.random.SeedSequence,
    alpha: float = 0.1,
    overlap: bool = False,
    exponent: float = 1.8,
    lognormal_sigma: float = 1.0,
    shards_per_client: int = 2,
    samples_per_client: int | None = None,
    path: str | Path | None = None,
) -> list[np.ndarray]:
    """The indices [N_i] of the training samples of each client i of M = clients.

    Args:
      kind: one of `KINDS`; the function of that name says what it means.
      alpha: concentration, for dirichlet and dirichlet_split.
      overlap: for dirichlet, every client draws from the whole training set.
      exponent: of the Zipf law.
      lognormal_sigma: of the sizes of clients, for lognormal.
      shards_per_client: for shards.
      samples_per_client: for balanced.
      path: a partition file; when given it alone decides, whatever the kind.

    Raises:
      PartitionError: settings out of range, or a partition that does not exist.
    """
    labels = dataset.train_y
    if path:
        return from_file(path, len(labels), clients)
    check_choice('partition', kind, KINDS, PartitionError)
    if overlap and kind != 'dirichlet':
        raise PartitionError(f'overlap is for the partition dirichlet only, got {kind}: drop it')
    if kind not in ANY_TARGETS and (labels.ndim > 1 or labels.dtype.kind == 'f'):
        raise PartitionError(
            f'the partition {kind} is by class, and these targets are no classes: use one of '
            f'{", ".join(ANY_TARGETS)}'
        )
    rng = np.random.default_rng(seed)
    draw = {
        'iid': lambda: iid(rng, labels, clients),
        'balanced': lambda: balanced(rng, labels, clients, samples_per_client),
        'dirichlet': lambda: dirichlet(rng, labels, clients, alpha, overlap),
        'dirichlet_split': lambda: dirichlet_split(rng, labels, clients, alpha),
        'zipf': lambda: zipf(rng, labels, clients, exponent),
        'lognormal': lambda: lognormal(rng, labels, clients, lognormal_sigma),
        'writer': lambda: writer(rng, dataset.owners, clients),
        'natural': lambda: natural(rng, dataset.owners, clients),
        'shards': lambda: shards(rng, labels, clients, shards_per_client),
    }
    return draw[kind]()


def iid(rng: np.random.Generator, labels: np.ndarray, clients: int) -> list[np.ndarray]:
    """Random shares [N_i] of labels [n]: disjoint and complete, sizes equal up to one sample."""
    check_clients(clients, len(labels))
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]


def lognormal(
    rng: np.random.Generator, labels: np.ndarray, clients: int, sigma: float
) -> list[np.ndarray]:
    """Random shares of all samples, in proportion to exp(sigma z) with z standard normal numbers.

    Disjoint and complete; every client has one sample at least, and the classes are mixed alike.

    Args:
      labels: [n, ...], targets of any kind.
      sigma: above 0; the largest client of many is about exp(2 sigma) times the median one.
    """
    n = len(labels)
    check_clients(clients, n)
    if not 0 < sigma <= MOST_SIGMA:
        raise PartitionError(f'sigma is {sigma}: use more than 0 and at most {MOST_SIGMA:g}')
    weights = np.exp(sigma * rng.standard_normal(clients))
    # One sample each, and of the others the nearest whole number to each cumulative share
    ends = np.rint((n - clients) * np.cumsum(weights) / weights.sum()).astype(np.int64)
    ends += np.arange(1, clients + 1)
    return [np.sort(part) for part in np.split(rng.permutation(n), ends[:-1])]


def writer(rng: np.random.Generator, owners: np.ndarray | None, clients: int) -> list[np.ndarray]:
    """Clients that are natural clients, or equal shares of them: disjoint and complete.

    Natural clients, as the writers of MNIST, are grouped at random, their numbers equal up to one.

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
        raise PartitionError(
            f'the partition {kind} needs a dataset that knows the client of each sample: a table '
            'with a client column, leaf, text, a .npz with the array client, or mnist with '
            'train-writer-ids.npy beside its files'
        )
    return np.unique(owners, return_inverse=True)


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
        raise PartitionError(f'cannot read the partition file {path}: {why}') from None
    if not isinstance(parts, list) or not parts:
        raise PartitionError(f'{path} must hold a list of lists of training indices')
    if clients is not None and len(parts) != clients:
        raise PartitionError(
            f'{path} holds {len(parts)} clients, not {clients}: set clients to {len(parts)}'
        )
    for client, part in enumerate(parts):
        if not isinstance(part, list) or not part:
            raise PartitionError(f'{path}: client {client} must be a list of at least one index')
        bad = [i for i in part if type(i) is not int or not 0 <= i < n]  # None may be among them
        if bad:
            raise PartitionError(
                f'{path}: client {client} holds the index {reprlib.repr(bad[0])}, but the {n} '
                f'training samples have the indices 0 to {n - 1}: use the file with the dataset it '
                'was made for'
            )
        if len(set(part)) < len(part):
            twice = next(i for i, count in Counter(part).items() if count > 1)
            raise PartitionError(
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
      PartitionError: a share out of range.
    """
    if not 0 <= share < 1:
        raise PartitionError(f'the validation share is {share}: use 0 or more and less than 1')
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
