"""Tasks other than classification: what is learnt, what is reported, and what is refused."""

import dataclasses
import functools
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import test_contract as contract
from flax import linen as nn
from helpers import assert_refused
from test_images import paint

from dfl_jax import Clients, data, simulate, topology
from dfl_jax.data.dataset import DataError
from dfl_jax.exchange import one_round
from dfl_jax.heterogeneous.population import populate
from dfl_jax.methods import make
from dfl_jax.models import MLP, Linear, bind
from dfl_jax.papers.theory import convergence
from dfl_jax.setting_error import SettingError
from dfl_jax.tasks import (
    CLASSIFICATION,
    MULTI_LABEL,
    NEXT_TOKEN,
    REGRESSION,
    TASKS,
    Loss,
    Task,
    correct,
    cross_entropies,
    squared_errors,
)

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


@pytest.mark.slow
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
    state, info = one_round(algorithm, jax.random.key(1), state, 0, graph, clients)
    ones = np.hstack([x, np.ones((60, 1))])
    best, *_ = np.linalg.lstsq(ones, y)
    found = np.asarray(algorithm.predict(state, x.astype(np.float32))['client'])  # [M, N, C]
    np.testing.assert_allclose(found, np.broadcast_to(ones @ best, found.shape), atol=0.05)
    least = 0.5 * np.mean((ones @ best - y) ** 2)
    np.testing.assert_allclose(info.loss, np.full(4, least), rtol=2e-3)
    assert info.sent['labels'].bits == 2 * 32


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
        return one_round(method, jax.random.key(1), state, 0, graph, given)[0].params

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
    with pytest.raises(ValueError, match=r'or a regression, not of median; .* set loss=task'):
        make('ntk_dfl', bind(MODULES['median'], x.shape[1:], median_of()))
    with pytest.raises(ValueError, match=r'not of next_token; take a gradient method, .*avg$'):
        make('ntk_dfl', bind(MODULES['next_token'], (LENGTH,), NEXT_TOKEN), loss='task')
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
    assert_refused(said, path, task=TASKS[task])


def test_what_a_file_holds(tmp_path):
    for task, outputs, kind in ((REGRESSION, 2, 'f'), (NEXT_TOKEN, TOKENS, 'i')):
        found = data.load(saved(tmp_path / 'set.npz', task), task=task)
        assert (found.classes, found.train_y.dtype.kind) == (outputs, kind)
        with pytest.raises(SettingError, match='by class'):
            data.partition('dirichlet', found, 6, seed=0)
        parts = data.partition('iid', found, 6, seed=0)
        packed = data.pack(found.train_x, found.train_y, parts)
        assert isinstance(packed, Clients) and packed.y.shape == (6, 50, *found.train_y.shape[1:])
    assert_refused('digits has classes', 'digits', task=REGRESSION)
    assert TASKS['classification'] is CLASSIFICATION


# ------------------------------------------------------------------- losses and tasks of one's own


def focal(logits, y):
    """(1 - p_y)^2 times the cross-entropy."""
    losses = cross_entropies(logits, y)
    return (1 - jnp.exp(-losses)) ** 2 * losses


def ordinal(logits, y):
    """Sigmoid cross-entropy of `more than c`, for each threshold c: an output fewer than grades."""
    above = y[:, None] > jnp.arange(logits.shape[1])[None]
    return jnp.mean(jax.nn.softplus(logits) - above * logits, axis=1)


def graded(logits, y):
    return jnp.sum(logits > 0, axis=1) == y


def huber(outputs, y):
    errors = jnp.abs(outputs - y.reshape(outputs.shape))
    return jnp.mean(jnp.where(errors < 1, errors**2 / 2, errors - 0.5), axis=1)


FOCAL = CLASSIFICATION._replace(name='focal', losses=focal)
ORDINAL = Task(
    'ordinal', Loss(ordinal, one_output_each=False), 'accuracy', graded, whole_targets=True
)
HUBER = Task('huber', huber, 'rmse', squared_errors, reported=np.sqrt, lower_is_better=True)
SCORED = CLASSIFICATION._replace(
    name='scored', metric='rank', scores=lambda z, y: jnp.argsort(jnp.argsort(z))[:, 0] + 0.0 * y
)


@pytest.mark.parametrize(
    'name', [contract.case(n) for n in contract.ALGORITHMS_UNDER_TEST if n != 'spark']
)
def test_no_method_learns_by_another_loss_than_that_of_its_task(name, monkeypatch):
    """By a loss that is zero nobody moves, and all clients begin alike."""
    nothing = CLASSIFICATION._replace(losses=lambda z, y: 0 * cross_entropies(z, y))
    models = {n: bind(MLP(contract.CLASSES, (4,)), (contract.FEATURES,), nothing) for n in ('a',)}
    alike = populate(models, ['a'] * contract.CLIENTS)
    monkeypatch.setattr(contract, 'MODEL', models['a'])
    monkeypatch.setattr(contract, 'MIXED', alike)
    monkeypatch.setattr(contract, 'ALIKE', alike)
    for settings in (contract.AVERAGED, contract.TAUGHT):
        monkeypatch.setitem(settings, 'supervision', 'ce')
    if name in ('ntk_dfl', 'ntk_fl'):
        cohort = {'cohort': contract.COHORT} if name == 'ntk_fl' else {}
        method = make(name, models['a'], loss='task', lr=0.1, timesteps=(3, 8), **cohort)
    else:
        method = contract.ALGORITHMS_UNDER_TEST[name]()
    assert method.task is nothing
    family = {**contract.MEETING, 'ntk_fl': contract.COHORTS}.get(name, 'line')
    clients, graph = contract.network(), jax.tree.map(lambda a: a[0], contract.schedule(family))
    state = method.init(jax.random.key(3), clients)
    step = jax.jit(functools.partial(one_round, method))
    after, info = step(jax.random.key(4), state, 0, graph, clients)
    assert not np.asarray(info.loss).any()
    if name in ('dispfl', 'dec_fml'):  # whose masks are drawn anew, whose memes begin elsewhere
        return
    x = clients.x[0, :5]
    before, found = (method.predict(each, x)['client'] for each in (state, after))
    np.testing.assert_allclose(found, before, atol=1e-3)  # weights may decay


@pytest.mark.parametrize('task', [FOCAL, ORDINAL], ids=lambda task: task.name)
@pytest.mark.parametrize('name', ['dfedavg', 'ntk_dfl', 'ntk_fl'])
def test_classes_are_learnt_by_a_loss_of_one_s_own(name, task):
    """Every timestep lowers the loss that is asked for, and the outputs end where it is low."""
    found = data.load('digits', task=task, train_samples=300)
    outputs = 9 if task is ORDINAL else 10
    model = bind(MLP(outputs, (16,)), found.train_x.shape[1:], task)
    parts = data.partition('iid', found, 4, seed=0)
    clients = data.pack(found.train_x, found.train_y, parts)
    settings = {'loss': 'task', 'lr': 0.02, 'timesteps': (50, 200, 800)}
    if name == 'dfedavg':
        settings = {'lr': 0.3, 'local_epochs': 10, 'batch_size': 10}
    graphs = topology.schedule('complete', 4, 3, seed=0)
    if name == 'ntk_fl':
        graphs, settings = topology.cohorts(4, 3, 4, seed=0), settings | {'cohort': 4}
    method = make(name, model, **settings)
    test = simulate.Holdout(found.test_x, found.test_y)
    first = method.predict(method.init(jax.random.key(0), clients), found.test_x)['consensus']
    *_, (metrics, state, _) = simulate.run(method, clients, graphs, test, jax.random.key(1))
    last = method.predict(state, found.test_x)['consensus']
    before, after = (float(task.losses(each, found.test_y).mean()) for each in (first, last))
    assert metrics['consensus_loss'] == pytest.approx(after, rel=1e-4)
    assert after < 0.5 * before and metrics['consensus_accuracy'] > (0.6 if task is FOCAL else 0.3)


@pytest.mark.parametrize('evolution', ['sampled', 'rkc', 'euler'])
@pytest.mark.parametrize('task', [CLASSIFICATION, REGRESSION], ids=lambda task: task.name)
def test_the_loss_of_a_known_task_evolves_as_in_closed_form(task, evolution):
    """That of regression is twice half of the squared error, so that half the rate is the same."""
    x, numbers = arrays(REGRESSION, 60)
    y = np.argmax(numbers, axis=1) if task is CLASSIFICATION else numbers
    clients = data.pack(x, y, np.split(np.arange(60), 4))
    model = bind(MLP(2, (8,)), x.shape[1:], task)
    graph = jax.tree.map(lambda a: a[0], topology.schedule('ring', 4, 1, seed=0))

    def after(loss, lr):
        more = {'timesteps': (20, 50), 'evolution': evolution}
        method = make('ntk_dfl', model, loss=loss, lr=lr, **more)
        state = method.init(jax.random.key(0), clients)
        step = jax.jit(functools.partial(one_round, method))
        state, info = step(jax.random.key(1), state, 0, graph, clients)
        return state.params, info

    params, info = after(task.flow[0], 0.2)
    own, of_own = after('task', 0.2 if task is CLASSIFICATION else 0.1)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4), params, own)
    factor = 1 if task is CLASSIFICATION else 2
    np.testing.assert_allclose(of_own.loss, factor * info.loss, rtol=1e-3)
    labels = info.sent['labels'], of_own.sent['labels']
    np.testing.assert_array_equal(*(sent.messages * sent.bits for sent in labels))


@pytest.mark.slow
def test_a_task_with_the_loss_of_another_is_trained_alike():
    """Only what is replaced is another, to the last bit."""
    found = data.load('digits', train_samples=100)
    clients = data.pack(found.train_x, found.train_y, np.split(np.arange(100), 4))
    graph = jax.tree.map(lambda a: a[0], topology.schedule('ring', 4, 1, seed=0))

    def after(task, name, settings):
        model = bind(MLP(10, (8,)), found.train_x.shape[1:], task)
        method = make(name, model, lr=0.1, **settings)
        state = method.init(jax.random.key(0), clients)
        step = jax.jit(functools.partial(one_round, method))
        return step(jax.random.key(1), state, 0, graph, clients)[0].params

    for name, settings in (
        ('dfedavg', {'supervision': 'wsm'}),
        ('dsgt', {}),
        ('spark', {'projection_dim': 10, 'timesteps': (5, 10)}),
        ('ntk_dfl', {'timesteps': (5, 10)}),
        ('ntk_dfl', {'timesteps': (5, 10), 'loss': 'mse'}),
    ):
        expected, got = (after(task, name, settings) for task in (CLASSIFICATION, SCORED))
        jax.tree.map(np.testing.assert_array_equal, expected, got)


def test_what_belongs_to_the_cross_entropy_is_refused_with_another_loss():
    shape = (8, 8, 1)
    for task in (FOCAL, ORDINAL, Task('own', cross_entropies, 'hits', correct, whole_targets=True)):
        model = bind(MLP(10, (4,)), shape, task)
        with pytest.raises(ValueError, match=f'supervision=wsm .* not of {task.name}; set'):
            make('dfedavg', model, supervision='wsm')
        with pytest.raises(ValueError, match=f'by their cross-entropy, and {task.name} has none'):
            make('spark', model, projection_dim=10)
        with pytest.raises(ValueError, match=f'not of {task.name}; take a .* set loss=task'):
            make('ntk_dfl', model)
        with pytest.raises(ValueError, match=f'not of {task.name}; take a .* set loss=task'):
            make('ntk_fl', model, cohort=2, loss='mse')
        population = populate({'a': model}, ['a'] * 3)
        with pytest.raises(ValueError, match=f'supervision=wsm .* not of {task.name}; set'):
            make('dfml', population, rounds=3)
        with pytest.raises(ValueError, match=f'weighted_samples .* of {task.name} is another'):
            make('dfml', population, rounds=3, supervision='ce', weighted_samples=True)
        with pytest.raises(ValueError, match=f'of the cross-entropy, and the loss of {task.name}'):
            convergence.diagnose(model)
    with pytest.raises(ValueError, match='learn different tasks: focal, classification'):
        two = (bind(MLP(10, (4,)), shape, task) for task in (FOCAL, CLASSIFICATION))
        populate(dict(zip('ab', two, strict=True)), ['a', 'b'])


@pytest.mark.parametrize('task', [FOCAL, ORDINAL, SCORED], ids=lambda task: task.name)
def test_all_data_with_classes_serve_every_task_of_classes(task, tmp_path):
    x, y = np.zeros((20, 3)), np.arange(20) % 4
    np.savez(tmp_path / 'set.npz', train_x=x, train_y=y, test_x=x, test_y=y)
    table = tmp_path / 'set.csv'
    table.write_text('a,b\n' + ''.join(f'{n * n},k{n % 4}\n' for n in range(40)))
    pictures = tmp_path / 'pictures'
    for name, colour in (('ant', 3), ('bee', 250)):
        for number in range(5):
            paint(pictures / name / f'{number}.png', (colour, colour + number, 9 * number))
    leaf = tmp_path / 'leaf'
    for half in ('train', 'test'):
        (leaf / half).mkdir(parents=True)
        of_user = {'x': [[1.0, 2.0], [0.0, 1.0]], 'y': [0, 1]}
        text = json.dumps({'users': ['u'], 'user_data': {'u': of_user}})
        (leaf / half / 'all.json').write_text(text)
    for name, more in (
        ('digits', {}),
        ('synthetic', {}),
        (tmp_path / 'set.npz', {}),
        (table, {'columns': {'target': 'b'}}),
        ('image_folder', {'data_dir': pictures, 'image_size': 8}),
        ('leaf', {'data_dir': leaf}),
    ):
        expected, found = (data.load(name, task=each, **more) for each in (CLASSIFICATION, task))
        jax.tree.map(np.testing.assert_array_equal, expected, found)
        if name not in (table, tmp_path / 'set.npz', 'leaf'):
            with pytest.raises(DataError, match=r'has classes, .* of huber: .*whole_targets=True'):
                data.load(name, task=HUBER, **more)


def test_numbers_of_a_table_are_scaled_for_every_task_that_does_not_refuse_it(tmp_path):
    table = tmp_path / 'set.csv'
    rng = np.random.default_rng(0)
    rows = rng.normal(300, 90, (50, 3))
    np.savetxt(table, np.column_stack([rows, rows[:, 0] > 300]), '%g', ',', header='a,b,c,d')
    table.write_text(table.read_text().replace('# ', ''))
    price, both = {'target': 'c', 'drop': 'd'}, {'target': 'b+c', 'drop': 'd'}
    named = REGRESSION._replace(name='huber', losses=huber)
    for columns in (price, both):
        expected = data.load(table, columns=columns, task=REGRESSION)
        assert abs(expected.train_y.mean()) < 1e-5 and expected.train_y.std() == pytest.approx(1)
        for task in (HUBER, named, HUBER._replace(scaled_targets=True)):
            found = data.load(table, columns=columns, task=task)
            jax.tree.map(np.testing.assert_array_equal, expected, found)
        raw = data.load(table, columns=columns, task=HUBER._replace(scaled_targets=False))
        assert raw.train_y.mean() > 200 and raw.train_y.shape == expected.train_y.shape
    label = {'target': 'd'}
    assert_refused('holds 0 and 1 alone, and huber does not say', table, columns=label, task=HUBER)
    for task in (HUBER._replace(scaled_targets=False), HUBER._replace(binary_targets=True)):
        assert set(data.load(table, columns=label, task=task).train_y.ravel()) == {0, 1}
    losses = MULTI_LABEL._replace(name='tags', losses=lambda z, y: jnp.mean((z - y) ** 2, axis=1))
    assert set(data.load(table, columns=label, task=losses).train_y.ravel()) == {0, 1}
    assert_refused('the targets of tags must be 0 or 1', table, columns=price, task=losses)


def test_the_loss_of_a_task_is_its_own_whatever_its_outputs_may_evolve_by():
    brier = Loss(lambda z, y: jnp.sum((jax.nn.softmax(z) - jax.nn.one_hot(y, 10)) ** 2, -1))
    declared = dataclasses.replace(brier, flow=('mse', 'cross_entropy'))
    tasks = [CLASSIFICATION._replace(losses=losses) for losses in (brier, declared)]
    assert not any(task.cross_entropy for task in tasks) and CLASSIFICATION.cross_entropy
