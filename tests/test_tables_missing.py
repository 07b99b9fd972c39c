"""The runs that a table lacks: which they are, what they take, and training them by --run."""

import json

import pytest
from test_cli import here, rows_of

from dfl_jax import simulate
from dfl_jax.experiment.run_directory import RunDirectory
from dfl_jax.papers.tables import command as tables
from dfl_jax.papers.tables import missing
from dfl_jax.results import published as table_files
from dfl_jax.results import table
from dfl_jax.results.measured import Measured
from tests.test_tables import flags_of

CELLS = ('dpsgd-iid', 'dpsgd-ring', 'dfedavg-iid')
FLAGS = '--dataset=digits\n--clients=5\n--degree=2\n--train_samples=100\n--test_samples=50\n'
PUBLISHED = {
    'title': 'T',
    'source': 'S',
    'metric': 'accuracy_at',
    'round': 2,
    'columns': ['iid', 'ring'],
    'rows': {'dpsgd': [50, None], 'dfedavg': [60, None]},
    'panels': [{'title': 'a', 'column': 'iid'}],
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A folder of papers with one table of small runs."""
    folder = tmp_path / 'papers' / 'paper' / 'table'
    folder.mkdir(parents=True)
    (folder / 'published.json').write_text(json.dumps(PUBLISHED))
    for cell in CELLS:
        rounds = 4 if cell == 'dpsgd-ring' else 2
        text = f'--algorithm={cell.split("-")[0]}\n{FLAGS}--rounds={rounds}\n'
        (folder / f'{cell}.flags').write_text(text)
    monkeypatch.setattr(table_files, 'PAPERS', tmp_path / 'papers')
    return folder


def kept(name, rounds, **more):
    accuracies = [0.5] * rounds
    of_clients = {'client_accuracy_mean': accuracies}
    return {'run': name, 'round': [*range(1, rounds + 1)], 'consensus_accuracy': accuracies} | (
        of_clients | more
    )


def command_of(monkeypatch, *arguments, **values):
    monkeypatch.setattr(missing, 'use_cache', lambda given: None)
    monkeypatch.setattr(tables, 'FLAGS', flags_of(**values))
    return tables.main(['tables', 'paper/table', *arguments])


def jobs(home, runs, seeds=(0, 1), partitions=None):
    flagfiles = table_files.flagfiles_of(PUBLISHED, home)
    return missing.jobs_of(flagfiles, seeds, runs, partitions or {})


def test_a_run_is_there_when_it_has_its_rounds(home):
    runs = {
        'dpsgd-iid': [kept('dpsgd-iid-seed0', 2), kept('dpsgd-iid-seed1', 1)],
        'dpsgd-ring': [kept('dpsgd-ring-seed1', 7), kept('dpsgd-ring-again', 7)],
    }
    there = {job.name for job in jobs(home, runs) if job.there}
    assert there == {'dpsgd-iid-seed0', 'dpsgd-ring-seed1'}
    assert {(job.cell, job.rounds) for job in jobs(home, runs)} == {
        ('dpsgd-iid', 2),
        ('dpsgd-ring', 4),
        ('dfedavg-iid', 2),
    }


def test_the_cheapest_comes_first_and_what_nothing_tells_last(home):
    """A cell's own runs tell what it takes, else those of its method."""
    runs = {'dpsgd-iid': [kept('dpsgd-iid-seed0', 2, seconds_a_round=a) for a in (3.0, 5.0)]}
    ordered = missing.cheapest_first(jobs(home, runs, seeds=(1,)), runs)
    assert [(job.cell, seconds) for job, seconds in ordered] == [
        ('dpsgd-iid', 8),
        ('dpsgd-ring', 16),
        ('dfedavg-iid', None),
    ]
    runs['dpsgd-ring'] = [kept('dpsgd-ring-seed0', 4, seconds_a_round=1000.0)]
    text = missing.listing(jobs(home, runs), runs)
    assert '| dpsgd-iid | 0 | 1 | 2 | 8 s |' in text
    assert '| dpsgd-ring | 0 | 1 | 4 | 67 min |' in text
    assert '| dfedavg-iid | - | 0, 1 | 2 | ? |' in text
    assert '4 runs missing: about 67 min of training, evaluation apart, 2 runs of unknown' in text


def test_cells_by_their_names(home):
    flagfiles = table_files.flagfiles_of(PUBLISHED, home)
    assert [*missing.chosen_cells(flagfiles, [])] == [*flagfiles]
    assert [*missing.chosen_cells(flagfiles, ['dpsgd-*'])] == ['dpsgd-iid', 'dpsgd-ring']
    assert [*missing.chosen_cells(flagfiles, ['*-ring', 'dfedavg-iid'])] == [
        'dfedavg-iid',
        'dpsgd-ring',
    ]
    with pytest.raises(ValueError, match=r'--cells=spark-\* matches none of dfedavg-iid, '):
        missing.chosen_cells(flagfiles, ['dpsgd-*', 'spark-*'])


def test_the_authors_partition_of_a_column(home, tmp_path):
    published = PUBLISHED | {'partition_files': {'iid': 'authors.json'}}
    assert missing.partition_files(published, None) == {}
    with pytest.raises(ValueError, match=r'--partitions=.* holds no authors\.json'):
        missing.partition_files(published, str(tmp_path))
    with pytest.raises(ValueError, match='this table has none'):
        missing.partition_files(PUBLISHED, str(tmp_path))
    file = tmp_path / 'authors.json'
    file.touch()
    files = missing.partition_files(published, str(tmp_path))
    named = missing.NamedRuns(tmp_path / 'out', {'data_dir': 'data'}, False)
    made = {
        job.cell: named.settings(missing._run_of(job))
        for job in jobs(home, {}, seeds=(3,), partitions=files)
    }
    assert made['dpsgd-iid']['partition_file'] == str(file)
    assert 'partition_file' not in made['dpsgd-ring']
    assert made['dpsgd-ring'].items() >= {'seed': 3, 'data_dir': 'data', 'rounds': 4}.items()


@pytest.mark.integration
def test_what_is_missing_is_trained_and_shown(home, tmp_path, monkeypatch, capfd):
    """An interrupted run goes on, one that is there is left alone, one that fails ends nothing."""
    runs = tmp_path / 'runs'
    flagfile = f'--flagfile={home / "dpsgd-iid.flags"}'
    for seed, more in ((0, []), (1, ['--rounds=1'])):
        out = runs / f'dpsgd-iid-seed{seed}'
        assert here(flagfile, *more, f'--seed={seed}', f'--out={out}').status == 0
    before = (runs / 'dpsgd-iid-seed0' / 'metrics.jsonl').read_bytes()
    capfd.readouterr()
    chosen = {'runs': [str(runs)], 'seeds': '0..1', 'cells': ['dpsgd-iid']}
    assert command_of(monkeypatch, list=True, **chosen) == 0
    text = capfd.readouterr().out
    assert '| dpsgd-iid | 0 | 1 | 2 |' in text and 'holds no run' not in text
    elsewhere = runs.with_name('elsewhere')
    elsewhere.mkdir()
    (elsewhere / 'paper-table.json').write_text('{}')
    assert command_of(monkeypatch, list=True, **chosen | {'runs': [str(elsewhere)]}) == 0
    text = capfd.readouterr().out
    assert '| dpsgd-iid | - | 0, 1 | 2 |' in text
    assert f'holds no run; --runs={elsewhere / "paper-table.json"} reads' in text
    assert command_of(monkeypatch, run=True, progress=False, **chosen) == 0
    text, errors = capfd.readouterr()
    assert 'round/s' not in errors
    assert '[1 of 1] dpsgd-iid-seed1: 2 rounds, about ' in text
    assert '(2 seeds, ' in text and 'written: ' in text
    assert len((runs / 'dpsgd-iid-seed1' / 'metrics.jsonl').read_text().splitlines()) == 2
    assert (runs / 'dpsgd-iid-seed0' / 'metrics.jsonl').read_bytes() == before
    (home / 'dpsgd-iid.flags').write_text('--algorithm=dpsgd\n--clients=0\n--rounds=9\n')
    monkeypatch.setattr(tables, 'FLAGS', flags_of(run=True, **chosen | {'seeds': '7'}))
    assert tables.main(['tables', 'paper/table']) == 1
    assert 'error: dpsgd-iid-seed7 could not begin' in capfd.readouterr().err


@pytest.mark.integration
def test_the_seeds_of_a_cell_are_one_program_that_goes_on(home, tmp_path, monkeypatch, capfd):
    programs = []

    def recorded(*given, run=simulate.run_together, **options):
        programs.append((len(given[-1]), options['resume'] and options['resume'][1][0].round))
        for number, each in enumerate(run(*given, **options)):
            if len(programs) == 1 and number == 2:
                raise KeyboardInterrupt
            yield each

    monkeypatch.setattr(simulate, 'run_together', recorded)
    file = home / 'dpsgd-ring.flags'
    file.write_text(file.read_text().replace('--test_samples=50\n', ''))  # drawn by the seed
    given = {'runs': [str(tmp_path / 'runs')], 'cells': ['dpsgd-ring'], 'run': True}
    assert command_of(monkeypatch, seeds='0..1', **given) == 130
    # Also one that needs only a part of the program, which is trained whole
    assert command_of(monkeypatch, seeds='1..2', **given) == 0
    assert programs == [(2, None), (2, 2)]
    assert '[1 of 2] dpsgd-ring-seed0, dpsgd-ring-seed1: 4 rounds, ' in capfd.readouterr().out
    for seed in range(3):
        assert (tmp_path / 'runs' / f'dpsgd-ring-seed{seed}' / 'done').exists()
        flags = (f'--flagfile={file}', f'--seed={seed}')
        assert here(*flags, f'--out={tmp_path}/{seed}').status == 0
        folders = (tmp_path / 'runs' / f'dpsgd-ring-seed{seed}', tmp_path / f'{seed}')
        ours, alone = map(rows_of, folders)
        assert [row['round'] for row in ours] == [1, 2, 3, 4]
        one, other = (RunDirectory(folder).config() for folder in folders)
        assert one['settings'] == other['settings'] and one['algorithm'] == other['algorithm']
        for row, other in zip(ours, alone, strict=True):
            assert row['consensus_loss'] == pytest.approx(other['consensus_loss'], rel=1e-4)


@pytest.mark.parametrize(
    ('given', 'words'),
    [
        ({'seeds': '0..4'}, '--seeds is of --run and --list'),
        ({'progress': False}, '--progress is of --run and --list'),
        ({'run': True, 'seeds': '4..0'}, '--seeds=4..0: write --seeds=0..4'),
        ({'run': True, 'seeds': '-1..3'}, 'write --seeds=0..4'),
        ({'run': True, 'seeds': 'a'}, 'write --seeds=0..4'),
        ({'run': True, 'seeds': '0..99999999999'}, 'write --seeds=0..4'),
        ({'run': True, 'shard': '4/4'}, '--shard=4/4: write i/n'),
        ({'run': True, 'runs': ['kept.json']}, 'runs are written into the first, name a folder'),
        ({'list': True, 'cells': ['nothing']}, '--cells=nothing matches none of'),
    ],
)
def test_what_cannot_be_is_told_before_anything_runs(
    home, tmp_path, monkeypatch, capsys, given, words
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'kept.json').write_text('{"runs": {}, "warnings": []}')
    assert command_of(monkeypatch, **given) == 1
    assert words in capsys.readouterr().err
    assert sorted(p.name for p in tmp_path.iterdir()) == ['kept.json', 'papers']


@pytest.mark.parametrize(
    ('values', 'number', 'text'),
    [
        ((12, 14, 16), 14.5, '14 ± 2 (3 seeds, 9.0 to 19.0)'),
        ((12, 14, 16), 20, '14 ± 2 (3 seeds, 9.0 to 19.0) ≠'),
        ((12, 14, 16), 9, '14 ± 2 (3 seeds, 9.0 to 19.0) ≠'),
        ((12, 14, 16), '>18', '14 ± 2 (3 seeds, 9.0 to 19.0)'),
        ((12, 14, 16), '>20', '14 ± 2 (3 seeds, 9.0 to 19.0) ≠'),
        ((12, 14, 16), None, '14 ± 2 (3 seeds, 9.0 to 19.0)'),
        ((12,), 20, '12 (1 seed)'),
    ],
)
def test_an_interval_that_excludes_the_paper_is_marked(values, number, text):
    assert table.with_interval([*map(Measured, values)], number) == text
    assert '≠' not in table.with_interval([Measured(12), Measured(200, True)], 20)
