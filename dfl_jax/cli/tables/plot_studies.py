"""The figures of dfl_jax.cli.tables.studies."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from dfl_jax.cli.run.plots import COLOURS, plt
from dfl_jax.cli.run.rundir import Row
from dfl_jax.cli.tables.fits import power_law
from dfl_jax.cli.tables.panels import Line, Panel
from dfl_jax.cli.tables.plot_panels import draw_panels
from dfl_jax.cli.tables.studies import FITTED, HEADS, Result

XLABELS = {'n': 'number of clients n', 'rho': 'degree assortativity'}


def plot_numerical(results: Sequence[tuple[Row, Result]], path: Path) -> None:
    """A panel a study: means over draws with 95 % intervals, and what theory says, dashed."""
    figure = draw_panels([_panel(study, result) for study, result in results], '', None)
    for axes, (study, _) in zip(figure.axes, results, strict=True):
        if study['study'] == 'assortativity':  # where small differences are none
            axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _panel(study: Row, result: Result) -> Panel:
    x, y, *theory = HEADS[study['study']]
    lines = []
    for (label, points), colour in zip(result.measured.items(), COLOURS, strict=False):
        lines.append(Line(label, colour, points))
        if study['study'] in FITTED and (law := power_law(points)):
            ends = {n: [law.at(n)] for n in (min(points), max(points))}
            lines.append(Line('power law', colour, ends, 'law', f'$n^{{{law}}}$'))
        if expected := result.theory.get(label):
            means = {place: [statistics.mean(expected[place])] for place in sorted(expected)}
            lines.append(Line(theory[0], colour, means, 'law'))
    scale = 'linear' if study['study'] == 'assortativity' else 'log'
    return Panel(
        study['title'],
        'curve' if study['study'] == 'evolution' else 'factor',
        XLABELS.get(x, x),
        lines,
        errors='confidence',
        xscale=scale,
        yscale=scale,
        ylabel=y,
        percent=False,
        legend=True,
    )
