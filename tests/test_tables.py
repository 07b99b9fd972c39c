"""Tables set the runs of a cell beside the paper's numbers."""

import json

import pytest

from experiments import tables

PUBLISHED = {
    'metric': 'rounds_to',
    'target': 0.85,
    'columns': ['iid', 'alpha0.1'],
    'rows': {'ntk_dfl': [12, 18], 'dfedavg': [18, 83]},
}


def write_run(path, accuracies, done=True, **settings):
    path.mkdir(parents=True)
    (path / 'config.json').write_text(json.dumps({'settings': settings}))
    rows = [
        {'round': r, 'consensus_accuracy': a, 'client_accuracy_mean': a - 0.1}
        for r, a in enumerate(accuracies, 1)
    ]
    (path / 'metrics.jsonl').write_text(''.join(json.dumps(row) + '\n' for row in rows))
    if done:
        (path / 'done').touch()


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / 'table'
    folder.mkdir()
    for cell in ('ntk_dfl-iid', 'ntk_dfl-alpha0.1'):
        (folder / f'{cell}.flags').write_text(
            '# a comment\n--clients=300\n--partition=dirichlet\n--partition_overlap\n'
        )
    return folder


SETTINGS = {'clients': 300, 'partition': 'dirichlet', 'partition_overlap': True, 'seed': 0}


def test_mean_and_deviation_over_seeds_stand_beside_the_paper(folder, tmp_path):
    runs = tmp_path / 'runs'
    write_run(runs / 'ntk_dfl-iid-seed0', [0.8, 0.86, 0.84], **SETTINGS)
    write_run(runs / 'ntk_dfl-iid-seed1', [0.8, 0.82, 0.8, 0.85], **SETTINGS)
    write_run(runs / 'ntk_dfl-alpha0.1-seed0', [0.7, 0.8, 0.81], **SETTINGS)
    found, remarks = tables.find_runs(folder, runs)
    assert remarks == []
    lines = tables.table(PUBLISHED, found).splitlines()
    assert lines[0] == '| method | iid paper | iid ours | alpha0.1 paper | alpha0.1 ours |'
    assert lines[2] == '| ntk_dfl | 12 | 3 ± 1.4 (2 seeds) | 18 | >3 (1 seed) |'
    assert lines[3] == '| dfedavg | 18 | - | 83 | - |'


def test_strays_and_unfinished_runs_are_remarked_on(folder, tmp_path):
    runs = tmp_path / 'runs'
    write_run(runs / 'ntk_dfl-iid-seed0', [0.8], done=False, **(SETTINGS | {'clients': 30}))
    write_run(
        runs / 'ntk_dfl-iid-seed1',
        [0.9],
        **(SETTINGS | {'partition_overlap': False, 'partition_file': 'some/where.json'}),
    )
    _, remarks = tables.find_runs(folder, runs)
    assert remarks == [
        'ntk_dfl-iid-seed0 stopped at round 1',
        'ntk_dfl-iid-seed0: --clients=30, the flagfile says 300',
        'ntk_dfl-iid-seed1: partition from where.json',
    ]


def test_no_run_at_all_is_an_error_that_names_the_cells(folder, tmp_path):
    with pytest.raises(ValueError, match=r'name them ntk_dfl-alpha0\.1, ntk_dfl-iid'):
        tables.find_runs(folder, tmp_path / 'nothing')


def test_every_shipped_cell_has_a_flagfile_with_known_flags():
    from absl import flags

    import experiments.flags  # noqa: F401

    for published in tables.HERE.glob('*/*/published.json'):
        content = json.loads(published.read_text())
        assert content['metric'] in tables.METRICS
        for method in content['rows']:
            for column in content['columns']:
                wanted = tables.read_flagfile(published.parent / f'{method}-{column}.flags')
                assert set(wanted) <= set(flags.FLAGS)
