"""Texts whose next character is predicted: a .txt file, or the sonnets of the package.

Axis letters: n windows, L characters of a window, C different characters.
"""

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from dfl_jax.data.dataset import DataError, Dataset, check_memory, choose_test_rows
from dfl_jax.files import read_text
from dfl_jax.setting_error import SettingError

SONNETS = Path(__file__).with_name('sonnets.txt')  # 22 of Shakespeare's 154, in the public domain
WINDOW = 40  # default L


def load(path: Path, text_window: int | None = None, test_share: float | None = None) -> Dataset:
    """The data set of a text: inputs [n, L], targets [n, L], the characters one further.

    The text is cut into passages at its empty lines, and every passage from its beginning into
    windows that do not overlap; what is left at its end is not used, nor is a passage of less than
    L + 1 characters. A passage is a natural client. Characters are numbered in the order of their
    code points.

    Args:
      path: a text in UTF-8.
      text_window: L; default, `WINDOW`.
      test_share: of the windows that are the test set, drawn at random; default, 0.2.

    Raises:
      SettingError: a window of no character.
      DataError: a file that cannot be read, or too short a text.
    """
    length = WINDOW if text_window is None else text_window
    if length < 1:
        text = f'the window has {length} characters: use 1 or more'
        raise SettingError.of(text, text_window=length)
    try:
        text = read_text(path)
    except OSError as error:
        raise DataError(f'cannot read {path}: {error}') from None
    check_memory(path, 16.0 * len(text))
    passages = [passage for passage in map(str.strip, _passages(text)) if len(passage) > length]
    pieces = [
        (passage[start : start + length + 1], owner)
        for owner, passage in enumerate(passages)
        for start in range(0, len(passage) - length, length)
    ]
    if len(pieces) < 2:
        raise DataError(
            f'{path} has {len(pieces)} windows of {length} characters and the next one: use a '
            'longer text, longer passages between its empty lines, or a smaller window'
        )
    tokens = encode([piece for piece, _ in pieces], alphabet_of(passages))  # [n, L + 1]
    owners = np.array([owner for _, owner in pieces], np.int32)
    test = choose_test_rows(len(pieces), test_share, path)
    x, y = tokens[:, :-1].astype(np.float32), tokens[:, 1:]
    classes = int(tokens.max()) + 1
    return Dataset(x[~test], y[~test], x[test], y[test], classes, owners[~test])


def alphabet_of(texts: Iterable[str]) -> str:
    """The different characters of the texts, sorted."""
    return ''.join(sorted(set().union(*texts)))


def encode(texts: Sequence[str], alphabet: str) -> np.ndarray:
    """The position of every character in the alphabet, of texts of one length: [n, L] int32."""
    # numpy's texts are arrays of code points
    points = np.array(texts, f'U{len(texts[0])}').view(np.uint32).reshape(len(texts), -1)
    return np.searchsorted(np.frombuffer(alphabet.encode('utf-32-le'), np.uint32), points).astype(
        np.int32
    )


def _passages(text: str) -> list[str]:
    """The parts of a text between its empty lines."""
    parts = itertools.groupby(map(str.rstrip, text.splitlines()), bool)
    return ['\n'.join(lines) for full, lines in parts if full]
