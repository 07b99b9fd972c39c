"""Curves of runs as PNG."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib

from dfl_jax.cli.run.rundir import Row

matplotlib.use('Agg')
import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator

MUTED = '#7b8794'
COLOURS = (
    *('#1b6ca8', '#d1495b', '#2e8b57', '#8d5a97', '#e08e45', '#35b5c9', '#3d4852'),
    *('#a0a51c', '#e377c2', '#7a4b2a', '#111418', '#8fc93a', '#c9a0dc'),
)


def tidy(axes) -> None:
    axes.spines[['top', 'right']].set_visible(False)
    axes.grid(axis='y', color='#e4e7eb', linewidth=0.8)
    axes.tick_params(colors=MUTED)
    axes.set_axisbelow(True)


MORE_CURVES = {
    'regular_accuracy': 'mean client before its peak model (DFML)',
    'meme_accuracy': 'mean meme (FML)',
}


def plot_run(rows: Sequence[Row], path: Path) -> None:
    """Accuracy of the consensus model and of the clients, and what was sent, against the round."""
    rounds = [row['round'] for row in rows]
    column = lambda name: [row[name] for row in rows]  # noqa: E731
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 4), width_ratios=(1.6, 1), layout='constrained'
    )
    mean, std = column('client_accuracy_mean'), column('client_accuracy_std')
    low, high = zip(*((m - s, m + s) for m, s in zip(mean, std, strict=True)), strict=True)
    label = 'one standard deviation over clients'
    left.fill_between(rounds, low, high, color=COLOURS[1], alpha=0.15, linewidth=0, label=label)
    left.plot(rounds, column('consensus_accuracy'), color=COLOURS[0], lw=2, label='consensus model')
    left.plot(rounds, mean, color=COLOURS[1], lw=2, label='mean client')
    for name, label in MORE_CURVES.items():
        if name in rows[0]:
            left.plot(rounds, column(name), color=MUTED, lw=1.2, label=label)
    left.set(xlabel='communication round', ylabel='test accuracy')
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(frameon=False, loc='lower right')
    right.plot(column('mbytes_total'), column('consensus_accuracy'), color=COLOURS[0], lw=2)
    right.set(xlabel='megabytes sent by all clients', ylabel='consensus accuracy')
    for axes in (left, right):
        tidy(axes)
    figure.savefig(path, dpi=130)
    plt.close(figure)
