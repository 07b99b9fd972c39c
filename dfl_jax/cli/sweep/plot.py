"""results.png: how every combination of the swept flags learns; map.png: where each ends."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from dfl_jax.plots import COLOURS, MaxNLocator, plt, save, tidy

Curve = tuple[Sequence[int], Sequence[float]]  # rounds, and the metric in each of them


def plot_results(
    curves: Mapping[str, Sequence[Curve]], metric: str, lower: bool, path: Path
) -> None:
    """Draws the mean over seeds of each combination, and the range of its seeds.

    curves: of the runs that are done, one a seed, by what tells the combination. metric: of the
    consensus model. lower: whether less of it is better; of many combinations the best are drawn.
    """
    means = {label: np.mean([values[-1] for _, values in runs]) for label, runs in curves.items()}
    best = sorted(curves, key=means.__getitem__, reverse=not lower)[: len(COLOURS)]
    figure, axes = plt.subplots(figsize=(8, 4.5), layout='constrained')
    for label, colour in zip(best, COLOURS, strict=False):
        shared = sorted(set.intersection(*(set(rounds) for rounds, _ in curves[label])))
        at = [dict(zip(*curve, strict=True)) for curve in curves[label]]
        values = np.array([[run[round] for round in shared] for run in at])
        axes.fill_between(
            shared, values.min(axis=0), values.max(axis=0), color=colour, alpha=0.15, linewidth=0
        )
        dot = 'o' if len(shared) == 1 else ''  # which no line would show
        shown = label[:60].replace('$', r'\$')
        axes.plot(shared, values.mean(axis=0), color=colour, label=shown, marker=dot)
    axes.set(xlabel='communication round', ylabel=f'{metric} of the consensus model')
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if len(best) < len(curves):
        axes.set_title(f'the best {len(best)} of {len(curves)} settings', fontsize=10)
    tidy(axes)
    figure.legend(loc='outside right center', frameon=False)
    save(figure, path)


def plot_map(
    cells: Mapping[str, Mapping[tuple[str, str], float]],
    metric: str,
    lower: bool,
    corner: tuple[str, str],
    path: Path,
) -> None:
    """Draws the last values of a metric as maps, one a model, with a field for each two settings.

    cells: (down, across) -> mean over seeds, by whose it is; fields that are not finite stay empty.
    lower: whether less of it is better. corner: what is down, and what across.
    """
    known = dict.fromkeys(place for values in cells.values() for place in values)
    down, across = (list(dict.fromkeys(each)) for each in zip(*known, strict=True))
    fields = {
        whose: np.array([[values.get((d, a), np.nan) for a in across] for d in down])
        for whose, values in cells.items()
    }
    least, most = (of([of(f) for f in fields.values()]) for of in (np.nanmin, np.nanmax))
    size = 2.5 + len(cells) * (0.75 * len(across) + 0.6), 2 + 0.3 * len(down)
    figure, panels = plt.subplots(1, len(cells), figsize=size, sharey=True, layout='constrained')
    for axes, (whose, field) in zip(panels, fields.items(), strict=True):
        colours = 'viridis_r' if lower else 'viridis'
        image = axes.imshow(field, cmap=colours, vmin=least, vmax=most, aspect='auto')
        for (row, column), value in np.ndenumerate(field):
            if np.isfinite(value):
                dark = image.norm(value) < 0.5
                colour = 'white' if dark != lower else 'black'
                axes.text(column, row, f'{value:.2f}', ha='center', va='center', color=colour)
        axes.set(title=whose, xlabel=corner[1])
        axes.set_xticks(range(len(across)), across, rotation=45, ha='right')
        axes.set_yticks(range(len(down)), down)
    panels[0].set_ylabel(corner[0])
    figure.suptitle(f'{metric} in the end')
    save(figure, path)
