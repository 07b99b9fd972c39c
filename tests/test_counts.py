"""Traffic and operations of every method against plain arithmetic, in bits and operations.

A method that has no entry in `reference_counts` fails here.
"""

from itertools import pairwise

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_counts as by_hand
import reference_events
from helpers import round_of

from dfl_jax import Clients, Graph, asynchronous, timing, topology
from dfl_jax.asynchronous.divshare import layout_of
from dfl_jax.asynchronous.intervals import by_interval, intervals_of
from dfl_jax.evaluation import consensus_weights
from dfl_jax.exchange import one_round
from dfl_jax.execution.flops import flops_of
from dfl_jax.heterogeneous import populate
from dfl_jax.method_settings import settings_of
from dfl_jax.methods import IN_ROUNDS, make
from dfl_jax.models import CNN3, MLP, ConvNet, SmallCNN, bind
from dfl_jax.tasks import REGRESSION
from dfl_jax.timing import world
from dfl_jax.timing.counts import _rounds as reported
from dfl_jax.training import LocalTraining, gradient_flops

CLIENTS, ROUNDS, INPUTS, CLASSES = 8, 3, 7, 3
SIZES = [5, 11, 1, 8, 3, 12, 7, 4]
NARROW, WIDE, DEEP = by_hand.dense(7, 4, 3), by_hand.dense(7, 9, 3), by_hand.dense(7, 8, 4, 3)
TRAINING = {'lr': 0.1, 'batch_size': 4, 'local_epochs': 2}
STEPS = {'lr': 0.1, 'batch_size': 4, 'local_steps': 5}
KERNEL = {'lr': 0.1, 'timesteps': (3, 8), 'evolution': 'euler'}
SPARK = KERNEL | {'projection': 'gaussian', 'projection_dim': 40}
COHORT = 4

# What each method is tried with, beside its own defaults for what it sends
BOTH = {'sparsity': 0.4, 'bits': 9}
SETTINGS: dict[str, tuple[dict, ...]] = {
    'dpsgd': ({}, {'sparsity': 0.7}, {'bits': 5}, BOTH | {'gossip_steps': 3, **STEPS}),
    'decavg': (BOTH | STEPS,),
    'dfedsam': (BOTH | {'gossip_steps': 4, 'sam_radius': 0.01},),
    **dict.fromkeys(('dfedavg', 'dfedavgm', 'epidemic', 'dfedprox'), (BOTH,)),
    **dict.fromkeys(('dsgt', 'd2', 'qg_dsgdm', 'sgp'), ({}, BOTH)),
    'choco_sgd': ({'sparsity': 0.9}, {'sparsity': None, 'bits': 6}, {'sparsity': 0.5, 'bits': 4}),
    'beer': ({'bits': 5}, {'sparsity': 0.6, 'bits': 8}),
    'dispfl': ({'density': 0.3}, {'density': 0.7, 'regrow': 'random'}, BOTH | {'density': 0.3}),
    'dfed_alt': ({'head_epochs': 3}, {'head': 'Dense_1'}, BOTH | {'head': 'Dense_1'}),
    'relay_sgd': ({'members': 5}, BOTH | {'members': 5}),
    'dfed_admm': (
        {'proximal': 0.1},
        {'proximal': 0.1, 'sam_radius': 0.1},
        BOTH | {'proximal': 0.1, 'sam_radius': 0.1},
    ),
    'ntk_dfl': (
        *({}, {'sparsity': 0.8, 'bits': 6}, {'batches': 2}, {'subsampling': 3}),
        *({'averaging': False}, {'jacobian_weights': 'neighbours'}, {'by_cluster': True}),
        {'regression': True, 'loss': 'mse'},
    ),
    'ntk_fl': (
        *({'cohort': COHORT}, {'cohort': COHORT, 'regression': True, 'loss': 'mse'}),
        BOTH | {'cohort': COHORT},
    ),
    'spark': (
        *({}, {'exchange': 'float16'}, {'exchange': 'int8'}, {'sampling': 0.4}),
        *({'averaging': False}, {'step_form': 'exact', 'sampling': 0.7}, BOTH),
        {'selection': 'linearized', 'kernel_form': 'trace'},
    ),
    'dfml': ({'mutual_epochs': 3}, BOTH | {'mutual_epochs': 2, 'transfer': 'vanilla'}),
    'def_kt': ({'mutual_epochs': 3}, BOTH | {'mutual_epochs': 3}),
    'dec_fml': ({}, BOTH | {'owners': ('deep', 'narrow', 'deep')}),
    **dict.fromkeys(('dec_fedavg', 'dec_fedprox', 'dec_fed_dropout'), ({}, BOTH)),
    **dict.fromkeys(('dec_heterofl', 'dec_fedrolex'), ({}, BOTH)),
}


def network(regression=False, times=1) -> Clients:
    rng = np.random.default_rng(0)
    mask = np.arange(times * max(SIZES)) < times * np.array(SIZES)[:, None]
    x = np.where(mask[..., None], rng.normal(size=(*mask.shape, INPUTS)), 0).astype(np.float32)
    y = rng.normal(size=(*mask.shape, CLASSES)) if regression else rng.integers(3, size=mask.shape)
    return Clients(*map(jnp.asarray, (x, y.astype(np.float32 if regression else np.int32), mask)))


def lossy(seed) -> Graph:
    """Rounds in which clients hear random others, not both ways; links and clients are lost."""
    rng = np.random.default_rng(seed)
    members = np.array(
        [
            [[i, *rng.choice(np.delete(np.arange(CLIENTS), i), 4, False)] for i in range(CLIENTS)]
            for _ in range(ROUNDS)
        ]
    )
    mask = rng.random(members.shape) < 0.7
    mask[:, :, 0] = True
    return Graph(members.astype(np.int32), mask, rng.random((ROUNDS, CLIENTS)) < 0.8)


def schedule(name, settings) -> Graph:
    kind = IN_ROUNDS[name].graphs
    if kind == 'cohort':
        return topology.cohorts(CLIENTS, ROUNDS, COHORT, seed=1, dropout=0.3)
    if settings.get('by_cluster'):
        cliques = topology.schedule('clustered', CLIENTS, ROUNDS, seed=1, degree=3)
        return topology.by_cluster(topology.drop_clients(cliques, 0.2, 4))
    if kind in ('meetings', 'pairs'):
        all_pairs = topology.schedule('complete', CLIENTS, ROUNDS, seed=1)
        there = topology.drop_clients(topology.drop_links(all_pairs, 0.3, 2), 0.2, 3)
        return topology.meetings(there, 3, seed=1, aggregators=3 if kind == 'pairs' else 1)
    return lossy(1)


def present_at(graphs, r):
    """Of each aggregator that is active its members that are there; column 0 is itself."""
    rows = zip(*(np.asarray(a)[r] for a in graphs[:3]), strict=True)
    return [(members[0], members[mask].tolist()) for members, mask, active in rows if active]


def links_of(graphs, r, server=False):
    """(receiver, sender) of all links that deliver."""
    return [
        (int(home), m)
        for home, members in present_at(graphs, r)
        for m in (members if server else members[1:])
    ]


def prepared(name, settings):
    """The method, its network by hand, its settings, its graphs and its clients."""
    settings = dict(settings)
    method, graphs, mixed = IN_ROUNDS[name], schedule(name, settings), {}
    regression = settings.pop('regression', False)
    if method.heterogeneous:
        alike = name in ('def_kt', 'dec_fedavg', 'dec_fedprox')
        partial = name in ('dec_fed_dropout', 'dec_heterofl', 'dec_fedrolex')
        nets = {'narrow': NARROW} if alike else {'narrow': NARROW, 'wide': WIDE}
        nets = nets if alike or partial else nets | {'deep': DEEP}
        names = settings.pop('owners', tuple(nets))
        owners = [names[i % len(names)] for i in range(CLIENTS)]
        nets = {each: net for each, net in nets.items() if each in owners}
        mixed = {each: net_model(net) for each, net in nets.items()}
        algorithm_of = populate(mixed, owners)
        more = {'rounds': ROUNDS} if name == 'dfml' else {}
    else:
        # The operations of a kernel are written out for two layers
        kernels = name in by_hand.KERNELS
        nets, owners, more = {'one': WIDE if kernels else DEEP}, ['one'] * CLIENTS, {}
        algorithm_of = net_model(nets['one'], regression)
    if name in by_hand.KERNELS:
        training = SPARK if name == 'spark' else KERNEL
    else:
        training = {} if 'local_steps' in settings else TRAINING
    settings = training | settings
    algorithm = make(name, algorithm_of, **settings, **more)
    case = by_hand.Case(nets, owners, SIZES, 0, settings | {'regression': regression})
    return algorithm, case, graphs, network(regression)


def net_model(net, regression=False):
    hidden = [units for _, units, _ in net.layers[:-1]]
    task = (REGRESSION,) if regression else ()
    return bind(MLP(net.outputs, tuple(hidden)), (INPUTS,), *task)


PARTIAL = ('dec_heterofl', 'dec_fedrolex', 'dec_fed_dropout', 'dec_fml')
EVERY = [
    pytest.param(
        name,
        settings,
        id=f'{name}-{place}',
        marks=pytest.mark.slow if place and name in PARTIAL else (),
    )
    for name in IN_ROUNDS
    for place, settings in enumerate(SETTINGS.get(name, ({},)))
]


def test_every_method_is_counted_by_hand():
    assert {*IN_ROUNDS, *asynchronous.EVENT_METHODS} == {*by_hand.TRAFFIC}
    worked = (*by_hand.ALONE, *by_hand.MEETINGS, *by_hand.KERNELS, *by_hand.UPDATES)
    assert sorted(worked) == sorted(by_hand.TRAFFIC)
    for name, method in IN_ROUNDS.items():
        assert {'sparsity', 'bits'} <= settings_of(method.factory).keys()
        tried = {setting for settings in SETTINGS.get(name, ()) for setting in settings}
        assert {'sparsity', 'bits'} <= tried, name


@pytest.mark.parametrize(('name', 'settings'), EVERY)
def test_each_client_sends_and_computes_what_the_paper_says(name, settings):
    algorithm, case, graphs, clients = prepared(name, settings)
    kernels, server = name in by_hand.KERNELS, IN_ROUNDS[name].graphs == 'cohort'
    operations = np.ones(ROUNDS) if kernels else None  # those of kernels depend on the training
    counts = timing.counted(algorithm, clients, graphs, operations)
    lost = 0
    for r in range(ROUNDS):
        links = links_of(graphs, r, server)
        expected = by_hand.bits_of_round(name, case._replace(round=r), links, server)
        np.testing.assert_array_equal(counts.bits[r], expected, err_msg=f'bits of round {r}')
        lost += np.asarray(graphs.members)[r].size - len(links)
        assert links
        if not kernels:
            work, combining = operations_by_hand(name, case, present_at(graphs, r))
            np.testing.assert_allclose(counts.flops[r], work, rtol=1e-6, err_msg=f'work, {r}')
            if name in by_hand.MEETINGS:
                np.testing.assert_allclose(counts.combining_flops[r], combining, rtol=1e-6)
            assert work.any()
    assert lost


def operations_by_hand(name, case, present):
    """(all, those of aggregators when all messages are there) of a round, by client."""
    work, combining = np.zeros((2, CLIENTS))
    for home, members in present:
        if name in by_hand.MEETINGS:
            of_meeting = by_hand.flops_of_meeting(name, case, members)
            work, combining = work + of_meeting[0], combining + of_meeting[1]
        else:
            work[home] = by_hand.ALONE[name](case, home)
    return work, combining


IMAGES = {  # (inputs of an output, outputs, places) of every layer
    'CNN3': (CNN3(5), 6, [(9, 32, 36), (288, 64, 36), (576, 64, 36), (2304, 128, 1), (128, 64, 1)]),
    'SmallCNN': (SmallCNN(5), 8, [(9, 32, 64), (288, 64, 16), (256, 100, 1)]),
    'ConvNet': (ConvNet(5, (4, 8)), 8, [(25, 4, 64), (100, 8, 16)]),
    'MLP': (MLP(5, (9, 4)), 6, [(36, 9, 1), (9, 4, 1)]),
}


@pytest.mark.parametrize('name', IMAGES)
def test_a_gradient_passes_every_layer_of_a_network(name):
    """Outputs, weights and, but for the first layer, inputs: a product each."""
    module, side, layers = IMAGES[name]
    model = bind(module, (side, side, 1))
    head = model.shapes[max(n for n in model.shapes if n.startswith('Dense'))]['kernel'].shape
    net = by_hand.Net({}, (*layers, (*head, 1)), side**2, 5)
    assert gradient_flops(model) == net.gradient
    sample = jnp.zeros((1, side, side, 1))
    assert flops_of(model.apply, model.shapes, sample) == net.forward


# The program fits a square through three sizes, which is a few per cent off where samples are few
@pytest.mark.parametrize(
    ('name', 'settings'),
    [
        ('ntk_dfl', {}),
        ('ntk_dfl', {'batches': 2}),
        ('ntk_dfl', {'subsampling': 3}),
        ('ntk_dfl', {'by_cluster': True}),
        ('ntk_fl', {'cohort': COHORT}),
        ('spark', {'sampling': 0.5}),
    ],
)
def test_an_aggregator_works_on_the_data_that_it_hears(name, settings):
    algorithm, case, graphs, _ = prepared(name, settings)
    net, get, clients = case.net(), case.get, network(times=6)
    divisor = {'subsampling': get('subsampling', 1), 'sampling': 1 / get('sampling', 1.0)}
    drawn = [int(np.ceil(n / max(divisor.values()) - 1e-9)) for n in 6 * np.array(SIZES)]
    kept, t = KERNEL['timesteps'], KERNEL['timesteps'][-1]
    state = jax.jit(algorithm.init)(jax.random.key(0), clients)
    info = jax.device_get(
        jax.jit(lambda *a: one_round(algorithm, *a)[1])(
            jax.random.key(1), state, 0, round_of(graphs, 0), clients
        )
    )
    expected = np.zeros(CLIENTS)
    for home, members in present_at(graphs, 0):
        batches = get('batches', 1)
        parts = [sum(len(range(b, drawn[m], batches)) for m in members) for b in range(batches)]
        work = sum(
            by_hand.projected_update(net, n, t, len(kept), get('projection_dim'))
            if name == 'spark'
            else by_hand.kernel_update(net, n, t, len(kept))
            for n in parts
        )
        expected[home] += work
        if name == 'ntk_fl':  # of the server, whom all wait for
            expected[:] = work
    np.testing.assert_allclose(info.flops, expected, rtol=0.04)


def tables(seed):
    """A world in which messages are slow, get lost and find nobody at home."""
    graphs = topology.schedule('regular', CLIENTS, 1, seed=seed, static=True, degree=3)
    drawn = world(
        CLIENTS,
        seed,
        speed='lognormal:1:0.7',
        uplink='lognormal:9000:0.5',
        latency='lognormal:0.05:1',
        online='sine:1.7:0.7',
    )
    return graphs, drawn


@pytest.mark.parametrize('name', asynchronous.EVENT_METHODS)
def test_who_does_not_wait_counts_as_the_paper_says(name):
    """The messages that arrive and the local updates of the event loop of `reference_events`."""
    net, seed, ends = by_hand.dense(INPUTS, CLASSES), 3, np.array([1.5, 3.0, 4.0])
    model, settings = net_model(net), dict(STEPS)
    graphs, drawn = tables(seed)
    case = by_hand.Case({'one': net}, ['one'] * CLIENTS, SIZES, 0, settings)
    bits = asynchronous.model_bits(name, model)
    (there, _), more = by_hand.TRAFFIC[name](case, 0, 1), {}
    if name == 'divshare':
        more = {'fragments': 5, 'recipients': 2}  # of 24 parameters: one of them is shorter
        assert (there, bits) == (32, 32 * net.size)
    else:
        assert bits == there  # of which the transfer's seconds follow, too
    timed = {'flops': 0.1, 'bits': bits, 'loss': 0.2, 'seed': seed}
    planned = asynchronous.plan(name, graphs, drawn, ends=ends, **timed, **more)
    factory = by_interval(asynchronous.EVENT_METHODS[name].factory)
    width = planned.slots.active.shape[1]
    algorithm = factory(
        model,
        places=planned.places,
        width=width,
        seconds=0.5,
        training=LocalTraining(**settings, local_epochs=None),
        **{n: v for n, v in more.items() if n == 'fragments'},
    )
    counts = timing.counted(algorithm, network(), intervals_of(planned))
    hears = [graphs.members[0, i, 1:].tolist() for i in range(CLIENTS)]
    loop = dict(more)
    if name == 'divshare':
        cut = layout_of(model, 5).cut
        numbers = {'Dense_0': {'kernel': np.arange(21).reshape(7, 3), 'bias': np.arange(21, 24)}}
        whole, rest = (np.asarray(part).tolist() for part in cut(numbers))
        loop['fragments'] = [row + more for row, more in zip(whole, [*rest, []], strict=True)]
    if name == 'swift':
        loop['matrix'] = np.eye(CLIENTS)
    arrived, reached = [np.zeros(CLIENTS)], ends
    for end in ends:
        still = [np.zeros(net.size)] * CLIENTS
        run = getattr(reference_events, name)
        _, sent = run(still, lambda i, x: 0 * x, drawn, hears, [end], lr=0.1, **timed, **loop)
        arrived.append(np.array(sent))
    expected = [(b - a) * there for a, b in pairwise(arrived)]
    np.testing.assert_array_equal(counts.bits, expected)
    assert np.sum(counts.bits > 0) > 2 * CLIENTS
    updates = np.zeros((len(reached), CLIENTS))
    for event in planned.events:
        updates[np.searchsorted(ends, event.time), event.members[0]] += 1
    work = [by_hand.local(case, i) for i in range(CLIENTS)]
    np.testing.assert_allclose(counts.flops, updates * work, rtol=1e-6)
    told = reported(
        algorithm,
        network(),
        intervals_of(planned),
        lambda info: {n: info.metrics[n] for n in ('updates', 'simulated_seconds')},
    )
    np.testing.assert_array_equal(told['updates'], updates.sum(axis=1))
    np.testing.assert_allclose(told['simulated_seconds'], 0.5 * np.arange(1, 4))
    assert updates.sum() > 10 * CLIENTS


def consensus_methods():
    """Every method whose consensus can weigh clients by their samples."""
    tables = IN_ROUNDS, asynchronous.EVENT_METHODS
    for name, method in ((n, m) for table in tables for n, m in table.items()):
        if 'consensus' in settings_of(method.factory):
            yield name


@pytest.mark.parametrize('name', [*consensus_methods()])
def test_the_consensus_weighs_the_clients_as_it_says(name):
    """The plain mean, by samples, or by weights that are asked for."""
    more = {'relay_sgd': {'members': 5}, 'spark': {'projection_dim': 4}}.get(name, {})
    clients, model = network(), net_model(DEEP)
    for how in ('mean', 'size'):
        if name in asynchronous.EVENT_METHODS:
            factory = asynchronous.EVENT_METHODS[name].factory
            algorithm = make(factory, model, places=2, init='independent', consensus=how)
        else:
            algorithm = make(name, model, init='independent', consensus=how, **more)
        state = jax.jit(algorithm.init)(jax.random.key(0), clients)
        alone = [algorithm.consensus(state, jnp.eye(CLIENTS)[i]) for i in range(CLIENTS)]
        models = jax.tree.map(lambda *leaves: np.stack(leaves), *alone)
        assert algorithm.by_size == (how == 'size')
        asked, usual = np.arange(CLIENTS) % 3, consensus_weights(algorithm, clients, 1)
        for weights, given in ((SIZES if how == 'size' else [1] * CLIENTS, usual), (asked, asked)):
            found = algorithm.consensus(state, None if given is None else jnp.asarray(given))
            expected = jax.tree.map(
                lambda leaf, w=weights: np.average(leaf, axis=0, weights=w), models
            )
            for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert any(np.ptp(leaf, axis=0).max() > 0.1 for leaf in jax.tree.leaves(models))
