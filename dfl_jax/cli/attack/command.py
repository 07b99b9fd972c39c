"""The reconstruction attack of NTK-DFL, appendix F: `python -m experiments.attack --out=DIR`

A client sends the Jacobian rows of some images to a neighbour, in several ways of compressing them;
the neighbour reconstructs the images by gradient matching and in closed form
(analysis.reconstruction), at the initial weights and after training. Without flags: handwritten
digits, in under a minute on two cores. Writes attack.md (PSNR and SSIM by setting and attack) and
attack.png (Figure 17) into --out.
"""

import itertools
import time
from collections.abc import Callable
from pathlib import Path

from absl import flags

from dfl_jax.cli import markdown
from dfl_jax.cli.attack.scene import (
    MATCHING_SMOOTH,
    SIMILAR,
    Result,
    Scene,
    Setting,
    Victim,
    choose_victim,
    results,
    set_up,
)
from dfl_jax.cli.command import check_empty, figure, one_line_errors
from dfl_jax.cli.experiment import flags as experiment_flags
from dfl_jax.cli.experiment.values import check_values
from dfl_jax.cli.run.rundir import write_atomically

FLAGS = flags.FLAGS
SHARED = ('dataset', 'data_dir', 'seed', 'out', 'progress')  # with experiments.run
for _name in SHARED:
    flags.declare_key_flag(_name)

flags.DEFINE_integer('images', 8, 'Images of the training set that are attacked.', lower_bound=1)
flags.DEFINE_float('attack_sparsity', 0.25, 'Share of the entries of a tensor that top-k drops.')
flags.DEFINE_integer(
    'attack_projection',
    None,
    'Dimensions of the projected inputs (default 200, or a quarter of the features of small ones).',
)
flags.DEFINE_integer(
    'attack_training', 500, 'Steps of Adam before the second attack; 0: none.', lower_bound=0
)
flags.DEFINE_integer('attack_steps', 1000, 'Steps of a search.', lower_bound=1)
flags.DEFINE_integer('attack_restarts', 2, 'Searches from different noise.', lower_bound=1)
flags.DEFINE_float('attack_smoothness', 0.1, 'Weight of the total variation where it is a prior.')
flags.DEFINE_integer(
    'attack_known', 200, 'Other training images, which the neighbour holds itself.', lower_bound=2
)

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


def check() -> None:
    """Raises ValueError for a flag that the attack ignores, a negative seed or a full --out."""
    for name in itertools.chain(*experiment_flags.GROUPS.values()):
        flag = FLAGS[name]
        if flag.present and name not in SHARED:
            raise ValueError(f'{flag.serialize()} does not apply to the attack; leave it out')
    check_values(FLAGS)
    if FLAGS.attack_smoothness < 0:
        raise ValueError(
            f'--attack_smoothness={FLAGS.attack_smoothness}: give a weight of at least 0'
        )
    if FLAGS.seed < 0:
        raise ValueError(f'--seed has to be at least 0, got {FLAGS.seed}')
    check_empty(FLAGS.out)


def settings(features: int) -> list[Setting]:
    """Those of the paper, and their parts. Raises ValueError for flags out of range."""
    from dfl_jax.compression import top_k
    from dfl_jax.data.projection import projection_matrix

    sparsity = FLAGS.attack_sparsity
    dimensions = FLAGS.attack_projection
    if dimensions is None:
        dimensions = 200 if features >= 400 else features // 4
    top_k(sparsity)
    projection_matrix(features, dimensions, 0)
    return [
        Setting(),
        Setting(sparsity=sparsity),
        Setting(projection=dimensions),
        Setting(sparsity=sparsity, projection=dimensions),
        Setting(sparsity=0.5, bits=6, projection=dimensions),  # appendix E.3
    ]


@one_line_errors('interrupted, and nothing written; start again')
def main(_: list[str]) -> int:
    check()
    from tqdm import tqdm

    from dfl_jax import data

    dataset = data.load(FLAGS.dataset, FLAGS.data_dir)
    victim = choose_victim(dataset)
    chosen = settings(victim.known.shape[1])
    outcomes: list[Result] = []
    scenes: dict[int | None, Scene] = {}  # by projection, so that each is compiled once
    bar = tqdm(chosen, unit='setting', disable=not FLAGS.progress, dynamic_ncols=True)
    for setting in bar:
        bar.set_description(str(setting))
        if setting.projection not in scenes:
            scenes[setting.projection] = set_up(dataset, victim, setting.projection)
        outcomes += results(scenes[setting.projection], victim, setting)
    write(outcomes, victim, Path(FLAGS.out or f'runs/attack-{time.strftime("%Y%m%d-%H%M%S")}'))
    return 0


def write(outcomes: list[Result], victim: Victim, directory: Path) -> None:
    """The two files, and the table on stdout."""
    directory.mkdir(parents=True, exist_ok=True)
    text = table(sorted(outcomes, key=lambda result: result.weights))
    write_atomically(directory / 'attack.md', text)
    print(f'{text}\n{directory / "attack.md"}')
    with figure(directory / 'attack.png') as file:
        from dfl_jax.cli.attack.plot import plot_attack

        first = [r for r in outcomes if r.weights == 'initial' and r.attack != MATCHING_SMOOTH]
        plot_attack(first, victim.scaled(victim.images), SIMILAR, file)


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
