"""Folders of images, their augmentation, and the validation samples of a client."""

import io
import os
import sys
import time

import jax
import numpy as np
import pytest
from helpers import assert_refused
from test_cli import here
from tqdm import tqdm
from wiring import experiment

from dfl_jax import data
from dfl_jax.data import DataError, augment, image_folder, images
from dfl_jax.setting_error import SettingError

COLOURS = {
    'ant': [(200, 30, 90), (10, 60, 250), (0, 0, 1)],
    'bee': [(255, 255, 255), (120, 7, 33)],
    'cat': [(1, 2, 3), (77, 78, 79), (5, 250, 5), (250, 5, 5), (9, 99, 199)],
}
STANDARD = jax.jit(augment.standard, static_argnames='padding')


def paint(path, colour, size=(20, 11), mode='RGB', **options):
    Image = pytest.importorskip('PIL.Image')
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new('RGB', size, colour).convert(mode).save(path, **options)


def paint_classes(folder, classes=COLOURS):
    for name, colours in classes.items():
        for number, colour in enumerate(colours):
            paint(folder / name / f'{number}.png', colour, size=(9 + number, 30))


def colours_of(x, mean, std):
    """The one colour [n, 3] uint8 of every standardised image [n, S, S, 3]."""
    pixels = (x * std + mean) * 255
    np.testing.assert_allclose(pixels, np.rint(pixels), atol=1e-3)
    rounded = np.rint(pixels).astype(np.uint8)
    assert (rounded == rounded[:, :1, :1]).all()
    return rounded[:, 0, 0]


# -------------------------------------------------------------------------------- class folders


def test_train_and_test_folders(tmp_path):
    paint_classes(tmp_path / 'train')
    paint_classes(tmp_path / 'test', {'cat': [(4, 44, 144)], 'ant': [(8, 88, 188), (1, 1, 1)]})
    found = data.load('image_folder', tmp_path, image_size=12)
    assert found.train_x.shape == (10, 12, 12, 3) and found.test_x.shape == (3, 12, 12, 3)
    assert (found.train_x.dtype, found.train_y.dtype) == (np.float32, np.int32)
    assert found.train_y.tolist() == [0, 0, 0, 1, 1, 2, 2, 2, 2, 2]
    assert found.test_y.tolist() == [0, 0, 2]
    assert found.classes == 3 and found.owners is None
    painted = np.array([colour for colours in COLOURS.values() for colour in colours])
    mean, std = painted.mean(axis=0) / 255, painted.std(axis=0) / 255
    np.testing.assert_array_equal(colours_of(found.train_x, mean, std), painted)
    tests = [(8, 88, 188), (1, 1, 1), (4, 44, 144)]
    np.testing.assert_array_equal(colours_of(found.test_x, mean, std), tests)
    np.testing.assert_allclose(found.train_x.mean((0, 1, 2)), 0, atol=1e-5)
    np.testing.assert_allclose(found.train_x.std((0, 1, 2)), 1, atol=1e-5)


def test_a_random_fifth_is_the_test_set(tmp_path):
    names = ('0', '1', '2')
    painted = {(label, n, 7 * n) for label in range(3) for n in range(7)}  # red is the class
    for label, shade, blue in painted:
        paint(tmp_path / names[label] / f'{shade}.png', (label, shade, blue))
    found = data.load('image_folder', tmp_path, image_size=8)
    assert (len(found.train_y), len(found.test_y)) == (16, 5)

    def identities(found):
        """The images as painted; the largest and smallest pixel tell the standardisation."""
        x = np.concatenate([found.train_x, found.test_x])[:, 0, 0]
        x -= x.min(axis=0)
        x *= np.array([2, 6, 42]) / x.max(axis=0)
        return [tuple(pixel) for pixel in np.rint(x).astype(int).tolist()]

    read = identities(found)
    assert set(read) == painted and len(read) == 21  # disjoint and complete
    assert [pixel[0] for pixel in read] == [*found.train_y, *found.test_y]
    np.testing.assert_allclose(found.train_x.mean((0, 1, 2)), 0, atol=1e-5)  # of training alone
    np.testing.assert_allclose(found.train_x.std((0, 1, 2)), 1, atol=1e-5)
    assert read[:16] == sorted(read[:16]) and read[16:] == sorted(read[16:])

    other_seed = data.load('image_folder', tmp_path, image_size=8, seed=5)
    np.testing.assert_array_equal(other_seed.train_x, found.train_x)


def test_a_subset_is_standardised_as_the_whole(tmp_path):
    paint_classes(tmp_path / 'train')
    paint_classes(tmp_path / 'test')
    whole = data.load('image_folder', tmp_path, image_size=8)
    part = data.load(
        'image_folder', tmp_path, image_size=8, train_samples=4, test_samples=3, seed=2
    )
    expected = data.subsample(whole, 4, 2, 3)
    for a, b in zip(part[:4], expected[:4], strict=True):
        np.testing.assert_array_equal(a, b)


def test_sizes(tmp_path):
    paint_classes(tmp_path / 'train')
    paint_classes(tmp_path / 'test')
    assert data.load('image_folder', tmp_path).train_x.shape == (10, 64, 64, 3)
    for size in (7, 0, -3, 1025):
        with pytest.raises(SettingError, match=rf'image_size is {size}: use 8 to 1024'):
            data.load('image_folder', tmp_path, image_size=size)
    assert_refused('image_size is for image_folder, hf:, got digits', 'digits', image_size=8)


def test_resize_keeps_the_sides_and_averages(tmp_path):
    Image = pytest.importorskip('PIL.Image')
    columns = np.zeros((40, 16, 3), np.uint8)  # 40 rows, 16 columns: right half red, dark below
    columns[:, 8:, 0] = 240
    columns[20:, :, 2] = 100
    for half in ('train', 'test'):
        (tmp_path / half / 'a').mkdir(parents=True)
        Image.fromarray(columns).save(tmp_path / half / 'a' / '0.png')
        grid = 200 * (np.indices((40, 16)).sum(axis=0) % 2)  # a fine chessboard
        board = np.stack([grid] * 3, axis=-1).astype(np.uint8)
        Image.fromarray(board).save(tmp_path / half / 'a' / '1.png')
    x = data.load('image_folder', tmp_path, image_size=8).train_x
    red, _, blue = x[0].transpose(2, 0, 1)
    assert (red[:, 5:] - red[:, :3] > 1).all()
    assert (blue[5:] - blue[:3] > 1).all()
    np.testing.assert_allclose(red[0], red[-1], atol=1e-6)
    # Shrunk by averages, the chessboard is as grey as 100, which is the blue of the first below.
    np.testing.assert_allclose(x[1, 3:5, 3:5, 2], blue[-1, 0], atol=0.1)


def test_kinds_of_files(tmp_path):
    colours = [(0, 0, 0), (255, 255, 255), *((51 * n, 102, 204) for n in range(5)), (60, 60, 60)]
    files = {
        '0.png': {},
        '1.png': {},
        '2.JPG': {'quality': 100, 'subsampling': 0},
        '3.jpeg': {'quality': 100, 'subsampling': 0},
        '4.Png': {},
        '5.png': {'mode': 'RGBA'},
        '6.png': {'mode': 'P'},
        '7.png': {'mode': 'L'},
    }
    for (file, options), colour in zip(files.items(), colours, strict=True):
        for half in ('train', 'test'):
            paint(tmp_path / half / 'a' / file, colour, **options)
    (tmp_path / 'train/a/notes.txt').write_text('passed over')
    (tmp_path / 'train/a/.hidden.png').write_text('passed over')
    (tmp_path / 'train/.cache').mkdir()
    (tmp_path / 'train/LICENSE.png').write_text('no class')
    x = data.load('image_folder', tmp_path, image_size=8).train_x
    black, white = x[0, 0, 0], x[1, 0, 0]
    expected = np.broadcast_to(np.array(colours)[:, None, None], x.shape)
    np.testing.assert_allclose((x - black) / (white - black) * 255, expected, atol=2)  # JPEG: 2


# Exif orientation, from 1: how Pillow makes the stored pixels of upright ones
TURNS = (
    *(None, 'FLIP_LEFT_RIGHT', 'ROTATE_180', 'FLIP_TOP_BOTTOM'),
    *('TRANSPOSE', 'ROTATE_90', 'TRANSVERSE', 'ROTATE_270'),
)


@pytest.mark.parametrize('mode', ['RGB', 'L'])
def test_photos_are_turned_as_their_camera_says(tmp_path, mode):
    Image = pytest.importorskip('PIL.Image')
    upright = np.zeros((16, 16, 3), np.uint8)
    upright[:8, :8] = 200
    upright[:8, 8:] = 90
    for half in ('train', 'test'):
        (tmp_path / half / 'a').mkdir(parents=True)
        for orientation, turn in enumerate(TURNS, 1):
            image = Image.fromarray(upright).convert(mode)
            if turn:
                image = image.transpose(Image.Transpose[turn])
            exif = Image.Exif()
            exif[0x0112] = orientation
            for name in (f'{orientation}.png', f'{orientation}.jpg'):
                image.save(tmp_path / half / 'a' / name, exif=exif, quality=100, subsampling=0)
    x = data.load('image_folder', tmp_path, image_size=16).train_x
    assert x[0].std() > 0.5
    np.testing.assert_allclose(x, np.broadcast_to(x[1], x.shape), atol=0.05)


def shape_of(mode, rows, colour=0):
    """An image of one colour whose lower rows, from `rows` on, are transparent."""
    Image = pytest.importorskip('PIL.Image')
    alpha = np.zeros((16, 16), np.uint8)
    alpha[:rows] = 255
    if mode == 'P':
        image = Image.fromarray((alpha == 0).astype(np.uint8), 'P')
        image.putpalette([colour] * 6)
        image.info['transparency'] = 1
        return image
    if mode == 'RGB':  # one colour of the file is the transparent one
        pixels = np.where(alpha[..., None] > 0, colour, [7, 8, 9]).astype(np.uint8)
        image = Image.fromarray(pixels)
        image.info['transparency'] = (7, 8, 9)
        return image
    image = Image.new('RGBA', (16, 16), (colour,) * 4)
    image.putalpha(Image.fromarray(alpha))
    return image.convert(mode)


@pytest.mark.parametrize('mode', ['RGBA', 'LA', 'P', 'RGB'])
def test_what_is_transparent_lies_on_white(tmp_path, mode):
    for half in ('train', 'test'):
        (tmp_path / half / 'a').mkdir(parents=True)
        for rows in (4, 12):
            options = {'transparency': 1 if mode == 'P' else (7, 8, 9)} if mode in 'P RGB' else {}
            shape_of(mode, rows).save(tmp_path / half / 'a' / f'{rows:02}.png', **options)
    x = data.load('image_folder', tmp_path, image_size=16).train_x
    white, black = x.max(), x.min()
    for image, rows in zip(x, (4, 12), strict=True):
        expected = np.where(np.arange(16) < rows, black, white)[:, None, None]
        np.testing.assert_allclose(image, np.broadcast_to(expected, image.shape), atol=1e-3)


def test_half_transparent_pixels_are_mixed_with_white():
    Image = pytest.importorskip('PIL.Image')
    found = images.pixels_of(Image.new('RGBA', (2, 2), (100, 0, 255, 51)))
    assert found[0, 0].tolist() == [224, 204, 255]  # 51 is a fifth of 255


@pytest.mark.parametrize('mode', ['RGBA', 'LA'])
def test_a_white_shape_that_white_would_hide_is_refused(tmp_path, mode):
    paint_classes(tmp_path)
    shape_of(mode, 4, 255).save(tmp_path / 'bee/1.png')
    with pytest.raises(DataError, match=r'bee/1.png .*nothing of it shows on white: lay it on'):
        data.load('image_folder', tmp_path, image_size=8)


def test_a_class_whose_images_all_are_in_the_random_test_set_is_refused(tmp_path):
    assert np.flatnonzero(data.dataset.choose_test_rows(5, None, '')).tolist() == [2]
    for number, name in enumerate('aabcc'):
        paint(tmp_path / name / f'{number}.png', (20 * number, 7 * number, number))
    with pytest.raises(DataError, match='no training sample has the class b of the test set'):
        data.load('image_folder', tmp_path, image_size=8)


def write_bad(folder, content):
    paint_classes(folder)
    (folder / 'bee/1.png').write_bytes(content)


@pytest.mark.parametrize('keep', [0, 30, 200])
def test_an_unreadable_image_is_named(tmp_path, keep):
    Image = pytest.importorskip('PIL.Image')
    noise = np.random.default_rng(0).integers(256, size=(30, 30, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).save(buffer, 'png')
    write_bad(tmp_path, buffer.getvalue()[:keep])
    said = r'cannot read the image .*bee/1.png \(.*remove'
    assert_refused(said, 'image_folder', tmp_path, image_size=8)


def test_what_is_no_plain_file_is_named_before_anything_is_read(tmp_path, monkeypatch):
    paint_classes(tmp_path)
    monkeypatch.setattr(image_folder, '_read', lambda *_: pytest.fail('images were read'))
    for make, what in ((os.mkfifo, 'a named pipe'), (os.mkdir, 'a folder')):
        path = tmp_path / 'cat' / f'{what[-4:]}.png'
        make(path)
        assert_refused(rf'image {path} .*it is {what}.*remove it', 'image_folder', tmp_path)
        path.unlink() if what == 'a named pipe' else path.rmdir()


def test_images_that_the_memory_does_not_hold(tmp_path, monkeypatch):
    paint_classes(tmp_path)
    monkeypatch.setattr('dfl_jax.host_memory.free_bytes', lambda: 2**20)
    with pytest.raises(DataError, match=r'takes about .* MiB, and 1.0 MiB are free'):
        data.load('image_folder', tmp_path, image_size=512)


def test_deeper_pixels_are_refused(tmp_path):
    Image = pytest.importorskip('PIL.Image')
    buffer = io.BytesIO()
    Image.fromarray(np.full((9, 9), 5000, np.uint16)).save(buffer, 'png')
    write_bad(tmp_path, buffer.getvalue())
    assert_refused(r'bee/1.png .*more than 8 bits', 'image_folder', tmp_path, image_size=8)


def test_layouts_that_are_refused(tmp_path, monkeypatch):
    assert_refused(r'set data_dir to a folder that holds CLASS/FILE\.jpg', 'image_folder')
    assert_refused('absent is not a folder: make it', 'image_folder', tmp_path / 'absent')
    (tmp_path / 'picture.png').touch()
    with pytest.raises(DataError, match=rf'{tmp_path} holds no class folders: .*CLASS/FILE.jpg'):
        data.load('image_folder', tmp_path)
    paint(tmp_path / 'train/a/0.png', (1, 2, 3))
    assert_refused(rf'{tmp_path}/train holds no image: .*test/CLASS', 'image_folder', tmp_path)
    (tmp_path / 'test').mkdir()
    assert_refused(rf'{tmp_path}/test holds no class folders', 'image_folder', tmp_path)
    for name in 'abc':
        paint(tmp_path / f'test/{name}/0.png', (5, 6, 7))
    assert_refused(r'test holds b, one of 2 classes that .*train lacks', 'image_folder', tmp_path)
    for name in 'bc':
        paint(tmp_path / f'train/{name}/0.png', (5, 2, 9))
    with pytest.raises(DataError, match='the green channel does not vary over 3 training images'):
        data.load('image_folder', tmp_path)
    paint(tmp_path / 'one/a/0.png', (1, 2, 3))
    assert_refused(r'one holds 1 samples: .* at least two', 'image_folder', tmp_path / 'one')
    monkeypatch.setitem(sys.modules, 'PIL.Image', None)
    assert_refused('pip install pillow', 'image_folder', tmp_path / 'train')


def test_progress_goes_to_stderr(tmp_path, capsys, monkeypatch):
    paint_classes(tmp_path)
    data.load('image_folder', tmp_path, image_size=8, progress=True)  # within a second: no bar
    assert capsys.readouterr() == ('', '')
    monkeypatch.setattr(
        image_folder, 'tqdm', lambda *a, **options: tqdm(*a, **options | {'delay': 0})
    )
    data.load('image_folder', tmp_path, image_size=8)
    assert capsys.readouterr() == ('', '')
    data.load('image_folder', tmp_path, image_size=8, progress=True)
    out, err = capsys.readouterr()
    assert out == '' and '/10 ' in err


# --------------------------------------------------------------------------- from the command line


def test_flags(tmp_path):
    paint_classes(tmp_path)
    built = experiment(
        *('--dataset=image_folder', f'--data_dir={tmp_path}', '--image_size=16'),
        *('--partition=iid', '--clients=4', '--degree=2', '--rounds=1', '--hidden=8'),
    )
    assert built.clients.x.shape == (4, 2, 16, 16, 3)
    assert built.test.x.shape == (2, 16, 16, 3)


@pytest.mark.parametrize('dataset', ['digits', 'mnist', 'own.npz'])
def test_image_size_is_for_folders_only(dataset):
    line = here(f'--dataset={dataset}', '--image_size=32').error
    assert f'--image_size=32 does not apply to --dataset={dataset}' in line


# --------------------------------------------------------------------------------- augmentation


def windows(image, padding):
    """{bytes of a window: (row, column, flip)} of one image [h, w, c]."""
    height, width, _ = image.shape
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)))
    found = {}
    for row in range(2 * padding + 1):
        for column in range(2 * padding + 1):
            window = padded[row : row + height, column : column + width]
            found[window.tobytes()] = (row, column, False)
            found[window[:, ::-1].tobytes()] = (row, column, True)
    return found


def test_augmented_images_are_windows():
    images = np.random.default_rng(0).normal(size=(3, 9, 7, 2)).astype(np.float32)
    known = [windows(image, 4) for image in images]
    assert [len(found) for found in known] == [9 * 9 * 2] * 3
    repeats = 1500
    batch = np.tile(images, (repeats, 1, 1, 1))
    out = np.asarray(STANDARD(jax.random.key(3), batch))
    assert out.shape == batch.shape and out.dtype == np.float32
    drawn = np.array([known[i % 3][image.tobytes()] for i, image in enumerate(out)])
    rows, columns, flips = drawn.T
    n = len(drawn)
    assert abs(flips.mean() - 0.5) < 5 * 0.5 / np.sqrt(n)
    for offsets in (rows, columns):
        shares = np.bincount(offsets, minlength=9) / n
        assert shares.size == 9
        np.testing.assert_allclose(shares, 1 / 9, atol=5 * np.sqrt(8 / 81 / n))
    # Independent of each other and between samples.
    pairs = [(rows, columns), (rows, flips), (columns, flips), *((d[1:], d[:-1]) for d in drawn.T)]
    for a, b in pairs:
        assert abs(np.corrcoef(a, b)[0, 1]) < 5 / np.sqrt(n)
    assert len({tuple(d) for d in drawn}) == 9 * 9 * 2


def test_augmentation_is_fixed_by_the_key():
    x = np.random.default_rng(1).normal(size=(4, 6, 6, 6, 3)).astype(np.float32)
    keys = jax.random.split(jax.random.key(0), 4)
    single = [np.asarray(STANDARD(key, images)) for key, images in zip(keys, x, strict=True)]
    mapped = np.asarray(jax.jit(jax.vmap(augment.standard))(keys, x))
    np.testing.assert_array_equal(mapped, np.stack(single))
    np.testing.assert_array_equal(STANDARD(keys[0], x[0]), single[0])
    assert not np.array_equal(STANDARD(keys[1], x[0]), single[0])


def test_augmentation_settings():
    x = np.random.default_rng(2).normal(size=(40, 5, 5, 1)).astype(np.float32)
    out = np.asarray(STANDARD(jax.random.key(0), x, padding=0))
    flipped = (out == x[:, :, ::-1]).all(axis=(1, 2, 3))
    assert 5 < flipped.sum() < 35
    np.testing.assert_array_equal(out[~flipped], x[~flipped])
    with pytest.raises(ValueError, match=r'\[B, h, w, c\], got inputs of shape \(40, 5\)'):
        augment.standard(jax.random.key(0), x[..., 0, 0])
    assert augment.AUGMENTATIONS == ('none', 'standard')


# ------------------------------------------------------------- validation and unequal partitions


def test_validation_samples():
    rng = np.random.default_rng(0)
    sizes = [1, 2, 3, 4, 5, 10, 99, 1000]
    parts = np.split(rng.permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    training, validation = data.split_validation(parts, 0.2, 7)
    assert [len(part) for part in validation] == [0, 0, 1, 1, 1, 2, 20, 200]
    for part, kept, held in zip(parts, training, validation, strict=True):
        assert sorted([*kept, *held]) == sorted(part)
        order = {index: place for place, index in enumerate(part)}
        for half in (kept, held):
            assert half.dtype == part.dtype
            places = [order[index] for index in half]
            assert places == sorted(places)
    places = np.flatnonzero(np.isin(parts[-1], validation[-1]))
    assert abs(places.mean() - 500) < 5 * 289 / np.sqrt(200)  # at random, not the first or last


def test_validation_samples_are_each_clients_own():
    parts = [np.arange(100 * i, 100 * i + 50) for i in range(6)]
    _, first = data.split_validation(parts, 0.2, 7)
    _, again = data.split_validation(parts, 0.2, 7)
    others = [parts[0], parts[1][:3], parts[2]]
    _, fewer = data.split_validation(others, 0.2, 7)
    _, other = data.split_validation(parts, 0.2, 8)
    for i in range(6):
        np.testing.assert_array_equal(first[i], again[i])
        assert set(first[i]) != set(other[i])
    np.testing.assert_array_equal(first[0], fewer[0])
    np.testing.assert_array_equal(first[2], fewer[2])
    assert len({tuple(held % 100) for held in first}) == 6  # not the same places everywhere


def test_validation_shares():
    parts = [np.arange(5), np.array([9])]
    training, validation = data.split_validation(parts, 0, 0)
    assert [len(part) for part in validation] == [0, 0]
    for part, kept in zip(parts, training, strict=True):
        np.testing.assert_array_equal(part, kept)
    training, _ = data.split_validation(parts, 0.99, 0)
    assert [len(part) for part in training] == [1, 1]
    for share in (-0.1, 1, 1.5, float('nan')):
        with pytest.raises(SettingError, match=rf'validation share is {share}: use 0'):
            data.split_validation(parts, share, 0)


@pytest.mark.parametrize('classes', [10, 100])
@pytest.mark.parametrize('clients', [10, 50])
def test_classes_of_cifar_over_the_clients_of_dfml(clients, classes):
    labels = np.random.default_rng(0).permutation(np.arange(50_000) % classes)
    begin = time.perf_counter()
    skew = []
    for seed in range(20):
        parts = data.dirichlet_split(np.random.default_rng(seed), labels, clients, 0.1)
        assert len(parts) == clients and min(map(len, parts)) >= 1
        np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(50_000))
        held = np.stack([np.bincount(labels[part], minlength=classes) for part in parts])
        skew.append(np.square(held / held.sum(axis=0)).sum(axis=0).mean())
    assert (time.perf_counter() - begin) / 20 < 0.5  # 0.01 s where nothing else runs
    expected = 1.1 / (0.1 * clients + 1)  # E[sum of squares of Dir(0.1)]
    assert abs(np.mean(skew) / expected - 1) < 0.1
