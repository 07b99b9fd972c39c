"""Every method learns: few rounds on non-identical clients leave no untrained model behind.

A new method adds one line to LEARNS. Chance is 0.1, and an untrained network of this size stays
below 0.3.
"""

import jax
import pytest

from dfl_jax import data, simulate, topology
from dfl_jax.methods import make
from dfl_jax.models import MLP, bind

CLIENTS, DEGREE = 10, 5

# name: (rounds, accuracy that the consensus model exceeds, settings other than the published ones)
LEARNS = {
    'dpsgd': (5, 0.85, {}),
    'dfedavg': (2, 0.85, {}),
    'dfedavgm': (3, 0.85, {}),
    'dfedsam': (6, 0.85, {}),
    'decavg': (5, 0.85, {'lr': 0.1}),
    'dispfl': (3, 0.85, {}),
    'ntk_fl': (2, 0.85, {'cohort': DEGREE}),
    'spark': (3, 0.85, {'timesteps': (50, 100, 200), 'rounds': 5, 'warmup': 1}),
}
QUICK = ('dfedavgm', 'ntk_fl', 'spark')  # the others are slow tests


@pytest.fixture(scope='module')
def digits():
    pytest.importorskip('sklearn')
    return data.load('digits')


@pytest.mark.integration
@pytest.mark.parametrize(
    'name', [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in LEARNS]
)
def test_a_method_learns_digits(name, digits):
    rounds, accuracy, settings = LEARNS[name]
    parts = data.partition('dirichlet', digits, CLIENTS, seed=0, alpha=0.5)
    clients = data.pack(digits.train_x, digits.train_y, parts)
    if 'cohort' in settings:  # centralized
        graphs = topology.cohorts(CLIENTS, rounds, settings['cohort'], seed=0)
    else:
        graphs = topology.schedule('regular', CLIENTS, rounds, seed=0, degree=DEGREE)
    algorithm = make(name, bind(MLP(digits.classes), digits.train_x.shape[1:]), **settings)
    test = simulate.Holdout(digits.test_x, digits.test_y)
    untrained = jax.jit(algorithm.init)(jax.random.key(0), clients)
    guesses = jax.jit(algorithm.predict)(untrained, test.x)['consensus'].argmax(axis=1)
    assert (guesses == test.y).mean() < 0.3
    run = simulate.run(algorithm, clients, graphs, test, jax.random.key(0), eval_every=rounds)
    (metrics, *_), *_ = run
    assert metrics['consensus_accuracy'] > accuracy
    assert metrics['client_accuracy_mean'] > 0.6
