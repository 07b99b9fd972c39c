"""The figure of a table: from published.json and the runs to panels.

See `command` for both, `plot_panels` for what is drawn of it. Accuracies are in percent
here, and nothing else is.
"""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dfl_jax.experiment.run_directory import Row
from dfl_jax.plots import COLOURS
from dfl_jax.results.curves import CLIENT_LOSS, Run, Runs, line_curve, panel_curves, scale_of
from dfl_jax.results.fits import Points, PowerLaw, fitted_laws, slowdowns
from dfl_jax.results.labels import CURVE_LABELS, METHOD_LABELS
from dfl_jax.results.measured import by_metric, measure, metric_in_words, rounds_in_words


class Line(NamedTuple):
    """What is drawn under one label; empty `points` are left out."""

    label: str
    colour: str
    points: Points
    style: str = 'solid'  # of plot_panels.STYLES
    note: str = ''  # at the last point


class Panel(NamedTuple):
    """Lines over one x axis.

    kind: curve: lines through means over seeds, bands by `errors`; factor: the same with marks
    and bars; scatter: a dot a run; distribution: a violin for every x, whose points are quantiles.
    x: a column of the runs, or the label of a factor. styles: what the lines' styles mean, for
    the legend. errors: range or confidence. xscale, yscale: log or linear; None leaves it to the
    kind. ylabel: of an axis of its own. percent: whether y is. loss: of a horizontal line, or None.
    legend: whether it has its own, for its lines.
    """

    title: str
    kind: str
    x: str
    lines: Sequence[Line]
    styles: Mapping[str, str] = {}
    errors: str = 'range'
    xscale: str | None = None
    yscale: str | None = None
    ylabel: str | None = None
    percent: bool = True
    loss: float | None = None
    legend: bool = False


def table_panels(published: Row, runs: Runs) -> list[Panel]:
    """The panels of a table's figure as dfl_jax.papers.tables.plot_panels takes them."""
    return [_panel(published, panel, runs) for panel in published['panels']]


def _panel(published: Row, panel: Row, runs: Runs) -> Panel:
    x, styles, curves = panel.get('x', 'round'), panel.get('styles', {}), set()
    if 'curves' in panel:
        words = (CURVE_LABELS.get(name, name) for name in panel['curves'])
        styles = dict(zip(('solid', 'dotted'), words, strict=False))
    if {'column', 'lines'} & set(panel):
        kind, lines = 'curve', _curves(published, panel, x, runs)
        curves = set(panel_curves(panel))
    elif 'points' in panel:
        kind, lines = 'scatter', _scattered(published, panel, runs)
    elif 'rounds' in panel:
        kind, lines = 'distribution', _distributions(panel, runs)
    else:
        kind, x = 'factor', panel['label']
        lines = _factors(published, panel, runs)
        lines += _laws(published, panel, runs, lines)
    return Panel(
        panel['title'],
        kind,
        x,
        lines,
        styles,
        errors=published.get('errors', 'range'),
        percent=all('accuracy' in curve for curve in curves),
        loss=published.get('target_loss') if curves == {CLIENT_LOSS} else None,
        **{name: panel[name] for name in ('xscale', 'yscale', 'ylabel', 'legend') if name in panel},
    )


def _curves(published: Row, panel: Row, x: str, runs: Runs) -> list[Line]:
    """The curves that a panel lists, those of equal labels in equal colour, or of every method."""

    def drawn(line: Row, colour: str) -> Line:
        cell, curve = runs.get(line['cell'], []), line_curve(panel, line)
        scale = line.get('scale') or panel['scale'] if x == 'minibatches' else 1
        points = _over_seeds(cell, curve, x, panel.get('until', math.inf), scale)
        return Line(line['label'], colour, points, line.get('style', 'solid'))

    if 'lines' in panel:
        labels = list(dict.fromkeys(line['label'] for line in panel['lines']))
        places = [line.get('colour', labels.index(line['label'])) for line in panel['lines']]
        colours = [COLOURS[place % len(COLOURS)] for place in places]
        return list(map(drawn, panel['lines'], colours))
    faint = published.get('centralized', ())  # these have one model, and it leaps every round
    lines = []
    for method, (label, colour) in _methods(published, panel).items():
        for style, curve in zip(('solid', 'dotted'), panel_curves(panel), strict=False):
            line = {'cell': f'{method}-{panel["column"]}', 'label': label, 'curve': curve}
            lines.append(drawn(line | {'style': 'faint' if method in faint else style}, colour))
    return lines


def _factors(published: Row, panel: Row, runs: Runs) -> list[Line]:
    """The metric, its slowdown, or each of `curves` at the table's round, against the factor."""

    def values(cell: Sequence[Run], curve: str | None) -> list[float]:
        if curve is None:
            part = by_metric(published)[0]
            bounds = part['metric'] != 'loss_to'  # a fit has none, nor have the marks beside it
            return [m.value for m in measure(part, cell) if bounds or not m.bound]
        at_round = [value for run in cell for value in _at(run, curve, published['round'])]
        return [scale_of(curve) * value for value in at_round]

    lines, places = [], panel['columns']
    for method, (label, colour) in _methods(published, panel).items():
        for style, curve in zip(('solid', 'dotted'), panel.get('curves', [None]), strict=False):
            cells = {column: runs.get(f'{method}-{column}', []) for column in places}
            by_column = {column: values(cell, curve) for column, cell in cells.items()}
            if panel.get('slowdown'):
                by_column = slowdowns(by_column, published['slowdown'])
            points = {places[column]: numbers for column, numbers in by_column.items() if numbers}
            lines.append(Line(label, colour, points, style))
    return lines


def _laws(published: Row, panel: Row, runs: Runs, lines: Sequence[Line]) -> list[Line]:
    """The power law of each of the lines that is the metric against the sizes of its fit."""
    if {'curves', 'slowdown'} & set(panel):
        return []
    laws, fitted = fitted_laws(published, runs), []
    for method, line in zip(_methods(published, panel), lines, strict=True):
        sizes = published.get('fit', {}).get(method, {})
        if method in laws and line.points and panel['columns'].items() <= sizes.items():
            fitted.append(law_line(laws[method], line.points, line.colour))
    return fitted


def law_line(law: PowerLaw, points: Points, colour: str) -> Line:
    """A fit from the first to the last of the points."""
    ends = {n: [law.at(n)] for n in (min(points), max(points))}
    return Line('power law', colour, ends, 'law', f'$n^{{{law}}}$')


def _scattered(published: Row, panel: Row, runs: Runs) -> list[Line]:
    """A dot a run for every method: consensus accuracy against x, both at the table's round."""
    lines = []
    for method, (label, colour) in _methods(published, panel).items():
        points: Points = {}
        for column in panel['points'].get(method, ()):
            for run in runs.get(f'{method}-{column}', []):
                for x in _at(run, panel['x'], published['round']):
                    accuracies = _at(run, 'consensus_accuracy', published['round'])
                    points.setdefault(x, []).extend(100 * value for value in accuracies)
        lines.append(Line(label, colour, points))
    return lines


def _distributions(panel: Row, runs: Runs) -> list[Line]:
    """The quantiles over clients in the panel's rounds, each a mean over the seeds that have it."""
    lines = []
    for shown, colour in zip(panel['cells'], itertools.cycle(COLOURS), strict=False):
        points = {}
        for round in panel['rounds']:
            cell = runs.get(shown['cell'], [])
            quantiles = [q for run in cell for q in _at(run, 'client_accuracy_quantiles', round)]
            if quantiles:
                points[round] = [100 * statistics.mean(qs) for qs in zip(*quantiles, strict=True)]
        lines.append(Line(shown['label'], colour, points))
    return lines


def _methods(published: Row, panel: Row) -> dict[str, tuple[str, str]]:
    """Label and colour of every method that the panel shows.

    A method has the same colour in every table, unless another of the panel has it before.
    """
    shown = panel.get('methods') or {method: method for method in published['rows']}
    order = dict.fromkeys([*METHOD_LABELS, *published['rows']])
    places = {method: i % len(COLOURS) for i, method in enumerate(order)}
    labelled, free = {}, dict.fromkeys(range(len(COLOURS)))
    for method, like in shown.items():
        place = places[like] if places[like] in free or not free else next(iter(free))
        free.pop(place, None)
        labelled[method] = METHOD_LABELS.get(like, like), COLOURS[place]
    return labelled


def _at(run: Run, name: str, round: int) -> list:
    """The column `name` of a run in a round, as a list of one; empty where it is not evaluated."""
    return [run[name][run['round'].index(round)]] if round in run['round'] else []


def _over_seeds(runs: Sequence[Run], curve: str, x: str, until: float, scale: float) -> Points:
    """{mean x: the curve of every run}, for the rounds up to `until` that all runs have.

    scale: of a round, where x is minibatches.
    """
    rounds = [set(run['round']) for run in runs]
    shared = sorted(set.intersection(*rounds)) if rounds else []
    return {
        scale * r if x == 'minibatches' else statistics.mean(_at(run, x, r)[0] for run in runs): [
            scale_of(curve) * _at(run, curve, r)[0] for run in runs
        ]
        for r in shared
        if r <= until
    }


def ylabel(published: Row) -> str:
    """The label of the y axis that panels without a label of their own share."""
    shared = [panel for panel in published['panels'] if 'ylabel' not in panel]
    panel = (shared or published['panels'])[0]
    if 'rounds' in panel:
        return 'test accuracy of a client (%)'
    loss = set(panel_curves(panel)) == {CLIENT_LOSS}
    if {'columns', 'curves'} <= set(panel):
        where = f'at {rounds_in_words(published)}'
        return f'mean test loss {where}' if loss else f'test accuracy {where} (%)'
    if {'columns', 'points'} & set(panel):
        return metric_in_words(by_metric(published)[0])
    return 'mean test loss' if loss else 'test accuracy (%)'
