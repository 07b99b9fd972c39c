"""The panels of a table's figure side by side, as PNG."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

from experiments.figures import Line, Panel, Points
from experiments.plots import MUTED, Row, plt, tidy

STYLES: dict[str, Row] = {  # what comes first lies below
    'faint': {'lw': 0.8, 'alpha': 0.45},
    'dotted': {'lw': 1.8, 'ls': (0, (1, 1.2))},
    'solid': {'lw': 1.8},
}
XLABELS = {
    'round': 'communication round',
    'mbytes_total': 'megabytes sent by all clients',
    'model_deviation': 'inter-client model deviation',
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
