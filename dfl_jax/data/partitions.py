"""Who holds which training samples.

A partition is a list of M arrays of indices [n_i] int64 into the training set, none of them empty.
All but `from_file` sort them and take a NumPy generator first, whose state fixes the partition.
Axis letters: M clients, C classes, n training samples.
"""

import json
import math
from pathlib import Path

import numpy as np

from dfl_jax.data.sources import Dataset

KINDS = ('iid', 'balanced', 'dirichlet', 'dirichlet_split', 'zipf', 'writer', 'shards')
RETRIES = 100


class PartitionError(ValueError):
    """A partition that cannot be made; the message is one line with the numbers and the remedy."""


def partition(
    kind: str,
    dataset: Dataset,
    clients: int,
    *,
    seed: int | np.random.SeedSequence,
    alpha: float = 0.1,
    overlap: bool = False,
    exponent: float = 1.8,
    shards_per_client: int = 2,
    samples_per_client: int | None = None,
    min_samples: int = 1,
    path: str | Path | None = None,
) -> list[np.ndarray]:
    """Partitions the training set of a dataset over M = clients.

    Args:
      kind: one of `KINDS`; the function of that name says what it means.
      alpha: concentration, for dirichlet and dirichlet_split.
      overlap: for dirichlet, every client draws from the whole training set.
      exponent: of the Zipf law.
      shards_per_client: for shards.
      samples_per_client: for balanced.
      min_samples: of every client, for dirichlet_split.
      path: a partition file; when given it alone decides, whatever the kind.

    Raises:
      PartitionError: settings out of range, or a partition that does not exist.
    """
    labels = dataset.train_y
    if path:
        return from_file(path, len(labels), clients)
    if kind not in KINDS:
        raise PartitionError(f'unknown partition {kind!r}: use one of {", ".join(KINDS)}')
    if overlap and kind != 'dirichlet':
        raise PartitionError(f'overlap is for the partition dirichlet only, got {kind}: drop it')
    rng = np.random.default_rng(seed)
    if kind == 'dirichlet':
        return dirichlet(rng, labels, clients, alpha, overlap)
    if kind == 'dirichlet_split':
        return dirichlet_split(rng, labels, clients, alpha, min_samples)
    if kind == 'zipf':
        return zipf(rng, labels, clients, exponent)
    if kind == 'writer':
        return writer(rng, dataset.writers, clients)
    if kind == 'shards':
        return shards(rng, labels, clients, shards_per_client)
    if kind == 'balanced':
        return balanced(rng, labels, clients, samples_per_client)
    return iid(rng, labels, clients)


def iid(rng: np.random.Generator, labels: np.ndarray, clients: int) -> list[np.ndarray]:
    """Deals all samples at random: disjoint and complete, sizes equal up to one sample."""
    _check_clients(clients, len(labels))
    return [np.sort(part) for part in np.array_split(rng.permutation(len(labels)), clients)]


def balanced(
    rng: np.random.Generator, labels: np.ndarray, clients: int, samples_per_client: int | None
) -> list[np.ndarray]:
    """Every client holds equally many samples of every class: disjoint, the others are not used.

    Args:
      labels: [n], classes.
      samples_per_client: a multiple of the number of classes; None, all that the scarcest allows.
    """
    _check_clients(clients, len(labels))
    stock = np.bincount(labels)
    classes, most = len(stock), len(stock) * int(stock.min() // clients)
    size = most if samples_per_client is None else samples_per_client
    if not 1 <= size <= most or size % classes:
        raise PartitionError(
            f'{size} balanced samples for each of {clients} clients, and the scarcest of {classes} '
            f'classes has {stock.min()}: use a multiple of {classes}, at most {most}'
        )
    hands = [
        rng.choice(np.flatnonzero(labels == label), (clients, size // classes), replace=False)
        for label in range(classes)
    ]
    return [np.sort(hand) for hand in np.concatenate(hands, axis=1)]


def dirichlet(
    rng: np.random.Generator, labels: np.ndarray, clients: int, alpha: float, overlap: bool = False
) -> list[np.ndarray]:
    """Every client has its own class mix q_i ~ Dir(alpha); all clients are about equally large.

    Disjoint clients together hold every sample, n / M each up to one. A class that they want more
    of than there is is shared out in proportion to what each wants, and the rest of a client comes
    from the classes still available, by q_i renormalised over them. With `overlap` every client
    draws floor(n / M) distinct samples from the whole training set, so that clients share samples,
    as in the partitions published with NTK-DFL (Thompson et al., 2025).

    Args:
      labels: [n], classes.
      alpha: concentration; small gives few classes a client, infinity an even mix.
    """
    _check_clients(clients, len(labels))
    mix = _dirichlet(rng, alpha, (clients, np.max(labels) + 1))
    return _draw(rng, labels, mix, overlap)


def dirichlet_split(
    rng: np.random.Generator, labels: np.ndarray, clients: int, alpha: float, min_samples: int = 1
) -> list[np.ndarray]:
    """Splits each class over the clients by Dir(alpha): disjoint, complete, of unequal sizes.

    The split of Hsu et al. (2019) and of DFML. It is drawn anew, at most `RETRIES` times, until
    every client has `min_samples`. The default 1 asks no more than that no client is empty: every
    rejection bends the distribution towards equal sizes.

    Args:
      labels: [n], classes.
      alpha: concentration; small gives few clients a class.
    """
    n = len(labels)
    _check_clients(clients, n)
    if not 1 <= min_samples <= n // clients:
        raise PartitionError(
            f'min_samples {min_samples} with {clients} clients and {n} samples: '
            f'use 1 to {n // clients}'
        )
    stock = np.bincount(labels)
    for _ in range(RETRIES):
        shares = _dirichlet(rng, alpha, (len(stock), clients))
        counts = rng.multinomial(stock, shares).T  # [M, C]
        if counts.sum(axis=1).min() >= min_samples:
            return _deal(rng, labels, counts)
    raise PartitionError(
        f'no split in {RETRIES} tries left each of {clients} clients {min_samples} of {n} samples '
        f'at alpha {alpha}: raise alpha, or lower clients or min_samples'
    )


def zipf(
    rng: np.random.Generator, labels: np.ndarray, clients: int, exponent: float
) -> list[np.ndarray]:
    """Class frequencies of a client fall as rank**-exponent, the ranking being its own.

    Disjoint and complete, sizes equal up to one sample; scarce classes are shared out as by
    `dirichlet`.

    Args:
      labels: [n], classes.
      exponent: 0 is an even mix; 1.8 that of the paper on initialisation and topology.
    """
    _check_clients(clients, len(labels))
    if not 0 <= exponent < math.inf:
        raise PartitionError(f'the Zipf exponent is {exponent}: use a finite number from 0')
    ranks = np.arange(1, np.max(labels) + 2, dtype=np.float64)
    law = np.exp(-exponent * np.log(ranks))
    mix = rng.permuted(np.tile(law / law.sum(), (clients, 1)), axis=1)  # [M, C]
    return _draw(rng, labels, mix, overlap=False)


def writer(rng: np.random.Generator, writers: np.ndarray | None, clients: int) -> list[np.ndarray]:
    """The natural partition: a client is a writer, or an equal share of the writers.

    Disjoint and complete; writers are grouped at random, their numbers equal up to one.

    Args:
      writers: [n], who wrote each sample (`Dataset.writers`).
    """
    if writers is None:
        raise PartitionError(
            'the partition writer needs a dataset that knows its writers: mnist, with '
            'train-writer-ids.npy beside its files'
        )
    names, own = np.unique(writers, return_inverse=True)
    _check_clients(clients, len(names), 'writers')
    holder = np.empty(len(names), np.int64)
    for client, group in enumerate(np.array_split(rng.permutation(len(names)), clients)):
        holder[group] = client
    return _group(holder[own], clients)


def shards(
    rng: np.random.Generator, labels: np.ndarray, clients: int, shards_per_client: int = 2
) -> list[np.ndarray]:
    """Sorts by label, cuts into equal shards, deals `shards_per_client` to everyone.

    Disjoint and complete: the pathological split of McMahan et al. (2017).

    Args:
      labels: [n], classes.
    """
    n = len(labels)
    _check_clients(clients, n)
    total = clients * shards_per_client
    if shards_per_client < 1 or total > n:
        raise PartitionError(
            f'{shards_per_client} shards for each of {clients} clients and {n} samples: '
            f'use 1 to {n // clients}'
        )
    shuffled = rng.permutation(n)
    by_label = shuffled[np.argsort(labels[shuffled], kind='stable')]
    pieces = np.array_split(by_label, total)
    hands = rng.permutation(total).reshape(clients, shards_per_client)
    return [np.sort(np.concatenate([pieces[shard] for shard in hand])) for hand in hands]


def from_file(path: str | Path, n: int, clients: int | None = None) -> list[np.ndarray]:
    """Reads a partition: JSON, a list of M lists of training indices in the official order.

    The order of the file is kept. Clients may share samples.

    Args:
      n: training samples that there are.
      clients: M, where it must be a certain number.
    """
    try:
        parts = json.loads(Path(path).expanduser().read_text(encoding='utf-8'))
    except (OSError, ValueError) as error:
        raise PartitionError(f'cannot read the partition file {path}: {error}') from None
    if not isinstance(parts, list) or not parts:
        raise PartitionError(f'{path} must hold a list of lists of training indices')
    if clients is not None and len(parts) != clients:
        raise PartitionError(
            f'{path} holds {len(parts)} clients, not {clients}: set clients to {len(parts)}'
        )
    for client, part in enumerate(parts):
        if not isinstance(part, list) or not part:
            raise PartitionError(f'{path}: client {client} must be a list of at least one index')
        bad = next((i for i in part if type(i) is not int or not 0 <= i < n), None)
        if bad is not None:
            raise PartitionError(
                f'{path}: client {client} holds the index {bad!r}, but the {n} training samples '
                f'have the indices 0 to {n - 1}: use the file with the dataset it was made for'
            )
    return [np.array(part, np.int64) for part in parts]


def _check_clients(clients: int, available: int, what: str = 'training samples') -> None:
    if not 1 <= clients <= available:
        raise PartitionError(f'{clients} clients for {available} {what}: use 1 to {available}')


def _dirichlet(rng: np.random.Generator, alpha: float, shape: tuple[int, int]) -> np.ndarray:
    """[rows, width] = shape, every row drawn from Dir(alpha)."""
    if not 0 < alpha < 1e300:
        raise PartitionError(f'alpha is {alpha}: use a finite number above 0')
    return rng.dirichlet(np.full(shape[1], alpha), shape[0])


def _draw(
    rng: np.random.Generator, labels: np.ndarray, mix: np.ndarray, overlap: bool
) -> list[np.ndarray]:
    """Gives equally large clients samples by their class mix [M, C]."""
    clients, n = len(mix), len(labels)
    stock, sizes = np.bincount(labels), np.full(clients, n // clients)
    if not overlap:
        sizes[rng.permutation(clients)[: n % clients]] += 1
        return _deal(rng, labels, _allocate(rng, mix, sizes, stock))
    counts = _allocate(rng, mix, sizes, np.tile(stock, (clients, 1)))
    pools = [np.flatnonzero(labels == label) for label in range(len(stock))]
    return [
        np.sort(np.concatenate([rng.choice(pools[c], k, replace=False) for c, k in enumerate(row)]))
        for row in counts
    ]


def _allocate(
    rng: np.random.Generator, mix: np.ndarray, sizes: np.ndarray, stock: np.ndarray
) -> np.ndarray:
    """How many samples [M, C] of each class a client gets, rows adding up to sizes [M].

    The stock is everybody's ([C]) or each client's own ([M, C]). Every pass asks for all that is
    still needed, so it is the last one or exhausts a class.
    """
    counts = np.zeros(mix.shape, np.int64)
    while (need := sizes - counts.sum(axis=1)).any():
        left = np.broadcast_to(stock, mix.shape)
        weights = np.where(left > 0, mix, 0.0)
        # A mix whose classes are all exhausted takes whatever there is.
        weights = np.where(weights.sum(axis=1, keepdims=True) > 1e-100, weights, left)
        weights = np.where(need[:, None] > 0, weights, 1.0)
        wanted = rng.multinomial(need, weights / weights.sum(axis=1, keepdims=True))
        if stock.ndim == 2:
            granted = np.minimum(wanted, stock)
            stock = stock - granted
        else:
            granted = wanted
            for label in np.flatnonzero(wanted.sum(axis=0) > stock):
                granted[:, label] = rng.multivariate_hypergeometric(
                    wanted[:, label], stock[label], method='marginals'
                )
            stock = stock - granted.sum(axis=0)
        counts += granted
    return counts


def _deal(rng: np.random.Generator, labels: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Deals every sample out at random, counts [M, C] of each class to each client."""
    owner = np.empty(len(labels), np.int64)
    for label in range(counts.shape[1]):
        pool = rng.permutation(np.flatnonzero(labels == label))
        owner[pool] = np.repeat(np.arange(len(counts)), counts[:, label])
    return _group(owner, len(counts))


def _group(owner: np.ndarray, clients: int) -> list[np.ndarray]:
    """The samples of each client, given the owner [n] of each sample."""
    order = np.argsort(owner, kind='stable')
    return np.split(order, np.searchsorted(owner[order], np.arange(1, clients)))
