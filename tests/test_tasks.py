"""Tasks other than classification: what is learnt, what is reported, and what is refused."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dfl_jax import Clients, data, simulate, topology
from dfl_jax.algorithms import make
from dfl_jax.data.formats import DataError
from dfl_jax.data.partitions import PartitionError
from dfl_jax.heterogeneous.population import populate
from dfl_jax.models import MLP, Linear, bind
from dfl_jax.tasks import CLASSIFICATION, MULTI_LABEL, NEXT_TOKEN, REGRESSION, TASKS, Task

TOKENS, LENGTH, FEATURES = 4, 6, 5


class Tokens(nn.Module):
    """The next token from the present one alone, [B, L] -> [B, L, C]."""

    classes: int

    @nn.compact
    def __call__(self, x):
        return nn.Dense(self.classes)(jax.nn.one_hot(x.astype(int), self.classes))


def median_of(classes=1):
    """A task of one's own: absolute errors."""
    errors = lambda outputs, y: jnp.abs(outputs[:, 0] - y)  # noqa: E731
    return Task('median', errors, 'mae', errors, lower_is_better=True)


def arrays(task, n=400, seed=0):
    """Inputs and targets that a model can learn."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, FEATURES)).astype(np.float32)
    numbers = x @ np.linspace(-1, 1, 2 * FEATURES).reshape(FEATURES, 2)
    if task is NEXT_TOKEN:  # each token is the one before, plus one
        tokens = (rng.integers(TOKENS, size=(n, 1)) + np.arange(LENGTH + 1)) % TOKENS
        return tokens[:, :-1].astype(np.float32), tokens[:, 1:].astype(np.int32)
    return {
        'regression': (x, numbers.astype(np.float32)),
        'multi_label': (x, (numbers > 0).astype(np.float32)),
        'median': (x, numbers[:, 0].astype(np.float32)),
    }[task.name]


MODULES = {
    'regression': MLP(2, (16,)),
    'multi_label': MLP(2, (16,)),
    'next_token': Tokens(TOKENS),
    'median': Linear(1),
}


def trained(task, name='dfedavg', rounds=15, **settings):
    """The metrics of a run of six clients."""
    x, y = arrays(task)
    model = bind(MODULES[task.name], x.shape[1:], task)
    clients = data.pack(x, y, np.array_split(np.arange(300), 6))
    graphs = topology.schedule('ring', 6, rounds, seed=0)
    if name not in ('ntk_dfl', 'ntk_fl'):
        settings = {'lr': 0.1, 'local_epochs': 3, 'batch_size': 10} | settings
    algorithm = make(name, model, **settings)
    test = simulate.Holdout(x[300:], y[300:])
    run = simulate.run(algorithm, clients, graphs, test, jax.random.key(0), eval_every=rounds)
    metrics, state, _ = list(run)[-1]
    return metrics, algorithm.predict(state, x[300:]), y[300:]


@pytest.mark.parametrize(
    ('name', 'settings'), [('dfedavg', {}), ('dsgt', {}), ('ntk_dfl', {'loss': 'mse', 'lr': 0.1})]
)
def test_regression_reports_the_root_of_its_mean_squared_error(name, settings):
    metrics, outputs, y = trained(REGRESSION, name, **settings)
    found = np.sqrt(np.mean((np.asarray(outputs['consensus']) - y) ** 2))
    assert metrics['consensus_rmse'] == pytest.approx(found, rel=1e-5)
    each = np.sqrt(np.mean((np.asarray(outputs['client']) - y[None]) ** 2, axis=(1, 2)))
    assert metrics['client_rmse_mean'] == pytest.approx(each.mean(), rel=1e-5)
    assert metrics['client_rmse_max'] == pytest.approx(each.max(), rel=1e-5)
    quantiles = np.quantile(each, np.linspace(0, 1, 21))
    assert metrics['client_rmse_quantiles'] == pytest.approx(quantiles, rel=2e-5)
    assert metrics['consensus_loss'] == pytest.approx(found**2, rel=1e-4)
    assert found < 0.2 * y.std()  # what the mean target leaves is its deviation
    assert not any('accuracy' in key for key in metrics)


@pytest.mark.parametrize('evolution', ['sampled', 'rkc', 'eigh'])
def test_ntk_dfl_evolves_a_linear_model_to_the_least_squares(evolution):
    """Where all hear all, and the kernel of a linear model is exact, one long round is enough."""
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(60, FEATURES)), rng.normal(size=(60, 2))
    y = x @ rng.normal(size=(FEATURES, 2)) + noise + 3
    clients = data.pack(x.astype(np.float32), y.astype(np.float32), np.split(np.arange(60), 4))
    model = bind(MLP(2, ()), (FEATURES,), REGRESSION)
    more = {'loss': 'mse', 'evolution': evolution, 'lr': 0.01, 'timesteps': (1000, 4000)}
    algorithm = make('ntk_dfl', model, **more)
    state = algorithm.init(jax.random.key(0), clients)
    graph = jax.tree.map(lambda a: a[0], topology.schedule('complete', 4, 1, seed=0))
    state, info = algorithm.step(jax.random.key(1), state, graph, clients)
    ones = np.hstack([x, np.ones((60, 1))])
    best, *_ = np.linalg.lstsq(ones, y)
    found = np.asarray(algorithm.predict(state, x.astype(np.float32))['client'])  # [M, N, C]
    np.testing.assert_allclose(found, np.broadcast_to(ones @ best, found.shape), atol=0.05)
    least = 0.5 * np.mean((ones @ best - y) ** 2)
    np.testing.assert_allclose(info.loss, np.full(4, least), rtol=2e-3)
    assert algorithm.unit_bits['labels'] == 2 * 32


def test_multi_label_counts_labels():
    metrics, outputs, y = trained(MULTI_LABEL)
    assert metrics['consensus_accuracy'] > 0.9
    right = (np.asarray(outputs['consensus']) > 0) == (y > 0)
    assert metrics['consensus_accuracy'] == pytest.approx(right.mean(), abs=1e-6)


def test_next_token_learns_the_rule():
    metrics, *_ = trained(NEXT_TOKEN)
    assert metrics['consensus_accuracy'] == 1.0 > 1 / TOKENS
    assert metrics['consensus_loss'] < 0.5 * np.log(TOKENS)


def test_a_task_of_one_s_own():
    metrics, outputs, y = trained(median_of(), lr=0.05)
    found = np.abs(np.asarray(outputs['consensus'])[:, 0] - y).mean()
    assert metrics['consensus_mae'] == pytest.approx(found, rel=1e-5)
    assert found < 0.2 * np.abs(y).mean()


def test_losses_are_those_of_the_textbook():
    logits = np.random.default_rng(0).normal(size=(3, 4, TOKENS))
    tokens = np.array([[0, 1, 2, 3]] * 3)
    p = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    expected = -np.log(np.take_along_axis(p, tokens[..., None], 2)).mean(axis=(1, 2))
    found = NEXT_TOKEN.losses(jnp.array(logits), jnp.array(tokens))
    np.testing.assert_allclose(found, expected, 1e-5)
    labels = np.array([[0.0, 1, 1, 0]] * 3)
    s = 1 / (1 + np.exp(-logits[:, 0]))
    expected = -(labels * np.log(s) + (1 - labels) * np.log(1 - s)).mean(axis=1)
    found = MULTI_LABEL.losses(jnp.array(logits[:, 0]), jnp.array(labels))
    np.testing.assert_allclose(found, expected, 1e-5)


@pytest.mark.parametrize('name', ['dfedavg', 'dispfl'])
def test_targets_in_the_padding_change_nothing(name):
    x, y = arrays(REGRESSION)
    clients = data.pack(x, y, np.array_split(np.arange(20), 3))  # 7, 7 and 6 samples
    model = bind(MODULES['regression'], x.shape[1:], REGRESSION)
    method = make(name, model, lr=0.1, local_epochs=2, batch_size=4)
    graph = jax.tree.map(lambda a: a[0], topology.schedule('complete', 3, 1, seed=0))

    def after(y):
        given = clients._replace(y=y)
        state = method.init(jax.random.key(0), given)
        return method.step(jax.random.key(1), state, graph, given)[0].params

    dirty = np.where(clients.mask[..., None], clients.y, np.nan)
    assert np.isnan(dirty).any()
    jax.tree.map(np.testing.assert_array_equal, after(clients.y), after(dirty))


@pytest.mark.parametrize('name', ['dfedavg', 'dispfl', 'ntk_dfl', 'ntk_fl', 'spark'])
def test_every_method_is_evaluated_by_the_task_of_its_model(name):
    task = CLASSIFICATION._replace(metric='of_my_own')
    more = {'ntk_fl': {'cohort': 2}, 'spark': {'projection_dim': 10}}.get(name, {})
    assert make(name, bind(MLP(3, (4,)), (5,), task), **more).task is task


def test_who_refuses_what():
    x, y = arrays(REGRESSION)
    model = bind(MODULES['regression'], x.shape[1:], REGRESSION)
    for name, more in (('ntk_dfl', {}), ('ntk_fl', {'cohort': 2})):
        with pytest.raises(ValueError, match='loss=cross_entropy is none of regression; set loss='):
            make(name, model, **more)
    with pytest.raises(ValueError, match=r'SPARK distils .*, and regression has none'):
        make('spark', model, projection_dim=10, loss='mse')
    with pytest.raises(ValueError, match='or a regression, not of median; take a gradient method'):
        make('ntk_dfl', bind(MODULES['median'], x.shape[1:], median_of()))
    with pytest.raises(ValueError, match='supervision=wsm is a loss of classes'):
        make('dfedavg', model, supervision='wsm')
    with pytest.raises(ValueError, match=re.escape('has to return logits [B, L, C]')):
        bind(MODULES['regression'], x.shape[1:], NEXT_TOKEN)
    with pytest.raises(ValueError, match='learn classes'):
        populate({'a': model}, ['a'] * 3)
    clients = data.pack(x, y, np.array_split(np.arange(300), 3))
    wrong = simulate.Holdout(x[300:], y[300:, 0])
    graphs = topology.schedule('ring', 3, 1, seed=0)
    with pytest.raises(ValueError, match=re.escape('with labels of (2,)')):
        next(simulate.run(make('dpsgd', model), clients, graphs, wrong, jax.random.key(0)))


def saved(path, task, **changes):
    x, y = arrays(task)
    content = {'train_x': x[:300], 'train_y': y[:300], 'test_x': x[300:], 'test_y': y[300:]}
    np.savez(path, **(content | changes))
    return path


@pytest.mark.parametrize(
    ('task', 'changes', 'said'),
    [
        ('regression', {'train_y': np.full((300, 2), np.nan)}, 'must be finite real numbers'),
        ('regression', {'test_y': np.zeros((100, 3))}, 'the targets of regression'),
        ('multi_label', {'train_y': np.zeros(300)}, 'the targets of multi_label'),
        ('multi_label', {'test_y': np.full((100, 2), 2)}, 'must be 0 or 1, found 2'),
        ('regression', {'test_y': np.full((100, 2), 1e300)}, 'as float32 holds'),
        ('next_token', {'train_y': np.zeros((300, LENGTH))}, 'must be integers from 0'),
    ],
)
def test_targets_of_the_wrong_kind(task, changes, said, tmp_path):
    path = saved(tmp_path / 'set.npz', TASKS[task], **changes)
    with pytest.raises(DataError, match=said):
        data.load(path, task=TASKS[task])


def test_what_a_file_holds(tmp_path):
    for task, outputs, kind in ((REGRESSION, 2, 'f'), (NEXT_TOKEN, TOKENS, 'i')):
        found = data.load(saved(tmp_path / 'set.npz', task), task=task)
        assert (found.classes, found.train_y.dtype.kind) == (outputs, kind)
        with pytest.raises(PartitionError, match='by class'):
            data.partition('dirichlet', found, 6, seed=0)
        parts = data.partition('iid', found, 6, seed=0)
        packed = data.pack(found.train_x, found.train_y, parts)
        assert isinstance(packed, Clients) and packed.y.shape == (6, 50, *found.train_y.shape[1:])
    with pytest.raises(DataError, match='digits has classes'):
        data.load('digits', task=REGRESSION)
    assert TASKS['classification'] is CLASSIFICATION
