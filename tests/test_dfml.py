"""DFML against the plain NumPy reference, in float64, and what its parts have to satisfy."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import reference_dfml
import reference_robust
from helpers import round_of, widen

from dfl_jax import Clients, Graph, simulate, topology
from dfl_jax.algorithms.dfml import SCHEDULED, AlphaSchedule, balance_of
from dfl_jax.exchange import Attack, one_round, tamper_named
from dfl_jax.heterogeneous.mutual import (
    Balance,
    Mutual,
    mutual_learning,
    sample_weights,
    teacher_weights,
)
from dfl_jax.heterogeneous.population import (
    assign_architectures,
    assign_participants,
    gather,
    populate,
)
from dfl_jax.methods import make
from dfl_jax.models import MLP, bind
from dfl_jax.topology import meetings
from dfl_jax.training import LocalTraining
from dfl_jax.training.batches import epoch_orders
from dfl_jax.training.losses import supervised_losses

CLIENTS, FEATURES, CLASSES = 6, 5, 3
HIDDEN = {'linear': (), 'narrow': (4,), 'deep': (6, 3)}
ROUNDS = 6


def population(*names, clients=CLIENTS):
    models = {name: bind(MLP(CLASSES, HIDDEN[name]), (FEATURES,)) for name in names}
    return populate(models, assign_architectures(names, clients, [1] * len(names)))


def schedule(senders=3, rounds=ROUNDS, **options):
    graphs = topology.schedule('complete', CLIENTS, rounds, seed=0)
    return meetings(graphs, senders, seed=2, **options)


def as_reference(people, stacked):
    """The model of every client as the reference takes it."""
    models = [None] * people.size
    for name, clients in people.clients.items():
        layers = [stacked[name][layer] for layer in sorted(stacked[name])]
        for row, client in enumerate(clients):
            models[client] = [
                (np.asarray(of['kernel'][row]), np.asarray(of['bias'][row])) for of in layers
            ]
    return models


def cut(order, samples, size):
    return [order[:samples][s : s + size] for s in range(0, samples, size)]


def batches_alone(key, clients, size):
    """Every client's batches of local training in a round with this key."""
    k_train, _ = jax.random.split(key)
    samples = np.asarray(clients.mask.sum(axis=1))
    return [
        cut(np.asarray(epoch_orders(k, mask, 1))[0], n, size)
        for k, mask, n in zip(
            jax.random.split(k_train, len(samples)), clients.mask, samples, strict=True
        )
    ]


def batches_taught(key, clients, positions, size, epochs=1):
    """{client: batches} of the mutual learning with this key; positions: the client of every
    aggregator."""
    k_orders, _ = jax.random.split(key)
    samples, found = np.asarray(clients.mask.sum(axis=1)), {}
    for k, n in zip(jax.random.split(k_orders, len(positions)), positions, strict=True):
        orders = np.asarray(epoch_orders(k, clients.mask[n], epochs))
        found.setdefault(int(n), [rows for o in orders for rows in cut(o, samples[n], size)])
    return found


def largest_difference(ours, theirs):
    return max(
        np.abs(reference.flatten(a) - reference.flatten(b)).max()
        for a, b in zip(ours, theirs, strict=True)
    )


CASES = [
    {'batch_size': 3, 'chunk': 1},
    {'batch_size': 4, 'supervision': 'ace', 'schedule': 'fixed', 'alpha': 0.5, 'chunk': 2},
    {'teachers': 'equal', 'supervision': 'ce', 'schedule': 'half_cycle'},
    {'transfer': 'vanilla', 'scheduled': 'supervision', 'alpha': 0.8, 'chunk': 1},
    {'attack': 'dissensus:0.5', 'batch_size': 4, 'chunk': 1},
]
LIARS = reference_robust.Liars(
    np.isin(np.arange(CLIENTS), [1, 3]),
    lambda v, lies, w, own: reference_robust.dissensus(v, lies, w, 0.5, own),
)


@pytest.mark.parametrize('options', CASES, ids=str)
def test_rounds_equal_the_reference(network, options):
    data, clients, _ = network
    people, graphs = population(*HIDDEN), schedule()
    shared = {'lr': 0.3, 'momentum': 0.9, 'weight_decay': 0.05}
    settings = {
        'schedule': 'cycle',
        'period': 4,
        'mutual_epochs': 2,
        'init': 'independent',
        **shared,
        **options,
    }
    liars = LIARS if 'attack' in options else reference_dfml.NOBODY
    if 'attack' in options:
        settings['attack'] = Attack(liars.attackers, tamper_named(options['attack']))
    algorithm = make('dfml', people, rounds=ROUNDS, **settings)
    state = widen(jax.jit(algorithm.init)(jax.random.key(0), clients))
    step = jax.jit(functools.partial(one_round, algorithm))
    models, peaks = as_reference(people, state.params), as_reference(people, state.peak)
    best = np.zeros(CLIENTS)
    kind = options.get('schedule', 'cycle')
    top = options.get('alpha', 0.9)
    if kind == 'fixed':
        alphas = np.full(ROUNDS, top)
    else:
        alphas = reference_dfml.cyclical_alpha(ROUNDS, 4, 1, top, kind == 'half_cycle')
    for r, alpha in enumerate(alphas):
        key = jax.random.key(10 + r)
        positions = [int(n) for n in graphs.members[r, 0]]
        size, k_learn = options.get('batch_size', 64), jax.random.split(key)[1]
        taught = batches_taught(k_learn, clients, positions[:1], size, epochs=2)
        state, info = step(key, state, r, round_of(graphs, r), clients)
        weight = 1 if 'scheduled' in options else alpha
        models, peaks, best = reference_dfml.dfml_round(
            models,
            peaks,
            best,
            data,
            positions,
            alpha,
            balance=(1 - alpha, weight),
            batches=batches_alone(key, clients, size),
            mutual_batches=taught[positions[0]],
            how=options.get('supervision', 'wsm'),
            by_size=options.get('teachers', 'size') == 'size',
            students=[0] if options.get('transfer') == 'vanilla' else range(len(positions)),
            liars=liars,
            **shared,
        )
        assert largest_difference(as_reference(people, state.params), models) < 1e-10
        assert largest_difference(as_reference(people, state.peak), peaks) < 1e-10
        np.testing.assert_allclose(state.best, best, rtol=0, atol=1e-12)
        assert abs(float(info.metrics['alpha']) - alpha) < 1e-12
    assert largest_difference(models, peaks) > 1e-3 or kind == 'fixed'


# ------------------------------------------------------------------------------------ its parts


def test_wsm_of_equal_proportions_is_cross_entropy(x64):
    rng = np.random.default_rng(0)
    z, y = jnp.asarray(rng.normal(size=(7, 4))), jnp.asarray(rng.integers(4, size=7))
    equal = jnp.full(4, 1 / 4)
    for how, less in (('wsm', np.log(4)), ('ace', 0.0)):
        np.testing.assert_allclose(
            supervised_losses(z, y, equal, how) + less,
            supervised_losses(z, y, equal, 'ce'),
            atol=1e-12,
        )


@pytest.mark.parametrize('how', ['wsm', 'ace'])
def test_a_class_that_nobody_holds_is_left_alone(x64, how):
    z, y = jnp.array([[1.0, 3.0, -2.0]]), jnp.array([0])
    slope = jax.grad(lambda z: supervised_losses(z, y, jnp.array([0.5, 0.5, 0.0]), how).sum())(z)
    assert slope[0, 2] == 0 and slope[0, 1] > 0


def test_the_terms_that_alpha_moves():
    found = {kind: tuple(map(float, balance_of(kind, jnp.float32(0.25)))) for kind in SCHEDULED}
    assert found == {
        'both': (0.75, 0.25),
        'supervision': (0.75, 1.0),
        'distillation': (1.0, 0.25),
        'common': (0.25, 0.25),
    }


def test_the_weights_of_teachers_sum_to_one():
    weights = np.asarray(teacher_weights(jnp.array([10.0, 30.0, 0.0, 60.0])))
    np.testing.assert_allclose(weights.sum(axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(weights[0], [0, 1 / 3, 0, 2 / 3], rtol=1e-6)
    assert (teacher_weights(jnp.array([5.0, 0.0]))[0] == 0).all(), 'nobody teaches the only one'


def test_weighted_soft_labels_listen_where_the_teacher_is_better():
    weights = np.asarray(sample_weights(jnp.array([1.0, 1.0, 0.0]), jnp.array([0.1, 10.0, 1.0])))
    np.testing.assert_allclose(weights, 1 - np.exp([-10, -0.1, 0]), rtol=1e-5)


@pytest.mark.parametrize('half', [False, True])
def test_alpha_rises_and_falls_in_growing_periods(half):
    kind = 'half_cycle' if half else 'cycle'
    plan = AlphaSchedule(schedule=kind, alpha=0.9, period=10, period_growth=3).over(60)
    expected = reference_dfml.cyclical_alpha(60, 10, 3, 0.9, half)
    np.testing.assert_allclose(plan.alpha, expected, atol=1e-12)
    tops = np.flatnonzero(plan.alpha == 0.9)
    assert list(tops) == ([9, 22, 38, 57] if half else [5, 16, 31, 48])
    assert list(np.flatnonzero(plan.peak)) == list(tops)


def test_more_peak_updates_are_the_largest_of_a_cycle():
    plan = AlphaSchedule(schedule='cycle', alpha=1.0, period=10, peak_updates=5).over(10)
    assert list(np.flatnonzero(plan.peak)) == [3, 4, 5, 6, 7]


@pytest.mark.parametrize('schedule_of', ['half_cycle', 'cycle', 'fixed', 'annealed'])
def test_a_run_longer_than_its_schedule_is_as_one_scheduled_for_it_or_is_refused(
    network, schedule_of
):
    _, clients, _ = network
    everyone, test = schedule(senders=2, rounds=8), simulate.Holdout(clients.x[0], clients.y[0])

    def alphas(rounds):
        settings = {'schedule': schedule_of, 'period': 3, 'lr': 0.1, 'chunk': 1, 'mutual_epochs': 1}
        method = make('dfml', population('narrow'), rounds=rounds, **settings)
        key = jax.random.key(0)
        run = simulate.run(method, clients, everyone, test, key, eval_every=1)
        return [(metrics['alpha'], metrics['client_loss_mean']) for metrics, *_ in run]

    if schedule_of == 'annealed':
        with pytest.raises(ValueError, match='rounds=3: alpha of schedule=annealed ends after 3 r'):
            alphas(3)
        return
    assert alphas(3) == alphas(8)


def test_peak_models_freeze_after_the_first_maximum(network):
    _, clients, _ = network
    people = population('narrow')
    everyone = schedule(senders=5, rounds=12)
    algorithm = make('dfml', people, rounds=12, schedule='cycle', period=6, lr=0.1, chunk=1)
    state = jax.jit(algorithm.init)(jax.random.key(0), clients)
    step = jax.jit(functools.partial(one_round, algorithm))
    renewed = []
    for r in range(12):
        before = np.asarray(state.peak['narrow']['Dense_0']['kernel'])
        state, _ = step(jax.random.key(r), state, r, round_of(everyone, r), clients)
        after = np.asarray(state.peak['narrow']['Dense_0']['kernel'])
        assert (before == after).all() or (before != after).any(axis=(1, 2)).all()
        renewed.append((before != after).any())
    # cycles of 6 and 7 rounds, at their largest in their fourth rounds
    assert list(np.flatnonzero(renewed)) == [0, 1, 2, 3, 9]


def test_clients_that_sit_out_keep_their_weights_to_the_bit(network):
    _, clients, _ = network
    people, graphs = population('linear', 'deep'), schedule(senders=2)
    algorithm = make('dfml', people, rounds=ROUNDS, lr=0.1, chunk=1)
    state = jax.jit(algorithm.init)(jax.random.key(0), clients)
    step = jax.jit(functools.partial(one_round, algorithm))
    for r in range(ROUNDS):
        before = as_reference(people, state.params)
        state, _ = step(jax.random.key(r), state, r, round_of(graphs, r), clients)
        after = as_reference(people, state.params)
        for n in range(CLIENTS):
            same = (reference.flatten(before[n]) == reference.flatten(after[n])).all()
            assert same == (n not in graphs.members[r, 0])


def test_alpha_zero_is_supervised_learning_alone(network):
    """Nobody hears the others: the round of a model does not depend on who else is there."""
    _, clients, _ = network
    people, graphs = population('linear', 'deep'), schedule()
    algorithm = make('dfml', people, rounds=ROUNDS, schedule='fixed', alpha=0.0, lr=0.1, chunk=1)
    state = jax.jit(algorithm.init)(jax.random.key(0), clients)
    step = jax.jit(functools.partial(one_round, algorithm))
    graph = round_of(graphs, 0)
    aggregator = int(graph.members[0, 0])
    alone = graph._replace(mask=graph.mask.at[0, 1:].set(False))
    key = jax.random.key(5)
    together = as_reference(people, step(key, state, 0, graph, clients)[0].params)
    lonely = as_reference(people, step(key, state, 0, alone, clients)[0].params)
    assert largest_difference([together[aggregator]], [lonely[aggregator]]) == 0
    one_more = make('dfml', people, rounds=ROUNDS, schedule='fixed', alpha=0.5, lr=0.1, chunk=1)
    step = jax.jit(functools.partial(one_round, one_more))
    taught = as_reference(people, step(key, state, 0, graph, clients)[0].params)
    assert largest_difference([taught[aggregator]], [lonely[aggregator]]) > 1e-4


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'mutual_epochs': 0}, r'mutual_epochs \(K\) has to be at least 1, got 0'),
        ({'alpha': 1.5}, r'alpha has to lie in \[0, 1\], got 1.5'),
        ({'period': 1}, 'period has to be at least 2'),
        ({'schedule': 'square'}, 'unknown schedule'),
        ({'supervision': 'mse'}, 'unknown supervision'),
        ({'temperature': 0.0}, 'temperature has to be above 0'),
        ({'init': 'zeros'}, "unknown init 'zeros'"),
    ],
    ids=str,
)
def test_bad_settings(options, message):
    with pytest.raises(ValueError, match=message):
        make('dfml', population('linear'), rounds=3, **options)


def test_the_consensus_is_of_the_peak_models_which_are_evaluated(network):
    _, clients, _ = network
    algorithm = make('dfml', population('linear', 'narrow'), rounds=3, init='independent')
    state = jax.eval_shape(algorithm.init, jax.random.key(0), clients)
    rng = np.random.default_rng(0)
    state = jax.tree.map(lambda leaf: rng.normal(size=leaf.shape), state)
    for name, params in algorithm.consensus(state).items():
        mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), state.peak[name])
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-12), params, mean)


def test_a_model_learns_with_the_dropout_that_it_teaches_with(network):
    """Its outputs in both passes of a step are of one and the same network."""
    _, clients, _ = network
    keys = []

    def apply(params, x, key=None):
        jax.debug.callback(lambda data: keys.append(data.tobytes()), jax.random.key_data(key))
        return x @ params['w']

    model = bind(MLP(CLASSES, ()), (FEATURES,))._replace(apply=apply)
    people = populate({'only': model}, ['only'] * CLIENTS)
    training = LocalTraining(lr=0.1, batch_size=64)
    learn = mutual_learning(people, training, Mutual(epochs=2), 1)
    graph = round_of(schedule(senders=2, rounds=1), 0)
    participants = assign_participants(people, graph)
    models = {'only': {'w': jnp.zeros((CLIENTS, FEATURES, CLASSES))}}
    models = gather(models, participants)
    balance = Balance(jnp.float64(0.5), jnp.float64(0.5))
    learn(jax.random.key(0), models, participants, graph, clients, jnp.int32(0), balance)
    jax.effects_barrier()
    times = collections.Counter(keys)
    assert len(times) == 3 * 2, 'three models in each of two steps'
    assert set(times.values()) == {2}, 'once to teach and once to learn'


@pytest.mark.parametrize('weighted', [False, True])
@pytest.mark.parametrize('temperature', [1.0, 2.5])
def test_a_step_is_the_difference_quotient_of_its_loss(temperature, weighted, x64):
    """gamma CE + alpha T^2 KL(p_q || p_n) at temperature T, by central differences in NumPy; the
    weights of the samples (WSL) are constants."""
    gamma, alpha, lr, h = 0.7, 0.6, 0.5, 1e-6
    people = population('linear', clients=2)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(2, 4, FEATURES)), rng.integers(CLASSES, size=(2, 4))
    clients = Clients(jnp.asarray(x), jnp.asarray(y), jnp.ones((2, 4), bool))
    graph = Graph(jnp.array([[0, 1]]), jnp.ones((1, 2), bool), jnp.ones(1, bool))
    participants = assign_participants(people, graph)
    stacked = {'Dense_0': {'kernel': rng.normal(size=(2, FEATURES, CLASSES))}}
    stacked['Dense_0']['bias'] = rng.normal(size=(2, CLASSES))
    training = LocalTraining(lr=lr, batch_size=4)
    mutual = Mutual(1, weighted_samples=weighted, temperature=temperature)
    learn = mutual_learning(people, training, mutual, 1)
    balance = Balance(jnp.float64(gamma), jnp.float64(alpha))
    models = gather({'linear': jax.tree.map(jnp.asarray, stacked)}, participants)
    learnt, _ = learn(
        jax.random.key(0), models, participants, graph, clients, jnp.int32(0), balance
    )
    inputs, labels = np.concatenate([x[0], np.ones((4, 1))], axis=1), y[0]

    def log_p(w, t=1.0):
        z = inputs @ w / t
        return z - np.log(np.exp(z).sum(axis=1, keepdims=True))

    def cross_entropy(w):
        return -log_p(w)[np.arange(4), labels]

    w = np.concatenate([stacked['Dense_0']['kernel'], stacked['Dense_0']['bias'][:, None]], axis=1)
    for n, q in ((0, 1), (1, 0)):
        taught = np.exp(log_p(w[q], temperature))
        of_teacher = cross_entropy(w[q])  # at temperature 1, as that of the student
        share = 1 - np.exp(-cross_entropy(w[n]) / of_teacher) if weighted else np.ones(4)

        def loss(v, taught=taught, share=share):
            kl = (taught * (np.log(taught) - log_p(v, temperature))).sum(axis=1)
            return gamma * cross_entropy(v).mean() + alpha * temperature**2 * (share * kl).mean()

        steps = h * np.eye(w[n].size).reshape(-1, *w[n].shape)
        slope = [(loss(w[n] + e) - loss(w[n] - e)) / (2 * h) for e in steps]
        expected = w[n] - lr * np.reshape(slope, w[n].shape)
        place = int(np.argmax(np.asarray(participants['linear'].client) == n))
        new = jax.tree.map(lambda a, p=place: np.asarray(a[p]), learnt['linear']['Dense_0'])
        found = np.concatenate([new['kernel'], new['bias'][None]])
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-8)
