"""The figure of experiments.attack."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.layout_engine import ConstrainedLayoutEngine

from dfl_jax.cli.attack.scene import SIMILAR, Result
from dfl_jax.cli.run.plots import plt


def plot_attack(results: Sequence[Result], originals: np.ndarray, path: Path) -> None:
    """The originals and, below, a row for every setting and attack; PSNR below every image.

    results: those of a setting one after the other. originals: images [n, height, width, channels]
    in [0, 1].
    """
    columns, lines = len(originals), len(results) + 1
    figure, grid = plt.subplots(
        lines,
        columns,
        figsize=(1.2 + 0.7 * columns, 0.85 * lines),
        squeeze=False,
        layout=ConstrainedLayoutEngine(w_pad=0.01, h_pad=0.01, hspace=0, wspace=0),
    )
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    _row(grid[0], originals, 'original', [''] * columns)
    setting = None
    for row, result in zip(grid[1:], results, strict=True):
        if result.setting != setting:  # its heading stands above its first row
            setting = result.setting
            row[0].set_title(' ', fontsize=8, pad=3)  # room for it; a title would widen the column
            heading = row[0].text(
                0, 1.06, str(setting), transform=row[0].transAxes, fontsize=8, fontweight='bold'
            )
            heading.set_in_layout(False)
        prints = ['exact' if value == SIMILAR else f'{value:.1f} dB' for value in result.psnr]
        _row(row, result.images, result.attack.replace(', ', ',\n'), prints)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _row(row: Any, images: np.ndarray, label: str, prints: list[str]) -> None:
    for axes, image, text in zip(row, images, prints, strict=True):
        axes.imshow(image, cmap='gray', vmin=0, vmax=1, interpolation='nearest')
        axes.set_xlabel(text, fontsize=6, labelpad=1)
    row[0].set_ylabel(label, fontsize=7, rotation=0, ha='right', va='center', labelpad=4)
