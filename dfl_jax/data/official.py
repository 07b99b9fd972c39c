"""The official files of MNIST, Fashion-MNIST and CIFAR.

They are read, plain or compressed by gzip or xz, from a folder, and downloaded with a checksum
where they are missing.
"""

import contextlib
import gzip
import hashlib
import lzma
import math
import zlib
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dfl_jax.data.dataset import DataError, Dataset, folder_of, normalised, one_line, reading
from dfl_jax.files import check_file
from dfl_jax.host_memory import in_bytes

LARGEST = 2**30  # bytes of an official file, uncompressed; those of CIFAR-100 have 154 MB
ANEW = 'delete it, then load again or download it anew'


class OfficialFiles(NamedTuple):
    """Where the files of an image set are, and what is in them; the defaults are MNIST's."""

    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]
    url: str
    sha256: tuple[str, ...]  # of each download
    # Official file names, without a suffix of compression
    train: tuple[str, ...] = ('train-images-idx3-ubyte', 'train-labels-idx1-ubyte')
    test: tuple[str, ...] = ('t10k-images-idx3-ubyte', 't10k-labels-idx1-ubyte')
    classes: int = 10
    folder: str = ''  # where the official archive keeps its files
    label_bytes: int = 1  # CIFAR-100 puts the coarse label before the fine one
    labels_md5: str = ''  # of the uncompressed training labels


# The sums of MNIST and Fashion-MNIST are of files whose MD5 is the published one. Those of CIFAR
# are from the lists of TensorFlow Datasets (url_checksums/cifar10.txt and cifar100.txt); other
# libraries, MLDatasets.jl and GoMLX, have the same.
IMAGE_SETS = {
    'mnist': OfficialFiles(
        mean=(0.1307,),
        std=(0.3081,),
        url='https://ossci-datasets.s3.amazonaws.com/mnist/',
        sha256=(
            '440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609',
            '3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c',
            '8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6',
            'f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6',
        ),
        labels_md5='e86ee40d66677c011a9abda399ec8c4d',
    ),
    'fashion_mnist': OfficialFiles(
        mean=(0.2860,),
        std=(0.3530,),
        url='https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/',
        sha256=(
            '3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84',
            'a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845',
            '346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073',
            '67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5',
        ),
        labels_md5='3236f6424fc25388b2834cb19942cf7e',
    ),
    'cifar10': OfficialFiles(
        train=tuple(f'data_batch_{i}.bin' for i in range(1, 6)),
        test=('test_batch.bin',),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        url='https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz',
        sha256=('c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd',),
        folder='cifar-10-batches-bin',
    ),
    'cifar100': OfficialFiles(
        train=('train.bin',),
        test=('test.bin',),
        classes=100,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        url='https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz',
        sha256=('58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec',),
        folder='cifar-100-binary',
        label_bytes=2,
    ),
}


def load(name: str, data_dir: str | Path | None) -> Dataset:
    """The data set of that name, one of IMAGE_SETS; `mnist` may know its writers.

    Raises DataError for files that are missing and not to be had, or damaged.
    """
    source = IMAGE_SETS[name]
    paths = _find(name, source, data_dir)
    train_x, train_y = _read_split(source, paths[: len(source.train)])
    test_x, test_y = _read_split(source, paths[len(source.train) :])
    if test_x.shape[1:] != train_x.shape[1:]:
        raise DataError(
            f'{paths[len(source.train)]} holds images {_by(test_x)}, and {paths[0]} '
            f'{_by(train_x)}: replace them by the official files'
        )
    if source.labels_md5:
        _check_identity(name, train_y, paths[1])
    writers = None
    if name == 'mnist':
        writers = read_writers(paths[0].parent / 'train-writer-ids.npy', len(train_y))
    return Dataset(train_x, train_y, test_x, test_y, source.classes, writers)


def _by(images: np.ndarray) -> str:
    return ' x '.join(map(str, images.shape[1:3]))


def _find(name: str, source: OfficialFiles, data_dir: str | Path | None) -> list[Path]:
    """The paths of a source's files, training first; those that are missing are downloaded."""
    files = source.train + source.test
    root = folder_of(data_dir) if data_dir else None
    if root is None:
        import pooch

        with contextlib.suppress(RuntimeError):
            root = Path(pooch.os_cache('dfl_jax'))
        if root is None or root.parts[0].startswith('~'):
            raise DataError(f'{name}: this user has no home folder to keep it in: give data_dir')
    home = root / name / source.folder
    folders = (home, root / name, root / source.folder, root)
    folder = next((f for f in folders if any(_present(f, file) for file in files)), home)
    missing = [file for file in files if not _present(folder, file)]
    for there in (path for file in missing for path in _candidates(folder, file)):
        try:
            if there.exists():
                check_file(there)
        except OSError as error:
            raise DataError(
                f'cannot read {there}: {error}; replace it by the official file'
            ) from None
    if missing:
        folder = home if source.folder else folder
        reason = _download(source, missing, folder)
        missing = [file for file in files if not _present(folder, file)]
        if missing:
            raise DataError(
                f'{name}: {folder} lacks {", ".join(missing)} ({reason}): '
                f'put these files, plain or as .gz or .xz, into {folder}'
            )
    return [path for file in files if (path := _present(folder, file))]


def _present(folder: Path, file: str) -> Path | None:
    return next((path for path in _candidates(folder, file) if path.is_file()), None)


def _candidates(folder: Path, file: str) -> list[Path]:
    return [folder / f'{file}{suffix}' for suffix in ('', '.gz', '.xz')]


def _download(source: OfficialFiles, missing: list[str], folder: Path) -> str:
    """Why files may be missing still, after an attempt to download those into the folder."""
    import pooch

    try:
        get = partial(pooch.retrieve, downloader=pooch.HTTPDownloader(timeout=30))
        if source.folder:
            archive = source.url.rsplit('/', 1)[1]
            unpack = pooch.Untar(extract_dir='.')
            digest = f'sha256:{source.sha256[0]}'
            get(source.url, digest, fname=archive, path=folder.parent, processor=unpack)
        else:
            for file, digest in zip(source.train + source.test, source.sha256, strict=True):
                if file in missing:
                    url, packed = f'{source.url}{file}.gz', f'{file}.gz'
                    get(url, f'sha256:{digest}', fname=packed, path=folder)
    except Exception as error:  # requests, tarfile and the checksum each have their own
        return f'the download failed: {one_line(error)}'
    return 'the download does not hold them'


def _read_split(source: OfficialFiles, paths: list[Path]) -> tuple[np.ndarray, np.ndarray]:
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
    return normalised(pixels, source.mean, source.std), y.astype(np.int32)


def _check_identity(name: str, labels: np.ndarray, path: Path) -> None:
    """Raises DataError where MNIST stands for Fashion-MNIST, which shares its file names."""
    md5 = hashlib.md5(labels.astype(np.uint8).tobytes(), usedforsecurity=False).hexdigest()
    for other, source in IMAGE_SETS.items():
        if other != name and md5 == source.labels_md5:
            raise DataError(f'{path} belongs to {other}, not to {name}: correct data_dir')


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
    with reading(f'{path} is not readable', 'replace it'):
        check_file(path)
        writers = np.lib.format.open_memmap(path, mode='r')  # reads no more than there is
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
