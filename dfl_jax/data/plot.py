"""Pictures of a partition."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

LEGEND_CLASSES = 20
GAP_CLIENTS = 60


def plot_partition(
    labels: np.ndarray, parts: Sequence[np.ndarray], classes: int, path: str | Path
) -> None:
    """Draws the samples of each client as a bar, stacked by class.

    Args:
      labels: [n], classes of the training samples.
      parts: M arrays of indices into labels.
      classes: C, all classes that there are.
      path: the picture to write, usually `.png`; its folder must exist.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, Normalize
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

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
    axes.set_title(f'{clients} clients, {counts.sum():,} samples, {classes} classes', fontsize=10)
    axes.spines[['top', 'right']].set_visible(False)
    if classes <= LEGEND_CLASSES:
        figure.legend(loc='outside right center', title='class', frameon=False, reverse=True)
    else:
        scale = ScalarMappable(Normalize(-0.5, classes - 0.5), ListedColormap(colours))
        figure.colorbar(scale, ax=axes, label='class', pad=0.01)
    figure.savefig(path, dpi=150)
