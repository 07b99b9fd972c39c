"""Files that are wrong, each in its own way, and the few good ones that stand beside them."""

import gzip
import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np

NOISE = random.Random(0).randbytes(3000)
DEEP = '[' * 100_000
CLIENTS = 6  # of the runs that are given these files
GOOD_PARTS = [[i, i + 6] for i in range(CLIENTS)]

PARTITIONS: dict[str, str | bytes] = {
    'null': 'null',
    'number': '3',
    'text': '"text"',
    'list': '[1, 2, 3, 4, 5, 6]',
    'object': '{"0": [1]}',
    'empty': '[]',
    'nested': '[[[0]], [[1]], [[2]], [[3]], [[4]], [[5]]]',
    'floats': '[[0.5], [1], [2], [3], [4], [5]]',
    'texts': '[["0"], ["1"], ["2"], ["3"], ["4"], ["5"]]',
    'bools': '[[true], [1], [2], [3], [4], [5]]',
    'negative': '[[-1], [1], [2], [3], [4], [5]]',
    'beyond': '[[120], [1], [2], [3], [4], [5]]',
    'huge': '[[99999999999999999999999], [1], [2], [3], [4], [5]]',
    'twice': '[[0, 0], [1], [2], [3], [4], [5]]',
    'few': '[[0], [1]]',
    'lonely': '[[0], [1], [2], [3], [4], []]',
    'nan': '[[NaN], [1], [2], [3], [4], [5]]',
    'deep': DEEP,
    'deep-objects': '{"a":' * 100_000,
    'cut': '[[0], [1], [2',
    'nulls': '[null, null, null, null, null, null]',
    'utf16': json.dumps(GOOD_PARTS).encode('utf-16'),
    'nul-bytes': '\0' * 100,
}
EDGES = {
    'beyond': '0 1\n1 6\n',
    'negative': '0 -1\n1 2\n',
    'float': '0 1.5\n',
    'huge': '0 99999999999999999999999\n',
}
RUN_CONFIGS: dict[str, str | bytes] = {
    'null': 'null',
    'list': '[]',
    'deep': DEEP,
    'settings': '{"settings": {"clients": "many", "nonsense": 3}}',
    'binary': NOISE,
}
CURVES = {
    'number': {'runs': {'dpsgd-iid': 5}, 'warnings': []},
    'null': {'runs': {'dpsgd-iid': None}, 'warnings': None},
    'text': {'runs': {'dpsgd-iid': ['text']}, 'warnings': []},
    'ragged': {
        'runs': {'dpsgd-iid': [{'run': 'dpsgd-iid', 'round': [1, 2], 'consensus_accuracy': [0.5]}]},
        'warnings': [],
    },
}
MODULE = """
from flax import linen as nn
from dfl_jax.methods import METHODS

number = 3

def no_arguments():
    return None

def returns_none(model, **settings):
    return None

def returns_number(model, **settings):
    return 3

def keyword(*, needed):
    return needed

def raises(model, **settings):
    raise RuntimeError('a fault of its own')

def exits(model, **settings):
    raise SystemExit(0)

def _with(**changes):
    def make(model, **settings):
        if isinstance(model, int):  # --model=...: of so many classes
            return nn.Dense(model, kernel_init=_fail)
        return METHODS['dpsgd'].factory(model)._replace(**changes)
    return make

def _fail(*_, **__):
    raise RuntimeError('a fault of its own')

raises_in_init = _with(init=_fail)
raises_in_step = _with(step=_fail)
"""


def write(folder: Path) -> Path:
    """All of them into an empty folder."""
    (folder / 'empty').mkdir()
    (folder / 'folder.npz').mkdir()
    for name in ('fifo', 'fifo.npz'):
        os.mkfifo(folder / name)
    texts: dict[str, Any] = {
        'empty.json': '',
        'binary': NOISE,
        'null.json': 'null',
        'list.json': '[]',
        'deep.json': DEEP,
        'self.flags': f'--flagfile={folder}/self.flags\n',
        'unknown.flags': '--nonsense=1\n',
        'free.flags': 'clients 6\n',
        'architectures-few': 'cnn-4\ncnn-4\n',
        'architectures-unknown': 'cnn-4\n' * 5 + 'nonsense\n',
        **{f'partition-{name}.json': text for name, text in PARTITIONS.items()},
        **{f'edges-{name}': text for name, text in EDGES.items()},
        **{f'curves-{name}.json': json.dumps(curves) for name, curves in CURVES.items()},
    }
    for name, text in texts.items():
        (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    _write_datasets(folder)
    _write_idx(folder)
    _write_pictures(folder)
    _write_modules(folder / 'modules')
    for name, text in RUN_CONFIGS.items():
        run = folder / 'broken-runs' / f'dpsgd-iid-{name}'
        run.mkdir(parents=True)
        (run / 'config.json').write_bytes(text if isinstance(text, bytes) else text.encode())
        (run / 'metrics.jsonl').write_text('null\n')
    (folder / 'broken-runs' / 'dpsgd-iid-folder' / 'config.json').mkdir(parents=True)
    return folder


def clusters(shape: tuple[int, ...] = (8,)) -> dict[str, np.ndarray]:
    """A data set of three classes, 120 training and 40 test samples."""
    rng = np.random.default_rng(0)
    y = np.arange(160) % 3
    x = (rng.normal(size=(160, *shape)) + y.reshape(-1, *[1] * len(shape))).astype(np.float32)
    return {'train_x': x[:120], 'train_y': y[:120], 'test_x': x[120:], 'test_y': y[120:]}


def _write_datasets(folder: Path) -> None:
    good = clusters()
    x, y = good['train_x'], good['train_y']

    def with_label(value: int, kind: type = np.int64) -> np.ndarray:
        return np.where(np.arange(len(y)) == 3, np.array(value, kind), y.astype(kind))

    def with_input(value: float) -> np.ndarray:
        changed = x.copy()
        changed[3, 2] = value
        return changed

    changes: dict[str, dict[str, Any]] = {
        'tiny': {},
        'objects': {'train_x': x.astype(object)},
        'nan': {'train_x': with_input(np.nan)},
        'inf': {'train_x': with_input(np.inf)},
        'label-huge': {'train_y': with_label(10**9)},
        'label-negative': {'train_y': with_label(-1)},
        'label-uint64': {'train_y': with_label(2**64 - 1, np.uint64)},
        'label-beyond': {'train_y': with_label(2**32 + 1)},
        'label-float': {'train_y': y + 0.5},
        'label-matrix': {'train_y': np.eye(3)[y]},
        'rows-none': {'train_x': x[:0], 'train_y': y[:0]},
        'rows-differ': {'train_y': y[:-1]},
        'features-none': {'train_x': x[:, :0], 'test_x': good['test_x'][:, :0]},
        'features-differ': {'test_x': good['test_x'][:, :5]},
        'text': {'train_x': x.astype(str)},
        'complex': {'train_x': x + 1j},
        'scalar': {'train_x': np.float32(3)},
        'test-none': {'test_x': good['test_x'][:0], 'test_y': good['test_y'][:0]},
        'bool': {'train_y': y > 0},
        'test-label': {'test_y': np.where(np.arange(40) == 3, 10**9, good['test_y'])},
    }
    for name, change in changes.items():
        np.savez(folder / f'{name}.npz', **good | change)
    np.savez(folder / 'images.npz', **clusters((8, 8, 1)))
    np.savez(folder / 'keys.npz', x=x, y=y)
    rows = (f'{i * i % 13},{i % 7},{i % 3}' for i in range(120))
    (folder / 'binary.txt').write_bytes(NOISE)
    (folder / 'table.csv').write_text('\n'.join(('a,b,y', *rows)))
    whole = (folder / 'tiny.npz').read_bytes()
    (folder / 'cut.npz').write_bytes(whole[:-200])
    (folder / 'header.npz').write_bytes(whole.replace(b"'descr'", b"'dexcr'"))
    (folder / 'zip.npz').write_bytes(NOISE)
    (folder / 'pickle.npz').write_bytes(pickle.dumps(good))


def _write_idx(folder: Path) -> None:
    rng = np.random.default_rng(0)

    def images(sizes: tuple[int, ...], count: int) -> bytes:
        header = bytes((0, 0, 8, len(sizes))) + np.array(sizes, '>i4').tobytes()
        return header + rng.integers(3, size=count, dtype=np.uint8).tobytes()

    x, y = 'train-images-idx3-ubyte', 'train-labels-idx1-ubyte'
    good = {
        x: images((40, 28, 28), 40 * 784),
        y: images((40,), 40),
        't10k-images-idx3-ubyte': images((10, 28, 28), 10 * 784),
        't10k-labels-idx1-ubyte': images((10,), 10),
    }
    changes: dict[str, dict[str, bytes]] = {
        'no-rows': {x: images((0, 28, 28), 0), y: images((0,), 0)},
        'negative': {x: images((-40, -28, 28), 40 * 784)},
        'cut-gz': {f'{x}.gz': gzip.compress(good[x])[:2000]},
        'not-gz': {f'{x}.gz': good[x]},
        'magic': {x: b'\x00\x00\x0d\x03' + good[x][4:]},
        'huge': {x: images((2**31 - 1, 2**31 - 1, 28), 40 * 784)},
        'labels-few': {y: images((39,), 39)},
        'label-200': {y: good[y][:-1] + bytes((200,))},
    }
    for name, change in changes.items():
        (folder / f'idx-{name}').mkdir()
        replaced = {each.removesuffix('.gz') for each in change}
        kept = {each: content for each, content in good.items() if each not in replaced}
        for file, content in (kept | change).items():
            (folder / f'idx-{name}' / file).write_bytes(content)


def _write_pictures(folder: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)

    def picture(path: str) -> None:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(256, size=(8, 8, 3), dtype=np.uint8)).save(file)

    layouts = ('good', 'fifo', 'broken', 'empty-class', 'folder')
    for layout in layouts:
        for label in ('a', 'b', 'c'):
            for number in range(40):
                picture(f'images-{layout}/{label}/{number}.png')
    os.mkfifo(folder / 'images-fifo/a/x.png')
    (folder / 'images-broken/b/x.png').write_bytes(NOISE)
    (folder / 'images-empty-class/d').mkdir()
    (folder / 'images-folder/a/x.png').mkdir()
    picture('images-no-classes/x.png')
    picture('images-one/a/x.png')
    picture('images-strangers/train/a/x.png')
    picture('images-strangers/test/b/x.png')
    for number in range(20):
        file = folder / f'images-flat/a/{number}.png'
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new('RGB', (8, 8)).save(file)


def _write_modules(folder: Path) -> None:
    folder.mkdir()
    (folder / 'bad_good.py').write_text(MODULE)
    (folder / 'bad_syntax.py').write_text('def make(:\n')
    (folder / 'bad_raises.py').write_text("raise RuntimeError('a fault of its own')\n")
    (folder / 'bad_exits.py').write_text('import sys\nsys.exit(0)\n')
    (folder / 'bad_interrupts.py').write_text("raise MemoryError('a fault of its own')\n")
