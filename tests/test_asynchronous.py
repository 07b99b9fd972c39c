"""Methods without rounds: against an event loop in plain NumPy, D-PSGD, and what theory says."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference_events
import reference_robust
from helpers import compiled, logistic_clients, round_of, widen

from dfl_jax import methods, simulate, topology
from dfl_jax.asynchronous import EVENT_METHODS, method_of, plan
from dfl_jax.asynchronous.divshare import layout_of
from dfl_jax.asynchronous.events import Event
from dfl_jax.asynchronous.slots import pack
from dfl_jax.evaluation import Holdout
from dfl_jax.exchange import Attack, Exchange, one_round, tamper_named
from dfl_jax.execution import client_mesh
from dfl_jax.gossip import mixing_matrix
from dfl_jax.models import MLP, Linear, bind
from dfl_jax.papers.tables.quadratics import quadratics
from dfl_jax.tasks import REGRESSION
from dfl_jax.timing import Online, world

CLIENTS, FEATURES, CLASSES = 6, 4, 3
SIZES = (4, 7, 5, 6, 3, 7)
MODEL = bind(MLP(CLASSES, ()), (FEATURES,))  # logistic regression
LR = 0.3
DECAY = 0.97  # of the rate from one update of a client to its next
# One gradient of all samples
WHOLE = {'lr': LR, 'lr_decay': DECAY, 'batch_size': max(SIZES), 'local_steps': 1}
TIMES = {'flops': 0.1, 'bits': 32 * MODEL.size}
WORLDS = 30
INTERVALS, SECONDS = 3, 4.0
LAYOUT = layout_of(MODEL, 4)  # of 15 weights: three fragments have four of them, one has three
OF_EVENTS = {'divshare': {'fragments': 4, 'recipients': 2}}  # settings that the events follow from
WIDTH, PLACES, SLOTS, COLUMNS = 3, 48, 90, 30  # of all worlds, so that they share one program


def steady(clients, **settings):
    """A world of messages that take no time."""
    settings = {'speed': 1.0} | settings
    return world(clients, uplink=np.inf, downlink=np.inf, latency=0, **settings)


def rough(seed):
    """A world of different speeds, slow links, and clients that come and go."""
    return world(
        CLIENTS,
        seed,
        speed='lognormal:1:0.7',
        uplink='lognormal:4800:0.5',
        latency='lognormal:0.05:1',
        online='sine:1.7:0.7',
    )


def links(seed=0):
    return topology.schedule('regular', CLIENTS, 1, seed=seed, static=True, degree=3)


def vectors(params):
    """Each client's weights as a vector, the bias last, leaves [..., M, ...]."""
    if not isinstance(params, dict):  # as DivShare holds them
        join = LAYOUT.join
        for _ in range(params[0].ndim - 2):
            join = jax.vmap(join)
        params = join(params)
    layer = params['Dense_0']
    both = np.concatenate([layer['kernel'], np.asarray(layer['bias'])[..., None, :]], axis=-2)
    return both.reshape(*both.shape[:-2], -1)


def with_slots(planned, count):
    """The slots of a plan, [intervals, count, H, ...]: empty ones behind those of an interval."""
    missing = count - planned.per_interval
    assert missing >= 0, planned.per_interval

    def fill(a):
        a = a.reshape(len(planned.ends), planned.per_interval, *a.shape[1:])
        columns = COLUMNS - a.shape[3] if planned.method == 'divshare' and a.ndim == 4 else 0
        return np.pad(a, [(0, 0), (0, missing), (0, 0), (0, columns)][: a.ndim])

    return jax.tree.map(fill, planned.slots)


def places_of_fragments():
    """Where the weights of each fragment lie in a client's vector."""
    numbers = np.arange(MODEL.size).reshape(FEATURES + 1, CLASSES)
    cut = LAYOUT.cut({'Dense_0': {'kernel': numbers[:-1], 'bias': numbers[-1]}})
    fragments = [row.tolist() for row in np.asarray(cut[0])]
    for fragment, rest in zip(fragments, np.asarray(cut[1]).tolist(), strict=False):
        fragment += rest
    return fragments


@functools.cache
def program(name, attack=None, **settings):
    """(first state, slots [T, S, ...]) -> the weights and the messages after each interval."""
    clients = jax.tree.map(jnp.asarray, logistic_clients()[0])
    planned = planned_as(name, 0)
    enough = dataclasses.replace(planned, places=PLACES)
    algorithm = method_of(enough, MODEL, init='independent', **(WHOLE | settings))
    algorithm = algorithm._replace(exchange=Exchange(attack=attack))

    def interval(state, slots):
        step = lambda s, slot: one_round(algorithm, None, s, 0, slot, clients)  # noqa: E731
        state, info = jax.lax.scan(step, state, slots)
        return state, (state.params, next(iter(info.sent.values())).messages.sum(axis=0))

    first = widen(jax.jit(algorithm.init)(jax.random.key(0), clients))
    return first, jax.jit(lambda s, slots: jax.lax.scan(interval, s, slots)[1])


def ours(name, planned, **settings):
    """The first weights, those at the end of each interval [T, M, P], the messages [M]."""
    assert planned.places <= PLACES
    first, run = program(name, **settings)
    params, sent = jax.device_get(run(first, with_slots(planned, SLOTS)))
    return list(vectors(first.params)), vectors(params), sent.sum(axis=0)


def theirs(name, first, gradients, seed, planned, lr=LR, **more):
    graph = round_of(links(seed), 0)
    hears = [np.asarray(graph.members)[i, 1:].tolist() for i in range(CLIENTS)]
    matrix = mixing_matrix(graph, np.array(SIZES), 'metropolis').toarray()
    more |= {'matrix': matrix} if name == 'swift' else OF_EVENTS.get(name, {})
    if name == 'divshare':
        more['fragments'] = places_of_fragments()
    reference = getattr(reference_events, name)
    updates = [0] * CLIENTS

    def decayed(i, x):
        updates[i] += 1
        return DECAY ** (updates[i] - 1) * gradients(i, x)

    return reference(
        first,
        decayed,
        rough(seed),
        hears,
        planned.ends,
        lr=lr,
        loss=0.2,
        seed=seed,
        **TIMES,
        **more,
    )


def planned_as(name, seed, **options):
    options = {'seconds': SECONDS, 'intervals': INTERVALS, 'width': WIDTH} | options
    options |= OF_EVENTS.get(name, {})
    return plan(name, links(seed), rough(seed), loss=0.2, seed=seed, **TIMES, **options)


@pytest.mark.parametrize('name', EVENT_METHODS)
def test_slots_are_the_event_loop(name, x64):
    """On random worlds with slow links, lost messages and clients that come and go."""
    gradients, ring, updates = logistic_clients()[1], 0, 0
    for seed in range(WORLDS):
        planned = planned_as(name, seed)
        first, found, sent = ours(name, planned)
        expected, expected_sent = theirs(name, first, gradients, seed, planned)
        np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
        np.testing.assert_array_equal(sent, expected_sent)
        ring, updates = max(ring, planned.places), updates + len(planned.events)
    assert ring > 2 and updates > 30 * WORLDS


@pytest.mark.parametrize(
    ('name', 'attack', 'lie'),
    [
        (
            'swift',
            'dissensus:0.3',
            lambda v, lies, w, own: reference_robust.dissensus(v, lies, w, 0.3),
        ),
        ('divshare', 'alie:1.5', lambda v, lies, w, own: reference_robust.alie(v, lies, 1.5)),
        *(
            (name, 'ipm:0.5', lambda v, lies, w, own: reference_robust.inner_product(v, lies, 0.5))
            for name in ('ad_psgd', 'gossip_learning')
        ),
    ],
)
def test_liars_are_those_of_the_event_loop(name, attack, lie, x64):
    """In each event that an honest client reads them; their own are honest, and so are ages."""
    gradients, attackers = logistic_clients()[1], np.isin(np.arange(CLIENTS), [1, 4])
    liars = reference_robust.Liars(attackers, lie)
    told = Attack(attackers, tamper_named(attack))
    for seed in range(3):
        planned = planned_as(name, seed)
        first, found, sent = ours(name, planned, attack=told)
        expected, expected_sent = theirs(name, first, gradients, seed, planned, liars=liars)
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-12)
        np.testing.assert_array_equal(sent, expected_sent)


def test_swift_weighs_its_neighbours_as_the_graph_says():
    """By their samples where these are asked for, by degrees, or by the weights of the links."""
    graphs, options = links(), {'updates': 40, **TIMES}
    sizes = np.array(SIZES)
    by_size = plan('swift', graphs, rough(0), mixing='size', sizes=sizes, **options).slots
    alike = plan('swift', graphs, rough(0), mixing='uniform', sizes=sizes, **options).slots
    degrees = plan('swift', graphs, rough(0), sizes=sizes, **options).slots
    assert by_size.active.sum() == 40
    for slots, share in ((by_size, sizes), (alike, np.ones(CLIENTS))):
        for s, h in np.argwhere(slots.active):
            members = slots.members[s, h][slots.mask[s, h]]
            expected = share[members] / share[members].sum()
            np.testing.assert_allclose(slots.weights[s, h][slots.mask[s, h]], expected)
    each = degrees.weights[degrees.active]
    np.testing.assert_allclose(each, np.broadcast_to(0.25, each.shape))  # of three neighbours


def test_averages_alone_are_the_event_loop_bit_for_bit(x64):
    """Where nothing is learnt; gradients round otherwise in XLA than in NumPy."""
    for seed in range(WORLDS):
        planned = planned_as('ad_psgd', seed)
        first, found, _ = ours('ad_psgd', planned, lr=1e-300)
        expected, _ = theirs('ad_psgd', first, logistic_clients()[1], seed, planned, lr=0)
        kernel = slice(FEATURES * CLASSES)  # biases begin at zero, and 1e-300 is not lost there
        np.testing.assert_array_equal(found[..., kernel], np.array(expected)[..., kernel])
    assert not np.array_equal(found[-1], first)


def but_for(*slow):
    """The methods; those named are slow tests."""
    return [pytest.param(n, marks=pytest.mark.slow if n in slow else ()) for n in EVENT_METHODS]


@pytest.mark.parametrize('name', but_for('ad_psgd', 'gossip_learning'))
def test_packing_changes_no_bit(name, x64):
    """One event a slot, or as many as fit: an update draws its minibatch by client and number."""
    small = {'batch_size': 2}
    one = planned_as(name, 3, intervals=1, width=1)
    many = planned_as(name, 3, intervals=1, width=WIDTH)
    assert many.per_interval < 0.7 * one.per_interval
    assert max(one.places, many.places) <= PLACES
    first, run = program(name, **small)
    alone, packed = (
        jax.device_get(run(first, with_slots(each, count)))[0]
        for each, count in ((one, one.per_interval), (many, SLOTS))
    )
    for a, b in zip(jax.tree.leaves(alone), jax.tree.leaves(packed), strict=True):
        np.testing.assert_array_equal(a, b)
    different = ours(name, many)[1]
    assert np.abs(vectors(packed) - different).max() > 1e-3


def test_swift_on_equal_clients_is_dpsgd(x64):
    clients, rounds = jax.tree.map(jnp.asarray, logistic_clients()[0]), 5
    graphs = topology.schedule('erdos_renyi', CLIENTS, rounds, seed=1, static=True, degree=3)
    planned = plan(
        'swift', graphs, steady(CLIENTS), flops=0.1, bits=100, seconds=rounds * 0.1 + 0.05
    )
    assert planned.slots.active.all() and planned.slots.active.shape == (rounds, CLIENTS)
    assert (planned.slots.source < 0).all()  # nothing is of the past
    same = {'init': 'independent', **WHOLE}
    method = method_of(planned, MODEL, **same)
    dpsgd = compiled('dpsgd', MODEL, round_order='parallel', mixing='metropolis', **same)
    asynchronous = widen(jax.jit(method.init)(jax.random.key(0), clients))
    synchronous = widen(dpsgd.init(jax.random.key(0), clients))
    np.testing.assert_array_equal(vectors(asynchronous.params), vectors(synchronous.params))
    step = jax.jit(functools.partial(one_round, method))
    for r in range(rounds):
        slot = jax.tree.map(lambda a, r=r: jnp.asarray(a[r]), planned.slots)
        asynchronous, info = step(jax.random.key(r), asynchronous, r, slot, clients)
        synchronous, other = dpsgd.step(
            jax.random.key(r), synchronous, r, round_of(graphs, r), clients
        )
        np.testing.assert_allclose(
            vectors(asynchronous.params), vectors(synchronous.params), rtol=1e-12, atol=1e-13
        )
        np.testing.assert_allclose(info.loss, other.loss, rtol=1e-12)
        np.testing.assert_array_equal(info.sent['weights'].messages, other.sent['weights'].messages)


# ------------------------------------------------------------------------------------- the events


def test_staleness_of_pairs():
    """While client i computes, its neighbours j average with it v_j / (v_i d_j) times, with v the
    speeds and d the degrees; and M - 1 updates of all others end, whoever is how fast."""
    clients = 12
    graphs = topology.schedule('erdos_renyi', clients, 1, seed=4, static=True, degree=4)
    drawn = steady(clients, speed='lognormal:1:0.5')
    planned = plan('ad_psgd', graphs, drawn, flops=1.0, bits=1, updates=20_000)
    changes, stale = [0] * clients, []  # by how many changes the model trained on is outdated
    for event in planned.events:
        stale.append(changes[event.members[0]] - event.versions[0])
        for client in event.members[: event.written]:
            changes[client] += 1
    stale = np.array(stale)
    of_client = np.array([event.members[0] for event in planned.events])
    neighbours = [graphs.members[0, i, 1:][graphs.mask[0, i, 1:]] for i in range(clients)]
    assert len({len(others) for others in neighbours}) > 2
    v = drawn.speed
    for i, others in enumerate(neighbours):
        expected = sum(v[j] / (v[i] * len(neighbours[j])) for j in others)
        assert stale[of_client == i].mean() == pytest.approx(expected, rel=0.1)
    last, between = {}, []
    for number, client in enumerate(of_client):
        if client in last:
            between.append(number - last[client] - 1)
        last[client] = number
    assert np.mean(between) == pytest.approx(clients - 1, rel=0.01)


@pytest.mark.parametrize('own_period', [False, True])
def test_clients_begin_only_while_online(own_period):
    """An update that has begun ends all the same."""
    drawn, ends_offline = rough(1), 0
    planned = planned_as('swift', 1)
    if own_period:
        periods = np.linspace(1.7, 2.9, CLIENTS)
        drawn = drawn._replace(online=drawn.online._replace(period=periods))
        planned = plan('swift', links(1), drawn, seconds=SECONDS, intervals=INTERVALS, **TIMES)
    for event in planned.events:
        i = event.members[0]
        begin = np.full(CLIENTS, event.time - TIMES['flops'] / drawn.speed[i] + 1e-9)
        assert drawn.next_online(begin)[i] == begin[i]
        ends_offline += drawn.next_online(np.full(CLIENTS, event.time))[i] > event.time
    assert ends_offline > 0


def test_places_are_those_that_are_needed_at_once():
    """Client 0 changes in every event; the others read what it was long before."""

    def event(time, client, reads, version):
        return Event(float(time), (client, reads), (0 if client else time, version), 0, (0, 0))

    changes = [Event(float(t), (0,), (t,), t, (0,)) for t in range(6)]
    late = [event(6, 1, 0, 1), event(7, 2, 0, 4)]
    packed = pack([*changes, *late], 3, np.array([7.0]), 2, width=1)
    assert packed.places == 2
    slots = packed.slots
    assert slots.saved.ravel().tolist()[:6] == [-1, 0, -1, -1, 1, -1]
    assert slots.source[6:, 0, 1].tolist() == [0, 1]
    # The first reads when it may, and its place is that of the second
    early = [*changes[:3], event(2, 1, 0, 1), *changes[3:], event(7, 2, 0, 4)]
    assert pack(early, 3, np.array([7.0]), 2, width=1).places == 1
    apart = pack(early, 3, np.array([3.0, 7.0]), 2)  # an event at an end is before it
    assert apart.slots.active.reshape(2, -1).sum(axis=1).tolist() == [5, 3]
    # Padding names the last client, of whom there may be no event: a run checks that there is one
    assert pack(changes[:2], 4, np.array([7.0]), 2, width=1).slots.members.max() == 3


@pytest.mark.parametrize('name', EVENT_METHODS)
def test_nobody_is_written_twice_in_a_slot(name):
    planned = planned_as(name, 5)
    slots, columns = planned.slots, 2 if name == 'ad_psgd' else 1
    assert slots.active.sum() == len(planned.events)
    for members, mask, saved in zip(slots.members, slots.mask, slots.saved, strict=True):
        written = members[:, :columns][mask[:, :columns]]
        assert len(set(written)) == len(written)
        assert len(set(saved[saved >= 0])) == np.sum(saved >= 0)


# ------------------------------------------------------------------------------------- as a run


# test_cli_time.py runs and resumes the other two.
@pytest.mark.parametrize('name', but_for('ad_psgd', 'divshare'))
def test_it_runs_as_rounds_do(name):
    """Evaluated at equal intervals of simulated time, resumed, and on two devices."""
    clients = logistic_clients()[0]
    clients = jax.tree.map(jnp.asarray, clients._replace(x=clients.x.astype(np.float32)))
    test = Holdout(clients.x[0], clients.y[0])
    planned = planned_as(name, 2)
    method = method_of(planned, MODEL, **WHOLE)

    def run(**options):
        runs = simulate.run(
            *(method, clients, planned.slots, test, jax.random.key(0)),
            eval_every=planned.per_interval,
            **options,
        )
        return [(row, jax.device_get(state), progress) for row, state, progress in runs]

    first, *_, last = found = run()
    assert len(found) == INTERVALS and len(set(planned.updates)) == INTERVALS
    assert planned.updates[-1] == len(planned.events)
    assert planned.ends.tolist() == pytest.approx(SECONDS * np.arange(1, 4) / 3)
    assert last[0]['consensus_loss'] < first[0]['consensus_loss']
    sent = sum(sum(event.sent) for event in planned.events)
    bits = 32 * {'divshare': 1, 'gossip_learning': MODEL.size + 1}.get(name, MODEL.size)
    assert last[0]['mbytes_total'] == pytest.approx(bits * sent / 8e6)
    resumed = run(resume=first[1:])[-1]
    for a, b in zip(jax.tree.leaves(resumed[1]), jax.tree.leaves(last[1]), strict=True):
        np.testing.assert_array_equal(a, b)
    shared = run(mesh=client_mesh(2))[-1]
    np.testing.assert_allclose(
        vectors(shared[1].params), vectors(last[1].params), rtol=1e-5, atol=1e-6
    )


ROUNDS = 50  # of clients as fast as each other


def seconds_to(name, speeds, target=0.02, lr=0.5):
    """Simulated seconds until the suboptimality of the mean model is below the target."""
    clients = len(speeds)
    found = quadratics(clients, 5, zeta2=0.01, seed=1)
    model = bind(Linear(1, use_bias=False), (5,), REGRESSION)
    graphs = topology.schedule('ring', clients, 1, seed=0, static=True)
    settings = {'lr': lr, 'batch_size': 5, 'local_steps': 1}
    if name == 'dpsgd':
        method = methods.make('dpsgd', model, round_order='parallel', **settings)
        slots = topology.schedule('ring', clients, ROUNDS, seed=0, static=True)
        ends, per_interval = np.arange(1, ROUNDS + 1) / min(speeds), 1
    else:
        still = steady(clients)._replace(speed=np.array(speeds))
        planned = plan(
            name, graphs, still, flops=1.0, bits=1, seconds=float(ROUNDS), intervals=2 * ROUNDS
        )
        slots, ends, per_interval = planned.slots, planned.ends, planned.per_interval
        method = method_of(planned, model, **settings)
    state = jax.jit(method.init)(jax.random.key(0), found.clients)

    def one(state, slot):
        state, _ = one_round(method, jax.random.key(0), state, 0, slot, found.clients)
        mean = jax.tree.map(lambda leaf: leaf.mean(axis=0), state.params)
        return state, found.suboptimality(mean)

    arrays = jax.tree.map(jnp.asarray, slots)
    losses = jax.jit(lambda s: jax.lax.scan(one, s, arrays)[1])(state)
    at_ends = np.asarray(losses).reshape(len(ends), per_interval)[:, -1]
    assert at_ends[-1] < target < at_ends[0]
    return ends[np.argmax(at_ends < target)]


def test_a_straggler_hardly_slows_pairs_and_slows_rounds_tenfold():
    """One of 16 clients on a ring at a tenth of the speed of the others (Lian et al., 2018)."""
    even, straggler = [1.0] * 16, [0.1] + [1.0] * 15
    ratios = {
        name: seconds_to(name, straggler) / seconds_to(name, even) for name in ('ad_psgd', 'dpsgd')
    }
    assert ratios['ad_psgd'] < 1.2 and 9 < ratios['dpsgd'] < 11, ratios


# ------------------------------------------------------------------------------- what is refused


def refusal(graphs=None, drawn=None, name='ad_psgd', **settings):
    settings = {'seconds': 1.0, **TIMES} | settings
    with pytest.raises(ValueError) as error:
        plan(name, links() if graphs is None else graphs, drawn or steady(CLIENTS), **settings)
    text = str(error.value)
    assert '\n' not in text
    return text


def test_what_is_refused(monkeypatch):
    assert 'loss (a probability) has to lie in [0, 1), got 1' in refusal(loss=1)
    assert 'the first one does after 0.1; simulate for longer' in refusal(seconds=0.05)
    assert 'set one of them' in refusal(updates=5) and 'set one' in refusal(seconds=None)
    assert 'unknown method' in refusal(name='fedbuff')
    assert 'a world of 5 clients with a graph of 6' in refusal(drawn=steady(5))
    assert 'flops (of a local update) has to be above 0, got 0' in refusal(flops=0)
    changing = topology.schedule('regular', CLIENTS, 3, seed=0, degree=3)
    assert 'ad_psgd needs the same graph in every round' in refusal(changing)
    directed = topology.schedule('directed_ring', CLIENTS, 1, seed=0, static=True)
    assert 'the link between clients' in refusal(directed)
    nobody = topology.drop_links(links(), 1.0, 0)
    assert 'client 0 has no neighbour' in refusal(nobody)
    never = steady(CLIENTS)
    gone = rough(0).online._replace(
        starts=np.full((CLIENTS, 1), np.inf), ends=np.full((CLIENTS, 1), np.inf)
    )
    text = refusal(drawn=never._replace(online=gone), seconds=None, updates=4)
    assert 'comes to rest after 0 local updates' in text
    assert '6e+09 local updates end within 1e+08 seconds' in refusal(seconds=1e8)
    assert 'updates has to be at most 5000000' in refusal(seconds=None, updates=10**8)
    with pytest.raises(ValueError, match=r'1000000000 past models of 15 weights take 55\.9 GiB'):
        EVENT_METHODS['swift'].factory(MODEL, places=10**9)
    graphs = links()
    monkeypatch.setattr('dfl_jax.host_memory.free_bytes', lambda: 10)
    assert 'are free; simulate fewer seconds' in refusal(graphs)


@pytest.mark.parametrize('name', EVENT_METHODS)
def test_a_longer_plan_goes_on_where_the_shorter_one_ends(name):
    """To the same bits: what is still to be read at the end is kept in the same places."""
    clients = jax.tree.map(jnp.asarray, logistic_clients()[0])
    clients = clients._replace(x=clients.x.astype(jnp.float32))
    ends = 0.7 * np.arange(1, 7)
    for seed in range(8):
        short, long = (
            planned_as(name, seed, seconds=None, intervals=1, width=None, ends=ends[:count])
            for count in (3, 6)
        )
        assert len(long.events) > len(short.events)
        begins = jax.tree.map(lambda a, n=3 * long.per_interval: a[:n], long.slots)
        columns = short.slots.members.shape[2]
        for a, b in zip(short.slots, begins, strict=True):
            if a is not None:
                once, again = a[short.slots.active], b[begins.active]
                again = again[:, :columns] if again.ndim > 1 else again
                np.testing.assert_array_equal(once, again)
    both = dataclasses.replace(long, places=max(short.places, long.places))
    method = method_of(both, MODEL, init='independent', **WHOLE)

    @jax.jit
    def run(state, slots):
        step = lambda s, slot: (one_round(method, None, s, 0, slot, clients)[0], None)  # noqa: E731
        return jax.lax.scan(step, state, slots)[0]

    first = jax.jit(method.init)(jax.random.key(0), clients)
    rest = jax.tree.map(lambda a: a[3 * long.per_interval :], long.slots)
    whole, parts = run(first, long.slots), run(run(first, short.slots), rest)
    for a, b in zip(jax.tree.leaves(whole.params), jax.tree.leaves(parts.params), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_messages_on_their_way_are_no_clients_that_are_never_online():
    """An update takes 1e-6 s and a message 0.05 s: tens of thousands of them are in flight."""
    graphs = topology.schedule('ring', 8, 1, seed=0, static=True)
    fast = world(8, speed=1e12, uplink=1e12, latency=0.05)
    planned = plan('gossip_learning', graphs, fast, flops=1e6, bits=10**5, updates=80)
    assert len(planned.events) == 80 and planned.events[0].time > 0.05
    alternating = Online(np.arange(8.0)[:, None], np.arange(8.0)[:, None] + 0.5, 8.0)
    with pytest.raises(ValueError, match='clients are never online together'):
        plan(
            *('gossip_learning', graphs, fast._replace(online=alternating)),
            flops=1e6,
            bits=10**10,
            updates=8,
        )


def test_how_long_it_goes_on_is_said_once():
    graphs = topology.schedule('ring', 8, 1, seed=0, static=True)
    with pytest.raises(ValueError, match='seconds and ends both say'):
        plan('swift', graphs, steady(8), flops=0.1, bits=100, seconds=9, ends=np.array([1.0]))
