"""Experiments as their flags make them, in this process, and digests of all that they are made of.

Two settings that lead to the same digests lead to the same run.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import numpy as np
from absl.testing import flagsaver
from flax import linen as nn

from dfl_jax.cli.flags.run_flags import GROUPS, METHOD, check_flags, experiment_of_flags
from dfl_jax.cli.run import command as cli
from dfl_jax.cli.start import parse
from dfl_jax.experiment import Experiment
from dfl_jax.experiment.build import BuiltExperiment

CLIENTS = 6
SHAPE, CLASSES, TRAIN, TEST = (6, 6, 1), 3, 120, 40


def given(*argv: object, then: Callable[[Experiment], Any]) -> Any:
    """then(experiment) of the flags of a run, as the command reads them."""
    with (
        flagsaver.flagsaver(),
        mock.patch.dict(GROUPS, {METHOD: [*GROUPS[METHOD]]}),  # a method of one's own adds to it
    ):
        try:
            parse(['run.py', '--devices=1', *map(str, argv)], cli)
            check_flags()
            return then(experiment_of_flags())
        finally:
            cli.FLAGS.unparse_flags()


def experiment(*argv: object) -> BuiltExperiment:
    """What the flags of a run describe."""
    return given(*argv, then=Experiment.build)


def digests(made: BuiltExperiment, initial: bool = True) -> dict[str, str]:
    """A digest of every part of an experiment but the settings of its method, which are those that
    flags give whatever becomes of them.

    initial: whether the initial weights of the clients are one of them.
    """
    parts = {
        field.name: getattr(made, field.name)
        for field in dataclasses.fields(made)
        if field.name not in ('experiment', 'rows', 'configured', 'algorithm', 'model', 'footprint')
    }
    parts |= {
        'code': made.rows.digest,
        'gain': made.configured.gain,
        'task': made.model.task.name,
        'shapes': made.model.shapes,
    }
    if made.population is not None:
        parts['population'] = {
            name: (c, m.shapes)
            for (name, c), m in zip(
                made.population.clients.items(), made.population.models.values(), strict=True
            )
        }
    if initial:
        state = made.algorithm.init(made.key, made.clients)
        state = getattr(state, 'slots', state)
        parts['initial'] = getattr(state, 'params', state)
    return {name: digest(part) for name, part in parts.items()}


def digest(tree: Any) -> str:
    """Of arrays by what they hold, of all other leaves by how they are written."""
    made = hashlib.sha256()
    leaves, structure = jax.tree.flatten(tree)
    made.update(str(structure).encode())
    for leaf in leaves:
        if isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        if isinstance(leaf, np.ndarray | jax.Array):
            made.update(f'{leaf.dtype} {leaf.shape}'.encode() + np.asarray(leaf).tobytes())
        else:
            made.update(repr(leaf).encode())
    return made.hexdigest()[:12]


def differing(first: dict[str, str], second: dict[str, str]) -> set[str]:
    """The names of the parts that differ."""
    return {name for name in first if first[name] != second[name]}


class Dropping(nn.Module):
    """A network with dropout: a model of one's own."""

    classes: int

    @nn.compact
    def __call__(self, x, train=False):
        x = nn.relu(nn.Dense(4)(x.reshape(len(x), -1)))
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(self.classes)(x)


def write_images(path: Path, seed: int = 0, scale: float = 1.0) -> Path:
    """Small images of three classes, of eight users."""
    rng = np.random.default_rng(seed)
    y = np.arange(TRAIN + TEST) % CLASSES
    x = scale * rng.normal(size=(len(y), *SHAPE)).astype(np.float32) + y[:, None, None, None] / 2
    x = x.astype(np.float32)
    halves = {'train_x': x[:TRAIN], 'train_y': y[:TRAIN], 'test_x': x[TRAIN:], 'test_y': y[TRAIN:]}
    np.savez(path, client=rng.integers(8, size=TRAIN), **halves)
    return path


def write_files(folder: Path) -> dict[str, Path]:
    """Files of every kind that a flag names, two of each, by their names."""
    write_images(folder / 'images.npz')
    write_images(folder / 'others.npz', seed=1)
    rng = np.random.default_rng(2)
    for name, of_target in (('labels', lambda x: x[:, :3] > 0), ('sums', lambda x: x[:, :3])):
        x = rng.normal(size=(60, 5)).astype(np.float32)
        y = of_target(x).astype(np.float32)
        arrays = {'train_x': x[:40], 'train_y': y[:40], 'test_x': x[40:], 'test_y': y[40:]}
        np.savez(folder / f'{name}.npz', **arrays)
    rows = [f'{a:.3f},{b:.3f},{k % 3},{k % 2}' for k, (a, b) in enumerate(rng.normal(size=(90, 2)))]
    (folder / 'table.csv').write_text('\n'.join(['a,b,kind,shop', *rows]))
    (folder / 'text.txt').write_text(''.join(rng.choice([*'abc '], 1200)))
    for number in (0, 1):
        parts = [list(range((i + number) % CLIENTS, TRAIN, CLIENTS)) for i in range(CLIENTS)]
        (folder / f'partition{number}.json').write_text(json.dumps(parts))
        (folder / f'chosen{number}.json').write_text(json.dumps([0, 1, 2 + number]))
        links = [(i, (i + 1) % CLIENTS) for i in range(CLIENTS)] + [(0, 2 + number)]
        (folder / f'edges{number}.txt').write_text('\n'.join(f'{a} {b}' for a, b in links))
        names = [('cnn-2', 'cnn-3')[(i // (1 + number)) % 2] for i in range(CLIENTS)]
        (folder / f'architectures{number}.txt').write_text('\n'.join(names))
        rows = [f'1e{7 + number},{(i + 1) * 1e5}' for i in range(CLIENTS)]
        (folder / f'world{number}.csv').write_text('\n'.join(['speed,uplink', *rows]))
    for number in (0, 1):
        write_mnist(folder / f'mnist{number}', number)
    write_pictures(folder / 'pictures')
    return {path.name: path for path in folder.iterdir()}


def write_mnist(folder: Path, seed: int) -> None:
    """Sixty training and ten test images in the official format, of three classes."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    for split, n in (('train', 60), ('t10k', 10)):
        for kind, shape in (('images-idx3', (n, 28, 28)), ('labels-idx1', (n,))):
            header = bytes((0, 0, 8, len(shape))) + np.array(shape, '>u4').tobytes()
            body = rng.integers(3, size=shape, dtype=np.uint8).tobytes()
            (folder / f'{split}-{kind}-ubyte').write_bytes(header + body)


def write_pictures(folder: Path) -> None:
    """An image folder of three classes."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for kind in 'abc':
        (folder / kind).mkdir(parents=True)
        for number in range(24):
            pixels = rng.integers(256, size=(9, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / kind / f'{number}.png')


def written_in(value: str, files: dict[str, Path]) -> str:
    """The value with the paths of {files} in it."""
    for name, path in files.items():
        value = value.replace(f'{{{name}}}', str(path))
    return value


def without(argv: Sequence[str], *names: str) -> list[str]:
    """The arguments but those flags."""
    return [flag for flag in argv if flag.lstrip('-').partition('=')[0] not in names]
