"""Tables set the runs of a cell beside the paper's numbers."""

import json
from types import SimpleNamespace

import pytest
from absl import flags

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


def curve(*accuracies, name='run'):
    clients = [round(a - 0.1, 4) for a in accuracies]
    rounds = list(range(1, len(accuracies) + 1))
    return {
        'run': name,
        'round': rounds,
        'consensus_accuracy': list(accuracies),
        'client_accuracy_mean': clients,
    }


def reaching(round):
    """A curve that gets to 85 % in that round, and stands at 80 % before."""
    return curve(*[0.8] * (round - 1), 0.85)


def test_a_seed_that_never_got_there_is_shown_not_averaged():
    runs = {
        'ntk_dfl-iid': [reaching(9), curve(0.8, 0.8, 0.8), reaching(12)],
        'dfedavg-iid': [curve(0.8, 0.8), curve(0.8, 0.8, 0.8)],
    }
    lines = tables.table(PUBLISHED, runs).splitlines()
    assert lines[2].startswith('| ntk_dfl | 12 | 9, >3, 12 (3 seeds) |')
    assert lines[3].startswith('| dfedavg | 18 | >2 (2 seeds) |')


def test_a_number_that_the_paper_does_not_print_is_a_dash():
    published = PUBLISHED | {'rows': {'ntk_dfl': [12, None], 'dfedavg': [None, '>200']}}
    lines = tables.table(published, {'ntk_dfl-alpha0.1': [reaching(18)]}).splitlines()
    assert lines[2:] == ['| ntk_dfl | 12 | - | - | 18 (1 seed) |', '| dfedavg | - | - | >200 | - |']


def test_a_paper_without_numbers_has_no_column():
    published = PUBLISHED | {
        'metric': 'accuracy_at',
        'round': 2,
        'rows': {'ntk_dfl': [None, None]},
    }
    runs = {'ntk_dfl-iid': [curve(0.8, 0.8512, 0.9), curve(0.8)], 'ntk_dfl-alpha0.1': [curve(0.8)]}
    lines = tables.table(published, runs).splitlines()
    assert lines[0] == '| method | iid ours | alpha0.1 ours |'
    assert lines[2] == '| ntk_dfl | 85.12 (1 seed) | - |'


@pytest.mark.parametrize(
    ('number', 'run', 'remark'),
    [
        (125, reaching(97), []),
        (125, reaching(93), ['dfedavg iid: 93 against 125 (-26 %)']),
        (125, reaching(157), ['dfedavg iid: 157 against 125 (+26 %)']),
        (125, curve(*[0.8] * 50), []),
        (125, curve(*[0.8] * 160), ['dfedavg iid: >160 against 125 (+28 %)']),
        ('>200', curve(*[0.8] * 260), []),
        ('>200', reaching(260), []),
        ('>200', reaching(140), ['dfedavg iid: 140 against >200 (-30 %)']),
        (None, reaching(140), []),
    ],
)
def test_cells_far_from_the_paper_are_named(number, run, remark):
    published = PUBLISHED | {'rows': {'dfedavg': [number, None]}}
    assert tables.off_paper(published, {'dfedavg-iid': [run]}) == remark


COMPARED = PUBLISHED | {
    'round': 2,
    'ours': 'ntk_dfl',
    'centralized': ['ntk_fl'],
    'rows': {'ntk_dfl': [12, 18], 'ntk_fl': [2, 2], 'dpsgd': [53, 125], 'dfedavg': [18, '>200']},
}


def test_ours_is_compared_with_the_best_decentralized_baseline():
    runs = {
        'ntk_dfl-iid': [curve(0.7, 0.83, 0.85), curve(0.7, 0.81, 0.85)],
        'ntk_fl-iid': [curve(0.9, 0.9)],
        'dpsgd-iid': [curve(0.7, 0.79, *[0.8] * 7, 0.85)],
        'dfedavg-iid': [curve(0.7, 0.78, *[0.8] * 4, 0.85)],
    }
    assert tables.comparisons(COMPARED, runs) == [
        'iid: fewer rounds than the best baseline: 2.3 times (dfedavg); paper: 1.5 times (dfedavg)',
        'iid: lead over the best baseline at round 2: 3.0 points (dpsgd)',
    ]
    assert tables.comparisons(PUBLISHED, runs) == []


def test_a_baseline_that_never_got_there_bounds_the_comparison():
    runs = {'ntk_dfl-alpha0.1': [reaching(10)], 'dpsgd-alpha0.1': [curve(*[0.8] * 25)]}
    assert tables.comparisons(COMPARED, runs)[0] == (
        'alpha0.1: fewer rounds than the best baseline: more than 2.5 times (dpsgd); '
        'paper: 6.9 times (dpsgd)'
    )
    runs['dpsgd-alpha0.1'] = [curve(0.8)]  # has hardly begun
    assert tables.comparisons(COMPARED, runs) == []
    runs['ntk_dfl-alpha0.1'] = [curve(0.8)]
    assert tables.comparisons(COMPARED, runs) == []


def test_panels_are_curves_or_the_metric_against_a_factor():
    from experiments.plots import table_panels

    published = COMPARED | {
        'panels': [
            {'title': 'a', 'column': 'iid'},
            {'title': 'b', 'label': 'x', 'columns': {'alpha0.1': 0.1, 'iid': 9}},
        ]
    }
    runs = {
        'ntk_dfl-iid': [reaching(2), reaching(3)],
        'ntk_dfl-alpha0.1': [reaching(4)],
        'ntk_fl-iid': [curve(0.5)],
    }
    curves, factor = table_panels(published, runs, lambda cell: [len(r['round']) for r in cell])
    assert curves['label'] is None and factor['label'] == 'x'
    assert curves['solid']['ntk_dfl'] == {1: [80, 80], 2: [85, 80]}  # the rounds that both have
    assert curves['faint'] == {'ntk_fl': {1: [50]}} and 'ntk_fl' not in curves['solid']
    assert factor['solid']['ntk_dfl'] == {0.1: [4], 9: [2, 3]}
    assert factor['solid']['dpsgd'] == {}


PANELS = {
    'curves': [{'title': 'IID', 'column': 'iid'}, {'title': 'empty', 'column': 'alpha0.1'}],
    'factor': [{'title': 'a', 'label': 'alpha', 'columns': {'alpha0.1': 0.1, 'iid': 1}}],
}


@pytest.mark.parametrize('kind', PANELS)
def test_the_written_curves_stand_for_the_runs(folder, tmp_path, monkeypatch, capsys, kind):
    home = tmp_path / 'experiments'
    (home / 'paper').mkdir(parents=True)
    folder.rename(home / 'paper' / 'table')
    published = PUBLISHED | {'title': 'T', 'source': 'S', 'ours': 'ntk_dfl'}
    content = json.dumps(published | {'panels': PANELS[kind]})
    (home / 'paper' / 'table' / 'published.json').write_text(content)
    runs = tmp_path / 'runs'
    write_run(runs / 'ntk_dfl-iid-seed0', [0.8, 0.84996, 0.84], **SETTINGS)
    write_run(runs / 'ntk_dfl-iid-seed1', [0.8], done=False, **SETTINGS)
    monkeypatch.setattr(tables, 'HERE', home)

    def draw(source, out):
        monkeypatch.setattr(tables, 'FLAGS', SimpleNamespace(runs=str(source), out=str(out)))
        assert tables.main(['tables', 'paper/table']) == 0
        files = {p.suffix: p.read_bytes() for p in out.iterdir()}
        return capsys.readouterr().out.replace(str(out), 'OUT'), files

    first = draw(runs, tmp_path / 'first')
    again = draw(tmp_path / 'first' / 'paper-table.json', tmp_path / 'second')
    assert 'note: ntk_dfl-iid-seed1 stopped at round 1' in first[0]
    assert set(first[1]) == {'.md', '.json', '.png'}
    assert again == first


@pytest.mark.parametrize('label', [None, 'x'])
def test_a_figure_without_a_point_is_drawn(tmp_path, label):
    from experiments.plots import STYLES, plot_panels

    empty = {name: {'dpsgd': {}} for name in STYLES}
    plot_panels([{'title': 'a', 'label': label, **empty}], tmp_path / 'a.png', 'y', None)
    assert (tmp_path / 'a.png').stat().st_size


def test_curves_that_cannot_be_read_are_an_error(folder, tmp_path):
    path = tmp_path / 'table.json'
    for content in ('', '[]', '{"runs": {}}', '3'):
        path.write_text(content)
        with pytest.raises(ValueError, match='cannot be read'):
            tables.find_runs(folder, path)
    with pytest.raises(ValueError, match='cannot be read'):
        tables.find_runs(folder, tmp_path / 'absent.json')
    path.write_text('{"runs": {"other-cell": []}, "remarks": []}')
    with pytest.raises(ValueError, match='holds no run of table'):
        tables.find_runs(folder, path)


def test_runs_of_another_cell_are_left_alone(folder, tmp_path):
    write_run(tmp_path / 'ntk_dfl-iid', [0.9], **SETTINGS)
    write_run(tmp_path / 'ntk_dfl-iid2-seed0', [0.9], **SETTINGS)
    found, _ = tables.find_runs(folder, tmp_path)
    assert {cell: [run['run'] for run in runs] for cell, runs in found.items()} == {
        'ntk_dfl-iid': ['ntk_dfl-iid']
    }


TABLES = sorted(tables.HERE.glob('*/*/published.json'))
IDS = [f'{path.parent.parent.name}/{path.parent.name}' for path in TABLES]


@pytest.mark.parametrize('published', TABLES, ids=IDS)
def test_every_shipped_cell_has_a_flagfile_with_known_flags(published):
    import experiments.flags  # noqa: F401

    content = json.loads(published.read_text())
    cells = {f'{m}-{column}' for m in content['rows'] for column in content['columns']}
    assert cells == {path.stem for path in published.parent.glob('*.flags')}
    for cell in cells:
        file = published.parent / f'{cell}.flags'
        wanted = tables.read_flagfile(file)
        for name, value in wanted.items():
            flags.FLAGS[name].parser.parse(value)
        assert cell == f'{wanted["algorithm"]}-{cell.partition("-")[2]}'
        assert f'--flagfile=experiments/{file.relative_to(tables.HERE)} ' in file.read_text()


@pytest.mark.parametrize('published', TABLES, ids=IDS)
def test_every_shipped_table_is_whole(published):
    content = json.loads(published.read_text())
    columns = set(content['columns'])
    assert content['metric'] in tables.METRICS
    assert {'rounds_to': 'target', 'accuracy_at': 'round'}[content['metric']] in content
    assert {content.get('ours'), *content.get('centralized', ())} <= {None, *content['rows']}
    for panel in content['panels']:
        assert set(panel.get('columns', [panel.get('column')])) <= columns
    assert tables.table(content, {}).count('\n') == 1 + len(content['rows'])
    assert tables.what(content)
