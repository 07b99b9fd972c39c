"""The reconstruction attack of NTK-DFL, appendix F: `dfl-jax reconstruct --out=DIR`

A client sends the Jacobian rows of some images to a neighbour, in several ways of compressing them;
the neighbour reconstructs the images by gradient matching and in closed form
(`papers.reconstruct.reconstruction`), at the initial weights and after training. With
--sent=gradient it sends what gradient methods do, its model after one local step, plain, clipped
and with noise (`papers.reconstruct.gradient`). Without flags: handwritten digits, in under a minute
on two cores. Writes reconstruction.md (PSNR and SSIM by setting and attack) and reconstruction.png
(Figure 17) into --out.
"""

import functools
import time
from collections.abc import Sequence
from pathlib import Path

from absl import flags

from dfl_jax.cli.command import check_empty, one_line_errors
from dfl_jax.cli.flags import run_flags
from dfl_jax.cli.flags.run_flags import check_flags, refuse_others

FLAGS = flags.FLAGS
ONLY_FOR = {  # --sent -> flags that nothing else has a use for
    'jacobians': ('attack_sparsity', 'attack_projection', 'attack_known'),
    'gradient': ('batch_size', 'dp_clip', 'dp_noise_multiplier'),
}
# with experiments.run
SHARED = ('dataset', 'data_dir', 'seed', *ONLY_FOR['gradient'], 'out', 'progress')
MEANINGS = {
    'out': 'Folder of the results (default: runs/reconstruct-TIME)',
    'batch_size': 'Samples of the minibatch of --sent=gradient (default: 1, and then 4)',
    'dp_clip': 'Bound on the norm of the gradient of every sample, of --sent=gradient (default 1)',
    'dp_noise_multiplier': 'Standard deviation of the noise on the sum of the clipped gradients '
    'over --dp_clip, of --sent=gradient (default: 0.01, 0.1 and 1)',
}


def define_flags(_: Sequence[str] = ()) -> None:
    """Defines the flags of this command beside those that it shares with runs."""
    run_flags.define()
    if 'images' in FLAGS:
        return
    for name in SHARED:
        flags.declare_key_flag(name)
    count = functools.partial(flags.DEFINE_integer, lower_bound=1)
    flags.DEFINE_enum(
        'sent',
        'jacobians',
        [*ONLY_FOR],
        'What the client sends: the Jacobians of NTK-DFL, or the gradient of one local step.',
    )
    count('images', 8, 'Images of the training set that are attacked.')
    flags.DEFINE_float(
        'attack_sparsity',
        0.25,
        'Share of the entries of each tensor that top-k sparsification drops.',
    )
    flags.DEFINE_integer(
        'attack_projection',
        None,
        'Dimensions of the projected inputs (default 200; if there are few features, a quarter '
        'of them).',
    )
    flags.DEFINE_integer(
        'attack_training',
        500,
        'Steps of Adam before the second attack; 0: no second attack.',
        lower_bound=0,
    )
    count('attack_steps', 1000, 'Steps of each search by gradient matching.')
    count('attack_restarts', 2, 'Searches from different random starts.')
    flags.DEFINE_float(
        'attack_smoothness',
        None,
        'Weight of the total variation in attacks that have it as a prior (default 0.1; of '
        '--sent=gradient 0.01).',
        lower_bound=0,
    )
    flags.DEFINE_integer(
        'attack_known',
        200,
        'Training images of its own from which the neighbour learns a prior.',
        lower_bound=2,
    )


@one_line_errors('interrupted, and nothing written; start again')
def main(_: list[str]) -> int:
    refuse_others(SHARED, ' to the attack')
    check_flags()
    for sent, names in ONLY_FOR.items():
        for flag in (FLAGS[name] for name in names):
            if flag.present and sent != FLAGS.sent:
                raise ValueError(
                    f'{flag.serialize()} has no effect with --sent={FLAGS.sent}; leave it out, or '
                    f'set --sent={sent}'
                )
    check_empty(FLAGS.out)
    from tqdm import tqdm

    from dfl_jax import data
    from dfl_jax.experiment.environment import check_jax
    from dfl_jax.papers.reconstruct import gradient, scene
    from dfl_jax.papers.reconstruct.table import write

    check_jax()
    of_gradient = FLAGS.sent == 'gradient'
    steps = gradient.settings() if of_gradient else []  # checked before the data are read
    dataset = data.load(FLAGS.dataset, FLAGS.data_dir)
    victim = scene.choose_victim(dataset)
    chosen = steps or scene.settings(victim.known.shape[1])
    outcomes: list[scene.Result] = []
    scenes: dict[int | None, scene.Scene] = {}  # by projection, so that each is compiled once
    bar = tqdm(chosen, unit='setting', disable=not FLAGS.progress, dynamic_ncols=True)
    for setting in bar:
        bar.set_description(str(setting))
        if setting.projection not in scenes:
            scenes[setting.projection] = scene.set_up(dataset, victim, setting.projection)
        of_setting = gradient.results if of_gradient else scene.results
        outcomes += of_setting(scenes[setting.projection], victim, setting)
    write(outcomes, victim, Path(FLAGS.out or f'runs/reconstruct-{time.strftime("%Y%m%d-%H%M%S")}'))
    return 0
