"""Training data of clients that lie about them: NAME or NAME:VALUE of `attack`."""

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from dfl_jax.base import Clients
from dfl_jax.data import Dataset
from dfl_jax.evaluation import Holdout
from dfl_jax.exchange import NamedRow
from dfl_jax.setting_error import SettingError

TARGET = 0  # the class that a backdoor opens to
Samples = tuple[np.ndarray, np.ndarray]  # x [n, ...], y [n] whole numbers from 0 to C - 1


class Poison(NamedTuple):
    """What one attacker trains on in place of its samples."""

    of: Callable[[np.random.Generator, Samples, Dataset], Samples]
    # (x [n, ...], data set) -> x with what is to make a model answer TARGET; None: nothing is
    trigger: Callable[[np.ndarray, Dataset], np.ndarray] | None = None


def label_flip(rng: np.random.Generator, samples: Samples, dataset: Dataset) -> Samples:
    """C - 1 - y in place of y."""
    x, y = samples
    return x, dataset.classes - 1 - y


def random_labels(rng: np.random.Generator, samples: Samples, dataset: Dataset) -> Samples:
    """Labels drawn anew for each sample."""
    x, y = samples
    return x, rng.integers(dataset.classes, size=y.shape, dtype=y.dtype)


def bright_corner(x: np.ndarray, dataset: Dataset) -> np.ndarray:
    """Images [n, rows, columns, channels] with a square at the lower right, a tenth of a side and
    at least two pixels wide, that has the largest value of each channel (Gu et al. 2017)."""
    side = max(2, round(min(x.shape[1:3]) / 10))
    marked = x.copy()
    marked[:, -side:, -side:] = dataset.train_x.max(axis=(0, 1, 2))
    return marked


def backdoor(share: float) -> Poison:
    """A share of the samples, at least one, with `bright_corner` and the label TARGET."""

    def of(rng: np.random.Generator, samples: Samples, dataset: Dataset) -> Samples:
        x, y = samples
        chosen = rng.permutation(len(y)) < max(1, round(share * len(y)))
        marked = chosen.reshape(-1, *[1] * (x.ndim - 1))
        return np.where(marked, bright_corner(x, dataset), x), np.where(chosen, TARGET, y)

    return Poison(of, bright_corner)


def _share(text: str) -> float:
    if not 0 < (share := float(text)) <= 1:
        raise ValueError
    return share


POISONS = {
    'label_flip': NamedRow(lambda: Poison(label_flip)),
    'random_labels': NamedRow(lambda: Poison(random_labels)),
    'backdoor': NamedRow(backdoor, 'share, a number above 0 and at most 1', _share),
}


def poisoned(
    poison: Poison, clients: Clients, liars: np.ndarray, dataset: Dataset, seed: int
) -> Clients:
    """The data of a network in which some clients, [M] bool, train on others than they have.

    >>> x, y = np.zeros((2, 3, 1)), np.array([[0, 1, 2]] * 2)
    >>> clients, dataset = Clients(x, y, np.ones((2, 3), bool)), Dataset(*[None] * 4, 3)
    >>> poisoned(Poison(label_flip), clients, np.array([False, True]), dataset, 0).y.tolist()
    [[0, 1, 2], [2, 1, 0]]
    """
    y, mask = np.array(clients.y), np.asarray(clients.mask)
    x = np.array(clients.x) if poison.trigger else clients.x  # else labels alone are other ones
    for client in np.flatnonzero(liars):  # [seed, 0] draws what `seed` does, who lies
        own, rng = mask[client], np.random.default_rng([seed, 1 + client])
        others, y[client, own] = poison.of(rng, (x[client, own], y[client, own]), dataset)
        if poison.trigger:
            x[client, own] = others
    return clients._replace(x=jnp.asarray(x), y=jnp.asarray(y))


def with_triggered(test: Holdout, poison: Poison, dataset: Dataset, named: str) -> Holdout:
    """The test set, and its samples of other classes with the trigger of the poison, if it has one.

    named: the poison as it was given, for the error.

    Raises SettingError where the samples are no images, or all of the class.
    """
    if poison.trigger is None:
        return test
    if test.x.ndim != 4:
        text = f'marks images [rows, columns, channels], and a sample is {list(test.x.shape[1:])}'
        raise SettingError('attack', named, text, colon=False)
    x = poison.trigger(test.x[test.y != TARGET], dataset)
    if not len(x):
        text = f'needs a test sample of another class than {TARGET}'
        raise SettingError('attack', named, text, 'raise `test_samples`', colon=False)
    return test._replace(triggered=Holdout(x, np.full(len(x), TARGET, test.y.dtype)))
