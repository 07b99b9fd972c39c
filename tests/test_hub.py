"""Data sets in the format of Hugging Face's library, from local folders; skipped without it."""

import numpy as np
import pytest
from test_cli import here, rows_of

from dfl_jax import data
from dfl_jax.data import DataError
from dfl_jax.tasks import REGRESSION

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
    kept = ~data.formats.held_out(40, 0.2, '')
    np.testing.assert_array_equal(found.train_y, np.arange(40)[kept] % 5)
    assert found.train_x.mean() == pytest.approx(0, abs=1e-4)
    order = np.argsort(x[kept][0].ravel(), kind='stable')
    assert (np.diff(found.train_x[0, ..., 1].ravel()[order]) >= 0).all()
    train.to_parquet(folder / 'validation.parquet')
    assert len(data.load(f'hf:{folder}', columns={'target': 'label'}).test_y) == 40


def test_lists_of_numbers_and_tables(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 3, 2))
    rows = {'signal': x.tolist(), 'kind': rng.choice(['up', 'down'], 50).tolist()}
    datasets.Dataset.from_dict(rows).save_to_disk(tmp_path / 'signals')
    roles = {'input': 'signal', 'target': 'kind'}
    found = data.load(f'hf:{tmp_path}/signals', columns=roles, test_share=0.5)
    kept = ~data.formats.held_out(50, 0.5, '')
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
        with pytest.raises(DataError, match=said) as caught:
            data.load(name, **how)
        assert '\n' not in str(caught.value)
    with pytest.raises(DataError, match='cannot load absent/set by the package datasets'):
        data.load('hf:absent/set')
    small, *_ = pictures(6, 0)
    large, *_ = pictures(6, 0, size=9)
    mixed = datasets.concatenate_datasets([small, large])
    mixed.save_to_disk(tmp_path / 'mixed')
    with pytest.raises(DataError, match=r'have \(8, 8\) pixels and \(9, 9\): bring them'):
        data.load(f'hf:{tmp_path}/mixed')
    unlabelled = small.map(lambda row: row | {'label': -1})
    unlabelled.save_to_disk(tmp_path / 'unlabelled')
    with pytest.raises(DataError, match='6 samples have no label: remove them'):
        data.load(f'hf:{tmp_path}/unlabelled')
    datasets.DatasetDict({'test': small}).save_to_disk(tmp_path / 'no_train')
    with pytest.raises(DataError, match='has the splits test, and none is train'):
        data.load(f'hf:{tmp_path}/no_train')


def test_a_run(digits, tmp_path):
    ended = here(
        *(f'--dataset=hf:{digits[0]}', '--columns=client=writer', '--partition=natural'),
        *('--clients=5', '--topology=complete', '--algorithm=dfedavg', '--hidden=16'),
        *('--lr=0.1', '--local_epochs=3', '--rounds=3', '--eval_every=3'),
        f'--out={tmp_path / "run"}',
    )
    assert ended.status in (0, None), ended.err
    assert rows_of(tmp_path / 'run')[-1]['consensus_accuracy'] > 0.9
