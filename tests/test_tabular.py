"""Tables: CSV and Parquet files as data sets."""

import numpy as np
import pytest
from test_cli import here, rows_of

from dfl_jax import data
from dfl_jax.data import DataError, PartitionError, tabular
from dfl_jax.tasks import MULTI_LABEL, REGRESSION, TASKS

pandas = pytest.importorskip('pandas')
COLOURS = {'red': 1.0, 'green': 0.0, 'blue': -1.0}


def houses(n=600, seed=0):
    """A table whose price follows from its size and colour, with a little noise."""
    rng = np.random.default_rng(seed)
    colour = rng.choice(list(COLOURS), n)
    size = rng.integers(20, 200, n)
    price = 1000.0 * size + 30_000 * np.vectorize(COLOURS.get)(colour) + rng.normal(0, 5000, n)
    return pandas.DataFrame(
        {
            'size': size,
            'colour': colour,
            'garden': rng.random(n) < 0.5,
            'price': price,
            'agent': rng.integers(8, size=n),
            'dear': np.where(price > np.median(price), 'yes', 'no'),
            'number': [f'n{i}' for i in range(n)],
        }
    )


@pytest.fixture(params=['csv', 'parquet'])
def table(request, tmp_path):
    path = tmp_path / f'houses.{request.param}'
    if request.param == 'csv':
        houses().to_csv(path, index=False)
    else:
        pytest.importorskip('pyarrow')
        houses().to_parquet(path)
    return path


@pytest.fixture
def csv(tmp_path):
    """Writes a table, with some of its columns replaced, and returns the file."""

    def write(**columns):
        path = tmp_path / 'table.csv'
        houses(60).assign(**columns).to_csv(path, index=False)
        return path

    return write


PRICE = {'target': 'price', 'client': 'agent', 'drop': 'dear+number'}


def test_features_targets_and_clients(table):
    found = data.load(table, task=REGRESSION, columns=PRICE)
    assert found.train_x.shape == (480, 5) and found.test_x.shape == (120, 5)
    assert {a.dtype for a in found[:4]} == {np.dtype(np.float32)} and found.classes == 1
    numbers = found.train_x[:, [0, 4]]  # size and garden; the colours stand between them
    np.testing.assert_allclose(numbers.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(numbers.std(axis=0), 1, atol=1e-6)
    np.testing.assert_array_equal(found.train_x[:, 1:4].sum(axis=1), 1)
    assert set(np.unique(found.train_x[:, 1:4])) == {0, 1}
    np.testing.assert_allclose([found.train_y.mean(), found.train_y.std()], [0, 1], atol=1e-6)

    kept = ~data.formats.held_out(600, 0.2, '')
    price, agent = (houses()[name].to_numpy() for name in ('price', 'agent'))
    mean, deviation = price[kept].mean(), price[kept].std()
    np.testing.assert_allclose(found.train_y, (price[kept] - mean) / deviation, atol=1e-5)
    np.testing.assert_allclose(found.test_y, (price[~kept] - mean) / deviation, atol=1e-5)
    np.testing.assert_array_equal(found.owners, agent[kept])


def test_the_test_set_is_standardised_by_the_training_set(csv):
    size = np.r_[np.arange(50), np.full(10, 1000)]
    split = np.where(size == 1000, 'test', 'train')
    colour = np.where(size == 1000, 'black', 'red')
    found = data.load(
        csv(size=size, part=split, colour=colour),
        columns={'target': 'dear', 'split': 'part', 'drop': 'price+number+agent+garden'},
    )
    assert len(found.train_y) == 50 and found.test_x.shape == (10, 2)
    np.testing.assert_allclose(found.test_x[:, 0], 1 / np.arange(50).std() * (1000 - 24.5), 1e-5)
    assert (found.train_x[:, 1] == 1).all() and (found.test_x[:, 1] == 0).all()  # black is unknown


def test_classes_are_in_their_own_order(csv):
    rooms = np.arange(60) % 11
    columns = {'target': 'rooms', 'drop': 'number'}
    found = data.load(csv(rooms=rooms), columns=columns, test_share=0.1)
    assert found.classes == 11 and found.train_y.dtype == np.int32
    kept = ~data.formats.held_out(60, 0.1, '')
    np.testing.assert_array_equal(found.train_y, rooms[kept])  # 2 comes before 10
    texts = data.load(csv(), columns={'target': 'colour', 'drop': 'number'})
    assert texts.classes == 3


def test_several_targets(csv):
    task = {'target': 'garden+warm', 'drop': 'number'}
    found = data.load(csv(warm=np.arange(60) % 2), columns=task, task=MULTI_LABEL)
    assert found.train_y.shape == (48, 2) and found.classes == 2
    assert set(np.unique(found.train_y)) == {0, 1}


def test_natural_clients_of_a_column(table):
    found = data.load(table, task=REGRESSION, columns=PRICE)
    parts = data.partition('natural', found, 8, seed=0)
    assert sum(map(len, parts)) == 480
    assert [set(found.owners[part]) for part in parts] == [{i} for i in range(8)]
    few, more = (data.partition('natural', found, m, seed=3) for m in (3, 4))
    names = [{int(found.owners[part[0]]) for part in drawn} for drawn in (few, more)]
    assert len(names[0]) == 3 and names[0] < names[1]
    for part in few:  # all samples of those that were drawn
        assert len(part) == np.sum(found.owners == found.owners[part[0]])
    others = data.partition('natural', found, 3, seed=4)
    assert names[0] != {int(found.owners[part[0]]) for part in others}
    with pytest.raises(PartitionError, match='9 clients for 8 natural clients: use 1 to 8'):
        data.partition('natural', found, 9, seed=0)
    with pytest.raises(PartitionError, match='natural needs a dataset that knows the client'):
        data.partition('natural', found._replace(owners=None), 3, seed=0)


@pytest.mark.parametrize(
    ('columns', 'changes', 'said'),
    [
        ({}, {}, 'name the column to be predicted by columns target=NAME; it has size, colour'),
        ({'target': 'cost'}, {}, r'has no column cost \(target\); it has size'),
        ({'target': 'price', 'user': 'agent'}, {}, 'columns user=agent: a table has the roles'),
        ({'target': 'price', 'client': 'price'}, {}, 'price is both target and client'),
        ({'target': 'price', 'client': 'agent+dear'}, {}, 'client=agent.dear: use one column'),
        ({'target': 'price+size'}, {}, 'cannot be that of classification'),
        ({'target': 'price', 'drop': 'number'}, {}, 'holds float64 and not classes: set task'),
        ({'target': 'dear', 'split': 'agent'}, {}, 'agent must hold train and test, and holds 0'),
        (
            {'target': 'dear'},
            {'size': [np.nan] * 3 + [1] * 57},
            r'of 60 rows, some lack values in these columns: size \(3\).*by columns drop=size',
        ),
        ({'target': 'dear', 'drop': 'number'}, {'size': np.inf}, 'size must be finite'),
        (
            {'target': 'dear', 'split': 'part'},
            {'part': ['test'] + ['train'] * 59, 'dear': ['a'] + ['b'] * 59},
            'no training row has the class a',
        ),
        (
            {'target': 'dear', 'drop': 'price+number+agent+garden+colour+size'},
            {},
            'has no column that is a feature',
        ),
    ],
)
def test_tables_that_do_not_fit(csv, columns, changes, said):
    path = csv(**changes)
    with pytest.raises(DataError, match=said) as caught:
        data.load(path, columns=columns)
    assert '\n' not in str(caught.value) and (str(path) in str(caught.value) or 'user' in said)


def test_two_columns_of_one_name(tmp_path):
    pytest.importorskip('pyarrow')
    frame = houses(60)
    twice = pandas.concat([frame, frame[['size']]], axis=1)
    with pytest.raises(DataError, match='a table has several columns size: give each a name'):
        tabular.from_frame(twice, 'a table', {'target': 'dear'})


def test_values_that_are_no_features(tmp_path):
    frame = houses(60)
    path = tmp_path / 'table.parquet'
    pytest.importorskip('pyarrow')
    frame.assign(built=pandas.Timestamp('2020-01-01')).to_parquet(path)
    with pytest.raises(DataError, match=r'built \(datetime64\) is neither numbers nor texts'):
        data.load(path, columns={'target': 'dear'})
    frame = houses(2000)
    with pytest.raises(DataError, match='number has 1600 different texts, more than 1000'):
        data.tabular.from_frame(frame, 'houses', {'target': 'dear'})


def test_other_arguments_that_do_not_fit(csv, tmp_path):
    columns = {'target': 'dear', 'drop': 'number'}
    for share in (0.0, 1.0, -0.5, float('nan')):
        with pytest.raises(DataError, match='the test share is'):
            data.load(csv(), columns=columns, test_share=share)
    with pytest.raises(DataError, match='says what is the test set: drop the test share'):
        data.load(csv(p='test'), columns={'target': 'dear', 'split': 'p'}, test_share=0.5)
    with pytest.raises(DataError, match=r'columns is for .csv, .parquet, hf:, got digits: drop it'):
        data.load('digits', columns=columns)
    with pytest.raises(
        DataError,
        match=r'test_share is for .csv, .parquet, hf:, .txt, sonnets, got digits: drop it',
    ):
        data.load('digits', test_share=0.5)
    with pytest.raises(DataError, match=r'data_dir is for mnist, .*, leaf, got digits: drop it'):
        data.load('digits', tmp_path)
    with pytest.raises(DataError, match='cannot be that of next_token'):
        data.load(csv(), columns=columns, task=TASKS['next_token'])
    with pytest.raises(DataError, match=r'target colour .*must be numbers for the task regression'):
        data.load(csv(), columns={'target': 'colour', 'drop': 'number'}, task=REGRESSION)
    for content in (b'', b'\0\xff'):
        (tmp_path / 'bad.parquet').write_bytes(content)
        with pytest.raises(DataError, match=r'cannot read .*bad.parquet as a table'):
            data.load(tmp_path / 'bad.parquet', columns=columns)
    with pytest.raises(DataError, match=r'cannot read .*absent.csv as a table'):
        data.load(tmp_path / 'absent.csv', columns=columns)


@pytest.mark.integration
def test_a_run_on_a_table_beats_the_mean(tmp_path):
    path = tmp_path / 'houses.csv'
    houses().to_csv(path, index=False)
    ended = here(
        f'--dataset={path}',
        '--columns=target=price,client=agent,drop=dear+number',
        *('--task=regression', '--algorithm=dfedavg', '--partition=natural', '--clients=8'),
        *('--topology=ring', '--rounds=5', '--eval_every=5', '--lr=0.05', '--hidden=16'),
        f'--out={tmp_path / "run"}',
    )
    assert ended.status in (0, None), ended.err
    # The mean of the training targets as prediction has about 1 by their standardisation
    found = data.load(path, columns=PRICE, task=REGRESSION)
    baseline = np.sqrt(np.mean(found.test_y**2))
    assert 0.9 < baseline < 1.1
    assert rows_of(tmp_path / 'run')[-1]['consensus_rmse'] < 0.5 * baseline


def test_flags_of_tables(tmp_path):
    path = tmp_path / 'houses.csv'
    houses(60).to_csv(path, index=False)
    for flags, said in (
        ((f'--dataset={path}', '--columns=price'), "'price' is not ROLE=NAME"),
        ((f'--dataset={path}', '--columns=drop=a,drop=b'), 'drop is there twice'),
        (('--dataset=digits', '--columns=target=a'), 'does not apply to --dataset=digits'),
        (('--dataset=digits', '--test_share=0.5'), 'does not apply to --dataset=digits'),
        ((f'--dataset={path}', '--data_dir=.'), 'does not apply to --dataset='),
    ):
        assert said in here(*flags, f'--out={tmp_path / "run"}').error
