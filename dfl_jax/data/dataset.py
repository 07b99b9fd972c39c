"""The data set that every reader returns, and what they share."""

import contextlib
import importlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dfl_jax.files import expand
from dfl_jax.host_memory import lack_of_memory
from dfl_jax.setting_error import SettingError
from dfl_jax.tasks import Task


class DataError(ValueError):
    """Data that is missing, damaged or unknown; the message is one line with the remedy.

    What is wrong with a setting is a SettingError.
    """


class Dataset(NamedTuple):
    """A training and a test set; n counts the samples of each."""

    train_x: np.ndarray  # [n, ...] float32, scaled and normalised; images are [n, H, W, channels]
    train_y: np.ndarray  # [n] int32; of other tasks than classification [n, ...], float32 or int32
    test_x: np.ndarray  # [n, ...] float32
    test_y: np.ndarray  # likewise
    classes: int  # or outputs of a model
    owners: np.ndarray | None = None  # [n] int32, the natural client of each training sample


def folder_of(data_dir: str | Path | None, unnamed: str = '') -> Path:
    """The folder of that name. Raises SettingError where there is none.

    unnamed: the message where no name is given.
    """
    if not data_dir:
        raise SettingError.of(unnamed, data_dir=data_dir)
    root = expand(data_dir)
    if not root.is_dir():
        text = f'data_dir {root} is not a folder: make it, or correct the path'
        raise SettingError.of(text, data_dir=data_dir)
    return root


def imported(module: str, use: str, package: str) -> Any:
    """A module that one data set alone needs. Raises DataError where it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise DataError(f'{use}, which is not installed: pip install {package}') from None


def normalised(pixels: np.ndarray, mean: Sequence[float], std: Sequence[float]) -> np.ndarray:
    """float32 inputs of bytes [n, H, W, channels]: scaled to [0, 1], then by mean and deviation."""
    x = pixels.astype(np.float32, order='C')
    x /= 255
    x -= np.asarray(mean, np.float32)
    x /= np.asarray(std, np.float32)
    return x


def choose_rows(size: int, n: int | None, seed: int, what: str = 'training') -> np.ndarray:
    """A seeded random choice of n of `size` samples, increasing; all of them if n is None.

    Choices of one seed and size are nested. what: `training` or `test`.
    """
    if n is None:
        return np.arange(size)
    if not 1 <= n <= size:
        text = f'a subset of {n} {what} samples was asked for: use 1 to {size}'
        raise SettingError.of(text, **{f'{what.removesuffix("ing")}_samples': n})
    return np.sort(np.random.default_rng(seed).permutation(size)[:n])


def choose_test_rows(n: int, share: float | None, what: object) -> np.ndarray:
    """Which of n samples are the test set, [n] bool: that share (0.2), rounded up, at random."""
    # Always the same ones, so that the test set and the indices of a partition file mean the same
    # in all runs.
    share = 0.2 if share is None else share
    if not 0 < share < 1:
        text = f'the test share is {share}: use more than 0 and less than 1'
        raise SettingError.of(text, test_share=share)
    if n < 2:
        raise DataError(f'{what} holds {n} samples: a training and a test set need at least two')
    chosen = np.zeros(n, bool)
    # 1e-9: 0.2 of 15 is 3, and 0.2 * 15 in binary fractions may be a little more
    chosen[np.random.default_rng(0).permutation(n)[: min(n - 1, math.ceil(share * n - 1e-9))]] = 1
    return chosen


def number_names(names: Sequence[Any] | np.ndarray) -> np.ndarray:
    """The position of each name among the different ones, sorted: [n] int32."""
    return np.unique(np.asarray(names), return_inverse=True)[1].astype(np.int32)


def check_classes(
    origin: object,
    train: np.ndarray,
    test: np.ndarray,
    names: Sequence[Any] | np.ndarray | None = None,
    what: str = 'sample',
) -> None:
    """Raises DataError for labels [n] of a test set that no training sample has.

    origin, what: where the labels come from, and what has one, for the message.
    names: of the classes; default, the labels.
    """
    strangers = np.setdiff1d(test, train)
    if len(strangers):
        name = strangers[0] if names is None else names[int(strangers[0])]
        more = f' (and {len(strangers) - 1} others)' if len(strangers) > 1 else ''
        raise DataError(
            f'{origin}: no training {what} has the class {name}{more} of the test set: add some, '
            f'or remove them from the test set'
        )


def check_memory(path: object, size: float) -> None:
    """Raises DataError for data of `size` bytes that the host has no room for."""
    if lack := lack_of_memory(size):
        raise DataError(f'{path} takes {lack}: use smaller or fewer samples, or free some memory')


def one_line(error: Exception) -> str:
    return ' '.join(f'{type(error).__name__}: {error}'.split())[:200]


@contextlib.contextmanager
def reading(failure: str, remedy: str = '', errors: tuple = (Exception,)) -> Iterator[None]:
    """Raises what a library raises in this block as a DataError: `failure (its error): remedy`.

    errors: those of the library; any by default, as most have their own.
    """
    try:
        yield
    except DataError:
        raise
    except errors as error:
        raise DataError(f'{failure} ({one_line(error)}){remedy and f": {remedy}"}') from None


def check_learns_classes(origin: object, task: Task, remedy: str) -> None:
    """Raises DataError for a task whose targets are not one class a sample, as these data have."""
    if not task.of_classes:
        raise DataError(
            f'{origin} has classes, not the targets of {task.name}: {remedy}; a task of your own '
            'that learns classes says so by whole_targets=True'
        )
