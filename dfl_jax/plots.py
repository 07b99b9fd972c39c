"""The pictures of a run: its curves, and the partition of its data."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

from dfl_jax.tasks import Task

matplotlib.use('Agg')
import matplotlib.pyplot as plt
from matplotlib import colormaps
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

Row = dict[str, Any]
MUTED = '#7b8794'
COLOURS = (
    *('#1b6ca8', '#d1495b', '#2e8b57', '#8d5a97', '#e08e45', '#35b5c9', '#3d4852'),
    *('#a0a51c', '#e377c2', '#7a4b2a', '#111418', '#8fc93a', '#c9a0dc'),
)
LEGEND_CLASSES = 20  # of a picture of a partition; with more it has a scale
GAP_CLIENTS = 60  # likewise; the bars of more touch


def save(figure: Figure, path: Path, dpi: int = 130) -> None:
    figure.savefig(path, dpi=dpi)
    plt.close(figure)


def tidy(axes) -> None:
    axes.spines[['top', 'right']].set_visible(False)
    axes.grid(axis='y', color='#e4e7eb', linewidth=0.8)
    axes.tick_params(colors=MUTED)
    axes.set_axisbelow(True)


MORE_CURVES = {
    'regular_accuracy': 'mean client before its peak model (DFML)',
    'meme_accuracy': 'mean meme (FML)',
}


def plot_run(rows: Sequence[Row], path: Path, task: Task) -> None:
    """The task's metric of consensus model and clients, and what was sent, against the round."""
    rounds = [row['round'] for row in rows]
    look: dict[str, Any] = {'lw': 2, 'marker': 'o' if len(rows) == 1 else ''}
    column = lambda name: [row[name] for row in rows]  # noqa: E731
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(10, 4), width_ratios=(1.6, 1), layout='constrained'
    )
    metric, consensus = task.metric, f'consensus_{task.metric}'
    mean, std = column(f'client_{metric}_mean'), column(f'client_{metric}_std')
    low, high = zip(*((m - s, m + s) for m, s in zip(mean, std, strict=True)), strict=True)
    label = 'one standard deviation over clients'
    left.fill_between(rounds, low, high, color=COLOURS[1], alpha=0.15, linewidth=0, label=label)
    left.plot(rounds, column(consensus), color=COLOURS[0], label='consensus model', **look)
    left.plot(rounds, mean, color=COLOURS[1], label='mean client', **look)
    for name, label in MORE_CURVES.items():
        if name in rows[0]:
            left.plot(rounds, column(name), color=MUTED, label=label, **look | {'lw': 1.2})
    left.set(xlabel='communication round', ylabel=f'test {metric}')
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    left.legend(frameon=False, loc='upper right' if task.lower_is_better else 'lower right')
    right.plot(column('mbytes_total'), column(consensus), color=COLOURS[0], **look)
    right.set(xlabel='megabytes sent by all clients', ylabel=f'consensus {metric}')
    for axes in (left, right):
        tidy(axes)
    save(figure, path)


def plot_partition(
    labels: np.ndarray, parts: Sequence[np.ndarray], classes: int, path: str | Path
) -> None:
    """Draws the samples of each client as a bar, stacked by class where there are classes.

    Args:
      labels: [n], classes of the training samples; or targets of any other kind, [n, ...].
      parts: M arrays of indices into labels.
      classes: C, all classes that there are.
      path: the picture to write, usually `.png`; its folder must exist.
    """
    by_class = labels.ndim == 1 and labels.dtype.kind in 'iu'
    if not by_class:
        labels, classes = np.zeros(len(labels), int), 1
    counts = np.stack([np.bincount(labels[part], minlength=classes) for part in parts])  # [M, C]
    clients = len(counts)
    if classes <= LEGEND_CLASSES:
        colours = colormaps['tab10' if classes <= 10 else 'tab20'](np.arange(classes))
    else:
        colours = colormaps['turbo'](np.linspace(0.03, 0.97, classes))

    half = 0.4 if clients <= GAP_CLIENTS else 0.5
    centres = np.arange(clients)
    edges = np.stack([centres - half, centres + half], axis=1).ravel()  # [2M]
    figure = Figure(figsize=(min(12, 5 + clients / 12), 4), layout='constrained')
    axes = figure.add_subplot()
    base = np.zeros(2 * clients - 1)
    for label in range(classes):
        height = np.zeros_like(base)
        height[::2] = counts[:, label]
        axes.stairs(
            base + height, edges, baseline=base, fill=True, color=colours[label], label=str(label)
        )
        base = base + height

    largest = counts.sum(axis=1).max()
    axes.set(xlim=(-0.75, clients - 0.25), ylim=(0, 1.02 * largest))
    axes.set(xlabel='client', ylabel='training samples')
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    of_classes = f', {classes} classes' * by_class
    axes.set_title(f'{clients} clients, {counts.sum():,} samples{of_classes}', fontsize=10)
    axes.spines[['top', 'right']].set_visible(False)
    if by_class and classes <= LEGEND_CLASSES:
        figure.legend(loc='outside right center', title='class', frameon=False, reverse=True)
    elif by_class:
        scale = ScalarMappable(Normalize(-0.5, classes - 0.5), ListedColormap(colours))
        figure.colorbar(scale, ax=axes, label='class', pad=0.01)
    figure.savefig(path, dpi=150)
