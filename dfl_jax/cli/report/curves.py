"""The chart of a report's curves: a line a group, over axes that the reader chooses."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dfl_jax.cli.report.saved_runs import Group, metric_of
from dfl_jax.experiment.run_directory import Row
from dfl_jax.plots import COLOURS, MUTED
from dfl_jax.results.curves import is_number, scale_of

X = ('round', 'mbytes_total', 'simulated_seconds', 'seconds', 'operations_total')
STYLES = ('solid', 'dashed', 'dotted', 'dotdash')  # of lines whose colours come again
MOST_POINTS = 100_000  # of all curves
TOOLS = 'pan,wheel_zoom,box_zoom,reset,save'  # of a figure


def curves(groups: Sequence[Group], target: float) -> Row | None:
    """What the page draws of the groups with evaluations; None where there are none.

    `x` and `y`: {column: label}; `lines`: the label, colour, style and columns of each group (see
    `over_seeds`); `note`: on evaluations left out; `figures`: the chart.
    """
    groups = [each for each in groups if each.counted]
    if not groups:
        return None
    metrics = {metric_of(each.counted[0].rows)[0]: None for each in groups}
    first = [name for m in metrics for name in (f'consensus_{m}', f'client_{m}_mean')]
    named = dict.fromkeys([*first, *(name for each in groups for name in number_columns(each))])
    points = 3 * len(named) * sum(len(each.counted[0].rows) for each in groups)
    step = -(-points // MOST_POINTS)
    lines: list[Row] = [
        {
            'label': each.label,
            'colour': COLOURS[place % len(COLOURS)],
            'style': STYLES[place // len(COLOURS) % len(STYLES)],
            **over_seeds(each, [*named], step),
        }
        for place, each in enumerate(groups)
    ]
    percent = [v for line in lines for v in line['columns'].get('consensus_accuracy', ())]
    reached = max(percent, default=0) >= 100 * target
    return {
        'x': {name: label_of(name) for name in X if name in named},
        'y': {name: label_of(name) for name in named if name not in X},
        'lines': lines,
        'note': f'One of {step} evaluations is drawn.' if step > 1 else '',
        'figures': figures(lines, 100 * target if reached else None),
    }


def number_columns(group: Group) -> list[str]:
    """The columns that are a number in every evaluation of the group, but those of nothing sent."""
    rows = [row for run in group.counted for row in run.rows]
    names = [name for name in rows[0] if all(is_number(row.get(name)) for row in rows)]
    return [name for name in names if name != 'mbytes_total' or rows[-1][name] > 0]


def label_of(column: str) -> str:
    """A column in words, with its unit."""
    return column.replace('_', ' ') + ' (%)' * (scale_of(column) == 100)


def over_seeds(group: Group, names: Sequence[str], step: int) -> dict[str, dict[str, list[float]]]:
    """The `columns` of a group in the rounds that all its seeds evaluated, one of `step` of them:
    their means over the seeds, and of several the `low` and the `high`."""
    by_round = [{row['round']: row for row in run.rows} for run in group.counted]
    kept = sorted(set.intersection(*map(set, by_round)))[::-step][::-1]  # with the last
    found: dict[str, dict[str, list[float]]] = {'columns': {}, 'low': {}, 'high': {}}
    for name in names:
        if kept and all(is_number(rows[r].get(name)) for rows in by_round for r in kept):
            values = scale_of(name) * np.array([[rows[r][name] for r in kept] for rows in by_round])
            found['columns'][name] = brief(values.mean(axis=0))
            if len(values) > 1:
                found['low'][name], found['high'][name] = brief(values.min(0)), brief(values.max(0))
    return found


def brief(values: np.ndarray, digits: int = 5) -> list[float]:
    """So many significant digits, which are more than a chart shows."""
    return [float(f'{value:.{digits}g}') for value in values.tolist()]


def figures(lines: Sequence[Row], target: float | None) -> Any:
    """Four figures as JSON, linear and logarithmic in x and y.

    The page shows one, whose sources it fills with the columns that the reader chose.
    """
    from bokeh.embed import json_item
    from bokeh.layouts import column
    from bokeh.models import ColumnDataSource, HoverTool, Span
    from bokeh.plotting import figure

    empty: dict[str, list] = {name: [] for name in ('x', 'y', 'low', 'high')}
    drawn: list[Any] = []
    for x, y in (('linear', 'linear'), ('log', 'linear'), ('linear', 'log'), ('log', 'log')):
        look = {'height': 420, 'sizing_mode': 'stretch_width', 'visible': not drawn}
        each = figure(x_axis_type=x, y_axis_type=y, tools=TOOLS, **look)
        each.toolbar.logo = None
        marks = []
        for place, line in enumerate(lines):
            source = ColumnDataSource(empty, name=f'line {place} of chart {len(drawn)}')
            look = {'source': source, 'color': line['colour'], 'name': line['label']}
            each.varea('x', 'low', 'high', source=source, color=line['colour'], alpha=0.15)
            each.line('x', 'y', line_width=2, line_dash=line['style'], **look)
            marks.append(each.scatter('x', 'y', size=5, **look))
        each.add_tools(HoverTool(renderers=marks, name='hover'))
        if target is not None:
            look = {'line_color': MUTED, 'line_dash': 'dotted', 'name': 'target'}
            each.add_layout(Span(location=target, dimension='width', **look))
        drawn.append(each)
    return json_item(column(*drawn, sizing_mode='stretch_width'))
