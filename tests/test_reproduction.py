"""The page of all claims: verdicts that follow from the curves."""

import json
import math
import random
import statistics
from pathlib import Path

import numpy as np
import pytest
import scipy.stats

from dfl_jax.papers.tables import claims, verdict
from dfl_jax.papers.tables import command as tables
from dfl_jax.results import curves
from dfl_jax.results import published as table_files
from dfl_jax.results.measured import Measured, paper_number
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


def spread(deviation, degrees=4, relative=True):
    return verdict.Spread(deviation, degrees, relative)


@pytest.mark.parametrize(
    ('metric', 'measured', 'number', 'deviation', 'found'),
    [
        ('accuracy_at', values(84.9, 85.0, 85.1), 85.5, 0.1, 'equal'),
        ('accuracy_at', values(84.9, 85.0, 85.1), 85.9, 0.1, 'inconclusive'),  # 85 +- 0.16
        ('accuracy_at', values(84.9, 85.0, 85.1), 86.2, 0.1, 'differs'),
        ('accuracy_at', values(84, 85, 86), 87, 1, 'consistent'),  # one run: 85 +- 3.2
        ('accuracy_at', values(83, 85, 87), 89, 2, 'inconclusive'),  # 85 +- 3.2
        ('accuracy_at', values(84, 85, 86), 89, 1, 'differs'),
        ('accuracy_at', values(85.0), 85.2, 0.1, 'equal'),  # by the deviation of other cells
        ('rounds_to', values(7, 7, 7), 6, 0, 'equal'),  # a round either way
        ('rounds_to', values(98, 100, 102), 114, 0.004, 'equal'),
        ('rounds_to', values(98, 100, 102), 130, 0.02, 'differs'),
        ('rounds_to', values(100, 120, 140), 160, 0.17, 'consistent'),
        ('rounds_to', values(10, 120, 230), 200, 1, 'inconclusive'),  # inside, and too wide
        ('rounds_to', values(10, 12, 14), 1.1, 0.25, 'differs'),  # however wide: 12 +- 5
    ],
)
def test_a_number_beside_a_mean_with_its_interval(metric, measured, number, deviation, found):
    relative = metric == 'rounds_to'
    judged = verdict.judge(metric, measured, Measured(number), spread(deviation, 4, relative))
    assert judged.verdict == found


def test_a_number_that_is_a_mean_is_not_held_to_the_spread_of_one_run():
    ours = values(100, 120, 140), Measured(160), spread(0.17)
    assert verdict.judge('rounds_to', *ours).verdict == 'consistent'  # 120 +- 65
    assert verdict.judge('rounds_to', *ours, mean_of=32).verdict == 'inconclusive'  # +- 34


def test_the_interval_is_that_of_scipy():
    measured = values(16, 18, 20, 21)
    judged = verdict.judge(
        'rounds_to', measured, Measured(18), verdict.pooled('rounds_to', [measured])
    )
    low, high = scipy.stats.t.interval(0.95, 3, 18.75, scipy.stats.sem([16, 18, 20, 21]))
    assert judged.half == pytest.approx((high - low) / 2)
    assert judged.tolerances == pytest.approx(0.75 / (0.15 * 18))


def test_a_deviation_is_pooled_over_cells_relative_where_the_tolerance_is():
    two, three = values(9, 11), values(90, 100, 110)
    found = verdict.pooled('rounds_to', [two, three, values(-200, 3), values(4)])
    assert found.deviation == pytest.approx(math.sqrt((2 / 100 + 200 / 10_000) / 3))
    assert (found.degrees, found.relative) == (3, True)
    points = verdict.pooled('accuracy_at', [two, three])
    assert points.deviation == pytest.approx(math.sqrt(202 / 3)) and not points.relative


def test_a_single_deviation_of_two_runs_says_nothing():
    judged = verdict.judge(
        'accuracy_at',
        values(85, 85.1),
        Measured(85),
        verdict.pooled('accuracy_at', [values(85, 85.1)]),
    )
    assert judged.verdict == 'inconclusive'


@pytest.mark.parametrize(
    ('measured', 'number', 'found'),
    [
        (values(-200, -200), '>200', 'equal'),
        (values(-150), '>200', 'inconclusive'),  # ended too early
        (values(120, 130), '>200', 'differs'),
        (values(120, -200), '>200', 'consistent'),  # one did as the paper
        (values(-150, -150), 100, 'differs'),  # not there by then
        (values(-100), 100, 'inconclusive'),
        (values(110, -200), 100, 'inconclusive'),
        (values(118, -200, 130), 100, 'differs'),  # all later
        (values(90, -200), 100, 'consistent'),
        (values(10, 12, -15), 100, 'inconclusive'),  # ended before
        (values(-116), 100, 'inconclusive'),  # a single run
    ],
)
def test_a_bound_is_compared_with_a_bound_alone(measured, number, found):
    assert verdict.judge('rounds_to', measured, paper_number(number), spread(0.1)).verdict == found


@pytest.mark.parametrize(
    ('cells', 'found'),
    [
        ([(85.0, 85.1), (84.0, 84.1), (80.0, 80.1)], 'equal'),
        ([(85.0, 85.1), (85.0, 85.2), (80.0, 80.1)], 'consistent'),  # a tie
        ([(85.0, 85.1), (86.0, 86.1), (80.0, 80.1)], 'differs'),
        ([(85.0, 85.1), (84.8, 84.9)], 'inconclusive'),  # t = 2.8, of 4.3 that two seeds need
        ([(85.0, 85.1), (85.0, 85.2)], 'inconclusive'),
        ([(85.0,), (80.0, 80.1)], 'inconclusive'),
    ],
)
def test_an_order_is_judged_with_its_noise(cells, found):
    steps = verdict.order_steps('accuracy_at', [values(*cell) for cell in cells])
    assert verdict.judge_order(steps) == found


def test_who_never_got_there_is_behind_who_did_before():
    def steps(*cells):
        return verdict.order_steps('rounds_to', [values(*cell) for cell in cells])

    assert steps((20, 22), (-200, -200)) == [(math.inf, 0)]
    assert steps((-200, -200), (20, 22)) == [(-math.inf, 0)]
    assert steps((20, 22), (-10, -10)) == [None]  # ended before
    assert steps((20, -30), (-200, -200)) == [None]
    ((t, needed),) = steps((20, 22), (30, 33))
    expected = scipy.stats.ttest_ind([20, 22], [30, 33], equal_var=False)
    assert (t, needed) == pytest.approx((-expected[0], scipy.stats.t.ppf(0.975, expected.df)))


def test_equal_means_are_rarely_told_apart():
    """Of two methods that are the same, with three seeds each: 5 % or less."""
    rng = np.random.default_rng(0)
    found = [
        verdict.judge_order(
            verdict.order_steps('accuracy_at', [values(*80 + rng.random(3)) for _ in range(2)])
        )
        for _ in range(400)
    ]
    assert found.count('inconclusive') > 0.92 * len(found)


def test_an_effect_is_of_runs_paired_by_their_seeds():
    """Its tolerance is a share of the effect, however small that is beside the level."""
    of = {'0': Measured(85.5), '1': Measured(86.5), '2': Measured(84.5)}
    over = {'0': Measured(85.0), '1': Measured(86.1), '2': Measured(83.9), '3': Measured(70)}
    found = verdict.effects('accuracy_at', of, over)
    assert found == pytest.approx([0.5, 0.4, 0.6])
    assert [
        verdict.judge_effects('accuracy_at', [found], [number])[0].verdict for number in (1.4, 0.8)
    ] == ['differs', 'consistent']
    ratio = verdict.effects('rounds_to', {'0': Measured(20)}, {'0': Measured(80)})
    assert ratio == [4] == [verdict.effect('rounds_to', 20, 80)]
    early = verdict.effects('rounds_to', {'0': Measured(20)}, {'0': Measured(80, True)})
    assert verdict.judge_effects('rounds_to', [early], [4])[0] == ('inconclusive', None, None)


@pytest.mark.parametrize(
    ('apart', 'found'),
    [
        ((0.1, 0.2, 0.3), 'equal'),
        ((1.1, 1.2, 1.3), 'inconclusive'),  # 1.2 +- 0.25
        ((2.1, 2.2, 2.3), 'differs'),
        ((0.1, 0.2), 'inconclusive'),
    ],
)
def test_two_cells_are_the_same_within_a_point(apart, found):
    of = {str(i): Measured(80 + value) for i, value in enumerate(apart)}
    over = {str(i): Measured(80) for i in range(3)}
    assert verdict.judge_same('accuracy_at', of, over).verdict == found


def seeds(cell, *curves):
    return [curve(*those, name=f'{cell}-seed{i}') for i, those in enumerate(curves)]


def test_the_verdicts_of_a_table():
    fast, slow = (0.8, 0.83, 0.86), (0.8, 0.83, 0.84, 0.85)
    runs = {
        'ntk_dfl-iid': seeds('ntk_dfl-iid', fast, fast, fast),
        'dfedavg-iid': seeds('dfedavg-iid', slow, slow, slow),
    }
    listed = [
        {'text': 'NTK-DFL is first', 'order': ['ntk_dfl-iid', 'dfedavg-iid']},
        {'text': 'DFedAvg is first', 'order': ['dfedavg-iid', 'ntk_dfl-iid']},
        {'text': 'so at 0.1', 'order': ['ntk_dfl-alpha0.1', 'dfedavg-iid']},
    ]
    known = {'dfedavg-iid': 'another learning rate'}
    pair = {'of': 'ntk_dfl', 'over': 'dfedavg'}
    table = PUBLISHED | {
        'claims': listed,
        'known': known,
        'not_run': 'two weeks',
        'effects': [pair],
    }
    found = {entry.claim: entry for entry in claims.entries(table, runs)}
    assert {claim: entry.verdict for claim, entry in found.items()} == {
        'ntk_dfl, iid': 'equal',
        'ntk_dfl, alpha0.1': 'not run',
        'dfedavg, iid': 'differs',
        'ntk_dfl over dfedavg, iid': 'differs',  # 4/3, not 18/3
        'NTK-DFL is first': 'equal',
        'DFedAvg is first': 'differs',
        'so at 0.1': 'not run',
    }
    assert found['ntk_dfl over dfedavg, iid'].published == '6'
    assert found['ntk_dfl over dfedavg, iid'].ours.startswith('1.333')
    assert found['dfedavg, iid'].why == 'cause: another learning rate'
    assert found['ntk_dfl, alpha0.1'].why == 'two weeks'
    otherwise = claims.entries(table | {'measured_otherwise': 'of another network'}, runs)
    assert {entry.verdict for entry in otherwise} == {'not run'}
    assert {entry.why for entry in otherwise} == {'of another network'}
    one = table | {'measured_otherwise': {otherwise[0].claim: 'of another network'}}
    first, *rest = claims.entries(one, runs)
    assert first.verdict == 'not run' and [*map(str, rest)] == [
        *map(str, claims.entries(table, runs)[1:])
    ]


def test_a_claim_may_be_of_another_metric_and_of_rounds_of_its_own():
    runs = {'ntk_dfl-iid': seeds('ntk_dfl-iid', (0.8, 0.9, 0.85), (0.8, 0.902, 0.852))}
    two, three = 'ntk_dfl-iid@2', 'ntk_dfl-iid@3'
    listed = [
        {'text': 'it falls', 'metric': 'accuracy_at', 'order': [two, three]},
        {'text': 'it rises', 'metric': 'accuracy_at', 'order': [three, two]},
        {'text': 'so it stays', 'metric': 'accuracy_at', 'round': 2, 'order': ['ntk_dfl-iid', two]},
    ]
    found = claims.entries(PUBLISHED | {'rows': {}, 'claims': listed}, runs)
    assert [entry.verdict for entry in found] == ['equal', 'differs', 'inconclusive']
    assert found[0].ours == '90.1 (35.4) 85.1' and found[0].seeds == '2'


def test_a_claim_may_have_a_number_a_difference_or_a_correlation():
    ours = seeds('ntk_dfl-iid', (0.80, 0.85), (0.80, 0.86), (0.80, 0.85))
    theirs = seeds('dfedavg-iid', (0.70, 0.825), (0.71, 0.835), (0.70, 0.825))
    runs = {'ntk_dfl-iid': ours, 'dfedavg-iid': theirs}
    both = ['ntk_dfl-iid', 'dfedavg-iid']
    table = PUBLISHED | {'metric': 'accuracy_at', 'round': 2, 'rows': {}}
    lead, one = ('ntk_dfl-iid - dfedavg-iid', 'ntk_dfl-iid - ntk_dfl-iid')
    listed = [
        {'text': 'by 2 to 3 points', 'effect': both, 'number': 2.5, 'tolerance': 0.5},
        {'text': 'by 4 points', 'effect': both, 'number': 4},
        {'text': 'a lead', 'order': [lead, one]},
        {'text': 'no lead', 'order': [one, lead]},
        {'text': 'few cells', 'correlation': ['accuracy_at', 'client_accuracy_at'], 'cells': both},
        {'text': 'at a round', 'effect': ['ntk_dfl-iid@1', 'ntk_dfl-iid@2'], 'number': -5.3},
    ]
    found = claims.entries(table | {'claims': listed}, runs)
    assert [e.verdict for e in found[:4]] == ['equal', 'differs', 'equal', 'differs']
    assert found[0].published == '2.5 ± 0.5' and found[0].ours.startswith('2.5 ± ')
    assert (found[4].seeds, found[4].verdict) == ('2 cells', 'inconclusive')
    assert found[5].verdict == 'consistent' and found[5].ours.startswith('-5.333')
    fewer = table | {'metric': 'rounds_to', 'target': 0.6}  # a difference of rounds: less is better
    runs = {
        f'{m}-iid': seeds(f'{m}-iid', *[(0.5,) * r + (0.7,)] * 3)
        for m, r in zip('abc', (2, 9, 20), strict=True)
    }
    order = {'text': 'of differences', 'order': ['b-iid - a-iid', 'c-iid - a-iid']}
    assert claims.entries(fewer | {'claims': [order]}, runs)[0].verdict == 'equal'
    assert {entry.verdict for entry in claims.entries(table | {'claims': listed}, {})} == {
        'not run'
    }


@pytest.mark.parametrize('sign, found', [(1, 'equal'), (-1, 'differs'), (0, 'inconclusive')])
def test_a_correlation_is_that_of_scipy(sign, found):
    rng = np.random.default_rng(0)
    x = rng.normal(size=20)
    y = sign * x + rng.normal(size=20)
    judged, r = verdict.judge_correlation([*zip(x.tolist(), y.tolist(), strict=True)])
    expected = scipy.stats.pearsonr(x, y)
    low, high = expected.confidence_interval(0.95)
    assert r == pytest.approx(expected.statistic)
    assert judged.verdict == found == ('equal' if low > 0 else 'differs' if high < 0 else found)
    broken = verdict.judge_correlation([*zip(x.tolist(), [math.nan, *y[1:].tolist()], strict=True)])
    assert broken[0].verdict == 'inconclusive'


def test_a_claim_has_a_reason_of_its_own_before_that_of_its_cell():
    runs = {'ntk_dfl-iid': seeds('ntk_dfl-iid', *3 * [(0.8, 0.9)])}
    table = PUBLISHED | {
        'metrics': ['rounds_to', 'accuracy_at'],
        'round': 2,
        'columns': ['iid'],
        'rows': {'ntk_dfl': [[8], [50]]},
        'known': {'ntk_dfl, iid rounds': 'of these rounds', 'ntk_dfl-iid': 'of the cell'},
        'unexplained': {'ntk_dfl, iid aggregated': 'of this accuracy'},
    }
    assert [(entry.verdict, entry.why) for entry in claims.entries(table, runs)] == [
        ('differs', 'cause: of these rounds'),
        ('differs', 'of this accuracy'),
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
    known = {entry.claim for entry in claims.entries(published, {})}
    named = {*published.get('known', ()), *published.get('unexplained', ())}
    named |= {published['headline']['claim']} if 'headline' in published else set()
    otherwise = published.get('measured_otherwise')
    named |= {*otherwise} if isinstance(otherwise, dict) else set()
    assert not named - known - {*cells}


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
    fast, slow = (0.8, 0.83, 0.86), (0.8, 0.83, 0.84)
    timed, *rest = seeds('ntk_dfl-iid', fast, fast, fast)
    kept = {
        'ntk_dfl-iid': [timed | {curves.SECONDS: 60}, *rest],
        'dfedavg-iid': seeds('dfedavg-iid', slow, slow, slow),
    }
    curves.save_curves(results / 'paper-one.json', kept, [])
    monkeypatch.setattr(tables, 'FLAGS', flags_of(runs=[str(results)], out=str(tmp_path)))
    assert tables.main(['tables', 'all']) == 0
    text = (tmp_path / 'reproduction.md').read_text()
    numbers = (tmp_path / 'reproduction_numbers.md').read_text()
    # The number of ntk_dfl is of both and listed once; DFedAvg ended before round 18
    assert '| other | numbers | 1 | 0 | 0 | 0 | 2 |' in text
    assert '| paper | numbers | 0 | 0 | 0 | 1 | 3 |' in text
    assert '| [three](reproduction_numbers.md#otherthree) | 1 | 0 | 0 | 0 | 2 |' in text
    assert '| one | dfedavg, iid | 18 | >3, >3, >3 | 3 |  | inconclusive |' in text
    assert '| paper/two | 3 |' in text and 'ntk_dfl, iid' not in text  # which is equal
    assert '| ntk_dfl, iid | 3 | 3 ± 0 | 3 | +0.0 | equal |' in numbers
    assert '| dfedavg, iid | 18 | >3, >3, >3 | 3 |  | inconclusive |' in numbers
    assert numbers.index('## other/three') < numbers.index('2 numbers more stand above.')
    assert '## paper/two' not in numbers and '(results/paper-one.json)' in numbers
    for page in (text, numbers):  # in all, of paper/one
        assert page.count('6 runs, 9 min, not counting 3 of unknown time.') == 1
    assert numbers.count('3 runs, 9 min.') == 1  # what other/three takes of it
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
    for name in ('reproduction.md', 'reproduction_numbers.md'):
        page = (tmp_path / name).read_text()
        assert page == (DOCS / name).read_text(), 'run the command that the page names'
    assert len((DOCS / 'reproduction.md').read_bytes()) < 20_000


def stored_cells():
    """(name, table, method, column, number, runs): rows whose runs are all in the table's file."""
    for name, file in sorted(table_files.known_tables().items()):
        table = json.loads(file.read_text())
        kept = DOCS / 'results' / f'{name.replace("/", "-")}.json'
        if table.get('metric') in ('rounds_to', 'accuracy_at') and kept.exists():
            runs = json.loads(kept.read_text())['runs']
            for method, row in table['rows'].items():
                if not all(f'{method}-{column}' in runs for column in table['columns']):
                    continue
                for column, number in zip(table['columns'], row, strict=True):
                    if isinstance(number, int | float):
                        yield name, table, method, column, number, runs


def by_hand(table, run):
    accuracies = dict(zip(run['round'], run['consensus_accuracy'], strict=True))
    if table['metric'] == 'accuracy_at':
        return 100 * accuracies.get(table['round'], math.nan)
    return next((r for r, a in sorted(accuracies.items()) if a >= table['target']), math.nan)


def test_thirty_cells_are_as_computed_by_hand():
    """Means, pooled deviations and intervals by NumPy-free arithmetic of the stored curves."""
    page = (DOCS / 'reproduction_numbers.md').read_text()
    cells = [cell for cell in stored_cells() if f'## {cell[0]}\n' in page]
    checked = 0
    for name, table, method, column, number, kept in random.Random(0).sample(cells, len(cells)):
        section = page.split(f'## {name}\n')[1].split('\n## ')[0]
        row = next(
            (s for s in section.splitlines() if s.startswith(f'| {method}, {column} |')), None
        )
        values = [by_hand(table, run) for run in kept[f'{method}-{column}']]
        if row is None or any(map(math.isnan, values)):
            continue
        relative, squares, degrees = table['metric'] == 'rounds_to', 0.0, 0
        for other in table['columns']:
            these = [by_hand(table, run) for run in kept[f'{method}-{other}']]
            if len(these) > 1 and not any(map(math.isnan, these)):
                scale = statistics.fmean(these) if relative else 1
                squares += sum((v - statistics.fmean(these)) ** 2 for v in these) / scale**2
                degrees += len(these) - 1
        centre = statistics.fmean(values)
        deviation = math.sqrt(squares / degrees) * (centre if relative else 1)
        half = scipy.stats.t.ppf(0.975, degrees) * deviation / math.sqrt(len(values))
        near = max(0.15 * number, 1) if relative else 1
        off, reach = abs(centre - number), half * math.sqrt(len(values) + 1)
        word = (
            'equal'
            if off + half <= near
            else 'inconclusive'
            if half > 3 * near
            else 'consistent'
            if off <= reach
            else 'differs'
            if off - half > near
            else 'inconclusive'
        )
        _, _, published, ours, count, _, found, _ = (part.strip() for part in row.split('|'))
        mean, _, shown = ours.partition(' ± ')
        assert float(published) == number and int(count) == len(values)
        assert float(mean) == pytest.approx(centre, rel=1e-3)
        assert float(shown) == pytest.approx(half, rel=0.06)
        assert found.split(' [')[0] == word, (name, method, column)
        checked += 1
    assert checked >= 30
