"""attack.md and attack.png: how close every attack came under every setting."""

from collections.abc import Callable
from pathlib import Path

from absl import flags

from dfl_jax.cli import markdown
from dfl_jax.cli.attack.scene import MATCHING_SMOOTH, SIMILAR, Result, Victim
from dfl_jax.cli.command import figure
from dfl_jax.cli.run.rundir import write_atomically

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


def write(outcomes: list[Result], victim: Victim, directory: Path) -> None:
    """The two files, and the table on stdout."""
    directory.mkdir(parents=True, exist_ok=True)
    rows = [
        [show(result) for show in COLUMNS.values()]
        for result in sorted(outcomes, key=lambda result: result.weights)
    ]
    title = f'# Reconstruction attack on {FLAGS.images} images of {FLAGS.dataset}'
    text = f'{title}\n\n{markdown.table([*COLUMNS], rows)}\n\n{reading()}\n'
    write_atomically(directory / 'attack.md', text)
    print(f'{text}\n{directory / "attack.md"}')
    with figure(directory / 'attack.png') as file:
        from dfl_jax.cli.attack.plot import plot_attack

        first = [r for r in outcomes if r.weights == 'initial' and r.attack != MATCHING_SMOOTH]
        plot_attack(first, victim.scaled(victim.images), file)


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
