"""Training and test sets as NumPy arrays.

Image sources read the official files, plain or compressed by gzip or xz, from a folder, and
download them with a checksum where they are missing; So2Sat and folders of images have to be there.
"""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dfl_jax.data import image_folder, so2sat
from dfl_jax.data.formats import (
    DataError,
    choose_rows,
    one_line,
    read_cifar,
    read_idx,
    read_writers,
)


class Dataset(NamedTuple):
    """A training and a test set; n counts the samples of each."""

    train_x: np.ndarray  # [n, ...] float32, scaled and normalised; images are [n, H, W, channels]
    train_y: np.ndarray  # [n] int32
    test_x: np.ndarray  # [n, ...] float32
    test_y: np.ndarray  # [n] int32
    classes: int
    writers: np.ndarray | None = None  # [n] int32, who wrote each training sample


class _Source(NamedTuple):
    train: tuple[str, ...]  # official file names, without a suffix of compression
    test: tuple[str, ...]
    classes: int
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]
    url: str
    md5: tuple[str, ...]  # of each download
    folder: str = ''  # where the official archive keeps its files
    label_bytes: int = 1  # CIFAR-100 puts the coarse label before the fine one
    labels_md5: str = ''  # of the uncompressed training labels


_IDX_TRAIN = ('train-images-idx3-ubyte', 'train-labels-idx1-ubyte')
_IDX_TEST = ('t10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte')
_SOURCES = {
    'mnist': _Source(
        train=_IDX_TRAIN,
        test=_IDX_TEST,
        classes=10,
        mean=(0.1307,),
        std=(0.3081,),
        url='https://ossci-datasets.s3.amazonaws.com/mnist/',
        md5=(
            'f68b3c2dcbeaaa9fbdd348bbdeb94873',
            'd53e105ee54ea40749a09fcbcd1e9432',
            '9fb629c4189551a2d022fa330f9573f3',
            'ec29112dd5afa0611ce80d1b7f02629c',
        ),
        labels_md5='e86ee40d66677c011a9abda399ec8c4d',
    ),
    'fashion_mnist': _Source(
        train=_IDX_TRAIN,
        test=_IDX_TEST,
        classes=10,
        mean=(0.2860,),
        std=(0.3530,),
        url='http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/',
        md5=(
            '8d4fb7e6c68d591d4c3dfef9ec88bf0d',
            '25c81989df183df01b3e8a0aad5dffbe',
            'bef4ecab320f06d8554ea6380940ec79',
            'bb300cfdad3c16e7a12a480ee83cd310',
        ),
        labels_md5='3236f6424fc25388b2834cb19942cf7e',
    ),
    'cifar10': _Source(
        train=tuple(f'data_batch_{i}.bin' for i in range(1, 6)),
        test=('test_batch.bin',),
        classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        url='https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz',
        md5=('c32a1d4ab5d03f1284b67883e8d87530',),
        folder='cifar-10-batches-bin',
    ),
    'cifar100': _Source(
        train=('train.bin',),
        test=('test.bin',),
        classes=100,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        url='https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz',
        md5=('03b5dce01913d631647c71ecec9e9cb8',),
        folder='cifar-100-binary',
        label_bytes=2,
    ),
}
# And any path that ends in .npz
DATASETS = ('digits', 'synthetic', *_SOURCES, 'so2sat', 'image_folder')


def load(
    name: str,
    data_dir: str | Path | None = None,
    *,
    train_samples: int | None = None,
    test_samples: int | None = None,
    seed: int = 0,
    image_size: int | None = None,
    progress: bool = False,
) -> Dataset:
    """Loads a dataset by name, or a seeded random subset of it.

    `digits` is scikit-learn's bundled set (8x8 images) and `synthetic` is made on the spot; neither
    reads a file. The others are read from `data_dir/NAME/` or from `data_dir` itself, and what is
    missing is downloaded into `data_dir/NAME/`. `mnist` knows its writers where the folder also
    holds `train-writer-ids.npy` ([n] integers, the NIST writers as in QMNIST). `so2sat` needs h5py
    and its files in place, and reads no more of them than the subset. `image_folder` needs Pillow
    and reads data_dir/CLASS, or data_dir/train/CLASS and data_dir/test/CLASS.

    Args:
      name: one of `DATASETS`, or the path of an `.npz` file with the arrays train_x [n, ...],
        train_y [n], test_x and test_y. uint8 inputs are scaled to [0, 1]; other inputs are taken
        as they are.
      data_dir: an existing folder; default, the user's cache folder.
      train_samples, test_samples, seed: a subset as by `subsample`; default, all. `so2sat` is
        normalised by the training samples of the subset, all others by those of the whole set.
      image_size: S of the inputs [n, S, S, 3] of `image_folder`; default, 64.
      progress: for `image_folder`, show a progress bar when reading takes more than a second.

    Raises:
      DataError: unknown name, no such folder, files missing and not to be had, damaged files, a
        subset larger than the set, or an image_size with another dataset.
    """
    if name == 'image_folder':
        whole = Dataset(*image_folder.load_arrays(data_dir, image_size, progress=progress))
        return subsample(whole, train_samples, seed, test_samples)
    if image_size is not None:
        raise DataError(f'image_size is for image_folder only, got {name}: drop it')
    if name == 'so2sat':
        arrays = so2sat.load_arrays(data_dir, train_samples, test_samples, seed)
        return Dataset(*arrays, so2sat.CLASSES)
    return subsample(_load(name, data_dir), train_samples, seed, test_samples)


def subsample(
    dataset: Dataset, n: int | None, seed: int, test_samples: int | None = None
) -> Dataset:
    """A seeded random subset of n samples of the training set, and of the test set if asked for.

    Subsets of one seed are nested: the n samples are among those of every larger n. They keep the
    order of the dataset. None means all.

    Raises:
      DataError: less than 1, or more than there are samples.
    """
    if n is not None:
        chosen = choose_rows(len(dataset.train_y), n, seed)
        dataset = dataset._replace(
            train_x=dataset.train_x[chosen],
            train_y=dataset.train_y[chosen],
            writers=None if dataset.writers is None else dataset.writers[chosen],
        )
    if test_samples is not None:
        chosen = choose_rows(len(dataset.test_y), test_samples, seed, 'test')
        dataset = dataset._replace(test_x=dataset.test_x[chosen], test_y=dataset.test_y[chosen])
    return dataset


def _load(name: str, data_dir: str | Path | None) -> Dataset:
    if name == 'digits':
        return _digits()
    if name == 'synthetic':
        return synthetic()
    if str(name).endswith('.npz'):
        return _npz(Path(name).expanduser())
    if name not in _SOURCES:
        raise DataError(f'unknown dataset {name!r}: use one of {", ".join(DATASETS)}, or FILE.npz')
    source = _SOURCES[name]
    paths = _find(name, source, data_dir)
    train_x, train_y = _read_split(source, paths[: len(source.train)])
    test_x, test_y = _read_split(source, paths[len(source.train) :])
    if source.labels_md5:
        _check_identity(name, train_y, paths[1])
    writers = None
    if name == 'mnist':
        writers = read_writers(paths[0].parent / 'train-writer-ids.npy', len(train_y))
    return Dataset(train_x, train_y, test_x, test_y, source.classes, writers)


def synthetic(
    train: int = 4000, test: int = 1000, features: int = 32, classes: int = 10, spread: float = 0.6
) -> Dataset:
    """Gaussian clusters of unit variance, one a class, always the same ones.

    Args:
      train, test: number of samples, about equally many a class.
      features: length of an input.
      classes: number of clusters.
      spread: standard deviation of the cluster centres along each axis; larger is easier.
    """
    rng = np.random.default_rng(0)
    centres = spread * rng.standard_normal((classes, features))
    y = rng.permutation(np.arange(train + test) % classes)
    x = centres[y] + rng.standard_normal((train + test, features))
    return _standardised(x[:train], y[:train], x[train:], y[train:], classes)


def _digits() -> Dataset:
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError:
        raise DataError(
            'digits comes with scikit-learn, which is not installed: pip install scikit-learn'
        ) from None
    bunch = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        bunch.images[..., None] / 16,
        bunch.target,
        test_size=0.2,
        random_state=0,
        stratify=bunch.target,
    )
    return _standardised(train_x, train_y, test_x, test_y, 10)


def _standardised(train_x, train_y, test_x, test_y, classes: int) -> Dataset:
    mean, std = train_x.mean(), train_x.std()
    return Dataset(
        ((train_x - mean) / std).astype(np.float32),
        train_y.astype(np.int32),
        ((test_x - mean) / std).astype(np.float32),
        test_y.astype(np.int32),
        classes,
    )


def _npz(path: Path) -> Dataset:
    names = ('train_x', 'train_y', 'test_x', 'test_y')
    try:
        with np.load(path) as file:
            arrays = [file[name] for name in names]
    except Exception as error:  # numpy, zipfile and zlib each have their own
        raise DataError(
            f'cannot read {", ".join(names)} from {path} ({one_line(error)}): '
            'write the file with np.savez'
        ) from None
    for which, x, y in (('train', *arrays[:2]), ('test', *arrays[2:])):
        same = x.shape[:1] == y.shape and x.shape[1:] == arrays[0].shape[1:]
        if x.ndim < 2 or not same or not y.size:
            raise DataError(
                f'{path}: {which}_x is {x.shape} and {which}_y is {y.shape}: give [n, ...] inputs, '
                'of one shape in training and test set, and [n] labels, n at least 1'
            )
        if y.dtype.kind not in 'iu' or y.min() < 0:
            raise DataError(f'{path}: {which}_y must be integers from 0 to classes - 1')
        if x.dtype.kind not in 'fiu' or not np.isfinite(x).all():
            raise DataError(f'{path}: {which}_x ({x.dtype}) must be finite real numbers')
    train_x, test_x = (
        x.astype(np.float32) / (255 if x.dtype == np.uint8 else 1) for x in arrays[::2]
    )
    train_y, test_y = (y.astype(np.int32) for y in arrays[1::2])
    return Dataset(train_x, train_y, test_x, test_y, int(max(train_y.max(), test_y.max())) + 1)


def _find(name: str, source: _Source, data_dir: str | Path | None) -> list[Path]:
    """The paths of a source's files, training first, downloading what is missing."""
    files = source.train + source.test
    if data_dir:
        root = Path(data_dir).expanduser()
        if not root.is_dir():
            raise DataError(f'data_dir {root} is not a folder: make it, or correct the path')
    else:
        root = _cache_folder(name, files)
    home = root / name / source.folder
    for folder in (home, root / name, root / source.folder, root):
        if any(_present(folder, file) for file in files):
            break
    else:
        folder = home
    missing = [file for file in files if not _present(folder, file)]
    if missing:
        folder = home if source.folder else folder
        try:
            _download(source, missing, folder)
        except ImportError:
            reason = 'pooch, which downloads them, is not installed'
        except Exception as error:  # requests, tarfile and the checksum each have their own
            reason = f'the download failed: {one_line(error)}'
        else:
            reason = 'the download does not hold them'
        missing = [file for file in files if not _present(folder, file)]
        if missing:
            raise DataError(
                f'{name}: {folder} lacks {", ".join(missing)} ({reason}): '
                f'put these files, plain or as .gz or .xz, into {folder}'
            )
    return [path for file in files if (path := _present(folder, file))]


def _cache_folder(name: str, files: tuple[str, ...]) -> Path:
    try:
        import pooch
    except ImportError:
        raise DataError(
            f'{name}: pooch, which downloads it, is not installed: pip install pooch, or set '
            f'data_dir to a folder that holds {", ".join(files)}'
        ) from None
    return Path(pooch.os_cache('dfl_jax'))


def _present(folder: Path, file: str) -> Path | None:
    paths = (folder / f'{file}{suffix}' for suffix in ('', '.gz', '.xz'))
    return next((path for path in paths if path.is_file()), None)


def _download(source: _Source, missing: list[str], folder: Path) -> None:
    import pooch

    downloader = pooch.HTTPDownloader(timeout=30)
    if source.folder:
        archive = source.url.rsplit('/', 1)[1]
        pooch.retrieve(
            source.url,
            f'md5:{source.md5[0]}',
            fname=archive,
            path=folder.parent,
            processor=pooch.Untar(extract_dir='.'),
            downloader=downloader,
        )
        return
    for file, md5 in zip(source.train + source.test, source.md5, strict=True):
        if file in missing:
            url = f'{source.url}{file}.gz'
            pooch.retrieve(url, f'md5:{md5}', f'{file}.gz', path=folder, downloader=downloader)


def _read_split(source: _Source, paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
    """Inputs [n, H, W, channels] float32, normalised, and labels [n] int32 of one split."""
    if source.folder:
        records = np.concatenate([read_cifar(path, source.label_bytes) for path in paths])
        y = records[:, source.label_bytes - 1]
        pixels = records[:, source.label_bytes :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    else:
        pixels, y = read_idx(paths[0], 3)[..., None], read_idx(paths[1], 1)
        if len(pixels) != len(y):
            raise DataError(
                f'{paths[0]} holds {len(pixels)} images and {paths[1]} {len(y)} labels: '
                'replace both by the official files'
            )
    if y.max() >= source.classes:
        raise DataError(
            f'{paths[-1]} holds the label {y.max()} of {source.classes} classes: '
            'replace it by the official file'
        )
    x = pixels.astype(np.float32, order='C')
    x /= 255
    x -= np.asarray(source.mean, np.float32)
    x /= np.asarray(source.std, np.float32)
    return x, y.astype(np.int32)


def _check_identity(name: str, labels: np.ndarray, path: Path) -> None:
    """MNIST and Fashion-MNIST share their file names; a mix-up must not pass for a result."""
    md5 = hashlib.md5(labels.astype(np.uint8).tobytes(), usedforsecurity=False).hexdigest()
    for other, source in _SOURCES.items():
        if other != name and md5 == source.labels_md5:
            raise DataError(f'{path} belongs to {other}, not to {name}: correct data_dir')
