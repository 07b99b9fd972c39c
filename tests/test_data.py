"""Sources, partitions and packing."""

import functools
import gzip
import hashlib
import http.server
import json
import lzma
import math
import os
import socketserver
import sys
import tarfile
import threading
import tracemalloc
import warnings

import numpy as np
import pytest
from helpers import assert_refused
from scipy.special import digamma
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from dfl_jax import data
from dfl_jax.data import DataError, official, so2sat
from dfl_jax.plots import plot_partition
from dfl_jax.setting_error import SettingError
from dfl_jax.tasks import NEXT_TOKEN

PACK = {'': bytes, '.gz': gzip.compress, '.xz': lzma.compress}
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
DISJOINT = {
    'iid': {},
    'dirichlet': {'alpha': 0.1},
    'dirichlet_split': {'alpha': 0.5},
    'lognormal': {'lognormal_sigma': 1.5},
    'writer': {},
    'shards': {},
}
BY_SEED = DISJOINT | {'zipf': {}}  # which leaves some samples out
EQUAL = ('iid', 'dirichlet', 'shards')


def rng(seed=0):
    return np.random.default_rng(seed)


def dataset(labels=LABELS, writers=37):
    x = np.arange(len(labels), dtype=np.float32)[:, None]
    owners = rng(5).integers(writers, size=len(labels), dtype=np.int32)
    return data.Dataset(x, labels.astype(np.int32), x[:5], labels[:5], 10, owners)


def class_counts(parts, labels=LABELS, classes=10):
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])


def entropy(counts):
    q = counts / counts.sum(axis=1, keepdims=True)
    return -np.where(q > 0, q * np.log(np.where(q > 0, q, 1)), 0).sum(axis=1).mean()


@pytest.fixture
def offline(monkeypatch):
    """Every download fails at once."""
    pooch = pytest.importorskip('pooch')

    def retrieve(*args, **kwargs):
        raise OSError('no route\nto host')

    monkeypatch.setattr(pooch, 'retrieve', retrieve)


# ------------------------------------------------------------------------------------- sources


def idx(array):
    return bytes((0, 0, 8, array.ndim)) + np.array(array.shape, '>i4').tobytes() + array.tobytes()


def write_idx(folder, suffix='', train=30, test=10):
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for which, n in (('train', train), ('t10k', test)):
        arrays[which] = (
            rng(n).integers(256, size=(n, 28, 28), dtype=np.uint8),
            np.uint8(np.arange(n) % 10),
        )
        for kind, array in zip(('images-idx3', 'labels-idx1'), arrays[which], strict=True):
            (folder / f'{which}-{kind}-ubyte{suffix}').write_bytes(PACK[suffix](idx(array)))
    return arrays


@pytest.mark.parametrize('suffix', PACK)
@pytest.mark.parametrize(
    ('name', 'mean', 'std'), [('mnist', 0.1307, 0.3081), ('fashion_mnist', 0.2860, 0.3530)]
)
def test_idx_files(tmp_path, name, mean, std, suffix):
    arrays = write_idx(tmp_path / name, suffix)
    found = data.load(name, tmp_path)
    for which, x, y in (
        ('train', found.train_x, found.train_y),
        ('t10k', found.test_x, found.test_y),
    ):
        images, labels = arrays[which]
        assert (x.dtype, y.dtype) == (np.float32, np.int32)
        np.testing.assert_allclose(x, (images[..., None] / 255 - mean) / std, atol=1e-5)
        np.testing.assert_array_equal(y, labels)
    assert found.classes == 10
    assert found.owners is None


def test_data_dir_may_hold_the_files_itself(tmp_path):
    write_idx(tmp_path)
    assert data.load('mnist', str(tmp_path)).train_x.shape == (30, 28, 28, 1)


def test_mnist_writers(tmp_path):
    write_idx(tmp_path)
    np.save(tmp_path / 'train-writer-ids.npy', np.arange(30, dtype=np.int16) // 4)
    np.testing.assert_array_equal(data.load('mnist', tmp_path).owners, np.arange(30) // 4)
    assert data.load('fashion_mnist', tmp_path).owners is None
    np.save(tmp_path / 'train-writer-ids.npy', np.arange(29))
    assert_refused(r'train-writer-ids.npy is \(29,\).*expected \(30,\)', 'mnist', tmp_path)


@pytest.mark.parametrize('suffix', PACK)
@pytest.mark.parametrize(
    ('name', 'folder', 'train', 'test', 'mean', 'std'),
    [
        (
            *('cifar10', 'cifar-10-batches-bin', [f'data_batch_{i}' for i in range(1, 6)]),
            *('test_batch', (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
        ),
        (
            *('cifar100', 'cifar-100-binary', ['train']),
            *('test', (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
        ),
    ],
)
def test_cifar_records(tmp_path, name, folder, train, test, mean, std, suffix):
    fine = 90 if name == 'cifar100' else 0
    home = tmp_path / name / folder
    home.mkdir(parents=True)
    images, labels = [], []
    for number, file in enumerate([*train, test]):
        pixels = rng(number).integers(256, size=(3, 3, 32, 32), dtype=np.uint8)
        label = np.array([number, 9, 0], np.uint8)
        columns = [label[:, None], pixels.reshape(3, -1)]
        if fine:
            label = label + np.uint8(fine)
            columns = [np.full((3, 1), 7, np.uint8), label[:, None], columns[1]]
        content = np.concatenate(columns, axis=1).tobytes()
        (home / f'{file}.bin{suffix}').write_bytes(PACK[suffix](content))
        images.append(pixels)
        labels.append(label)
    found = data.load(name, tmp_path)
    x = (np.concatenate(images[:-1]).transpose(0, 2, 3, 1) / 255 - mean) / std
    np.testing.assert_allclose(found.train_x, x, atol=1e-5)
    assert found.train_x.flags.c_contiguous
    np.testing.assert_array_equal(found.train_y, np.concatenate(labels[:-1]))
    np.testing.assert_array_equal(found.test_y, labels[-1])
    assert found.classes == (100 if fine else 10)
    data.load(name, home)

    path = home / f'{test}.bin{suffix}'
    path.write_bytes(PACK[suffix](content[:-1]))
    assert_refused(f'{test}.bin.*multiple of {3073 + bool(fine):,} bytes', name, tmp_path)


@pytest.mark.parametrize('suffix', PACK)
def test_truncated_file(tmp_path, suffix):
    write_idx(tmp_path, suffix)
    path = tmp_path / f'train-images-idx3-ubyte{suffix}'
    path.write_bytes(path.read_bytes()[:-100])
    message = assert_refused('found.* delete it', 'mnist', tmp_path)
    assert str(path) in message
    if not suffix:
        assert f'expected {16 + 30 * 784:,} bytes' in message
        assert f'found {16 + 30 * 784 - 100:,}' in message


def test_trailing_bytes(tmp_path):
    write_idx(tmp_path)
    path = tmp_path / 'train-labels-idx1-ubyte'
    path.write_bytes(path.read_bytes() + b'\0')
    assert_refused('expected 38 bytes uncompressed, found 39', 'mnist', tmp_path)


@pytest.mark.parametrize('suffix', ['.gz', '.xz'])
def test_corrupt_stream(tmp_path, suffix):
    write_idx(tmp_path, suffix)
    path = tmp_path / f'train-labels-idx1-ubyte{suffix}'
    path.write_bytes(b'<html>not found</html>')
    assert_refused(r'train-labels-idx1-ubyte.*found 0', 'mnist', tmp_path)


def test_bad_magic(tmp_path):
    write_idx(tmp_path)
    path = tmp_path / 't10k-labels-idx1-ubyte'
    path.write_bytes(b'\0\0\x09\x01' + path.read_bytes()[4:])
    assert_refused(r't10k-labels-idx1-ubyte.*00000901.*00000801', 'mnist', tmp_path)


def test_every_download_is_by_https_and_has_a_sha256():
    for source in official.IMAGE_SETS.values():
        assert source.url.startswith('https://')
        assert len(source.sha256) == (1 if source.folder else len(source.train + source.test))
        assert all(len(bytes.fromhex(digest)) == 32 for digest in source.sha256)


@pytest.mark.parametrize('name', ['mnist', 'fashion_mnist'])
def test_the_sums_are_of_the_official_files(data_dir, name):
    source = official.IMAGE_SETS[name]
    for file, digest in zip(source.train + source.test, source.sha256, strict=True):
        content = (data_dir / name / f'{file}.gz').read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest


@pytest.mark.parametrize('suffix', PACK)
@pytest.mark.parametrize(
    ('sizes', 'message'),
    [
        ((0, 28, 28), '0 x 28 x 28 bytes'),
        ((5, 0, 28), '5 x 0 x 28 bytes'),
        ((-5, 28, 28), '-5 x 28 x 28 bytes'),
        ((-5, -28, 28), '-5 x -28 x 28 bytes'),
        ((2**31 - 1,) * 3, '2147483647 x 2147483647 x 2147483647 bytes'),
        ((2**21, 28, 28), r'2097152 x 28 x 28 bytes'),
        ((1_000_000, 28, 28), r'expected 784,000,016 bytes uncompressed, found 39'),
    ],
)
def test_sizes_of_a_header(tmp_path, suffix, sizes, message):
    write_idx(tmp_path, suffix)
    header = bytes((0, 0, 8, 3)) + np.array(sizes, '>i4').tobytes()
    path = tmp_path / f'train-images-idx3-ubyte{suffix}'
    path.write_bytes(PACK[suffix](header + bytes(23)))
    tracemalloc.start()
    assert str(path) in assert_refused(message, 'mnist', tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()


@pytest.mark.parametrize('suffix', ['.gz', '.xz'])
def test_no_more_is_unpacked_than_the_header_announces(tmp_path, suffix):
    write_idx(tmp_path, suffix)
    path = tmp_path / f'train-labels-idx1-ubyte{suffix}'
    path.write_bytes(PACK[suffix](idx(np.zeros(30, np.uint8)) + bytes(2**26)))
    tracemalloc.start()
    assert_refused('expected 38 bytes uncompressed, found 39', 'mnist', tmp_path)
    assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()


def test_cifar_of_too_many_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr('dfl_jax.data.official.LARGEST', 3073 * 2)
    home = tmp_path / 'cifar10' / 'cifar-10-batches-bin'
    home.mkdir(parents=True)
    for file in official.IMAGE_SETS['cifar10'].train + official.IMAGE_SETS['cifar10'].test:
        (home / f'{file}.xz').write_bytes(lzma.compress(bytes(3073 * 3)))
    assert_refused(r'data_batch_1.bin.xz is damaged.* more than the 0.0 MiB', 'cifar10', tmp_path)


def test_test_images_of_another_size(tmp_path):
    write_idx(tmp_path)
    images = np.zeros((10, 14, 14), np.uint8)
    (tmp_path / 't10k-images-idx3-ubyte').write_bytes(idx(images))
    assert_refused(r't10k.* holds images 14 x 14, and .*train.* 28 x 28', 'mnist', tmp_path)


def test_what_is_no_plain_file(tmp_path):
    write_idx(tmp_path)
    path = tmp_path / 't10k-labels-idx1-ubyte'
    path.unlink()
    for make, what in ((os.mkfifo, 'a named pipe'), (os.mkdir, 'a folder')):
        make(path)
        assert_refused(rf'{path}: it is {what}, not a file; replace it', 'mnist', tmp_path)
        path.unlink() if what == 'a named pipe' else path.rmdir()
    (tmp_path / 'train-writer-ids.npy').mkdir()
    write_idx(tmp_path)
    assert_refused(r'writer-ids.npy is not readable .* it is a folder', 'mnist', tmp_path)
    pipe = tmp_path / 'pipe.npz'
    os.mkfifo(pipe)
    for path in (pipe, tmp_path / 'folder.npz'):
        path.exists() or path.mkdir()
        assert_refused(rf'cannot read {path} as a .npz .*it is a .* np.savez', str(path))
    for path in (pipe, tmp_path, '/dev/zero'):
        with pytest.raises(DataError, match=r'it is a .*, not a file'):
            data.from_file(path, 10)


@pytest.mark.parametrize(
    'content', [b'', b'\x93NUMPY', b'\x93NUMPY\x01\x00\x10\x00((((((((((((((((', b'PK\3\4']
)
def test_damaged_writers(tmp_path, content):
    write_idx(tmp_path)
    (tmp_path / 'train-writer-ids.npy').write_bytes(content)
    assert_refused(r'train-writer-ids.npy is not readable .*replace it', 'mnist', tmp_path)


def test_writers_beyond_32_bits(tmp_path):
    write_idx(tmp_path)
    np.save(tmp_path / 'train-writer-ids.npy', np.arange(30) + 2**32)
    assert_refused(r'the writers 4294967296 to 4294967325, beyond 32 bits', 'mnist', tmp_path)


@pytest.mark.parametrize('content', [b'', b'\0\0', b'\0\0\x08\x03\0\0\0\x05', idx(np.zeros(0))])
def test_headers_cut_short(tmp_path, content):
    write_idx(tmp_path)
    (tmp_path / 'train-images-idx3-ubyte').write_bytes(content)
    assert_refused('train-images-idx3-ubyte', 'mnist', tmp_path)


def test_inconsistent_files(tmp_path):
    write_idx(tmp_path)
    path = tmp_path / 'train-labels-idx1-ubyte'
    path.write_bytes(idx(np.zeros(29, np.uint8)))
    assert_refused(r'30 images.*29 labels', 'mnist', tmp_path)
    path.write_bytes(idx(np.full(30, 10, np.uint8)))
    assert_refused('label 10 of 10 classes', 'mnist', tmp_path)


def test_mnist_does_not_pass_for_fashion_mnist(tmp_path, monkeypatch):
    labels = write_idx(tmp_path)['train'][1]
    digest = hashlib.md5(labels.tobytes()).hexdigest()
    known = official.IMAGE_SETS['mnist']._replace(labels_md5=digest)
    monkeypatch.setitem(official.IMAGE_SETS, 'mnist', known)
    data.load('mnist', tmp_path)
    assert_refused('belongs to mnist, not to fashion_mnist', 'fashion_mnist', tmp_path)


def test_npz(tmp_path):
    path = tmp_path / 'own.npz'
    x, y = rng().normal(size=(6, 5)), np.array([0, 1, 2, 3, 0, 1])
    np.savez(path, train_x=x, train_y=y, test_x=x[:2], test_y=y[:2])
    found = data.load(str(path))
    np.testing.assert_array_equal(found.train_x, x.astype(np.float32))
    np.testing.assert_array_equal(found.train_y, y)
    assert (found.test_x.shape, found.classes, found.train_y.dtype) == ((2, 5), 4, np.int32)

    pixels = np.full((6, 2, 2, 1), 51, np.uint8)
    np.savez(path, train_x=pixels, train_y=y, test_x=pixels[:2], test_y=y[:2])
    np.testing.assert_allclose(data.load(str(path)).train_x, 0.2, rtol=1e-6)


def test_yes_and_no_are_one_and_zero(tmp_path):
    yes = np.arange(30).reshape(6, 5) % 2 == 1
    np.savez(
        tmp_path / 'set.npz', train_x=yes, train_y=yes[:, 0], test_x=yes[:2], test_y=yes[:2, 0]
    )
    found = data.load(tmp_path / 'set.npz')
    np.testing.assert_array_equal(found.train_x, yes.astype(np.float32))
    assert found.train_y.tolist() == [0, 1, 0, 1, 0, 1] and found.classes == 2


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        ({'train_y': None}, 'train_y'),
        ({'train_y': np.zeros(5, int)}, 'train_x is'),
        ({'test_x': np.zeros((2, 4))}, 'test_x is'),
        ({'train_x': np.zeros(6), 'test_x': np.zeros(2)}, 'train_x is'),
        ({'train_y': np.full(6, -1)}, 'integers'),
        ({'test_y': np.zeros(2)}, 'integers'),
        ({'train_x': np.full((6, 5), np.nan)}, 'finite'),
        ({'test_x': np.full((2, 5), np.inf)}, 'test_x .float64. must be finite'),
        ({'train_x': np.full((6, 5), 1e300)}, 'train_x .float64. must be finite'),
        ({'train_x': np.zeros((6, 5), complex)}, 'train_x .complex128. must be finite real'),
        ({'train_x': np.full((6, 5), 'a')}, 'train_x .<U1. must be finite real'),
        ({'train_x': np.zeros((6, 0)), 'test_x': np.zeros((2, 0))}, 'without a feature'),
        ({'train_x': np.zeros((0, 5)), 'train_y': np.zeros(0, int)}, r'train_x is \(0, 5\)'),
        ({'test_x': np.zeros((0, 5)), 'test_y': np.zeros(0, int)}, r'test_x is \(0, 5\)'),
        ({'train_x': np.array(3.0), 'train_y': np.array(1)}, r'train_x is \(\)'),
        ({'train_y': np.full(6, '1')}, 'train_y must be integers .*found <U1'),
        ({'train_y': np.full(6, 10**9)}, r'largest label is 1000000000, .*than the 8 samples'),
        ({'test_y': np.full(2, 8)}, 'the largest label is 8, '),
        ({'train_y': np.full(6, 2**32 + 1)}, 'the largest label is 4294967297, '),
        ({'test_y': np.full(2, 2**64 - 1, np.uint64)}, 'the largest label is 18446744073709551615'),
        ({'train_x': np.array([[{}]] * 6, object)}, r'cannot read .*Object arrays cannot be'),
        ({'test_x': np.zeros((2, 5), np.uint8)}, 'train_x is float64 and test_x uint8.*one dtype'),
        ({'test_x': None, 'x_test': np.zeros(1)}, 'lacks test_x and holds .*x_test: write it with'),
    ],
)
def test_npz_errors(tmp_path, change, message):
    arrays = {'train_x': np.zeros((6, 5)), 'train_y': np.zeros(6, int)}
    arrays |= {'test_x': np.zeros((2, 5)), 'test_y': np.zeros(2, int)} | change
    path = tmp_path / 'own.npz'
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    assert str(path) in assert_refused(message, str(path))


def test_npz_with_natural_clients(tmp_path):
    x, y, path = np.zeros((4, 2)), np.array([0, 1, 1, 0]), tmp_path / 'own.npz'
    arrays = {'train_x': x, 'train_y': y, 'test_x': x, 'test_y': y}
    for client in (np.array([70, 5, 5, 9]), np.array(['d', 'b', 'b', 'c'])):
        np.savez(path, **arrays, client=client)
        np.testing.assert_array_equal(data.load(path).owners, [2, 0, 0, 1])
        parts = data.partition('natural', data.load(path), 3, seed=0)
        assert [part.tolist() for part in parts] == [[1, 2], [3], [0]]
    for client in (np.zeros(3, int), np.zeros(4), np.zeros((4, 1), int)):
        np.savez(path, **arrays, client=client)
        assert_refused(r'client is .* must be \(4,\) whole numbers or', path)


def test_npz_with_all_labels_that_there_may_be(tmp_path):
    x, y = np.zeros((8, 2)), np.arange(8, dtype=np.uint64)
    np.savez(tmp_path / 'own.npz', train_x=x, train_y=y, test_x=x[6:], test_y=y[6:])
    assert data.load(tmp_path / 'own.npz').classes == 8


def arrays_of(x, n=12):
    """Arrays of an .npz whose first inputs are x, repeated."""
    x = np.resize(x, (n, *np.shape(x)[1:])).astype(np.asarray(x).dtype)
    y = np.arange(n) % 3
    return {'train_x': x[: n - 3], 'train_y': y[: n - 3], 'test_x': x[-3:], 'test_y': y[-3:]}


@pytest.mark.parametrize('kind', [np.int64, np.uint8, bool])
def test_classes_that_training_lacks_are_refused(tmp_path, kind):
    arrays = arrays_of(np.zeros((12, 2))) | {
        'train_y': np.zeros(9, kind),
        'test_y': np.ones(3, kind),
    }
    np.savez(tmp_path / 'own.npz', **arrays)
    assert_refused('no training sample has the class 1 of the test set: add', tmp_path / 'own.npz')


@pytest.mark.parametrize(
    'shape', [(1, 28, 28), (3, 32, 32), (4, 8, 8), (2, 20, 30), (13, 64, 64), (16, 8, 8)]
)
def test_channels_that_come_first_are_refused(tmp_path, shape):
    arrays = arrays_of(rng().random((12, *shape)))
    np.savez(tmp_path / 'own.npz', **arrays)
    said = rf'train_x is \(9, {shape[0]}, .*\[n, channels, H, W\].*transpose\(0, 2, 3, 1\)'
    assert_refused(said, tmp_path / 'own.npz')
    for name in ('train_x', 'test_x'):  # as it says
        arrays[name] = arrays[name].transpose(0, 2, 3, 1)
    np.savez(tmp_path / 'own.npz', **arrays)
    assert data.load(tmp_path / 'own.npz').train_x.shape == (9, *shape[1:], shape[0])


@pytest.mark.parametrize(
    'shape', [(28, 28, 1), (32, 32, 3), (4, 4, 4), (8, 8, 8), (3, 32), (2, 30, 3)]
)
def test_other_shapes_are_taken_as_they_are(tmp_path, shape):
    np.savez(tmp_path / 'own.npz', **arrays_of(rng().random((12, *shape))))
    assert data.load(tmp_path / 'own.npz').train_x.shape == (9, *shape)


@pytest.mark.parametrize('shape', [(8, 8, 1), (28, 28), (8, 8, 3), (50, 2)])
@pytest.mark.parametrize('kind', [np.int16, np.int64, np.uint16, np.float32, np.float64])
@pytest.mark.parametrize('largest', [255, 4095])
def test_pixels_that_are_not_scaled_are_refused(tmp_path, shape, kind, largest):
    x = rng().integers(largest + 1, size=(12, *shape)).astype(kind)
    np.savez(tmp_path / 'own.npz', **arrays_of(x))
    with pytest.raises(
        DataError, match=r'train_x has values from .* only pixels of type uint8 are'
    ):
        data.load(tmp_path / 'own.npz')


def test_plain_numbers_that_are_not_scaled_are_warned_of(tmp_path):
    np.savez(tmp_path / 'own.npz', **arrays_of(rng().integers(256, size=(12, 20))))
    with pytest.warns(UserWarning, match=r'standard deviation of 7\d.*if the clients do not learn'):
        assert data.load(tmp_path / 'own.npz').train_x.shape == (9, 20)
    tokens = rng().integers(200, size=(24, 20))
    x = {'train_x': tokens, 'train_y': tokens, 'test_x': tokens[:9], 'test_y': tokens[:9]}
    np.savez(tmp_path / 'own.npz', **x)
    with warnings.catch_warnings(action='error'):
        data.load(tmp_path / 'own.npz', task=NEXT_TOKEN)
        np.savez(tmp_path / 'own.npz', **arrays_of(rng().normal(size=(12, 20)) + 100))
        data.load(tmp_path / 'own.npz')


def test_a_npz_that_the_memory_does_not_hold(tmp_path, monkeypatch):
    """The archive says how large it becomes, before anything is unpacked."""
    x, y = np.zeros((400, 500, 100), np.float32), np.zeros(400, int)
    np.savez_compressed(tmp_path / 'bomb.npz', train_x=x, train_y=y, test_x=x[:1], test_y=y[:1])
    assert (tmp_path / 'bomb.npz').stat().st_size < 2**20
    monkeypatch.setattr('dfl_jax.host_memory.free_bytes', lambda: 50 * 2**20)
    monkeypatch.setattr(np, 'load', lambda *_: pytest.fail('it was read'))
    with pytest.raises(DataError, match=r'bomb.npz takes about 76.* MiB, and 50.0 MiB are free'):
        data.load(str(tmp_path / 'bomb.npz'))


def test_npz_unreadable(tmp_path):
    path = tmp_path / 'own.npz'
    assert_refused(r'own.npz', str(path))
    path.write_bytes(b'PK no archive')
    assert_refused(r'own.npz', str(path))


def test_a_source_of_your_own():
    def ours(data_dir, seed):
        found = data.synthetic(train=60, test=20, features=4, classes=3)
        return found._replace(classes=5 if data_dir else 2)

    source = data.Source(ours, ('data_dir', 'seed'))
    found = data.load(source, 'somewhere', train_samples=30, seed=1)
    assert found.classes == 5 and found.train_x.shape == (30, 4)
    assert_refused('ours says that it has 2 classes, and has 3', source)
    assert_refused(r'columns is for .*, got ours: drop it', source, columns={'target': 'y'})
    assert_refused(r'dict returns dict, not a dfl_jax\.data\.Dataset', dict)


def test_unknown_name():
    assert_refused(r"'minst'.*digits.*mnist.*cifar100.*npz", 'minst')


def test_missing_folder_is_not_made(tmp_path):
    assert_refused('typo', 'mnist', tmp_path / 'typo')
    assert not (tmp_path / 'typo').exists()


@pytest.mark.parametrize(
    ('name', 'file'), [('mnist', 't10k-images-idx3-ubyte'), ('cifar10', 'cifar-10-batches-bin')]
)
def test_failed_download_says_what_to_do(tmp_path, offline, name, file):
    message = assert_refused('no route to host', name, tmp_path)
    assert file in message and f'into {tmp_path / name}' in message


def test_only_what_is_missing_is_named(tmp_path, offline):
    write_idx(tmp_path / 'mnist')
    (tmp_path / 'mnist/t10k-labels-idx1-ubyte').unlink()
    assert_refused(r'lacks t10k-labels-idx1-ubyte \(', 'mnist', tmp_path)


@pytest.fixture
def server(tmp_path):
    """A folder and the address it is served at."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    folder = tmp_path / 'served'
    folder.mkdir()
    handler = functools.partial(Quiet, directory=str(folder))
    with socketserver.TCPServer(('127.0.0.1', 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        yield folder, f'http://127.0.0.1:{httpd.server_address[1]}/'
        httpd.shutdown()


def test_download_idx(tmp_path, server, monkeypatch):
    pytest.importorskip('pooch')
    folder, url = server
    write_idx(folder, '.gz')
    source = official.IMAGE_SETS['mnist']
    files = [folder / f'{file}.gz' for file in source.train + source.test]
    digests = tuple(hashlib.sha256(file.read_bytes()).hexdigest() for file in files)
    monkeypatch.setitem(official.IMAGE_SETS, 'mnist', source._replace(url=url, sha256=digests))
    target = tmp_path / 'target'
    target.mkdir()
    assert len(data.load('mnist', target).train_y) == 30
    assert sorted(p.name for p in (target / 'mnist').iterdir()) == sorted(p.name for p in files)

    files[0].write_bytes(b'something else')
    (target / 'mnist' / files[0].name).unlink()
    assert_refused(r'hash|checksum', 'mnist', target)
    assert not (target / 'mnist' / files[0].name).exists()


def test_download_cifar(tmp_path, server, monkeypatch):
    pytest.importorskip('pooch')
    folder, url = server
    home = tmp_path / 'cifar-100-binary'
    home.mkdir()
    for name in ('train.bin', 'test.bin'):
        (home / name).write_bytes(bytes(3074 * 2))
    archive = folder / 'cifar-100-binary.tar.gz'
    with tarfile.open(archive, 'w:gz') as tar:
        tar.add(home, home.name)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    source = official.IMAGE_SETS['cifar100']._replace(url=url + archive.name, sha256=(digest,))
    monkeypatch.setitem(official.IMAGE_SETS, 'cifar100', source)
    target = tmp_path / 'target'
    target.mkdir()
    assert data.load('cifar100', target).train_x.shape == (2, 32, 32, 3)
    assert (target / 'cifar100/cifar-100-binary/train.bin').is_file()


def test_digits():
    found = data.load('digits')
    assert found.train_x.shape == (1437, 8, 8, 1)
    assert found.test_x.shape == (360, 8, 8, 1)
    assert abs(found.train_x.mean()) < 1e-4
    assert abs(found.train_x.std() - 1) < 1e-4
    shares = np.bincount(found.train_y) / (np.bincount(found.train_y) + np.bincount(found.test_y))
    np.testing.assert_allclose(shares, 0.8, atol=0.01)  # stratified


def test_digits_are_those_of_scikit_learn_split_by_it():
    x, y = load_digits(return_X_y=True)
    split = train_test_split(x / 16, y, test_size=0.2, random_state=0, stratify=y)
    train_x, test_x, train_y, test_y = split
    found = data.load('digits')
    scaled = [(part - train_x.mean()) / train_x.std() for part in (train_x, test_x)]
    np.testing.assert_array_equal(found.train_x.reshape(1437, 64), scaled[0].astype(np.float32))
    np.testing.assert_array_equal(found.test_x.reshape(360, 64), scaled[1].astype(np.float32))
    np.testing.assert_array_equal(found.train_y, train_y)
    np.testing.assert_array_equal(found.test_y, test_y)


def test_synthetic():
    found = data.load('synthetic')
    assert found.train_x.shape == (4000, 32)
    assert found.test_x.shape == (1000, 32)
    centres = np.stack([found.train_x[found.train_y == c].mean(axis=0) for c in range(10)])
    distance = ((found.test_x[:, None] - centres) ** 2).sum(axis=-1)
    accuracy = (distance.argmin(axis=1) == found.test_y).mean()
    assert 0.85 < accuracy < 0.99  # learnable, yet not trivial
    np.testing.assert_array_equal(found.test_x, data.load('synthetic').test_x)


def test_subsample():
    whole = dataset()
    small, large = data.subsample(whole, 100, seed=3), data.subsample(whole, 200, seed=3)
    kept = small.train_x[:, 0].astype(int)
    assert len(set(kept)) == 100
    assert set(kept) < set(large.train_x[:, 0].astype(int))
    np.testing.assert_array_equal(small.train_y, whole.train_y[kept])
    np.testing.assert_array_equal(small.owners, whole.owners[kept])
    assert len(small.test_y) == len(whole.test_y)
    other = data.subsample(whole, 100, seed=4).train_x[:, 0].astype(int)
    assert set(kept) != set(other)
    np.testing.assert_array_equal(data.subsample(whole, 6000, seed=3).train_x, whole.train_x)
    for n in (0, -1, 6001):
        with pytest.raises(SettingError, match=f'{n} .*1 to 6000'):
            data.subsample(whole, n, seed=0)


def test_subsample_of_the_test_set():
    whole = dataset()
    few = data.subsample(whole, None, seed=3, test_samples=2)
    assert len(few.train_y) == 6000
    assert set(few.test_x[:, 0]) < set(data.subsample(whole, 10, 3, 4).test_x[:, 0])
    with pytest.raises(SettingError, match=r'6 test samples .*1 to 5'):
        data.subsample(whole, None, seed=3, test_samples=6)


def test_load_a_subset(tmp_path):
    write_idx(tmp_path)
    found = data.load('mnist', tmp_path, train_samples=7, test_samples=3, seed=2)
    expected = data.subsample(data.load('mnist', tmp_path), 7, 2, 3)
    for a, b in zip(found[:4], expected[:4], strict=True):
        np.testing.assert_array_equal(a, b)


# -------------------------------------------------------------------------------------- So2Sat


def write_so2sat(folder, train=23, test=9, **changes):
    """Files of the official layout; an array in `changes` replaces that of training.h5."""
    h5py = pytest.importorskip('h5py')
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {}
    for name, n in (('training.h5', train), ('testing.h5', test)):
        scale = np.arange(1, 11)
        content = {
            'sen1': np.zeros((n, 32, 32, 8)),
            'sen2': scale * (0.1 + 0.05 * rng(n).random((n, 32, 32, 10))),
            'label': np.eye(17)[rng(n).integers(17, size=n)],
        }
        if name == 'training.h5':
            content |= changes
        with h5py.File(folder / name, 'w') as file:
            for key, array in content.items():
                if array is not None:
                    file.create_dataset(key, data=array)
        arrays[name] = content
    return arrays


@pytest.mark.parametrize('folder', ['', 'random', 'so2sat', 'so2sat/random'])
def test_so2sat(tmp_path, folder):
    arrays = write_so2sat(tmp_path / folder)
    found = data.load('so2sat', tmp_path)
    assert found.train_x.shape == (23, 32, 32, 10) and found.test_x.shape == (9, 32, 32, 10)
    assert (found.train_x.dtype, found.train_y.dtype) == (np.float32, np.int32)
    assert found.classes == 17 and found.owners is None
    patches = arrays['training.h5']['sen2']
    mean, std = patches.mean((0, 1, 2)), patches.std((0, 1, 2))
    np.testing.assert_allclose(found.train_x, (patches - mean) / std, atol=1e-4)
    np.testing.assert_allclose(found.test_x, (arrays['testing.h5']['sen2'] - mean) / std, atol=1e-4)
    np.testing.assert_array_equal(found.train_y, arrays['training.h5']['label'].argmax(1))
    np.testing.assert_array_equal(found.test_y, arrays['testing.h5']['label'].argmax(1))


def test_so2sat_rows(tmp_path, monkeypatch):
    """The rows of a subset are those of `subsample`; only their normalisation is their own."""
    write_so2sat(tmp_path)
    whole = data.load('so2sat', tmp_path)
    monkeypatch.setattr(so2sat, 'BLOCK', 4)
    np.testing.assert_array_equal(data.load('so2sat', tmp_path).train_x, whole.train_x)
    for n, few in ((10, 5), (17, None), (None, 2), (23, 9)):
        part = data.load('so2sat', tmp_path, train_samples=n, test_samples=few, seed=6)
        expected = data.subsample(whole, n, 6, few)
        np.testing.assert_array_equal(part.train_y, expected.train_y)
        np.testing.assert_array_equal(part.test_y, expected.test_y)
        mean, std = expected.train_x.mean((0, 1, 2)), expected.train_x.std((0, 1, 2))
        np.testing.assert_allclose(part.train_x, (expected.train_x - mean) / std, atol=1e-4)
        np.testing.assert_allclose(part.test_x, (expected.test_x - mean) / std, atol=1e-4)


def test_so2sat_reads_no_other_rows(tmp_path):
    patches = np.full((23, 32, 32, 10), np.nan)
    kept = np.sort(rng(1).permutation(23)[:5])
    patches[kept] = rng().random((5, 32, 32, 10))
    write_so2sat(tmp_path, sen2=patches)
    assert data.load('so2sat', tmp_path, train_samples=5, seed=1).train_x.shape[0] == 5
    assert_refused(r'training.h5: sen2 is not finite', 'so2sat', tmp_path)
    for settings, message in (
        ({'train_samples': 24}, '24 training samples .*1 to 23'),
        ({'train_samples': 0}, '0 training samples'),
        ({'train_samples': 5, 'seed': 1, 'test_samples': 10}, '10 test samples .*1 to 9'),
    ):
        assert_refused(message, 'so2sat', tmp_path, **settings)


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'sen2': None}, r'no array of numbers sen2, only label, sen1'),
        ({'label': None}, r'no array of numbers label, only sen1, sen2'),
        ({'label': np.full(23, b'LCZ 1')}, r'no array of numbers label'),
        ({'sen2': np.zeros((23, 32, 32, 8))}, r'sen2 is \(23, 32, 32, 8\).*32, 32, 10'),
        ({'sen2': np.zeros((22, 32, 32, 10))}, r'sen2 is \(22,.* label is \(23, 17\)'),
        ({'label': np.zeros((23, 16))}, r'label is \(23, 16\).*n, 17'),
        ({'sen2': np.zeros((0, 32, 32, 10)), 'label': np.zeros((0, 17))}, r'sen2 is \(0,'),
        ({'label': np.eye(17)[np.zeros(23, int)] / 2}, 'label is not one-hot in row 0'),
        ({'label': np.eye(23, 17)}, 'label is not one-hot in row 17'),
        ({'sen2': np.full((23, 32, 32, 10), 0.5)}, 'does not vary in band 0 of 23 training rows'),
    ],
)
def test_so2sat_files_of_another_format(tmp_path, changes, message):
    write_so2sat(tmp_path, **changes)
    said = assert_refused(message, 'so2sat', tmp_path)
    assert 'training.h5' in said and so2sat.URL in said


@pytest.mark.parametrize('keep', [0, 100, 1_000_000])
def test_so2sat_damaged_file(tmp_path, keep):
    write_so2sat(tmp_path)
    path = tmp_path / 'testing.h5'
    path.write_bytes(path.read_bytes()[:keep])
    assert_refused(r'testing.h5 is damaged or cut short \(OSError.*anew', 'so2sat', tmp_path)


def test_so2sat_is_not_downloaded(tmp_path, monkeypatch):
    for folder, message in (
        (None, r'set data_dir to a folder that holds training.h5 and testing.h5.*random split'),
        (tmp_path, f'{tmp_path}/so2sat lacks training.h5 and testing.h5: get them.*mediatum'),
        (tmp_path / 'typo', 'typo is not a folder'),
    ):
        assert_refused(message, 'so2sat', folder)
    (tmp_path / 'testing.h5').touch()
    assert_refused(rf'{tmp_path} lacks training.h5: ', 'so2sat', tmp_path)
    (tmp_path / 'training.h5').touch()
    monkeypatch.setitem(sys.modules, 'h5py', None)
    assert_refused('pip install h5py', 'so2sat', tmp_path)


# ---------------------------------------------------------------------------------- partitions


@pytest.mark.parametrize('clients', [1, 7, 37])
@pytest.mark.parametrize('kind', DISJOINT)
def test_disjoint_partitions(kind, clients):
    parts = data.partition(kind, dataset(), clients, seed=1, **DISJOINT[kind])
    assert len(parts) == clients
    assert all(len(part) and part.dtype == np.int64 for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(6000))
    sizes = [len(part) for part in parts]
    if kind in EQUAL:
        # A shard is cut equal up to one sample, and a client holds two of them.
        assert max(sizes) - min(sizes) <= (2 if kind == 'shards' else 1)
    elif clients > 1:
        assert max(sizes) > 1.2 * min(sizes)


@pytest.mark.parametrize('kind', BY_SEED)
def test_partition_is_fixed_by_the_seed(kind):
    a, b, c = (data.partition(kind, dataset(), 20, seed=s, **BY_SEED[kind]) for s in (1, 1, 2))
    assert all(np.array_equal(i, j) for i, j in zip(a, b, strict=True))
    assert not all(np.array_equal(i, j) for i, j in zip(a, c, strict=True))


@pytest.mark.parametrize('kind', ['iid', 'dirichlet', 'dirichlet_split', 'zipf', 'shards'])
def test_samples_of_a_class_are_dealt_at_random(kind):
    labels = np.zeros(6000, np.int32)
    first = data.partition(kind, dataset(labels), 3, seed=0, alpha=50.0)[0]
    assert abs(first.mean() - 3000) < 200  # taken in order, it would be 1,000


def test_as_many_clients_as_samples():
    few = LABELS[:50]
    for kind in ('iid', 'dirichlet'):
        parts = data.partition(kind, dataset(few), 50, seed=0)
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(50))
        assert all(len(part) == 1 for part in parts)


@pytest.mark.parametrize('overlap', [False, True])
@pytest.mark.parametrize('alpha', [0.1, 0.5, 5.0])
def test_dirichlet_concentration(alpha, overlap):
    # E[entropy of Dir(alpha)] over 10 classes. Finite samples lower it by a few percent; disjoint
    # clients raise it where a class runs out (by a tenth at alpha = 0.1).
    expected = digamma(10 * alpha + 1) - digamma(alpha + 1)
    labels = np.repeat(np.arange(10), 3000)
    parts = data.dirichlet(rng(3), labels, 250, alpha, overlap)
    assert {len(part) for part in parts} == {120}
    counts = class_counts(parts, labels)
    assert abs(entropy(counts) - expected) < (0.1 if overlap else 0.2) * expected
    # The last clients are no less skewed than the first.
    assert abs(entropy(counts[:125]) - entropy(counts[125:])) < 0.25 * expected


def test_dirichlet_limits():
    one = class_counts(data.dirichlet(rng(), LABELS, 100, 1e-4, overlap=True))
    assert ((one > 0).sum(axis=1) == 1).mean() > 0.95
    even = class_counts(data.dirichlet(rng(), LABELS, 10, 1e6))
    assert abs(entropy(even) - np.log(10)) < 0.02


def test_dirichlet_shares_a_scarce_class():
    # Everybody wants both classes equally; the scarce one must not go to the first comers.
    labels = np.repeat([0, 1], [5000, 500])
    counts = class_counts(data.dirichlet(rng(), labels, 50, 1e6), labels)
    assert counts.sum(axis=1).tolist() == [110] * 50
    assert counts[:, 1].min() > 0
    assert abs(counts[:25, 1].sum() - 250) < 60


def test_dirichlet_overlap():
    parts = data.dirichlet(rng(2), LABELS, 100, 0.5, overlap=True)
    assert {len(part) for part in parts} == {60}
    assert all(len(set(part)) == 60 for part in parts)  # no sample twice within a client
    # Drawing 6,000 times 1 of 6,000 leaves 1 - 1/e distinct, a little fewer by uneven classes.
    assert 0.58 < len(np.unique(np.concatenate(parts))) / 6000 < 0.66
    whole = data.dirichlet(rng(2), LABELS, 1, 0.1, overlap=True)
    np.testing.assert_array_equal(whole[0], np.arange(6000))


def test_dirichlet_split_divides_classes():
    parts = data.dirichlet_split(rng(4), LABELS, 10, 0.5)
    shares = class_counts(parts).T  # [C, M]: each class is split by Dir(alpha)
    expected = digamma(10 * 0.5 + 1) - digamma(0.5 + 1)
    assert abs(entropy(shares) - expected) < 0.25 * expected


def test_dirichlet_split_gives_up():
    with pytest.raises(SettingError, match=r'100 tries.*500 clients.*6000 samples.*alpha 0.01'):
        data.dirichlet_split(rng(), LABELS, 500, 0.01)


def test_zipf_shares_are_rolled_by_the_class():
    """Of classes of different sizes, one of them absent, against one client and class at a time."""
    labels = rng(1).permutation(np.repeat([0, 1, 2, 4], [700, 333, 2000, 150]))
    parts = data.zipf(rng(2), labels, 9, 1.8)
    counts = np.stack([np.bincount(labels[part], minlength=5) for part in parts])
    assert len(set(np.concatenate(parts))) == counts.sum()
    again = rng(2)
    z = again.zipf(1.8, 9)
    while z.sum() > 150:
        z = again.zipf(1.8, 9)
    for client in range(9):
        for label in range(5):
            whole = np.count_nonzero(labels == label)
            share = z[(client - label) % 9] / z.sum()
            assert counts[client, label] == math.floor(share * whole + 1e-9)


# Samples of the 17 climate zones in the first training set of So2Sat LCZ42
ZONES = (
    *(5068, 24431, 31693, 8651, 16493, 35290, 3269, 39326, 13584, 11954),
    *(42902, 9514, 9165, 41377, 2392, 7898, 49359),
)


def test_zipf_clients_are_of_similar_sizes_and_skewed_classes():
    """Without the rolling 32 clients have 200 to 15,000 samples and classes alike."""
    for seed in range(4):
        labels = rng(seed).choice(17, 1024 * 32, p=np.array(ZONES) / sum(ZONES))
        counts = class_counts(data.zipf(rng(seed), labels, 32, 1.8), labels, 17)
        sizes, mix = counts.sum(axis=1), np.bincount(labels) / len(labels)
        assert counts.min() >= 1 and sizes.sum() > 0.97 * len(labels)
        assert sizes.min() > 250 and sizes.max() < 3000
        skew = np.abs(counts / sizes[:, None] - mix).sum(axis=1).mean() / 2
        assert 0.3 < skew < 0.6


def test_zipf_numbers_that_are_too_large():
    with pytest.raises(SettingError, match=r'500 Zipf numbers .* at most 600.*raise the exponent'):
        data.zipf(rng(), LABELS, 500, 1.2)
    with pytest.raises(SettingError, match=r'700 Zipf numbers .* lower clients'):
        data.zipf(rng(), LABELS, 700, 1.8)
    with pytest.raises(SettingError, match=r'500 Zipf numbers .* at most 600'):
        data.zipf(rng(), LABELS, 500, 1.01)  # numbers of 64 bits whose sum has more


def test_balanced_over_classes():
    labels = np.repeat(np.arange(4), [50, 31, 80, 40])
    parts = data.balanced(rng(), labels, 6, None)
    assert len(set(np.concatenate(parts))) == 6 * 20  # the scarcest class gives five a client
    assert (np.array([np.bincount(labels[part]) for part in parts]) == 5).all()
    few = data.partition('balanced', dataset(), 30, seed=0, samples_per_client=80)
    assert (class_counts(few) == 8).all()
    again, other = (
        data.partition('balanced', dataset(), 30, seed=s, samples_per_client=80) for s in (0, 1)
    )
    assert np.array_equal(few, again) and not np.array_equal(few, other)
    assert abs(np.mean(few[0]) - 3000) < 900  # not the first ones of each class
    with pytest.raises(SettingError, match=r'32 balanced clients.*has 31 samples: lower clients'):
        data.balanced(rng(), labels, 32, None)


def test_lognormal_sizes():
    sigma, labels = 0.8, np.zeros((200_000, 3), np.float32)  # targets that are no classes
    parts = data.lognormal(rng(), labels, 400, sigma)
    sizes = np.log([len(part) for part in parts])
    assert sizes.std() == pytest.approx(sigma, rel=0.1)
    assert abs(np.mean((sizes - sizes.mean()) ** 3)) < 0.3 * sigma**3  # of a normal law, none
    mixes = class_counts(data.lognormal(rng(), LABELS, 3, 1.0))
    assert (np.abs(mixes / mixes.sum(axis=1, keepdims=True) - 0.1) < 0.04).all()
    for sigma in (0.0, -1.0, float('nan'), float('inf')):
        with pytest.raises(SettingError, match=f'sigma is {sigma}: use more than 0'):
            data.lognormal(rng(), LABELS, 3, sigma)


def test_writers_stay_together():
    whole = dataset()
    parts = data.writer(rng(), whole.owners, 10)
    groups = [set(whole.owners[part]) for part in parts]
    assert sorted(len(group) for group in groups) == [3] * 3 + [4] * 7
    assert sum(len(group) for group in groups) == len(set().union(*groups)) == 37
    with pytest.raises(SettingError, match='38 clients for 37 writers'):
        data.writer(rng(), whole.owners, 38)
    with pytest.raises(SettingError, match='mnist'):
        data.writer(rng(), None, 3)


def test_two_groups_share_no_class():
    parts = data.two_group(rng(), LABELS, 7)
    counts = class_counts(parts)
    assert (counts[:4, 5:] == 0).all() and (counts[4:, :5] == 0).all()
    assert counts.sum(axis=1).tolist() == [750] * 4 + [1000] * 3
    with pytest.raises(SettingError, match=r'1 clients .* at least 2'):
        data.two_group(rng(), LABELS, 1)
    with pytest.raises(
        SettingError, match=r'6001 clients: half of them share 3000 samples; use fewer'
    ):
        data.two_group(rng(), LABELS, 6001)


def test_shards_hold_few_classes():
    counts = class_counts(data.shards(rng(), LABELS, 100, 2))
    assert ((counts > 0).sum(axis=1) <= 2).all()
    assert (counts.sum(axis=1) == 60).all()
    with pytest.raises(SettingError, match=r'61 shards.*100 clients.*6000 samples.*1 to 60'):
        data.shards(rng(), LABELS, 100, 61)
    with pytest.raises(SettingError, match='0 shards'):
        data.shards(rng(), LABELS, 100, 0)


@pytest.mark.parametrize('clients', [-1, 0, 6001])
@pytest.mark.parametrize('kind', [*BY_SEED])
def test_impossible_number_of_clients(kind, clients):
    with pytest.raises(SettingError, match=f'{clients} clients for .* use 1 to'):
        data.partition(kind, dataset(), clients, seed=0)


@pytest.mark.parametrize('alpha', [0.0, -1.0, float('nan'), float('inf')])
@pytest.mark.parametrize('kind', ['dirichlet', 'dirichlet_split'])
def test_impossible_alpha(kind, alpha):
    with pytest.raises(SettingError, match=f'alpha is {alpha}.*above 0'):
        data.partition(kind, dataset(), 5, seed=0, alpha=alpha)


@pytest.mark.parametrize(
    ('kind', 'settings', 'message'),
    [
        ('dirichelt', {}, "'dirichelt'.*dirichlet_split"),
        ('iid', {'overlap': True}, 'overlap.*iid'),
        ('zipf', {'exponent': 1.0}, 'exponent is 1.0: use a finite number above 1'),
        ('balanced', {'samples_per_client': 1210}, '1210 balanced.* 5 clients.*600.*at most 1200'),
        ('balanced', {'samples_per_client': -10}, '-10 balanced.*at most 1200'),
        ('balanced', {'samples_per_client': 15}, '15 balanced.*multiple of 10'),
        ('balanced', {'samples_per_client': 0}, '0 balanced'),
    ],
)
def test_impossible_settings(kind, settings, message):
    with pytest.raises(SettingError, match=message):
        data.partition(kind, dataset(), 5, seed=0, **settings)


def test_a_partition_of_your_own():
    def last(rng, labels, clients, count=1):
        return [np.arange(len(labels))[-count:]] * clients

    own = data.Partition(last, ('count',), by_class=False)
    parts = data.partition(own, dataset(np.zeros(9)), 2, seed=0, count=3, alpha=0.5)
    assert [part.tolist() for part in parts] == [[6, 7, 8]] * 2
    with pytest.raises(TypeError, match='no partition takes counts; use one of alpha, count, '):
        data.partition(own, dataset(), 2, seed=0, counts=3)
    for bad, message in (
        (lambda rng, labels, clients: [[0]], 'makes 1 clients, not 2'),
        (lambda rng, labels, clients: [[0], []], 'client 1 must have a list of at least one'),
        (lambda rng, labels, clients: [[0], [6000]], 'client 1 .* from 0 to 5999'),
    ):
        with pytest.raises(DataError, match=message):
            data.partition(data.Partition(bad), dataset(), 2, seed=0)


def test_partition_file(tmp_path):
    path = tmp_path / 'partition.json'
    path.write_text('[[5, 0], [5999], [3, 5, 1]]')
    parts = data.partition('iid', dataset(), 3, seed=0, path=str(path))
    assert [part.tolist() for part in parts] == [[5, 0], [5999], [3, 5, 1]]
    assert all(part.dtype == np.int64 for part in parts)
    with pytest.raises(DataError, match=r'partition.json holds 3 clients, not 4'):
        data.partition('iid', dataset(), 4, seed=0, path=str(path))


@pytest.mark.parametrize(
    ('content', 'message'),
    [
        ([[0], [1, 10]], 'client 1 holds the index 10, but the 10 training samples'),
        ([[0], [2, -1]], 'client 1 holds the index -1'),
        ([[0], [1.0]], 'client 1 holds the index 1.0'),
        ([[0], [True]], 'client 1 holds the index True'),
        ([[0], ['1']], "client 1 holds the index '1'"),
        ([[0], []], 'client 1 must be a list'),
        ([[0], 3], 'client 1 must be a list'),
        ({'0': [0]}, 'list of lists'),
        ([], 'list of lists'),
        (3, 'list of lists'),
        (None, 'list of lists'),
        ([[0], [float('nan')]], 'client 1 holds the index nan'),
        ([[0], [float('inf')]], 'client 1 holds the index inf'),
        ([[0], [None]], 'client 1 holds the index None'),
        ([[0], [[1]]], r'client 1 holds the index \[1\]'),
        ([[0], [10**4000]], r'client 1 holds the index 1000+\.\.\.000+, but'),
        ([[0], ['x' * 10**5]], r"client 1 holds the index 'xxx+\.\.\.xxx+', but"),
        ([[0, 2], [1, 3, 1]], 'client 1 holds the index 1 more than once: list every'),
    ],
)
def test_partition_file_errors(tmp_path, content, message):
    path = tmp_path / 'partition.json'
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match=message) as caught:
        data.from_file(path, 10)
    assert str(path) in str(caught.value) and '\n' not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_partition_file_that_nests_too_deep(tmp_path):
    path = tmp_path / 'partition.json'
    for text in ('[' * 10**6, '[' * 10**5 + ']' * 10**5, '{"a":' * 10**5):
        path.write_text(text)
        with pytest.raises(DataError, match=r'cannot read .*partition.json: .*nest too deep'):
            data.from_file(path, 10)


def test_a_partition_file_with_a_byte_order_mark(tmp_path):
    path = tmp_path / 'partition.json'
    path.write_text('[[0], [1]]', encoding='utf-8-sig')
    assert [part.tolist() for part in data.from_file(path, 10)] == [[0], [1]]


def test_partition_file_unreadable(tmp_path):
    path = tmp_path / 'partition.json'
    for content in (None, '[[0], [1', b'\xff\xfe\x00', f'[[{"9" * 5000}]]'):
        if content is not None:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        with pytest.raises(DataError, match=r'cannot read the partition file .*partition.j'):
            data.from_file(path, 10)


# ------------------------------------------------------------------------- packing and plotting


def test_pack():
    x = rng().normal(size=(9, 4, 2)).astype(np.float32)
    y = np.arange(9) % 3 + 1
    parts = [np.array([8, 0]), np.array([1, 2, 3, 7]), np.array([5])]
    clients = data.pack(x, y, parts)
    assert clients.x.shape == (3, 4, 4, 2)
    assert [a.dtype for a in clients[:3]] == [np.float32, np.int32, bool]
    assert clients.arrival is None
    assert clients.mask.sum(axis=1).tolist() == [2, 4, 1]
    for i, part in enumerate(parts):
        size = len(part)
        np.testing.assert_array_equal(clients.x[i, :size], x[part])
        np.testing.assert_array_equal(clients.y[i, :size], y[part])
        assert clients.mask[i].tolist() == [True] * size + [False] * (4 - size)
        assert not np.any(clients.x[i, size:]) and not np.any(clients.y[i, size:])


def test_clients_that_keep_nothing_for_validation():
    parts = [np.array([1]), np.array([], int)]
    kept = data.pack(np.zeros((3, 2)), np.zeros(3, int), parts, empty=True)
    assert kept.mask.tolist() == [[True], [False]]
    with pytest.raises(DataError, match=r'empty ones \[0\]'):
        data.pack(np.zeros((3, 2)), np.zeros(3, int), parts[1:], empty=True)


def test_lists_are_packed_like_arrays():
    packed = data.pack([[1.0], [2.0]], [0, 1], [[1], []], empty=True)
    assert packed.x.tolist() == [[[2.0]], [[0.0]]] and packed.mask.tolist() == [[True], [False]]
    with pytest.raises(DataError, match='indices of float64'):
        data.pack([[1.0]], [0], [[0.0]])


@pytest.mark.parametrize(
    ('parts', 'message'),
    [
        ([], '0 clients'),
        ([[0], []], r'empty ones \[1\]'),
        ([[0], [3]], 'indices 0 to 3 of 3 samples'),
        ([[-1], [2]], 'indices -1 to 2 of 3 samples'),
    ],
)
def test_pack_errors(parts, message):
    with pytest.raises(DataError, match=message):
        data.pack(np.zeros((3, 2)), np.zeros(3, int), [np.array(part, int) for part in parts])


@pytest.mark.parametrize(('clients', 'classes'), [(1, 2), (8, 10), (300, 10), (30, 100)])
def test_plot_partition(tmp_path, clients, classes):
    pytest.importorskip('matplotlib')
    from matplotlib.image import imread

    labels = np.arange(3000) % classes
    path = tmp_path / 'partition.png'
    plot_partition(labels, data.iid(rng(), labels, clients), classes, path)
    picture = np.round(255 * imread(path)[..., :3]).astype(int)
    assert len(np.unique(picture @ (2**16, 2**8, 1))) > classes  # sorts no rows, which takes 3 s


@pytest.mark.parametrize('shape', [(), (3,)])
def test_plot_partition_of_targets_that_are_no_classes(shape, tmp_path):
    pytest.importorskip('matplotlib')
    from matplotlib.image import imread

    targets = rng().normal(size=(300, *shape)).astype(np.float32)
    parts = [np.arange(20), np.arange(20, 220), np.arange(220, 300)]
    plot_partition(targets, parts, 1, tmp_path / 'partition.png')
    picture = np.round(255 * imread(tmp_path / 'partition.png')[..., :3]).astype(int)
    bars = (picture == (31, 119, 180)).all(axis=2).sum(axis=0)  # the first colour of tab10
    heights = bars[bars > 0]
    assert len(np.unique(heights[np.r_[True, np.diff(heights) != 0]])) == 3
    assert heights.max() / heights.min() == pytest.approx(10, rel=0.1)


# ----------------------------------------------------------------------------------- real data


def test_real_fashion_mnist(data_dir):
    found = data.load('fashion_mnist', data_dir)
    assert found.train_x.shape == (60000, 28, 28, 1)
    assert found.test_x.shape == (10000, 28, 28, 1)
    assert abs(found.train_x.mean()) < 1e-3
    assert abs(found.train_x.std() - 1) < 1e-3
    assert np.bincount(found.train_y).tolist() == [6000] * 10
    assert_refused('belongs to fashion_mnist', 'mnist', data_dir / 'fashion_mnist')

    path = data_dir / 'partitions/fashion_mnist_300_alpha0.1_0.json'
    if path.is_file():
        published = data.from_file(path, 60000, 300)
        assert sum(len(part) for part in published) == 59218
        ours = data.dirichlet(rng(), found.train_y, 300, 0.1, overlap=True)
        theirs, mine = (
            len(np.unique(np.concatenate(p))) / sum(map(len, p)) for p in (published, ours)
        )
        assert abs(theirs - mine) < 0.03
        theirs, mine = (entropy(class_counts(p, found.train_y)) for p in (published, ours))
        assert abs(theirs - mine) < 0.15 * theirs


def test_real_mnist_writers(data_dir):
    found = data.load('mnist', data_dir)
    if found.owners is None:
        pytest.skip('no writer file')
    assert len(np.unique(found.owners)) == 539
    parts = data.writer(rng(), found.owners, 539)
    assert (min(map(len, parts)), max(map(len, parts))) == (19, 131)
