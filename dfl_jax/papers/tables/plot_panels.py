"""The panels of a table's figure side by side, as PNG."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from dfl_jax.experiment.run_directory import Row
from dfl_jax.papers.tables.panels import Line, Panel
from dfl_jax.plots import MUTED, plt, tidy
from dfl_jax.results.fits import Points, confidence

STYLES: dict[str, Row] = {  # what comes first lies below
    'faint': {'lw': 0.8, 'alpha': 0.45},
    'law': {'lw': 1.2, 'ls': '--'},
    'dotted': {'lw': 1.8, 'ls': (0, (1, 1.2))},
    'dashed': {'lw': 1.8, 'ls': (0, (3, 1.2))},
    'solid': {'lw': 1.8},
}
XLABELS = {
    'round': 'communication round',
    'mbytes_total': 'megabytes sent by all clients',
    'simulated_seconds': 'simulated seconds',
    'model_deviation': 'inter-client model deviation',
    'minibatches': 'minibatches of a client',
}
COUNTS = ('round', 'minibatches')


def draw_panels(
    panels: Sequence[Panel], ylabel: str, target: float | None, abreast: int | None = None
) -> Figure:
    """Panels side by side with one legend, and one y axis but for those with a ylabel.

    Those without a run are left out where others have some.

    target: accuracy in [0, 1] of a horizontal line, or None. abreast: panels in a row (default
    all).
    """
    panels = [each for each in panels if any(line.points for line in each.lines)] or panels
    width = min(abreast or len(panels), len(panels))
    height = math.ceil(len(panels) / width)
    size = max(6.6, 1.2 + 3.3 * width), 0.6 + 3.6 * height
    figure, grid = plt.subplots(height, width, figsize=size, squeeze=False, layout='constrained')
    for axes in grid.flat[len(panels) :]:
        axes.remove()
    places = grid.flat[: len(panels)]
    _share(panels, places, width, ylabel)
    for axes, panel in zip(places, panels, strict=True):
        axes.set(xlabel=XLABELS.get(panel.x, panel.x), title=panel.title)
        if panel.yscale:
            axes.set_yscale(panel.yscale)
        if panel.kind == 'distribution':
            _violins(axes, panel)
        else:
            _draw_lines(axes, panel)
            _set_ticks(axes, panel)
        for y in (None if target is None else 100 * target, panel.loss):
            if y is not None:
                axes.axhline(y, color=MUTED, lw=1, ls='--', zorder=1)
        tidy(axes)
        if panel.legend and (handles := _handles([panel])):
            axes.legend(handles=list(handles.values()), frameon=False, fontsize='small')
    for axes in places:
        _set_yticks(axes)
    accuracies = [panel for panel in panels if panel.percent and panel.ylabel is None]
    if any(panel.kind == 'curve' for panel in accuracies):
        places[panels.index(accuracies[0])].set_ylim(bottom=_bottom(accuracies))
    _legend(figure, panels, target)
    return figure


def _share(panels: Sequence[Panel], places: Sequence, width: int, ylabel: str) -> None:
    """Labels the y axes; panels without a label of their own share one, labelled once a row."""
    shared = [place for place, panel in enumerate(panels) if panel.ylabel is None]
    for place in shared[1:]:
        places[place].sharey(places[shared[0]])
    for place, panel in enumerate(panels):
        if panel.ylabel is not None:
            places[place].set_ylabel(panel.ylabel)
        elif place % width == 0 or place - 1 not in shared:
            places[place].set_ylabel(ylabel)
        else:
            places[place].tick_params(labelleft=False)


def _draw_lines(axes, panel: Panel) -> None:
    drawers: Mapping[str, Callable] = {'curve': _curve, 'factor': _factor, 'scatter': _dots}
    for name, style in STYLES.items():
        for line in reversed(panel.lines):
            if line.points and line.style == name:
                drawer = _law if name == 'law' else drawers[panel.kind]
                drawer(axes, line, panel.errors, color=line.colour, **style)


def _law(axes, line: Line, _, **style) -> None:
    """A dashed line with its exponent above the right end."""
    ends = [(n, *values) for n, values in line.points.items()]
    axes.plot(*zip(*ends, strict=True), **style)
    look = {'textcoords': 'offset points', 'ha': 'right', 'color': style['color']}
    axes.annotate(line.note, ends[-1], xytext=(-6, 5), **look)


def _curve(axes, line: Line, errors: str, **style) -> None:
    """The mean over seeds as a line, their spread as a band; a lone point as a dot."""
    points = line.points
    low, mean, high = _spread(points, errors)
    axes.plot(points.keys(), mean, marker='o' if len(points) == 1 else '', ms=5, **style)
    axes.fill_between(points.keys(), low, high, color=style['color'], alpha=0.15, lw=0)


def _factor(axes, line: Line, errors: str, **style) -> None:
    """The mean over seeds as a marked line, their spread as a bar."""
    points = line.points
    low, mean, high = _spread(points, errors)
    bars = mean - low, high - mean
    axes.errorbar(points.keys(), mean, bars, marker='o', ms=5, capsize=3, **style)


def _dots(axes, line: Line, _, color: str, **__) -> None:
    pairs = [(x, value) for x, values in line.points.items() for value in values]
    look = {'s': 48, 'color': color, 'alpha': 0.85, 'edgecolors': 'white', 'lw': 0.8}
    axes.scatter(*zip(*pairs, strict=True), **look)


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
        axes.set_xscale(panel.xscale or 'linear')
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xticks(xs, [f'{x:g}' for x in xs] if panel.xscale == 'log' else None)
    elif panel.xscale == 'linear':
        axes.xaxis.set_major_locator(MaxNLocator(5))
    elif panel.x == 'mbytes_total' or (panel.xscale and panel.x not in COUNTS):
        axes.set_xscale('log')
        axes.tick_params(which='minor', colors=MUTED)
    elif panel.xscale or (panel.x == 'round' and max(xs, default=0) > 50):
        axes.set_xscale('log')
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter('{x:.0f}')
        many = max(xs, default=0) >= 1000  # whose labels would touch
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3) if many else (1, 2, 5)))
    elif panel.x == 'round':
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _set_yticks(axes) -> None:
    if axes.get_yscale() != 'log':
        axes.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
        return
    low, high = axes.get_ylim()
    if high < 1000 * low:
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter(StrMethodFormatter('{x:g}'))
    axes.yaxis.set_minor_locator(NullLocator())


def _spread(points: Points, errors: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Low, mean and high over seeds: the range, or the confidence interval of the mean."""
    values = points.values()
    mean = np.array([sum(v) / len(v) for v in values])
    if errors == 'range':
        return np.array(list(map(min, values))), mean, np.array(list(map(max, values)))
    half = np.array(list(map(confidence, values)))
    return mean - half, mean, mean + half


def _bottom(panels: Sequence[Panel]) -> float:
    """Where the y axis begins: the steep first quarter of a curve may leave the figure."""
    lines = [line for panel in panels for line in panel.lines if line.points]
    curves = [list(line.points.values()) for line in lines]
    return min((5 * (min(values[len(values) // 4]) // 5) for values in curves), default=0)


def _legend(figure, panels: Sequence[Panel], target: float | None) -> None:
    """Labels, what the styles mean, and the target, in as few rows as fit below the panels."""
    handles = _handles([panel for panel in panels if not panel.legend])
    for style, words in (pair for panel in panels for pair in panel.styles.items()):
        handles.setdefault(words, Line2D([], [], color=MUTED, label=words, **STYLES[style]))
    shown = list(handles.values())
    if target is not None:
        shown.append(Line2D([], [], color=MUTED, ls='--', lw=1, label=f'{100 * target:.4g} %'))
    for loss in {panel.loss for panel in panels} - {None}:
        shown.append(Line2D([], [], color=MUTED, ls='--', lw=1, label=f'loss {loss:.4g}'))
    for rows in range(1, len(shown) + 1):
        look = {'loc': 'outside lower center', 'ncols': math.ceil(len(shown) / rows)}
        legend = figure.legend(handles=shown, frameon=False, **look)
        if legend.get_window_extent().width <= figure.bbox.width:
            return
        if rows < len(shown):
            legend.remove()


def _handles(panels: Sequence[Panel]) -> dict[str, Line2D]:
    """{label: the handle of its first line}."""
    handles: dict[str, Line2D] = {}
    for panel in panels:
        for line in panel.lines:
            colour, style = line.colour, STYLES[line.style] | {'lw': 3}
            if panel.kind == 'scatter':
                style = {'marker': 'o', 'ms': 7, 'ls': ''}
            elif line.style == 'law':
                colour, style = MUTED, STYLES['law']
            if line.points and line.label not in handles:
                handles[line.label] = Line2D([], [], color=colour, label=line.label, **style)
    return handles
