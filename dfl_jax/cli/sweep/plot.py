"""results.png: how every combination of the swept flags learns."""

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
