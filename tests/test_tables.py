"""Tables set the runs of a cell beside the paper's numbers."""

import itertools
import json
from unittest import mock

import pytest
from absl import flags

from dfl_jax.papers.tables import command as tables
from dfl_jax.papers.tables import panels
from dfl_jax.papers.tables.latex import latex_table
from dfl_jax.papers.tables.panels import table_panels, ylabel
from dfl_jax.papers.tables.plot_panels import draw_panels
from dfl_jax.plain_text import markdown_table
from dfl_jax.plots import COLOURS, plt
from dfl_jax.results import curves, table
from dfl_jax.results import measured as metrics
from dfl_jax.results import published as table_files
from dfl_jax.results.curves import read_flagfile
from dfl_jax.results.labels import METHOD_LABELS
from dfl_jax.results.measured import METRICS, by_metric
from dfl_jax.results.run_notes import note_lines, read_note

PUBLISHED = {
    'metric': 'rounds_to',
    'target': 0.85,
    'columns': ['iid', 'alpha0.1'],
    'rows': {'ntk_dfl': [12, 18], 'dfedavg': [18, 83]},
}


def write_run(path, accuracies, done=True, more=None, **settings):
    """A run directory; `more` is {column: a value a round}."""
    path.mkdir(parents=True)
    given = settings.pop('given', [])
    (path / 'config.json').write_text(json.dumps({'settings': settings, 'given': given}))
    rows = [
        {'round': r, 'consensus_accuracy': a, 'client_accuracy_mean': a - 0.1}
        for r, a in enumerate(accuracies, 1)
    ]
    for name, values in (more or {}).items():
        rows = [row | {name: value} for row, value in zip(rows, values, strict=True)]
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


@pytest.fixture
def home(folder, tmp_path, monkeypatch):
    """The same folder as that of paper/table, among the papers."""
    (tmp_path / 'experiments' / 'paper').mkdir(parents=True)
    monkeypatch.setattr(table_files, 'PAPERS', tmp_path / 'experiments')
    return folder.rename(tmp_path / 'experiments' / 'paper' / 'table')


def flags_of(**given):
    """The flags of the command, with these values."""
    known = flags.FlagValues()
    tables.define_flags((), known)
    known.mark_as_parsed()
    for name, value in given.items():
        known[name].value = value
        known[name].present = 1
    return known


def find(folder, *sources, names=curves.CURVES):
    flagfiles = table_files.flagfiles_of(PUBLISHED, folder)
    runs, notes = curves.find_runs(flagfiles, sources, dict.fromkeys(flagfiles, names))
    return runs, [*map(str, notes)]


SETTINGS = {'clients': 300, 'partition': 'dirichlet', 'partition_overlap': True, 'seed': 0}


def table_of(published, runs):
    return markdown_table(*table.head_and_rows(published, runs))


def test_mean_and_deviation_over_seeds_stand_beside_the_paper(folder, tmp_path):
    runs = tmp_path / 'runs'
    write_run(runs / 'ntk_dfl-iid-seed0', [0.8, 0.86, 0.84], **SETTINGS)
    write_run(runs / 'ntk_dfl-iid-seed1', [0.8, 0.82, 0.8, 0.85], **SETTINGS)
    write_run(runs / 'ntk_dfl-alpha0.1-seed0', [0.7, 0.8, 0.81], **SETTINGS)
    found, warnings = find(folder, runs)
    assert warnings == []
    lines = table_of(PUBLISHED, found).splitlines()
    assert lines[0] == '| method | iid paper | iid ours | alpha0.1 paper | alpha0.1 ours |'
    assert lines[2] == '| ntk_dfl | 12 | 3 ± 1.4 (2 seeds, -10 to 16) | 18 | >3 (1 seed) |'
    assert lines[3] == '| dfedavg | 18 | - | 83 | - |'


def test_strays_and_unfinished_runs_are_remarked_on(folder, tmp_path):
    runs = tmp_path / 'runs'
    write_run(runs / 'ntk_dfl-iid-seed0', [0.8], done=False, **(SETTINGS | {'clients': 30}))
    write_run(
        runs / 'ntk_dfl-iid-seed1',
        [0.9],
        **(SETTINGS | {'partition_overlap': False, 'partition_file': 'some/where.json'}),
    )
    _, warnings = find(folder, runs)
    assert warnings == [
        'ntk_dfl-iid-seed0 stopped at round 1',
        'ntk_dfl-iid-seed0: --clients=30, the flagfile says 300',
        'ntk_dfl-iid-seed1: partition from where.json',
    ]


def test_a_flag_that_the_flagfile_leaves_out_is_remarked_on(folder, tmp_path):
    given = ['clients', 'lr', 'seed', 'chunk', 'partition_file']
    write_run(tmp_path / 'ntk_dfl-iid-seed0', [0.9], given=given, lr=0.1, chunk=4, **SETTINGS)
    assert find(folder, tmp_path)[1] == ['ntk_dfl-iid-seed0: --lr=0.1, the flagfile has no --lr']


def test_a_negated_flag_is_compared_as_such(folder, tmp_path):
    (folder / 'ntk_dfl-iid.flags').write_text('--nontk_averaging\n')
    write_run(tmp_path / 'ntk_dfl-iid-seed0', [0.9], ntk_averaging=False)
    write_run(tmp_path / 'ntk_dfl-iid-seed1', [0.9], ntk_averaging=True)
    assert find(folder, tmp_path)[1] == [
        'ntk_dfl-iid-seed1: --ntk_averaging=True, the flagfile says False'
    ]


def test_the_devices_of_a_flagfile_are_no_setting_of_the_run(folder, tmp_path):
    (folder / 'ntk_dfl-iid.flags').write_text('--clients=300\n--devices=1\n')
    write_run(tmp_path / 'ntk_dfl-iid-seed0', [0.9], clients=300)
    assert find(folder, tmp_path)[1] == []


def test_no_run_at_all_is_an_error_that_names_the_cells(folder, tmp_path):
    found, warnings = find(folder, tmp_path / 'nothing')
    files = table_files.flagfiles_of(PUBLISHED, folder)
    assert not found and warnings == []
    message = curves.no_run_found(files, [tmp_path / 'nothing'], warnings)
    assert 'name them ntk_dfl-alpha0.1, ntk_dfl-iid' in message


def test_what_is_said_of_several_runs_is_said_once():
    warnings = ['a-seed0: --lr=1', 'a-seed1 stopped at round 3', 'a-seed1: --lr=1', 'b: --lr=2']
    notes = map(read_note, [*warnings, 'b is left out: no x\n'])
    assert note_lines(notes) == [
        'note: a-seed1 stopped at round 3',
        'note: b is left out: no x',
        'note: a-seed0 and 1 more: --lr=1',
        'note: b: --lr=2',
    ]


def curve(*accuracies, name='run', **more):
    clients = [round(a - 0.1, 4) for a in accuracies]
    rounds = list(range(1, len(accuracies) + 1))
    return {
        'run': name,
        'round': rounds,
        'consensus_accuracy': list(accuracies),
        'client_accuracy_mean': clients,
        **more,
    }


def reaching(round):
    """A curve that gets to 85 % in that round, and stands at 80 % before."""
    return curve(*[0.8] * (round - 1), 0.85)


def test_a_seed_that_never_got_there_is_shown_not_averaged():
    runs = {
        'ntk_dfl-iid': [reaching(9), curve(0.8, 0.8, 0.8), reaching(12)],
        'dfedavg-iid': [curve(0.8, 0.8), curve(0.8, 0.8, 0.8)],
    }
    lines = table_of(PUBLISHED, runs).splitlines()
    assert lines[2].startswith('| ntk_dfl | 12 | 9, >3, 12 (3 seeds) |')
    assert lines[3].startswith('| dfedavg | 18 | >2 (2 seeds) |')


def test_a_number_that_the_paper_does_not_print_is_a_dash():
    published = PUBLISHED | {'rows': {'ntk_dfl': [0, None], 'dfedavg': [None, '>200']}}
    lines = table_of(published, {'ntk_dfl-alpha0.1': [reaching(18)]}).splitlines()
    assert lines[2:] == ['| ntk_dfl | 0 | - | - | 18 (1 seed) |', '| dfedavg | - | - | >200 | - |']


def test_a_paper_without_numbers_has_no_column():
    published = PUBLISHED | {'metric': 'accuracy_at', 'round': 2, 'rows': {'ntk_dfl': [None, None]}}
    runs = {'ntk_dfl-iid': [curve(0.8, 0.8512, 0.9), curve(0.8)], 'ntk_dfl-alpha0.1': [curve(0.8)]}
    lines = table_of(published, runs).splitlines()
    assert lines[0] == '| method | iid ours | alpha0.1 ours |'
    assert lines[2] == '| ntk_dfl | 85.12 (1 seed) | - |'


def test_the_gap_is_between_the_aggregated_model_and_the_mean_client():
    published = PUBLISHED | {
        'metric': 'gap_at',
        'round': 2,
        'rows': {'ntk_dfl': [10, None], 'dfedavg': [12, 20]},
    }
    runs = {
        'ntk_dfl-iid': [
            curve(0.8, 0.85, client_accuracy_mean=[0.5, 0.75]),
            curve(0.8, 0.85, client_accuracy_mean=[0.5, 0.73]),
        ],
        'ntk_dfl-alpha0.1': [curve(0.8, 0.9)],
        'dfedavg-iid': [curve(0.8, 0.9, client_accuracy_mean=[0.7, 0.7])],
        'dfedavg-alpha0.1': [curve(0.8)],
    }
    assert table_of(published, runs).splitlines()[2:] == [
        '| ntk_dfl | 10 | 11 ± 1.4 (2 seeds, -2 to 24) | - | 10 (1 seed) |',
        '| dfedavg | 12 | 20 (1 seed) | 20 | - |',
    ]
    assert table.far_off_cells(published, runs) == ['dfedavg iid: 20 against 12 (+67 %)']


def test_the_megabytes_are_those_of_the_first_round_at_the_target():
    published = PUBLISHED | {
        'metric': 'megabytes_to',
        'rows': {'ntk_dfl': [None, 2e6], 'dfedavg': [None, None]},
    }
    runs = {
        'ntk_dfl-iid': [
            curve(0.8, 0.85, 0.84, 0.9, mbytes_total=[942651.5, 1885303, 2827954, 3770606]),
            curve(0.9, mbytes_total=[1200000]),
        ],
        'ntk_dfl-alpha0.1': [curve(0.8, 0.84, mbytes_total=[942651.5, 1885303])],
        'dfedavg-iid': [curve(0.8, 0.86, mbytes_total=[0.5, 119.262])],
    }
    assert table_of(published, runs).splitlines()[2:] == [
        '| ntk_dfl | - | 1543000 ± 480000 (2 seeds, -2811149 to 5896452) | 2000000.0 '
        '| >1885000 (1 seed) |',
        '| dfedavg | - | 119.3 (1 seed) | - | - |',
    ]
    assert table.far_off_cells(published, runs) == []


def test_several_metrics_stand_side_by_side_in_every_column():
    published = {
        'metrics': ['megabytes_saved', 'rounds_to', 'client_accuracy_at'],
        'reference': 'ntk_dfl',
        'target': 0.85,
        'round': 2,
        'columns': ['iid', 'alpha0.1'],
        'rows': {
            'ntk_dfl': [[None, None], [4, 18], [75, None]],
            'spark': [[98.5, 98.7], [2, 6], [99, None]],
        },
    }
    runs = {
        'ntk_dfl-iid': [curve(0.8, 0.85, mbytes_total=[1000, 2000])],
        'spark-iid': [curve(0.8, 0.85, mbytes_total=[12.5, 25]), curve(0.85, mbytes_total=[12.5])],
        'spark-alpha0.1': [curve(0.8, mbytes_total=[12.5])],  # nothing to compare with
    }
    assert table_of(published, runs).splitlines() == [
        '| method '
        '| iid MB saved paper | iid MB saved ours '
        '| iid rounds paper | iid rounds ours '
        '| iid mean client paper | iid mean client ours '
        '| alpha0.1 MB saved paper | alpha0.1 MB saved ours '
        '| alpha0.1 rounds paper | alpha0.1 rounds ours '
        '| alpha0.1 mean client paper | alpha0.1 mean client ours |',
        '| --- ' * 13 + '|',
        '| ntk_dfl | - | 0 (1 seed) | 4 | 2 (1 seed) | 75 | 75 (1 seed) | - | - | 18 | - | - | - |',
        '| spark | 98.5 | 98.75 ± 0 (2 seeds, 98.75 to 98.75) ≠ | 2 '
        '| 1.5 ± 0.71 (2 seeds, -4.9 to 7.9) | 99 | 75 (1 seed) '
        '| 98.7 | - | 6 | >1 (1 seed) | - | - |',
    ]
    assert table.report(published, runs).splitlines()[-1:] == [
        '- ntk_dfl iid rounds: 2 against 4 (-50 %)'
    ]
    assert metrics.metrics_in_words(published) == (
        'megabytes a round saved against ntk_dfl (%); rounds to 85 % consensus accuracy; '
        'mean client accuracy at round 2 (%)'
    )


def test_the_rounds_to_a_reference_are_to_where_its_mean_client_is_at_the_round():
    published = {
        'metrics': [
            {'metric': 'rounds_to_reference', 'round': 2, 'head': 'as at 2'},
            {'metric': 'rounds_to_reference', 'round': 3},
        ],
        'reference': 'dec_fedavg',
        'columns': ['iid', 'alpha0.1'],
        'rows': {'dfml': [[10, 20], [None, 30]], 'dec_fedavg': [[None, None], [None, None]]},
    }
    runs = {
        'dec_fedavg-iid': [curve(0.25, 0.5, 0.75), curve(0.25, 0.625)],  # 46.25 % after round 2
        'dfml-iid': [curve(0.5, 0.5625, 0.5), curve(0.5, 0.875), curve(0.25)],
        'dfml-alpha0.1': [curve(0.5)],  # nothing to compare with
    }
    assert table_of(published, runs).splitlines()[::2] == [
        '| method | iid as at 2 paper | iid as at 2 ours | iid rounds paper | iid rounds ours '
        '| alpha0.1 as at 2 paper | alpha0.1 as at 2 ours '
        '| alpha0.1 rounds paper | alpha0.1 rounds ours |',
        '| dfml | 10 | 2, 2, >1 (3 seeds) | - | >3, 2, >1 (3 seeds) | 20 | - | 30 | - |',
    ]
    early = runs | {'dfml-iid': [curve(0.625, 0.625)]}
    (row,) = table_of(published | {'every': 2}, early).splitlines()[2:3]
    assert row == '| dfml | 10 | 2 (1 seed) | - | >2 (1 seed) | 20 | - | 30 | - |'
    assert table_of(published, runs).splitlines()[3] == '| dec_fedavg ' + 8 * '| - ' + '|'
    assert metrics.metrics_in_words(published) == (
        'rounds to the mean client accuracy of dec_fedavg at round 2; '
        'rounds to the mean client accuracy of dec_fedavg at round 3'
    )


@pytest.mark.parametrize('metric', ['client_accuracy_at', 'local_accuracy_at'])
def test_columns_may_have_rounds_of_their_own(metric):
    published = {
        'metric': metric,
        'round': {'iid': 3, 'alpha0.1': 1},
        'ours': 'dfml',
        'columns': ['iid', 'alpha0.1'],
        'rows': {'dfml': [None, None], 'dec_fedavg': [None, None]},
    }
    local = {'local_accuracy_mean': [0.4, 0.4, 0.65]}
    runs = {
        'dfml-iid': [curve(0.25, 0.5, 0.75, **local)],
        'dfml-alpha0.1': [curve(0.5, 0.75, 0.5, **local)],
        'dec_fedavg-iid': [curve(0.25, 0.5, 0.5, **local)],
    }
    assert table_of(published, runs).splitlines()[2] == '| dfml | 65 (1 seed) | 40 (1 seed) |'
    assert 'at round 1 or 3 (%)' in metrics.metrics_in_words(published)
    whose, points = (' of the mean client', 25) if metric == 'client_accuracy_at' else ('', 25)
    assert table.comparisons(published, runs) == [
        f'iid: lead{whose} over the best baseline at round 3: {points:.1f} points (dec_fedavg)'
    ]


@pytest.mark.parametrize(
    ('number', 'run', 'warning'),
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
        (0, reaching(140), []),  # of which nothing is a share
    ],
)
def test_cells_far_from_the_paper_are_named(number, run, warning):
    published = PUBLISHED | {'rows': {'dfedavg': [number, None]}}
    assert table.far_off_cells(published, {'dfedavg-iid': [run]}) == warning


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
    assert table.comparisons(COMPARED, runs) == [
        'iid: fewer rounds than the best baseline: 2.3 times (dfedavg); paper: 1.5 times (dfedavg)',
        'iid: lead over the best baseline at round 2: 3.0 points (dpsgd)',
    ]
    assert table.comparisons(PUBLISHED, runs) == []
    runs['ntk_dfl_compressed-iid'] = [curve(0.85)]
    rows = {'rows': COMPARED['rows'] | {'ntk_dfl_compressed': [None, None]}}
    variants = COMPARED | rows | {'variants': ['ntk_dfl_compressed']}
    assert table.comparisons(variants, runs) == table.comparisons(COMPARED, runs)


def test_a_baseline_that_never_got_there_bounds_the_comparison():
    runs = {'ntk_dfl-alpha0.1': [reaching(10)], 'dpsgd-alpha0.1': [curve(*[0.8] * 25)]}
    assert table.comparisons(COMPARED, runs)[0] == (
        'alpha0.1: fewer rounds than the best baseline: more than 2.5 times (dpsgd); '
        'paper: 6.9 times (dpsgd)'
    )
    runs['dpsgd-alpha0.1'] = [curve(0.8)]  # has hardly begun
    assert table.comparisons(COMPARED, runs) == []
    runs['ntk_dfl-alpha0.1'] = [curve(0.8)]
    assert table.comparisons(COMPARED, runs) == []


def points_of(published, runs):
    """Each panel's kind and {(label, style): points}, without the lines that have none."""
    found = table_panels(published, runs)
    return [
        (panel.kind, {(line.label, line.style): line.points for line in panel.lines if line.points})
        for panel in found
    ]


def test_panels_are_curves_or_the_metric_against_a_factor():
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
    assert points_of(published, runs) == [
        (
            'curve',
            {
                ('NTK-DFL', 'solid'): {1: [80, 80], 2: [85, 80]},  # the rounds that both have
                ('NTK-FL', 'faint'): {1: [50]},
            },
        ),
        ('factor', {('NTK-DFL', 'solid'): {0.1: [4], 9: [2, 3]}, ('NTK-FL', 'solid'): {9: [1]}}),
    ]


def test_no_two_methods_of_a_panel_have_one_colour():
    known = [*METHOD_LABELS]
    clashing = [known[0], known[len(COLOURS)], 'mine', known[1]]
    published = PUBLISHED | {'rows': {method: [1, 2] for method in clashing}}
    labelled = panels._methods(published, {})
    assert [*labelled] == clashing and len({colour for _, colour in labelled.values()}) == 4
    assert labelled[known[0]] == (METHOD_LABELS[known[0]], COLOURS[0])


def test_curves_at_a_round_against_a_factor():
    panel = {'title': 'a', 'label': 'x', 'columns': {'iid': 2, 'alpha0.1': 5}}
    panel['curves'] = ['consensus_accuracy', 'client_accuracy_mean']
    runs = {'ntk_dfl-iid': [curve(0.5, 0.75)], 'ntk_dfl-alpha0.1': [curve(0.5), curve(0.5, 0.5)]}
    published = PUBLISHED | {'round': 2, 'panels': [panel]}
    assert points_of(published, runs) == [
        (
            'factor',
            {('NTK-DFL', 'solid'): {2: [75], 5: [50]}, ('NTK-DFL', 'dotted'): {2: [65], 5: [40]}},
        )
    ]


def test_both_curves_of_a_column_against_megabytes():
    panel = {'title': 'a', 'column': 'iid', 'x': 'mbytes_total', 'until': 2}
    panel['curves'] = ['consensus_accuracy', 'client_accuracy_mean']
    runs = {'ntk_dfl-iid': [curve(0.5, 0.75, 0.5, mbytes_total=[10, 20, 30])]}
    published = PUBLISHED | {'panels': [panel]}
    lines = {
        ('NTK-DFL', 'solid'): {10: [50], 20: [75]},
        ('NTK-DFL', 'dotted'): {10: [40], 20: [65]},
    }
    assert points_of(published, runs) == [('curve', lines)]
    assert legend_of(draw(published, runs)) == ['NTK-DFL', 'consensus model', 'mean client', '85 %']
    assert ylabel(published) == 'test accuracy (%)'


def test_chosen_lines_against_rounds_or_megabytes():
    dotted = {'curve': 'client_accuracy_mean', 'style': 'dotted'}
    lines = [
        {'cell': 'ntk_dfl-iid', 'label': 'a'},
        {'cell': 'ntk_dfl-iid', 'label': 'a', **dotted},
        {'cell': 'dfedavg-iid', 'label': 'b'},
        {'cell': 'dpsgd-iid', 'label': 'c', 'colour': 7},
    ]
    published = PUBLISHED | {
        'panels': [
            {'title': 'a', 'lines': lines, 'until': 2},
            {'title': 'b', 'lines': lines, 'x': 'mbytes_total'},
        ]
    }
    runs = {
        'ntk_dfl-iid': [
            curve(0.5, 0.75, 0.5, mbytes_total=[10, 20, 30]),
            curve(0.5, 0.75, mbytes_total=[12, 24]),
        ],
        'dfedavg-iid': [curve(0.25, mbytes_total=[1])],
    }
    assert points_of(published, runs) == [
        (
            'curve',
            {
                ('a', 'solid'): {1: [50, 50], 2: [75, 75]},
                ('a', 'dotted'): {1: [40, 40], 2: [65, 65]},
                ('b', 'solid'): {1: [25]},
            },
        ),
        (
            'curve',
            {
                ('a', 'solid'): {11: [50, 50], 22: [75, 75]},
                ('a', 'dotted'): {11: [40, 40], 22: [65, 65]},
                ('b', 'solid'): {1: [25]},
            },
        ),
    ]
    places = [COLOURS.index(line.colour) for line in table_panels(published, runs)[0].lines]
    assert places == [0, 0, 1, 7]


def test_a_dot_a_run_at_the_round_of_the_table():
    points = {'ntk_dfl': ['iid', 'alpha0.1'], 'dfedavg': ['iid']}
    published = PUBLISHED | {
        'round': 2,
        'panels': [{'title': 'a', 'x': 'model_deviation', 'points': points}],
    }
    runs = {
        'ntk_dfl-iid': [
            curve(0.5, 0.75, model_deviation=[0.9, 0.04]),
            curve(0.5, 0.5, model_deviation=[0.9, 0.04]),
        ],
        'ntk_dfl-alpha0.1': [curve(0.5, 0.25, model_deviation=[0.9, 0.08])],
        'dfedavg-iid': [curve(0.5, model_deviation=[0.9])],  # not there yet
        'dfedavg-alpha0.1': [curve(0.5, 0.5, model_deviation=[0.9, 0.1])],  # not chosen
    }
    expected = {0.04: [75, 50], 0.08: [25]}
    assert points_of(published, runs) == [('scatter', {('NTK-DFL', 'solid'): expected})]
    (axes,) = draw(published, runs).axes
    (dots,) = axes.collections
    assert sorted(map(tuple, dots.get_offsets())) == [(0.04, 50), (0.04, 75), (0.08, 25)]


def quantiles(low, high):
    """The quartiles of accuracies that are even between two bounds."""
    return [low + (high - low) * share / 20 for share in range(21)]


def test_distributions_over_clients_stand_side_by_side():
    cells = [{'cell': 'ntk_dfl-iid', 'label': 'a'}, {'cell': 'dfedavg-iid', 'label': 'b'}]
    published = {'rows': {}, 'panels': [{'title': 'a', 'rounds': [1, 3], 'cells': cells}]}
    spread = {'client_accuracy_quantiles': [quantiles(0.25, 0.5), [], quantiles(0.5, 0.75)]}
    equal = {'client_accuracy_quantiles': [quantiles(0.5, 0.75)]}
    same = {'client_accuracy_quantiles': [quantiles(0.5, 0.5), [], quantiles(0.625, 0.625)]}
    runs = {
        'ntk_dfl-iid': [curve(0.8, 0.8, 0.8, **spread), curve(0.8, **equal)],
        'dfedavg-iid': [curve(0.8, 0.8, 0.8, **same)],
    }
    ((kind, lines),) = points_of(published, runs)
    assert kind == 'distribution'
    assert lines['a', 'solid'][1] == pytest.approx(quantiles(37.5, 62.5))  # the mean of both seeds
    assert lines['a', 'solid'][3] == pytest.approx(quantiles(50, 75))
    figure = draw(published, runs)
    (axes,) = figure.axes
    medians = [tuple(map(float, line.get_xydata()[0])) for line in axes.lines]
    expected = [(-0.21, 50), (0.79, 62.5), (0.21, 50), (1.21, 62.5)]
    assert medians == [pytest.approx(median) for median in expected]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ['1', '3']
    violins = [body for body in axes.collections if hasattr(body, 'get_paths')][::2]
    low, high = violins[0].get_paths()[0].get_extents().get_points()
    assert (low[1], high[1]) == pytest.approx((37.5, 62.5))
    assert -0.42 <= low[0] < high[0] <= 0  # its neighbour begins right of it


def draw(published, runs):
    """The figure, still open for a look at what it holds."""
    return draw_panels(table_panels(published, runs), 'y', published.get('target'))


def legend_of(figure):
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


@pytest.mark.parametrize('rounds', [60, 640, 2800])
def test_the_labels_of_many_rounds_do_not_touch(rounds):
    panel = {'title': 'a', 'lines': [{'cell': 'ntk_dfl-iid', 'label': 'a'}], 'until': rounds}
    run = {'run': 'ntk_dfl-iid-seed0', 'round': [1, rounds], 'consensus_accuracy': [0.1, 0.9]}
    figure = draw(PUBLISHED | {'panels': [panel, panel]}, {'ntk_dfl-iid': [run]})
    figure.canvas.draw()
    low, high = figure.axes[0].get_xlim()
    labels = [
        tick.label1.get_window_extent()
        for tick in figure.axes[0].xaxis.get_major_ticks()
        if low <= tick.get_loc() <= high
    ]
    assert len(labels) > 3
    assert all(left.x1 < right.x0 for left, right in itertools.pairwise(labels))
    plt.close(figure)


def test_a_legend_names_labels_and_styles_once_and_fits():
    lines = [
        {'cell': 'ntk_dfl-iid', 'label': label, 'style': style}
        for label in ('a rather long label', 'another one', 'and a third')
        for style in ('solid', 'dotted')
    ]
    styles = {'solid': 'consensus model', 'dotted': 'mean client'}
    panel = {'title': 'a', 'lines': lines, 'styles': styles}
    figure = draw(PUBLISHED | {'panels': [panel, panel]}, {'ntk_dfl-iid': [curve(0.5, 0.6)]})
    labels = ['a rather long label', 'another one', 'and a third']
    assert legend_of(figure) == [*labels, 'consensus model', 'mean client', '85 %']
    figure.draw_without_rendering()
    assert figure.legends[0].get_window_extent().width <= figure.bbox.width
    left = figure.axes[0]
    assert sorted(line.get_linestyle() for line in left.lines) == ['-'] * 3 + ['--'] * 4


def test_a_panel_without_a_run_is_left_out():
    figure = draw(PUBLISHED | {'panels': PANELS['curves']}, {'ntk_dfl-iid': [curve(0.5, 0.6)]})
    assert [axes.get_title() for axes in figure.axes] == ['IID']
    assert len(draw(PUBLISHED | {'panels': PANELS['curves']}, {}).axes) == 2


PANELS = {
    'curves': [{'title': 'IID', 'column': 'iid'}, {'title': 'empty', 'column': 'alpha0.1'}],
    'factor': [{'title': 'a', 'label': 'alpha', 'columns': {'alpha0.1': 0.1, 'iid': 1}}],
    'lines': [
        {'title': 'a', 'x': 'mbytes_total', 'lines': [{'cell': 'ntk_dfl-iid', 'label': 'b'}]}
    ],
    'scatter': [{'title': 'a', 'x': 'model_deviation', 'points': {'ntk_dfl': ['iid']}}],
    'distribution': [
        {'title': 'a', 'rounds': [1, 3], 'cells': [{'cell': 'ntk_dfl-iid', 'label': 'b'}]}
    ],
}
MORE = {
    'mbytes_total': [942651.78396, 2e6, 3e6],
    'model_deviation': [0.0661755, 0.05, 0.04],
    'client_accuracy_quantiles': [quantiles(0.1, 0.7), quantiles(0.1, 0.7), quantiles(1 / 3, 1)],
}


@pytest.mark.parametrize('kind', PANELS)
def test_the_written_curves_stand_for_the_runs(home, tmp_path, monkeypatch, capsys, kind):
    published = PUBLISHED | {'title': 'T', 'source': 'S', 'ours': 'ntk_dfl', 'round': 2}
    (home / 'published.json').write_text(json.dumps(published | {'panels': PANELS[kind]}))
    runs = tmp_path / 'runs'
    write_run(runs / 'ntk_dfl-iid-seed0', [0.8, 0.84996, 0.84], more=MORE, **SETTINGS)
    less = {name: values[:1] for name, values in MORE.items()}
    write_run(runs / 'ntk_dfl-iid-seed1', [0.8], done=False, more=less, **SETTINGS)

    def draw(source, out):
        monkeypatch.setattr(tables, 'FLAGS', flags_of(runs=[str(source)], out=str(out)))
        assert tables.main(['tables', 'paper/table']) == 0
        files = {p.suffix: p.read_bytes() for p in out.iterdir()}
        return capsys.readouterr().out.replace(str(out), 'OUT'), files

    first = draw(runs, tmp_path / 'first')
    again = draw(tmp_path / 'first' / 'paper-table.json', tmp_path / 'second')
    assert 'note: ntk_dfl-iid-seed1 stopped at round 1' in first[0]
    assert set(first[1]) == {'.md', '.json', '.png'}
    assert again == first
    kept = json.loads(first[1]['.json'])['runs']['ntk_dfl-iid'][0].keys() & MORE.keys()
    wanted = {'lines': 'mbytes_total', 'scatter': 'model_deviation'}
    wanted['distribution'] = 'client_accuracy_quantiles'
    assert kept == ({wanted[kind]} if kind in wanted else set())


def test_a_table_can_be_latex(home, tmp_path, monkeypatch, capsys):
    content = json.dumps(PUBLISHED | {'title': 'A & B', 'source': 'S', 'panels': PANELS['lines']})
    (home / 'published.json').write_text(content)
    sent = {'mbytes_total': [1, 2]}
    write_run(tmp_path / 'runs' / 'ntk_dfl-iid-seed0', [0.8, 0.86], more=sent, **SETTINGS)
    known = flags_of(runs=[str(tmp_path / 'runs')], out=str(tmp_path / 'out'), latex=True)
    monkeypatch.setattr(tables, 'FLAGS', known)
    assert tables.main(['tables', 'paper/table']) == 0
    printed = capsys.readouterr().out
    assert printed == (tmp_path / 'out' / 'paper-table.tex').read_text()  # and nothing else
    assert r'\caption{A \& B: rounds to 85 \% consensus accuracy.' in printed
    assert r'ntk\_dfl & 12 & 2 (1 seed) & 18 & - \\' in printed
    assert printed.count('&') == printed.count(r'\&') + 3 * 4  # heading and two methods, 5 columns
    assert tables.main(['tables', 'all']) == 1
    assert '--latex is of one table; name it in place of all' in capsys.readouterr().err
    monkeypatch.setattr(tables, 'FLAGS', flags_of(latex=True, list=True))
    assert tables.main(['tables', 'paper/table']) == 1
    assert '--list writes no table' in capsys.readouterr().err


def test_a_table_of_ones_own_lies_in_any_folder(folder, tmp_path, monkeypatch, capsys):
    rows = {'rows': {'ntk_dfl': [None, None]}}
    rest = {'title': 'T', 'source': 'S', 'panels': [{'title': 'IID', 'column': 'iid'}]}
    (folder / 'published.json').write_text(json.dumps(PUBLISHED | rows | rest))
    for seed in (0, 1):
        write_run(tmp_path / f'runs/ntk_dfl-iid-seed{seed}', [0.8, 0.8 + 0.06 * seed], **SETTINGS)
    monkeypatch.setattr(tables, 'FLAGS', flags_of(runs=[str(tmp_path / 'runs')], latex=True))
    assert tables.main(['tables', str(folder)]) == 0
    assert 'paper' not in capsys.readouterr().out
    written = (tmp_path / 'runs' / 'table.md').read_text()
    assert '| method | iid ours | alpha0.1 ours |' in written and 'paper' not in written
    assert tables.main(['tables', str(tmp_path)]) == 1
    assert f'{tmp_path} is no table; name one of' in capsys.readouterr().err


def test_no_character_of_latex_comes_through():
    source = latex_table(['a_b'], [['50 % & {x} #1 $ ^ ~ \\'], ['3 ± 1 > 2 ≠']], 'c')
    assert (
        r'50 \% \& \{x\} \#1 \$ \textasciicircum{} \textasciitilde{} \textbackslash{} \\' in source
    )
    assert r'3 $\pm$ 1 $>$ 2 $\neq$' in source


def test_of_two_runs_of_a_name_the_first_source_gives_it(folder, tmp_path):
    write_run(tmp_path / 'a' / 'ntk_dfl-iid-seed10', [0.8], done=False, **SETTINGS)
    write_run(tmp_path / 'b' / 'ntk_dfl-iid-seed10', [0.9], done=False, **SETTINGS)
    write_run(tmp_path / 'b' / 'ntk_dfl-iid-seed9', [0.7], done=False, **SETTINGS)
    curves.save_curves(tmp_path / 'b.json', *find(folder, tmp_path / 'b'))
    for second in (tmp_path / 'b', tmp_path / 'b.json'):
        found, warnings = find(folder, tmp_path / 'a', second)
        runs = [(run['run'], *run['consensus_accuracy']) for run in found['ntk_dfl-iid']]
        assert runs == [('ntk_dfl-iid-seed9', 0.7), ('ntk_dfl-iid-seed10', 0.8)]
        assert sorted(warnings) == [
            'ntk_dfl-iid-seed10 stopped at round 1',
            'ntk_dfl-iid-seed9 stopped at round 1',
        ]


def test_flagfiles_may_be_those_of_other_tables(tmp_path, monkeypatch):
    monkeypatch.setattr(table_files, 'PAPERS', tmp_path)
    files = ['p/a/ntk_dfl-iid.flags', 'p/b/ntk_dfl-iid.flags', 'p/b/ntk_dfl-alpha0.1.flags']
    for file in [*files, 'p/b/dpsgd-iid.flags', 'p/own/dfedavg-iid.flags']:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert table_files.flagfiles_of(PUBLISHED | {'flags': ['p/a', 'p/b']}, tmp_path / 'p/own') == {
        'ntk_dfl-alpha0.1': tmp_path / files[2],
        'ntk_dfl-iid': tmp_path / files[0],
    }


def test_stored_columns_are_rounded(folder, tmp_path):
    write_run(tmp_path / 'ntk_dfl-iid-seed0', [0.8, 0.84996, 0.84], more=MORE, **SETTINGS)
    found, _ = find(folder, tmp_path, names=[*curves.CURVES, *MORE])
    (run,) = found['ntk_dfl-iid']
    assert run['consensus_accuracy'] == [0.8, 0.85, 0.84]
    assert run['mbytes_total'] == [942652, 2e6, 3e6]
    assert run['model_deviation'] == [0.0662, 0.05, 0.04]
    assert run['client_accuracy_quantiles'][2][:2] == [0.3333, 0.3667]


def test_an_old_run_serves_unless_it_lacks_what_is_needed(folder, tmp_path):
    write_run(tmp_path / 'ntk_dfl-iid-seed0', [0.8, 0.85], **SETTINGS)
    found, warnings = find(folder, tmp_path)
    curves.save_curves(tmp_path / 'old.json', found, warnings)
    for source in (tmp_path, tmp_path / 'old.json'):
        assert find(folder, source) == (found, warnings)
        names = [*curves.CURVES, 'mbytes_total']
        left_out = 'ntk_dfl-iid-seed0 is left out: it has no mbytes_total'
        assert find(folder, source, names=names) == ({}, [left_out])


def test_a_column_that_only_lines_show_is_needed_of_their_cells(folder, tmp_path):
    lines = [
        {'cell': 'ntk_dfl-iid', 'label': 'a', 'curve': 'meme_accuracy'},
        {'cell': 'ntk_dfl-alpha0.1', 'label': 'b'},
    ]
    published = PUBLISHED | {'panels': [{'title': '', 'lines': lines}]}
    files = table_files.flagfiles_of(PUBLISHED, folder)
    needed = table_files.needed_columns(published, files)
    assert needed == {
        'ntk_dfl-alpha0.1': [*curves.CURVES],
        'ntk_dfl-iid': [*curves.CURVES, 'meme_accuracy'],
    }
    write_run(tmp_path / 'ntk_dfl-alpha0.1', [0.9], **SETTINGS)
    write_run(tmp_path / 'ntk_dfl-iid', [0.8], more={'meme_accuracy': [0.5]}, **SETTINGS)
    runs, _ = curves.find_runs(files, [tmp_path], needed)
    assert 'meme_accuracy' not in runs['ntk_dfl-alpha0.1'][0]
    assert points_of(published, runs) == [
        ('curve', {('a', 'solid'): {1: [50]}, ('b', 'solid'): {1: [90]}})
    ]
    everywhere = published | {
        'panels': [
            *published['panels'],
            {'title': '', 'column': 'iid', 'curves': ['meme_accuracy']},
        ]
    }
    needed = table_files.needed_columns(everywhere, files)
    found, (note,) = curves.find_runs(files, [tmp_path], needed)
    assert [*found] == ['ntk_dfl-iid']
    assert str(note) == 'ntk_dfl-alpha0.1 is left out: it has no meme_accuracy'


def test_what_metric_and_panels_need():
    def needed(metric, *kinds):
        panels = [panel for kind in kinds for panel in PANELS[kind]]
        (names,) = table_files.needed_columns(
            {'metric': metric, 'panels': panels}, ['ntk_dfl-iid']
        ).values()
        return tuple(names[len(curves.CURVES) :])

    assert needed('rounds_to', 'curves', 'factor') == ()
    assert needed('megabytes_to', 'curves') == ('mbytes_total',)
    assert needed('megabytes_saved', 'curves') == ('mbytes_total',)
    assert needed('gap_at', 'lines', 'scatter') == ('mbytes_total', 'model_deviation')
    assert needed('local_accuracy_at', 'curves') == ('local_accuracy_mean',)
    assert needed('accuracy_at', 'distribution') == ('client_accuracy_quantiles',)


@pytest.mark.parametrize('kind', PANELS)
def test_a_figure_without_a_point_is_drawn(tmp_path, kind):
    panels = table_panels(PUBLISHED | {'round': 2, 'panels': PANELS[kind]}, {})
    draw_panels(panels, 'y', None).savefig(tmp_path / 'a.png')
    assert (tmp_path / 'a.png').stat().st_size


def test_curves_that_cannot_be_read_are_an_error(folder, tmp_path):
    path = tmp_path / 'table.json'
    for content in ('', '[]', '{"runs": {}}', '3'):
        path.write_text(content)
        with pytest.raises(ValueError, match='cannot be read'):
            find(folder, path)
    with pytest.raises(ValueError, match='cannot be read'):
        find(folder, tmp_path / 'absent.json')
    path.write_text('{"runs": {"other-cell": []}, "warnings": []}')
    assert find(folder, path) == ({}, [])


def test_runs_of_another_cell_are_left_alone(folder, tmp_path):
    write_run(tmp_path / 'ntk_dfl-iid', [0.9], **SETTINGS)
    write_run(tmp_path / 'ntk_dfl-iid2-seed0', [0.9], **SETTINGS)
    found, _ = find(folder, tmp_path)
    assert {cell: [run['run'] for run in runs] for cell, runs in found.items()} == {
        'ntk_dfl-iid': ['ntk_dfl-iid']
    }


INITS = {'he': 'independent', 'gain': 'gain_corrected', 'same': 'same'}
RULES = {'gossip': 'mean'}
TABLES = sorted(table_files.PAPERS.glob('*/*/published.json'))
IDS = [f'{path.parent.parent.name}/{path.parent.name}' for path in TABLES]


@pytest.mark.parametrize('published', TABLES, ids=IDS)
def test_every_shipped_cell_has_a_flagfile_with_known_flags(published):
    from dfl_jax.cli.run import command as run

    run.define_flags()

    content = json.loads(published.read_text())
    files = table_files.flagfiles_of(content, published.parent)
    assert files.keys() >= {path.stem for path in published.parent.glob('*.flags')}
    assert {cell.partition('-')[0] for cell in files} == set(content['rows'])
    assert {cell.partition('-')[2] for cell in files} == set(content['columns'])
    for cell, file in files.items():
        wanted = read_flagfile(file)
        for name, value in wanted.items():
            flags.FLAGS[name].parser.parse(value)
        stem, algorithm = cell.partition('-')[0], wanted['algorithm'].rpartition(':')[2]
        rule, init = RULES.get(stem, stem), INITS.get(stem.partition('_')[0])
        named = {algorithm, wanted.get('aggregation', '').partition(':')[0]}
        assert rule in named or stem.startswith(f'{algorithm}_') or init == wanted['init']
        assert f'--flagfile=experiments/{file.relative_to(table_files.PAPERS)} ' in file.read_text()


@pytest.mark.parametrize('published', TABLES, ids=IDS)
def test_every_shipped_table_is_whole(published):
    content = json.loads(published.read_text())
    needed = {'rounds_to': 'target', 'megabytes_to': 'target', 'megabytes_saved': 'reference'}
    needed['loss_to'] = 'target_loss'
    for part in by_metric(content):
        assert part['metric'] in METRICS
        assert needed.get(part['metric'], 'round') in part
        assert part.get('reference') is None or part['reference'] in content['rows']
        if isinstance(part.get('round'), dict):
            assert part['round'].keys() == set(content['columns'])
        assert all(len(numbers) == len(content['columns']) for numbers in part['rows'].values())
    assert all(len(row) == len(content.get('metrics', row)) for row in content['rows'].values())
    named = {content.get('ours'), content.get('reference')}
    named |= {*content.get('centralized', ()), *content.get('variants', ())}
    assert named <= {None, *content['rows']}
    assert table_of(content, {}).count('\n') == 1 + len(content['rows'])
    assert metrics.metrics_in_words(content) and ylabel(content)
    assert content.get('errors', 'range') in ('range', 'confidence')
    columns = set(content['columns'])
    assert columns >= content.get('slowdown', {}).keys()
    for method, sizes in content.get('fit', {}).items():
        assert method in content['rows'] and columns >= sizes.keys() and len(sizes) >= 3
    assert 'slowdown' in content or not any('slowdown' in panel for panel in content['panels'])


@pytest.mark.parametrize('published', TABLES, ids=IDS)
def test_panels_of_other_quantities_name_and_own_their_axis(published):
    content = json.loads(published.read_text())
    shared = [panel for panel in content['panels'] if 'ylabel' not in panel]
    assert len({panel.get('yscale') for panel in shared}) <= 1
    curves_shown = {curve for panel in shared for curve in curves.panel_curves(panel)}
    assert curves_shown <= {*curves.CURVES} or curves_shown == {curves.CLIENT_LOSS}


def cells_of(content, panel):
    """The cells that a panel names; some of its methods may lack one of its columns."""
    if 'lines' in panel or 'rounds' in panel:
        return {line['cell'] for line in panel.get('lines', panel.get('cells'))}
    if 'points' in panel:
        return {f'{m}-{column}' for m, columns in panel['points'].items() for column in columns}
    columns = panel.get('columns', [panel.get('column')])
    methods = panel.get('methods', content['rows'])
    return {f'{m}-{column}' for m in methods for column in columns}


@pytest.mark.parametrize('published', TABLES, ids=IDS)
def test_every_shipped_panel_draws_the_cells_that_there_are(published):
    content = json.loads(published.read_text())
    cells = set(table_files.flagfiles_of(content, published.parent))
    named = [cells_of(content, panel) for panel in content['panels']]
    assert set().union(*named) == cells
    rounds = 20
    run = curve(*[0.8] * rounds, **{name: values[:1] * rounds for name, values in MORE.items()})
    run['mbytes_total'] = list(range(1, rounds + 1))
    runs = {
        cell: [
            {'run': 'run', 'round': run['round']}
            | {name: run.get(name, [0.1] * rounds) for name in names}
        ]
        for cell, names in table_files.needed_columns(content, cells).items()
    }
    colours = table_panels({**content, 'panels': [{'title': '', 'column': ''}]}, {})[0].lines
    assert len({line.colour for line in colours}) == len(content['rows'])
    panels = table_panels(content, runs)
    assert all(line.points for panel in panels for line in panel.lines)
    figure = draw_panels(panels, ylabel(content), content.get('target'))
    shown = legend_of(figure)
    for axes, panel in zip(figure.axes, panels, strict=True):
        legend = axes.get_legend()
        own = [text.get_text() for text in legend.get_texts()] if legend else []
        explained = own if panel.legend else shown
        assert len(explained) == len(set(explained))
        assert {line.label for line in panel.lines} <= set(explained)
    plt.close(figure)


# ------------------------------------------------------------------------------ what is damaged

DEEP = '[' * 100_000


def lines_of(*rows):
    return ''.join(json.dumps(row) + '\n' for row in rows)


def row(round=1, **changed):
    return {'round': round, 'consensus_accuracy': 0.8, 'client_accuracy_mean': 0.7} | changed


@pytest.mark.parametrize(
    ('file', 'text'),
    [
        ('metrics.jsonl', 'garbage\n'),
        ('metrics.jsonl', '[]\n'),
        ('metrics.jsonl', f'{DEEP}\n'),
        ('metrics.jsonl', b'\xff\xfe\n'),
        ('metrics.jsonl', None),  # a folder in its place
        ('metrics.jsonl', lines_of(row(consensus_accuracy='0.8'))),
        ('metrics.jsonl', lines_of(row(consensus_accuracy=float('nan')))),
        ('metrics.jsonl', lines_of(row(consensus_accuracy=True))),
        ('metrics.jsonl', lines_of(row(consensus_accuracy=[0.8]))),
        ('metrics.jsonl', lines_of(row(client_accuracy_mean=10**400))),
        ('metrics.jsonl', lines_of({'round': 1, 'client_accuracy_mean': 0.5})),
        ('metrics.jsonl', lines_of(row(1), {'round': 2, 'client_accuracy_mean': 0.5})),
        ('metrics.jsonl', lines_of(row(0))),
        ('metrics.jsonl', lines_of(row(1.5))),
        ('metrics.jsonl', lines_of(row('1'))),
        ('metrics.jsonl', lines_of(row(2), row(2))),
        ('metrics.jsonl', lines_of(row(2), row(1))),
        ('config.json', ''),
        ('config.json', '{'),
        ('config.json', 'null'),
        ('config.json', '[]'),
        ('config.json', '{}'),
        ('config.json', '{"settings": []}'),
        ('config.json', '{"settings": {}, "given": 3}'),
        ('config.json', '{"settings": {"partition_file": 3}}'),
        ('config.json', DEEP),
        ('config.json', None),
        ('config.json', 'absent'),
    ],
)
def test_a_bad_run_is_left_out_and_named(file, text, folder, tmp_path):
    write_run(tmp_path / 'ntk_dfl-iid-seed0', [0.8], **SETTINGS)
    bad = tmp_path / 'ntk_dfl-iid-seed1'
    write_run(bad, [0.9], **SETTINGS)
    (bad / file).unlink()
    if text is None:
        (bad / file).mkdir()
    elif isinstance(text, bytes):
        (bad / file).write_bytes(text)
    elif text != 'absent':
        (bad / file).write_text(text)
    found, warnings = find(folder, tmp_path)
    assert [run['run'] for run in found['ntk_dfl-iid']] == ['ntk_dfl-iid-seed0']
    (warning,) = warnings
    assert warning.startswith('ntk_dfl-iid-seed1 is left out: ') and '\n' not in warning


@pytest.mark.parametrize(
    'changed',
    [
        {'round': []},
        {'round': [2, 1]},
        {'round': [1]},
        {'round': None},
        {'consensus_accuracy': [0.8, 'x']},
        {'consensus_accuracy': 0.8},
        {'run': 3},
        {'client_accuracy_quantiles': [0.1, 0.2]},
    ],
)
def test_a_bad_run_of_a_file_is_left_out(changed, folder, tmp_path):
    runs = {'ntk_dfl-iid': [curve(0.8, 0.9, name='good'), curve(0.8, 0.9, name='bad') | changed]}
    path = tmp_path / 'table.json'
    path.write_text(json.dumps({'runs': runs | {'ntk_dfl-alpha0.1': [3]}, 'warnings': []}))
    found, warnings = find(folder, path)
    assert found == {'ntk_dfl-iid': runs['ntk_dfl-iid'][:1]}
    assert len(warnings) == 2 and all('is left out: ' in warning for warning in warnings)


@pytest.mark.parametrize(
    'text',
    [
        DEEP,
        'null',
        '{"runs": [], "warnings": []}',
        '{"runs": {"ntk_dfl-iid": 3}, "warnings": []}',
        '{"runs": {}, "warnings": [3]}',
        '{"runs": {}, "warnings": 3}',
    ],
)
def test_curves_that_are_none(text, folder, tmp_path):
    (tmp_path / 'table.json').write_text(text)
    with pytest.raises(ValueError, match=r'table\.json cannot be read as the curves of a table'):
        find(folder, tmp_path / 'table.json')


WHOLE = PUBLISHED | {'title': 'T', 'source': 'S', 'panels': PANELS['curves']}


@pytest.mark.parametrize(
    ('changed', 'words'),
    [
        (DEEP, 'is damaged: nested too deeply'),
        ('', 'is damaged: no JSON'),
        ('null', 'is no table but a NoneType'),
        ({'title': ''}, 'has no title'),
        ({'columns': 'iid'}, "its row 'ntk_dfl' has to have a number for every column"),
        ({'metric': 'speed'}, 'its metric speed is none of rounds_to, '),
        ({'metric': {}}, 'its metric {} is none of rounds_to, '),
        ({'claims': [{'metric': 'pace'}]}, 'its metric pace is none of rounds_to, '),
        ({'rows': {'ntk_dfl': [1]}}, "its row 'ntk_dfl' has to have a number"),
        ({'rows': []}, 'has no rows'),
        ({'rows': [3]}, 'is no table as it should be'),
        ({'panels': [3]}, 'is no table as it should be'),
        ({'panels': [{'title': 'T'}]}, 'is no table as it should be'),
        ({'target': None}, 'is no table as it should be'),
    ],
)
def test_a_table_that_is_none(changed, words, home, tmp_path, monkeypatch, capsys):
    text = changed if isinstance(changed, str) else json.dumps(WHOLE | changed)
    (home / 'published.json').write_text(text)
    write_run(tmp_path / 'runs' / 'ntk_dfl-iid-seed0', [0.8], **SETTINGS)
    runs = [str(tmp_path / 'runs')]
    assert words in refused(monkeypatch, capsys, 'paper/table', runs=runs, out=None)


def refused(monkeypatch, capsys, name='ntk_dfl/figure2', **given):
    monkeypatch.setattr(tables, 'FLAGS', flags_of(**given))
    assert tables.main(['tables', name]) != 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith('error: ')
    return line


def test_where_nothing_can_be_written_is_told_first(tmp_path, monkeypatch, capsys):
    (tmp_path / 'file').touch()
    (tmp_path / 'ntk_dfl-figure2.png').mkdir()

    monkeypatch.setattr(tables, 'find_runs', lambda *_: pytest.fail('it computed'))
    before = sorted(tmp_path.rglob('*'))
    for out in ('file', 'file/deep', 'x' * 300, '.'):
        line = refused(monkeypatch, capsys, runs=[str(tmp_path)], out=str(tmp_path / out))
        assert 'choose another --out' in line
    file = [str(tmp_path / 'file')]
    assert 'choose another --runs' in refused(monkeypatch, capsys, runs=file, out=None)
    assert '--runs is empty' in refused(monkeypatch, capsys, runs=[], out=None)
    assert sorted(tmp_path.rglob('*')) == before


def test_ctrl_c_while_reading(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(tables, 'find_runs', mock.Mock(side_effect=KeyboardInterrupt))
    monkeypatch.setattr(tables, 'FLAGS', flags_of(runs=[str(tmp_path)]))
    assert tables.main(['tables', 'ntk_dfl/figure2']) == 130
    assert capsys.readouterr().err == 'error: interrupted; the same command goes on\n'


def test_a_run_shorter_than_its_flagfile_is_remarked_on_and_a_longer_one_is_not(folder, tmp_path):
    (folder / 'ntk_dfl-iid.flags').write_text('--rounds=20\n')
    for seed, rounds in enumerate((20, 10, 30)):
        write_run(tmp_path / f'ntk_dfl-iid-seed{seed}', [0.9] * rounds, rounds=rounds)
    assert find(folder, tmp_path)[1] == ['ntk_dfl-iid-seed1: --rounds=10, the flagfile says 20']
