"""How much do the models of each method tell of the samples that they were trained on?

    python -m benchmarks.leakage [--plot=leakage.png --seeds=0,1,2]
    python -m benchmarks.leakage --dataset=fashion_mnist --samples=140 --data_dir=DIR

Clients with a few images each, handwritten digits by default (alpha = 0.5, 5-regular graphs anew
in every round), train by eight methods with their default settings, and by D-PSGD with private
gradients. Every evaluation measures the mean accuracy of the clients' models on test images, and
how well their losses tell images that a client trained on from others that it has kept
(`--membership`): the area under the curve, 0.5 where this is guessing, and the true positives at
1 % false positives.
"""

from typing import Any

import jax
import numpy as np
from absl import flags

from benchmarks import _common as common
from dfl_jax.experiment import Experiment

FLAGS = flags.FLAGS
PRIVATE: dict[str, Any] = {'batch_sampling': 'poisson', 'dp_clip': 1.0, 'dp_delta': 1e-3}
METHODS: dict[str, dict[str, Any]] = {
    'D-PSGD': {'algorithm': 'dpsgd'},
    'DFedAvg': {'algorithm': 'dfedavg'},
    'DFedAvgM': {'algorithm': 'dfedavgm'},
    'DFedSAM': {'algorithm': 'dfedsam'},
    'DisPFL': {'algorithm': 'dispfl'},
    'DFedADMM': {'algorithm': 'dfed_admm'},
    'NTK-DFL': {'algorithm': 'ntk_dfl'},
    'SPARK': {'algorithm': 'spark'},
    'D-PSGD, epsilon 30': PRIVATE | {'algorithm': 'dpsgd', 'dp_epsilon': 30.0},
    'D-PSGD, epsilon 8': PRIVATE | {'algorithm': 'dpsgd', 'dp_epsilon': 8.0},
}
SHOWN = ('client_accuracy_mean', 'membership_auc_mean', 'membership_tpr_mean')


def define_flags() -> None:
    flags.DEFINE_string('data_dir', None, 'Folder of the data sets.')
    flags.DEFINE_string('plot', None, 'PNG to draw.')
    flags.DEFINE_list('seeds', ['0'], 'Seeds.')
    flags.DEFINE_integer('clients', 20, 'Clients.', lower_bound=6)
    flags.DEFINE_integer('samples', 70, 'Images of a client, two of seven kept.', lower_bound=7)
    flags.DEFINE_integer('rounds', 30, 'Rounds.', lower_bound=1)
    flags.DEFINE_integer('eval_every', 5, 'Rounds between evaluations.', lower_bound=1)
    flags.DEFINE_string('dataset', 'digits', 'Data set.')


def main() -> None:
    print(common.about())
    table = common.Table('method', 'accuracy (%)', 'AUC', 'found at 1 % false alarms (%)')
    curves = {}
    for name, settings in METHODS.items():
        found = np.array([curve(settings, int(seed)) for seed in FLAGS.seeds])
        curves[name] = found.mean(axis=0)
        accuracy, area, rate = (spread(column) for column in found[:, -1].T)
        table.row(name, accuracy(100, 1), area(1, 3), rate(100, 1))
    if FLAGS.plot:
        draw(curves)


def curve(settings: dict[str, Any], seed: int) -> np.ndarray:
    """[evaluations, SHOWN]."""
    folder = {} if FLAGS.data_dir is None else {'data_dir': FLAGS.data_dir}
    experiment = Experiment.of(
        **settings,
        **folder,
        dataset=FLAGS.dataset,
        clients=FLAGS.clients,
        train_samples=FLAGS.clients * FLAGS.samples,
        partition='dirichlet_split',
        alpha=0.5,
        degree=5,
        validation_share=2 / 7,
        membership=True,
        client_eval_samples=300,
        eval_every=FLAGS.eval_every,
        rounds=FLAGS.rounds,
        seed=seed,
    )
    rows = [*experiment.run(progress=False)]
    jax.clear_caches()  # of this method's program
    return np.array([[row[name] for name in SHOWN] for row in rows])


def spread(values: np.ndarray) -> Any:
    """(factor, digits) -> mean, with the standard deviation of several."""

    def shown(factor: float, digits: int) -> str:
        text = f'{factor * values.mean():.{digits}f}'
        return text if len(values) < 2 else f'{text} ± {factor * values.std(ddof=1):.{digits}f}'

    return shown


def draw(curves: dict[str, np.ndarray]) -> None:
    """Accuracy over leakage, a line for each method through its evaluations."""
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4.5), layout='constrained')
    for number, (name, points) in enumerate(curves.items()):
        private = 'epsilon' in name
        (line,) = axes.plot(
            points[:, 1], 100 * points[:, 0], '--' if private else '-', color=f'C{number}', lw=1
        )
        marker, colour = 's' if private else 'o', line.get_color()
        last = points[-1, 1], 100 * points[-1, 0]
        axes.plot(*last, marker, color=colour, label=name)
    axes.axvline(0.5, color='0.6', lw=0.8, ls=':')
    axes.set_xlabel('membership inference, area under the curve (0.5: guessing)')
    axes.set_ylabel('mean accuracy of the clients (%)')
    axes.legend(loc='center left', bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(FLAGS.plot, dpi=110)


if __name__ == '__main__':
    define_flags()
    common.start(main)
