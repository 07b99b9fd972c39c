"""Data sets in the JSON of LEAF (Caldas et al., 2018), such as FEMNIST and Shakespeare.

Axis letters: n samples, L characters of a text.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from dfl_jax.data.dataset import (
    DataError,
    Dataset,
    check_classes,
    check_learns_classes,
    check_memory,
    folder_of,
    number_names,
)
from dfl_jax.data.text import alphabet_of, encode
from dfl_jax.files import read_text
from dfl_jax.tasks import CLASSIFICATION, Task

LAYOUT = 'train/*.json and test/*.json, as the preprocess.sh of LEAF writes them'
MOST_CLASSES = 100_000
PICTURES = ('.jpg', '.jpeg', '.png')  # how names of CelebA's files end
Samples = tuple[list[Any], list[Any], list[str]]  # inputs, targets and users, a sample each


def load(data_dir: str | Path | None, task: Task = CLASSIFICATION) -> Dataset:
    """The data set of a folder in LEAF's layout; its users are the natural clients.

    Inputs that are lists of numbers become [n, ...]: 784 numbers an image [28, 28, 1], as in
    FEMNIST, shifted and scaled to mean 0 and standard deviation 1 over all training values. Inputs
    that are texts of L characters, each with the next one as its target, as in Shakespeare, become
    [n, L], and their targets the L characters one further (task next_token).

    Args:
      data_dir: the folder with train and test; several files in each are one set.
      task: classification of inputs that are numbers, next_token of texts.

    Raises:
      SettingError: no such folder.
      DataError: no such files, files that are damaged, samples that differ in shape or
        do not fit the task (such as CelebA's names of images and Sent140's messages), or classes
        of the test set that the training set lacks.
    """
    root = folder_of(data_dir, f'leaf: set data_dir to a folder that holds {LAYOUT}')
    (train_x, train_y, users), (test_x, test_y, _) = (
        _read(root / half) for half in ('train', 'test')
    )
    texts = isinstance(train_x[0], str)
    _check_kind(root, train_x[0], train_y, task)
    sets = ((train_x, train_y), (test_x, test_y))
    owners = number_names(users)
    if texts:
        (train, test), classes = _characters(root, sets)
        return Dataset(
            *(train[:, :-1].astype(np.float32), train[:, 1:]),
            *(test[:, :-1].astype(np.float32), test[:, 1:]),
            classes,
            owners,
        )
    check_learns_classes(root, task, 'leave the task out')
    with np.errstate(over='ignore'):
        inputs = [_numbers(root, x, 'x').astype(np.float32) for x in (train_x, test_x)]
    labels = [_numbers(root, y, 'y') for y in (train_y, test_y)]
    if inputs[0].shape[1:] != inputs[1].shape[1:] or inputs[0].ndim < 2:
        raise DataError(
            f'{root}: the inputs x are {inputs[0].shape} in train and {inputs[1].shape} in test: '
            'give every sample a list of numbers of one length'
        )
    labels = [y.astype(np.int64) if _whole_floats(y) else y for y in labels]
    if any(y.ndim != 1 or y.dtype.kind not in 'iu' or y.min() < 0 for y in labels):
        raise DataError(f'{root}: the targets y must be whole numbers from 0, one a sample')
    classes = 1 + max(int(y.max()) for y in labels)  # in Python's integers, which do not wrap
    if classes > MOST_CLASSES:
        raise DataError(f'{root}: a target y is {classes - 1}: number the classes from 0')
    if not all(np.isfinite(x).all() for x in inputs):
        raise DataError(f'{root}: the inputs x must be finite numbers, as float32 holds')
    if inputs[0].shape[1:] == (28 * 28,):
        inputs = [x.reshape(-1, 28, 28, 1) for x in inputs]
    mean, deviation = inputs[0].mean(dtype=np.float64), inputs[0].std(dtype=np.float64)
    if not deviation:
        raise DataError(f'{root}: all inputs x of train are {mean}: replace the files')
    check_classes(root, *labels)
    x = [((each - mean) / deviation).astype(np.float32) for each in inputs]
    y = [each.astype(np.int32) for each in labels]
    return Dataset(x[0], y[0], x[1], y[1], classes, owners)


def _check_kind(root: Path, first: Any, targets: list[Any], task: Task) -> None:
    """Raises DataError for inputs, such as the first, that are not what the task takes."""
    inner = first
    while isinstance(inner, list) and inner:
        inner = inner[0]
    characters = isinstance(first, str) and all(isinstance(y, str) and len(y) == 1 for y in targets)
    if not isinstance(inner, str):
        if task.sequences:
            raise DataError(f'{root}: the inputs are numbers, not texts for {task.name}')
    elif inner.lower().endswith(PICTURES):
        raise DataError(
            f'{root}: the inputs are names of images, such as {inner[:60]}, which lie apart in '
            "LEAF's CelebA: put the images into folders of their classes and read them by "
            'image_folder, or write their pixels as lists of numbers'
        )
    elif isinstance(first, list) or not (characters or task.sequences):
        raise DataError(
            f"{root}: the inputs are texts with classes, as LEAF's Sent140 has them, and no task "
            'here takes these: write numbers in their place, such as counts of words or embeddings'
        )
    elif not task.sequences:
        raise DataError(f'{root}: the inputs are texts: set task to next_token')


def _whole_floats(y: np.ndarray) -> bool:
    """Whether they are whole numbers that are written with a point, as 3.0."""
    return y.dtype.kind == 'f' and bool((y == np.rint(y)).all() and (abs(y) < MOST_CLASSES).all())


def _read(folder: Path) -> Samples:
    """All samples of the files in a folder, in the order of the file names."""
    # macOS puts a hidden ._NAME.json beside NAME.json on a foreign disk
    paths = sorted(path for path in folder.glob('*.json') if not path.name.startswith('.'))
    if not paths:
        raise DataError(f'{folder} holds no .json: lay the files out as {LAYOUT}')
    x: list[Any] = []
    y: list[Any] = []
    users: list[str] = []
    for path in paths:
        for user, samples in _users(path).items():
            if not _is_user(samples):
                raise DataError(
                    f'{path}: the user {user} has no lists x and y of one length: replace the file'
                )
            x += samples['x']
            y += samples['y']
            users += [user] * len(samples['y'])
    if not x:
        raise DataError(f'{folder} holds no sample: replace its files')
    return x, y, users


def _users(path: Path) -> dict[str, Any]:
    """The user_data of a file."""
    try:
        # Python's lists of floats take about four bytes for one of the text
        check_memory(path, 5 * path.stat().st_size)
        content = json.loads(read_text(path))
    except DataError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        why = 'its brackets nest too deep' if isinstance(error, RecursionError) else error
        raise DataError(f'cannot read {path} as JSON: {why}') from None
    users = content.get('user_data') if isinstance(content, dict) else None
    if not isinstance(users, dict) or not isinstance(content.get('users', []), list):
        raise DataError(
            f'{path} must hold an object with "users" and "user_data", and in this '
            '"x" and "y" of every user, as LEAF writes it'
        )
    listed = content.get('users', [*users])
    if sorted(map(str, listed)) != sorted(users):
        odd = sorted({*map(str, listed)} ^ {*users}) or [f'{len(listed)} names']
        raise DataError(
            f'{path} must hold an object with "users" and "user_data" of the same users, which '
            f'differ in {", ".join(odd)[:100]}: replace the file'
        )
    return users


def _is_user(samples: Any) -> bool:
    if not isinstance(samples, dict):
        return False
    x, y = samples.get('x'), samples.get('y')
    return isinstance(x, list) and isinstance(y, list) and len(x) == len(y)


def _numbers(root: Path, values: list[Any], name: str) -> np.ndarray:
    try:
        array = np.array(values)
    except ValueError:
        raise DataError(f'{root}: the samples differ in the shape of {name}') from None
    if array.dtype.kind not in 'iuf' or not np.isfinite(array).all():
        raise DataError(f'{root}: {name} must be finite numbers')
    return array


def _characters(
    root: Path, sets: tuple[tuple[list[Any], list[Any]], ...]
) -> tuple[list[np.ndarray], int]:
    """The texts of the sets, each with its next character, as [n, L + 1]; and how many tokens."""
    lines = []
    for x, y in sets:
        length = len(sets[0][0][0])
        if not length or any(not isinstance(t, str) or len(t) != length for t in x):
            raise DataError(f'{root}: the texts x must all have the length of the first, {length}')
        if any(not isinstance(t, str) or len(t) != 1 for t in y):
            raise DataError(f'{root}: the target y of a text must be the one next character')
        lines.append([text + following for text, following in zip(x, y, strict=True)])
    alphabet = alphabet_of(lines[0] + lines[1])
    return [encode(each, alphabet) for each in lines], len(alphabet)
