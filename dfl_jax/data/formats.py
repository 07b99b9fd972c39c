"""Readers of the official files: IDX, CIFAR's binary records, and MNIST's writers.

And what readers share: the error, and which samples make a subset.
"""

import gzip
import lzma
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np


class DataError(ValueError):
    """Data that is missing, damaged or unknown; the message is one line with the remedy."""


def choose_rows(size: int, n: int | None, seed: int, what: str = 'training') -> np.ndarray:
    """A seeded random choice of n of `size` samples, increasing; all of them if n is None.

    Choices of one seed and size are nested.
    """
    if n is None:
        return np.arange(size)
    if not 1 <= n <= size:
        raise DataError(f'a subset of {n} {what} samples was asked for: use 1 to {size}')
    return np.sort(np.random.default_rng(seed).permutation(size)[:n])


def _read_bytes(path: Path) -> tuple[bytes, str]:
    """The uncompressed bytes as far as they can be read, and what went wrong ('' if nothing)."""
    openers: dict[str, Any] = {'.gz': gzip.open, '.xz': lzma.open}
    chunks = []
    try:
        with openers.get(path.suffix, open)(path, 'rb') as file:
            while chunk := file.read(1 << 20):
                chunks.append(chunk)
    except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        return b''.join(chunks), f' ({one_line(error)})'
    return b''.join(chunks), ''


def read_idx(path: Path, ndim: int) -> np.ndarray:
    """An IDX file of unsigned bytes: magic 0 0 8 ndim, big-endian int32 sizes, then the data."""
    content, fault = _read_bytes(path)
    header = 4 + 4 * ndim
    magic = bytes((0, 0, 8, ndim))
    if not fault and len(content) >= 4 and content[:4] != magic:
        raise DataError(
            f'{path} starts with the bytes {content[:4].hex()}, expected {magic.hex()}: '
            'it is not the official IDX file; delete it, then load again or download it anew'
        )
    sizes = np.frombuffer(content[4:header].ljust(4 * ndim, b'\0'), '>i4').tolist()
    expected = header + math.prod(sizes) if len(content) >= header else header
    if fault or len(content) != expected or not sizes[0]:
        raise _damaged(path, f'{expected:,}', len(content), fault)
    return np.frombuffer(content, np.uint8, offset=header).reshape(sizes)


def read_cifar(path: Path, label_bytes: int) -> np.ndarray:
    """CIFAR's binary records [n, label_bytes + 3072]: the labels, then the three colour planes."""
    content, fault = _read_bytes(path)
    width = label_bytes + 3072
    if fault or not content or len(content) % width:
        raise _damaged(path, f'a multiple of {width:,}', len(content), fault)
    return np.frombuffer(content, np.uint8).reshape(-1, width)


def _damaged(path: Path, expected: str, found: int, fault: str) -> DataError:
    return DataError(
        f'{path} is damaged or cut short: expected {expected} bytes uncompressed, '
        f'found {found:,}{fault}; delete it, then load again or download it anew'
    )


def read_writers(path: Path, n: int) -> np.ndarray | None:
    """Who wrote each of n samples, [n] int32; None without the file."""
    if not path.is_file():
        return None
    try:
        writers = np.load(path)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f'{path} is not readable ({one_line(error)}): replace it') from None
    if writers.shape != (n,) or writers.dtype.kind not in 'iu':
        raise DataError(
            f'{path} is {writers.shape} {writers.dtype}, expected ({n},) integers: replace it'
        )
    return writers.astype(np.int32)


def one_line(error: Exception) -> str:
    return ' '.join(f'{type(error).__name__}: {error}'.split())[:200]
