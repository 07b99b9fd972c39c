"""Partitions that skew, or balance, the classes of the clients.

Axis letters: M clients, C classes, n training samples.
"""

import math

import numpy as np

from dfl_jax.setting_error import SettingError

RETRIES = 100


def balanced(
    rng: np.random.Generator,
    labels: np.ndarray,
    clients: int,
    samples_per_client: int | None = None,
) -> list[np.ndarray]:
    """Clients with equally many samples of every class: disjoint, the other samples not used.

    >>> [part.tolist() for part in balanced(np.random.default_rng(0), np.arange(4) % 2, 2)]
    [[0, 3], [1, 2]]

    Args:
      labels: [n], classes.
      samples_per_client: a multiple of the number of classes; None, all that the scarcest allows.
    """
    check_clients(clients, len(labels))
    stock = np.bincount(labels)
    classes, most = len(stock), len(stock) * int(stock.min() // clients)
    if not most:
        raise SettingError.of(
            f'{clients} balanced clients, and the scarcest of {classes} classes has {stock.min()} '
            'samples: lower clients or use more samples',
            clients=clients,
        )
    size = most if samples_per_client is None else samples_per_client
    if not 1 <= size <= most or size % classes:
        raise SettingError.of(
            f'{size} balanced samples for each of {clients} clients, and the scarcest of {classes} '
            f'classes has {stock.min()}: use a multiple of {classes}, at most {most}',
            samples_per_client=size,
        )
    by_class = [
        rng.choice(np.flatnonzero(labels == label), (clients, size // classes), replace=False)
        for label in range(classes)
    ]
    return [np.sort(part) for part in np.concatenate(by_class, axis=1)]


def dirichlet(
    rng: np.random.Generator,
    labels: np.ndarray,
    clients: int,
    alpha: float = 0.1,
    overlap: bool = False,
) -> list[np.ndarray]:
    """About equally large clients, each of which has a class mix q_i ~ Dir(alpha).

    The mixes of Hsu et al. (2019), whose prior is the mix of all samples and not an even one.
    Disjoint clients together hold every sample, n / M each up to one. A class that they want more
    of than there is is shared out in proportion to what each wants, and the rest of a client comes
    from the classes still available, by q_i renormalised over them. With `overlap` every client
    draws floor(n / M) distinct samples from the whole training set, so that clients share samples,
    as in the partitions published with NTK-DFL (Thompson et al., 2025).

    >>> [len(p) for p in dirichlet(np.random.default_rng(0), np.arange(90) % 3, 4, alpha=0.5)]
    [22, 22, 23, 23]

    Args:
      labels: [n], classes.
      alpha: concentration; small gives few classes a client, infinity an even mix.
    """
    n = len(labels)
    check_clients(clients, n)
    stock, sizes = np.bincount(labels), np.full(clients, n // clients)
    mix = _dirichlet(rng, alpha, (clients, len(stock)))
    if not overlap:
        sizes[rng.permutation(clients)[: n % clients]] += 1
        return _assign(rng, labels, _allocate(rng, mix, sizes, stock))
    counts = _allocate(rng, mix, sizes, np.tile(stock, (clients, 1)))
    pools = [np.flatnonzero(labels == label) for label in range(len(stock))]
    return [
        np.sort(np.concatenate([rng.choice(pools[c], k, replace=False) for c, k in enumerate(row)]))
        for row in counts
    ]


def dirichlet_split(
    rng: np.random.Generator, labels: np.ndarray, clients: int, alpha: float = 0.1
) -> list[np.ndarray]:
    """Clients of unequal sizes, each class split over them by Dir(alpha): disjoint, complete.

    The split of Yurochkin et al. (2019) and of DFML. It is drawn anew, at most `RETRIES` times,
    until no client is empty. NIID-Bench (Li et al. 2022) asks for ten samples a client, and gives
    no more of a class to clients that have n / M samples already; both bend the distribution
    towards equal sizes.

    >>> [len(p) for p in dirichlet_split(np.random.default_rng(0), np.arange(90) % 3, 4, 0.5)]
    [33, 10, 19, 28]

    Args:
      labels: [n], classes.
      alpha: concentration; small gives few clients a class.
    """
    n = len(labels)
    check_clients(clients, n)
    stock = np.bincount(labels)
    for _ in range(RETRIES):
        shares = _dirichlet(rng, alpha, (len(stock), clients))
        counts = rng.multinomial(stock, shares).T  # [M, C]
        if counts.any(axis=1).all():
            return _assign(rng, labels, counts)
    raise SettingError.of(
        f'no split in {RETRIES} tries left each of {clients} clients one of {n} samples at alpha '
        f'{alpha}: raise alpha, or lower clients',
        alpha=alpha,
    )


def zipf(
    rng: np.random.Generator, labels: np.ndarray, clients: int, exponent: float = 1.8
) -> list[np.ndarray]:
    """Clients of different class mixes whose shares of a class have a heavy tail.

    Of class c client i gets the share z_(i - c) / sum z, rounded down to whole samples, with M
    numbers z of the law P(z) ~ z**-exponent and i - c modulo M: the same shares for every class,
    rolled by its number. So sizes are about equal and classes skewed. Disjoint; what is rounded
    off, fewer than M samples of a class, is not used. Draws of z are repeated until their sum is at
    most the scarcest class, so that every client has a sample of each. The partition of the authors
    of the paper on initialisation and topology, whose exponent is 1.8.

    >>> [len(part) for part in zipf(np.random.default_rng(0), np.arange(900) % 3, 4, exponent=2.5)]
    [225, 225, 225, 225]

    Args:
      labels: [n], classes.
      exponent: above 1; a smaller one has larger shares.
    """
    check_clients(clients, len(labels))
    if not 1 < exponent < math.inf:
        text = f'the Zipf exponent is {exponent}: use a finite number above 1'
        raise SettingError.of(text, exponent=exponent)
    stock = np.bincount(labels)
    scarcest = stock[stock > 0].min()
    for _ in range(RETRIES if clients <= scarcest else 0):
        z = rng.zipf(exponent, clients)
        if z.sum(dtype=np.float64) <= scarcest:  # of whole numbers it may overflow
            rolled = np.stack([np.roll(z, label) for label in range(len(stock))], axis=1)  # [M, C]
            return _assign(rng, labels, rolled * stock // z.sum())
    raise SettingError.of(
        f'no {RETRIES} draws of {clients} Zipf numbers of exponent {exponent} sum to at most '
        f'{scarcest}, the samples of the scarcest class: raise the exponent, or lower clients',
        exponent=exponent,
    )


def shards(
    rng: np.random.Generator, labels: np.ndarray, clients: int, shards_per_client: int = 2
) -> list[np.ndarray]:
    """Clients of `shards_per_client` random shards, equal cuts of the samples sorted by label.

    Disjoint and complete: the pathological split of McMahan et al. (2017).

    >>> [part.tolist() for part in shards(np.random.default_rng(0), np.repeat([0, 1, 2, 3], 2), 2)]
    [[2, 3, 4, 5], [0, 1, 6, 7]]

    Args:
      labels: [n], classes.
    """
    n = len(labels)
    check_clients(clients, n)
    total = clients * shards_per_client
    if shards_per_client < 1 or total > n:
        raise SettingError.of(
            f'{shards_per_client} shards for each of {clients} clients and {n} samples: '
            f'use 1 to {n // clients}',
            shards_per_client=shards_per_client,
        )
    shuffled = rng.permutation(n)
    by_label = shuffled[np.argsort(labels[shuffled], kind='stable')]
    pieces = np.array_split(by_label, total)
    drawn = rng.permutation(total).reshape(clients, shards_per_client)
    return [np.sort(np.concatenate([pieces[shard] for shard in each])) for each in drawn]


def two_group(rng: np.random.Generator, labels: np.ndarray, clients: int) -> list[np.ndarray]:
    """The first half of the classes at the first half of the clients, the others at the others.

    Within a half each client has as many random samples, within one. The halves are those of the
    topology `two_group`.

    >>> parts = two_group(np.random.default_rng(0), np.repeat([0, 1, 2, 3], 2), 2)
    >>> [part.tolist() for part in parts]
    [[0, 1, 2, 3], [4, 5, 6, 7]]

    Args:
      labels: [n], classes.
    """
    if clients < 2:
        raise SettingError.of(f'{clients} clients in two groups: use at least 2', clients=clients)
    first = np.isin(labels, np.array_split(np.unique(labels), 2)[0])
    if first.all():
        raise SettingError.of('one class makes no two groups', partition='two_group')
    counts = [len(half) for half in np.array_split(np.arange(clients), 2)]
    parts = []
    for chosen, count in zip((first, ~first), counts, strict=True):
        if count > (samples := int(chosen.sum())):
            text = f'{clients} clients: half of them share {samples} samples; use fewer'
            raise SettingError.of(text, clients=clients)
        parts += np.array_split(rng.permutation(np.flatnonzero(chosen)), count)
    return [np.sort(part) for part in parts]


def check_clients(clients: int, available: int, what: str = 'training samples') -> None:
    if not 1 <= clients <= available:
        text = f'{clients} clients for {available} {what}: use 1 to {available}'
        raise SettingError.of(text, clients=clients)


def _dirichlet(rng: np.random.Generator, alpha: float, shape: tuple[int, int]) -> np.ndarray:
    """[rows, width] = shape, every row drawn from Dir(alpha)."""
    if not 0 < alpha < 1e300:
        raise SettingError.of(f'alpha is {alpha}: use a finite number above 0', alpha=alpha)
    return rng.dirichlet(np.full(shape[1], alpha), shape[0])


def _allocate(
    rng: np.random.Generator, mix: np.ndarray, sizes: np.ndarray, stock: np.ndarray
) -> np.ndarray:
    """How many samples [M, C] of each class a client gets, rows adding up to sizes [M].

    The stock of samples is one for all clients ([C]) or one for each ([M, C]). Every pass asks for
    all that is still needed, so it is the last one or exhausts a class.
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


def _assign(rng: np.random.Generator, labels: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """The samples of each client at random, counts [M, C] of each class, others not used."""
    client_of = np.full(len(labels), len(counts))
    for label in range(counts.shape[1]):
        pool = rng.permutation(np.flatnonzero(labels == label))
        dealt = np.repeat(np.arange(len(counts)), counts[:, label])
        client_of[pool[: len(dealt)]] = dealt
    return by_client(client_of, len(counts) + 1)[:-1]


def by_client(client_of: np.ndarray, clients: int) -> list[np.ndarray]:
    """The samples of each client, given the client [n] of each sample."""
    order = np.argsort(client_of, kind='stable')
    return np.split(order, np.searchsorted(client_of[order], np.arange(1, clients)))
