"""Every number that is shown of runs against pandas and scipy, on runs with random numbers."""

import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from saved_runs import save_run, save_wild_run
from scipy import stats

from dfl_jax import Clients
from dfl_jax import plots as run_plots
from dfl_jax.base import Choices, Info, Mean, Sent
from dfl_jax.cli.report.curves import number_columns, over_seeds
from dfl_jax.cli.report.network import drawing_of
from dfl_jax.cli.report.saved_runs import find_runs, group_runs
from dfl_jax.cli.report.tables import list_of_runs, measured
from dfl_jax.cli.run import train
from dfl_jax.cli.sweep import plot as sweep_plot
from dfl_jax.cli.sweep.plan import Run
from dfl_jax.cli.sweep.results import write_results
from dfl_jax.cli.time import plot as time_plot
from dfl_jax.cli.time.command import row_of
from dfl_jax.cli.time.command import times_table as time_table
from dfl_jax.cli.time.replay import Replay, _operations
from dfl_jax.evaluation import Holdout, evaluation
from dfl_jax.experiment.run_directory import RunDirectory
from dfl_jax.methods import make
from dfl_jax.models import MLP, bind
from dfl_jax.papers.reconstruct.scene import Result, Setting
from dfl_jax.papers.reconstruct.table import COLUMNS as ATTACK_COLUMNS
from dfl_jax.papers.select import final_averaging
from dfl_jax.papers.select import plot as select_plot
from dfl_jax.papers.select.table import report as selection_report
from dfl_jax.papers.tables import panels, plot_panels, studies
from dfl_jax.papers.tables.latex import latex_table
from dfl_jax.papers.theory import table as theory_table
from dfl_jax.papers.theory.convergence import GAMMA_ROOT
from dfl_jax.papers.theory.measure import constants, evaluate
from dfl_jax.progress import Progress, diagnostics, totals
from dfl_jax.results import fits, table
from dfl_jax.results.measured import METRICS
from dfl_jax.tasks import CLASSIFICATION, REGRESSION
from dfl_jax.timing import Counts, Rules, World
from dfl_jax.timing import world as drawn_world
from dfl_jax.topology import schedule

NUMBER = r'-?\d[\d,]*\.?\d*(?:e[-+]?\d+)?'
TARGET = 0.9


def parsed(text):
    """The numbers of a cell, in their order."""
    return [float(each.replace(',', '')) for each in re.findall(NUMBER, text)]


def shows(cell, *expected, digits=4, last=2):
    """A cell has these numbers, up to the digits that it shows; the last one is a spread."""
    found = parsed(cell)
    assert len(found) == len(expected), (cell, expected)
    for place, (number, wanted) in enumerate(zip(found, expected, strict=True)):
        few = last if place and place == len(expected) - 1 else digits
        assert number == pytest.approx(wanted, rel=0.51 * 10 ** (1 - few), abs=1e-9), (
            cell,
            expected,
        )


def markdown(text):
    """The rows of the first table of a Markdown text, by heading."""
    lines = [line for line in text.splitlines() if line.startswith('|')]
    rows = [[cell.strip() for cell in line.strip('|').split(' | ')] for line in lines]
    return [dict(zip([*map(str.strip, rows[0])], row, strict=True)) for row in rows[2:]]


def until_target(frame, column):
    """(the column where a run is first at the target, whether it is but a bound)."""
    there = frame[frame.consensus_accuracy >= TARGET]
    row = there.iloc[0] if len(there) else frame.iloc[-1]
    return row[column], not len(there)


def spread(values):
    """Mean and the deviation of a sample; the value alone where there is one."""
    series = pd.Series(values)
    return (series.mean(), series.std()) if len(series) > 1 else (series.mean(),)


# -------------------------------------------------------------------------------------- the report


def folder_of(tmp_path, seed=0):
    """Groups of 1, 2, 3 and 5 seeds; unfinished runs, a copy of a run, a group with none done."""
    rng, rows, place = np.random.default_rng(seed), {}, 0
    groups = {'dpsgd': 5, 'dfedavg': 2, 'd2': 1, 'sgp': 3, 'dsgt': 3, 'choco_sgd': 2}
    for algorithm, seeds in groups.items():
        for s in range(seeds):
            until = {'dsgt': 5 + s, 'sgp': 4 if s == 1 else None}.get(algorithm)
            lower, every = algorithm == 'choco_sgd', 2 if algorithm == 'dfedavg' and s else 1
            name = f'run{place}'
            place += 1
            written = save_wild_run(
                *(tmp_path / name, rng),
                **{'seed': s, 'until': until, 'every': every, 'lower': lower},
                algorithm=algorithm,
            )
            frame = pd.DataFrame(written).assign(run=name, algorithm=algorithm, seed=s)
            rows[name] = frame.assign(done=until is None)
    # Once more the first seed of a group, which is to count once
    name = f'run{place}'
    again = save_wild_run(tmp_path / name, rng, seed=0, algorithm='dpsgd')
    rows[name] = pd.DataFrame(again).assign(run=name, algorithm='dpsgd', seed=0, done=True)
    return pd.concat(rows.values(), ignore_index=True), rows


def counted(frame):
    """The runs of a group that stand for it: those done, else all; the first of each seed."""
    of = frame[frame.done] if frame.done.any() else frame
    last = of.groupby('run', sort=False)['round'].max().rename('until').reset_index()
    each = of[['run', 'seed']].drop_duplicates().merge(last)
    longest = each.sort_values('until', ascending=False, kind='stable').drop_duplicates('seed')
    return [of[of.run == run] for run in each.run if run in {*longest.run}]


def label_matches(label, algorithm):
    return label.lower().replace('-', '').replace('²', '2').startswith(algorithm[:5].split('_')[0])


@pytest.mark.parametrize('seed', [0, 1, 2])
def test_the_tables_of_a_report(seed, tmp_path):
    frame, _ = folder_of(tmp_path, seed)
    found, broken = find_runs(tmp_path)
    assert not broken
    groups = group_runs(found)
    tables = measured(groups, TARGET)
    bounds = exact = 0
    for place, each in enumerate(groups):
        algorithm = each.runs[0].settings['algorithm']
        runs = counted(frame[frame.algorithm == algorithm])
        assert [run.name for run in each.counted] == [run.run.iloc[0] for run in runs]
        last = pd.DataFrame([run.iloc[-1] for run in runs])
        metric, scale = ('rmse', 1) if algorithm == 'choco_sgd' else ('accuracy', 100)
        unit = 'rmse' if scale == 1 else 'accuracy (%)'
        best = [getattr(r[f'consensus_{metric}'], 'min' if scale == 1 else 'max')() for r in runs]
        expected = {
            ('Summary', f'Aggregated {unit}'): scale * last[f'consensus_{metric}'],
            ('Summary', f'Best {unit}'): scale * pd.Series(best),
            ('Summary', f'Mean client {unit}'): scale * last[f'client_{metric}_mean'],
            ('Summary', 'Sent (MB)'): last.mbytes_total,
            ('Summary', 'Seconds a round'): last.seconds / last['round'],
            ('Traffic', 'All clients'): last.mbytes_total,
            ('Traffic', 'A round'): last.mbytes_total / last['round'],
            ('Traffic', 'Busiest client'): last.mbytes_busiest_client,
            ('Traffic', 'Mean client'): last.mbytes_total / 6,
            ('Simulated time', 'Until the end'): last.simulated_seconds,
            ('Simulated time', 'A round'): last.simulated_seconds / last['round'],
        }
        for (section, heading), values in expected.items():
            cell = tables[section].rows[place][tables[section].head.index(heading)]
            shows(cell, *spread(values.to_numpy()))
        heads = {
            'Summary': 'round',
            'Traffic': 'mbytes_total',
            'Simulated time': 'simulated_seconds',
        }
        for section, column in heads.items():
            head, row = tables[section].head, tables[section].rows[place]
            cell = row[next(i for i, h in enumerate(head) if '90' in h)]
            if metric == 'rmse':
                assert cell == '-'
                continue
            reached = [until_target(run, column) for run in runs]
            if all(bound for _, bound in reached):
                assert cell.startswith('>')
                shows(cell, min(value for value, _ in reached))
            elif any(bound for _, bound in reached):
                shows(cell, *(value for value, _ in reached), last=4)
                assert cell.count('>') == sum(bound for _, bound in reached)
                bounds += 1
            else:
                shows(cell, *spread([value for value, _ in reached]))
                exact += 1
        name, count, *_ = tables['Summary'].rows[place]
        all_of = frame[frame.algorithm == algorithm].run.nunique()
        assert parsed(count) == ([all_of] if len(runs) == all_of else [len(runs), all_of])
        assert ('unfinished' in name) == (not frame[frame.algorithm == algorithm].done.any())
    assert len(groups) == 6 and bounds and exact


def test_the_list_of_runs_has_each_at_its_last_evaluation(tmp_path):
    frame, _ = folder_of(tmp_path)
    shown = list_of_runs(find_runs(tmp_path)[0])
    for row in shown.rows:
        cells = dict(zip(shown.head, row, strict=True))
        run = frame[frame.run == cells['Run']]
        last = run.iloc[-1]
        shows(cells['Rounds'], last['round'])
        shows(cells['Seconds'], last.seconds)
        if run.consensus_accuracy.notna().all():
            shows(cells['Aggregated accuracy (%)'], 100 * last.consensus_accuracy)
            shows(cells['Best accuracy (%)'], 100 * run.consensus_accuracy.max())
            assert cells['Best rmse'] == '-'
        else:
            shows(cells['Best rmse'], run.consensus_rmse.min())
        assert cells['Status'].startswith('finished' if last.done else 'unfinished')


@pytest.mark.parametrize('step', [1, 3])
def test_the_curves_of_a_report(step, tmp_path):
    """Of the rounds that all seeds have, one of so many, always with the last."""
    frame, _ = folder_of(tmp_path)
    for each in group_runs(find_runs(tmp_path)[0]):
        runs = counted(frame[frame.algorithm == each.runs[0].settings['algorithm']])
        shared = sorted(set.intersection(*({*run['round']} for run in runs)))
        kept = [r for i, r in enumerate(shared) if (len(shared) - 1 - i) % step == 0]
        assert kept[-1] == min(run['round'].max() for run in runs)
        drawn = over_seeds(each, number_columns(each), step)
        assert {'round', 'mbytes_total', 'seconds'} <= {*drawn['columns']}
        for name, values in drawn['columns'].items():
            scale = 100 if 'accuracy' in name else 1
            by_round = (
                scale
                * pd.DataFrame(
                    [
                        run.set_index('round')[name]
                        if name != 'round'
                        else pd.Series(run['round'].array, run['round'])
                        for run in runs
                    ]
                )[kept]
            )
            assert values == pytest.approx(by_round.mean().to_numpy(), rel=1e-4), name
            if len(runs) > 1:
                assert drawn['low'][name] == pytest.approx(by_round.min().to_numpy(), rel=1e-4)
                assert drawn['high'][name] == pytest.approx(by_round.max().to_numpy(), rel=1e-4)


# -------------------------------------------------------------------------------------- the sweep


@pytest.mark.parametrize('lower', [False, True])
def test_the_results_of_a_sweep(lower, tmp_path, monkeypatch):
    rng, frames, runs = np.random.default_rng(1), {}, []
    seeds = {'0.01': 5, '0.02': 2, '0.05': 1, '0.1': 3, '0.2': 2}
    for lr, count in seeds.items():
        for seed in range(count):
            name = f'lr={lr},seed={seed}'
            until = 5 if (lr, seed) in (('0.1', 1), ('0.2', 0), ('0.2', 1)) else None
            rows = save_wild_run(
                tmp_path / name, rng, seed=seed, until=until, lower=lower, lr=float(lr)
            )
            frames[name] = pd.DataFrame(rows).assign(lr=lr, done=until is None)
            runs.append(Run(name, None, {'lr': lr, 'seed': str(seed)}))
    (tmp_path / 'lr=0.2,seed=1' / 'diverged.json').write_text('{"error": "round 6: not finite"}')
    curves = {}
    monkeypatch.setattr(sweep_plot, 'plot_results', lambda c, *rest: curves.update(c))
    text = write_results(runs, tmp_path)
    assert 'lr=0.2,seed=1: round 6: not finite' in text and 'lr=0.1,seed=1: unfinished' in text
    metric = 'rmse' if lower else 'accuracy'
    mine = []
    for name, frame in frames.items():
        values = frame[f'consensus_{metric}']
        to, bound = (0, True) if lower else until_at(frame, 0.85)
        mine.append(
            {
                'run': name,
                'lr': frame.lr.iloc[0],
                'done': frame.done.iloc[0],
                metric: values.iloc[-1],
                'best': values.min() if lower else values.max(),
                'rounds_to_target': np.nan if bound else to,
                'client': frame[f'client_{metric}_mean'].iloc[-1],
                'mbytes': frame.mbytes_total.iloc[-1],
            }
        )
    mine = pd.DataFrame(mine).set_index('run')
    mine.loc[~mine.done, [metric, 'best', 'rounds_to_target', 'client', 'mbytes']] = np.nan
    theirs = pd.read_csv(tmp_path / 'results.csv').set_index('run')
    for name in (metric, 'best', 'rounds_to_target', 'client', 'mbytes'):
        np.testing.assert_allclose(theirs[name].astype(float), mine[name], err_msg=name)
    heads = {metric: metric, 'best': 'best', 'rounds_to_target': 'rounds to 85%'}
    heads |= {'client': 'mean client', 'mbytes': 'MB sent'}
    rows = {row['lr']: row for row in markdown(text)}
    assert {*rows} == {*seeds}
    for lr, of in mine.groupby('lr'):
        done = of[of.done]
        count = [len(done)] if len(done) == len(of) else [len(done), len(of)]
        assert parsed(rows[lr]['runs']) == count
        for name, head in heads.items():
            cell, values = rows[lr][head], done[name]
            if values.isna().any() or not len(values):
                assert cell == '-', name
                continue
            digits = 1 if name in ('rounds_to_target', 'mbytes') else 4
            assert parsed(cell) == pytest.approx(spread(values), abs=0.51 * 10**-digits), name
    drawn = {f'lr {lr}': of for lr, of in mine[mine.done].groupby('lr')}
    assert {*curves} == {*drawn}
    for label, of in drawn.items():
        for (rounds, values), run in zip(curves[label], of.index, strict=True):
            assert [*rounds] == [*frames[run]['round']]
            assert [*values] == [*frames[run][f'consensus_{metric}']]


def until_at(frame, target):
    there = frame[frame.consensus_accuracy >= target]
    return (there['round'].iloc[0], False) if len(there) else (0, True)


# -------------------------------------------------------------------------------------- the tables

COLUMNS = ('one', 'two', 'three', 'five')
SEEDS = {'one': 1, 'two': 2, 'three': 3, 'five': 5}


def runs_of_table(seed=0, reached=True):
    """Runs of two methods in four columns, and a frame of them."""
    rng, runs, frames = np.random.default_rng(seed), {}, {}
    for method in ('ntk_dfl', 'dfedavg'):
        for column, seeds in SEEDS.items():
            cell, those = f'{method}-{column}', []
            for s in range(seeds):
                rounds, high = [1, 2, 4, 6, 8, 10], 0.99 if reached else 0.85
                those.append(
                    {
                        'run': f'{cell}-seed{s}',
                        'round': rounds,
                        'consensus_accuracy': rng.uniform(0.5, high, 6).tolist(),
                        'client_accuracy_mean': rng.uniform(0.3, 0.9, 6).tolist(),
                        'local_accuracy_mean': rng.uniform(0.3, 0.9, 6).tolist(),
                        'model_deviation': rng.uniform(0.1, 0.9, 6).tolist(),
                        'client_loss_mean': np.sort(rng.uniform(0.1, 3, 6))[::-1].tolist(),
                        'mbytes_total': np.cumsum(rng.uniform(1, 2, 6)).tolist(),
                        'simulated_seconds': np.cumsum(rng.uniform(1, 2, 6)).tolist(),
                    }
                )
                if reached:
                    those[-1]['consensus_accuracy'][4] = 0.97
            runs[cell], frames[cell] = those, [pd.DataFrame(run) for run in those]
    return runs, frames


def by_pandas(metric, frame, reference):
    """The number of a run, (value, whether a bound)."""
    at = frame.set_index('round').loc[8]
    there = frame[frame.consensus_accuracy >= TARGET]
    last = frame.iloc[-1]
    to = {'rounds_to': 'round', 'megabytes_to': 'mbytes_total', 'seconds_to': 'simulated_seconds'}
    if metric in to:
        return ((there.iloc[0] if len(there) else last)[to[metric]], not len(there))
    if metric == 'loss_to':
        below = frame.client_loss_mean <= 1.0
        if not below.any():
            return last['round'], True
        if below.iloc[0]:
            return frame['round'].iloc[0], False
        x, y = frame.client_loss_mean[::-1], frame['round'][::-1]
        return float(np.interp(1.0, x, y)), False
    a_round = last.mbytes_total / last['round']
    if metric == 'megabytes_saved':
        of = np.mean([f.mbytes_total.iloc[-1] / f['round'].iloc[-1] for f in reference])
        return 100 * (1 - a_round / of), False
    if metric == 'rounds_to_reference':
        level = np.mean([f.set_index('round').client_accuracy_mean[8] for f in reference])
        good = frame[(frame.client_accuracy_mean >= level) & (frame['round'] % 2 == 0)]
        return (good['round'].iloc[0], False) if len(good) else (last['round'], True)
    return {
        'accuracy_at': 100 * at.consensus_accuracy,
        'deviation_at': at.model_deviation,
        'client_accuracy_at': 100 * at.client_accuracy_mean,
        'local_accuracy_at': 100 * at.local_accuracy_mean,
        'gap_at': 100 * (at.consensus_accuracy - at.client_accuracy_mean),
        'loss_at': at.client_loss_mean,
    }[metric], False


def published(metric):
    return {
        'metric': metric,
        'target': TARGET,
        'target_loss': 1.0,
        'round': 8,
        'every': 2,
        'reference': 'dfedavg',
        'columns': [*COLUMNS],
        'rows': {'ntk_dfl': [5, 5, 5, 5], 'dfedavg': [None] * 4},
    }


@pytest.mark.parametrize('reached', [True, False])
@pytest.mark.parametrize('metric', METRICS)
def test_the_cells_of_a_table(metric, reached):
    """Means, deviations of a sample, and the 95 % intervals of Student's t."""
    runs, frames = runs_of_table(reached=reached)
    head, rows = table.head_and_rows(published(metric), runs)
    text = latex_table(head, rows, 'x')
    for row in rows:
        method, cells = row[0], dict(zip(head, row, strict=True))
        for column, seeds in SEEDS.items():
            cell = cells[f'{column} ours']
            if metric == 'rounds_to_reference' and method == 'dfedavg':
                assert cell == '-'
                continue
            reference = frames[f'dfedavg-{column}']
            each = [by_pandas(metric, f, reference) for f in frames[f'{method}-{column}']]
            values, bounds = (np.array(a) for a in zip(*each, strict=True))
            main, _, inside = cell.partition(' (')
            assert parsed(inside)[0] == seeds
            for part in parsed(cell):
                assert f'{part:g}'.lstrip('-') in text
            if bounds.any():
                assert (inside.count(' to ') == 0) and main.count('>') == (
                    1 if bounds.all() else bounds.sum()
                )
                shown = [values.min()] if bounds.all() else values
                shows(main, *shown, last=4)
                continue
            if seeds == 1:
                shows(main, values[0])
                continue
            shows(main, *spread(values))
            half = stats.t.ppf(0.975, seeds - 1) * stats.sem(values)
            low, high = values.mean() - half, values.mean() + half
            digit = 10.0 ** -max(0, 1 - np.floor(np.log10(half))) if half else 0.01
            found = [float(e) for e in re.search(rf'({NUMBER}) to ({NUMBER})', inside).groups()]
            assert found == pytest.approx([low, high], abs=0.51 * digit)
            assert ('≠' in cell) == (method == 'ntk_dfl' and not low <= 5 <= high)


@pytest.mark.parametrize('errors', ['range', 'confidence'])
def test_the_curves_of_a_table(errors):
    """The line is the mean over seeds, to its last point; the band their range or interval."""
    runs, frames = runs_of_table()
    runs['ntk_dfl-three'][1] = {
        name: values if name == 'run' else values[:5]
        for name, values in runs['ntk_dfl-three'][1].items()
    }  # an unfinished one: the rounds that all have
    definition = published('rounds_to') | {
        'errors': errors,
        'panels': [{'title': c, 'column': c, 'methods': {'ntk_dfl': 'ntk_dfl'}} for c in COLUMNS],
    }
    definition['panels'][1]['until'] = 6
    last = {'three': 8, 'two': 6}
    for panel, column in zip(panels.table_panels(definition, runs), COLUMNS, strict=True):
        (line,) = [each for each in panel.lines if each.points]
        rounds = [r for r in (1, 2, 4, 6, 8, 10) if r <= last.get(column, 10)]
        assert [*line.points] == rounds
        values = pd.DataFrame(
            [f.set_index('round').consensus_accuracy[rounds] for f in frames[f'ntk_dfl-{column}']]
        )
        shown = np.array([*line.points.values()]).T
        assert shown == pytest.approx(100 * values.to_numpy())
        drawn = {}
        axes = SimpleNamespace(
            plot=lambda x, y, into=drawn, **_: into.update(x=[*x], mean=[*y]),
            fill_between=lambda x, low, high, into=drawn, **_: into.update(
                low=[*low], high=[*high]
            ),
        )
        plot_panels._curve(axes, line, errors, color='k')
        assert drawn['x'] == rounds
        assert drawn['mean'] == pytest.approx(100 * values.mean().to_numpy())
        low, high = 100 * values.min(), 100 * values.max()
        if errors == 'confidence' and len(values) > 1:
            half = stats.t.ppf(0.975, len(values) - 1) * 100 * values.sem()
            low, high = 100 * values.mean() - half, 100 * values.mean() + half
        assert drawn['low'] == pytest.approx(low.to_numpy())
        assert drawn['high'] == pytest.approx(high.to_numpy())


def test_power_laws_and_slowdowns():
    """Slopes with t intervals of n - 2 degrees of freedom; bounds and empty sizes left out."""
    rng, sizes = np.random.default_rng(3), {8: 3, 16: 2, 32: 4, 64: 0, 128: 1}
    points = {n: (5 * n**0.4 * rng.uniform(0.8, 1.2, k)).tolist() for n, k in sizes.items()}
    x = np.log([n for n, values in points.items() for _ in values])
    y = np.log([value for values in points.values() for value in values])
    slope, intercept = np.polyfit(x, y, 1)
    residual = y - slope * x - intercept
    error = np.sqrt((residual**2).sum() / (len(x) - 2) / ((x - x.mean()) ** 2).sum())
    law = fits.power_law(points)
    assert law.exponent == pytest.approx(slope)
    assert law.error == pytest.approx(stats.t.ppf(0.975, len(x) - 2) * error)
    assert law.at(50) == pytest.approx(np.exp(intercept) * 50**slope)
    assert fits.power_law({8: [1.0], 16: [2.0]}) is None
    rounds = {'a': [4.0, 6.0], 'b': [3.0, 8.0], 'c': [2.0]}
    found = fits.slowdowns(rounds, {'a': 10, 'b': 20, 'c': 40})
    assert found['b'] == pytest.approx([10 * 5 / (20 * 3), 10 * 5 / (20 * 8)])
    assert np.mean(found['a']) == pytest.approx(np.mean([50 / 40, 50 / 60]))
    for values in ([1.0, 2.0], rng.normal(size=3).tolist(), rng.normal(size=7).tolist()):
        low, high = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
        assert fits.confidence(values) == pytest.approx((high - low) / 2)
        text = studies.interval(values)
        shows(text, np.mean(values), (high - low) / 2, last=1)


def test_what_stands_below_a_table():
    runs, frames = runs_of_table()
    definition = published('rounds_to') | {'ours': 'ntk_dfl', 'rows': {}}
    definition['rows'] = {'ntk_dfl': [5, '>7', 5, 5], 'dfedavg': [9, 9, 9, 9]}
    lines, off = table.findings_and_outliers(definition, runs)
    mean = {
        cell: {
            metric: np.mean([by_pandas(metric, f, frames['dfedavg-one'])[0] for f in of])
            for metric in ('rounds_to', 'accuracy_at')
        }
        for cell, of in frames.items()
    }
    for column in COLUMNS:
        ours, other = mean[f'ntk_dfl-{column}'], mean[f'dfedavg-{column}']
        times, points = (line for line in lines if line.startswith(f'{column}:'))
        ratio = other['rounds_to'] / ours['rounds_to']
        assert f'{ratio:.1f} times' in times
        lead = ours['accuracy_at'] - other['accuracy_at']
        assert f'{lead:.1f} points' in points
    for method, number in (('ntk_dfl', 5), ('dfedavg', 9)):
        for column in COLUMNS:
            share = 100 * (mean[f'{method}-{column}']['rounds_to'] / number - 1)
            if method == 'ntk_dfl' and column == 'two':  # the paper has a lower bound of 7
                share = min(100 * (mean[f'{method}-{column}']['rounds_to'] / 7 - 1), 0)
            told = [line for line in off if line.startswith(f'{method} {column}')]
            assert bool(told) == (abs(share) > 25), (method, column, share)
            assert not told or f'({share:+.0f} %)' in told[0]


def test_the_other_panels_of_a_table():
    """A factor, runs as dots, and clients as quantiles, at the round of the table."""
    runs, frames = runs_of_table()
    quantiles = np.random.default_rng(0).random((5, 6, 21))
    for run, each in zip(runs['ntk_dfl-five'], quantiles, strict=True):
        run['client_accuracy_quantiles'] = each.tolist()
    places = dict(zip(COLUMNS, (1.0, 2.0, 3.0, 5.0), strict=True))
    definition = published('rounds_to') | {
        'slowdown': dict(zip(COLUMNS, (4, 5, 6, 7), strict=True)),
        'panels': [
            {'title': 'a', 'columns': places, 'label': 'x', 'curves': ['client_accuracy_mean']},
            {'title': 'b', 'columns': places, 'label': 'x'},
            {'title': 'c', 'columns': places, 'label': 'x', 'slowdown': True},
            {'title': 'd', 'points': {'ntk_dfl': ['five']}, 'x': 'mbytes_total'},
            {'title': 'e', 'rounds': [4, 8], 'cells': [{'cell': 'ntk_dfl-five', 'label': 'y'}]},
        ],
    }
    factor, metric, slow, dots, violins = panels.table_panels(definition, runs)
    for place, method in enumerate(('ntk_dfl', 'dfedavg')):
        of_first = np.mean([by_pandas('rounds_to', f, [])[0] for f in frames[f'{method}-one']])
        for number, column in enumerate(COLUMNS):
            cell, x = frames[f'{method}-{column}'], places[column]
            at = [100 * f.set_index('round').client_accuracy_mean[8] for f in cell]
            assert factor.lines[place].points[x] == pytest.approx(at)
            rounds = [by_pandas('rounds_to', f, [])[0] for f in cell]
            assert metric.lines[place].points[x] == rounds
            found = [4 * of_first / ((4 + number) * r) for r in rounds]
            assert slow.lines[place].points[x] == pytest.approx(found)
    for frame in frames['ntk_dfl-five']:
        at = frame.set_index('round').loc[8]
        shown = dots.lines[0].points[at.mbytes_total]
        assert shown == pytest.approx([100 * at.consensus_accuracy])
    for r, place in ((4, 2), (8, 4)):
        expected = 100 * quantiles[:, place].mean(axis=0)
        assert violins.lines[0].points[r] == pytest.approx(expected)


def test_the_numbers_of_a_study():
    rng = np.random.default_rng(0)
    measured = {'ring': {float(n): rng.uniform(1, 2, 4).tolist() for n in (8, 16, 32)}}
    theory = {'ring': {n: rng.uniform(1, 2, 4).tolist() for n in measured['ring']}}
    study = {'study': 'stabilisation', 'title': 'x'}
    rows = markdown(studies.report(study, studies.Result(measured, theory)))
    for row in rows:
        values, expected = (pd.Series(of['ring'][float(row['n'])]) for of in (measured, theory))
        half = stats.t.ppf(0.975, 3) * values.sem()
        shows(row['rounds'], values.mean(), half, last=1)
        shows(row['by the gap'], expected.mean(), digits=5)
        assert parsed(row['ratio']) == pytest.approx([values.mean() / expected.mean()], abs=6e-4)


# -------------------------------------------------------------------------------- of a single run


@pytest.mark.parametrize('task', [CLASSIFICATION, REGRESSION])
def test_an_evaluation_weighs_every_sample_and_client_alike(task):
    """Both tasks, with fewer samples of the clients, and with validation samples of their own."""
    rng, clients, n, shared = np.random.default_rng(0), 7, 23, 17
    outputs = 3 if task is CLASSIFICATION else 1
    model = bind(MLP(outputs, ()), (4,), task)
    algorithm = make('dpsgd', model, init='independent')
    x = rng.normal(size=(clients, 5, 4)).astype(np.float32)
    mask = np.arange(5) < np.array([5, 1, 0, 3, 4, 2, 5])[:, None]

    def targets(*shape):
        if task is CLASSIFICATION:
            return rng.integers(3, size=shape).astype(np.int32)
        return rng.normal(size=(*shape, 1)).astype(np.float32)

    own = Clients(*map(jnp.asarray, (x, targets(clients, 5), mask)))
    test_x, test_y = rng.normal(size=(n, 4)).astype(np.float32), targets(n)
    state = algorithm.init(jax.random.key(1), own)
    batches, measure, summarise = evaluation(
        algorithm, state, Holdout(test_x, test_y), shared, budget=1e4
    )
    found = summarise(jax.device_get(jax.jit(measure)(state, batches, own)))
    (layer,) = state.params.values()
    weights, bias = np.asarray(layer['kernel'], float), np.asarray(layer['bias'], float)

    def judged(w, b, x, y):
        """(metric, mean loss) of one model."""
        f = x @ w + b
        if task is CLASSIFICATION:
            p = np.exp(f) / np.exp(f).sum(axis=1, keepdims=True)
            return (f.argmax(axis=1) == y).mean(), -np.log(p[np.arange(len(y)), y]).mean()
        errors = ((f - y) ** 2).sum(axis=1)
        return np.sqrt(errors.mean()), errors.mean()

    seen_x, seen_y, seen = map(np.asarray, batches.shared)
    seen_x, seen_y = seen_x[seen], seen_y[seen]
    assert len(seen_y) == shared
    each = np.array([judged(w, b, seen_x, seen_y) for w, b in zip(weights, bias, strict=True)])
    consensus = judged(weights.mean(axis=0), bias.mean(axis=0), test_x, test_y)
    there = [i for i in range(clients) if mask[i].any()]
    alone = [
        judged(weights[i], bias[i], x[i][mask[i]], np.asarray(own.y)[i][mask[i]]) for i in there
    ]
    alone, name = pd.Series([metric for metric, _ in alone]), task.metric
    frame = pd.DataFrame(each, columns=['metric', 'loss'])
    lower = task is REGRESSION
    assert frame.metric.nunique() > 2 and alone.nunique() > 2
    expected = {
        f'consensus_{name}': consensus[0],
        'consensus_loss': consensus[1],
        f'client_{name}_mean': frame.metric.mean(),
        f'client_{name}_std': frame.metric.std(ddof=0),  # over all clients that there are
        f'client_{name}_{"max" if lower else "min"}': frame.metric.agg('max' if lower else 'min'),
        f'client_{name}_p{90 if lower else 10}': frame.metric.quantile(0.9 if lower else 0.1),
        f'client_{name}_quantiles': frame.metric.quantile(np.arange(21) / 20).to_numpy(),
        'client_loss_mean': frame.loss.mean(),
        f'local_{name}_mean': alone.mean(),
        f'local_{name}_std': alone.std(ddof=0),
    }
    of_clients = found.pop('clients')
    assert of_clients[name] == pytest.approx(frame.metric.tolist(), rel=1e-4)
    assert of_clients['loss'] == pytest.approx(frame.loss.tolist(), rel=1e-4)
    assert found.keys() == expected.keys()
    for metric, value in expected.items():
        assert found[metric] == pytest.approx(value, rel=1e-4, abs=1e-6), metric


def test_what_the_last_round_of_a_block_reports():
    rng = np.random.default_rng(0)
    values, chosen = rng.normal(size=(3, 6)), np.array([[1] * 6, [5] * 6, [-1, 2, 2, 7, -1, 2]])
    metrics = {'alpha': np.arange(3.0), 'meme': Mean(values), 'timestep': Choices(chosen)}
    info = Info(rng.normal(size=(3, 6)), metrics, values**2)
    found = diagnostics(info)
    last = pd.Series(chosen[-1])[lambda c: c >= 0]
    counts = {str(k): v for k, v in last.value_counts().items()}
    assert found.pop('timestep_counts') == counts
    assert found == pytest.approx(
        {
            'train_loss_mean': info.loss[-1].mean(),
            'alpha': 2.0,
            'meme_mean': values[-1].mean(),
            'timestep_mean': last.mean(),
        }
    )
    sent = {'a': Sent(np.arange(18).reshape(3, 6), 40)}
    progress = Progress()
    for _ in range(2):
        progress.add(3, 1.5, info._replace(sent=sent))
    progress.clock = [[3.0, 9.0, 4.0], [0.0, 0.0, 0.0]]
    by_client = 2 * np.arange(18).reshape(3, 6).sum(axis=0)
    assert (progress.round, progress.seconds) == (6, 3.0)
    assert totals(progress) == pytest.approx(
        {
            'mbytes_total': 40 * by_client.sum() / 8e6,
            'mbytes_busiest_client': 40 * by_client.max() / 8e6,
            'operations_total': 2 * (values**2).sum(),
            'simulated_seconds': 9.0,
        }
    )


@pytest.mark.parametrize('task', [CLASSIFICATION, REGRESSION])
def test_what_a_run_says_in_the_end(task, tmp_path, capsys):
    lower, name = task is REGRESSION, task.metric
    rows = save_wild_run(tmp_path / 'run', np.random.default_rng(2), lower=lower)
    rows = [row | {f'client_{name}_std': 0.01 * row['round']} for row in rows]
    frame, worst = pd.DataFrame(rows), 'max' if lower else 'min'
    train._report(rows, task, RunDirectory(tmp_path / 'run'))
    told = dict(re.split(' {2,}', line.strip()) for line in capsys.readouterr().out.splitlines())
    last, values = frame.iloc[-1], frame[f'consensus_{name}']
    place = values.idxmin() if lower else values.idxmax()
    for label, expected in {
        'round': [12],
        f'consensus {name}': [values.iloc[-1]],
        'best': [values[place], frame['round'][place]],
        f'mean client {name}': [last[f'client_{name}_mean']],
        'std over clients': [0.12],
        'worst client': [last[f'client_{name}_{worst}']],
    }.items():
        assert parsed(told[label]) == pytest.approx(expected, abs=6e-5), label
    for label, column in (
        ('sent by all clients', 'mbytes_total'),
        ('seconds of rounds', 'seconds'),
        ('simulated seconds', 'simulated_seconds'),
    ):
        assert parsed(told[label]) == pytest.approx([last[column]], abs=0.051), label


def test_the_picture_of_a_run_has_every_evaluation(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr(run_plots.plt, 'close', figures.append)
    rows = save_wild_run(tmp_path / 'run', np.random.default_rng(5), every=3)
    rows = [row | {'client_accuracy_std': 0.1 * row['round']} for row in rows]
    frame = pd.DataFrame(rows)
    run_plots.plot_run(rows, tmp_path / 'x.png', CLASSIFICATION)
    left, right = figures[0].axes
    consensus, mean = left.lines
    for line, x, y in (
        (consensus, 'round', 'consensus_accuracy'),
        (mean, 'round', 'client_accuracy_mean'),
        (right.lines[0], 'mbytes_total', 'consensus_accuracy'),
    ):
        assert [*line.get_xdata()] == frame[x].tolist()
        assert [*line.get_ydata()] == frame[y].tolist()
    (band,) = left.collections
    edges = band.get_paths()[0].vertices
    for r, middle, half in zip(
        frame['round'], frame.client_accuracy_mean, frame.client_accuracy_std, strict=True
    ):
        at = edges[edges[:, 0] == r][:, 1]
        assert (at.min(), at.max()) == pytest.approx((middle - half, middle + half))


def test_the_picture_of_a_sweep_ends_with_the_last_round(tmp_path, monkeypatch):
    figures, rng = [], np.random.default_rng(0)
    monkeypatch.setattr(sweep_plot.plt, 'close', figures.append)
    runs = [
        ([1, 2, 4, 6], rng.random(4)),
        ([2, 4, 6], rng.random(3)),
        ([2, 3, 4, 6], rng.random(4)),
    ]
    sweep_plot.plot_results({'all': runs}, 'accuracy', False, tmp_path / 'x.png')
    frame = pd.DataFrame([dict(zip(*run, strict=True)) for run in runs])[[2, 4, 6]]
    (line,) = figures[0].axes[0].lines
    assert [*line.get_xdata()] == [2, 4, 6]
    assert line.get_ydata() == pytest.approx(frame.mean().to_numpy())
    edges = figures[0].axes[0].collections[0].get_paths()[0].vertices
    for r in (2, 4, 6):
        at = edges[edges[:, 0] == r][:, 1]
        assert (at.min(), at.max()) == pytest.approx((frame[r].min(), frame[r].max()))


@pytest.mark.parametrize('most', [10**6, 50])
def test_the_clients_of_a_report(most, tmp_path):
    """Their values in every evaluation, or in one of several, with the last."""
    rows = save_run(tmp_path / 'run', rounds=7)
    (run,) = find_runs(tmp_path)[0]
    found = drawing_of(run, most)
    kept = [row for row in rows if most > 100 or row['round'] % 4 == 3]
    assert found['rounds'] == [row['round'] for row in kept]
    frame = pd.DataFrame([row['clients'] for row in kept])
    for name, scale in (('accuracy', 100), ('loss', 1)):
        values = scale * np.array(frame[name].tolist())
        assert np.array(found['values'][name]) == pytest.approx(values, rel=1e-3)
        assert found['range'][name] == pytest.approx([values.min(), values.max()], rel=1e-3)


def test_the_picture_of_replays_has_every_evaluation(tmp_path, monkeypatch):
    figures, rng = [], np.random.default_rng(0)
    monkeypatch.setattr(time_plot.plt, 'close', figures.append)
    same = {'world': 'w', 'metric': 'accuracy'}
    rows = [
        same
        | {'run': name, 'accuracy': rng.random(5).tolist(), 'simulated_seconds': [*range(1, 6)]}
        for name in ('a', 'b')
    ]
    time_plot.plot_times(rows, tmp_path / 'x.png')
    for line, row in zip(figures[0].axes[0].lines, rows, strict=True):
        assert [*line.get_xdata()] == row['simulated_seconds']
        assert [*line.get_ydata()] == row['accuracy']
    worlds = {'w': drawn_world(9, 1, speed='lognormal:1:1', latency='lognormal:1:1')}
    time_plot.plot_worlds(worlds, tmp_path / 'y.png')
    for axes, field in zip(
        figures[1].axes, ('speed', 'uplink', 'downlink', 'latency'), strict=False
    ):
        assert [*axes.lines[0].get_ydata()] == sorted(getattr(worlds['w'], field))
        assert [*axes.lines[0].get_xdata()] == [*np.linspace(0, 100, 9)]


def test_the_picture_of_final_averaging(tmp_path, monkeypatch):
    figures, rng = [], np.random.default_rng(0)
    monkeypatch.setattr(select_plot.plt, 'close', figures.append)
    orders = {how: {'accuracies': rng.random((4, 8)).tolist()} for how in select_plot.ORDERS}
    topologies = [
        {'degree': d, 'neighbours': n, 'mean': rng.random(2).tolist()}
        for d in (2, 4)
        for n in ('all', 'better half')
    ]
    selection = {'orders': orders, 'target': 0.5, 'client_accuracies': rng.random(8).tolist()}
    selection |= {'average_of_all': 0.7, 'final_topologies': topologies}
    select_plot.plot_select(selection, tmp_path / 'x.png')
    growing, _, degrees = figures[0].axes
    for line, how in zip(growing.lines, select_plot.ORDERS, strict=False):
        frame = 100 * pd.DataFrame(orders[how]['accuracies'])
        assert [*line.get_xdata()] == [*range(1, 9)]
        assert [*line.get_ydata()] == pytest.approx(frame.mean().tolist())
    for place, (n, step) in enumerate((n, step) for n in ('all', 'better half') for step in (0, 1)):
        means = [100 * row['mean'][step] for row in topologies if row['neighbours'] == n]
        assert [*degrees.lines[place].get_xdata()] == [2, 4]
        assert [*degrees.lines[place].get_ydata()] == pytest.approx(means)


# -------------------------------------------------------------------------------------- the clock


def replayed(rng, rounds=6, clients=5):
    graphs = schedule('complete', clients, rounds, seed=0)
    counts = Counts(
        rng.uniform(1e6, 2e6, (rounds, clients)), rng.uniform(1e9, 2e9, (rounds, clients))
    )
    evaluated = np.array([2, 4, 5, 6])
    values = np.array([0.5, 0.91, 0.7, 0.95])
    return Replay('a', graphs, counts, Rules(), evaluated, 'accuracy', values, 0, None)


def test_the_seconds_and_joules_of_a_replay():
    """Where all wait for all: the longest work, then the slowest message; a uplink is shared."""
    run = replayed(np.random.default_rng(0))
    clients = 5
    world = World(
        np.full(clients, 1e10), np.full(clients, 5e6), np.full(clients, 1e9), np.full(clients, 0.05)
    )
    seconds = run.seconds(world, barrier=True)
    # A message is a quarter of what is sent, on a quarter of the uplink
    of_round = (run.counts.flops / 1e10 + 0.05 + run.counts.bits / 5e6).max(axis=1)
    frame = pd.DataFrame({'round': range(1, 7), 'seconds': of_round.cumsum()}).set_index('round')
    assert seconds == pytest.approx(frame.seconds[run.rounds].to_numpy(), rel=1e-6)
    now, uplink_free, ends = np.zeros(clients), np.zeros(clients), []
    for work, bits in zip(run.counts.flops / 1e10, run.counts.bits / 5e6, strict=True):
        ready = now + work
        leaves = np.maximum(ready, uplink_free)
        arrives, uplink_free = leaves + 0.05 + bits, leaves + bits
        now = np.array([max(ready[i], *np.delete(arrives, i)) for i in range(clients)])
        ends.append(now)
    assert np.ptp(ends[-1]) > 1e-3
    alone = run.seconds(world)
    assert alone == pytest.approx(np.max(ends, axis=1)[run.rounds - 1], rel=1e-6)
    joules = run.joules(1e-11, 1e-7)
    spent = (run.counts.flops * 1e-11 + run.counts.bits * 1e-7).sum(axis=1).cumsum()
    assert joules == pytest.approx(spent[run.rounds - 1])
    goals = [0.6, 0.9, 0.99]
    row = row_of(run, 'w', goals, seconds, joules)
    (cells,) = markdown(time_table([row]))
    assert cells['rounds'] == '6'
    shows(cells['seconds a round'], seconds[-1] / 6)
    shows(cells['accuracy'], 0.95)
    for goal, place in (('0.6', 1), ('0.9', 1), ('0.99', None)):
        for head, values in ((f's to {goal}', seconds), (f'kJ to {goal}', joules / 1e3)):
            if place is None:
                assert cells[head] == '-'
            else:
                shows(cells[head], values[place])


def test_the_operations_between_two_evaluations_are_spread_evenly():
    rows = [{'round': r, 'operations_total': t} for r, t in ((2, 6.0), (3, 16.0), (7, 20.0))]
    found = _operations(rows, 4, None)
    assert found.tolist() == [3, 3, 10, 1, 1, 1, 1]
    assert found.cumsum()[[1, 2, 6]].tolist() == [6, 16, 20]
    bare = [{'round': 3}]
    assert _operations(bare, 4, 5.0).tolist() == [20, 20, 20] and _operations(bare, 4, None) is None


# ----------------------------------------------------------------------- select, theory, the attack


def test_every_average_of_final_averaging_is_evaluated_on_the_test_half():
    clients, seed, target, rng = 12, 3, 0.4, np.random.default_rng(0)
    model = bind(MLP(3, ()), (4,))
    algorithm = make('dfedavg', model, init='independent')
    own = Clients(
        jnp.zeros((clients, 1, 4)), jnp.zeros((clients, 1), int), jnp.ones((clients, 1), bool)
    )
    state = jax.jit(algorithm.init)(jax.random.key(0), own)
    x, y = rng.normal(size=(81, 4)).astype(np.float32), rng.integers(3, size=81).astype(np.int32)
    experiment = SimpleNamespace(
        algorithm=algorithm,
        model=model,
        test=Holdout(x, y),
        parts=[np.arange(1)] * clients,
        attackers=None,
    )
    found = final_averaging.examine(experiment, state, 5, seed, target, progress=False)
    (layer,) = state.params.values()
    weights = np.concatenate([layer['kernel'], np.asarray(layer['bias'])[:, None]], axis=1)
    ranking, reported = final_averaging.split(Holdout(x, y), seed)

    def accuracy(half, shares):
        """Of the average with these shares of the clients."""
        mean = np.tensordot(np.asarray(shares, float), weights, 1)
        inputs = np.concatenate([half.x, np.ones((len(half.y), 1))], axis=1)
        return ((inputs @ mean).argmax(axis=1) == half.y).mean()

    one = np.eye(clients)
    ranks = np.array([accuracy(ranking, row) for row in one])
    each = pd.Series([accuracy(reported, row) for row in one])
    assert found['client_accuracies'] == pytest.approx(each.tolist(), abs=1e-5)
    assert each.nunique() > 5 and np.ptp(ranks) > 0.1
    assert (found['validation_samples'], found['test_samples']) == (40, 41)
    assert found['average_of_all'] == pytest.approx(accuracy(reported, one.mean(axis=0)), abs=1e-5)
    ways = {'best_to_worst': np.argsort(-ranks, kind='stable'), 'ring': np.arange(clients)}
    ways['worst_to_best'] = np.argsort(ranks, kind='stable')
    for how, order in ways.items():
        curve = [accuracy(reported, one[order[:n]].mean(axis=0)) for n in range(1, clients + 1)]
        (drawn,) = found['orders'][how]['accuracies']
        assert drawn == pytest.approx(curve, abs=1e-5)
        there = np.array(curve) >= target
        first = int(there.argmax()) + 1 if there.any() else None
        below = np.flatnonzero(~there).max(initial=-1) + 2
        stays = int(below) if below <= clients else None
        assert found['orders'][how]['reach'] == [first] and found['orders'][how]['stay'] == [stays]
    assert len(found['orders']['random']['accuracies']) == 20
    assert [row['degree'] for row in found['final_topologies']] == [5, 5, 10, 10]
    for row in found['final_topologies']:
        links = schedule('regular', clients, 1, seed=seed, degree=row['degree']).members[0]
        matrix = np.zeros((clients, clients))
        for i, (_, *others) in enumerate(links):
            ordered = sorted(others, key=lambda j: -ranks[j])
            half = row['neighbours'] == 'better half'
            heard = [i, *(ordered[: (len(others) + 1) // 2] if half else others)]
            matrix[i, heard] = 1 / len(heard)
        for step in (0, 1):
            models = pd.Series(
                [accuracy(reported, v) for v in np.linalg.matrix_power(matrix, step + 1)]
            )
            assert row['mean'][step] == pytest.approx(models.mean(), abs=1e-5)
            assert row['worst'][step] == pytest.approx(models.min(), abs=1e-5)
            assert models.max() > models.min() or row['degree'] == 10
        assert row['messages_an_averaging'] == np.sum(matrix > 0) - clients


def test_the_numbers_of_final_averaging():
    rng, clients, target = np.random.default_rng(2), 12, 0.8
    own = rng.uniform(0.4, 0.9, clients).round(5).tolist()
    orders = {}
    for how, draws in (('best_to_worst', 1), ('random', 6), ('worst_to_best', 1), ('ring', 1)):
        curves = rng.uniform(0.5, 0.95, (draws, clients)).round(5)
        curves[:, -1] = 0.83
        curves[0, :] = curves[0] - 0.4 * (how == 'random')  # one that never gets there
        orders[how] = {
            'reach': [final_averaging.reaches(curve, target) for curve in curves.tolist()],
            'stay': [final_averaging.stays(curve, target) for curve in curves.tolist()],
            'accuracies': curves.tolist(),
        }
    topologies = [
        {
            'degree': degree,
            'neighbours': neighbours,
            'mean': rng.uniform(0.5, 0.9, 2).tolist(),
            'worst': rng.uniform(0.3, 0.5, 2).tolist(),
        }
        for degree in (5, 10)
        for neighbours in ('all', 'better half')
    ]
    names = {'algorithm': 'dpsgd', 'dataset': 'digits', 'round': 9, 'target': target}
    text = selection_report(
        names
        | {'validation_samples': 40, 'test_samples': 41, 'client_accuracies': own}
        | {'average_of_all': 0.83, 'orders': orders, 'final_topologies': topologies}
    )
    head = text.split('The mean client has')[1].split('\n')[0]
    series = 100 * pd.Series(own)
    assert parsed(head) == pytest.approx([series.mean(), series.min(), series.max(), 83], abs=0.051)
    assert f'takes {clients * (clients - 1)} at once' in text and f'takes {clients - 1}' in text
    labels = {
        'best_to_worst': 'best to worst',
        'worst_to_best': 'worst to best',
        'random': 'random',
    }
    labels['ring'] = 'ring, by client number'
    first, second = (markdown('\n'.join(part)) for part in tables_of(text))
    rows = {row['order']: row for row in first}
    for how, curves in orders.items():
        row, frame = rows[labels[how]], 100 * pd.DataFrame(curves['accuracies'])
        for n in (1, 3, 10):
            shows(row[str(n)], round(frame[n - 1].mean(), 1), digits=6)
        shows(row['all'], round(frame[clients - 1].mean(), 1), digits=6)
        first_there = (frame >= 80).apply(
            lambda c: c.to_numpy().argmax() + 1 if c.any() else None, 1
        )
        below = (frame < 80).apply(
            lambda c: (np.flatnonzero(c.to_numpy()) + 1).max() + 1 if c.any() else 1, 1
        )
        stays = below.where(below <= clients)
        for cell, counts in (
            (row['clients to reach 80 %'], first_there),
            (row['to stay there'], stays),
        ):
            got = counts.dropna().astype(float)
            if not len(got):
                assert cell == 'never'
            elif len(counts) == 1:
                assert parsed(cell) == [got.iloc[0]]
            else:
                never = [len(counts) - len(got)] * (len(got) < len(counts))
                expected = [got.mean(), got.min(), got.max(), *never]
                assert parsed(cell) == pytest.approx(expected, abs=0.051)
    for row, degree in zip(second, (5, 10), strict=True):
        for place, times in enumerate(('once', 'twice')):
            for neighbours in ('all', 'better half'):
                (of,) = [
                    t for t in topologies if (t['degree'], t['neighbours']) == (degree, neighbours)
                ]
                expected = [100 * of['mean'][place], 100 * of['worst'][place]]
                assert parsed(row[f'{neighbours}, {times}']) == pytest.approx(expected, abs=0.051)


def tables_of(text):
    """The lines of each Markdown table of a text."""
    tables = [[]]
    for line in text.splitlines():
        if line.startswith('|'):
            tables[-1].append(line)
        elif tables[-1]:
            tables.append([])
    return [each for each in tables if each]


def test_the_constants_of_the_theorem_are_those_of_all_rounds():
    rng = np.random.default_rng(0)
    names = ('smoothness_max', 'delta_ntk_max', 'gradient_norm_max', 'gradient_variance', 'lambda')
    names += ('loss', 'loss_after', 'rate', 'timestep_mean', 'consensus_gradient_norm_sq')
    names += ('delta_ntk_mean', 'smoothness_mean', 'spectral_gap', 'consensus_accuracy')
    frame = pd.DataFrame(rng.uniform(0.2, 0.9, (7, len(names))), columns=[*names])
    rows = frame.to_dict('records')
    lowest = min(frame.loss.min(), frame.loss_after.iloc[-1])
    assert constants(rows) == pytest.approx(
        {
            'timesteps': frame.timestep_mean.mean(),
            'rounds': 7,
            'smoothness': frame.smoothness_max.max(),
            'delta': frame.delta_ntk_max.max(),
            'gradient_norm': frame.gradient_norm_max.max(),
            'gradient_variance': frame.gradient_variance.max(),
            'second_modulus': frame['lambda'].max(),
            'descent': frame.loss.iloc[0] - lowest,
        }
    )
    own, admissible = evaluate(rows).values()
    assert own.eta == pytest.approx(frame.rate.mean())
    reach = own.eta * frame.timestep_mean.mean() * frame.smoothness_max.max()
    assert own.reach == pytest.approx(reach)
    assert admissible.reach < GAMMA_ROOT and admissible.gamma > 0
    frame['round'], frame['symmetric'] = range(1, 8), True
    rows = frame.to_dict('records')
    of_rounds, of_terms = tables_of(theory_table.report(rows, evaluate(rows)))
    for row, told in zip(rows, markdown('\n'.join(of_rounds)), strict=True):
        for head, column in theory_table.COLUMNS.items():
            shows(told[head], row[column])
    told = {row['Eq. (8)']: row['admissible step'] for row in markdown('\n'.join(of_terms))}
    least = frame.consensus_gradient_norm_sq.min()
    shows(told['measured: least squared gradient'], least)
    shows(told['**bound**'], sum(admissible.numerators) / admissible.gamma)
    for field, label in theory_table.TERMS.items():
        summand = getattr(admissible.numerators, field)
        term, share = parsed(told[label])
        assert term == pytest.approx(summand / admissible.gamma, rel=6e-4)
        assert share == pytest.approx(100 * summand / sum(admissible.numerators), abs=0.006)


def test_the_numbers_of_an_attack():
    """Over all the images that there are, as the text below the table says."""
    rng = np.random.default_rng(0)
    psnr, ssim = pd.Series(rng.uniform(5, 50, 6)), pd.Series(rng.uniform(0, 1, 6))
    images = np.zeros((6, 2, 2, 1))
    result = Result(
        *('initial', Setting(0.9, 6, None), 0.123, 4, 'x', 'all', images),
        *(psnr.to_numpy(), ssim.to_numpy()),
    )
    cells = {head: shown(result) for head, shown in ATTACK_COLUMNS.items()}
    assert parsed(cells['PSNR (dB)']) == pytest.approx([psnr.mean(), psnr.std(ddof=0)], abs=0.051)
    assert parsed(cells['SSIM']) == pytest.approx([ssim.mean(), ssim.std(ddof=0)], abs=0.0006)
    assert parsed(cells['entries lost']) == [12.3]
    assert parsed(cells['label by argmax f']) == [4, 6]
    assert cells['setting'] == 'sparsity 0.9, 6 bits'
