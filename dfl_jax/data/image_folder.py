"""Images in class folders: Caltech101, Oxford Pets, Stanford Cars, or one's own.

Hidden files, hidden folders and files that are no .jpg, .jpeg or .png are passed over.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from dfl_jax.data.dataset import (
    DataError,
    Dataset,
    check_classes,
    check_memory,
    choose_test_rows,
    folder_of,
    imported,
    normalised,
    reading,
)
from dfl_jax.data.images import channel_moments, check_size, pixels_of
from dfl_jax.files import check_file

SUFFIXES = ('.jpg', '.jpeg', '.png')
LAYOUT = 'CLASS/FILE.jpg (.jpeg, .png), or train/CLASS/FILE.jpg and test/CLASS/FILE.jpg'
SIZE = 64  # default S, rows and columns
REMEDY = 'replace or remove it'


def load(
    data_dir: str | Path | None, image_size: int | None = None, *, progress: bool = False
) -> Dataset:
    """The data set of a folder, its inputs images [n, S, S, 3].

    Labels number the sorted names of the classes; samples are sorted by class and file name. Where
    data_dir lacks the folders train and test, a fifth of all images, rounded up, is the test set.
    DFML (section 4.1) splits Caltech101 so and does not say that each class keeps its share: this
    is a plain random choice.

    An image becomes a square in RGB, whatever its shape and kind, by `images.pixels_of`. Every
    channel, scaled to [0, 1], is then shifted and scaled to mean 0 and standard deviation 1 over
    all training images.

    Args:
      data_dir: the folder with the classes, or with train and test.
      image_size: S; default, `SIZE`.
      progress: show a progress bar when reading takes more than a second.

    Raises:
      SettingError: no such folder, or image_size out of `SIZES`.
      DataError: no Pillow, folders of another layout, test classes that training lacks, an image
        that cannot be read, or a channel that does not vary.
    """
    size = SIZE if image_size is None else image_size
    check_size(size)
    root = folder_of(data_dir, f'image_folder: set data_dir to a folder that holds {LAYOUT}')
    halves = [root / 'train', root / 'test']
    split = all(half.is_dir() for half in halves)
    sets = [_classes(folder) for folder in (halves if split else [root])]
    numbers = {name: number for number, name in enumerate(sets[0])}
    strangers = [name for name in sets[-1] if name not in numbers]
    if strangers:
        raise DataError(
            f'{halves[1]} holds {strangers[0]}, one of {len(strangers)} classes that '
            f'{halves[0]} lacks: add them there, or remove them'
        )
    paths = [path for classes in sets for files in classes.values() for path in files]
    y = np.array([numbers[path.parent.name] for path in paths], np.int32)
    if split:
        test = np.arange(len(paths)) >= sum(map(len, sets[0].values()))
    else:
        test = choose_test_rows(len(paths), None, root)
    Image = imported('PIL.Image', 'image_folder is read by Pillow', 'pillow')
    check_classes(root, y[~test], y[test], [*numbers])
    for path in paths:
        with reading(f'cannot read the image {path}', REMEDY):
            check_file(path)
    check_memory(root, len(paths) * size * size * 3 * 5)  # as they are read, and as float32

    images = _read(Image, paths, size, progress)
    moments = channel_moments(images[~test], root)
    train_x, test_x = (normalised(images[chosen], *moments) for chosen in (~test, test))
    return Dataset(train_x, y[~test], test_x, y[test], len(numbers))


def _classes(folder: Path) -> dict[str, list[Path]]:
    """The images of every class, both sorted by name."""
    classes = {
        home.name: [path for path in _visible(home) if path.suffix.lower() in SUFFIXES]
        for home in _visible(folder)
        if home.is_dir()
    }
    if not classes:
        raise DataError(f'{folder} holds no class folders: lay the images out as {LAYOUT}')
    empty = [name for name, files in classes.items() if not files]
    if empty:
        raise DataError(
            f'{folder / empty[0]} holds no image: remove it, or lay the images out as {LAYOUT}'
        )
    return classes


def _visible(folder: Path) -> list[Path]:
    with reading(f'cannot list {folder}', 'make it readable'):
        paths = [path for path in folder.iterdir() if not path.name.startswith('.')]
    return sorted(paths, key=lambda path: path.name)


def _read(Image: Any, paths: list[Path], size: int, progress: bool) -> np.ndarray:
    """[n, size, size, 3] uint8, n images in the order of their paths; Image is Pillow's module."""

    def read(path: Path) -> np.ndarray:
        with reading(f'cannot read the image {path}', REMEDY), Image.open(path) as image:
            return pixels_of(image, size)

    images = np.empty((len(paths), size, size, 3), np.uint8)
    options = {'delay': 1, 'leave': False, 'disable': not progress, 'dynamic_ncols': True}
    with (
        ThreadPoolExecutor() as pool,
        tqdm(pool.map(read, paths), total=len(paths), unit='image', **options) as bar,
    ):
        for row, image in enumerate(bar):
            images[row] = image  # the three channels of a grey one are the same
    return images
