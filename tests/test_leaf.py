"""Data sets in LEAF's JSON, with their users as clients."""

import json

import numpy as np
import pytest
from helpers import assert_refused
from test_cli import here, rows_of

from dfl_jax import data
from dfl_jax.data import DataError
from dfl_jax.setting_error import SettingError
from dfl_jax.tasks import CLASSIFICATION, NEXT_TOKEN, REGRESSION

USERS = ('f0012_02', 'f0001_41', 'f0020_11')
LINES = 'now is the winter of our discontent made glorious summer by this sun of york'


def write(folder, name, users):
    """One file: users is {user: (x, y)}."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {
        'users': list(users),
        'num_samples': [len(y) for _, y in users.values()],
        'user_data': {user: {'x': x, 'y': y} for user, (x, y) in users.items()},
    }
    (folder / name).write_text(json.dumps(content))


def characters(n, rng):
    """Pictures [n, 784] in FEMNIST's range whose class is where they are dark, and classes."""
    y = rng.integers(62, size=n)
    x = np.ones((n, 784))
    x[np.arange(n)[:, None], y[:, None] * 12 + np.arange(12)] = 0
    return np.round(np.clip(x + rng.normal(0, 0.1, x.shape), 0, 1), 3).tolist(), y.tolist()


@pytest.fixture(scope='module')
def femnist(tmp_path_factory):
    """Three users of 124, 125 and 126 pictures in two files, and tests of two."""
    root, rng = tmp_path_factory.mktemp('femnist'), np.random.default_rng(0)
    first, *others = USERS
    samples = {user: characters(124 + i, rng) for i, user in enumerate(USERS)}
    write(root / 'train', 'all_data_0_niid_0_keep_0_train_9.json', {first: samples[first]})
    write(root / 'train', 'all_data_1_niid_0_keep_0_train_9.json', {u: samples[u] for u in others})
    write(root / 'test', 'all_data_0.json', {user: characters(62, rng) for user in others})
    return root


@pytest.fixture
def shakespeare(tmp_path):
    for half, start in (('train', 0), ('test', 1)):
        lines = [LINES[i : i + 21] for i in range(start, 50, 2)]
        users = {
            'THE_FIRST_PART_HAMLET': ([t[:20] for t in lines[:9]], [t[20] for t in lines[:9]]),
            'MACBETH_MACBETH': ([t[:20] for t in lines[9:]], [t[20] for t in lines[9:]]),
        }
        write(tmp_path / half, 'data.json', users)
    return tmp_path


def test_femnist(femnist):
    found = data.load('leaf', femnist)
    assert found.train_x.shape == (375, 28, 28, 1) and found.test_x.shape == (124, 28, 28, 1)
    assert found.classes == 62 and found.train_y.dtype == np.int32
    assert found.train_x.mean() == pytest.approx(0, abs=1e-5)
    assert found.train_x.std() == pytest.approx(1, abs=1e-5)
    file = json.loads((femnist / 'train' / 'all_data_0_niid_0_keep_0_train_9.json').read_text())
    samples = file['user_data'][USERS[0]]
    np.testing.assert_array_equal(found.train_y[:124], samples['y'])
    picture = np.array(samples['x'][5])  # rows of 28 follow each other
    assert np.corrcoef(found.train_x[5].ravel(), picture)[0, 1] > 0.9999
    np.testing.assert_array_equal(np.bincount(found.owners), [125, 124, 126])  # sorted names


def test_users_are_clients(femnist):
    found = data.load('leaf', femnist)
    everyone = data.partition('natural', found, 3, seed=0)
    assert [len(part) for part in everyone] == [125, 124, 126]
    drawn = {
        tuple(sorted({int(found.owners[i]) for part in parts for i in part}))
        for parts in (data.partition('natural', found, 2, seed=seed) for seed in range(20))
    }
    assert drawn == {(0, 1), (0, 2), (1, 2)}
    with pytest.raises(SettingError, match='4 clients for 3 natural clients: use 1 to 3'):
        data.partition('natural', found, 4, seed=0)


def test_shakespeare(shakespeare):
    found = data.load('leaf', shakespeare, task=NEXT_TOKEN)
    assert found.train_x.shape == (25, 20) and found.train_y.shape == (25, 20)
    np.testing.assert_array_equal(found.train_x[:, 1:], found.train_y[:, :-1])
    alphabet = sorted(set(LINES[:70]))
    assert found.classes == len(alphabet)
    assert ''.join(alphabet[i] for i in found.train_y[3]) == LINES[7:27]
    np.testing.assert_array_equal(np.bincount(found.owners), [16, 9])


@pytest.mark.integration
def test_a_run_on_femnist_beats_the_most_frequent_class(femnist, tmp_path):
    here(
        *('--dataset=leaf', f'--data_dir={femnist}', '--partition=natural', '--clients=3'),
        *('--topology=complete', '--algorithm=dfedavg', '--model=mlp', '--hidden=32'),
        *('--lr=0.1', '--local_epochs=3', '--rounds=3', '--eval_every=3'),
        f'--out={tmp_path / "run"}',
    ).succeeded()
    found = data.load('leaf', femnist)
    share = np.mean(found.test_y == np.bincount(found.train_y).argmax())
    assert share < 0.1 and rows_of(tmp_path / 'run')[-1]['consensus_accuracy'] > 0.6


def test_more_clients_than_users(femnist, tmp_path):
    line = here(
        *('--dataset=leaf', f'--data_dir={femnist}', '--partition=natural', '--clients=6'),
        f'--out={tmp_path / "run"}',
    ).error
    assert '6 clients for 3 natural clients: use 1 to 3' in line


NUMBERS = ([[0.5, 1.0], [0.0, 2.0]], [0, 1])


@pytest.mark.parametrize(
    ('train', 'said'),
    [
        ('[1, 2', 'cannot read .*data.json as JSON'),
        ('[1, 2]', 'must hold an object with "users" and "user_data"'),
        ('{"users": ["b"], "user_data": {"a": {}}}', 'must hold an object with'),
        ({'a': ([[1.0]], [])}, 'the user a has no lists x and y of one length'),
        ({'a': ([], [])}, 'train holds no sample'),
        ({'a': ([[1.0, 2.0], [1.0]], [0, 1])}, 'the samples differ in the shape of x'),
        ({'a': ([[1.0], [2.0]], [0, 1])}, r'x are \(2, 1\) in train and \(2, 2\) in test'),
        ({'a': ([1.0, 2.0], [0, 1])}, r'x are \(2,\) in train'),
        ({'a': (NUMBERS[0], [0.5, 1.0])}, 'the targets y must be whole numbers'),
        ({'a': (NUMBERS[0], [0, -1])}, 'the targets y must be whole numbers'),
        ({'a': ([[1.0, float('nan')]], [0])}, 'x must be finite numbers'),
        ({'a': ([[1.0, 1e300]], [0])}, 'finite numbers, as float32 holds'),
        ({'a': (NUMBERS[0], [0, 2**32 + 1])}, 'a target y is 4294967297'),
        ({'a': ([[1.0, 1.0]], [0])}, 'all inputs x of train are 1.0'),
        ({'a': (['abc'], ['d'])}, 'the inputs are texts: set task to next_token'),
        ({'a': (['000001.jpg'], [0])}, 'names of images, such as 000001.jpg, .* CelebA: put the'),
        ({'a': ([['img/7.PNG']], [1])}, 'names of images, such as img/7.PNG'),
        ({'a': ([['12', 'Tue', 'NO_QUERY', 'me', 'hi']], [0])}, 'texts with classes, .* Sent140'),
        ({'a': (['how nice'], [1])}, 'texts with classes, .*write numbers in their place'),
        ({'a': (['how nice'], ['good'])}, 'texts with classes'),
        ({'a': ([[['so', 'it', 'goes']]], [[['it', 'goes', 'on']]])}, 'texts with classes'),
        ({'a': (NUMBERS[0], ['a', 'b'])}, 'y must be finite numbers$'),
        ({'a': (NUMBERS[0], [[0], [1]])}, 'the targets y must be whole numbers'),
        ({'a': (NUMBERS[0], [0, 0])}, 'no training sample has the class 1 of the test set'),
        ('{"users": ["a", "c"], "user_data": {"a": {}, "b": {}}}', 'same users, .* differ in b, c'),
        ('{"users": ["a", "a"], "user_data": {"a": {}}}', 'same users, .* differ in 2 names'),
        ('{"users": "a", "user_data": {"a": {}}}', 'must hold an object with'),
        ('[' * 100_000, 'its brackets nest too deep'),
    ],
)
def test_files_that_are_wrong(tmp_path, train, said):
    write(tmp_path / 'test', 'data.json', {'a': NUMBERS})
    if isinstance(train, str):
        (tmp_path / 'train').mkdir()
        (tmp_path / 'train' / 'data.json').write_text(train)
    else:
        write(tmp_path / 'train', 'data.json', train)
    assert str(tmp_path) in assert_refused(said, 'leaf', tmp_path)


@pytest.mark.parametrize('task', [CLASSIFICATION, NEXT_TOKEN])
def test_no_task_takes_messages_or_names_of_images(tmp_path, task):
    """What the message advises has to work, so that none may advise the other task."""
    for inputs in (['000001.jpg'], [['12', 'Tue', 'hi']]):
        for half in ('train', 'test'):
            write(tmp_path / half, 'data.json', {'a': (inputs, [0])})
        line = assert_refused('image_folder|write numbers', 'leaf', tmp_path, task=task)
        assert 'next_token' not in line


def test_other_forms_of_the_same_files(femnist, tmp_path):
    """Labels with a point, users in another order, and what macOS leaves beside the files."""
    for path in sorted(femnist.glob('*/*.json')):
        content = json.loads(path.read_text())
        for samples in content['user_data'].values():
            samples['y'] = [float(label) for label in samples['y']]
        content['users'].reverse()
        folder = tmp_path / path.parent.name
        folder.mkdir(exist_ok=True)
        (folder / path.name).write_text(json.dumps(content), encoding='utf-8-sig')
        (folder / f'._{path.name}').write_bytes(b'\0\5\26\7')
    found, expected = data.load('leaf', tmp_path), data.load('leaf', femnist)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert found.train_y.dtype == np.int32


def test_texts_that_are_wrong(shakespeare):
    for users, said in (
        ({'a': (['abc', 'ab'], ['c', 'd'])}, 'must all have the length of the first, 3'),
        ({'a': (['abc', 3], ['c', 'd'])}, 'must all have the length of the first, 3'),
        ({'a': (['abc'], ['cd'])}, 'must be the one next character'),
        ({'a': (['abc'], [0])}, 'must be the one next character'),
    ):
        write(shakespeare / 'train', 'data.json', users)
        assert_refused(said, 'leaf', shakespeare, task=NEXT_TOKEN)


def test_folders_and_tasks_that_do_not_fit(femnist, tmp_path):
    assert_refused('leaf: set data_dir to a folder that holds train/', 'leaf')
    assert_refused(r'train holds no .json: lay the files out as train/', 'leaf', tmp_path)
    assert_refused('are numbers, not texts for next_token', 'leaf', femnist, task=NEXT_TOKEN)
    with pytest.raises(DataError, match='not the targets of regression: leave the task out'):
        data.load('leaf', femnist, task=REGRESSION)
