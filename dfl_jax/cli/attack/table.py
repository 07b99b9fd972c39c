"""attack.md, the table of experiments.attack."""

from collections.abc import Callable

from dfl_jax.cli import markdown
from dfl_jax.cli.attack.scene import FLAGS, SIMILAR, Result

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


def table(results: list[Result]) -> str:
    """A row for every weights, setting and attack, and how to read it."""
    rows = markdown.table([*COLUMNS], [[show(r) for show in COLUMNS.values()] for r in results])
    title = f'# Reconstruction attack on {FLAGS.images} images of {FLAGS.dataset}'
    return f'{title}\n\n{rows}\n\n{reading()}\n'


def reading() -> str:
    return (
        f'PSNR and SSIM: mean and standard deviation over images in [0, 1]; {SIMILAR:.0f} dB '
        'stands for an image that is exact up to float32 rounding. Entries lost: the share of the '
        'non-zero entries of the Jacobian that the codec drops. Entries compared: all, or where '
        'top-k was used those received, whichever is stronger. The protocol sends the label in the '
        'clear; the last column counts the images whose largest output, which is sent too, names '
        'it. Smooth image: pixels within their range and total variation with weight '
        f'{FLAGS.attack_smoothness:g}; own images: Gaussian prior of {FLAGS.attack_known} other '
        'training images, which the neighbour holds itself.'
    )
