"""Tables: CSV and Parquet files as data sets."""

import numpy as np
import pytest
from helpers import assert_refused
from test_cli import here, rows_of

from dfl_jax import data
from dfl_jax.data import DataError, tabular
from dfl_jax.setting_error import SettingError
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

    kept = ~data.dataset.choose_test_rows(600, 0.2, '')
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
    kept = ~data.dataset.choose_test_rows(60, 0.1, '')
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
    with pytest.raises(SettingError, match='9 clients for 8 natural clients: use 1 to 8'):
        data.partition('natural', found, 9, seed=0)
    with pytest.raises(SettingError, match='natural needs a dataset that knows the client'):
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
    assert str(path) in assert_refused(said, path, columns=columns) or 'user' in said


# ------------------------------------------------------- what cannot be understood is refused


def noise(n=60, seed=0, **columns):
    """A table whose target nothing predicts."""
    rng = np.random.default_rng(seed)
    frame = {'a': rng.normal(size=n).round(3), 'b': rng.choice(['x', 'y'], n)}
    return pandas.DataFrame(frame | columns | {'label': rng.choice(['up', 'down'], n)})


LABEL = {'target': 'label'}


@pytest.fixture(params=['.csv', '.parquet'])
def saved(request, tmp_path):
    """Writes a table as CSV or Parquet; returns the file."""

    def save(frame):
        path = tmp_path / f'noise{request.param}'
        if request.param == '.csv':
            frame.to_csv(path, index=False)
        else:
            frame.to_parquet(path, index=False)
        return path

    return save


def refused(path, said, columns=LABEL, **how):
    assert str(path) in assert_refused(said, path, columns=columns, **how)


def written(tmp_path, text, **how):
    path = tmp_path / 'written.csv'
    path.write_text(text, **how)
    return path


LINES = [f'{i * i % 17},{i % 3},{"yes" if i % 2 else "no"}' for i in range(30)]
SAMPLES = '\n'.join(LINES)


@pytest.mark.parametrize(
    ('header', 'said'),
    [
        ('a,label,label', 'several columns label: give each a name of its own'),
        ('a,a,label', 'several columns a'),
        ('a, a ,label', 'several columns a'),
        ('a,"label",label', 'several columns label'),
    ],
)
def test_a_name_that_is_there_twice_in_a_file(tmp_path, header, said):
    refused(written(tmp_path, f'{header}\n{SAMPLES}'), said)


@pytest.mark.parametrize(
    'change',
    [str.upper, lambda label: label, {'up': 1, 'down': 0}.get, {'up': True, 'down': False}.get],
)
def test_the_target_again_in_another_form_and_under_any_name(saved, change):
    frame = noise()
    path = saved(frame.assign(before=[change(label) for label in frame['label']]))
    refused(path, 'the column before is the target label again')
    assert data.load(path, columns=LABEL | {'drop': 'before'}).train_x.shape[1] == 3


def test_the_numbers_of_the_target_again(saved):
    frame = noise()
    price = 100 + frame['a']
    for name, copy in (('price_2', price.round()), ('cost', price)):
        path = saved(frame.assign(price=price, **{name: copy}))
        with pytest.raises(DataError, match=f'the column {name} is the target price again'):
            data.load(path, columns={'target': 'price'}, task=REGRESSION)
    path = saved(frame.assign(price=price, cents=(100 * price).round()))
    assert data.load(path, columns={'target': 'price'}, task=REGRESSION).train_x.shape[1] == 6


def test_spaces_around_a_text_are_none_of_it(saved):
    frame = noise()
    spaced = frame.assign(label=[label + ' ' * (i % 2) for i, label in enumerate(frame['label'])])
    assert data.load(saved(spaced), columns=LABEL).classes == 2


@pytest.mark.parametrize('header', ['1990,2000,2010,label', 'land,1990,2000,label'])
def test_years_may_be_names(tmp_path, header):
    lines = [f'{i % 7},{i * i % 9},{i % 5}.5,{"pq"[i % 3 == 0]}' for i in range(40)]
    found = data.load(written(tmp_path, header + '\n' + '\n'.join(lines)), columns=LABEL)
    assert found.train_x.shape == (32, 3)


@pytest.mark.parametrize('copy', ['label.1', 'label_y', 'label_copy', 'Label', 'label 2'])
def test_the_target_again_is_refused(saved, copy):
    frame = noise()
    refused(saved(frame.assign(**{copy: frame['label']})), f'{copy} is the target label again')
    other = frame.assign(**{copy: frame['label'].iloc[::-1].to_numpy()})
    assert data.load(saved(other), columns=LABEL).train_x.shape[1] == 5


@pytest.mark.parametrize(
    'name',
    [
        *('Unnamed: 0', 'Unnamed: 0.1', '__index_level_0__', 'index', 'level_0'),
        *('id', 'row_id', 'sampleId', 'elsewhat'),
    ],
)
@pytest.mark.parametrize('order', ['sorted', 'shuffled'])
def test_a_row_number_is_refused(saved, name, order):
    number = np.arange(60) + 1
    if order == 'shuffled':
        number = np.random.default_rng(1).permutation(60)
    frame = noise(**{name: number})
    refused(saved(frame), f'{name} numbers the rows .*drop={name}, or say by columns number={name}')
    for role, features in (('drop', 3), ('number', 4)):
        found = data.load(saved(frame), columns=LABEL | {role: name})
        assert found.train_x.shape[1] == features


def test_a_saved_index_is_refused(tmp_path):
    noise().to_csv(tmp_path / 'noise.csv')  # its name is empty
    refused(tmp_path / 'noise.csv', 'Unnamed: 0 numbers the rows')
    noise().rename(index=str).to_csv(tmp_path / 'noise.csv')
    refused(tmp_path / 'noise.csv', 'Unnamed: 0 numbers the rows')
    noise(n=60).sample(40, random_state=0).to_csv(tmp_path / 'noise.csv', index_label='index')
    refused(tmp_path / 'noise.csv', 'index numbers the rows')
    year = np.repeat(np.arange(2000, 2030), 2)
    frame = noise(year=year, index=np.random.default_rng(0).normal(size=60), number=year)
    frame.to_csv(tmp_path / 'noise.csv', index=False)
    assert data.load(tmp_path / 'noise.csv', columns=LABEL).train_x.shape[1] == 6


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        (f'a,label\n{SAMPLES}', 'line 2 has 3 fields, and the first line names 2'),
        ('a,b,label\n' + SAMPLES.replace(LINES[8], LINES[8] + ',7'), 'line 10 has 4 fields'),
        ('a,b,label\n' + SAMPLES.replace(LINES[8], '1,2'), 'line 10 has 2 fields'),
        (f'a,b,label\n{SAMPLES}\n3,"1,yes', 'line 32 is no line of a CSV file: unexpected end'),
        (f'a,b,label\n{SAMPLES}\n3,"1"1,yes', 'line 32 is no line of a CSV file'),
        ('', 'is no column|holds no|has no|name the column|line'),
    ],
)
def test_lines_that_do_not_fit_the_first(tmp_path, text, said):
    refused(written(tmp_path, text), said)


@pytest.mark.parametrize('first', ['5.5,2,yes', '16,0,no', '7,1,yes', '0.25,1,no'])
def test_a_file_without_names_is_refused(tmp_path, first):
    said = f'first line, {first}, looks like a sample: write the names'
    refused(written(tmp_path, f'{first}\n{SAMPLES}'), said, {'target': first.split(',')[2]})


def test_a_file_of_texts_or_numbers_without_names_is_refused(tmp_path):
    texts = '\n'.join(f'{"xyz"[i % 3]},{"pq"[i % 2]},{"kmo"[i % 3]}' for i in range(30))
    refused(written(tmp_path, texts), 'looks like a sample', {'target': 'k'})
    numbers = '\n'.join(f'{i % 7 + 0.5},{i % 3},{i * i % 11 + 7}' for i in range(30))
    refused(written(tmp_path, numbers), 'looks like a sample', {'target': '7'})


@pytest.mark.parametrize(
    'header', ['a,b,yes', '0,1,label', '1,2,label', '0,1,2', '"a","b","label"', 'yes,no,label']
)
def test_names_that_may_look_like_values(tmp_path, header):
    name = header.replace('"', '').split(',')[2]
    found = data.load(written(tmp_path, f'{header}\n{SAMPLES}'), columns={'target': name})
    assert found.train_x.shape == (24, 2) and len(found.test_y) == 6


@pytest.mark.parametrize(
    'ids',
    [
        ['1', '01', '2', '002'],
        ['00001', 'A0001', '1', '7e2', '700'],
        ['1.0', '1', '01.0'],
        ['NA', 'None', 'nan', 'null'],
        ['12345678901234567890123', '12345678901234567890124'],
        ['true', 'True', 'TRUE'],
    ],
)
def test_clients_are_texts(saved, ids):
    who = [ids[i % len(ids)] for i in range(60)]
    found = data.load(saved(noise(who=who)), columns=LABEL | {'client': 'who'})
    kept = ~data.dataset.choose_test_rows(60, 0.2, '')
    np.testing.assert_array_equal(found.owners, data.dataset.number_names(np.array(who)[kept]))
    assert len(np.unique(found.owners)) == len(ids) and found.train_x.shape[1] == 3


def test_ids_that_change_their_form_late(tmp_path):
    """A reader by pieces takes the first half for numbers."""
    who = [f'{i % 5:05d}' for i in range(150_000)] + ['A0001'] * 10
    lines = [f'{i % 7},{w},{i % 2}' for i, w in enumerate(who)]
    path = written(tmp_path, 'a,who,label\n' + '\n'.join(lines))
    assert len(np.unique(data.load(path, columns=LABEL | {'client': 'who'}).owners)) == 6


def test_classes_with_leading_zeros_are_texts(tmp_path):
    lines = [f'{i * i % 17},{["1", "01", "2", "002"][i % 4]}' for i in range(40)]
    assert data.load(written(tmp_path, 'a,label\n' + '\n'.join(lines)), columns=LABEL).classes == 4


NUMBERS = np.random.default_rng(0).normal(1e5, 1e4, 200)


@pytest.mark.parametrize(
    ('values', 'said'),
    [
        (['?', *map(repr, map(float, NUMBERS[1:]))], r"numbers, and 1 other values such as '\?'"),
        (['n/a', 'unknown', *map(repr, map(float, NUMBERS[2:]))], "2 other values such as 'n/a'"),
        (['?', *[str(i % 10) for i in range(199)]], r"1 other values such as '\?'"),
        (['NaN', *[str(i % 10) for i in range(199)]], "1 other values such as 'NaN'"),
        ([f'{i % 7},{i % 10}' for i in range(200)], "numbers in a form that is not read, .*'0,0'"),
        ([f'{x:,.0f}' for x in NUMBERS], 'numbers in a form that is not read'),
        ([f'{x:,.0f}'.replace(',', '.') + ',5' for x in NUMBERS], 'a form that is not read'),
        ([f'{x:,.0f}'.replace(',', "'") for x in NUMBERS], 'a form that is not read'),
        ([f'{x:,.0f}'.replace(',', '\u202f') for x in NUMBERS], 'a form that is not read'),
        ([f'${i % 9}' for i in range(200)], 'a form that is not read'),
        ([f'{i % 9} €' for i in range(200)], 'a form that is not read'),
        ([f'{i % 9}%' for i in range(200)], 'a form that is not read'),
        ([f'(1,{i % 9}00)' for i in range(200)], 'a form that is not read'),
        ([f'20{i % 5 + 10}-0{i % 9 + 1}-1{i % 9}' for i in range(200)], 'holds dates, such as'),
        ([f'{i % 9 + 1}/12/2020 10:3{i % 5}' for i in range(200)], 'holds dates, such as'),
        ([f'2020-0{i % 9 + 1}' for i in range(200)], 'holds dates, such as'),
        ([f'1{i % 9}.12.2020' for i in range(200)], 'holds dates, such as'),
        ([f'1{i % 9} Dec 2020' for i in range(200)], 'holds dates, such as'),
        ([f'March 1{i % 9}, 2020' for i in range(200)], 'holds dates, such as'),
        ([f'1{i % 9}:30' for i in range(200)], 'holds dates, such as'),
        ([f'1{i % 9}:30 PM' for i in range(200)], 'holds dates, such as'),
        ([f'2020-01-1{i % 9}T10:00:00Z' for i in range(200)], 'holds dates, such as'),
        ([f'2020Q{i % 4 + 1}' for i in range(200)], 'holds dates, such as'),
        ([f'{i % 9} kg' for i in range(200)], 'a form that is not read'),
        ([f'{i % 9}k' for i in range(200)], 'a form that is not read'),
        ([f'<{i % 9}' for i in range(200)], 'a form that is not read'),
        ([f'{i % 9}/10' for i in range(200)], 'a form that is not read'),
        ([f'0x{i % 9}f' for i in range(200)], 'a form that is not read'),
        ([f'part {i * i}' for i in range(200)], '160 different values in 160 training rows'),
        ([f'sentence {i % 150}' for i in range(200)], 'different values in 160 training rows'),
    ],
)
def test_texts_that_may_be_no_categories(saved, values, said):
    path = saved(noise(200, odd=values))
    refused(path, f'the column odd .*{said}.*columns (drop|category)=odd')
    found = data.load(path, columns=LABEL | {'category': 'odd'})
    assert found.train_x.shape[1] > 4
    assert data.load(path, columns=LABEL | {'drop': 'odd'}).train_x.shape[1] == 3


@pytest.mark.parametrize(
    'values',
    [
        ['None', 'NA', 'brick'],
        ['null', 'nan', '-'],
        ['18-25', '26-65', '66+'],
        ['<5', '>5'],
        ['S', 'M', 'L', 'XL'],
        ['1st', '2nd', '3rd'],
        ['true', 'false', 'maybe'],
        ['4x4', '2x4'],
        ['Müller', 'Ærø', '東京'],
    ],
)
def test_texts_that_are_categories(saved, values):
    column = [values[i % len(values)] for i in range(60)]
    found = data.load(saved(noise(kind=column)), columns=LABEL)
    assert found.train_x.shape[1] == 3 + len(values)
    classes = data.load(saved(noise(kind=column)), columns={'target': 'kind'}).classes
    assert classes == len(values)


def test_numbers_and_truth_of_a_file_are_no_texts(tmp_path):
    lines = [
        f'{i % 9}.50,{" " * (i % 2)}{i % 4}e1,{"TRUE" if i % 3 else "false"},-{i % 5}'
        for i in range(40)
    ]
    path = written(tmp_path, 'a,b,c,label\n' + '\n'.join(lines))
    found = data.load(path, columns=LABEL, task=REGRESSION)
    assert found.train_x.shape == (32, 3)
    kept = ~data.dataset.choose_test_rows(40, 0.2, '')
    expected = -(np.arange(40) % 5)[kept].astype(float)
    np.testing.assert_allclose(found.train_y, (expected - expected.mean()) / expected.std(), 1e-5)


@pytest.mark.parametrize(
    ('values', 'said'),
    [
        (['?', *['1', '2', '3'] * 13], r"target label holds numbers, and 1 other .*'\?'"),
        ([f'{i % 4},5' for i in range(40)], "target label holds numbers in a form .*'0,5'"),
        ([f'word {i}' for i in range(40)], 'target label has 32 different values in 32 training'),
        ([str(i * i) for i in range(40)], 'label has 32 different values .*task to regression'),
    ],
)
def test_targets_that_may_be_no_classes(tmp_path, values, said):
    lines = [f'{i % 7},"{value}"' for i, value in enumerate(values)]
    refused(written(tmp_path, 'a,label\n' + '\n'.join(lines)), said)


def test_numbers_that_a_parquet_file_has_as_texts(tmp_path):
    path = tmp_path / 'noise.parquet'
    frame = noise(digits=[f'{i % 7}.5' for i in range(60)])
    frame.to_parquet(path)
    refused(path, "digits holds numbers that are written as texts, such as '0.5'")
    assert data.load(path, columns=LABEL | {'number': 'digits'}).train_x.shape[1] == 4
    assert data.load(path, columns=LABEL | {'category': 'digits'}).train_x.shape[1] == 10
    refused(path, "b is to be a number and holds '[xy]'", LABEL | {'number': 'b', 'drop': 'digits'})
    frame.astype({'digits': 'category'}).to_parquet(path)  # the file says what they are
    assert data.load(path, columns=LABEL).train_x.shape[1] == 10


@pytest.mark.parametrize(
    ('change', 'how'),
    [
        (lambda text: '\n  \n' + text.replace('a,', '"a\n of two lines",', 1), {}),
        (lambda text: text.replace(',', ';'), {}),
        (lambda text: text.replace(',', '\t'), {}),
        (lambda text: text.replace(',', ', '), {}),
        (lambda text: text.replace('\n', '\r\n'), {'newline': ''}),
        (lambda text: text + '\n\n', {'encoding': 'utf-8-sig'}),
        (lambda text: '\n'.join('"' + t.replace(',', '","') + '"' for t in text.split('\n')), {}),
    ],
)
def test_forms_of_one_file(tmp_path, change, how):
    text = f'a,b,größe\n{SAMPLES}'
    columns = {'target': 'größe'}
    plain = data.load(written(tmp_path, text, encoding='utf-8'), columns=columns)
    found = data.load(
        written(tmp_path, change(text), **{'encoding': 'utf-8'} | how), columns=columns
    )
    for ours, theirs in zip(found[:4], plain[:4], strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize('name', ['label', '"label"'])
def test_a_byte_order_mark_is_no_part_of_the_first_name(tmp_path, name):
    lines = [','.join(line.split(',')[::-1]) for line in LINES]
    path = written(tmp_path, '\n'.join([f'{name},b,a', *lines]), encoding='utf-8-sig')
    assert data.load(path, columns=LABEL).train_x.shape == (24, 2)


@pytest.mark.parametrize('encoding', ['latin-1', 'utf-16', 'utf-32', 'cp1252'])
def test_other_encodings_are_refused(tmp_path, encoding):
    path = written(tmp_path, f'a,b,größe\n{SAMPLES}', encoding=encoding)
    refused(path, r'cannot read .* \(OSError: it is no text', {'target': 'größe'})


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
        assert_refused('the test share is', csv(), columns=columns, test_share=share)
    with pytest.raises(SettingError, match='says what is the test set: drop the test share'):
        data.load(csv(p='test'), columns={'target': 'dear', 'split': 'p'}, test_share=0.5)
    with pytest.raises(
        SettingError, match=r'columns is for .csv, .parquet, hf:, got digits: drop it'
    ):
        data.load('digits', columns=columns)
    with pytest.raises(
        SettingError,
        match=r'test_share is for sonnets, .csv, .parquet, .txt, hf:, got digits: drop it',
    ):
        data.load('digits', test_share=0.5)
    assert_refused(r'data_dir is for mnist, .*, leaf, got digits: drop it', 'digits', tmp_path)
    assert_refused('cannot be that of next_token', csv(), columns=columns, task=TASKS['next_token'])
    with pytest.raises(DataError, match=r'target colour .*must be numbers for the task regression'):
        data.load(csv(), columns={'target': 'colour', 'drop': 'number'}, task=REGRESSION)
    for content in (b'', b'\0\xff'):
        (tmp_path / 'bad.parquet').write_bytes(content)
        with pytest.raises(DataError, match=r'cannot read .*bad.parquet as a table'):
            data.load(tmp_path / 'bad.parquet', columns=columns)
    assert_refused(r'there is no file .*absent.csv', tmp_path / 'absent.csv', columns=columns)


@pytest.mark.integration
def test_a_run_on_a_table_beats_the_mean(tmp_path):
    path = tmp_path / 'houses.csv'
    houses().to_csv(path, index=False)
    here(
        f'--dataset={path}',
        '--columns=target=price,client=agent,drop=dear+number',
        *('--task=regression', '--algorithm=dfedavg', '--partition=natural', '--clients=8'),
        *('--topology=ring', '--rounds=5', '--eval_every=5', '--lr=0.05', '--hidden=16'),
        f'--out={tmp_path / "run"}',
    ).succeeded()
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
