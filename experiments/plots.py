"""Curves of runs as PNG."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

Row = dict[str, Any]
Runs = Mapping[str, Sequence[Row]]  # by cell
Points = dict[float, list[float]]  # x -> one value a seed
MUTED = '#7b8794'
COLOURS = (
    '#1b6ca8',
    '#d1495b',
    '#2e8b57',
    '#8d5a97',
    '#e08e45',
    '#35b5c9',
    '#3d4852',
    '#a0a51c',
    '#e377c2',
    '#7a4b2a',
)
STYLES: dict[str, Row] = {  # what comes first lies below
    'faint': {'lw': 0.8, 'alpha': 0.45},
    'solid': {'lw': 1.8},
}
METHODS = {  # as papers print them; a method's place is its colour in every figure
    'ntk_dfl': 'NTK-DFL',
    'dfedavg': 'DFedAvg',
    'dfedavgm': 'DFedAvgM',
    'dfedsam': 'DFedSAM',
    'dispfl': 'DisPFL',
    'dpsgd': 'D-PSGD',
    'ntk_fl': 'NTK-FL',
    'decavg': 'DecAvg',
}


def _tidy(axes) -> None:
    axes.spines[['top', 'right']].set_visible(False)
    axes.grid(axis='y', color='#e4e7eb', linewidth=0.8)
    axes.tick_params(colors=MUTED)
    axes.set_axisbelow(True)


def plot_run(rows: Sequence[Row], path: Path) -> None:
    """Accuracy of the consensus model and of the clients, and what was sent, against the round."""
    rounds = [row['round'] for row in rows]
    column = lambda name: [row[name] for row in rows]  # noqa: E731
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 4), width_ratios=(1.6, 1), layout='constrained'
    )
    mean, std = column('client_accuracy_mean'), column('client_accuracy_std')
    left.fill_between(
        rounds,
        [m - s for m, s in zip(mean, std, strict=True)],
        [m + s for m, s in zip(mean, std, strict=True)],
        color=COLOURS[1],
        alpha=0.15,
        linewidth=0,
        label='one standard deviation over clients',
    )
    left.plot(rounds, column('consensus_accuracy'), color=COLOURS[0], lw=2, label='consensus model')
    left.plot(rounds, mean, color=COLOURS[1], lw=2, label='mean client')
    left.set(xlabel='communication round', ylabel='test accuracy')
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(frameon=False, loc='lower right')
    right.plot(column('mbytes_total'), column('consensus_accuracy'), color=COLOURS[0], lw=2)
    right.set(xlabel='megabytes sent by all clients', ylabel='consensus accuracy')
    for axes in (left, right):
        _tidy(axes)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def table_panels(
    published: Row, runs: Runs, measure: Callable[[Sequence[Row]], list[float]]
) -> list[Row]:
    """The panels of a table's figure as `plot_panels` takes them.

    published, runs: as in experiments.tables. measure: from the runs of a cell to the metric.
    """
    drawn = []
    for panel in published['panels']:
        lines: Row = {name: {} for name in STYLES}
        for method in published['rows']:
            if 'columns' in panel:
                found = {
                    x: measure(runs.get(f'{method}-{column}', []))
                    for column, x in panel['columns'].items()
                }
                lines['solid'][method] = {x: values for x, values in found.items() if values}
                continue
            own = runs.get(f'{method}-{panel["column"]}', [])
            # a centralized method has one model, and it leaps every round
            style = 'faint' if method in published.get('centralized', ()) else 'solid'
            lines[style][method] = _over_seeds(own, 'consensus_accuracy')
        drawn.append({'title': panel['title'], 'label': panel.get('label'), **lines})
    return drawn


def _over_seeds(runs: Sequence[Row], name: str) -> Points:
    """{round: the curve `name` of every run, in percent}, for the rounds that all runs have."""
    curves = [dict(zip(run['round'], run[name], strict=True)) for run in runs]
    shared = set.intersection(*map(set, curves)) if curves else set()
    return {r: [100 * curve[r] for curve in curves] for r in sorted(shared)}


def plot_panels(panels: Sequence[Row], path: Path, ylabel: str, target: float | None) -> None:
    """Panels side by side with one y axis, one colour a method and one legend.

    A panel is {title, label} and for each of STYLES {method: Points}; lines are means over seeds,
    bands and bars ranges. Its label is that of a factor, or None where x is the round.
    """
    figure, grid = plt.subplots(
        1,
        len(panels),
        figsize=(1.2 + 3.3 * len(panels), 4.2),
        sharey=True,
        squeeze=False,
        layout='constrained',
    )
    colours = _colours(panels)
    for axes, panel in zip(grid[0], panels, strict=True):
        draw = _curve if panel['label'] is None else _factor
        for name, style in STYLES.items():
            for method, points in reversed(panel[name].items()):
                if points:
                    draw(axes, points, color=colours[method], **style)
        axes.set(xlabel=panel['label'] or 'communication round', title=panel['title'])
        if panel['label'] is None:
            _round_ticks(axes, log=_longest(panels) > 50)
        else:
            axes.set_xticks(sorted(set().union(*panel['solid'].values())))
        if target is not None:
            axes.axhline(100 * target, color=MUTED, lw=1, ls='--', zorder=1)
        _tidy(axes)
    grid[0][0].set_ylabel(ylabel)
    grid[0][0].yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
    if any(panel['label'] is None for panel in panels):
        grid[0][0].set_ylim(bottom=_bottom(panels))
    _legend(figure, colours, panels, target)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def _drawn(panels: Sequence[Row]) -> list[tuple[str, Points]]:
    """All lines that have a point."""
    lines = [line for panel in panels for name in STYLES for line in panel[name].items()]
    return [(method, points) for method, points in lines if points]


def _colours(panels: Sequence[Row]) -> dict[str, str]:
    """A colour for every method that has a point, those of METHODS first."""
    present = {method for method, _ in _drawn(panels)}
    order = [*METHODS, *sorted(present - METHODS.keys())]
    return {m: c for m, c in zip(order, itertools.cycle(COLOURS), strict=False) if m in present}


def _legend(figure, colours: Mapping[str, str], panels: Sequence[Row], target) -> None:
    """A row of methods, and the target."""
    faint = {method for panel in panels for method in panel['faint']}
    handles = [
        Line2D([], [], color=c, lw=3, alpha=0.45 if m in faint else 1, label=METHODS.get(m, m))
        for m, c in colours.items()
    ]
    if target is not None:
        handles.append(Line2D([], [], color=MUTED, ls='--', lw=1, label=f'{100 * target:.4g} %'))
    figure.legend(handles=handles, loc='outside lower center', ncols=len(handles), frameon=False)


def _curve(axes, points: Points, **style) -> None:
    """The mean over seeds as a line, their range as a band; a lone point as a dot."""
    low, mean, high = _range(points)
    axes.plot(points.keys(), mean, marker='o' if len(points) == 1 else '', ms=5, **style)
    axes.fill_between(points.keys(), low, high, color=style['color'], alpha=0.15, lw=0)


def _round_ticks(axes, log: bool) -> None:
    """Whole rounds; on a log scale, a few of them."""
    if log:
        axes.set_xscale('log')
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter('{x:.0f}')
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)) if log else MaxNLocator(integer=True))


def _factor(axes, points: Points, **style) -> None:
    """The mean over seeds as a marked line, their range as a bar."""
    low, mean, high = _range(points)
    down = [m - v for m, v in zip(mean, low, strict=True)]
    up = [v - m for m, v in zip(mean, high, strict=True)]
    axes.errorbar(points.keys(), mean, (down, up), marker='o', ms=5, capsize=3, **style)


def _range(points: Points) -> tuple[list[float], list[float], list[float]]:
    values = points.values()
    return [min(v) for v in values], [sum(v) / len(v) for v in values], [max(v) for v in values]


def _longest(panels: Sequence[Row]) -> float:
    return max((max(points) for _, points in _drawn(panels)), default=0)


def _bottom(panels: Sequence[Row]) -> float:
    """Where the y axis begins: the steep first quarter of a curve may leave the figure."""
    curves = [list(points.values()) for _, points in _drawn(panels)]
    return min((5 * (min(values[len(values) // 4]) // 5) for values in curves), default=0)
