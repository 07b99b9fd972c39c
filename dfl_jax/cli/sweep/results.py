"""The results of a sweep: a line a run, mean and std over seeds, and a picture."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dfl_jax.cli.sweep.group import diverged
from dfl_jax.cli.sweep.plan import Run
from dfl_jax.experiment.run_directory import Row, RunDirectory, shown
from dfl_jax.experiment.table_rows import task_named
from dfl_jax.files import write_atomically
from dfl_jax.plain_text import in_a_line, markdown_table
from dfl_jax.results.curves import checked_columns
from dfl_jax.results.measured import to_target

ACCURACY = 'accuracy'
TARGET = 0.85  # accuracy of the consensus model whose rounds are counted
MEASURES = {  # of a run: (heading, digits); {metric} is that of the task
    'final': ('{metric}', 4),
    'best': ('best', 4),
    'rounds_to_target': (f'rounds to {TARGET:.0%}', 1),
    'client': ('mean client', 4),
    'mbytes': ('MB sent', 1),
}
PRIVATE = {'rounds': ('rounds', 1), 'epsilon': ('epsilon', 4)}  # likewise, where it is claimed


def _measures(results: Sequence[tuple[Run, Row]]) -> dict[str, tuple[str, int]]:
    private = any(row.get('epsilon') is not None for _, row in results)
    return MEASURES | PRIVATE if private else MEASURES


def write_results(runs: Sequence[Run], out: Path) -> str:
    """Writes results.csv, results.md, results.png and, where two flags are swept, map.png of the
    runs that have ended; returns the text of the second."""
    results = [(one, measures(RunDirectory(out / one.name))) for one in runs]
    metrics = {row['metric'] for _, row in results if row['state'] == 'done'} or {ACCURACY}
    metric = ' or '.join(sorted(metrics))
    table = _markdown(results, metric)
    write_atomically(out / 'results.csv', _csv(results, metric))
    write_atomically(out / 'results.md', table)
    _plot(results, metric, out / 'results.png')
    _plot_map(results, metric, out / 'map.png')
    return table


def _plot(results: Sequence[tuple[Run, Row]], metric: str, path: Path) -> None:
    """The picture of the runs that are done, where there are any."""
    curves: dict[str, list] = {}
    lower = False
    for one, row in results:
        if row['state'] == 'done':
            settings = [f'{n} {v}' for n, v in _settings(one).items() if n != 'seed']
            curves.setdefault(', '.join(settings) or 'all', []).append(row['curve'])
            lower = row['lower']
    if curves:
        from dfl_jax.cli.sweep.plot import plot_results

        plot_results(curves, metric, lower, path)


def _plot_map(results: Sequence[tuple[Run, Row]], metric: str, path: Path) -> None:
    """The map of where runs end: the last swept flag across, the others down.

    A field is empty unless all of its seeds are done. None where it would have a single row or
    column, or where runs have different metrics.
    """
    each = [(_settings(one), row) for one, row in results]
    names = [name for name in each[0][0] if name != 'seed']
    *down, across = [n for n in names if len({settings[n] for settings, _ in each}) > 1] or ['']
    done = [row for _, row in each if row['state'] == 'done']
    if not (down and done) or len({row['metric'] for row in done}) > 1:
        return
    places: dict[tuple[str, str], list[Row]] = {}
    for settings, row in each:
        places.setdefault((', '.join(settings[n] for n in down), settings[across]), []).append(row)
    models = {'consensus model': 'final', 'mean client': 'client'}
    cells = {
        whose: {
            place: float(np.mean([row.get(of, np.nan) for row in rows]))
            for place, rows in places.items()
        }
        for whose, of in models.items()
    }
    from dfl_jax.cli.sweep.plot import plot_map

    plot_map(cells, metric, done[0]['lower'], (', '.join(down), across), path)


def measures(directory: RunDirectory) -> Row:
    """What MEASURES name, and `metric`, `settings`, `curve` and `lower`, of a finished run; else
    `state`, why there is nothing."""
    try:
        if reason := diverged(directory):
            return {'state': in_a_line(str(reason))}
        if not directory.done.exists():
            return {'state': 'unfinished'}
        if reason := directory.unfinished():
            raise ValueError(f'{reason}; remove its folder, and the command makes it anew')
        settings = directory.config()['settings']
        task = task_named(settings['task'])
        curves = f'consensus_{task.metric}', f'client_{task.metric}_mean'
        rows = directory.rows()
        run = checked_columns(directory.path.name, rows, (*curves, 'mbytes_total'))
        if not run['round']:
            raise ValueError('it is done and has no evaluation')
    except (ValueError, OSError, LookupError, TypeError, RecursionError) as error:
        return {'state': in_a_line(f'cannot be read: {error}')}
    consensus, clients = (run[name] for name in curves)
    rounds = to_target('round')({'target': TARGET}, run) if task.metric == ACCURACY else None
    return {
        'state': 'done',
        'settings': settings,
        'curve': (run['round'], consensus),
        'lower': task.lower_is_better,
        'metric': task.metric,
        'final': consensus[-1],
        'best': min(consensus) if task.lower_is_better else max(consensus),
        'rounds_to_target': None if rounds is None or rounds.bound else rounds.value,
        'client': clients[-1],
        'mbytes': run['mbytes_total'][-1],
        'rounds': run['round'][-1],
        'epsilon': rows[-1].get('epsilon'),
    }


def _settings(one: Run) -> dict[str, str]:
    return ({'flagfile': Path(one.flagfile).stem} if one.flagfile else {}) | one.values


def _csv(results: Sequence[tuple[Run, Row]], metric: str) -> str:
    text = io.StringIO()
    names = {
        name: name for name in ('run', *_settings(results[0][0]), 'state', *_measures(results))
    }
    lines = csv.DictWriter(text, names, lineterminator='\n', extrasaction='ignore')
    lines.writerow(names | {'final': metric})
    for one, row in results:
        lines.writerow({'run': one.name, **_settings(one), **row})
    return text.getvalue()


def _markdown(results: Sequence[tuple[Run, Row]], metric: str) -> str:
    """A row for every combination of flags but the seed, in the order of the sweep."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for one, row in results:
        values = tuple(v for name, v in _settings(one).items() if name != 'seed')
        groups.setdefault(values, []).append(row)
    names = [name for name in _settings(results[0][0]) if name != 'seed']
    lines, columns = [], _measures(results)
    for values, rows in groups.items():
        done = [row for row in rows if row['state'] == 'done']
        count = str(len(done)) if len(done) == len(rows) else f'{len(done)} of {len(rows)}'
        cells = [_mean_and_std(done, name, digits) for name, (_, digits) in columns.items()]
        lines.append([*values, count, *cells])
    measured = [heading.format(metric=metric) for heading, _ in columns.values()]
    head = [*names, 'runs', *measured]
    lost = [f'{one.name}: {row["state"]}' for one, row in results if row['state'] != 'done']
    notes = [*_defaults_that_differ(results), *lost]
    return '\n\n'.join([markdown_table(head, lines, len(names)), *notes]) + '\n'


def _defaults_that_differ(results: Sequence[tuple[Run, Row]]) -> list[str]:
    """What was not the same for all swept methods, as each has a default of its own."""
    by_method: dict[str, Row] = {}
    for one, row in results:
        if row['state'] == 'done' and 'algorithm' in one.values and not one.flagfile:
            by_method.setdefault(one.values['algorithm'], row['settings'])
    swept = results[0][0].values
    names = dict.fromkeys(name for settings in by_method.values() for name in settings)
    notes = []
    for name in (name for name in names if name not in swept):
        values = {method: shown(settings.get(name)) for method, settings in by_method.items()}
        if len({*values.values()}) > 1:
            each = ', '.join(f'{value} for {method}' for method, value in values.items())
            notes.append(f'By default --{name} is {each}; give it, and it is the same for all.')
    return notes


def _mean_and_std(rows: Sequence[Row], name: str, digits: int) -> str:
    """Mean, and std where there are several; of rounds only where every run got there."""
    values: list[Any] = [row[name] for row in rows]
    if not values or None in values:
        return '-'
    std = f' ± {np.std(values, ddof=1):.{digits}f}' if len(values) > 1 else ''
    return f'{np.mean(values):.{digits}f}{std}'
