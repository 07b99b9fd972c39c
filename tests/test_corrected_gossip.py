"""The methods that correct gossip, against plain NumPy in float64, and what their theory says."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import reference_gossip
from helpers import as_reference, compiled, logistic_clients, round_of, rounds_of, widen

from dfl_jax import Clients, topology
from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.dfed_alt import last_layer
from dfl_jax.algorithms.gossip_method import ONE_MINIBATCH, Stepped, gossip_method
from dfl_jax.algorithms.relay_sgd import kept, relayed
from dfl_jax.exchange import one_round
from dfl_jax.gossip import mixing_matrix, push_weights
from dfl_jax.methods import make
from dfl_jax.models import MLP, SmallCNN, bind

CLIENTS, FEATURES, CLASSES, ROUNDS = 6, 4, 3, 6
SIZES = (4, 7, 5, 6, 3, 7)
MODEL = bind(MLP(CLASSES, ()), (FEATURES,))  # logistic regression
SIZE = FEATURES * CLASSES + CLASSES
LR = 0.3
RATES = [LR] * ROUNDS
WHOLE = {'lr': LR, 'batch_size': max(SIZES), 'local_steps': 1}  # one gradient of all samples


@pytest.fixture
def network(x64):
    """Clients of different sizes and classes, and the gradient of each at a vector of weights."""
    clients, gradients = logistic_clients()
    return jax.tree.map(jnp.asarray, clients), gradients


def vectors(params):
    """Each client's weights as a vector, the bias last."""
    layer = params['Dense_0']
    both = np.concatenate([layer['kernel'], layer['bias'][:, None]], axis=1)
    return [each.ravel() for each in both]


def weights_after(name, clients, graphs, **settings):
    """The first weights of all clients, and those after every round."""
    method = compiled(name, MODEL, init='independent', **(WHOLE | settings))
    first, *others = (vectors(state.params) for state in rounds_of(method, clients, graphs)[0])
    return first, others


def ring(rounds=ROUNDS):
    return topology.schedule('ring', CLIENTS, rounds, seed=0, static=True)


def metropolis(graphs):
    return mixing_matrix(round_of(graphs, 0), np.array(SIZES), 'metropolis').toarray()


def top_half(vector):
    """The larger half of the entries of kernel and bias, by modulus."""
    kept = np.zeros_like(vector)
    for part in (slice(0, FEATURES * CLASSES), slice(FEATURES * CLASSES, None)):
        values = vector[part]
        largest = np.argsort(-np.abs(values), kind='stable')[: -(-len(values) // 2)]
        kept[part][largest] = values[largest]
    return kept


CASES = {
    'dsgt': ({}, {}),
    'd2': ({'lazy': False}, {}),
    'qg_dsgdm': ({'global_momentum': 0.8}, {'mu': 0.8}),
    'dfed_admm': ({'proximal': 4.0, 'local_steps': 3}, {'steps': 3, 'penalty': 0.25}),
    'dfed_admm_sam': (
        {'proximal': 4.0, 'local_steps': 3, 'sam_radius': 0.4},
        {'steps': 3, 'penalty': 0.25, 'radius': 0.4},
    ),
    'choco_sgd': ({'sparsity': 0.5, 'consensus_step': 0.4}, {'gamma': 0.4, 'compress': top_half}),
    'beer': (
        {'sparsity': 0.5, 'bits': None, 'consensus_step': 0.4},
        {'gamma': 0.4, 'compress': top_half},
    ),
}


@pytest.mark.parametrize(
    ('name', 'schedule', 'factors'),
    [(name, '', [1] * ROUNDS) for name in CASES]
    + [(name, 'step:3:0.1', [1, 1, 1, 0.1, 0.1, 0.1]) for name in CASES if name != 'd2']
    + [(name, 'warmup:3', [1 / 3, 2 / 3, 1, 1, 1, 1]) for name in ('dsgt', 'qg_dsgdm', 'beer')],
)
def test_it_is_the_reference(name, schedule, factors, network):
    clients, gradients = network
    settings, arguments = CASES[name]
    name = name.removesuffix('_sam')
    first, ours = weights_after(name, clients, ring(), lr_schedule=schedule, **settings)
    method = getattr(reference_gossip, name)
    rates = [LR * factor for factor in factors]
    expected = [*method(first, gradients, metropolis(ring()), rates, **arguments)]
    np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)


def test_beer_sends_no_tracker_in_the_first_round(network):
    """The second message of a round begins in the second one, to the bit."""
    clients, _ = network
    method = compiled('beer', MODEL, **WHOLE)
    bits = SIZE * 5 + 2 * 64  # of one message of 5 bits a weight and two largest moduli, doubles
    states, infos = rounds_of(method, clients, ring(3))
    sent = [
        {kind: int(each.messages.sum()) * each.bits for kind, each in info.sent.items()}
        for info in infos
    ]
    public = [np.abs(state.public_tracker['Dense_0']['kernel']).max() > 0 for state in states[1:]]
    assert public == [False, True, True]
    links = 2 * CLIENTS
    assert [each['weights'] for each in sent] == [links * bits] * 3
    assert [each['trackers'] for each in sent] == [0, links * bits, links * bits]
    assert all(each.keys() == {'weights', 'trackers'} for each in sent)


def some_rounds(step, rounds=6):
    """What each client sends in each round of a method of `gossip_method`, [T, M], and the links
    that deliver it."""
    method = gossip_method(MODEL, Gossip(), [ONE_MINIBATCH], step)
    graphs = topology.drop_links(topology.schedule('ring', CLIENTS, rounds, seed=0), 0.3, 1)
    clients = Clients(
        jnp.zeros((CLIENTS, 2, FEATURES)),
        jnp.zeros((CLIENTS, 2), jnp.int32),
        jnp.ones((CLIENTS, 2), bool),
    )
    state, sent, links = method.init(jax.random.key(0), clients), [], []
    stepped = jax.jit(functools.partial(one_round, method))
    for r in range(rounds):
        graph = round_of(graphs, r)
        state, info = stepped(jax.random.key(r), state, r, graph, clients)
        heard = np.asarray(graph.members[:, 1:])[np.asarray(graph.mask[:, 1:])]
        links.append(np.bincount(heard, minlength=CLIENTS))
        messages = [each.messages for each in info.sent.values()]
        assert all(each.dtype == jnp.int32 for each in messages)
        sent.append(sum(messages, np.zeros(CLIENTS, np.int32)))
        assert all(each.bits == 32 * SIZE for each in info.sent.values())
    assert np.ptp(links) > 0
    return np.array(sent), np.array(links)


def test_a_round_in_which_nobody_sends_costs_nothing():
    """Every second round, more messages every third one, some clients alone, and none."""

    def lazy(senders_of):
        def step(key, state, round):
            for sends in senders_of(round.number):  # of one message after the other
                round.exchange.send(key, round.only(sends), state.params)
            return Stepped((state.params,), jnp.zeros(CLIENTS))

        return some_rounds(step)

    def some(k):
        return (jnp.arange(CLIENTS) + k) % 3

    rounds, clients = np.arange(6)[:, None], np.arange(CLIENTS)[None]
    for senders_of, expected in [
        (lambda k: [k % 2 == 0], rounds % 2 == 0),
        (lambda k: [k % 3 == 0] * 2, 2 * (rounds % 3 == 0)),
        (lambda k: [some(k) > 0, some(k) > 1], (clients + rounds) % 3),
        (lambda k: [], 0),
        (lambda k: [False], 0),
        (lambda k: [True] * 3, 3),
    ]:
        sent, links = lazy(senders_of)
        np.testing.assert_array_equal(sent, links * expected)


def test_d2_is_lazy_by_default(network):
    clients, gradients = network
    first, ours = weights_after('d2', clients, ring())
    lazy = (np.eye(CLIENTS) + metropolis(ring())) / 2
    expected = [*reference_gossip.d2(first, gradients, lazy, RATES)]
    np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)


def test_sgp_is_the_reference(network):
    """On one random digraph, whose columns are divided among those that hear."""
    clients, gradients = network
    graphs = topology.schedule('k_random', CLIENTS, ROUNDS, seed=5, static=True, degree=2)
    matrix = np.zeros((CLIENTS, CLIENTS))
    hears = [set(graphs.members[0, i][graphs.mask[0, i]]) for i in range(CLIENTS)]
    for j in range(CLIENTS):
        heard_by = [i for i in range(CLIENTS) if j in hears[i]]
        matrix[heard_by, j] = 1 / len(heard_by)
    assert np.ptp(matrix.sum(axis=1)) > 0.1
    first, ours = weights_after('sgp', clients, graphs)
    expected = [*reference_gossip.sgp(first, gradients, matrix, RATES)]
    np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize('family', ['line', 'star'])
def test_relay_sgd_is_the_reference(family, network):
    clients, gradients = network
    graphs = topology.schedule(family, CLIENTS, ROUNDS, seed=0, static=True)
    neighbours = [graphs.members[0, i, 1:][graphs.mask[0, i, 1:]] for i in range(CLIENTS)]
    first, ours = weights_after('relay_sgd', clients, graphs, members=graphs.mask.shape[2])
    expected = [*reference_gossip.relay_sgd(first, gradients, neighbours, RATES)]
    np.testing.assert_allclose(ours, expected, rtol=1e-10, atol=1e-12)


# ------------------------------------------------------------------------------ without learning

STILL = {'lr': 1e-300, 'batch_size': max(SIZES), 'local_steps': 1}


def averaged(name, clients, graphs, **settings):
    """Each client's distance from the mean of the first weights, after every round, [T, M]."""
    method = compiled(name, MODEL, init='independent', **STILL, **settings)
    first, *others = (vectors(state.params) for state in rounds_of(method, clients, graphs)[0])
    return np.linalg.norm(others - np.mean(first, axis=0), axis=2)


def test_what_is_relayed_on_a_chain_is_the_sum_of_all_after_a_diameter(x64):
    graph = round_of(topology.schedule('line', CLIENTS, 1, seed=0, static=True), 0)
    own = jax.random.normal(jax.random.key(0), (CLIENTS, 5))
    heard, sums = jnp.zeros((CLIENTS, 2, 5)), []
    neighbours, delivered = graph.members[:, 1:], graph.mask[:, 1:]
    for _ in range(CLIENTS - 1):
        heard = kept(relayed(own, heard, neighbours, delivered), heard, delivered)
        sums.append(np.asarray(own + heard.sum(axis=1)) - np.asarray(own).sum(axis=0))
    assert np.abs(sums[-2]).max() > 0.1 and np.abs(sums[-1]).max() < 1e-14


def test_push_sum_is_exact_on_digraphs_where_averaging_is_not(network):
    graphs = topology.schedule('k_random', CLIENTS, 200, seed=5, static=True, degree=2)
    assert averaged('sgp', network[0], graphs)[-1].max() < 1e-13
    assert averaged('dpsgd', network[0], graphs)[-1].max() > 0.05


def test_push_weights_divide_all_that_there_is():
    graphs = topology.schedule('k_random', 9, 3, seed=1, degree=3)
    graphs = topology.drop_clients(topology.drop_links(graphs, 0.3, 1, directed=True), 0.2, 2)
    for r in range(3):
        graph = round_of(graphs, r)
        shares, columns = push_weights(graph), np.zeros(9)
        np.add.at(columns, np.asarray(graph.members), np.asarray(shares))
        np.testing.assert_allclose(columns, 1, rtol=1e-6)
        assert (shares[:, 0] == 1)[~np.asarray(graph.active)].all()


# ---------------------------------------------------------------------------- what theory asks of


def refusal(name, graphs, **settings):
    """What the method says of a schedule, None if nothing."""
    check = compiled(name, MODEL, **WHOLE, **settings).algorithm.check
    try:
        check(graphs, np.array(SIZES))
    except ValueError as error:
        return str(error)
    return None


def drawn(family, static=True, **options):
    return topology.schedule(family, CLIENTS, 3, seed=2, static=static, **options)


def test_what_is_refused():
    changing, one_way = drawn('erdos_renyi', static=False, degree=3), drawn('k_random', degree=2)
    lossy = topology.drop_links(ring(3), 0.3, 1)
    for name, more in (('d2', {}), ('choco_sgd', {}), ('beer', {}), ('relay_sgd', {'members': 6})):
        assert 'round 2 has another; use static_topology' in refusal(name, changing, **more)
        assert 'static_topology, and no dropout' in refusal(name, lossy, **more)
    one = jax.tree.map(lambda a: a[:1].copy(), changing)  # of a single round, held as any other
    assert refusal('choco_sgd', one) is None
    for name in ('dsgt', 'beer'):
        assert 'doubly stochastic' in refusal(name, drawn('star'), mixing='uniform')
        assert refusal(name, drawn('star')) is None
    assert refusal('dsgt', changing) is None and refusal('dsgt', lossy) is None
    assert 'in round 1' in refusal('dsgt', one_way)
    assert 'symmetric' in refusal('d2', drawn('star'), mixing='uniform')
    assert 'symmetric' in refusal('d2', one_way)
    assert 'the 6 clients' not in refusal('relay_sgd', ring(3), members=3)
    assert '6 clients have 6 links in 1 components' in refusal('relay_sgd', ring(3), members=3)
    with pytest.warns(UserWarning, match='2 components never mix'):
        apart = drawn('clustered', degree=2)
    assert 'in 2 components' in refusal('relay_sgd', apart, members=6)
    assert refusal('relay_sgd', drawn('star'), members=6) is None
    assert 'nobody ever hears client 0' in refusal('sgp', one_way)
    assert refusal('sgp', ring(3)) is None


def test_heads_never_move_over_links(network):
    """Heads of clients that train on the same data as before, whoever the neighbours are."""
    clients, _ = network
    model = bind(MLP(CLASSES, (5,)), (FEATURES,))
    method = compiled('dfed_alt', model, init='independent', lr=0.1, batch_size=7, local_epochs=1)

    def heads(graphs):
        state = widen(method.init(jax.random.key(0), clients))
        state, info = method.step(jax.random.key(1), state, 0, round_of(graphs, 0), clients)
        assert info.sent.keys() == {'weights'}
        assert info.sent['weights'].bits == 64 * (FEATURES * 5 + 5)  # in doubles
        return jax.device_get(state.params), int(info.sent['weights'].messages.sum())

    together, sent = heads(ring())
    apart, nothing = heads(topology.drop_links(ring(), 1.0, 0))
    assert_same = np.testing.assert_array_equal
    assert_same(together['Dense_1']['kernel'], apart['Dense_1']['kernel'])
    assert not np.allclose(together['Dense_0']['kernel'], apart['Dense_0']['kernel'])
    assert (sent, nothing) == (2 * CLIENTS, 0)
    with pytest.raises(ValueError, match='Dense_7'):
        compiled('dfed_alt', model, head='Dense_7')


@pytest.mark.parametrize('clip', [0.05, 0.3, 100.0])
def test_dfed_alt_is_the_reference(clip, network):
    """Each part of a model is clipped by the norm of its own gradient."""
    clients, _ = network
    model = bind(MLP(CLASSES, (5,)), (FEATURES,))
    settings = {'lr': LR, 'batch_size': max(SIZES), 'local_epochs': 2, 'head_lr': 0.2}
    method = compiled('dfed_alt', model, init='independent', clip_norm=clip, **settings)
    states, _ = rounds_of(method, clients, ring())
    layers = [as_reference(states[0].params, i) for i in range(CLIENTS)]

    def gradients(i, vector):
        n = SIZES[i]
        y = np.eye(CLASSES)[clients.y[i, :n]]
        w = reference.unflatten(vector, layers[i])
        return reference.loss_and_gradient(w, np.asarray(clients.x[i, :n]), y)[1]

    head = np.concatenate([np.zeros(FEATURES * 5 + 5), np.ones(5 * CLASSES + CLASSES)])
    matrix = mixing_matrix(round_of(ring(), 0), np.array(SIZES), 'uniform').toarray()
    expected = reference_gossip.dfed_alt(
        [reference.flatten(each) for each in layers], gradients, matrix, RATES, head, 0.2, 2, clip
    )
    for state, theirs in zip(states[1:], expected, strict=True):
        ours = [reference.flatten(as_reference(state.params, i)) for i in range(CLIENTS)]
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_the_head_is_the_last_layer_called_of_those_with_as_many_outputs():
    assert last_layer(bind(SmallCNN(64), (12, 12, 1))) == 'Dense_1'
    assert last_layer(MODEL) == 'Dense_0'


# ------------------------------------------------------------------- what a counter cannot hold


@pytest.mark.parametrize(
    ('name', 'settings'),
    [
        ('ntk_dfl', {}),
        ('ntk_dfl', {'subsampling': 2}),
        ('spark', {'projection_dim': 5, 'rounds': 3}),
        ('spark', {'projection_dim': 5, 'rounds': 3, 'step_form': 'exact'}),
    ],
)
@pytest.mark.parametrize('family', ['complete', 'star', 'k_random'])
def test_counts_beyond_32_bits_are_refused_before_the_run(name, settings, family):
    """Up to the last number that is held; whatever share of the samples is sent, and back."""
    model, clients, classes = bind(MLP(10, (4,)), (3,)), 8, 10
    graphs = topology.schedule(family, clients, 2, seed=0, degree=3)
    method = make(name, model, **settings)
    most = 2**31 - 1
    # One client, heard by `heard`, has nearly all samples; another has one
    heard = np.bincount(graphs.members[0][graphs.mask[0]], minlength=clients) - 1
    hears = graphs.mask[0].sum(axis=1) - 1
    large = int(np.argmax(heard))
    others = int(hears[large]) if 'step_form' in settings else 0
    share = settings.get('subsampling', 1)
    fits = (most // classes - others) // int(heard[large]) * share
    sizes = np.ones(clients, int)
    for size, allowed in ((fits, True), (fits + share, False)):
        sizes[large] = size
        one_round = jax.tree.map(lambda a: np.asarray(a)[:1], graphs)
        if allowed:
            method.check(one_round, sizes)
            continue
        said = (
            rf'client {large} sends [0-9,]+ outputs in round 1, 10 for .* to each of {heard[large]}'
        )
        with pytest.raises(ValueError, match=said):
            method.check(one_round, sizes)
    silent = one_round._replace(active=np.zeros_like(one_round.active))
    method.check(silent, sizes)
