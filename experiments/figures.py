"""The figure of a table: its panels side by side, as PNG.

`table_panels` turns published.json and the runs (see experiments.tables) into what `plot_panels`
writes. Accuracies are in percent here.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from experiments.plots import COLOURS, MUTED, Row, tidy

Runs = Mapping[str, Sequence[Row]]  # by cell
Points = dict[float, list[float]]  # x -> one value a seed
STYLES: dict[str, Row] = {  # what comes first lies below
    'faint': {'lw': 0.8, 'alpha': 0.45},
    'dotted': {'lw': 1.8, 'ls': (0, (1, 1.2))},
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
    'ntk_dfl_compressed': 'NTK-DFL, compressed',
}
CURVES = {
    'consensus_accuracy': 'aggregated model',
    'client_accuracy_mean': 'mean client',
}
XLABELS = {
    'round': 'communication round',
    'mbytes_total': 'megabytes sent by all clients',
    'model_deviation': 'inter-client model deviation',
}


class Line(NamedTuple):
    """What is drawn under one label; empty `points` are left out."""

    label: str
    colour: str
    points: Points
    style: str = 'solid'  # of STYLES


class Panel(NamedTuple):
    """Lines over one x axis.

    kind: curve: lines through means over seeds, bands are their ranges; factor: the same with marks
    and bars; scatter: a dot a run; distribution: a violin for every x, whose points are quantiles.
    x: of XLABELS, or the label of a factor. styles: what those of STYLES mean, for the legend.
    """

    title: str
    kind: str
    x: str
    lines: Sequence[Line]
    styles: Mapping[str, str] = {}


def table_panels(
    published: Row, runs: Runs, measure: Callable[[Sequence[Row]], list[float]]
) -> list[Panel]:
    """The panels of a table's figure as `plot_panels` takes them.

    published, runs: as in experiments.tables. measure: from the runs of a cell to the metric.
    """
    return [_panel(published, panel, runs, measure) for panel in published['panels']]


def _panel(published: Row, panel: Row, runs: Runs, measure: Callable) -> Panel:
    title, styles = panel['title'], panel.get('styles', {})
    if 'column' in panel:
        return Panel(title, 'curve', 'round', _column(published, panel['column'], runs))
    if 'lines' in panel:
        x = panel.get('x', 'round')
        return Panel(title, 'curve', x, _named_curves(panel, x, runs), styles)
    if 'points' in panel:
        return Panel(title, 'scatter', panel['x'], _scattered(published, panel, runs))
    if 'rounds' in panel:
        return Panel(title, 'distribution', 'round', _distributions(panel, runs))
    if 'curves' in panel:
        styles = dict(
            zip(('solid', 'dotted'), (CURVES[name] for name in panel['curves']), strict=False)
        )
    return Panel(title, 'factor', panel['label'], _factors(published, panel, runs, measure), styles)


def _column(published: Row, column: str, runs: Runs) -> list[Line]:
    """The curve of every method; a centralized one has one model, and it leaps every round."""
    centralized = published.get('centralized', ())
    return [
        Line(
            METHODS.get(method, method),
            colour,
            _over_seeds(runs.get(f'{method}-{column}', [])),
            'faint' if method in centralized else 'solid',
        )
        for method, colour in _colours(published).items()
    ]


def _named_curves(panel: Row, x: str, runs: Runs) -> list[Line]:
    """The curves that a panel lists; equal labels are of equal colour."""
    labels = list(dict.fromkeys(line['label'] for line in panel['lines']))
    until = panel.get('until', math.inf)
    return [
        Line(
            line['label'],
            COLOURS[line.get('colour', labels.index(line['label'])) % len(COLOURS)],
            _over_seeds(
                runs.get(line['cell'], []), line.get('curve', 'consensus_accuracy'), x, until
            ),
            line.get('style', 'solid'),
        )
        for line in panel['lines']
    ]


def _factors(published: Row, panel: Row, runs: Runs, measure: Callable) -> list[Line]:
    """The metric, or each of `curves` at the table's round, against the factor."""
    measures = [measure]
    if 'curves' in panel:
        measures = [
            lambda cell, curve=curve: [
                100 * value for run in cell for value in _at(run, curve, published['round'])
            ]
            for curve in panel['curves']
        ]
    lines = []
    for method, colour in _colours(published).items():
        for style, values in zip(('solid', 'dotted'), measures, strict=False):
            found = {x: values(runs.get(f'{method}-{c}', [])) for c, x in panel['columns'].items()}
            points = {x: values for x, values in found.items() if values}
            lines.append(Line(METHODS.get(method, method), colour, points, style))
    return lines


def _scattered(published: Row, panel: Row, runs: Runs) -> list[Line]:
    """Of every method a dot a run: consensus accuracy against x, both at the table's round."""
    lines = []
    for method, colour in _colours(published).items():
        points: Points = {}
        for column in panel['points'].get(method, ()):
            for run in runs.get(f'{method}-{column}', []):
                for x in _at(run, panel['x'], published['round']):
                    accuracies = _at(run, 'consensus_accuracy', published['round'])
                    points.setdefault(x, []).extend(100 * value for value in accuracies)
        lines.append(Line(METHODS.get(method, method), colour, points))
    return lines


def _distributions(panel: Row, runs: Runs) -> list[Line]:
    """The quantiles over clients in the panel's rounds, each a mean over the seeds that have it."""
    lines = []
    for own, colour in zip(panel['cells'], itertools.cycle(COLOURS), strict=False):
        points = {}
        for round in panel['rounds']:
            cell = runs.get(own['cell'], [])
            found = [q for run in cell for q in _at(run, 'client_accuracy_quantiles', round)]
            if found:
                points[round] = [100 * statistics.mean(qs) for qs in zip(*found, strict=True)]
        lines.append(Line(own['label'], colour, points))
    return lines


def _colours(published: Row) -> dict[str, str]:
    """The colour of every method of the table."""
    order = [*METHODS, *(method for method in published['rows'] if method not in METHODS)]
    place = {method: i % len(COLOURS) for i, method in enumerate(order)}
    return {method: COLOURS[place[method]] for method in published['rows']}


def _at(run: Row, name: str, round: int) -> list:
    """The column `name` of a run in a round, as a list of one; empty where it is not evaluated."""
    return [run[name][run['round'].index(round)]] if round in run['round'] else []


def _over_seeds(
    runs: Sequence[Row],
    curve: str = 'consensus_accuracy',
    x: str = 'round',
    until: float = math.inf,
) -> Points:
    """{mean x: the curve of every run}, for the rounds up to `until` that all runs have."""
    rounds = [set(run['round']) for run in runs]
    shared = sorted(set.intersection(*rounds)) if rounds else []
    return {
        statistics.mean(_at(run, x, r)[0] for run in runs): [
            100 * _at(run, curve, r)[0] for run in runs
        ]
        for r in shared
        if r <= until
    }


def plot_panels(panels: Sequence[Panel], path: Path, ylabel: str, target: float | None) -> None:
    """Writes what `draw_panels` draws."""
    figure = draw_panels(panels, ylabel, target)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def draw_panels(panels: Sequence[Panel], ylabel: str, target: float | None) -> Figure:
    """Panels side by side with one y axis and one legend.

    target: accuracy in [0, 1] of a horizontal line, or None.
    """
    figure, grid = plt.subplots(
        1,
        len(panels),
        figsize=(max(6.6, 1.2 + 3.3 * len(panels)), 4.2),
        sharey=True,
        squeeze=False,
        layout='constrained',
    )
    for axes, panel in zip(grid[0], panels, strict=True):
        axes.set(xlabel=XLABELS.get(panel.x, panel.x), title=panel.title)
        if panel.kind == 'distribution':
            _violins(axes, panel)
        else:
            _draw_lines(axes, panel)
            _set_ticks(axes, panel)
        if target is not None:
            axes.axhline(100 * target, color=MUTED, lw=1, ls='--', zorder=1)
        tidy(axes)
    grid[0][0].set_ylabel(ylabel)
    grid[0][0].yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
    if any(panel.kind == 'curve' for panel in panels):
        grid[0][0].set_ylim(bottom=_bottom(panels))
    _legend(figure, panels, target)
    return figure


def _draw_lines(axes, panel: Panel) -> None:
    drawers: Mapping[str, Callable] = {'curve': _curve, 'factor': _factor, 'scatter': _dots}
    for name, style in STYLES.items():
        for line in reversed(panel.lines):
            if line.points and line.style == name:
                drawers[panel.kind](axes, line.points, color=line.colour, **style)


def _curve(axes, points: Points, **style) -> None:
    """The mean over seeds as a line, their range as a band; a lone point as a dot."""
    low, mean, high = _range(points)
    axes.plot(points.keys(), mean, marker='o' if len(points) == 1 else '', ms=5, **style)
    axes.fill_between(points.keys(), low, high, color=style['color'], alpha=0.15, lw=0)


def _factor(axes, points: Points, **style) -> None:
    """The mean over seeds as a marked line, their range as a bar."""
    low, mean, high = _range(points)
    down = [m - v for m, v in zip(mean, low, strict=True)]
    up = [v - m for m, v in zip(mean, high, strict=True)]
    axes.errorbar(points.keys(), mean, (down, up), marker='o', ms=5, capsize=3, **style)


def _dots(axes, points: Points, color: str, **_) -> None:
    pairs = [(x, value) for x, values in points.items() for value in values]
    axes.scatter(
        *zip(*pairs, strict=True), s=48, color=color, alpha=0.85, edgecolors='white', lw=0.8
    )


def _violins(axes, panel: Panel) -> None:
    """Side by side at every x; a bar from quartile to quartile and a dot at the median."""
    ticks = sorted(set().union(*(line.points for line in panel.lines)))
    width = 0.84 / max(len(panel.lines), 1)
    for i, line in enumerate(panel.lines):
        for x, quantiles in line.points.items():
            place = ticks.index(x) + (i - (len(panel.lines) - 1) / 2) * width
            shares = np.linspace(0, 1, len(quantiles))
            clients = np.interp(np.linspace(0, 1, 401), shares, quantiles)
            parts = axes.violinplot(clients, [place], widths=0.92 * width, showextrema=False)
            parts['bodies'][0].set(facecolor=line.colour, edgecolor=line.colour, alpha=0.4)
            low, median, high = np.percentile(clients, (25, 50, 75))
            axes.vlines(place, low, high, color=line.colour, lw=4)
            axes.plot(place, median, 'o', ms=4, color='white', zorder=3)
    axes.set_xticks(range(len(ticks)), ticks)


def _set_ticks(axes, panel: Panel) -> None:
    """Whole rounds, a few of them where they are many; the values of a factor."""
    xs = sorted(set().union(*(line.points for line in panel.lines)))
    if panel.kind == 'factor':
        axes.set_xticks(xs)
    elif panel.x == 'mbytes_total':
        axes.set_xscale('log')
        axes.tick_params(which='minor', colors=MUTED)
    elif panel.x == 'round' and max(xs, default=0) > 50:
        axes.set_xscale('log')
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter('{x:.0f}')
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    elif panel.x == 'round':
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _range(points: Points) -> tuple[list[float], list[float], list[float]]:
    values = points.values()
    return [min(v) for v in values], [sum(v) / len(v) for v in values], [max(v) for v in values]


def _bottom(panels: Sequence[Panel]) -> float:
    """Where the y axis begins: the steep first quarter of a curve may leave the figure."""
    lines = [line for panel in panels for line in panel.lines if line.points]
    curves = [list(line.points.values()) for line in lines]
    return min((5 * (min(values[len(values) // 4]) // 5) for values in curves), default=0)


def _legend(figure, panels: Sequence[Panel], target: float | None) -> None:
    """Labels, what the styles mean, and the target, in as few rows as fit below the panels."""
    handles: dict[str, Line2D] = {}
    for panel in panels:
        for line in panel.lines:
            if line.points:
                handles.setdefault(line.label, _handle(panel, line))
    for style, words in (pair for panel in panels for pair in panel.styles.items()):
        handles.setdefault(words, Line2D([], [], color=MUTED, label=words, **STYLES[style]))
    shown = list(handles.values())
    if target is not None:
        shown.append(Line2D([], [], color=MUTED, ls='--', lw=1, label=f'{100 * target:.4g} %'))
    for rows in range(1, len(shown) + 1):
        legend = figure.legend(
            handles=shown,
            loc='outside lower center',
            ncols=math.ceil(len(shown) / rows),
            frameon=False,
        )
        if legend.get_window_extent().width <= figure.bbox.width:
            return
        if rows < len(shown):
            legend.remove()


def _handle(panel: Panel, line: Line) -> Line2D:
    if panel.kind == 'scatter':
        return Line2D([], [], color=line.colour, marker='o', ms=7, ls='', label=line.label)
    style = {**STYLES[line.style], 'lw': 3}
    return Line2D([], [], color=line.colour, label=line.label, **style)
