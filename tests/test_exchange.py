"""What clients send: combined at receivers, coded for every method, counted where it is sent."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dfl_jax import Algorithm, Clients, Graph, Info, simulate, topology
from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_method import State, gossip_method, mean_params
from dfl_jax.data import arrival_rounds
from dfl_jax.evaluation import Holdout, consensus_weights
from dfl_jax.exchange import (
    Attack,
    Compression,
    Exchange,
    bits_of,
    heard_messages,
    number_bits,
    one_round,
    quantization,
    round_of,
    tamper_named,
    with_error_feedback,
)
from dfl_jax.execution import client_mesh
from dfl_jax.experiment.evaluated_clients import chosen_clients
from dfl_jax.gossip import mix, mixing_weights
from dfl_jax.methods import make
from dfl_jax.models import MLP, bind
from dfl_jax.run_checks import check_theory
from dfl_jax.setting_error import SettingError
from dfl_jax.training import LocalTraining
from tests.test_contract import ALGORITHMS_UNDER_TEST, CENTRALIZED, MEETING, network, schedule
from tests.test_contract import MODEL as OF_THE_CONTRACT

SIZES = (4, 6, 1, 5, 3)
CLIENTS, FEATURES, CLASSES = len(SIZES), 3, 2
MODEL = bind(MLP(CLASSES, (4,)), (FEATURES,))
# Partials of others, and methods whose messages are as another's
ALIKE = (
    *('dfedavgm', 'dfedsam', 'decavg', 'epidemic', 'dfedprox', 'dec_fedprox', 'dec_fedrolex'),
    *('dec_fed_dropout', 'dfedavg'),
)
OF_EACH_KIND = ('dpsgd', 'dsgt', 'ntk_dfl', 'dec_fedavg')  # under every codec
OF_TWO_MESSAGES = ('sgp', 'beer', 'relay_sgd', 'dispfl', 'spark', 'dfml', 'dec_fml')  # under one
CODECS = {
    '8 bits': {'bits': 8},
    'top-k': {'sparsity': 0.9},
    'random-k': {'sparsity': 0.9, 'sparsifier': 'random_k'},
}


def data(seed=0, **more) -> Clients:
    rng = np.random.default_rng(seed)
    shape = CLIENTS, max(SIZES)
    mask = np.arange(shape[1]) < np.array(SIZES)[:, None]
    x = rng.normal(size=(*shape, FEATURES)).astype(np.float32)
    return Clients(x, rng.integers(CLASSES, size=shape).astype(np.int32), mask, **more)


def graph(seed=0) -> Graph:
    """One round with lost links, in which client 3 takes no part."""
    graphs = topology.schedule('complete', CLIENTS, 1, seed=seed)
    members, mask = (np.array(a[0]) for a in graphs[:2])
    rng = np.random.default_rng(seed)
    mask &= (rng.random(mask.shape) > 0.3) | (np.arange(mask.shape[1]) == 0)
    active = np.arange(CLIENTS) != 3
    return Graph(members, mask & active[:, None], active)


def stacked(seed=0):
    keys = jax.random.split(jax.random.key(seed), CLIENTS)
    return jax.vmap(MODEL.init)(keys)


def a_round(exchange=None, **more):
    return round_of(0, jax.tree.map(jnp.asarray, graph()), data(**more), exchange)


def weighted_mean(own, received, weights, delivered):
    del own, delivered
    return jax.tree.map(lambda a: jnp.tensordot(weights, a, 1, precision='highest'), received)


def test_a_mean_as_a_rule_is_the_mean():
    round, tree, key = a_round(), stacked(), jax.random.key(1)
    rows = mixing_weights(round.graph, round.sizes, 'size')
    plain = Exchange().mean(key, round, rows, tree)
    ruled = Exchange(aggregation=weighted_mean).mean(key, round, rows, tree)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(ruled), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_an_attack_is_at_one_receiver_and_only_of_what_is_delivered():
    """Liars send to each honest receiver the negative of its own model; NumPy, one at a time."""
    round, tree, key = a_round(), stacked(), jax.random.key(1)
    attackers = np.array([False, True, False, False, True])

    def tamper(key, received, lies, own, weights, delivered):
        del key, weights, delivered
        of = lambda a, o: jnp.where(lies.reshape(-1, *[1] * o.ndim), -o, a)  # noqa: E731
        return jax.tree.map(of, received, own)

    rows = mixing_weights(round.graph, round.sizes, 'uniform')
    exchange = Exchange(attack=Attack(attackers, tamper))
    found = jax.device_get(exchange.mean(key, round, rows, tree))
    members, mask, active = (np.asarray(a) for a in round.graph[:3])
    for leaf, new in zip(jax.tree.leaves(tree), jax.tree.leaves(found), strict=True):
        leaf = np.asarray(leaf, np.float64)
        for h in range(CLIENTS):
            expected = np.zeros_like(leaf[0])
            for k, j in enumerate(members[h]):
                lies = attackers[j] and mask[h, k] and active[h] and not attackers[h]
                expected += float(rows[h, k]) * (-leaf[h] if lies else leaf[j])
            np.testing.assert_allclose(new[h], expected if active[h] else leaf[h], atol=1e-5)


def test_a_lie_that_is_not_delivered_does_no_harm():
    """Not even one that is not finite, whose weight is zero."""
    members = np.array([[0, 1, 2], [1, 0, 2], [2, 0, 1], [3, 4, 0], [4, 3, 1]])
    mask = np.array([[1, 0, 1], [1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 1, 1]], bool)
    attackers = np.array([False, True, False, False, True])
    alone = Graph(jnp.asarray(members), jnp.asarray(mask), jnp.ones(CLIENTS, bool))
    round = round_of(0, alone, data())
    exchange = Exchange(attack=Attack(attackers, tamper_named('nan')))
    rows = mixing_weights(round.graph, round.sizes, 'uniform')
    found = jax.device_get(exchange.mean(jax.random.key(1), round, rows, stacked()))
    for leaf in jax.tree.leaves(found):
        harmed = np.isnan(leaf).any(axis=tuple(range(1, leaf.ndim)))
        np.testing.assert_array_equal(harmed, [False, False, True, False, False])


@pytest.mark.parametrize('name', ['dsgt', 'd2', 'sgp', 'choco_sgd', 'beer', 'dispfl', 'relay_sgd'])
def test_a_rule_is_refused_where_the_theory_asks_for_a_mean(name):
    algorithm = ALGORITHMS_UNDER_TEST[name]()
    ruled = algorithm._replace(exchange=Exchange(aggregation=weighted_mean))
    with pytest.raises(
        ValueError, match=r'needs a linear average: [^;]+; leave the aggregation out'
    ):
        step_abstractly(ruled, name)


@pytest.mark.parametrize('name', ['dfml', 'ntk_fl'])
def test_a_rule_that_reaches_nothing_is_refused(name):
    algorithm = ALGORITHMS_UNDER_TEST[name]()
    ruled = algorithm._replace(exchange=Exchange(aggregation=weighted_mean))
    with pytest.raises(ValueError, match='that combines models in a way of its own'):
        step_abstractly(ruled, name)


def family(name: str) -> str:
    return 'cohorts' if name in CENTRALIZED else MEETING.get(name, 'regular')


def step_abstractly(algorithm: Algorithm, name: str):
    clients = network()
    one = jax.tree.map(lambda a: jnp.asarray(a[0]), schedule(family(name)))
    state = jax.eval_shape(algorithm.init, jax.random.key(0), clients)
    step = functools.partial(one_round, algorithm)
    return jax.eval_shape(step, jax.random.key(0), state, 0, one, clients)[1]


@pytest.mark.parametrize(
    'name, codec',
    [
        pytest.param(
            name,
            codec,
            marks=[pytest.mark.slow]
            * (name not in OF_EACH_KIND and (codec != '8 bits' or name not in OF_TWO_MESSAGES)),
        )
        for name in ALGORITHMS_UNDER_TEST
        for codec in CODECS
        if name not in ALIKE
    ],
)
def test_every_method_sends_coded_messages(name, codec):
    """Of all that learn by exchange: finite models from coded messages, of fewer bits."""
    plain, coded = ALGORITHMS_UNDER_TEST[name](), recompressed(name, CODECS[codec])
    clients, graphs = network(), schedule(family(name))
    state = coded.init(jax.random.key(0), clients)
    step = jax.jit(functools.partial(one_round, coded))
    for r in range(2):
        now = jax.tree.map(lambda a, r=r: jnp.asarray(a[r]), graphs)
        state, info = step(jax.random.key(r), state, r, now, clients)
    assert np.isfinite(info.loss).all()
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(coded.consensus(state)))
    before, after = step_abstractly(plain, name).sent, info.sent
    assert before.keys() == after.keys()
    fewer = [kind for kind in after if after[kind].bits < before[kind].bits]
    assert fewer or name in ('choco_sgd', 'beer')  # which are coded in any case


def recompressed(name: str, settings: dict) -> Algorithm:
    """The method of the contract under another compression."""
    if name in ('ntk_dfl', 'ntk_fl'):
        more = {'lr': 0.05, 'timesteps': (3, 8)} | ({'cohort': 3} if name == 'ntk_fl' else {})
        return make(name, OF_THE_CONTRACT, **more, **settings)
    codec = Compression(**settings).codec('stochastic', name in ('choco_sgd', 'beer'))
    return ALGORITHMS_UNDER_TEST[name]()._replace(exchange=Exchange(codec))


def lazy(every: int, mixing: str = 'uniform') -> Algorithm:
    gossip = Gossip(mixing=mixing)
    training = LocalTraining(lr=0.1, batch_size=2)

    def step(key, state, round):
        talk = round.only((round.number + 1) % every == 0)
        mixed = round.exchange.mean(key, talk, gossip.rows(talk), state.params)
        return (mixed,), jnp.zeros(len(round.sizes))

    return gossip_method(MODEL, gossip, [training], step, State)


@pytest.mark.parametrize('every', [2, 3, 6])
@pytest.mark.parametrize('mixing', ['uniform', 'size', 'metropolis'])
def test_rounds_in_which_nobody_sends_cost_nothing(every, mixing):
    clients = data()
    graphs = topology.schedule('regular', CLIENTS, 6, seed=0, degree=2)
    test = Holdout(clients.x[0], clients.y[0])

    def last(algorithm):
        rows = simulate.run(algorithm, clients, graphs, test, jax.random.key(0), eval_every=6)
        ((metrics, state, _),) = rows
        return metrics['mbytes_total'], state

    each, _ = last(lazy(1, mixing))
    rarely, _ = last(lazy(every, mixing))
    assert each > 0 and rarely * every == pytest.approx(each, rel=1e-12)


def test_clients_that_do_not_send_are_not_heard():
    round = a_round()
    sends = jnp.array([True, False, True, True, False])
    some = round.only(sends)
    rows = mixing_weights(some.graph, some.sizes, 'uniform')
    heard = np.zeros((CLIENTS, CLIENTS), bool)
    for h, k in np.argwhere(np.asarray(rows) > 0):
        heard[h, round.graph.members[h, k]] = True
    silent = ~np.asarray(sends)
    assert not (heard & ~np.eye(CLIENTS, dtype=bool))[:, silent].any()
    sent, _ = heard_messages(some.graph, CLIENTS)
    assert not np.asarray(sent)[silent].any() and np.asarray(sent).any()
    nobody = round.only(jnp.array(False))
    np.testing.assert_array_equal(nobody.graph.mask[:, 0], round.graph.mask[:, 0])
    assert not nobody.graph.mask[:, 1:].any()


def test_two_sizes_of_one_kind_are_refused():
    exchange = Exchange()
    exchange.count('weights', jnp.ones(3, jnp.int32), 8)
    with pytest.raises(ValueError, match='weights of 8 and of 9 bits'):
        exchange.count('weights', jnp.ones(3, jnp.int32), 9)


def test_an_earlier_step_is_told_what_to_write():
    algorithm = make('dpsgd', MODEL)._replace(step=lambda key, state, graph, clients: None)
    with pytest.raises(TypeError, match=r'step\(key, state, round\).*round\.exchange\.mean'):
        one_round(algorithm, jax.random.key(0), State(stacked()), 0, graph(), data())

    def earlier(model):
        return Algorithm(None, None, None, unit_bits={}, consensus=mean_params)

    with pytest.raises(TypeError, match='earlier version'):
        make(earlier, MODEL)


# ------------------------------------------------------------------------------ error feedback


def test_errors_are_fed_back():
    """What is sent over all rounds is what was to be sent, but for the last errors; in NumPy."""
    start = stacked()
    gossip = Gossip(mixing='uniform')
    said = []

    def step(key, state, round):
        sent = round.exchange.send(key, round, state.params)
        jax.debug.callback(lambda s: said.append(jax.device_get(s)), sent, ordered=True)
        return (state.params,), jnp.zeros(len(round.sizes))

    method = gossip_method(MODEL, gossip, [LocalTraining(lr=0.1, batch_size=2)], step, State)
    codec = Compression(sparsity=0.7).codec('stochastic')
    method = with_error_feedback(method._replace(exchange=Exchange(codec)))
    clients, now = data(), jax.tree.map(jnp.asarray, graph())
    state = method.init(jax.random.key(0), clients)._replace(method=State(start))
    step_once = jax.jit(functools.partial(one_round, method))
    errors = [np.zeros_like(leaf) for leaf in jax.tree.leaves(start)]
    for r in range(4):
        state, _ = step_once(jax.random.key(r), state, r, now, clients)
        jax.effects_barrier()
        for number, x in enumerate(jax.tree.leaves(jax.device_get(start))):
            sent = jax.tree.leaves(said[-1])[number]
            for i in range(CLIENTS):
                kept = np.argsort(-np.abs((x + errors[number])[i]).ravel(), kind='stable')
                total = (x + errors[number])[i].ravel()
                expected = np.zeros_like(total)
                few = int(np.ceil(total.size * 0.3 - 1e-9))
                expected[kept[:few]] = total[kept[:few]]
                np.testing.assert_allclose(sent[i].ravel(), expected, atol=1e-5)
                if i != 3:  # who takes no part keeps its errors
                    errors[number][i] = (total - expected).reshape(x[i].shape)


def test_error_feedback_where_nothing_is_coded_is_refused():
    method = make('dpsgd', MODEL)
    with pytest.raises(ValueError, match='leave it out'):
        with_error_feedback(method._replace(exchange=Exchange())).init(jax.random.key(0), data())
    for name in ('choco_sgd', 'ntk_dfl'):
        with pytest.raises(ValueError, match='error_feedback is of models'):
            make(name, MODEL, error_feedback=True, bits=4)
    with pytest.raises(ValueError, match='no effect without'):
        Compression(error_feedback=True)


# -------------------------------------------------------------------------------------- arrival


@pytest.mark.parametrize('name', ['dfedavg', 'ntk_dfl'])
def test_samples_of_the_first_round_are_those_of_always(name):
    clients, graphs = data(), topology.schedule('regular', CLIENTS, 4, seed=0, degree=2)
    arrived = clients._replace(arrival=np.zeros(clients.mask.shape, np.int32))
    one, other = (final(make(name, MODEL), each, graphs)[1].params for each in (clients, arrived))
    jax.tree.map(np.testing.assert_array_equal, one, other)


def final(algorithm, clients, graphs, **options):
    test = Holdout(clients.x[1], clients.y[1])
    rounds = len(graphs.active)
    runs = simulate.run(
        algorithm, clients, graphs, test, jax.random.key(0), eval_every=rounds, **options
    )
    ((metrics, state, _),) = runs
    return metrics, jax.device_get(state)


@pytest.mark.parametrize('name', ['dfedavg', 'ntk_dfl'])
def test_a_round_sees_the_samples_that_have_arrived(name):
    """A round is that of clients who hold nothing else, whatever will arrive later."""
    clients, algorithm = data(), make(name, MODEL)
    arrival = np.arange(max(SIZES))[None] // 2 * np.ones((CLIENTS, 1), np.int32)
    arrival[4] += 2  # who has nothing yet
    arrival = arrival.astype(np.int32)
    now = jax.tree.map(jnp.asarray, graph())
    state = algorithm.init(jax.random.key(0), clients)
    for r in (0, 1, 2, 5):
        there = clients.mask & (arrival <= r)
        there_now = np.where(there[..., None], clients.x, np.nan)
        of_now = Clients(there_now, clients.y, there, np.zeros_like(arrival))
        step = jax.jit(functools.partial(one_round, algorithm))
        found, info = step(jax.random.key(r), state, r, now, clients._replace(arrival=arrival))
        expected, plain = step(jax.random.key(r), state, r, now, of_now)
        jax.tree.map(np.testing.assert_array_equal, found, expected)
        assert np.isfinite(info.loss).all()
        has = there.any(axis=1)
        np.testing.assert_array_equal(info.loss[has], plain.loss[has])
        np.testing.assert_allclose(info.loss[~has], np.mean(info.loss[has]), rtol=1e-6)


def test_who_has_nothing_yet_trains_nothing_and_averages():
    clients = data(arrival=np.where(np.arange(CLIENTS)[:, None] == 0, 9, 0) * np.ones((1, 6), int))
    algorithm = make('dfedavg', MODEL, weight_decay=0.1, momentum=0.9, init='independent')
    state = algorithm.init(jax.random.key(0), clients)
    now = jax.tree.map(jnp.asarray, graph())
    alone = now._replace(mask=now.mask & (jnp.arange(CLIENTS)[None] == 0))
    unmoved, _ = one_round(algorithm, jax.random.key(1), state, 0, alone, clients)
    for a, b in zip(jax.tree.leaves(unmoved), jax.tree.leaves(state), strict=True):
        np.testing.assert_array_equal(a[0], b[0])
        assert (a[1] != b[1]).any()
    moved, _ = one_round(algorithm, jax.random.key(1), state, 0, now, clients)
    assert any(
        (a[0] != b[0]).any() for a, b in zip(*map(jax.tree.leaves, (moved, state)), strict=True)
    )


# -------------------------------------------------------------------------- means over whom


def test_means_are_over_the_judged_and_rows_of_all():
    clients, graphs = data(), topology.schedule('ring', CLIENTS, 2, seed=0)
    judged = np.array([True, False, True, True, False])
    method = functools.partial(make, 'dpsgd', MODEL, init='independent')
    for how in ('mean', 'size'):
        algorithm = method(consensus=how)
        all_of_them, state = final(algorithm, clients, graphs)
        metrics, same = final(algorithm, clients, graphs, judged=judged)
        jax.tree.map(np.testing.assert_array_equal, state, same)
        assert metrics['clients'] == all_of_them['clients']
        each = np.array(metrics['clients']['accuracy'])
        assert metrics['client_accuracy_mean'] == pytest.approx(each[judged].mean(), abs=1e-6)
        assert metrics['client_accuracy_min'] == pytest.approx(each[judged].min(), abs=1e-6)
        weights = np.where(judged, SIZES if how == 'size' else 1, 0)
        mean = jax.tree.map(lambda a, w=weights: np.average(a, axis=0, weights=w), state.params)
        x, y = clients.x[1], clients.y[1]
        log_p = jax.nn.log_softmax(MODEL.apply(mean, x))
        expected = -np.mean(np.take_along_axis(np.asarray(log_p), y[:, None], 1))
        assert metrics['consensus_loss'] == pytest.approx(expected, rel=1e-4)
        chosen = [leaf[judged].astype(float) for leaf in jax.tree.leaves(state.params)]
        squares = sum(((leaf - leaf.mean(axis=0)) ** 2).sum() for leaf in chosen)
        assert metrics['consensus_distance'] == pytest.approx((squares / 3) ** 0.5, rel=1e-4)
        assert metrics['consensus_distance'] != all_of_them['consensus_distance']


def test_a_message_costs_what_the_codec_says():
    exchange = Exchange(quantization(5))
    round = a_round(exchange)
    exchange = round.exchange
    exchange.send(jax.random.key(0), round, stacked())
    sent = exchange.ledger.sent['weights']
    tensors = jax.tree.leaves(MODEL.shapes)
    assert sent.bits == sum(5 * leaf.size + 32 for leaf in tensors)
    assert Exchange().bits(MODEL.shapes) == bits_of(MODEL.shapes)
    mask, active = np.asarray(round.graph.mask), np.asarray(round.graph.active)
    counts = np.zeros(CLIENTS, int)
    for h, k in np.argwhere(mask[:, 1:] & active[:, None]):
        counts[round.graph.members[h, k + 1]] += 1
    np.testing.assert_array_equal(sent.messages, counts)
    assert sent.messages.dtype == jnp.int32 and number_bits(np.int32) == 32


def test_info_has_what_the_exchange_counted():
    info = step_abstractly(ALGORITHMS_UNDER_TEST['dsgt'](), 'dsgt')
    assert isinstance(info, Info) and info.sent.keys() == {'weights', 'trackers'}


def test_samples_arrive_on_devices_that_do_not_divide_the_clients():
    clients = data(arrival=np.arange(max(SIZES))[None] // 2 * np.ones((CLIENTS, 1), np.int32))
    graphs = topology.schedule('regular', CLIENTS, 3, seed=0, degree=2)
    judged = np.array([True, False, True, True, True])
    found = [
        final(make('dpsgd', MODEL), clients, graphs, judged=judged, **options)
        for options in ({}, {'mesh': client_mesh(2)})
    ]
    (one, alone), (two, shared) = found
    assert one['train_loss_mean'] == pytest.approx(two['train_loss_mean'], rel=1e-5)
    assert one['consensus_loss'] == pytest.approx(two['consensus_loss'], rel=1e-5)
    for a, b in zip(*map(jax.tree.leaves, (alone, shared)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_where_nobody_has_samples_yet_all_keep_their_own():
    """At a meeting whose participants are to be averaged by samples."""
    algorithm = ALGORITHMS_UNDER_TEST['dec_fedavg']()
    clients = network()._replace(arrival=np.full(network().mask.shape, 5, np.int32))
    one = jax.tree.map(lambda a: jnp.asarray(a[0]), schedule(family('dec_fedavg')))
    state = algorithm.init(jax.random.key(0), clients)
    after, info = one_round(algorithm, jax.random.key(1), state, 0, one, clients)
    jax.tree.map(np.testing.assert_array_equal, after.params, state.params)
    assert np.isfinite(info.loss).all()


@pytest.mark.parametrize('name', ['dispfl', 'spark', 'ntk_fl', 'dfml', 'dec_fml', 'def_kt'])
def test_methods_stay_finite_while_samples_arrive(name):
    algorithm, clients = ALGORITHMS_UNDER_TEST[name](), network()
    arrival = np.where(np.arange(len(clients.mask))[:, None] % 2, 2, 0)
    clients = clients._replace(arrival=np.broadcast_to(arrival, clients.mask.shape))
    graphs = schedule(family(name))
    state = algorithm.init(jax.random.key(0), clients)
    step = jax.jit(functools.partial(one_round, algorithm))
    for r in range(3):
        now = jax.tree.map(lambda a, r=r: jnp.asarray(a[r]), graphs)
        state, info = step(jax.random.key(r), state, r, now, clients)
        values = jax.tree.leaves((state, info.loss, info.metrics))
        assert all(np.isfinite(np.asarray(leaf, float)).all() for leaf in values)


def test_a_codec_that_nothing_uses_is_refused():
    gossip = Gossip()

    def step(key, state, round):
        return (mix(gossip.rows(round), round.graph.members, state.params),), jnp.zeros(CLIENTS)

    def own(model):
        return gossip_method(model, gossip, [LocalTraining(lr=0.1, batch_size=2)], step, State)

    now = jax.tree.map(jnp.asarray, graph())
    with pytest.raises(ValueError, match='sends nothing that is coded; leave the compression out'):
        one_round(make(own, MODEL, bits=4), jax.random.key(0), State(stacked()), 0, now, data())


def test_weights_that_sum_to_zero_are_those_of_all_alike():
    algorithm = make('dpsgd', MODEL, consensus='size')
    late = data(arrival=np.full((CLIENTS, max(SIZES)), 3))
    assert consensus_weights(algorithm, late, 3) is None
    np.testing.assert_array_equal(consensus_weights(algorithm, late, 4), SIZES)
    only = np.arange(CLIENTS) == 2
    np.testing.assert_array_equal(consensus_weights(algorithm, late, 1, only), only)


def test_theory_is_checked_with_the_samples_of_the_first_round():
    mask = np.ones((4, 2), bool)
    clients = Clients(np.ones((4, 2, FEATURES), np.float32), np.zeros((4, 2), np.int32), mask)
    graphs = topology.schedule('ring', 4, 3, seed=0, static=True)
    algorithm = make('dsgt', MODEL, mixing='size')
    check_theory(algorithm, clients, graphs)
    arrival = np.array([[0, 0], [0, 2], [0, 0], [0, 2]])
    with pytest.raises(ValueError, match='doubly stochastic'):
        check_theory(algorithm, clients._replace(arrival=arrival), graphs)


@pytest.mark.parametrize('name', ['judged', 'attackers'])
@pytest.mark.parametrize('chosen', [np.ones(4, bool), np.ones(CLIENTS), np.zeros(CLIENTS, bool)])
def test_judged_and_attackers_are_choices_of_clients(chosen, name):
    clients, graphs = data(), topology.schedule('ring', CLIENTS, 2, seed=0)
    with pytest.raises(ValueError, match=rf'{name} is .*give bool \[5\] with at least one'):
        final(make('dpsgd', MODEL), clients, graphs, **{name: chosen})


def test_the_masks_of_dispfl_move_and_its_errors_would_not():
    with pytest.raises(ValueError, match='the masks of dispfl move'):
        make('dispfl', MODEL, bits=4, error_feedback=True).init(jax.random.key(0), data())


# ------------------------------------------------------------------- settings of arrival and judged


def test_arrival_follows_its_form(tmp_path):
    y, parts = np.arange(12) % 3, [np.arange(7), np.arange(7, 12)]
    linear = arrival_rounds('linear:3', y, parts)
    assert sorted(linear[0].tolist()) == [0, 0, 0, 1, 1, 2, 2]
    assert sorted(linear[1, :5].tolist()) == [0, 0, 1, 1, 2]
    assert (linear != arrival_rounds('linear:3', y, parts, seed=1)).any()
    by_class = arrival_rounds('class_by_class:6', y, parts)
    np.testing.assert_array_equal(by_class[0], y[:7] * 2)
    path = tmp_path / 'rounds.json'
    path.write_text(str([*range(12)]))
    np.testing.assert_array_equal(arrival_rounds(f'file:{path}', y, parts)[1, :5], range(7, 12))
    for text in ('linear', 'linear:0', 'linear:-1', 'linear:1.5', 'linear:99999999999', 'late:3'):
        with pytest.raises(SettingError, match='is none of linear:ROUNDS'):
            arrival_rounds(text, y, parts)
    for wrong in ([0, 1], {}, [0.5] * 12, [-1] * 12, [True] * 12):
        path.write_text(json.dumps(wrong))
        with pytest.raises(SettingError, match='and the training set 12 samples'):
            arrival_rounds(f'file:{path}', y, parts)
    with pytest.raises(SettingError, match='targets that are classes'):
        arrival_rounds('class_by_class:3', y[:, None], parts)


def test_chosen_clients_are_those_of_the_file(tmp_path):
    path = tmp_path / 'clients.json'
    path.write_text('[3, 0]')
    assert chosen_clients(str(path), 5).tolist() == [True, False, False, True, False]
    assert chosen_clients(None, 5) is None
    for wrong, words in {
        '[]': 'no list of different clients',
        '[1, 1]': 'no list of different clients',
        '[0.5]': 'no list of different clients',
        '3': 'no list of different clients',
        '[5]': 'names client 5 of 5; number them from 0 to 4',
        '[': 'damaged',
    }.items():
        path.write_text(wrong)
        with pytest.raises(SettingError, match=words):
            chosen_clients(str(path), 5)
