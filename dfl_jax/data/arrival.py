"""Samples that arrive over time: the round from which each of a client's samples is there.

Rounds are counted from 0, so that a sample of round 0 is there from the start.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dfl_jax.files import read_json
from dfl_jax.setting_error import SettingError

FORMS = 'linear:ROUNDS, class_by_class:ROUNDS or file:PATH'
MOST = 10**6  # rounds


def arrival_rounds(
    text: str, y: np.ndarray, parts: Sequence[np.ndarray], seed: int = 0
) -> np.ndarray:
    """The round from which each sample is there, [M, N] int32, in the places of `data.pack`.

    Args:
      text: `linear:R`, each client's samples in a random order, as many in each of R rounds;
        `class_by_class:R`, class c of C in round floor(c R / C), at all clients alike; or
        `file:PATH`, a JSON list of the round of every training sample.
      y: targets of the training set, [n, ...].
      parts: M arrays of indices into it.
      seed: of the order.

    Raises SettingError, one line.

    >>> arrival_rounds('class_by_class:4', np.array([0, 1, 1, 0]), [[0, 1], [2]]).tolist()
    [[0, 2], [2, 0]]
    """
    kind, _, value = text.partition(':')
    if kind == 'file':
        by_sample = _from_file(text, Path(value), len(y))
    elif kind in ('linear', 'class_by_class') and value.isdecimal() and 0 < int(value) <= MOST:
        by_sample = None if kind == 'linear' else _by_class(text, np.asarray(y), int(value))
    else:
        raise SettingError('arrival', text, f'is none of {FORMS}', colon=False)
    arrival = np.zeros((len(parts), max(map(len, parts))), np.int32)
    rng = np.random.default_rng(seed)
    for row, part in zip(arrival, parts, strict=True):
        if by_sample is None:
            row[: len(part)] = rng.permutation(len(part)) * int(value) // len(part)
        else:
            row[: len(part)] = by_sample[np.asarray(part)]
    return arrival


def _by_class(text: str, y: np.ndarray, rounds: int) -> np.ndarray:
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise SettingError('arrival', text, 'needs targets that are classes', 'use linear:ROUNDS')
    return y * rounds // (y.max() + 1)


def _from_file(text: str, path: Path, samples: int) -> np.ndarray:
    try:
        rounds = read_json(path)
    except ValueError as error:
        raise SettingError('arrival', text, str(error)) from None
    whole = isinstance(rounds, list) and all(type(r) is int and 0 <= r < 2**31 for r in rounds)
    if not whole or len(rounds) != samples:
        found = (
            f'{len(rounds)} whole numbers from 0' if whole else 'no list of whole numbers from 0'
        )
        raise SettingError(
            *('arrival', text, f'holds {found}, and the training set {samples} samples'),
            'give the round of each of them',
        )
    return np.array(rounds, np.int32)
