"""What all readers of data share, and those of official files: IDX, CIFAR, MNIST's writers."""

import gzip
import importlib
import lzma
import math
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dfl_jax.files import check_file, expand
from dfl_jax.host_memory import in_bytes, lack_of_memory
from dfl_jax.tasks import Task

LARGEST = 2**30  # bytes of an official file, uncompressed; those of CIFAR-100 have 154 MB
ANEW = 'delete it, then load again or download it anew'


class DataError(ValueError):
    """Data that is missing, damaged or unknown; the message is one line with the remedy."""


class Dataset(NamedTuple):
    """A training and a test set; n counts the samples of each."""

    train_x: np.ndarray  # [n, ...] float32, scaled and normalised; images are [n, H, W, channels]
    train_y: np.ndarray  # [n] int32; of other tasks than classification [n, ...], float32 or int32
    test_x: np.ndarray  # [n, ...] float32
    test_y: np.ndarray  # likewise
    classes: int  # or outputs of a model
    owners: np.ndarray | None = None  # [n] int32, the natural client of each training sample


def folder_of(data_dir: str | Path) -> Path:
    """The folder of that name. Raises DataError where there is none."""
    root = expand(data_dir)
    if not root.is_dir():
        raise DataError(f'data_dir {root} is not a folder: make it, or correct the path')
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

    Choices of one seed and size are nested.
    """
    if n is None:
        return np.arange(size)
    if not 1 <= n <= size:
        raise DataError(f'a subset of {n} {what} samples was asked for: use 1 to {size}')
    return np.sort(np.random.default_rng(seed).permutation(size)[:n])


def held_out(n: int, share: float | None, what: object) -> np.ndarray:
    """Which of n samples are the test set, [n] bool: that share (0.2), rounded up, at random."""
    # Always the same ones, so that the test set and the indices of a partition file mean the same
    # in all runs.
    share = 0.2 if share is None else share
    if not 0 < share < 1:
        raise DataError(f'the test share is {share}: use more than 0 and less than 1')
    if n < 2:
        raise DataError(f'{what} holds {n} samples: a training and a test set need at least two')
    chosen = np.zeros(n, bool)
    # 1e-9: 0.2 of 15 is 3, and 0.2 * 15 in binary fractions may be a little more
    chosen[np.random.default_rng(0).permutation(n)[: min(n - 1, math.ceil(share * n - 1e-9))]] = 1
    return chosen


def numbered(names: Sequence[Any] | np.ndarray) -> np.ndarray:
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


def _read_bytes(path: Path, most: int) -> tuple[bytes, str]:
    """At most so many uncompressed bytes, as far as they can be read, and what went wrong."""
    openers: dict[str, Any] = {'.gz': gzip.open, '.xz': lzma.open}
    chunks, left = [], most
    try:
        check_file(path)
        with openers.get(path.suffix, open)(path, 'rb') as file:
            while left and (chunk := file.read(min(left, 1 << 20))):
                chunks.append(chunk)
                left -= len(chunk)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        return b''.join(chunks), f' ({one_line(error)})'
    return b''.join(chunks), ''


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """An IDX file of unsigned bytes: magic 0 0 8 ndim, big-endian int32 sizes, then the data.

    No more is read than the header announces, and one byte that should not be there.
    """
    header = 4 + 4 * ndim
    content, fault = _read_bytes(path, header)
    magic = bytes((0, 0, 8, ndim))
    if not fault and len(content) >= 4 and content[:4] != magic:
        raise DataError(
            f'{path} starts with the bytes {content[:4].hex()}, expected {magic.hex()}: '
            f'it is not the official IDX file; {ANEW}'
        )
    if fault or len(content) < header:
        raise _damaged(path, f'{header:,}', len(content), fault)
    sizes = np.frombuffer(content[4:], '>i4').tolist()
    expected = header + math.prod(sizes)
    if min(sizes) < 1 or expected > LARGEST:
        raise DataError(
            f'{path} announces an array of {" x ".join(map(str, sizes))} bytes, and official files '
            f'have some, up to {in_bytes(LARGEST)}; {ANEW}'
        )
    content, fault = _read_bytes(path, expected + 1)
    if fault or len(content) != expected:
        size = len(content)
        if size > expected and path.suffix not in ('.gz', '.xz'):
            size = path.stat().st_size  # no more was read than one byte too many
        raise _damaged(path, f'{expected:,}', size, fault)
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes)


def read_cifar(path: Path, label_bytes: int) -> np.ndarray:
    """CIFAR's binary records [n, label_bytes + 3072]: the labels, then the three colour planes."""
    content, fault = _read_bytes(path, LARGEST + 1)
    if len(content) > LARGEST:
        fault = f', more than the {in_bytes(LARGEST)} that an official file may have'
    width = label_bytes + 3072
    if fault or not content or len(content) % width:
        raise _damaged(path, f'a multiple of {width:,}', len(content), fault)
    return np.frombuffer(content, np.uint8).reshape(-1, width)


def _damaged(path: Path, expected: str, size: int, fault: str) -> DataError:
    return DataError(
        f'{path} is damaged or cut short: expected {expected} bytes uncompressed, '
        f'found {size:,}{fault}; {ANEW}'
    )


def read_writers(path: Path, n: int) -> np.ndarray | None:
    """Who wrote each of n samples, [n] int32; None without the file."""
    if not path.exists():
        return None
    try:
        check_file(path)
        writers = np.lib.format.open_memmap(path, mode='r')  # reads no more than there is
    except Exception as error:  # numpy's parser of headers raises whatever it meets
        raise DataError(f'{path} is not readable ({one_line(error)}): replace it') from None
    if writers.shape != (n,) or writers.dtype.kind not in 'iu':
        raise DataError(
            f'{path} is {writers.shape} {writers.dtype}, expected ({n},) integers: replace it'
        )
    limits = np.iinfo(np.int32)
    if writers.min() < limits.min or writers.max() > limits.max:
        raise DataError(
            f'{path} holds the writers {writers.min()} to {writers.max()}, beyond 32 bits: '
            'number them anew'
        )
    return np.array(writers, np.int32)


def one_line(error: Exception) -> str:
    return ' '.join(f'{type(error).__name__}: {error}'.split())[:200]


def check_learns_classes(origin: object, task: Task, remedy: str) -> None:
    """Raises DataError for a task whose targets are not one class a sample, as these data have."""
    if not task.of_classes:
        raise DataError(
            f'{origin} has classes, not the targets of {task.name}: {remedy}; a task of your own '
            'that learns classes says so by whole_targets=True'
        )
