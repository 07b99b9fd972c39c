"""Data sets in the format of Hugging Face's library, from local folders; skipped without it."""

import io

import numpy as np
import pytest
from helpers import assert_refused
from test_cli import here, rows_of

from dfl_jax import data
from dfl_jax.data import DataError
from dfl_jax.tasks import MULTI_LABEL, REGRESSION

datasets = pytest.importorskip('datasets')
Image = pytest.importorskip('PIL.Image')


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of its own, and no network."""
    monkeypatch.setattr(datasets.config, 'HF_DATASETS_CACHE', tmp_path / 'cache')
    monkeypatch.setattr(datasets.config, 'HF_HUB_OFFLINE', True)
    monkeypatch.setattr('huggingface_hub.constants.HF_HUB_OFFLINE', True)


def pictures(n, seed, size=8, mode='L'):
    """Pictures with a bright square, in the corner that is their class; writers 0 to 4."""
    rng = np.random.default_rng(seed)
    y = rng.integers(4, size=n)
    x = rng.integers(0, 80, (n, size, size), dtype=np.uint8)
    for image, corner in zip(x, y, strict=True):
        row, column = (size // 2) * (corner // 2), (size // 2) * (corner % 2)
        image[row : row + 3, column : column + 3] += 150
    images = [Image.fromarray(each).convert(mode) for each in x]
    features = datasets.Features(
        {
            'image': datasets.Image(),
            'label': datasets.ClassLabel(names=list('abcd')),
            'writer': datasets.Value('string'),
        }
    )
    rows = {'image': images, 'label': y, 'writer': [f'w{i % 5}' for i in range(n)]}
    return datasets.Dataset.from_dict(rows, features=features), x, y


@pytest.fixture
def digits(tmp_path):
    """A folder written by save_to_disk, with the splits train and test."""
    train, x, y = pictures(200, 0)
    test, *_ = pictures(60, 1)
    folder = tmp_path / 'digits'
    datasets.DatasetDict({'train': train, 'test': test}).save_to_disk(folder)
    return folder, x, y


def test_images_of_a_folder(digits):
    folder, x, y = digits
    found = data.load(f'hf:{folder}', columns={'client': 'writer'})
    assert found.train_x.shape == (200, 8, 8, 1) and found.test_x.shape == (60, 8, 8, 1)
    scaled = x[..., None] / 255
    expected = (scaled - scaled.mean()) / scaled.std()
    np.testing.assert_allclose(found.train_x, expected, atol=1e-4)
    np.testing.assert_array_equal(found.train_y, y)
    assert found.classes == 4 and found.train_y.dtype == np.int32
    np.testing.assert_array_equal(found.owners, np.arange(200) % 5)
    assert data.load(f'hf:{folder}').owners is None
    assert data.load(f'hf:{folder}', image_size=16).train_x.shape == (200, 16, 16, 1)


def test_files_of_a_folder(tmp_path):
    folder = tmp_path / 'repository'
    folder.mkdir()
    train, x, _ = pictures(40, 0, mode='RGB')
    train.to_parquet(folder / 'train.parquet')
    found = data.load(f'hf:{folder}', columns={'input': 'image', 'target': 'writer'})
    assert found.train_x.shape == (32, 8, 8, 3) and found.classes == 5
    kept = ~data.dataset.choose_test_rows(40, 0.2, '')
    np.testing.assert_array_equal(found.train_y, np.arange(40)[kept] % 5)
    assert found.train_x.mean() == pytest.approx(0, abs=1e-4)
    order = np.argsort(x[kept][0].ravel(), kind='stable')
    assert (np.diff(found.train_x[0, ..., 1].ravel()[order]) >= 0).all()
    owners = data.load(f'hf:{folder}', columns={'client': 'writer'}).owners
    np.testing.assert_array_equal(owners, np.arange(40)[kept] % 5)
    train.to_parquet(folder / 'validation.parquet')
    assert len(data.load(f'hf:{folder}', columns={'target': 'label'}).test_y) == 40


def test_lists_of_numbers_and_tables(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3, 2))
    rows = {'signal': x.tolist(), 'kind': rng.choice(['up', 'down'], 50).tolist()}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / 'signals')
    roles = {'input': 'signal', 'target': 'kind'}
    found = data.load(f'hf:{tmp_path}/signals', columns=roles, test_share=0.5)
    kept = ~data.dataset.choose_test_rows(50, 0.5, '')
    np.testing.assert_allclose(found.train_x, x[kept], rtol=1e-6)
    assert found.classes == 2

    table = {'a': x[:, 0, 0], 'b': rows['kind'], 'price': 5 * x[:, 0, 0] + 3, 'who': [1, 2] * 25}
    whole = datasets.Dataset.from_dict(table)
    splits = {'train': whole.select(range(40)), 'test': whole.select(range(40, 50))}
    datasets.DatasetDict(splits).save_to_disk(tmp_path / 'table')
    roles = {'target': 'price', 'client': 'who'}
    found = data.load(f'hf:{tmp_path}/table', columns=roles, task=REGRESSION)
    assert found.train_x.shape == (40, 3) and found.test_x.shape == (10, 3)
    np.testing.assert_allclose(found.train_y, found.train_x[:, 0], atol=1e-5)
    np.testing.assert_array_equal(found.owners, [0, 1] * 20)


def saved(folder, **splits):
    """hf:FOLDER of these splits, one alone as a data set without splits."""
    whole = datasets.DatasetDict(splits) if len(splits) > 1 else next(iter(splits.values()))
    whole.save_to_disk(folder)
    return f'hf:{folder}'


def of_images(images, label=(0, 1), names=('a', 'b'), feature=None):
    """A split of images, with labels in turn."""
    features = datasets.Features(
        {'image': feature or datasets.Image(), 'label': datasets.ClassLabel(names=list(names))}
    )
    labels = [label[i % len(label)] for i in range(len(images))]
    return datasets.Dataset.from_dict({'image': images, 'label': labels}, features=features)


RED, BLUE, GREY = (200, 0, 0), (0, 0, 200), (90, 90, 90)


@pytest.mark.parametrize('colour', ['RGB', 'P', 'CMYK', 'RGBA', 'YCbCr'])
@pytest.mark.parametrize('grey', ['L', '1', 'LA'])
@pytest.mark.parametrize('first', ['grey', 'colour'])
def test_any_colour_makes_all_images_rgb(tmp_path, colour, grey, first):
    plain = [Image.new('RGB', (8, 8), shade).convert(colour) for shade in (RED, BLUE)] * 3
    without = [Image.new('RGB', (8, 8), GREY).convert(grey)] * 2
    images = without + plain if first == 'grey' else plain + without
    table = of_images([image_as_file(image) for image in images])
    x = data.load(saved(tmp_path / 'set', train=table, test=table)).train_x
    assert x.shape == (8, 8, 8, 3)
    red, blue = x[:, 0, 0][slice(2, None) if first == 'grey' else slice(6)][:2]
    assert red[0] > blue[0] + 1 and red[2] < blue[2] - 1
    greys = x[:, 0, 0][:2] if first == 'grey' else x[:, 0, 0][6:]
    np.testing.assert_array_equal(greys[0], greys[1])


def image_as_file(image):
    """As the bytes of a file, which keep the mode; PNG knows no other colour spaces."""
    suffix = 'png' if image.mode in ('1', 'L', 'LA', 'P', 'RGB', 'RGBA') else 'tiff'
    file = io.BytesIO()
    image.save(file, suffix)
    return {'bytes': file.getvalue(), 'path': None}


@pytest.mark.parametrize('modes', [['L'], ['1', 'L'], ['LA', 'L', '1']])
def test_grey_images_have_one_channel(tmp_path, modes):
    images = [
        image_as_file(Image.new('L', (8, 8), 40 * i + 60).convert(modes[i % len(modes)]))
        for i in range(4)
    ]
    table = of_images(images)
    found = data.load(saved(tmp_path / 'set', train=table, test=table))
    assert found.train_x.shape == (4, 8, 8, 1)


def test_images_are_those_of_a_folder_of_classes(tmp_path):
    """Turned by their orientation, laid on white, and of the same values as by image_folder."""
    rng = np.random.default_rng(0)
    for half in ('train', 'test'):
        for number in range(6):
            folder = tmp_path / 'images' / half / 'ab'[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(256, size=(8, 8, 4), dtype=np.uint8)
            image = Image.fromarray(pixels).convert('RGBA' if number < 3 else 'RGB')
            exif = Image.Exif()
            exif[0x0112] = 1 + number
            image.save(folder / f'{number}.png', exif=exif)
    ours = data.load('image_folder', tmp_path / 'images', image_size=8)
    theirs = data.load(f'hf:{tmp_path}/images', image_size=8)
    for a, b in ((ours.train_x, theirs.train_x), (ours.test_x, theirs.test_x)):
        np.testing.assert_allclose(np.sort(a, axis=0), np.sort(b, axis=0), atol=1e-5)


@pytest.mark.parametrize('place', [0, 3])
@pytest.mark.parametrize('half', ['train', 'test'])
def test_a_row_without_an_image_is_named(tmp_path, place, half):
    images = [image_as_file(Image.new('L', (8, 8), 9 * i)) for i in range(6)]
    splits = {'train': of_images(images), 'test': of_images(images)}
    images[place] = None
    splits[half] = of_images(images)
    number = place + 6 * (half == 'test')
    with pytest.raises(DataError, match=rf'image image of sample {number} .*there is none'):
        data.load(saved(tmp_path / 'set', **splits))


def test_an_image_that_is_none_is_named(tmp_path):
    images = [image_as_file(Image.new('L', (8, 8), 9 * i)) for i in range(6)]
    images[2] = {'bytes': b'\x89PNG no image', 'path': None}
    table = of_images(images)
    with pytest.raises(DataError, match=r'cannot read the image image of sample 2 \(.*replace'):
        data.load(saved(tmp_path / 'set', train=table, test=table))


def test_images_that_are_not_decoded_by_the_package(tmp_path):
    images = [image_as_file(Image.new('L', (8, 8), 9 * i)) for i in range(6)]
    table = of_images(images, feature=datasets.Image(decode=False))
    found = data.load(saved(tmp_path / 'set', train=table, test=table))
    assert found.train_x.shape == (6, 8, 8, 1)


@pytest.mark.parametrize(
    ('column', 'said'),
    [
        ('kind', '2 samples have no kind: remove them'),
        ('who', '2 samples have no who: remove them'),
        ('x', '2 samples have no x: remove them'),
    ],
)
def test_missing_values_are_refused(tmp_path, column, said):
    rows = {'x': [[1.0, 2.0], [0.0, 1.0]] * 10, 'kind': ['a', 'b'] * 10, 'who': ['u', 'v'] * 10}
    rows[column][3] = rows[column][7] = None
    name = saved(tmp_path / 'set', train=datasets.Dataset.from_dict(rows))
    assert_refused(said, name, columns={'input': 'x', 'target': 'kind', 'client': 'who'})


@pytest.mark.parametrize(
    ('shape', 'scale', 'said'),
    [
        ((3, 8, 8), 1, r'x is \(12, 3, 8, 8\), \[n, channels, H, W\]'),
        ((8, 8), 255, 'x has values from .*, with a standard deviation of 7'),
        ((8, 8, 3), 255, 'x has values from .* only pixels of type uint8 are scaled'),
    ],
)
def test_lists_that_are_images_in_another_form_are_refused(tmp_path, shape, scale, said):
    x = (scale * np.random.default_rng(0).random((12, *shape))).round(2)
    table = datasets.Dataset.from_dict({'x': x.tolist(), 'kind': ['a', 'b'] * 6})
    name = saved(tmp_path / 'set', train=table, test=table)
    assert_refused(said, name, columns={'input': 'x', 'target': 'kind'})


def test_colour_of_the_test_set_makes_all_images_rgb(tmp_path):
    grey = of_images([Image.new('L', (8, 8), 40 * i) for i in range(4)])
    colour = of_images([Image.new('RGB', (8, 8), (200, 40 * i, 0)) for i in range(4)])
    found = data.load(saved(tmp_path / 'set', train=grey, test=colour))
    assert found.train_x.shape == found.test_x.shape == (4, 8, 8, 3)
    assert (found.test_x[..., 0] > found.test_x[..., 2]).all()


# --------------------------------------------------------------- splits that were encoded apart

LISTS = {'input': 'x', 'target': 'kind'}


def encoded(kinds, names):
    """Rows [x, ordinal] of the kinds, encoded by the names; x says which kind it is."""
    x = [[float('abcd'.index(kind)), 1.0] for kind in kinds]
    labels = [names.index(kind) for kind in kinds] if names else list(kinds)
    feature = datasets.ClassLabel(names=names) if names else datasets.Value('string')
    features = datasets.Features(
        {'x': datasets.List(datasets.Value('float32')), 'ordinal': datasets.Value('int32')}
        | {'kind': feature}
    )
    rows = {'x': x, 'ordinal': [int(each[0]) % 3 for each in x], 'kind': labels}
    return datasets.Dataset.from_dict(rows, features=features)


@pytest.mark.parametrize(
    ('of_train', 'of_test'),
    [
        (list('abc'), list('cba')),
        (list('abc'), list('bc')),
        (list('bca'), ['d', 'a', 'b', 'c']),
        (list('cab'), None),
        (None, list('cb')),
        (list('dabc'), list('abc')),
    ],
)
@pytest.mark.parametrize('columns', [LISTS, {'target': 'kind', 'drop': 'x'}])
def test_labels_are_known_by_their_names(tmp_path, of_train, of_test, columns):
    splits = {'train': encoded('abcabc', of_train), 'test': encoded('bccb', of_test)}
    found = data.load(saved(tmp_path / 'set', **splits), columns=columns)
    x, y = found.train_x, found.train_y
    number = {float(row[0]): int(label) for row, label in zip(x, y, strict=True)}
    assert len(set(number.values())) == 3
    assert [number[float(row[0])] for row in found.test_x] == found.test_y.tolist()
    if columns is LISTS:
        assert found.classes == (len(of_train) if of_train else 3)


@pytest.mark.parametrize(
    ('train', 'test', 'of_train', 'of_test', 'name'),
    [
        ('abab', 'abc', list('ab'), list('abc'), 'c'),
        ('abab', 'cd', list('ab'), list('cd'), 'c .and 1 others.'),
        ('abab', 'abc', None, None, 'c'),
        ('abab', 'abc', list('abc'), list('abc'), 'c'),  # a name that no training row has
        ('abab', 'ad', list('ab'), None, 'd'),
    ],
)
@pytest.mark.parametrize('columns', [LISTS, {'target': 'kind', 'drop': 'x'}])
def test_classes_that_training_lacks_are_refused(
    tmp_path, train, test, of_train, of_test, name, columns
):
    splits = {'train': encoded(train, of_train), 'test': encoded(test, of_test)}
    said = f'no training (sample|row) has the class {name} of the test set'
    assert_refused(said, saved(tmp_path / 'set', **splits), columns=columns)


def test_numbers_and_names_of_classes_do_not_fit(tmp_path):
    train = encoded('abab', list('ab'))
    test = train.cast_column('kind', datasets.Value('int64'))
    with pytest.raises(DataError, match='kind is str in the training set and int in the test set'):
        data.load(saved(tmp_path / 'set', train=train, test=test), columns=LISTS)
    with pytest.raises(DataError, match='no training row has the class 0'):
        columns = {'target': 'kind', 'drop': 'x'}
        data.load(saved(tmp_path / 'table', train=train, test=test), columns=columns)


def test_images_whose_splits_were_encoded_apart(tmp_path):
    images = [image_as_file(Image.new('L', (8, 8), shade)) for shade in (0, 200)]
    splits = {
        'train': of_images(images * 3, label=(0, 1), names=('dark', 'light')),
        'test': of_images(images * 2, label=(1, 0), names=('light', 'dark')),
    }
    found = data.load(saved(tmp_path / 'set', **splits))
    np.testing.assert_array_equal(found.train_y, [0, 1] * 3)
    np.testing.assert_array_equal(found.test_y, [0, 1] * 2)


# ------------------------------------------------------------------------------------- as tables


@pytest.mark.parametrize(
    ('columns', 'said'),
    [
        ({'__index_level_0__': range(40)}, 'column __index_level_0__ numbers the rows'),
        ({'counter': list(range(5, 45))}, 'column counter numbers the rows'),
        ({'dear.1': ['yes', 'no'] * 20}, 'dear.1 is the target dear again: leave it out'),
        ({'size': ['?', *map(str, range(39))]}, r"size holds numbers, and 1 other .*'\?'"),
        ({'size': [f'{i},5' for i in range(8)] * 5}, "size holds numbers in a form .*'0,5'"),
        ({'note': [f'it is {i * i}' for i in range(40)]}, 'note has 32 different values'),
    ],
)
def test_columns_that_are_no_features(tmp_path, columns, said):
    rng = np.random.default_rng(0)
    rows = {'size': rng.normal(size=40).tolist(), 'dear': ['yes', 'no'] * 20} | columns
    name = saved(tmp_path / 'set', train=datasets.Dataset.from_dict(rows))
    assert_refused(said, name, columns={'target': 'dear'})


def test_csv_files_of_a_folder_are_read_as_others_are(tmp_path):
    """The package would read the clients as numbers, and NA as missing."""
    folder = tmp_path / 'csv'
    folder.mkdir()
    rows = ['who,size,kind,dear']
    rows += [
        f'{"0" * (i % 3)}{i % 2},{i * i % 17},{["NA", "None"][i % 4 > 0]},{i % 2}'
        for i in range(30)
    ]
    (folder / 'train.csv').write_text('\n'.join(rows), encoding='utf-8-sig')
    (folder / 'test.csv').write_text('\n'.join(rows[:7]))
    found = data.load(f'hf:{folder}', columns={'target': 'dear', 'client': 'who'})
    assert found.train_x.shape == (30, 3) and found.test_x.shape == (6, 3)
    assert len(np.unique(found.owners)) == 6
    (folder / 'test.csv').write_text(rows[0] + ',dear\n1,2,NA,0,0')
    with pytest.raises(DataError, match=r'test.csv as a table .*several columns dear'):
        data.load(f'hf:{folder}', columns={'target': 'dear', 'client': 'who'})


def test_several_labels_that_are_yes_or_no(tmp_path):
    features = datasets.Features(
        {'x': datasets.Value('float32')}
        | {name: datasets.ClassLabel(names=['no', 'yes']) for name in 'ab'}
    )
    rows = {'x': [0.5, 2.5, 1.0, 2.0] * 5, 'a': [0, 1, 1, 0] * 5, 'b': [1, 1, 0, 0] * 5}
    train = datasets.Dataset.from_dict(rows, features=features)
    columns = {'target': 'a+b'}
    found = data.load(
        saved(tmp_path / 'set', train=train, test=train), columns=columns, task=MULTI_LABEL
    )
    assert found.train_y[:2].tolist() == [[0, 1], [1, 1]]
    test = train.cast_column('b', datasets.ClassLabel(names=['yes', 'no']))
    name = saved(tmp_path / 'apart', train=train, test=test)
    with pytest.raises(DataError, match='labels of b have other names in the test set'):
        data.load(name, columns=columns, task=MULTI_LABEL)


def test_what_does_not_fit(digits, tmp_path):
    name = f'hf:{digits[0]}'
    for how, said in (
        ({'columns': {'input': 'picture'}}, 'has no column picture; it has image, label, writer'),
        ({'columns': {'target': 'class'}}, 'has no column class; it has image'),
        ({'columns': {'split': 'writer'}}, 'columns split=writer: .* has the roles input, target'),
        ({'columns': {'input': 'label'}}, 'must hold images or lists of numbers'),
        ({'test_share': 0.5}, 'has a test set of its own: drop the test share of 0.5'),
        ({'image_size': 4}, 'image_size is 4: use 8 to 1024'),
        ({'task': REGRESSION}, 'has classes, not the targets of regression'),
    ):
        assert_refused(said, name, **how)
    assert_refused('cannot load absent/set by the package datasets', 'hf:absent/set')
    small, *_ = pictures(6, 0)
    large, *_ = pictures(6, 0, size=9)
    mixed = datasets.concatenate_datasets([small, large])
    mixed.save_to_disk(tmp_path / 'mixed')
    assert_refused(r'have \(8, 8\) pixels and \(9, 9\): bring them', f'hf:{tmp_path}/mixed')
    unlabelled = small.map(lambda row: row | {'label': -1})
    unlabelled.save_to_disk(tmp_path / 'unlabelled')
    assert_refused('6 samples have no label: remove them', f'hf:{tmp_path}/unlabelled')
    datasets.DatasetDict({'test': small}).save_to_disk(tmp_path / 'no_train')
    assert_refused('has the splits test, and none is train', f'hf:{tmp_path}/no_train')


def test_a_run(digits, tmp_path):
    here(
        *(f'--dataset=hf:{digits[0]}', '--columns=client=writer', '--partition=natural'),
        *('--clients=5', '--topology=complete', '--algorithm=dfedavg', '--hidden=16'),
        *('--lr=0.1', '--local_epochs=3', '--rounds=3', '--eval_every=3'),
        f'--out={tmp_path / "run"}',
    ).succeeded()
    assert rows_of(tmp_path / 'run')[-1]['consensus_accuracy'] > 0.9
