"""What every algorithm owes the simulator, on every family of topologies.

A new algorithm adds one line to ALGORITHMS_UNDER_TEST, and to SENT what its clients send; one with
a server also its name to CENTRALIZED, whose schedules are cohorts; one whose clients may differ in
architecture, and whose senders meet at aggregators, to MEETING. The settings are tiny and leave
nothing to chance that differs between clients (full batches, no dropout of units), so that
relabelling the clients relabels the result.
"""

import functools
import itertools
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dfl_jax import Clients, Graph, simulate, topology
from dfl_jax.checkpoint import Checkpoints
from dfl_jax.exchange import one_round
from dfl_jax.execution.devices import client_mesh
from dfl_jax.heterogeneous.population import assign_architectures, populate
from dfl_jax.methods import IN_ROUNDS, make
from dfl_jax.models import MLP, bind
from tests.helpers import round_of

# All but those of files, and the hypercube, which has no nine corners
FAMILIES = tuple(
    f for f, row in topology.FAMILIES.items() if 'path' not in row.takes and f != 'hypercube'
)
WEIGHTED = 'base_graph'  # of degree two, nine clients in two rounds, with weights of its own
SIZES = (4, 6, 1, 5, 3, 6, 2, 5, 4)  # samples of each client, the largest of them N
CLIENTS, FEATURES, CLASSES = len(SIZES), 4, 3
ROUNDS, WIDTH = 20, CLIENTS  # K of every padded schedule: one shape, one compiled step
COHORTS, COHORT = 'cohorts', 3  # the family of a server's schedules, and their K
MEETINGS, PAIRS = 'meetings', 'pairs'  # three senders at one aggregator, or each at its own
SENDERS, SEATS = 3, {MEETINGS: 5, PAIRS: 2}  # and K of their padded schedules
NEIGHBOURS = {MEETINGS: ('regular', 4), PAIRS: ('regular', 2)}  # among whom they are drawn
MODEL = bind(MLP(CLASSES, (5,)), (FEATURES,))
WIDTHS = {
    'wide': bind(MLP(CLASSES, (4,)), (FEATURES,)),
    'narrow': bind(MLP(CLASSES, (3,)), (FEATURES,)),
}
# The odd clients are narrow.
MIXED = populate(WIDTHS, assign_architectures(tuple(WIDTHS), CLIENTS, [1, 1]))
ALIKE = populate({'wide': WIDTHS['wide']}, ['wide'] * CLIENTS)
AVERAGED = {'lr': 0.05, 'chunk': 1}
TAUGHT = AVERAGED | {'mutual_epochs': 1}

ALGORITHMS_UNDER_TEST: dict[str, Callable] = {
    'ntk_dfl': lambda: make('ntk_dfl', MODEL, lr=0.05, lr_decay=0.1, timesteps=(3, 8)),
    'dpsgd': lambda: make('dpsgd', MODEL, lr=0.1),
    'dfedavg': lambda: make('dfedavg', MODEL, lr=0.05, local_epochs=3),
    'dfedavgm': lambda: make('dfedavgm', MODEL, lr=0.05, local_epochs=3),
    'dfedsam': lambda: make('dfedsam', MODEL, lr=0.05, local_epochs=2),
    'decavg': lambda: make('decavg', MODEL, lr=0.05, local_steps=2, init='same'),
    'dispfl': lambda: make('dispfl', MODEL, lr=0.05, local_epochs=2, anneal_rounds=20),
    'ntk_fl': lambda: make('ntk_fl', MODEL, cohort=COHORT, lr=0.05, timesteps=(3, 8)),
    # By default an aggregator's number decides its matrices: other names, other matrices.
    'spark': lambda: make(
        'spark', MODEL, lr=0.05, timesteps=(3, 8), projection_dim=20, projection_refresh='round'
    ),
    'dsgt': lambda: make('dsgt', MODEL, lr=0.05),
    'd2': lambda: make('d2', MODEL, lr=0.05),
    'relay_sgd': lambda: make('relay_sgd', MODEL, lr=0.05, members=WIDTH),
    'qg_dsgdm': lambda: make('qg_dsgdm', MODEL, lr=0.05),
    'sgp': lambda: make('sgp', MODEL, lr=0.05),
    'choco_sgd': lambda: make('choco_sgd', MODEL, lr=0.05, sparsity=0.5, consensus_step=0.5),
    'beer': lambda: make('beer', MODEL, lr=0.05, rounding='nearest'),
    'epidemic': lambda: make('epidemic', MODEL, lr=0.05),
    'dfedprox': lambda: make('dfedprox', MODEL, lr=0.05, local_epochs=2),
    'dfed_admm': lambda: make('dfed_admm', MODEL, lr=0.05, local_epochs=2),
    'dfed_alt': lambda: make('dfed_alt', MODEL, lr=0.05, local_epochs=2),
    'dfml': lambda: make('dfml', MIXED, rounds=ROUNDS, **TAUGHT),
    'dec_fedavg': lambda: make('dec_fedavg', MIXED, **AVERAGED),
    'dec_fedprox': lambda: make('dec_fedprox', MIXED, **AVERAGED, local_epochs=2),
    'def_kt': lambda: make('def_kt', ALIKE, **TAUGHT),
    'dec_fed_dropout': lambda: make('dec_fed_dropout', MIXED, **AVERAGED),
    'dec_heterofl': lambda: make('dec_heterofl', MIXED, **AVERAGED),
    'dec_fedrolex': lambda: make('dec_fedrolex', MIXED, **AVERAGED),
    'dec_fml': lambda: make('dec_fml', MIXED, **AVERAGED),
}
CENTRALIZED = ('ntk_fl',)  # one aggregator, which is no client; all clients hold its model
MEETING = {  # aggregators are a round's aggregators; who is not among their members does nothing
    **dict.fromkeys(('dfml', 'dec_fedavg', 'dec_fedprox', 'dec_fed_dropout'), MEETINGS),
    **dict.fromkeys(('dec_heterofl', 'dec_fedrolex', 'dec_fml'), MEETINGS),
    'def_kt': PAIRS,
}
ON_ONE_GRAPH = ('d2', 'relay_sgd', 'choco_sgd', 'beer')  # a tree here; they refuse to run on others
BOTH_WAYS = ('dsgt',)  # refuses links of one direction
DECENTRALIZED = tuple(
    name for name in ALGORITHMS_UNDER_TEST if name not in CENTRALIZED and name not in MEETING
)
NEAR_DUPLICATES = (  # slow tests
    *('dpsgd', 'dfedavg', 'dfedsam', 'decavg', 'epidemic', 'dfedprox'),
    *('dec_fedprox', 'dec_fed_dropout', 'dec_fedrolex'),
)


def sent_ntk_fl(links, sizes):
    """Jacobians, outputs and labels to the aggregator or server."""
    labels = np.array(sizes) * sent_gossip(links, sizes)['weights']
    return {'jacobian_rows': CLASSES * labels, 'outputs': CLASSES * labels, 'labels': labels}


def sent_ntk_dfl(links, sizes):
    """The same, and weights to the aggregator and averaged weights back."""
    weights = np.bincount([client for link in links for client in link], minlength=CLIENTS)
    return sent_ntk_fl(links, sizes) | {'weights': weights}


def sent_spark(links, sizes):
    """The same with projected Jacobians, each with a step of quantization, which may be empty, and
    the inputs on which a network chooses its timestep."""
    sent = sent_ntk_dfl(links, sizes)
    messages = sent_gossip(links, sizes)['weights']
    return sent | {'jacobians': messages, 'inputs': sent['labels']}


def sent_gossip(links, sizes):
    """Trained weights to every neighbour."""
    senders = [neighbour for _, neighbour in links]
    return {'weights': np.bincount(senders, minlength=CLIENTS)}


def sent_pairs(first, second):
    """Messages of two kinds to every neighbour."""
    return lambda links, sizes: dict.fromkeys((first, second), sent_gossip(links, sizes)['weights'])


def sent_beer(links, sizes, r):
    """Weights and the tracker, but no tracker in the first round."""
    messages = sent_gossip(links, sizes)['weights']
    return {'weights': messages, 'trackers': messages * (r > 0)}


def sent_meeting(links, sizes):
    """Models to the aggregator and updated ones back, both of the sender's architecture."""
    sent = {f'weights/{name}': np.zeros(CLIENTS, int) for name in WIDTHS}
    for aggregator, sender in links:
        of_sender = sent[f'weights/{tuple(WIDTHS)[sender % 2]}']
        of_sender[sender] += 1
        of_sender[aggregator] += 1
    return sent


def sent_def_kt(links, sizes):
    """Models to the aggregator alone."""
    return {'weights/wide': sent_gossip(links, sizes)['weights']}


def sent_dec_fml(links, sizes):
    """Memes to the aggregator, and their mean back."""
    return {'weights/meme': sum(sent_meeting(links, sizes).values())}


# What each client sends in one round: (pairs (aggregator, neighbour) of delivered links, N_i) ->
# counts.
SENT: dict[str, Callable] = {
    'ntk_dfl': sent_ntk_dfl,
    'ntk_fl': sent_ntk_fl,
    'spark': sent_spark,
    **dict.fromkeys(('dpsgd', 'dfedavg', 'dfedavgm', 'dfedsam', 'decavg', 'd2'), sent_gossip),
    **dict.fromkeys(('qg_dsgdm', 'choco_sgd', 'epidemic', 'dfedprox'), sent_gossip),
    **dict.fromkeys(('dfed_admm', 'dfed_alt'), sent_gossip),
    'dispfl': sent_pairs('weights', 'masks'),  # the weights inside the mask
    'dsgt': sent_pairs('weights', 'trackers'),
    'beer': sent_beer,
    'relay_sgd': sent_pairs('relays', 'counts'),
    'sgp': sent_pairs('weights', 'masses'),
    **dict.fromkeys(('dfml', 'dec_fedavg', 'dec_fedprox', 'dec_fed_dropout'), sent_meeting),
    **dict.fromkeys(('dec_heterofl', 'dec_fedrolex'), sent_meeting),
    'def_kt': sent_def_kt,
    'dec_fml': sent_dec_fml,
}
CHANGING = ('beer',)  # what they send depends on the round, the third argument


def sent_in(name, links, r):
    """What each client sends in round r over these links, by unit."""
    return SENT[name](links, SIZES, *([r] if name in CHANGING else []))


# Irregular, disconnected and lopsided; `make test` leaves the other families to the slow tests.
QUICK_FAMILIES = ('erdos_renyi', 'clustered', 'star')
QUICK_WEIGHTED = ('ntk_dfl', 'dfedavgm')  # weights change the programs of all others likewise


def case(*values):
    """The parameters of one test, an algorithm or a family or both, the family last."""
    slow = set(values) & {*FAMILIES} - {*QUICK_FAMILIES} or set(values) & {*NEAR_DUPLICATES}
    if WEIGHTED in values:
        slow = not set(values) & {*QUICK_WEIGHTED}
    return pytest.param(*values, marks=pytest.mark.slow if slow else ())


# Kernels, gossip, meetings; tests that compile programs of their own leave the others to the slow
# tests, but for one run of a server and of SPARK, whose messages are of a kind of their own, and
# of DisPFL and DFML where a round is compiled once more: their masks and peers are their own.
REPRESENTATIVES = ('ntk_dfl', 'dfedavgm', 'dec_fedavg')
RUN_WHOLE = (*REPRESENTATIVES, 'ntk_fl', 'spark')
COMPILED_AGAIN = (*RUN_WHOLE, 'dispfl', 'dfml')


def of_each_kind(*values, quick=REPRESENTATIVES):
    """The parameters of one such test, an algorithm first."""
    return pytest.param(*values, marks=() if values[0] in quick else pytest.mark.slow)


every_whole_run = pytest.mark.parametrize(
    'name', [of_each_kind(name, quick=RUN_WHOLE) for name in ALGORITHMS_UNDER_TEST]
)
every_decentralized = pytest.mark.parametrize('name', [case(name) for name in DECENTRALIZED])
every_centralized = pytest.mark.parametrize('name', CENTRALIZED)
every_family = pytest.mark.parametrize('family', [case(family) for family in FAMILIES])
every_meeting = pytest.mark.parametrize(
    ('name', 'family'), [case(name, family) for name, family in MEETING.items()]
)
NETWORKS = (
    *((name, family) for name in DECENTRALIZED for family in FAMILIES),
    *((name, COHORTS) for name in CENTRALIZED),
    *MEETING.items(),
)
every_network = pytest.mark.parametrize(('name', 'family'), [case(*pair) for pair in NETWORKS])


def test_every_algorithm_is_under_test():
    assert set(ALGORITHMS_UNDER_TEST) == set(IN_ROUNDS) == set(SENT)


@pytest.mark.parametrize('name', ALGORITHMS_UNDER_TEST)
def test_a_client_predicts_its_own_samples_by_its_own_model(name):
    algorithm, clients = ALGORITHMS_UNDER_TEST[name](), network()
    init, _, predict = jitted(name)
    state = init(jax.random.key(3), clients)
    if name in CENTRALIZED:
        assert algorithm.predict_own is None  # one model
        return
    x = clients.x[0, :5]
    own = jax.jit(algorithm.predict_own)(state, jnp.broadcast_to(x, (CLIENTS, *x.shape)))
    np.testing.assert_allclose(own, predict(state, x)['client'], rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------- the network


def network(extra_samples=0, garbage=False) -> Clients:
    """Clients of unequal sizes; `garbage` fills the padding with what has to change nothing."""
    rng = np.random.default_rng(0)
    samples = max(SIZES) + extra_samples
    mask = np.arange(samples) < np.array(SIZES)[:, None]
    x = np.zeros((CLIENTS, samples, FEATURES), np.float32)
    y = np.zeros((CLIENTS, samples), np.int32)
    x[mask] = rng.normal(size=(mask.sum(), FEATURES))
    y[mask] = rng.integers(CLASSES, size=mask.sum())
    if garbage:
        x[~mask] = rng.choice([np.nan, np.inf, -np.inf, 1e30], ((~mask).sum(), FEATURES))
        y[~mask] = rng.choice([-7, CLASSES, 2**30], (~mask).sum())
    return Clients(jnp.asarray(x), jnp.asarray(y), jnp.asarray(mask))


def schedule(
    family,
    rounds=3,
    width=WIDTH,
    links_lost=0.0,
    clients_lost=0.0,
    seed=0,
    directions_lost=0.0,
    isolated=0.0,
) -> Graph:
    """A schedule of one family whose rows are padded to `width` columns, NumPy arrays.

    Cohorts have no padding, and a lost client or its link is the same there; pairs have none.
    """
    if family == COHORTS:
        lost = max(links_lost, clients_lost)
        return topology.cohorts(CLIENTS, rounds, COHORT, seed=seed, dropout=lost)
    drawn, degree = NEIGHBOURS.get(family, (family, 2))
    graphs = topology.schedule(drawn, CLIENTS, rounds, seed=seed, degree=degree)
    graphs = topology.drop_links(graphs, links_lost, 1)
    graphs = topology.drop_links(graphs, directions_lost, 3, directed=True)
    graphs = topology.isolate_clients(graphs, isolated, 4)
    graphs = topology.drop_clients(graphs, clients_lost, 2)
    if family in SEATS:
        aggregators = SENDERS if family == PAIRS else 1
        graphs = topology.meetings(graphs, SENDERS, seed=seed, aggregators=aggregators)
        width = width and SEATS[family]
    extra = (width or graphs.mask.shape[2]) - graphs.mask.shape[2]
    itself = np.repeat(graphs.members[:, :, :1], extra, axis=2)
    padding = [(0, 0), (0, 0), (0, extra)]
    return Graph(
        np.concatenate([graphs.members, itself], axis=2),
        np.pad(graphs.mask, padding),
        np.array(graphs.active),
        graphs.weights if graphs.weights is None else np.pad(graphs.weights, padding),
    )


def one_graph(rounds) -> Graph:
    """The first round of a line, again and again."""
    return jax.tree.map(lambda a: np.repeat(a[:1], rounds, axis=0), schedule('line'))


def all_families(name) -> Graph:
    """Rounds that are each of another family if there are several, with links and clients lost."""
    if name in CENTRALIZED:
        return schedule(COHORTS, ROUNDS, clients_lost=0.4)
    if name in ON_ONE_GRAPH:
        return one_graph(ROUNDS)
    if name in MEETING or name in BOTH_WAYS:
        family = MEETING.get(name, 'erdos_renyi')
        return schedule(family, ROUNDS, links_lost=0.2, clients_lost=0.2)
    drawn = [
        schedule(family, 1, links_lost=0.2, clients_lost=0.2, seed=seed)
        for seed, family in zip(range(ROUNDS), itertools.cycle(FAMILIES), strict=False)
    ]
    assert len(FAMILIES) <= ROUNDS
    plain = (graphs._replace(weights=None) for graphs in drawn)  # all or none have weights
    return jax.tree.map(lambda *arrays: np.concatenate(arrays), *plain)


def links_of(name, graphs, r):
    """(aggregator, neighbour) of every delivered link; column 0 is the aggregator itself, unless a
    server."""
    first = 0 if name in CENTRALIZED else 1
    return [
        (int(aggregator), int(neighbour))
        for (aggregator, *_), members, mask in zip(
            graphs.members[r], graphs.members[r, :, first:], graphs.mask[r, :, first:], strict=True
        )
        for neighbour, delivered in zip(members, mask, strict=True)
        if delivered
    ]


def taking_part(name, graphs, r):
    """Whose model a round changes, [M] bool."""
    if name not in MEETING:
        return np.broadcast_to(graphs.active[r], CLIENTS)  # a server's holds for all
    mask = graphs.mask[r] & graphs.active[r, :, None]
    if name == 'def_kt':  # its aggregators do not train alone
        mask = mask & mask[:, 1:].any(axis=1, keepdims=True)
    return np.isin(np.arange(CLIENTS), graphs.members[r][mask])


@functools.cache
def holdout():
    rng = np.random.default_rng(5)
    x = rng.normal(size=(7, FEATURES)).astype(np.float32)
    return simulate.Holdout(x, rng.integers(CLASSES, size=7).astype(np.int32))


@functools.cache
def jitted(name):
    """(init, step, predict) compiled once for all tests of one algorithm."""
    algorithm = ALGORITHMS_UNDER_TEST[name]()
    step = functools.partial(one_round, algorithm)
    return tuple(map(jax.jit, (algorithm.init, step, algorithm.predict)))


def trained(name, graphs, clients=None):
    """State after the schedule, with each round's info."""
    init, step, _ = jitted(name)
    clients = network() if clients is None else clients
    state, infos = init(jax.random.key(3), clients), []
    for r in range(len(graphs.active)):
        state, info = step(jax.random.key(r), state, r, round_of(graphs, r), clients)
        infos.append(jax.device_get(info))
    return state, infos


def logits(name, state):
    return jax.device_get(jitted(name)[2](state, holdout().x))


def assert_same(first, second):
    """Two trees equal bit for bit."""
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def assert_close(first, second):
    """Two trees equal up to the rounding of float32, where shapes or orders of sums differ."""
    assert jax.tree.structure(first) == jax.tree.structure(second)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


# ---------------------------------------------------------------------------------- one round


@every_network
def test_garbage_in_the_padding_changes_nothing(name, family):
    graphs = schedule(family)
    state, infos = trained(name, graphs)
    garbage_state, garbage_infos = trained(name, graphs, network(garbage=True))
    assert_same(state, garbage_state)
    assert_same(infos, garbage_infos)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(logits(name, state)))


# Of graphs without padding every family has a program of its own.
@pytest.mark.parametrize(
    ('name', 'family'),
    [
        case(*pair)
        if pair[1] in ('erdos_renyi', WEIGHTED, COHORTS, MEETINGS) and pair[0] in COMPILED_AGAIN
        else pytest.param(*pair, marks=pytest.mark.slow)
        for pair in NETWORKS
    ],
)
def test_more_padding_changes_nothing(name, family):
    state, infos = trained(name, schedule(family))
    more, narrow = network(extra_samples=3, garbage=True), schedule(family, width=None)
    other_state, other_infos = trained(name, narrow, more)
    assert_close(logits(name, state), logits(name, other_state))
    assert_close(infos, other_infos)


@every_network
def test_lost_links_are_no_neighbours(name, family):
    """A masked link is as good as none, whatever client it names."""
    graphs = schedule(family, links_lost=0.4)
    assert not graphs.mask[:, :, 1:].all()
    members = np.where(graphs.mask, graphs.members, (graphs.members[:, :, :1] + 1) % CLIENTS)
    itself = np.where(graphs.mask, graphs.members, graphs.members[:, :, :1])
    assert not (members == graphs.members).all()
    kept = trained(name, graphs._replace(members=itself))
    assert_same(kept, trained(name, graphs._replace(members=members)))


@pytest.mark.parametrize(
    ('name', 'family'),  # a client's number decides which units Federated Dropout draws for it
    [case(*pair) for pair in NETWORKS if pair[0] != 'dec_fed_dropout'],
)
def test_relabelling_the_clients_relabels_the_result(name, family):
    """Within an architecture, of which there may be two; the order of senders is no matter."""
    graphs = schedule(family, links_lost=0.2, clients_lost=0.2)
    rng, order = np.random.default_rng(8), np.arange(CLIENTS)  # new client i is the old order[i]
    order[::2], order[1::2] = rng.permutation(order[::2]), rng.permutation(order[1::2])
    new_name = np.argsort(order)
    aggregators = order if name in DECENTRALIZED else np.arange(len(graphs.active[0]))
    positions = np.arange(graphs.mask.shape[2])
    if name in MEETING:
        positions[1:] = rng.permutation(positions[1:])
    clients = jax.tree.map(lambda a: a[order], network())
    renamed = Graph(
        new_name[graphs.members[:, aggregators][:, :, positions]].astype(np.int32),
        graphs.mask[:, aggregators][:, :, positions],
        graphs.active[:, aggregators],
        None if graphs.weights is None else graphs.weights[:, aggregators],
    )
    state, infos = trained(name, graphs)
    new_state, new_infos = trained(name, renamed, clients)
    before, after = logits(name, state), logits(name, new_state)
    alike = np.ptp(before['client'], axis=0).max() < 1e-3
    assert alike == (family == COHORTS), 'the clients are all alike'
    assert_close(before['consensus'], after['consensus'])
    for model in {'client', 'regular', 'meme'} & set(before):
        assert_close(before[model][order], after[model])
    relabelled = jax.tree.map(lambda leaf: leaf[order] if leaf.ndim else leaf, infos)
    assert_close(relabelled, new_infos)


@every_network
def test_inactive_clients_keep_their_model(name, family):
    graphs = schedule(family, rounds=4, clients_lost=0.8 if family == COHORTS else 0.4)
    init, step, _ = jitted(name)
    clients = network()
    state = init(jax.random.key(3), clients)
    seen = set()
    for r in range(4):
        active = taking_part(name, graphs, r)
        before = logits(name, state)['client']
        state, _ = step(jax.random.key(r), state, r, round_of(graphs, r), clients)
        after = logits(name, state)['client']
        assert (before[~active] == after[~active]).all()
        assert (before[active] != after[active]).any(axis=(1, 2)).all()
        seen |= set(active)
    assert seen == {True, False}


@every_family
@every_decentralized
def test_an_empty_graph_sends_nothing(name, family):
    _, infos = trained(name, without_links(family))
    sent = [v.messages for info in infos for v in info.sent.values()]
    assert sent and not any(v.any() for v in sent)


def without_links(family):
    """Rounds in which everybody hears itself alone."""
    graphs = schedule(family)
    mask = np.zeros_like(graphs.mask)
    mask[:, :, 0] = True
    return graphs._replace(mask=mask)


@pytest.mark.parametrize(
    ('name', 'family'),  # RelaySGD's models are means over all clients, the unheard as they began
    [
        case(name, family)
        if name in COMPILED_AGAIN
        else pytest.param(name, family, marks=pytest.mark.slow)
        for name in DECENTRALIZED
        if name != 'relay_sgd'
        for family in FAMILIES
    ],
)
def test_who_hears_nobody_trains_alone(name, family):
    state, _ = trained(name, without_links(family))
    together = logits(name, state)['client']
    alone = Graph(np.zeros((3, 1, 1), np.int32), np.ones((3, 1, 1), bool), np.ones((3, 1), bool))
    for i in (0, 2, 4):
        lonely, _ = trained(name, alone, jax.tree.map(lambda a, i=i: a[i : i + 1], network()))
        assert_close(together[i], logits(name, lonely)['client'][0])


@every_centralized
def test_an_empty_cohort_sends_nothing_and_keeps_the_model(name):
    graphs = schedule(COHORTS)
    _, once = trained(name, graphs)
    assert all(v.messages.any() for info in once for v in info.sent.values())
    nobody = graphs._replace(mask=graphs.mask & False, active=graphs.active & False)
    state, infos = trained(name, nobody)
    assert_same(logits(name, jitted(name)[0](jax.random.key(3), network())), logits(name, state))
    assert not any(v.messages.any() for info in infos for v in info.sent.values())


@every_meeting
def test_an_aggregator_that_hears_nobody_sends_nothing(name, family):
    """It trains alone, unless its own model would be replaced; the others keep theirs."""
    graphs = schedule(family)
    start = jitted(name)[0](jax.random.key(3), network())
    for active in (True, False):
        here = graphs.mask & (np.arange(graphs.mask.shape[2]) == 0) & active
        lonely = graphs._replace(mask=here, active=graphs.active & active)
        state, infos = trained(name, lonely)
        sent = [v.messages for info in infos for v in info.sent.values()]
        assert sent and not any(v.any() for v in sent)
        assert all(np.isfinite(info.loss).all() for info in infos)
        before, after = logits(name, start)['client'], logits(name, state)['client']
        moved = np.isin(np.arange(CLIENTS), graphs.members[:, :, 0]) & active & (name != 'def_kt')
        np.testing.assert_array_equal((before != after).any(axis=(1, 2)), moved)


@every_network
def test_traffic_over_delivered_links(name, family):
    graphs = schedule(family, links_lost=0.3, clients_lost=0.2)
    _, infos = trained(name, graphs)
    some = 0
    for r, info in enumerate(infos):
        links = links_of(name, graphs, r)
        some += len(links)
        counted, expected = info.sent, sent_in(name, links, r)
        assert set(counted) == set(expected)
        for kind, messages in expected.items():
            assert np.issubdtype(counted[kind].messages.dtype, np.integer)
            np.testing.assert_array_equal(counted[kind].messages, messages, err_msg=kind)
    assert some


@every_decentralized
def test_failures_of_one_direction_and_clients_that_are_cut_off(name):
    """Traffic over what is delivered; who is cut off trains, and nothing of his moves others."""
    one_way = 0.0 if name in BOTH_WAYS else 0.3
    graphs = schedule('complete', 1, directions_lost=one_way, isolated=0.3)
    links = links_of(name, graphs, 0)
    directed = {pair for pair in links if pair[::-1] not in links}
    alone = np.setdiff1d(np.arange(CLIENTS), np.ravel(links))
    assert links and len(alone) and graphs.active.all() and bool(directed) == bool(one_way)
    state, (info,) = trained(name, graphs)
    for kind, expected in sent_in(name, links, 0).items():
        np.testing.assert_array_equal(info.sent[kind].messages, expected, err_msg=kind)
        assert not expected[alone].any()
    start = jitted(name)[0](jax.random.key(3), network())
    before, after = logits(name, start)['client'], logits(name, state)['client']
    assert (before != after).any(axis=(1, 2))[alone].all(), 'they train'
    nobody = graphs._replace(mask=graphs.mask & (np.arange(graphs.mask.shape[2]) == 0))
    by_itself = logits(name, trained(name, nobody)[0])['client']
    np.testing.assert_allclose(after[alone], by_itself[alone], rtol=1e-5, atol=1e-6)


@every_meeting
def test_who_takes_no_part_does_not_diverge(name, family):
    """With data that are no numbers at one client: its group at most, and it."""
    graphs = schedule(family, 1)
    sender = int(graphs.members[0, 0, 1])
    clients = network()
    x = np.array(clients.x)
    x[sender] = np.nan
    _, (info,) = trained(name, graphs, clients._replace(x=jnp.asarray(x)))
    diverged = np.flatnonzero(~np.isfinite(info.loss))
    rows = zip(graphs.members[0], graphs.mask[0], strict=True)
    group = next({*row[kept].tolist()} for row, kept in rows if sender in row[kept])
    assert sender in diverged or name == 'def_kt'
    assert set(diverged.tolist()) <= group and len(group) < CLIENTS


# ------------------------------------------------------------------------ weights of 16 bits


class Narrow(nn.Module):
    """An MLP whose weights are of 16 bits, and its arithmetic, too, if `computes`."""

    hidden: int
    weights: str
    computes: bool

    @nn.compact
    def __call__(self, x):
        types = {'param_dtype': self.weights, 'dtype': self.weights if self.computes else None}
        return nn.Dense(CLASSES, **types)(nn.relu(nn.Dense(self.hidden, **types)(x)))


KEPT = 19  # weights in the masks of DisPFL
OF_16_BITS = {  # bits of each kind, counted by hand; of a message of 43 weights by default
    'ntk_dfl': {'weights': 688, 'jacobian_rows': 688, 'labels': 32},
    'ntk_fl': {'jacobian_rows': 688, 'labels': 32},
    'spark': {
        'weights': 688,
        'jacobian_rows': 20 * 32,  # projected by numbers of 32 bits
        'jacobians': 0,
        'labels': 32,
        'inputs': FEATURES * 32,
    },
    'dispfl': {'weights': KEPT * 16, 'masks': 43},
    'dsgt': {'weights': 688, 'trackers': 688},
    'relay_sgd': {'relays': 688, 'counts': 32},
    'sgp': {'weights': 688, 'masses': 16},
    # The larger half of 20, 5, 15 and 3 weights, and bitmaps
    'choco_sgd': {'weights': (10 + 3 + 8 + 2) * 16 + 43},
    # 5 bits, and the largest of four tensors
    'beer': {'weights': 43 * 5 + 4 * 16, 'trackers': 43 * 5 + 4 * 16},
    'dfed_alt': {'weights': (FEATURES * 5 + 5) * 16},
    'dec_fml': {'weights/meme': 35 * 16},
    'def_kt': {'weights/wide': 35 * 16},
} | {
    name: {'weights/wide': 35 * 16, 'weights/narrow': 27 * 16}
    for name in MEETING
    if name not in ('dec_fml', 'def_kt')
}


@pytest.fixture(
    params=[
        *('bfloat16', 'float16 throughout'),
        *(pytest.param(n, marks=pytest.mark.slow) for n in ('float16', 'bfloat16 throughout')),
    ]
)
def narrow(request, monkeypatch):
    """The networks of the tests with weights of 16 bits; whether they compute in them, too."""
    weights, *throughout = request.param.split()

    def of_size(hidden):
        return bind(Narrow(hidden, weights, bool(throughout)), (FEATURES,))

    widths = {'wide': of_size(4), 'narrow': of_size(3)}
    architectures = assign_architectures(tuple(widths), CLIENTS, [1, 1])
    for name, value in {
        'MODEL': of_size(5),
        'MIXED': populate(widths, architectures),
        'ALIKE': populate({'wide': widths['wide']}, ['wide'] * CLIENTS),
    }.items():
        monkeypatch.setitem(globals(), name, value)
    return bool(throughout)


def after_a_round(algorithm, graphs):
    """The shapes and types of a state after a round, which are as before, and of the info."""
    state = jax.eval_shape(algorithm.init, jax.random.key(0), network())
    step = functools.partial(one_round, algorithm)
    key, graph = jax.random.key(0), round_of(graphs, 0)
    after, info = jax.eval_shape(step, key, state, 0, graph, network())
    types = [jax.tree.map(lambda a: (a.shape, a.dtype), each) for each in (state, after)]
    assert types[0] == types[1]
    return after, info


def bits_of_kinds(info):
    """Bits of one message of each kind."""
    return {kind: sent.bits for kind, sent in info.sent.items()}


@pytest.mark.filterwarnings('error:scatter inputs have incompatible types')
@pytest.mark.parametrize('name', [case(name) for name in ALGORITHMS_UNDER_TEST])
def test_weights_of_16_bits_stay_so_and_are_counted_so(name, narrow):
    algorithm = ALGORITHMS_UNDER_TEST[name]()
    after, info = after_a_round(algorithm, graphs_of(name))
    assert all(leaf.dtype.itemsize == 2 for leaf in jax.tree.leaves(after.params))
    expected = OF_16_BITS.get(name, {'weights': 688})
    if name in ('ntk_dfl', 'ntk_fl', 'spark'):
        expected = expected | {'outputs': 16 if narrow else 32}
    assert bits_of_kinds(info) == expected
    logits = jax.eval_shape(algorithm.predict, after, network().x[0])
    assert {leaf.dtype for leaf in jax.tree.leaves(logits)} == {np.dtype('float32')}


VARIANTS = [
    ('ntk_dfl', {'sparsity': 0.5, 'bits': 6}),
    ('ntk_dfl', {'jacobian_weights': 'neighbours', 'averaging': False}),
    ('ntk_dfl', {'loss': 'mse', 'evolution': 'eigh'}),
    ('ntk_dfl', {'evolution': 'rkc', 'batches': 2}),
    ('ntk_dfl', {'evolution': 'euler', 'selection': 'linearized'}),
    ('spark', {'projection_dim': 20, 'exchange': 'int8', 'step_form': 'exact'}),
    ('spark', {'projection_dim': 20, 'kernel_form': 'trace', 'projection': 'sparse_sign'}),
    ('spark', {'projection_dim': 20, 'projection': 'gaussian', 'exchange': 'float16'}),
    ('spark', {'projection': 'none'}),
    ('dfedavg', {'optimizer': 'adamw', 'weight_decay': 0.1, 'bits': 4}),
    ('dfedavg', {'sam_radius': 0.1, 'proximal': 0.1, 'clip_norm': 1.0, 'loss_cap': 3.0}),
    ('decavg', {'diagnostics': True, 'gossip_steps': 2, 'sparsity': 0.5}),
    ('dispfl', {'regrow': 'random', 'consensus': 'intersection'}),
    ('beer', {'bits': 2, 'lr_schedule': 'cosine:10'}),
]


@pytest.mark.parametrize(('name', 'settings'), VARIANTS, ids=str)
def test_variants_run_with_weights_of_16_bits(name, settings, narrow):
    short = {'timesteps': (3, 8)} if name in ('ntk_dfl', 'spark') else {}
    algorithm = make(name, MODEL, lr=0.05, **short, **settings)
    _, info = after_a_round(algorithm, graphs_of(name))
    rows = {  # of a Jacobian, and the steps of its quantization
        "{'projection': 'none'}": (688, 0),
        "{'projection_dim': 20, 'exchange': 'int8', 'step_form': 'exact'}": (20 * 8, 32),
    }
    if str(settings) in rows:
        bits = bits_of_kinds(info)
        assert (bits['jacobian_rows'], bits['jacobians']) == rows[str(settings)]


@pytest.mark.parametrize(
    'name', [of_each_kind(name, quick=('ntk_dfl', 'dsgt')) for name in ('ntk_dfl', 'dsgt', 'sgp')]
)
def test_traffic_of_a_run_with_weights_of_16_bits(name, monkeypatch):
    """The megabytes of a whole run are those of the arrays that are sent."""
    monkeypatch.setitem(globals(), 'MODEL', bind(Narrow(5, 'bfloat16', True), (FEATURES,)))
    algorithm, graphs = ALGORITHMS_UNDER_TEST[name](), graphs_of(name)
    setting = network(), graphs, holdout(), jax.random.key(0)
    *_, (metrics, state, _) = simulate.run(algorithm, *setting, eval_every=2)
    links = [links_of(name, graphs, r) for r in range(2)]
    numbers = {'dsgt': 2 * 43, 'sgp': 44}.get(name)
    if numbers:
        assert metrics['mbytes_total'] == sum(map(len, links)) * numbers * 2 / 1e6
    assert all(np.isfinite(leaf.astype(np.float32)).all() for leaf in jax.tree.leaves(state.params))


# ---------------------------------------------------------------------------------- whole runs


def whole_run(name, **options):
    """The evaluations of all rounds over all families, states copied, and traces of step."""
    algorithm, traces = ALGORITHMS_UNDER_TEST[name](), []

    def step(*arguments):
        traces.append(1)
        return algorithm.step(*arguments)

    evaluations = [
        ({k: v for k, v in metrics.items() if k != 'seconds'}, jax.device_get(state), progress.sent)
        for metrics, state, progress in simulate.run(
            algorithm._replace(step=step),
            network(),
            all_families(name),
            holdout(),
            jax.random.key(1),
            **options,
        )
    ]
    return evaluations, len(traces)


@functools.cache
def uninterrupted(name):
    return whole_run(name, eval_every=4)


@pytest.mark.parametrize('name', [case(name) for name in ALGORITHMS_UNDER_TEST])
def test_a_round_lowers_for_accelerators(name):
    """Without a call of Python on the way, and in no more than float32."""
    init, step, _ = jitted(name)
    clients, key = network(), jax.random.key(3)
    traced = step.trace(key, init(key, clients), 0, round_of(all_families(name), 0), clients)
    program = traced.lower(lowering_platforms=('cuda', 'tpu')).as_text()
    assert 'callback' not in program and 'f64' not in program


@pytest.mark.parametrize('name', ['ntk_dfl', 'spark', 'ntk_fl'])
def test_products_have_the_precision_of_the_run(name):
    """Accelerators compute products of default precision with fewer bits than float32 has."""

    graphs = all_families(name)
    options = {'ntk_fl': {'cohort': COHORT}, 'spark': {'projection_dim': 20}}.get(name, {})

    def precisions(**settings):
        algorithm = make(name, MODEL, **options, **settings)
        clients, key = network(), jax.random.key(3)
        state = jax.eval_shape(algorithm.init, key, clients)
        step = jax.jit(functools.partial(one_round, algorithm))
        traced = step.trace(key, state, 0, round_of(graphs, 0), clients)
        text = traced.lower(lowering_platforms=('cuda',)).as_text()
        products = re.findall(r'stablehlo\.(?:dot_general|convolution).*', text)
        assert len(products) > 5
        return {each for line in products for each in re.findall(r'[A-Z]{4,}', line) or ['NONE']}

    assert precisions() == {'HIGHEST'}
    assert precisions(precision='default') != {'HIGHEST'}


@every_whole_run
def test_one_trace_a_run(name):
    evaluations, traces = uninterrupted(name)
    assert [metrics['round'] for metrics, *_ in evaluations] == [4, 8, 12, 16, 20]
    assert traces == 1


@pytest.mark.parametrize('name', [of_each_kind(name) for name in ALGORITHMS_UNDER_TEST])
def test_blocks_change_nothing(name):
    final_metrics, final_state, final_sent = uninterrupted(name)[0][-1]
    evaluations, traces = whole_run(name, eval_every=3)
    assert traces == 1
    assert len(evaluations) == 7
    metrics, state, sent = evaluations[-1]
    assert_same(state, final_state)
    assert metrics == final_metrics and sent == final_sent


@pytest.mark.parametrize(
    ('name', 'saved'),
    [of_each_kind(name, 'disk') for name in ALGORITHMS_UNDER_TEST]
    + [pytest.param(name, 'memory', marks=pytest.mark.slow) for name in ALGORITHMS_UNDER_TEST],
)
def test_resume_equals_no_stop(name, saved, tmp_path):
    algorithm = ALGORITHMS_UNDER_TEST[name]()
    setting = (network(), all_families(name), holdout(), jax.random.key(1))
    stops = simulate.run(algorithm, *setting, eval_every=4)
    for _ in range(2 if saved == 'disk' else 1):
        _, state, progress = next(stops)
        if saved == 'disk':
            Checkpoints(tmp_path).save(state, progress)
    stops.close()
    if saved == 'disk':
        like = jax.eval_shape(algorithm.init, jax.random.key(0), setting[0])
        restarted = Checkpoints(tmp_path)
        assert restarted.latest() == 8
        state, (progress,), _ = restarted.restore(like)
    expected, _ = uninterrupted(name)
    evaluations, _ = whole_run(name, eval_every=4, resume=(state, progress))
    assert len(evaluations) == (3 if saved == 'disk' else 4)
    for ours, theirs in zip(evaluations[::-1], expected[::-1], strict=False):
        assert ours[0] == theirs[0] and ours[2] == theirs[2]
        assert_same(ours[1], theirs[1])


@every_whole_run
def test_traffic_of_a_run(name):
    """Megabytes of a whole run from a count of every link of every round."""
    graphs = all_families(name)
    each = bits_of_kinds(after_a_round(ALGORITHMS_UNDER_TEST[name](), graphs)[1])
    bits = np.zeros(CLIENTS, dtype=object)
    for r in range(ROUNDS):
        for kind, counts in sent_in(name, links_of(name, graphs, r), r).items():
            bits += counts.astype(object) * each[kind]
    metrics = uninterrupted(name)[0][-1][0]
    assert metrics['mbytes_total'] == int(bits.sum()) / 8e6
    assert metrics['mbytes_busiest_client'] == int(bits.max()) / 8e6


# ------------------------------------------------------------------ many devices, many runs at once


def graphs_of(name, seed=0) -> Graph:
    """Two rounds of a network that the algorithm can work in, with links lost."""
    if name in ON_ONE_GRAPH:
        return one_graph(2)
    family = COHORTS if name in CENTRALIZED else MEETING.get(name, 'erdos_renyi')
    return schedule(family, 2, links_lost=0.2, seed=seed)


KEYS = jax.random.key(7), jax.random.key(8)  # of the runs with the graphs of seeds 0 and 1


def simulated(name, seed=0, **options):
    """The last (metrics, state, progress) of a run; the seconds, which differ, left out."""
    setting = network(), graphs_of(name, seed), holdout(), KEYS[seed]
    *_, (metrics, state, progress) = simulate.run(
        ALGORITHMS_UNDER_TEST[name](), *setting, eval_every=2, **options
    )
    return {n: v for n, v in metrics.items() if n != 'seconds'}, state, progress


@functools.cache
def alone(name, seed=0):
    return simulated(name, seed)


def assert_metrics_close(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        if not isinstance(value, dict):
            np.testing.assert_allclose(value, second[name], rtol=1e-4, atol=1e-5, err_msg=name)


# Nine clients: three devices hold three of them each, eight all of them and work on their shares.
@pytest.mark.parametrize(
    ('name', 'devices'),
    [
        *(of_each_kind(name, 8) for name in ALGORITHMS_UNDER_TEST if name != 'ntk_dfl'),
        pytest.param('ntk_dfl', 8, marks=pytest.mark.slow),
        ('ntk_dfl', 3),
        pytest.param('dfedavgm', 3, marks=pytest.mark.slow),
    ],
)
def test_many_devices_compute_what_one_does(name, devices):
    metrics, state, progress = alone(name)
    spread = simulated(name, mesh=client_mesh(devices))
    assert_close(jax.device_get(spread[1]), jax.device_get(state))
    assert_metrics_close(spread[0], metrics)
    assert spread[2].sent == progress.sent
    holders = {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(spread[1])}
    assert holders == {devices}


# The runs of test_sweep.py are of NTK-DFL.
@pytest.mark.parametrize(
    'name', [of_each_kind(name, quick=('dfedavgm', 'dec_fedavg')) for name in ALGORITHMS_UNDER_TEST]
)
def test_runs_together_are_those_runs_alone(name):
    stacked = jax.tree.map(lambda *a: np.stack(a), *(graphs_of(name, seed) for seed in (0, 1)))
    *_, (rows, states, progress) = simulate.run_together(
        lambda _: ALGORITHMS_UNDER_TEST[name](),
        None,
        jax.tree.map(lambda *a: jnp.stack(a), network(2), network(2)),
        stacked,
        holdout(),
        jnp.stack(KEYS),
        eval_every=2,
    )
    for i in (0, 1):
        metrics, state, sent = alone(name, i)
        assert_close(jax.tree.map(lambda a, i=i: a[i], states), state)
        assert_metrics_close({n: v for n, v in rows[i].items() if n != 'seconds'}, metrics)
        assert progress[i].sent == sent.sent
