"""Clients whose inputs look different: turned, coloured or noisy, each in its own way.

The shift lies on top of any partition. Axis letters: M clients, N samples a client, n samples.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from dfl_jax.base import Clients
from dfl_jax.checks import check_choice
from dfl_jax.setting_error import SettingError
from dfl_jax.tasks import Task

KINDS = ('quarter_turns', 'angle', 'colour', 'noise')
LARGEST = {'angle': 180.0, 'colour': 10.0, 'noise': 1000.0}
STREAMS = {'law': 0, 'test': 1, 'training': 2, 'validation': 3}  # of random numbers
# (client, its inputs [n, ...], random numbers) -> these inputs, shifted
Law = Callable[[int, np.ndarray, np.random.Generator], np.ndarray]


class FeatureShift(NamedTuple):
    """How the inputs of clients differ.

    Kinds, with their strength S:
      quarter_turns: images are turned by 0, 90, 180 or 270 degrees, each by a quarter of the
        clients, up to one; no strength.
      angle: images are turned by an angle that is even from -S to S degrees; corners repeat the
        nearest pixel.
      colour: every channel c of an image becomes exp(S a_c) x + S b_c, with a_c and b_c standard
        normal numbers of the client, in units of the inputs.
      noise: client i of 1 to M adds normal noise of standard deviation S i / M, in units of the
        inputs, once to each sample. NIID-Bench (Li et al. 2022) calls S i / M the variance in its
        paper, and its program takes S (i - 1) / (M - 1) as the deviation, anew at every reading.
    """

    kind: str
    strength: float = 0.0


def parse(text: str) -> FeatureShift:
    """A shift from `quarter_turns`, `angle:S`, `colour:S` or `noise:S`. Raises SettingError."""
    kind, colon, strength = text.partition(':')
    check_choice('feature_shift', kind, KINDS, colon=None)
    value, wrong = 0.0, ''
    if kind == 'quarter_turns':
        wrong = 'quarter_turns has no strength; leave it out' if colon else ''
    else:
        try:
            value = float(strength)
            if not 0 < value <= LARGEST[kind]:
                wrong = f'use a strength above 0 and at most {LARGEST[kind]:g}'
        except ValueError:
            wrong = f'give a strength, as in {kind}:0.5'
    if wrong:
        raise SettingError.of(f'feature_shift {text}: {wrong}', feature_shift=text)
    return FeatureShift(kind, value)


def shift_clients(
    clients: Clients, shift: FeatureShift, seed: int, purpose: str = 'training'
) -> Clients:
    """The clients with their inputs shifted, each by its own law that follows from the seed.

    Args:
      clients: x [M, N, ...]; padding stays as it is.
      purpose: training or validation, whose noise differs under one law.

    Raises:
      SettingError: inputs that are not what the kind is for.
    """
    x, mask = np.array(clients.x), np.asarray(clients.mask)
    law = _law(shift, len(x), x.shape[2:], seed)
    for client, own in enumerate(mask):
        rng = np.random.default_rng([seed, STREAMS[purpose], client])
        x[client, own] = law(client, x[client, own], rng)
    return clients._replace(x=jnp.asarray(x))


def shifted(
    shift: FeatureShift, clients: Clients, validation: Clients | None, test_x: np.ndarray, seed: int
) -> tuple[Clients, Clients | None, np.ndarray]:
    """The clients, what they keep for validation if they do, and test inputs [n, ...], all under
    the shift. Raises SettingError where it does not fit."""
    test_x = shift_test(test_x, len(clients.y), shift, seed)
    if validation is not None:
        validation = shift_clients(validation, shift, seed, 'validation')
    return shift_clients(clients, shift, seed), validation, test_x


def shift_test(x: np.ndarray, clients: int, shift: FeatureShift, seed: int) -> np.ndarray:
    """Test inputs [n, ...], each shifted as those of a client drawn at random.

    So the test set is of all clients together, as it is without a shift.

    Args:
      clients: M; their laws are those of `shift_clients` with the same seed.
    """
    rng = np.random.default_rng([seed, STREAMS['test']])
    drawn = rng.integers(clients, size=len(x))
    shifted = x.copy()
    law = _law(shift, clients, x.shape[1:], seed)
    for client in range(clients):
        shifted[drawn == client] = law(client, x[drawn == client], rng)
    return shifted


def check_task(task: Task) -> None:
    """Raises SettingError for a task whose inputs are no numbers that could be shifted."""
    if task.sequences:
        text = f'feature_shift is for numbers, and {task.name} has tokens: leave it out'
        raise SettingError.of(text, task=task.name)


def _law(shift: FeatureShift, clients: int, shape: tuple[int, ...], seed: int) -> Law:
    """What each client does with inputs [n, *shape]."""
    if shift.kind != 'noise' and len(shape) != 3:
        raise SettingError.of(
            f'feature_shift {shift.kind} is for images [rows, columns, channels], and an input is '
            f'{shape}: use noise:S',
            feature_shift=shift.kind,
        )
    rng = np.random.default_rng([seed, STREAMS['law']])
    if shift.kind == 'quarter_turns':
        if shape[0] != shape[1]:
            text = f'feature_shift quarter_turns needs square images, not {shape}'
            raise SettingError.of(text, feature_shift=shift.kind)
        turns = rng.permutation(clients) % 4
        return lambda i, x, _: np.rot90(x, int(turns[i]), axes=(1, 2))
    if shift.kind == 'angle':
        from scipy.ndimage import rotate

        bilinear = partial(rotate, axes=(1, 2), reshape=False, order=1, mode='nearest')
        angles = rng.uniform(-shift.strength, shift.strength, clients)
        return lambda i, x, _: bilinear(x, float(angles[i]))
    if shift.kind == 'colour':
        logs, offsets = shift.strength * rng.standard_normal((2, clients, shape[-1]))
        gains = np.exp(logs)
        return lambda i, x, _: (gains[i] * x + offsets[i]).astype(x.dtype)
    deviations = [shift.strength * (i + 1) / clients for i in range(clients)]
    return lambda i, x, rng: x + deviations[i] * rng.standard_normal(x.shape, dtype=np.float32)
