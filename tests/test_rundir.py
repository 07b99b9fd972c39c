"""A run directory keeps what it holds, and notices what was lost or changed."""

import json

import pytest

from dfl_jax.evaluation import CLIENTS
from dfl_jax.experiment.rows_file import digest_of
from dfl_jax.experiment.run_directory import RunDirectory, unused
from dfl_jax.files import from_json, read_json, to_json, write_atomically

CONFIG = {'settings': {'seed': 0, 'rounds': 3}, 'versions': {'jax': '1'}, 'device': 'cpu'}


@pytest.fixture
def directory(tmp_path):
    """A run of three evaluations."""
    directory = RunDirectory(tmp_path)
    directory.write_config(CONFIG)
    for r in (1, 2, 3):
        directory.append({'round': r, 'accuracy': 0.1 * r})
    return directory


def test_rows_and_config_are_as_they_were_written(directory):
    assert [row['round'] for row in directory.rows()] == [1, 2, 3]
    assert 'digest' not in directory.rows()[0]
    assert directory.config() == CONFIG


def test_a_torn_line_is_dropped_and_the_next_follows_the_one_before(directory):
    with directory.metrics_file.open('a') as file:
        file.write('{"round": 4, "consens')
    again = RunDirectory(directory.path)
    rows = again.rows()
    assert [row['round'] for row in rows] == [1, 2, 3]
    again.keep(rows[:2])
    again.append({'round': 3})
    assert [row['round'] for row in directory.rows()] == [1, 2, 3]


def test_append_returns_the_digest_of_what_was_before(directory):
    digests = [digest for _, digest in directory.undamaged_rows()[0]]
    assert RunDirectory(directory.path).append({'round': 4}) == digests[-1]
    assert len(directory.rows()) == 4


def test_what_each_client_has_stands_in_a_file_of_its_own(tmp_path):
    directory = RunDirectory(tmp_path)
    for r in (1, 2, 3):
        clients = {'accuracy': [0.5, 0.25 * r], 'loss': [1.5, 0.5]}
        directory.append({'round': r, 'accuracy': 0.1 * r, 'clients': clients})
    assert directory.rows()[1] == {'round': 2, 'accuracy': 0.2}
    assert directory.client_rows()[1] == {'round': 2, 'accuracy': [0.5, 0.5], 'loss': [1.5, 0.5]}
    again = RunDirectory(tmp_path)
    again.keep(again.rows()[:1])  # of a run that goes on after round 1
    again.append({'round': 2, 'clients': {'loss': [0.0, 0.0]}})
    assert [row['round'] for row in directory.client_rows()] == [1, 2]
    assert directory.client_rows()[1] == {'round': 2, 'loss': [0.0, 0.0]}
    text = directory.clients_file.read_text()
    directory.clients_file.write_text(text.replace('[1.5, 0.5]', '[1.5, 0.4]'))
    with pytest.raises(ValueError, match=r'line 1 of .*clients\.jsonl'):
        directory.client_rows()


def test_a_run_from_before_there_were_clients_goes_on_with_them(directory):
    assert directory.client_rows() == []
    again = RunDirectory(directory.path)
    again.keep(again.rows())
    again.append({'round': 4, 'clients': {'loss': [0.0]}})
    assert [row['round'] for row in directory.client_rows()] == [4]


def test_a_file_that_is_gone_is_not_begun_again(directory):
    directory.metrics_file.unlink()
    with pytest.raises(FileNotFoundError):
        directory.append({'round': 4})


def test_rows_from_before_they_had_digests_are_read(directory):
    plain = [{'round': 1}, {'round': 2}]
    directory.metrics_file.write_text(''.join(json.dumps(row) + '\n' for row in plain))
    assert directory.rows() == plain


def test_a_row_that_lost_its_digest_is_not(directory):
    lines = [json.loads(line) for line in directory.metrics_file.read_text().splitlines()]
    del lines[1]['digest']
    directory.metrics_file.write_text(''.join(json.dumps(line) + '\n' for line in lines))
    with pytest.raises(ValueError, match='line 2 of'):
        directory.rows()


def test_a_config_without_a_digest_is_read(directory):
    directory.config_file.write_text(json.dumps(CONFIG))
    assert directory.config() == CONFIG


def test_why_a_run_is_not_done(directory):
    assert 'has not reached its last round' in directory.unfinished()
    directory.consensus.write_bytes(b'model')
    directory.finish()
    assert directory.unfinished() is None
    directory.consensus.write_bytes(b'other')
    assert 'is not what was written' in directory.unfinished()
    directory.finish()
    directory.keep(directory.rows()[:2])
    assert 'does not end at round 3' in directory.unfinished()


def test_one_holder_at_a_time(directory):
    with (
        directory.locked(),
        pytest.raises(ValueError, match='another process works in'),
        RunDirectory(directory.path).locked(),
    ):
        pass
    with directory.locked():
        pass


def test_what_cannot_be_written_leaves_the_file_and_no_litter(tmp_path):
    file = tmp_path / 'file'
    write_atomically(file, 'before')
    with pytest.raises(UnicodeEncodeError):
        write_atomically(file, '\udcff')
    file.unlink()
    file.mkdir()
    with pytest.raises(OSError):
        write_atomically(file, 'after')
    assert [path.name for path in tmp_path.iterdir()] == ['file']


def test_unused_names(tmp_path):
    assert [unused(tmp_path / 'a' / 'run').name for _ in range(3)] == ['run', 'run-2', 'run-3']


@pytest.mark.parametrize('text', ['', '{', '[' * 100_000, '\xff'])
def test_json_that_is_none(text, tmp_path):
    (tmp_path / 'file').write_bytes(text.encode('latin-1'))
    with pytest.raises(ValueError, match='is damaged'):
        read_json(tmp_path / 'file')
    with pytest.raises(ValueError, match='cannot be read'):
        read_json(tmp_path / 'nothing')


# --------------------------------------------------------------------------------- not finite

INF, NAN = float('inf'), float('nan')
OVERFLOWN = {
    'round': 1,
    'client_loss_mean': INF,
    'quantiles': [0.5, -INF, [NAN]],
    'chosen': {'a/b': NAN, 'c': 2},
    'a/1': INF,
    'unknown': None,
}


def strictly(text: str):
    """What a reader of JSON that keeps to its standard makes of it."""

    def refuse(word):
        raise AssertionError(f'{word} is no JSON')

    return json.loads(text, parse_constant=refuse)


def test_a_number_that_is_not_finite_is_null_and_said_beside():
    found = strictly(to_json(OVERFLOWN))
    assert found['client_loss_mean'] is None and found['quantiles'] == [0.5, None, [None]]
    assert found['not_finite'] == {
        **{'client_loss_mean': 'inf', 'quantiles/1': '-inf', 'quantiles/2/0': 'nan', 'a/1': 'inf'}
    }
    assert found['chosen'] == {'a/b': None, 'c': 2, 'not_finite': {'a/b': 'nan'}}
    assert repr(from_json(to_json(OVERFLOWN))) == repr(OVERFLOWN)
    assert repr(from_json(json.dumps(OVERFLOWN))) == repr(OVERFLOWN)  # an older file
    assert to_json({'a': [1, 2.5]}) == '{"a": [1, 2.5]}'
    with pytest.raises(ValueError, match='JSON compliant'):
        to_json([NAN])  # which nothing could say


@pytest.mark.parametrize('lost', [{'b': 'inf'}, {'a': 'inf'}, {'c': '1'}, {'c/0': 'inf'}, {'c': 1}])
def test_words_about_numbers_that_are_none_are_no_json(lost):
    with pytest.raises(ValueError, match='not_finite names'):
        from_json(json.dumps({'a': 1, 'c': None, 'not_finite': lost}))


def test_rows_of_any_numbers_are_json_and_come_back_as_they_were(tmp_path):
    directory = RunDirectory(tmp_path)
    of_clients = {'loss': [1.0, INF, NAN], 'accuracy': [0.1, 0.2, 0.3]}
    directory.append(OVERFLOWN | {CLIENTS: of_clients})
    assert strictly(directory.metrics_file.read_text())['digest'] == digest_of(OVERFLOWN)
    directory.append({'round': 2, 'client_loss_mean': NAN})
    for file in (directory.metrics_file, directory.clients_file):
        assert all(map(strictly, file.read_text().splitlines()))
    again = RunDirectory(tmp_path)
    assert repr(again.client_rows()) == repr([{'round': 1} | of_clients])
    assert repr(again.rows()[0]) == repr(OVERFLOWN)
    assert repr(again.rows()[1]) == repr({'round': 2, 'client_loss_mean': NAN})
    again.keep(again.rows())
    assert len(again.rows()) == 2


def test_a_file_of_before_with_infinity_is_read_and_goes_on(tmp_path):
    """Digests are of the numbers, not of how they are written."""
    directory = RunDirectory(tmp_path)
    row = {'round': 1, 'client_loss_mean': INF}
    line = json.dumps(row | {'digest': digest_of(row)})
    assert 'Infinity' in line
    directory.metrics_file.write_text(line + '\n')
    directory.append({'round': 2, 'client_loss_mean': 1.0})
    assert [r['client_loss_mean'] for r in RunDirectory(tmp_path).rows()] == [INF, 1.0]
