"""Curves of runs as PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use('Agg')
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

Row = dict[str, Any]
INK, MUTED = '#1f2933', '#7b8794'
COLOURS = ('#1b6ca8', '#d1495b', '#2e8b57', '#8d5a97', '#e08e45', '#4a6572')


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


def plot_comparison(
    curves: Mapping[str, Sequence[Sequence[Row]]], target: float | None, title: str, path: Path
) -> None:
    """Consensus accuracy (solid) and mean client accuracy (dotted) of several settings.

    curves: label -> runs (seeds), each a list of rows; lines are means, bands ranges.
    """
    figure, axes = plt.subplots(figsize=(7, 4.4), layout='constrained')
    for colour, (label, runs) in zip(COLOURS, curves.items(), strict=False):
        shared = sorted(set.intersection(*({row['round'] for row in rows} for rows in runs)))
        for name, style in (('consensus_accuracy', '-'), ('client_accuracy_mean', ':')):
            values = [[row[name] for row in rows if row['round'] in shared] for rows in runs]
            mean = [sum(v) / len(v) for v in zip(*values, strict=True)]
            axes.plot(
                shared, mean, style, color=colour, lw=2, label=label if style == '-' else None
            )
            if len(runs) > 1:
                low, high = ([f(v) for v in zip(*values, strict=True)] for f in (min, max))
                axes.fill_between(shared, low, high, color=colour, alpha=0.15, linewidth=0)
    if target is not None:
        axes.axhline(target, color=MUTED, lw=1, ls='--')
        axes.annotate(
            f'{target:.0%}',
            xy=(0, target),
            xycoords=('axes fraction', 'data'),
            xytext=(6, 4),
            textcoords='offset points',
            color=MUTED,
        )
    axes.set(xlabel='communication round', ylabel='test accuracy', title=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, loc='lower right', title='solid: consensus, dotted: mean client')
    _tidy(axes)
    figure.savefig(path, dpi=130)
    plt.close(figure)
