"""reconstruction.md and reconstruction.png: how close every attack came under every setting."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags

from dfl_jax.files import write_atomically
from dfl_jax.papers.reconstruct.scene import MATCHING_SMOOTH, SIMILAR, Result, Victim, smoothness
from dfl_jax.plain_text import markdown_table

FLAGS = flags.FLAGS
COLUMNS: dict[str, Callable[[Result], str]] = {
    'weights': lambda r: r.weights,
    'setting': lambda r: str(r.setting),
    'entries lost': lambda r: f'{r.lost:.1%}',
    'attack': lambda r: r.attack,
    'entries compared': lambda r: r.compared,
    'PSNR (dB)': lambda r: f'{r.psnr.mean():.1f} ± {r.psnr.std():.1f}',
    'SSIM': lambda r: f'{r.ssim.mean():.3f} ± {r.ssim.std():.3f}',
    'label sent': lambda r: 'yes',
    'label by argmax f': lambda r: f'{r.named} of {len(r.images)}',
}
COLUMNS_OF_GRADIENT = {
    name: COLUMNS[name] for name in ('weights', 'setting', 'attack', 'PSNR (dB)', 'SSIM')
} | {'label by bias': lambda r: '' if r.named is None else f'{r.named} of {len(r.images)}'}


def write(outcomes: list[Result], victim: Victim, directory: Path) -> None:
    """The two files, and the table on stdout."""
    directory.mkdir(parents=True, exist_ok=True)
    columns = COLUMNS if FLAGS.sent == 'jacobians' else COLUMNS_OF_GRADIENT
    rows = [
        [show(result) for show in columns.values()]
        for result in sorted(outcomes, key=lambda result: result.weights)
    ]
    title = f'# Reconstruction attack on {FLAGS.images} images of {FLAGS.dataset}'
    text = f'{title}\n\n{markdown_table([*columns], rows)}\n\n{reading()}\n'
    page, figure = (directory / f'reconstruction.{kind}' for kind in ('md', 'png'))
    write_atomically(page, text)
    print(f'{text}\n{page}')
    first = [r for r in outcomes if r.weights == 'initial' and r.attack != MATCHING_SMOOTH]
    plot_attack(first, victim.scaled(victim.images), figure)
    print(figure)


def reading() -> str:
    measures = (
        f'PSNR and SSIM: mean and standard deviation over images in [0, 1]; {SIMILAR:.0f} dB '
        'stands for an image that is exact up to float32 rounding. '
    )
    if FLAGS.sent == 'gradient':
        return measures + (
            'What is attacked is the change of the model after one local step on a minibatch. The '
            'attacker knows the weights before it, the learning rate, the clipping, the number of '
            'samples and their labels; the last column counts the single samples whose label is '
            'the one output with the lowest derivative by its bias. Gradient inversion: pixels '
            f'within their range and total variation with weight {smoothness():g}; the images of a '
            'minibatch are compared in the order nearest to the originals.'
        )
    return measures + (
        'Entries lost: the share of the '
        'non-zero entries of the Jacobian that the codec drops. Entries compared: all, or where '
        'top-k was used those received, whichever is stronger. The protocol sends the label in the '
        'clear; the last column counts the images whose largest output, which is sent too, names '
        'it. Smooth image: pixels within their range and total variation with weight '
        f'{smoothness():g}; own images: Gaussian prior of {FLAGS.attack_known} other '
        'training images, which the neighbour holds itself.'
    )


def plot_attack(results: Sequence[Result], originals: np.ndarray, path: Path) -> None:
    """The originals and, below, a row for every setting and attack; PSNR below every image.

    results: those of a setting one after the other. originals: images [n, height, width, channels]
    in [0, 1].
    """
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from dfl_jax.plots import plt, save

    columns, lines = len(originals), len(results) + 1
    size = 1.2 + 0.7 * columns, 0.85 * lines
    layout = ConstrainedLayoutEngine(w_pad=0.01, h_pad=0.01, hspace=0, wspace=0)
    figure, grid = plt.subplots(lines, columns, figsize=size, squeeze=False, layout=layout)
    for axes in grid.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    _row(grid[0], originals, 'original', [''] * columns)
    setting = None
    for row, result in zip(grid[1:], results, strict=True):
        if result.setting != setting:  # its heading stands above its first row
            setting = result.setting
            row[0].set_title(' ', fontsize=8, pad=3)  # room for it; a title would widen the column
            look = {'transform': row[0].transAxes, 'fontsize': 8, 'fontweight': 'bold'}
            row[0].text(0, 1.06, str(setting), **look).set_in_layout(False)
        prints = ['exact' if value == SIMILAR else f'{value:.1f} dB' for value in result.psnr]
        _row(row, result.images, result.attack.replace(', ', ',\n'), prints)
    save(figure, path, dpi=100)


def _row(row: Any, images: np.ndarray, label: str, prints: list[str]) -> None:
    for axes, image, text in zip(row, images, prints, strict=True):
        axes.imshow(image, cmap='gray', vmin=0, vmax=1, interpolation='nearest')
        axes.set_xlabel(text, fontsize=6, labelpad=1)
    row[0].set_ylabel(label, fontsize=7, rotation=0, ha='right', va='center', labelpad=4)
