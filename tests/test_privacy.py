"""Privacy: gradients of single samples, noise, what is accounted for, and what is refused."""

import functools
import json

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import reference_privacy
from flax import linen as nn
from helpers import round_of
from jax.flatten_util import ravel_pytree
from optax import contrib

from dfl_jax import Clients, topology
from dfl_jax.cli.report.saved_runs import find_runs, group_runs
from dfl_jax.cli.report.tables import measured
from dfl_jax.cli.sweep.plan import Run
from dfl_jax.cli.sweep.results import write_results
from dfl_jax.exchange import one_round, shared_noise
from dfl_jax.execution.random_numbers import normal_like, uniform
from dfl_jax.experiment import Experiment
from dfl_jax.experiment.accounting import (
    RATIOS,
    correlated_multipliers,
    epsilon_of,
    epsilon_of_divergence,
    multipliers_to_neighbours,
    noise_for,
)
from dfl_jax.experiment.method import flat_settings
from dfl_jax.experiment.saved_run import SavedRun
from dfl_jax.methods import METHODS, make
from dfl_jax.models import MLP, Linear, SmallCNN, bind
from dfl_jax.setting_error import SettingError
from dfl_jax.tasks import REGRESSION
from dfl_jax.training.batches import OVERFLOW, batch_bound
from dfl_jax.training.local import local_training, minibatches
from dfl_jax.training.local_settings import CHUNK, LocalTraining
from dfl_jax.training.private_gradients import clipped_sum, dense_layers, private_change

SMALL = dict(algorithm='dpsgd', train_samples=200, test_samples=60, clients=8, degree=4, rounds=3)
PRIVATE = dict(dp_clip=1.0, dp_noise_multiplier=2.0, dp_delta=1e-3)
ONE_STEP = LocalTraining(lr=1.0, batch_size=6, local_epochs=None, local_steps=1, dp_clip=0.5)
MLP_4 = bind(MLP(3, (5,)), (4,))


class Shared(nn.Module):
    """A dense layer that is called twice, of whose gradient a layer's inputs do not tell."""

    @nn.compact
    def __call__(self, x):
        layer = nn.Dense(4)
        return nn.Dense(3)(layer(nn.relu(layer(x))))


def last(**settings):
    return [*Experiment.of(**SMALL | settings).run(progress=False)][-1]


def losses_of(outputs, y):
    return optax.softmax_cross_entropy_with_integer_labels(outputs, y)


class Half(nn.Module):
    """Weights of 16 bits."""

    classes: int

    @nn.compact
    def __call__(self, x):
        layer = nn.Dense(self.classes, param_dtype=jnp.bfloat16)
        return layer(x.reshape(len(x), -1)).astype(jnp.float32)


class Coupled(nn.Module):
    """Dense layers alone, and what a sample leads to depends on the others of its batch."""

    @nn.compact
    def __call__(self, x):
        hidden = nn.relu(nn.Dense(8)(x))
        return nn.Dense(3)(hidden - hidden.mean(axis=0, keepdims=True))


def batch(model, samples=9, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(samples, *model.input_shape))
    x *= rng.uniform(0.1, 5, (samples, *[1] * len(model.input_shape)))
    return x, rng.integers(3, size=samples), rng.random(samples) < 0.7


def one_client(samples=6, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(1, samples, 4)).astype(np.float32)
    y = rng.integers(3, size=(1, samples)).astype(np.int32)
    return Clients(jnp.asarray(x), jnp.asarray(y), jnp.ones((1, samples), bool))


def of_one(tree):
    return jax.tree.map(lambda leaf: leaf[None], tree)


# ----------------------------------------------------------------------------- gradients


def test_clipped_gradients_are_those_of_the_reference():
    with jax.enable_x64(True):
        params = jax.tree.map(lambda a: a.astype(jnp.float64), MLP_4.init(jax.random.key(0)))
        x, y, valid = batch(MLP_4)
        _, found = clipped_sum(
            MLP_4, params, jnp.asarray(x), jnp.asarray(y), losses_of, valid, 0.5, jax.random.key(0)
        )
        names = sorted(params)
        layers = [
            tuple(np.asarray(params[name][part]) for part in ('kernel', 'bias')) for name in names
        ]
        expected = reference_privacy.clipped_sum(layers, x[valid], y[valid], 0.5)
        for name, (kernel, bias) in zip(names, expected, strict=True):
            np.testing.assert_allclose(found[name]['kernel'], kernel, rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(found[name]['bias'], bias, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ('module', 'shape', 'dense'),
    [
        (MLP(3, (5, 4)), (4,), True),
        (MLP(3, ()), (2, 2, 1), True),
        (Shared(), (4,), False),
        (SmallCNN(3), (8, 8, 1), False),
    ],
)
def test_clipped_gradients_are_those_of_optax(module, shape, dense):
    model = bind(module, shape)
    assert (dense_layers(model) is not None) == dense
    params = model.init(jax.random.key(1))
    x, y, valid = batch(model)
    x = jnp.asarray(x, jnp.float32)
    find = jax.jit(
        lambda p: clipped_sum(
            model, p, x, jnp.asarray(y), losses_of, jnp.asarray(valid), 0.3, jax.random.key(0)
        )
    )
    loss, found = find(params)

    def loss_of(params, x, y):
        return losses_of(model.apply(params, x[None]), y[None])[0]

    each = jax.vmap(jax.grad(loss_of), (None, 0, 0))(params, x[valid], y[valid])
    aggregate = contrib.differentially_private_aggregate(0.3, 0.0, 0)
    mean, _ = aggregate.update(each, aggregate.init(params))
    assert max(optax.tree.norm(g) for g in [mean]) > 0
    difference = optax.tree.sub(found, optax.tree.scale(valid.sum(), mean))
    assert optax.tree.norm(difference) < 1e-5 * optax.tree.norm(found)
    total = sum(float(loss_of(params, *one)) for one in zip(x[valid], y[valid], strict=True))
    assert float(loss) == pytest.approx(total, rel=1e-5)


@pytest.mark.parametrize('module', [MLP(3, (5,)), Coupled(), Shared()])
def test_one_sample_moves_the_sum_by_no_more_than_the_bound(module):
    model = bind(module, (4,))
    params = model.init(jax.random.key(1))
    x, y, _ = batch(model, 32)
    x[0] *= 10
    sums = [
        clipped_sum(
            *(model, params, jnp.asarray(x, jnp.float32), jnp.asarray(y), losses_of),
            *(jnp.arange(32) >= without, 0.5, jax.random.key(0)),
        )[1]
        for without in (0, 1)
    ]
    moved = float(optax.tree.norm(optax.tree.sub(*sums)))
    assert 0.1 < moved < 0.5 * (1 + 1e-4)


@pytest.mark.parametrize('module', [MLP(3, (5,)), Shared()])
def test_a_sample_whose_gradient_is_not_finite_counts_as_none(module):
    model = bind(module, (4,))
    params = model.init(jax.random.key(1))
    x, y, _ = batch(model)
    sums = []
    for value in (np.inf, 1.0):
        x[0] = value
        _, found = clipped_sum(
            *(model, params, jnp.asarray(x, jnp.float32), jnp.asarray(y), losses_of),
            *(jnp.arange(9) >= (value == 1.0), 0.5, jax.random.key(0)),
        )
        sums.append(ravel_pytree(found)[0])
    np.testing.assert_allclose(*sums, rtol=1e-5, atol=1e-7)


def test_a_change_that_is_not_finite_is_none():
    start = {'w': jnp.zeros(2)}
    new = private_change(
        ONE_STEP.replace(dp_unit='client'), jax.random.key(0), {'w': jnp.array([jnp.inf, 1])}, start
    )
    np.testing.assert_array_equal(new['w'], 0)


@pytest.mark.parametrize('unit', ['example', 'client'])
def test_what_leaves_a_client_is_clipped(unit):
    settings = ONE_STEP.replace(dp_unit=unit, dp_clip=0.01)
    clients, params = one_client(), of_one(MLP_4.init(jax.random.key(3)))
    new, _ = local_training(MLP_4, settings)(jax.random.key(0), params, clients, jnp.int32(0))
    moved = float(optax.tree.norm(optax.tree.sub(new, params)))
    assert moved == pytest.approx(0.01, rel=1e-3) if unit == 'client' else 0.003 < moved <= 0.01


@pytest.mark.parametrize(
    'settings',
    [
        {},
        {'batch_size': 3},
        {'batch_size': 5, 'local_steps': 2},
        {'batch_sampling': 'poisson', 'batch_size': 3},
        {'dp_unit': 'client', 'local_steps': 4},
    ],
)
def test_noise_has_the_variance_that_is_accounted_for(settings):
    """sigma C over the samples of a batch, for the gradient; sigma C, for a client."""
    model = bind(MLP(3, (400,)), (4,))
    clients, params = one_client(), of_one(model.init(jax.random.key(3)))
    of_both = []
    for noise in (None, 3.0):
        training = ONE_STEP.replace(dp_noise_multiplier=noise, lr=1e-3, **settings)
        train = jax.jit(local_training(model, training))
        of_both.append(train(jax.random.key(5), params, clients, jnp.int32(0))[0])
    noise = ravel_pytree(optax.tree.sub(*of_both))[0] / (1 if 'dp_unit' in settings else 1e-3)
    if 'dp_unit' in settings:
        expected = 3.0 * 0.5
    else:  # of the last batch, of one sample, as much as of the first
        steps = settings.get('local_steps', 1)
        expected = 3.0 * 0.5 / settings.get('batch_size', 6) * np.sqrt(steps)
    assert abs(float(noise.mean())) < 5 * expected / np.sqrt(len(noise))
    assert float(noise.std()) == pytest.approx(expected, rel=4 / np.sqrt(2 * len(noise)))


@pytest.mark.parametrize(
    ('dtype', 'implementation', 'partitionable'),
    [
        (jnp.float32, 'threefry2x32', True),
        (jnp.float64, 'threefry2x32', True),
        (jnp.float32, 'threefry2x32', False),
        (jnp.float32, 'rbg', True),
    ],
)
def test_random_numbers_are_those_of_jax_to_the_bit(dtype, implementation, partitionable):
    with jax.enable_x64(True), jax.threefry_partitionable(partitionable):
        tree = {name: jnp.zeros(shape, dtype) for name, shape in {'a': (7, 3), 'b': ()}.items()}
        keys = jax.random.split(jax.random.key(0, impl=implementation), 5)
        noise = jax.vmap(normal_like, (0, None))(keys, tree)
        of_jax = jax.vmap(optax.tree.random_like, (0, None))(keys, tree)
        jax.tree.map(np.testing.assert_array_equal, noise, of_jax)
        assert noise['a'].dtype == dtype
        numbers = uniform(keys[0], (5, 3), dtype)
        np.testing.assert_array_equal(numbers, jax.random.uniform(keys[0], (5, 3), dtype))
        by_jax = 'random_bits' in str(jax.make_jaxpr(normal_like)(keys[0], tree))
        fast = (jnp.float32, 'threefry2x32', True)
        assert by_jax == ((dtype, implementation, partitionable) != fast)


def test_noise_is_new_in_every_step_and_for_every_client():
    training = ONE_STEP.replace(dp_noise_multiplier=1.0, dp_clip=1e-20, local_steps=2)
    two = jax.tree.map(lambda *a: jnp.concatenate(a), one_client(), one_client())
    params = jax.tree.map(lambda *a: jnp.stack(a), *[MLP_4.init(jax.random.key(3))] * 2)
    runs = {}
    for steps in (1, 2):
        new, _ = local_training(MLP_4, training.replace(local_steps=steps, lr=1e20))(
            jax.random.key(5), params, two, jnp.int32(0)
        )
        runs[steps] = optax.tree.sub(new, params)
    first, second = (ravel_pytree(jax.tree.map(lambda a, i=i: a[i], runs[1]))[0] for i in (0, 1))
    later = ravel_pytree(jax.tree.map(lambda a: a[0], runs[2]))[0] - first
    for one, other in ((first, second), (first, later)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(len(one))


def test_poisson_batches():
    """Each sample with probability B / N, independently, whatever the padding."""
    settings = LocalTraining(lr=0.1, batch_size=5, local_epochs=20, dp_clip=1.0).replace(
        batch_sampling='poisson'
    )
    mask = jnp.arange(40) < 25
    steps, rows = minibatches(settings, jax.random.key(0), mask, mask.sum())
    assert steps == 20 * 5
    chosen = np.zeros((200, 40), int)
    for step in range(200):
        found, valid = jax.jit(rows)(step)
        assert len(found) == batch_bound(5, 40)
        np.add.at(chosen[step], np.asarray(found)[np.asarray(valid)], 1)
    assert chosen.max() == 1 and not chosen[:, 25:].any()
    counts = chosen.sum(axis=1)
    assert counts.mean() == pytest.approx(5, abs=4 * 2 / np.sqrt(200))
    assert counts.var() == pytest.approx(25 * 0.2 * 0.8, rel=0.5)
    assert chosen[:, :25].sum(axis=0).std() == pytest.approx(np.sqrt(200 * 0.16), rel=0.5)


@pytest.mark.parametrize(('size', 'most'), [(1, 50), (20, 60), (20, 10_000), (64, 3_000)])
def test_a_batch_has_room_but_for_a_probability_that_is_accounted_for(size, most):
    from scipy.stats import binom

    bound = batch_bound(size, most)
    assert bound == most or binom.sf(bound, most, size / most) < OVERFLOW
    assert bound <= most


# ----------------------------------------------------------------------------- accounting


@pytest.mark.parametrize(
    ('noise', 'rate', 'releases', 'delta'),
    [
        *[(1.0, 1.0, n, 1e-5) for n in (1, 10, 100)],
        *[(z, 0.02, 500, 1e-5) for z in (0.8, 1.1, 2.0, 5.0)],
        *[(1.5, q, 100, 1e-4) for q in (0.001, 0.1, 0.5)],
    ],
)
def test_epsilon_is_that_of_the_accountant(noise, rate, releases, delta):
    event = dp_accounting.GaussianDpEvent(noise)
    if rate < 1:
        event = dp_accounting.PoissonSampledDpEvent(rate, event)
    accountant = dp_accounting.rdp.RdpAccountant()
    accountant.compose(dp_accounting.SelfComposedDpEvent(event, releases))
    expected = accountant.get_epsilon(delta)
    found = epsilon_of(noise, rate, releases, delta)
    assert found == pytest.approx(expected, rel=1e-5) and found >= expected


def test_a_noise_for_an_epsilon_is_that_of_the_calibration():
    def worst(noise):
        return epsilon_of(noise, 0.05, 200, 1e-5)

    found = noise_for(2.0, worst)

    def event_of(noise):
        event = dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(noise))
        return dp_accounting.SelfComposedDpEvent(event, 200)

    expected = dp_accounting.calibrate_dp_mechanism(
        dp_accounting.rdp.RdpAccountant, event_of, 2.0, 1e-5
    )
    assert found == pytest.approx(expected, rel=1e-4)
    assert worst(found) <= 2.0 < worst(0.999 * found)


def test_delta_is_bounded_by_the_largest_client():
    settings = PRIVATE | dict(partition='dirichlet_split', alpha=2.0)
    sizes = [len(part) for part in Experiment.of(**SMALL | settings).build().parts]
    between = (1 / max(sizes) + 1 / min(sizes)) / 2
    with pytest.raises(SettingError, match=f'one over {max(sizes)} samples'):
        Experiment.of(**SMALL | settings | {'dp_delta': between}).build()


def test_the_memory_of_gradients_of_samples_is_counted():
    plain, private = (
        Experiment.of(**SMALL, model='cnn', devices='1', **settings).build()
        for settings in ({}, PRIVATE)
    )
    more = private.footprint.work - plain.footprint.work
    assert more >= 4 * CHUNK * plain.model.size * (private.resolved['chunk'] or 1)


def test_coarse_weights_are_refused():
    with pytest.raises(SettingError, match='noise finer than weights of bfloat16'):
        Experiment.of(**SMALL | PRIVATE, model=Half).build()


def test_no_noise_no_epsilon_and_no_release_none_spent():
    assert epsilon_of(0.0, 1.0, 3, 1e-5) == np.inf and epsilon_of(1.0, 1.0, 0, 1e-5) == 0


RING_16 = np.roll(np.eye(16), 1, axis=0) + np.roll(np.eye(16), -1, axis=0) > 0


@pytest.mark.parametrize(
    ('sigma', 'sigma_cor', 'epsilon'),
    [
        (22.59997321199106, 251.0, 10.204607815153896),
        (7.4362110748745325, 94.0, 40.07766542313659),
    ],
)
def test_epsilon_of_shared_noise_is_that_of_the_authors(sigma, sigma_cor, epsilon):
    """Their files give it for 2,500 steps (beside runs of 3,500), neighbours by replacement."""
    of_step = reference_privacy.rdp_of_a_step(RING_16, sigma, sigma_cor, 1.5)
    assert epsilon_of_divergence(2500 * of_step, 1e-5) == pytest.approx(epsilon, rel=1e-12)
    multipliers = correlated_multipliers(RING_16, sigma / 3, sigma_cor / 3)
    assert 1 / (2 * multipliers.min() ** 2) == pytest.approx(of_step, rel=1e-12)


def test_shared_noise_without_a_partner_hides_less_and_hides():
    """Against the covariance itself; a link with one end alone is independent noise."""
    rng = np.random.default_rng(0)
    pairs = rng.random((7, 7)) < 0.5
    np.fill_diagonal(pairs, False)
    columns = []
    for i, j in zip(*np.nonzero(np.triu(pairs | pairs.T)), strict=True):
        column = np.zeros(7)
        column[i], column[j] = 3.0 * pairs[i, j], -3.0 * pairs[j, i]
        columns.append(column)
    mixing = np.array(columns).T
    covariance = 4.0 * np.eye(7) + mixing @ mixing.T
    expected = 1 / np.sqrt(np.diag(np.linalg.inv(covariance)))
    np.testing.assert_allclose(correlated_multipliers(pairs, 2.0, 3.0), expected, rtol=1e-12)
    alone = correlated_multipliers(np.zeros((3, 3), bool), 2.0, 3.0)
    np.testing.assert_allclose(alone, 2.0)


def test_shared_noise_hides_less_from_those_who_share_it():
    """Against the covariance of what is left once one client's own noise is known."""
    rng = np.random.default_rng(1)
    pairs = rng.random((6, 6)) < 0.5
    np.fill_diagonal(pairs, False)
    links = [*zip(*np.nonzero(np.triu(pairs | pairs.T)), strict=True)]
    expected = np.full(6, np.inf)
    for known in range(6):
        covariance = 4.0 * np.eye(6)
        for i, j in links:
            if known not in (i, j):
                column = np.zeros(6)
                column[i], column[j] = 3.0 * pairs[i, j], -3.0 * pairs[j, i]
                covariance += np.outer(column, column)
        others = [i for i in range(6) if i != known]
        hidden = 1 / np.sqrt(np.diag(np.linalg.inv(covariance[np.ix_(others, others)])))
        expected[others] = np.minimum(expected[others], hidden)
    found = multipliers_to_neighbours(pairs, 2.0, 3.0)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert (found < correlated_multipliers(pairs, 2.0, 3.0)).any()


# ----------------------------------------------------------------------------- shared noise


def _noise(graph, size=500):
    like = {'w': jnp.zeros((len(graph.members), size))}
    return np.asarray(jax.jit(shared_noise)(jax.random.key(1), graph, like)['w'])


def test_shared_noise_cancels_in_the_sum_and_has_the_variance_of_the_links():
    graph = round_of(data_graphs(), 0)
    noise = _noise(graph, 4000)
    np.testing.assert_allclose(noise.sum(axis=0), 0, atol=2e-5)
    degree = np.asarray(graph.mask)[:, 1:].sum(axis=1)
    np.testing.assert_allclose(noise.var(axis=1), degree, rtol=0.15)


def test_shared_noise_of_a_lost_direction_stays():
    graph = round_of(data_graphs(), 0)
    mask = np.asarray(graph.mask).copy()
    mask[0, 1] = False
    other = int(graph.members[0, 1])
    whole, lost = _noise(graph), _noise(graph._replace(mask=jnp.asarray(mask)))
    changed = np.abs(whole - lost).max(axis=1) > 1e-6
    assert changed.tolist() == [row == 0 for row in range(len(mask))] and other
    assert lost.sum(axis=0).std() == pytest.approx(1, rel=0.2)


@functools.cache
def data_graphs():
    experiment = Experiment.of(**SMALL)
    return experiment.build().graphs


def test_shared_noise_leaves_the_mean_of_models():
    """On a complete graph one averaging takes it away, up to rounding."""
    settings = dict(dp_clip=1.0, dp_noise_multiplier=1e-6, dp_delta=1e-3, local_steps=1)
    settings |= dict(topology='complete', degree=None, rounds=2)
    settings = {name: value for name, value in settings.items() if value is not None}
    base = {name: value for name, value in SMALL.items() if name != 'degree'}
    alone, hidden = (
        [*Experiment.of(**base | settings, dp_correlated_noise=noise).run(progress=False)][-1]
        for noise in (0.0, 30.0)
    )
    assert hidden['consensus_loss'] == pytest.approx(alone['consensus_loss'], rel=1e-3)


# ----------------------------------------------------------------------------- runs


def test_rows_have_the_epsilon_that_is_spent():
    experiment = Experiment.of(**SMALL | PRIVATE, local_epochs=2)
    found = [row['epsilon'] for row in experiment.run(progress=False)]
    assert found == pytest.approx([epsilon_of(2.0, 1.0, 2 * r, 1e-3) for r in (1, 2, 3)])


def test_the_report_has_the_epsilon(tmp_path):
    rows = [*Experiment.of(**SMALL | PRIVATE).run(tmp_path / 'run', progress=False)]
    found, broken = find_runs(tmp_path)
    assert not broken
    table = measured(group_runs(found), 0.5)['Summary']
    (shown,) = (
        row[table.head.index('Epsilon (example, eavesdropper, delta 0.001)')] for row in table.rows
    )
    assert float(shown) == pytest.approx(rows[-1]['epsilon'], rel=1e-2)


def test_clients_of_other_sizes_spend_other_epsilons(tmp_path):
    settings = PRIVATE | dict(partition='dirichlet_split', alpha=2.0, batch_size=2)
    experiment = Experiment.of(**SMALL | settings, batch_sampling='poisson')
    row = [*experiment.run(tmp_path / 'run', progress=False)][-1]
    line = json.loads((tmp_path / 'run/clients.jsonl').read_text().splitlines()[-1])
    sizes = [len(part) for part in experiment.build().parts]
    assert len({*sizes}) > 3
    expected = [epsilon_of(2.0, 2 / n, 3 * int(np.ceil(n / 2)), 1e-3) for n in sizes]
    assert line['epsilon'] == pytest.approx(expected)
    assert row['epsilon'] == pytest.approx(max(expected))


def test_a_run_whose_noise_follows_from_its_rounds_is_not_extended(tmp_path):
    """Else the epsilon of rounds with less noise would be claimed to be that of more."""
    private = dict(dp_clip=1.0, dp_epsilon=5.0, dp_delta=1e-3)
    for _ in Experiment.of(**SMALL | {'rounds': 2}, **private).run(
        tmp_path / 'run', progress=False
    ):
        pass
    with pytest.raises(ValueError, match='dp_noise_multiplier'):
        [*SavedRun(tmp_path / 'run').resume(rounds=3, progress=False)]


def test_the_noise_follows_from_an_epsilon():
    experiment = Experiment.of(**SMALL, dp_clip=1.0, dp_epsilon=5.0, dp_delta=1e-3)
    built = experiment.build()
    noise = built.resolved['dp_noise_multiplier']
    assert epsilon_of(noise, 1.0, 3, 1e-3) == pytest.approx(5.0, rel=1e-4)
    assert [*experiment.run(progress=False)][-1]['epsilon'] <= 5.0


def test_the_noise_for_an_epsilon_is_searched_for_again_where_another_client_spends_most():
    """Clients of 144 samples pass over their data in as many batches, and those of 143 are drawn
    more often."""
    settings = dict(algorithm='dpsgd', dataset='digits', clients=10, partition='iid', rounds=300)
    settings |= dict(batch_size=20, batch_sampling='poisson', dp_clip=1.0)
    built = Experiment.of(**settings, dp_epsilon=8.0, dp_delta=1e-3).build()
    assert built.spending.after(300).max() == pytest.approx(8.0, rel=1e-4)
    few = built.spending.after(300, [3, 3, 7])
    np.testing.assert_array_equal(few, built.spending.after(300)[[3, 3, 7]])


def test_clipping_without_noise_claims_nothing():
    row = last(dp_clip=1.0)
    assert 'epsilon' not in row


@pytest.mark.parametrize(
    'settings', [{}, {'dp_unit': 'client'}, {'local_steps': 1, 'dp_correlated_noise': 2.0}]
)
def test_two_devices_draw_the_noise_of_one(settings):
    one, two = (last(**PRIVATE | settings, devices=devices) for devices in ('1', '2'))
    assert one['consensus_loss'] == pytest.approx(two['consensus_loss'], rel=1e-4)
    assert one['epsilon'] == two['epsilon']


def test_a_run_that_is_extended_goes_on_counting(tmp_path):
    of_all = [row['epsilon'] for row in Experiment.of(**SMALL | PRIVATE).run(progress=False)]
    first = Experiment.of(**SMALL | PRIVATE | {'rounds': 1})
    assert [row['epsilon'] for row in first.run(tmp_path / 'run', progress=False)] == of_all[:1]
    longer = SavedRun(tmp_path / 'run').resume(rounds=3, progress=False)
    assert [row['epsilon'] for row in longer][-2:] == of_all[1:]


DECOR = dict(local_steps=1, dp_correlated_noise=5.0, static_topology=True)
SERVER = PRIVATE | dict(dp_adversary='server', topology='complete', local_steps=1)


def test_a_neighbour_learns_more_than_an_eavesdropper():
    heard, known = (
        last(**PRIVATE | DECOR, dp_adversary=name)['epsilon']
        for name in ('eavesdropper', 'neighbour')
    )
    alone = last(**PRIVATE, local_steps=1)['epsilon']
    assert heard < known < alone


RING = {n: value for n, value in SMALL.items() if n != 'degree'} | dict(topology='ring')
LEAST = RING | dict(dp_clip=1.0, dp_epsilon=4.0, dp_delta=1e-3, static_topology=True, local_steps=1)


@pytest.mark.parametrize(
    'settings',
    [
        {},
        {'partition': 'dirichlet_split', 'alpha': 0.5, 'batch_size': 1000},
        {'dp_unit': 'client'},
        {'dp_adversary': 'neighbour'},
    ],
)
@pytest.mark.parametrize('order', ['train_first', 'average_first'])
def test_noise_is_shared_such_that_least_is_left(settings, order):
    """More or less of it, at the same epsilon, leaves more in the models after 50 rounds."""
    settings = LEAST | settings | dict(round_order=order)
    if 'dp_unit' in settings:
        settings['dp_delta'] = 0.1
    built = Experiment.of(**settings, dp_share_noise=True).build()
    sizes = np.array([len(part) for part in built.parts])
    divisors = np.ones(8) if 'dp_unit' in settings else np.minimum(1000, sizes)
    if 'batch_size' not in settings and 'dp_unit' not in settings:
        divisors = np.minimum(10, sizes)
    scale = (1 / divisors)[:, None]
    mixing = (np.eye(8) + np.roll(np.eye(8), 1, axis=0) + np.roll(np.eye(8), -1, axis=0)) / 3
    places = np.asarray(built.graphs.members[0])[:, 1:]  # the ring's clients are in other places
    mixing = np.eye(8) / 3
    np.put_along_axis(mixing, places, 1 / 3, axis=1)
    links = [(i, j) for i in range(8) for j in places[i] if i < j]

    def left(noise, shared):
        """The mean variance, from the covariance of every round's noise in later rounds."""
        covariance = noise**2 * np.eye(8)
        for i, j in links:
            column = np.zeros(8)
            column[i], column[j] = shared, -shared
            covariance += np.outer(column, column)
        covariance = scale * covariance * scale.T
        total, models = 0.0, covariance if order == 'average_first' else None
        for _ in range(50):
            models = mixing @ (covariance if models is None else models) @ mixing.T
            total += np.trace(models)
        if order == 'average_first':
            total += np.trace(covariance) - np.trace(models)
        return total

    def noises(built):
        return [built.resolved[f'dp_{name}'] for name in ('noise_multiplier', 'correlated_noise')]

    best, step = left(*noises(built)), RATIOS[-1] / RATIOS[-2]
    assert built.spending.after(3).max() == pytest.approx(4.0, rel=1e-4)
    for factor in (0.0, 1 / step, step):
        other = Experiment.of(**settings, dp_correlated_noise=factor * noises(built)[1]).build()
        assert other.spending.after(3).max() == pytest.approx(4.0, rel=1e-4)
        assert left(*noises(other)) > best


def test_shared_noise_of_changing_graphs_is_counted_by_the_least_that_hides():
    settings = SMALL | PRIVATE | dict(local_steps=1, dp_correlated_noise=5.0, link_dropout=0.4)
    of_rounds = []
    for sampling in ('shuffle', 'poisson'):
        built = Experiment.of(**settings, batch_sampling=sampling).build()
        graphs = built.graphs
        each = []
        for members, mask in zip(np.asarray(graphs.members), np.asarray(graphs.mask), strict=True):
            pairs = np.zeros((8, 8), bool)
            for row, heard in zip(members, mask, strict=True):
                pairs[row[0], row[1:][heard[1:]]] = True
            each.append(correlated_multipliers(pairs, 2.0, 5.0))
        assert np.ptp(each, axis=0).max() > 0.1
        of_rounds.append((built.spending.multipliers(3), np.array(each)))
    (found, each), (of_poisson, same) = of_rounds
    np.testing.assert_allclose(found, np.mean(each**-2.0, axis=0) ** -0.5, rtol=1e-9)
    np.testing.assert_allclose(of_poisson, same.min(axis=0), rtol=1e-9)


@pytest.mark.parametrize('batch_size', [10, 30])
def test_a_server_sees_the_noise_of_all_clients(batch_size):
    """The average moves by at most the bound over M and the batch; its noise is measured."""
    few = {name: value for name, value in SMALL.items() if name != 'degree'}
    few |= SERVER | dict(dp_clip=1e-3, batch_size=batch_size, lr=1.0)
    if batch_size == 30:  # of clients of other sizes
        few |= dict(partition='dirichlet_split', alpha=2.0)
    built = Experiment.of(**few).build()
    sizes = np.array([len(part) for part in built.parts])
    state = built.algorithm.init(jax.random.key(0), built.clients)
    graph = round_of(built.graphs, 0)
    new, _ = one_round(built.algorithm, jax.random.key(1), state, 0, graph, built.clients)
    quiet = Experiment.of(**few | {'dp_noise_multiplier': 1e-6}).build()
    silent, _ = one_round(quiet.algorithm, jax.random.key(1), state, 0, graph, quiet.clients)
    noise = ravel_pytree(optax.tree.sub(new.params, silent.params))[0].reshape(-1)
    moved = 1e-3 / (len(sizes) * np.minimum(batch_size, sizes))  # by one sample
    np.testing.assert_allclose(noise.std() / moved, built.spending.multipliers(1), rtol=0.02)
    assert built.completed({'round': 2, 'clients': {}})['epsilon'] == pytest.approx(
        epsilon_of(built.spending.multipliers(1).min(), 1.0, 2, 1e-3)
    )


def test_means_are_estimated_with_the_error_that_is_known():
    """Each client steps onto the mean of its numbers, and the average over clients has noise of
    lr sigma C / (N sqrt(M)), whatever is shared."""
    clients, samples, lr, sigma, clip = 5, 8, 0.5, 3.0, 20.0  # which clips none
    rng = np.random.default_rng(0)
    y = rng.normal(size=(clients, samples, 1)).astype(np.float32)
    whole = jnp.ones((clients, samples), bool)
    data = Clients(jnp.ones((clients, samples, 1)), jnp.asarray(y), whole)
    model = bind(Linear(1, use_bias=False), (1,), REGRESSION)
    graphs = topology.schedule('complete', clients, 2, seed=0)
    settings = dict(lr=lr, batch_size=samples, local_steps=1, dp_clip=clip)
    settings |= dict(dp_noise_multiplier=sigma, dp_correlated_noise=4.0)
    algorithm = make('dpsgd', model, **settings)

    def estimate(key):
        state = algorithm.init(key, data)
        for number in range(2):
            k_round = jax.random.fold_in(key, number)
            graph = round_of(graphs, number)
            state, _ = one_round(algorithm, k_round, state, number, graph, data)
        return state.params['Dense_0']['kernel'].reshape(clients)

    found = jax.jit(jax.vmap(estimate))(jax.random.split(jax.random.key(0), 2000))
    np.testing.assert_allclose(found, np.broadcast_to(found[:, :1], found.shape), atol=1e-4)
    error = np.asarray(found[:, 0]) - y.mean()
    expected = lr * sigma * clip / (samples * np.sqrt(clients))
    assert error.std() == pytest.approx(expected, rel=0.06)
    assert abs(error.mean()) < 4 * expected / np.sqrt(2000)


BUDGET = PRIVATE | dict(rounds=9, dp_epsilon=2.5, dp_delta=1e-3, stop_at_epsilon=True)


def test_a_run_stops_at_its_budget_and_stays_there(tmp_path):
    path, settings = tmp_path / 'run', SMALL | BUDGET
    with pytest.warns(UserWarning, match='of 9 rounds are within an epsilon of 2.5'):
        rows = [*Experiment.of(**settings).run(path, progress=False)]
    rounds = rows[-1]['round']
    assert rounds == len(rows) and 1 < rounds < 9
    assert rows[-1]['epsilon'] <= 2.5 < epsilon_of(2.0, 1.0, rounds + 1, 1e-3)
    assert SavedRun(path).directory.rows()[-1]['round'] == rounds  # not said to be cut short
    again = SavedRun(path).resume(rounds=20, progress=False)
    assert [row['round'] for row in again][-1] == rounds
    whole = [*Experiment.of(**settings | {'rounds': rounds}).run(progress=False)]
    assert whole[-1]['consensus_loss'] == rows[-1]['consensus_loss']


def test_a_budget_that_lasts_stops_nothing():
    assert last(**BUDGET | {'rounds': 2})['round'] == 2


def test_a_sweep_and_a_report_say_what_was_spent_and_when_it_ended(tmp_path):
    for noise in (2.0, 3.0):
        run = Experiment.of(**SMALL | BUDGET | {'dp_noise_multiplier': noise, 'rounds': 4})
        for _ in run.run(tmp_path / f'noise{noise}', progress=False):
            pass
    runs = [Run(f'noise{z}', None, {'dp_noise_multiplier': str(z)}) for z in (2.0, 3.0)]
    lines = [line.split('|') for line in write_results(runs, tmp_path).splitlines()]
    head = [cell.strip() for cell in lines[0]]
    rounds, epsilons = (
        [float(line[head.index(name)]) for line in lines[2:4]] for name in ('rounds', 'epsilon')
    )
    assert rounds == [2, 4]
    assert epsilons == pytest.approx(
        [epsilon_of(2.0, 1.0, 2, 1e-3), epsilon_of(3.0, 1.0, 4, 1e-3)], abs=1e-3
    )


def test_the_configuration_says_what_is_claimed(tmp_path):
    settings = PRIVATE | dict(batch_sampling='poisson', dp_adversary='neighbour')
    for _ in Experiment.of(**SMALL | settings).run(tmp_path / 'run', progress=False):
        pass
    claim = SavedRun(tmp_path / 'run').config['privacy']
    assert claim.pop('accountant').startswith('Renyi divergences, dp-accounting')
    assert claim == {
        'unit': 'example',
        'adversary': 'neighbour',
        'sampling': 'poisson',
        'delta': 1e-3,
        'noise_multiplier': 2.0,
        'correlated_noise': 0.0,
    }


GRADIENT_METHODS = sorted(
    name
    for name, row in METHODS.items()
    if row.graphs == 'neighbours' and 'dp_clip' in flat_settings(row)
)


@pytest.mark.parametrize('name', GRADIENT_METHODS)
def test_what_a_private_method_sends_follows_from_its_data_by_training_alone(name):
    """With a bound of next to nothing and without noise, two data sets give the same models."""
    graph = {'relay_sgd': 'star'}.get(name, 'ring')
    base = dict(SMALL, algorithm=name, topology=graph, static_topology=True, dp_clip=1e-30)
    if name in ('decavg', 'dfedsam'):  # whose losses are capped, or which ascend by batches
        base['dp_unit'] = 'client'
    del base['degree'], base['rounds']
    try:
        built = Experiment.of(**base, rounds=2, hidden=('4',)).build()
    except SettingError as error:
        assert 'does not protect what' in str(error) and name in ('dispfl', 'dfed_alt')
        return
    other = built.clients._replace(x=built.clients.x[:, ::-1] + 1, y=(built.clients.y + 1) % 10)
    step = jax.jit(functools.partial(one_round, built.algorithm))
    found = []
    for clients in (built.clients, other):
        state = built.algorithm.init(jax.random.key(1), clients)
        for number in range(2):
            key = jax.random.key(number)
            state, info = step(key, state, number, round_of(built.graphs, number), clients)
        found.append((ravel_pytree(state)[0], info.loss))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=1e-6, atol=1e-20)
    assert np.abs(found[0][1] - found[1][1]).min() > 1e-3  # of other data


SHARED = dict(dp_epsilon=4.0, dp_delta=1e-3, dp_share_noise=True)
WHOLE = SERVER | dict(degree=None)


@pytest.mark.parametrize(
    ('settings', 'words'),
    [
        ({'dp_epsilon': 3.0, 'dp_clip': 1.0}, 'needs a dp_delta'),
        ({'dp_noise_multiplier': 3.0, 'dp_clip': 1.0}, 'needs a dp_delta'),
        ({'dp_noise_multiplier': 3.0}, 'dp_clip'),
        ({'dp_noise_multiplier': 0.0, 'dp_clip': 1.0}, 'dp_noise_multiplier'),
        (PRIVATE | {'dp_delta': 0.05}, 'between 0 and 0.04, one over 25 samples'),
        (PRIVATE | {'dp_delta': 0.2, 'dp_unit': 'client'}, 'one over 8 clients'),
        ({'dp_delta': 1e-3, 'dp_clip': 1.0}, 'dp_delta=0.001 says nothing without'),
        (
            {'dp_correlated_noise': 2.0, 'dp_clip': 1.0, 'local_steps': 1},
            'dp_correlated_noise=2.0 says nothing without',
        ),
        ({'dp_epsilon': 3.0}, 'has no effect without dp_clip'),
        ({'dp_unit': 'client'}, 'no effect without dp_clip'),
        (PRIVATE | {'dp_epsilon': -4.0}, 'dp_epsilon=-4.0: has to be above 0'),
        (PRIVATE | {'dp_delta': 0.0}, 'between 0 and'),
        (PRIVATE | {'dp_epsilon': 0.1}, '0 rounds are within it'),
        (PRIVATE | {'dp_epsilon': 0.1, 'stop_at_epsilon': True}, '0 rounds are within it'),
        ({'dp_clip': 1.0, 'dp_share_noise': True}, 'dp_share_noise=True says nothing'),
        (PRIVATE | SHARED, 'dp_noise_multiplier=2.0 gives'),
        (
            SHARED | {'dp_clip': 1.0, 'dp_correlated_noise': 2.0, 'local_steps': 1},
            'dp_correlated_noise=2.0 gives',
        ),
        ({'dp_clip': 1.0, 'dp_adversary': 'neighbour'}, 'neighbour says nothing without'),
        (WHOLE | SHARED | {'dp_noise_multiplier': None}, 'sees an average'),
        (SHARED | {'dp_clip': 1.0, 'algorithm': 'dsgt'}, 'has no place in algorithm=dsgt'),
        (SHARED | {'dp_clip': 1.0}, 'dp_share_noise=True is for one minibatch a round'),
        (SHARED | {'dp_clip': 1.0, 'aggregation': 'median'}, 'cancels in a mean alone'),
        (PRIVATE | {'stop_at_epsilon': True}, 'stop_at_epsilon=True needs both'),
        ({'dp_adversary': 'server'}, 'has no effect without dp_clip'),
        (PRIVATE | {'dp_adversary': 'liar'}, 'dp_adversary'),
        (PRIVATE | {'dp_adversary': 'server', 'local_steps': 1}, 'topology=complete'),
        (WHOLE | {'local_steps': 2}, 'not added with local_steps=2'),
        (WHOLE | {'optimizer': 'adam'}, 'not added with optimizer=adam'),
        (WHOLE | {'clip_norm': 1.0}, 'not added with clip_norm=1.0; leave clip_norm out'),
        (WHOLE | {'round_order': 'parallel'}, 'round_order=parallel'),
        (WHOLE | {'round_order': 'average_first'}, 'round_order=average_first'),
        (WHOLE | {'lasting_optimizer': True, 'momentum': 0.9}, 'lasting_optimizer=True'),
        (WHOLE | {'message_sparsity': 0.1}, 'coded or lied about'),
        (WHOLE | {'client_dropout': 0.2}, 'topology=complete'),
        (WHOLE | {'mixing': 'size'}, 'topology=complete'),
        (WHOLE | {'message_bits': 8}, 'coded or lied about'),
        (WHOLE | {'aggregation': 'median'}, 'aggregation=mean'),
        (WHOLE | {'attackers': '1', 'attack': 'alie:1.5'}, 'coded or lied about'),
        (WHOLE | {'algorithm': 'dsgt'}, 'sees more of algorithm=dsgt'),
        (WHOLE | {'dp_correlated_noise': 1.0}, 'sees an average without'),
        (PRIVATE | {'sam_radius': 0.1}, 'sam_radius'),
        (PRIVATE | {'supervision': 'wsm'}, 'supervision'),
        (PRIVATE | {'batch_sampling': 'poisson', 'batch_size': 30}, 'is more than the 25 samples'),
        ({'batch_sampling': 'poisson'}, 'set dp_clip'),
        (PRIVATE | {'algorithm': 'ntk_dfl'}, 'whose messages no noise covers'),
        (PRIVATE | {'algorithm': 'dispfl'}, 'does not protect what'),
        (PRIVATE | {'aggregation': 'mozi:0.5,0'}, 'loss on the samples'),
        (PRIVATE | {'dp_correlated_noise': 3.0}, 'local_steps=1'),
        ({'dp_correlated_noise': 3.0}, 'is a multiple of dp_clip'),
        (PRIVATE | {'dp_correlated_noise': -1.0}, 'dp_correlated_noise'),
    ],
)
def test_what_is_not_private_is_said_in_a_line(settings, words):
    with pytest.raises((SettingError, ValueError), match=words) as raised:
        given = {n: value for n, value in (SMALL | settings).items() if value is not None}
        Experiment.of(**given).build()
    assert '\n' not in str(raised.value)


def test_a_server_sees_no_average_of_a_graph_that_brings_weights(tmp_path):
    links = [f'{i} {j} 0.125' for i in range(8) for j in range(i)]
    (tmp_path / 'whole.edges').write_text('\n'.join(links))
    whole = WHOLE | {'topology': 'edge_list', 'topology_file': str(tmp_path / 'whole.edges')}
    with pytest.raises(SettingError, match='sees the plain average'):
        Experiment.of(
            **{n: value for n, value in (SMALL | whole).items() if value is not None}
        ).build()
