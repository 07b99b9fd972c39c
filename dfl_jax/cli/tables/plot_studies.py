"""The figures of dfl_jax.cli.tables.studies."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from dfl_jax.cli.run.plots import COLOURS, MUTED, plt, tidy
from dfl_jax.cli.run.rundir import Row
from dfl_jax.cli.tables.fits import Points, confidence, power_law
from dfl_jax.cli.tables.studies import FITTED, HEADS, Result

XLABELS = {
    'n': 'number of clients n',
    'rho': 'degree assortativity',
    'round': 'round',
}


def plot_numerical(results: Sequence[tuple[Row, Result]], path: Path) -> None:
    """A panel a study: means over draws with 95 % intervals, and what theory says, dashed."""
    figure, grid = plt.subplots(
        1, len(results), figsize=(1 + 4.2 * len(results), 4.4), squeeze=False, layout='constrained'
    )
    for axes, (study, result) in zip(grid[0], results, strict=True):
        x, y, *theory = HEADS[study['study']]
        _draw(axes, study, result)
        axes.set(title=study['title'], xlabel=XLABELS[x], ylabel=y)
        if study['study'] == 'assortativity':
            axes.set_ylim(0, 1.3 * axes.get_ylim()[1])
        else:
            axes.set(xscale='log', yscale='log')
        if theory:
            axes.plot([], [], color=MUTED, ls='--', label=theory[0])
        axes.legend(frameon=False, fontsize=8)
        tidy(axes)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _draw(axes, study: Row, result: Result) -> None:
    curves = study['study'] == 'evolution'
    for (label, points), colour in zip(result.measured.items(), COLOURS, strict=False):
        law = power_law(points) if study['study'] in FITTED else None
        text = f'{label}: $n^{{{law}}}$' if law else label
        mean = [statistics.mean(values) for values in points.values()]
        if curves:
            axes.plot(points.keys(), mean, color=colour, lw=1.8, label=text)
        else:
            bars = [confidence(values) for values in points.values()]
            axes.errorbar(
                points.keys(),
                mean,
                bars,
                color=colour,
                marker='o',
                ms=4,
                capsize=3,
                ls='',
                label=text,
            )
        if law:
            _dashed(axes, {n: [law.at(n)] for n in points}, colour, ':')
        if label in result.theory:
            _dashed(axes, result.theory[label], colour, '--')


def _dashed(axes, points: Points, colour: str, style: str) -> None:
    xs = sorted(points)
    mean = [statistics.mean(points[x]) for x in xs]
    axes.plot(xs, [m if m > 0 else math.nan for m in mean], color=colour, ls=style, lw=1.1)
