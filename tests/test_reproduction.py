"""The page of all claims: verdicts that follow from the curves."""

import json
from pathlib import Path

import pytest

from dfl_jax.papers.tables import command as tables
from dfl_jax.papers.tables import reproduction
from dfl_jax.results import curves
from dfl_jax.results import published as table_files
from dfl_jax.results.measured import Measured
from tests.test_tables import curve, flags_of

DOCS = Path(__file__).parents[1] / 'docs'
PUBLISHED = {
    'title': 'Three cells',
    'source': 'A paper',
    'metric': 'rounds_to',
    'target': 0.85,
    'columns': ['iid', 'alpha0.1'],
    'rows': {'ntk_dfl': [3, 18], 'dfedavg': [18, None]},
    'panels': [{'title': 'a', 'column': 'iid'}],
}


def values(*numbers):
    return [Measured(abs(n), n < 0) for n in numbers]  # below zero: a bound


@pytest.mark.parametrize(
    ('metric', 'measured', 'number', 'agree'),
    [
        ('rounds_to', values(100), 114, True),
        ('rounds_to', values(100), 130, False),
        ('rounds_to', values(100, 120, 140), 160, True),  # in a wide interval
        ('rounds_to', values(100, 101, 102), 130, False),
        ('rounds_to', values(100, 110), 130, False),  # the interval of two is endless
        ('rounds_to', values(-200), '>200', True),
        ('rounds_to', values(-150), '>200', False),
        ('rounds_to', values(-150), 100, False),
        ('rounds_to', values(-100), 100, False),  # ended at 100 without it
        ('rounds_to', values(-100, 110), 100, True),
        ('rounds_to', values(118, -200, 61, -200), 45, False),  # at least 144 on average
        ('rounds_to', values(120), '>200', False),
        ('accuracy_at', values(84.2), 85, True),
        ('accuracy_at', values(83.5), 85, False),
    ],
)
def test_what_reproduces_a_number(metric, measured, number, agree):
    assert reproduction.agrees(metric, measured, number) is agree


def test_the_verdicts_of_a_table():
    runs = {
        'ntk_dfl-iid': [curve(0.8, 0.83, 0.86, name='ntk_dfl-iid-seed0')],
        'dfedavg-iid': [curve(0.8, 0.83, 0.84, 0.85, name='dfedavg-iid-seed0')],
    }
    claims = [
        {'text': 'NTK-DFL is first', 'order': ['ntk_dfl-iid', 'dfedavg-iid']},
        {'text': 'DFedAvg is first', 'order': ['dfedavg-iid', 'ntk_dfl-iid']},
        {'text': 'so at 0.1', 'order': ['ntk_dfl-alpha0.1', 'dfedavg-iid']},
    ]
    known = {'dfedavg-iid': 'another learning rate'}
    table = PUBLISHED | {'claims': claims, 'known': known, 'not_run': 'two weeks'}
    found = {entry.claim: entry for entry in reproduction.entries(table, runs)}
    assert {claim: entry.verdict for claim, entry in found.items()} == {
        'ntk_dfl, iid': 'reproduced',
        'ntk_dfl, alpha0.1': 'not run',
        'dfedavg, iid': 'differs, cause known',
        'NTK-DFL is first': 'reproduced',
        'DFedAvg is first': 'differs, cause unknown',
        'so at 0.1': 'not run',
    }
    assert found['dfedavg, iid'].why == 'another learning rate'
    assert found['ntk_dfl, alpha0.1'].why == 'two weeks'
    assert found['DFedAvg is first'].why == 'nothing tried yet'
    otherwise = reproduction.entries(table | {'measured_otherwise': 'of another network'}, runs)
    assert {entry.claim: entry.verdict for entry in otherwise} == {
        claim: 'not run' if entry.verdict == 'not run' else 'measured otherwise'
        for claim, entry in found.items()
    }


def test_a_claim_may_be_of_another_metric_and_of_rounds_of_its_own():
    runs = {'ntk_dfl-iid': [curve(0.8, 0.9, 0.85, name='ntk_dfl-iid-seed0')]}
    two, three = 'ntk_dfl-iid@2', 'ntk_dfl-iid@3'
    claims = [
        {'text': 'it falls', 'metric': 'accuracy_at', 'order': [two, three]},
        {'text': 'it rises', 'metric': 'accuracy_at', 'order': [three, two]},
        {'text': 'so it stays', 'metric': 'accuracy_at', 'round': 2, 'order': ['ntk_dfl-iid', two]},
    ]
    found = reproduction.entries(PUBLISHED | {'rows': {}, 'claims': claims}, runs)
    assert [entry.verdict for entry in found] == [
        'reproduced',
        'differs, cause unknown',
        'reproduced',
    ]
    assert found[0].ours == '90 (1 seed), 85 (1 seed)'


def test_a_claim_has_a_reason_of_its_own_before_that_of_its_cell():
    runs = {'ntk_dfl-iid': [curve(0.8, 0.9, name='ntk_dfl-iid-seed0')]}
    table = PUBLISHED | {
        'metrics': ['rounds_to', 'accuracy_at'],
        'round': 2,
        'columns': ['iid'],
        'rows': {'ntk_dfl': [[8], [50]]},
        'known': {'ntk_dfl, iid rounds': 'of these rounds', 'ntk_dfl-iid': 'of the cell'},
        'unexplained': {'ntk_dfl, iid aggregated': 'of this accuracy'},
    }
    assert [tuple(entry)[-2:] for entry in reproduction.entries(table, runs)] == [
        ('differs, cause known', 'of these rounds'),
        ('differs, cause unknown', 'of this accuracy'),
    ]


@pytest.mark.parametrize(
    'file',
    [f for f in table_files.known_tables().values() if f.stem == 'published'],
    ids=lambda file: f'{file.parts[-3]}/{file.parts[-2]}',
)
def test_every_reason_is_of_a_cell_or_a_claim(file):
    """A name that nothing has would never be read."""
    published = table_files.read_published(file)
    cells = table_files.flagfiles_of(published, file.parent)
    claims = {entry.claim for entry in reproduction.entries(published, {})}
    named = {*published.get('known', ()), *published.get('unexplained', ())}
    assert not named - claims - {*cells}


def test_the_page_is_of_all_tables(tmp_path, monkeypatch, capsys):
    for name in ('one', 'two'):
        folder = tmp_path / 'papers' / 'paper' / name
        folder.mkdir(parents=True)
        (folder / 'published.json').write_text(json.dumps(PUBLISHED))
        for cell in ('ntk_dfl-iid', 'ntk_dfl-alpha0.1', 'dfedavg-iid'):
            (folder / f'{cell}.flags').write_text('--rounds=3\n')
    folder = tmp_path / 'papers' / 'other' / 'three'  # with the flagfile of one of its cells
    folder.mkdir(parents=True)
    (folder / 'dfedavg-iid.flags').write_text('--rounds=3\n')
    three = PUBLISHED | {'flags': ['other/three', 'paper/one'], 'not_run': 'two weeks'}
    (folder / 'published.json').write_text(json.dumps(three))
    monkeypatch.setattr(table_files, 'PAPERS', tmp_path / 'papers')
    results = tmp_path / 'results'
    results.mkdir()
    run = curve(0.8, 0.83, 0.86, name='ntk_dfl-iid-seed0') | {curves.SECONDS: 60}
    other = curve(0.8, 0.83, 0.86, name='dfedavg-iid-seed0')
    kept = {'ntk_dfl-iid': [run], 'dfedavg-iid': [other]}
    curves.save_curves(results / 'paper-one.json', kept, [])
    monkeypatch.setattr(tables, 'FLAGS', flags_of(runs=[str(results)], out=str(tmp_path)))
    assert tables.main(['tables', 'all']) == 0
    text = (tmp_path / 'reproduction.md').read_text()
    assert '| paper | 1 | 0 | 1 | 0 | 4 |' in text
    assert (
        '| other | 1 | 0 | 0 | 0 | 2 |' in text
    )  # its DFedAvg has other settings than paper/one's
    assert '| paper/two | Three cells | 3 |' in text and '## paper/two' not in text
    assert '| ntk_dfl, iid | 3 | 3 (1 seed) | reproduced |  |' in text
    assert '(results/paper-one.json)' in text
    # in all, and of paper/one
    assert text.count('2 runs, 3 min, not counting 1 of unknown time.') == 2
    assert text.count('1 run, 3 min.') == 1  # what other/three takes of it
    capsys.readouterr()
    monkeypatch.setattr(tables, 'FLAGS', flags_of(runs=[str(results)], list=True))
    assert tables.main(['tables', 'all']) == 1
    assert '--list is of one table' in capsys.readouterr().err
    monkeypatch.setattr(tables, 'FLAGS', flags_of(runs=[str(tmp_path / 'none')]))
    assert tables.main(['tables', 'all']) == 1
    assert 'name one folder of PAPER-TABLE.json' in capsys.readouterr().err


def test_the_committed_page_is_that_of_the_stored_curves(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, 'FLAGS', flags_of(runs=[str(DOCS / 'results')], out=str(tmp_path)))
    assert tables.main(['tables', 'all']) == 0
    page = (tmp_path / 'reproduction.md').read_text()
    assert page == (DOCS / 'reproduction.md').read_text(), 'run the command that the page names'
