"""Algorithms and models of a user's own: whatever they do wrong is told in one line."""

import sys

import pytest
from test_cli import NETWORK, here, rows_of, write_sums
from test_sweep import swept

from dfl_jax.experiment import Experiment, load

ALGORITHM = """
import jax, jax.numpy as jnp
from dfl_jax.algorithms import dpsgd
from dfl_jax.base import Algorithm, Info
from dfl_jax.tasks import REGRESSION

def factory(model, *, lr=0.1):
    whole = dpsgd(model)
    return whole._replace({changed})
"""


@pytest.fixture
def refused(tiny, tmp_path, monkeypatch):
    """The error of a run with a module of this text, as --algorithm or --model."""
    monkeypatch.syspath_prepend(tmp_path)

    def run(flag, text):
        (tmp_path / 'theirs.py').write_text(text)
        line = here(
            f'--dataset={tiny}', *NETWORK, f'--{flag}=theirs:factory', f'--out={tmp_path}/out'
        ).error
        assert not (tmp_path / 'out').exists()
        assert f'--{flag}=theirs:factory' in line
        return line

    yield run
    sys.modules.pop('theirs', None)


@pytest.mark.parametrize('flag', ['algorithm', 'model'])
@pytest.mark.parametrize(
    ('text', 'words'),
    [
        ('def factory(:', 'cannot be imported: SyntaxError'),
        ('1 / 0', 'cannot be imported: ZeroDivisionError: division by zero'),
        ('import sys; sys.exit(0)', 'cannot be imported: SystemExit: 0'),
        ('class Odd(BaseException): pass\nraise Odd("a\\nb")', 'cannot be imported: Odd: a b'),
        ('import nowhere', "No module named 'nowhere'"),
        ('def other(): pass', "no attribute 'factory'"),
        ('factory = 3', 'is no factory but of type int'),
        ('def factory(): pass', 'factory'),
        ('def factory(*args): raise RuntimeError("x\\ny")', 'failed: RuntimeError: x y'),
        ('def factory(*args): raise SystemExit(0)', 'failed: SystemExit: 0'),
        ('def factory(one): return {}', 'returns dict, not a '),
        ('factory = print', ''),
    ],
)
def test_what_a_module_may_do(flag, text, words, refused):
    assert words in refused(flag, text)


MODEL = """
from flax import linen as nn

class factory(nn.Module):
    classes: int

    @nn.compact
    def __call__(self, x):
        {body}
"""


@pytest.mark.parametrize(
    ('body', 'words'),
    [
        ('raise RuntimeError("no")', 'its module failed: RuntimeError: no'),
        ('return 1, 2', 'its module failed'),
        ('return x[:, :, None]', 'has to return logits [B, C]'),
        ('return nn.Dense(2)(x)', 'returns 2 outputs, and --task=classification on --dataset='),
    ],
)
def test_a_model_that_is_none(body, words, refused):
    assert words in refused('model', MODEL.format(body=body))


@pytest.mark.parametrize(
    ('changed', 'words'),
    [
        ('init=lambda key: 0', 'its init failed: TypeError'),
        ('step=lambda *args: 1 / 0', 'its step failed: ZeroDivisionError: division by zero (line '),
        ('step=lambda k, s, r: (jnp.zeros(3), {})', 'its step returns another state'),
        ('step=lambda k, s, r: (s, {})', 'its step returns dict beside the state, not a'),
        (
            'step=lambda k, s, r: (s, Info(jnp.zeros(2)))',
            "its step returns 'loss' (2,) of 6 clients, not (6,)",
        ),
        (
            "step=lambda k, s, r: (r.exchange.count('x', jnp.zeros(2), 8), whole.step(k, s, r))[1]",
            "its step returns 'x' (2,) of 6 clients, not (6,)",
        ),
        (
            "step=lambda k, s, r: [r.exchange.count('x', jnp.zeros(6), b) for b in (8, 9)]",
            'its step failed: x of 8 and of 9 bits in one round',
        ),
        ('predict=lambda s, x: {}', "its predict returns no 'client'"),
        ("predict=lambda s, x: {'client': x, 'consensus': x}", "'client' (2, 8) of 2 samples, not"),
        ('task=REGRESSION', 'learns regression, and the run classification; give its Algorithm'),
    ],
)
def test_an_algorithm_that_is_none(changed, words, refused):
    assert words in refused('algorithm', ALGORITHM.format(changed=changed))


def test_a_method_of_several_architectures_that_names_none(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'unnamed.py').write_text(
        'from dfl_jax.algorithms import dec_fedavg\n'
        'from dfl_jax.methods import Method\n'
        "method = Method(dec_fedavg, graphs='meetings')\n"
    )
    given = '--dataset=digits', '--clients=6', '--rounds=1', f'--out={tmp_path}/out'
    line = here('--algorithm=unnamed:method', *given).error
    assert 'names no networks; name those of the clients, e.g. --architectures=cnn-' in line


@pytest.mark.integration
def test_a_method_of_ones_own_learns_another_task(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'partials.py').write_text(
        'from functools import partial\n'
        'from dfl_jax.algorithms.gossip_sgd import gossip_sgd\n'
        'from dfl_jax.training import LocalTraining\n'
        'mine = partial(gossip_sgd, training=LocalTraining(lr=0.01, batch_size=10))\n'
    )
    here(
        *(f'--dataset={write_sums(tmp_path / "set.npz")}', '--task=regression', *NETWORK),
        *('--partition=iid', '--algorithm=partials:mine', f'--out={tmp_path}/out'),
    ).succeeded()
    assert 'consensus_rmse' in rows_of(tmp_path / 'out')[-1]
    sys.modules.pop('partials')


def test_tokens_are_not_projected(tmp_path):
    line = here(
        *('--dataset=sonnets', '--task=next_token', '--model=gru', '--algorithm=dpsgd'),
        *('--input_projection=8', f'--out={tmp_path}/out'),
    ).error
    assert '--input_projection=8 is of numbers' in line


TASK = """
import jax.numpy as jnp
from dfl_jax.tasks import Task

def factory():
    def errors(outputs, y):
        {body}
    return Task('absolute', errors, 'mae', errors, lower_is_better=True)
"""


@pytest.mark.parametrize(
    ('body', 'words'),
    [
        ('return jnp.abs(outputs)', 'its losses of 2 samples have the shape (2, 1), not (2,)'),
        ('raise KeyError("no such")', "its losses failed: KeyError: 'no such'"),
    ],
)
def test_a_task_that_is_none(body, words, tiny, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'tasks_of_mine.py').write_text(TASK.format(body=body))
    line = here(
        *(f'--dataset={tiny}', *NETWORK, '--task=tasks_of_mine:factory', '--partition=iid'),
        *('--algorithm=dpsgd', f'--out={tmp_path}/out'),
    ).error
    assert words in line and not (tmp_path / 'out').exists()
    sys.modules.pop('tasks_of_mine')


LOADER = """
import numpy as np
from dfl_jax.data import Dataset

def arrays(n, seed):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    return rng.normal(size=(n, 4)) + 5 * np.eye(3, 4)[y], y

def factory():
    x, y = arrays(120, 0)
    test_x, test_y = arrays(40, 1)
    return {returned}
"""
GIVEN = 'Dataset(x, y, test_x, test_y, 3, np.arange(120) % 8)'


@pytest.mark.integration
def test_a_loader_of_one_s_own(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'own_loader.py').write_text(LOADER.format(returned=GIVEN))
    own, out = '--dataset=own_loader:factory', f'--out={tmp_path / "run"}'
    short = ('--algorithm=dfedavg', '--lr=0.1', '--hidden=8', '--rounds=3', '--train_samples=100')
    here(own, *short, '--partition=natural', '--clients=8', '--degree=3', out).succeeded()
    assert rows_of(tmp_path / 'run')[-1]['consensus_accuracy'] > 0.9  # of three classes
    line = here(own, '--partition=natural', '--clients=10', out + '2').error
    assert '10 clients for 8 natural clients' in line
    few = ('--partition=iid', '--clients=10', '--train_samples=8')
    assert '10 clients for 8 training samples' in here(own, *few, out + '2').error
    for flag in ('--data_dir=.', '--columns=target=a', '--test_share=0.5', '--image_size=8'):
        assert f'does not apply to {own}' in here(own, flag, out + '2').error


@pytest.mark.parametrize(
    ('returned', 'words'),
    [
        ('1 / 0', 'its factory failed: ZeroDivisionError'),
        ('(x, y)', 'returns tuple, not a dfl_jax.data.Dataset'),
        ('Dataset(x, y[:5], test_x, test_y, 3)', 'train_x is (120, 4) and train_y is (5,)'),
        ('Dataset(x * np.nan, y, test_x, test_y, 3)', 'train_x (float64) must be finite'),
        ('Dataset(x, y, test_x, test_y, 2)', 'says that it has 2 classes, and has 3'),
        ('Dataset(x, y, test_x, test_y, 3, [1, 2])', 'client is (2,) int64, and must be (120,)'),
        ('Dataset(None, y, test_x, test_y, 3)', 'train_x is ()'),
    ],
)
def test_what_a_loader_may_return(returned, words, refused):
    assert words in refused('dataset', LOADER.format(returned=returned))


FOCAL = """
import jax.numpy as jnp
from dfl_jax.tasks import CLASSIFICATION, cross_entropies

def focal(logits, y):
    losses = cross_entropies(logits, y)
    return (1 - jnp.exp(-losses)) ** 2 * losses

def factory():
    return CLASSIFICATION._replace(name='focal', losses=focal)
"""


@pytest.fixture
def focal(tmp_path, monkeypatch):
    """--task of a loss of one's own."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'focal_task.py').write_text(FOCAL)
    yield '--task=focal_task:factory'
    sys.modules.pop('focal_task', None)


@pytest.mark.integration
@pytest.mark.parametrize(
    'flags',
    [
        ('--algorithm=dpsgd', *NETWORK),
        ('--algorithm=ntk_dfl', '--loss=task', '--ntk_timesteps=5,20', *NETWORK),
        (
            *('--algorithm=dfml', '--supervision=ce', '--architectures=cnn-2-4', '--clients=4'),
            *('--rounds=2', '--dfml_mutual_epochs=1'),
        ),
        (
            *('--algorithm=ad_psgd', '--topology=ring', '--clients=6', '--rounds=2'),
            *('--world=speed=1e7', '--round_seconds=1'),
        ),
    ],
    ids=lambda flags: flags[0],
)
def test_a_loss_of_ones_own_reaches_the_method_on_digits(flags, focal, tmp_path):
    here(
        *('--train_samples=100', '--test_samples=60', focal, *flags, f'--out={tmp_path}/out')
    ).succeeded()
    row = rows_of(tmp_path / 'out')[-1]
    assert 0 < row['consensus_loss'] < 10 and 'consensus_accuracy' in row
    again = here('--resume', '--allow_imports', f'--out={tmp_path}/out')
    assert again.status == 0 and 'nothing to resume' in again.out


@pytest.mark.parametrize(
    ('flags', 'words'),
    [
        (
            ('--algorithm=ntk_dfl',),
            'not of focal; take a gradient method, such as dfedavg, or set loss=',
        ),
        (('--algorithm=spark',), 'by their cross-entropy, and focal has none; take ntk_dfl with'),
        (
            ('--algorithm=dfedavg', '--supervision=ace'),
            'supervision=ace is a loss of classes, a form of the cross-entropy, not of focal',
        ),
    ],
)
def test_a_loss_of_ones_own_is_not_replaced_by_another(flags, words, focal, tmp_path):
    line = here(focal, '--train_samples=100', *NETWORK, *flags, f'--out={tmp_path}/out').error
    assert words in line and not (tmp_path / 'out').exists()


TRAINING = """
import jax.numpy as jnp, optax

def momentum(learning_rate, decay=0.5):
    return optax.chain(optax.trace(decay), optax.scale_by_learning_rate(learning_rate))

def halved(round):
    return 0.5 ** round

def loud(learning_rate):
    raise RuntimeError('too loud')

def pair(round):
    return jnp.ones(2)

def plain(learning_rate):
    return learning_rate
"""


@pytest.fixture
def training(tmp_path, monkeypatch):
    """A module with optimizers and schedules, and the flags of a run of digits."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'trainers.py').write_text(TRAINING)
    yield ('--algorithm=dpsgd', '--train_samples=100', '--clients=4', '--degree=2', '--rounds=3')
    sys.modules.pop('trainers', None)


def test_an_optimizer_and_a_schedule_of_ones_own(training, tmp_path):
    """They are what optax and the library call otherwise, from Python, too, and go on."""
    runs = {
        'own': ('--optimizer=trainers:momentum', '--optimizer_options=decay=0.9'),
        'named': ('--momentum=0.9',),
        'halved': ('--lr_schedule=trainers:halved',),
        'decayed': ('--lr_decay=0.5',),
    }
    losses = {}
    for name, flags in runs.items():
        assert here(*training, *flags, f'--out={tmp_path}/{name}').status == 0
        losses[name] = [row['consensus_loss'] for row in rows_of(tmp_path / name)]
    assert losses['own'] == pytest.approx(losses['named'], rel=1e-5)
    assert losses['halved'] == pytest.approx(losses['decayed'], rel=1e-5)
    assert losses['own'] != losses['halved']
    module = sys.modules['trainers']
    given = dict(algorithm='dpsgd', train_samples=100, clients=4, degree=2, rounds=3)
    own = {'optimizer': module.momentum, 'optimizer_options': 'decay=0.9'}
    for name, more in (('own', own), ('halved', {'lr_schedule': module.halved})):
        run = Experiment.of(**given, **more).run(tmp_path / f'{name}-python', progress=False)
        assert [row['consensus_loss'] for row in run] == losses[name]
        one, other = (load(tmp_path / folder, True) for folder in (name, f'{name}-python'))
        assert one.config['algorithm'] == other.config['algorithm']
        assert one.config['inputs']['code'] == other.config['inputs']['code']
    again = here('--resume', '--rounds=4', f'--out={tmp_path}/own')
    assert '--optimizer=trainers:momentum' in again.error and '--allow_imports' in again.error
    here('--resume', '--rounds=4', '--allow_imports', f'--out={tmp_path}/own').succeeded()
    grid = (
        '--sweep=optimizer:sgd,trainers:momentum',
        '--sweep=lr_schedule:cosine:3,trainers:halved',
    )
    assert swept(*training, *grid, f'--out={tmp_path}/s').status == 0
    ours = rows_of(tmp_path / 's' / 'optimizer=sgd,lr_schedule=trainers:halved')
    assert [row['consensus_loss'] for row in ours] == pytest.approx(losses['halved'], rel=1e-5)


@pytest.mark.parametrize(
    ('flag', 'words'),
    [
        ('optimizer=trainers:loud', 'its factory failed: RuntimeError: too loud (line 11 of'),
        ('optimizer=trainers:plain', 'it is of type float, none of optax'),
        ('optimizer=trainers:nothing', 'cannot be imported: AttributeError'),
        ('lr_schedule=trainers:pair', 'for a round, not a number'),
        ('lr_schedule=trainers:nothing', 'cannot be imported: AttributeError'),
    ],
)
def test_an_optimizer_or_a_schedule_that_is_none(flag, words, training, tmp_path):
    line = here(*training, f'--{flag}', f'--out={tmp_path}/out').error
    assert f'--{flag}' in line and words in line
    assert not (tmp_path / 'out').exists()


def test_a_schedule_that_is_misspelt_is_no_module(training, tmp_path):
    line = here(*training, '--lr_schedule=cosin:7', f'--out={tmp_path}/out').error
    assert "'cosin:7' is no schedule" in line
