"""DivShare: its queue, what it is where everything arrives, and what slow uplinks do to it."""

import collections
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from helpers import compiled, round_of, widen

from dfl_jax import Clients, topology
from dfl_jax.asynchronous import EVENT_METHODS, method_of, model_bits, plan
from dfl_jax.asynchronous.divshare import layout_of
from dfl_jax.exchange import one_round
from dfl_jax.models import MLP, Linear, bind
from dfl_jax.papers.tables.quadratics import quadratics
from dfl_jax.tasks import REGRESSION
from dfl_jax.timing import world

CLIENTS, FRAGMENTS = 8, 4
MODEL = bind(MLP(3, (5,)), (4,))  # 43 weights: fragments of 11, 11, 11 and 10
SIZES = (11, 11, 11, 10)
BITS = 32 * MODEL.size


def fast(clients=CLIENTS, **settings):
    """A world of equal clients whose updates take a second and whose messages take no time."""
    settings = {'speed': 1.0, 'uplink': np.inf, 'downlink': np.inf, 'latency': 0} | settings
    return world(clients, **settings)


def links(family='complete', clients=CLIENTS, **settings):
    return topology.schedule(family, clients, 1, static=True, **{'seed': 0} | settings)


def planned(graphs=None, drawn=None, **settings):
    settings = {'flops': 1.0, 'bits': BITS, 'seconds': 6.5, 'fragments': FRAGMENTS} | settings
    return plan('divshare', graphs or links(), drawn or fast(), **settings)


@pytest.mark.parametrize('fragments', [1, 4, 43])
def test_a_model_is_cut_without_loss(fragments):
    params = jax.tree.map(jnp.asarray, MODEL.init(jax.random.key(1)))
    layout = layout_of(MODEL, fragments)
    parts = layout.cut(params)
    assert sum(part.size for part in parts) == MODEL.size and len(parts[0]) == fragments
    assert {part.shape[0] for part in parts[1:]} <= {MODEL.size % fragments}
    for a, b in zip(jax.tree.leaves(layout.join(parts)), jax.tree.leaves(params), strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_fragment_reaches_as_many_different_clients_as_are_asked_for():
    found = planned(recipients=3)
    receivers = collections.defaultdict(list)
    for event in found.events:
        for copy in zip(event.members[1:], event.fragments[1:], event.versions[1:], strict=True):
            receivers[copy].append(event.members[0])
        assert event.sent[0] == 3 * MODEL.size
    last = max(version for *_, version in receivers)
    assert last == 5 and len(receivers) == CLIENTS * FRAGMENTS * last
    for (sender, *_), clients in receivers.items():
        assert len(set(clients)) == len(clients) == 3 and sender not in clients
    assert len({tuple(sorted(clients)) for clients in receivers.values()}) > 10


def test_a_slow_uplink_sends_what_fits_between_two_rounds():
    """Three and a half of the larger of 12 messages, each of 11 or 10 weights of 32 bits."""
    found = planned(recipients=3, drawn=fast(uplink=3.5 * 32 * 11))
    sent = [event.sent[0] for event in found.events]
    assert set(sent) <= {33, 32, 31} and len(set(sent)) > 1
    sending = collections.Counter(f for e in found.events for f in e.fragments[1:])
    assert set(sending) == set(range(FRAGMENTS))  # none is always the last in the queue
    # What has left arrives later, and is averaged in the round after its arrival
    by_round = [e for e in found.events if 3 < e.time < 4.5]
    assert sum(len(e.members) - 1 for e in by_round) == 3 * CLIENTS


@pytest.mark.parametrize('fragments', [1, FRAGMENTS])
def test_where_everything_arrives_it_is_dpsgd(fragments, x64):
    """Equal clients, messages that take no time, and all neighbours: a uniform average, then a
    step."""
    rng, graphs = np.random.default_rng(0), links('regular', degree=3, seed=1)
    x, y = rng.normal(size=(CLIENTS, 10, 4)), rng.integers(3, size=(CLIENTS, 10))
    clients = Clients(*map(jnp.asarray, (x, y, np.ones((CLIENTS, 10), bool))))
    found = planned(graphs, fragments=fragments, recipients=3)
    assert (found.slots.source < 0).all()
    settings = {'lr': 0.3, 'batch_size': 10, 'local_steps': 1, 'init': 'same'}
    method = method_of(found, MODEL, **settings)
    dpsgd = compiled('dpsgd', MODEL, round_order='average_first', mixing='uniform', **settings)
    ours = widen(jax.jit(method.init)(jax.random.key(0), clients))
    theirs = widen(dpsgd.init(jax.random.key(0), clients))
    step = jax.jit(functools.partial(one_round, method))
    for r in range(len(found.slots.active)):
        slot = jax.tree.map(lambda a, r=r: jnp.asarray(a[r]), found.slots)
        ours, info = step(jax.random.key(r), ours, r, slot, clients)
        theirs, other = dpsgd.step(jax.random.key(r), theirs, r, round_of(graphs, 0), clients)
        joined = jax.vmap(layout_of(MODEL, fragments).join)(ours.params)
        for a, b in zip(jax.tree.leaves(joined), jax.tree.leaves(theirs.params), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(info.loss, other.loss, rtol=1e-12)
        np.testing.assert_array_equal(info.sent['parameters'].messages, 3 * MODEL.size)
    assert r == 5


# ------------------------------------------------------------------------------ known optima


def trained(problem, drawn, seconds, lr, chunk=None, **settings):
    """Each client's weights [M, d] at the end."""
    clients, dimension = problem.clients.y.shape
    model = bind(Linear(1, use_bias=False), (dimension,), REGRESSION)
    fragments = settings['fragments']
    found = planned(
        links(clients=clients), drawn, bits=32 * dimension, seconds=float(seconds), **settings
    )
    method = method_of(
        found, model, lr=lr * dimension, batch_size=dimension, local_steps=1, chunk=chunk
    )
    state = widen(jax.jit(method.init)(jax.random.key(0), problem.clients))
    slots = jax.tree.map(jnp.asarray, found.slots)
    last, _ = jax.jit(
        lambda s: jax.lax.scan(
            lambda s, slot: one_round(method, None, s, 0, slot, problem.clients), s, slots
        )
    )(state)
    join = jax.vmap(layout_of(model, fragments).join)
    return np.asarray(join(last.params)['Dense_0']['kernel'][..., 0])


def test_it_finds_an_optimum_that_all_share(x64):
    """With slow links, lost messages, and clients that come and go."""
    problem = quadratics(CLIENTS, 10, zeta2=0, seed=2)
    drawn = world(
        CLIENTS, 1, speed='lognormal:1:0.5', uplink='lognormal:500:0.5', latency='lognormal:0.3:1',
        online='sine:7:0.7',
    )  # fmt: skip
    settings = {'fragments': 3, 'recipients': 2, 'loss': 0.3}
    found = trained(problem, drawn, 150, 0.4, **settings)
    np.testing.assert_allclose(found, np.tile(problem.optimum, (CLIENTS, 1)), atol=1e-9)
    early, together = (trained(problem, drawn, 9, 0.4, chunk, **settings) for chunk in (1, 3))
    assert np.abs(early - np.asarray(problem.optimum)).max() > 1e-3
    np.testing.assert_allclose(together, early, rtol=1e-12)


def test_clients_with_slow_uplinks_are_heard_in_parts(x64):
    """Twelve fragments of a weight leave them in a round, and never a whole model of 16."""
    problem = quadratics(CLIENTS, 16, zeta2=1.0, seed=3)
    slow = np.arange(CLIENTS) < CLIENTS // 2
    drawn = fast()._replace(uplink=np.where(slow, 12.5 * 32, np.inf))
    gaps = {}
    for fragments in 1, 16:
        found = trained(problem, drawn, 100, 0.1, fragments=fragments, recipients=3)[~slow].mean(
            axis=0
        )
        gaps[fragments] = float(problem.suboptimality({'Dense_0': {'kernel': found[:, None]}}))
    assert gaps[16] < 0.5 * gaps[1]


@pytest.mark.parametrize('weights', ['bfloat16', 'float16'])
@pytest.mark.parametrize('name', EVENT_METHODS)
def test_models_of_16_bits_take_half_the_bits_and_half_the_time(name, weights):
    """Of all methods without rounds; their states keep the types of the weights."""
    module = nn.Dense(3, param_dtype=weights)
    model = bind(module, (4,))
    wide = bind(nn.Dense(3), (4,))
    age = 32 if name == 'gossip_learning' else 0
    assert model_bits(name, model) == 15 * 16 + age and model_bits(name, wide) == 15 * 32 + age
    slow = fast(uplink=100.0, downlink=100.0)
    graphs = links('complete')

    def planned_for(model, bits):
        return plan(
            *(name, graphs, slow),
            flops=1.0,
            bits=model_bits(name, model),
            number_bits=bits,
            updates=40,
            **({'fragments': 5} if name == 'divshare' else {}),
        )

    found = planned_for(model, 16)
    method = method_of(found, model, local_steps=1)
    clients = Clients(
        jnp.zeros((CLIENTS, 2, 4)), jnp.zeros((CLIENTS, 2), jnp.int32), jnp.ones((CLIENTS, 2), bool)
    )
    before = jax.eval_shape(method.init, jax.random.key(0), clients)
    slot = jax.tree.map(lambda a: jnp.asarray(a[0]), found.slots)
    step = functools.partial(one_round, method)
    after, info = jax.eval_shape(step, jax.random.key(0), before, 0, slot, clients)
    kind, bits = ('parameters', 16) if name == 'divshare' else ('weights', model_bits(name, model))
    assert {kind: sent.bits for kind, sent in info.sent.items()} == {kind: bits}
    assert jax.tree.map(lambda a: (a.shape, a.dtype), before) == jax.tree.map(
        lambda a: (a.shape, a.dtype), after
    )
    assert {leaf.dtype.itemsize for leaf in jax.tree.leaves(before.params)} == {2}
    if name == 'divshare':
        most = max(event.sent[0] for event in found.events)
        assert 0 < most <= 15 * 3  # parameters, and each goes to three clients at most
        with pytest.raises(ValueError, match=r'of 32 bits, .* 16; plan with number_bits=16'):
            method_of(planned_for(wide, 32), model)


# ------------------------------------------------------------------------------- what is refused


def refusal(function, *args, **settings):
    with pytest.raises(ValueError) as error:
        function(*args, **settings)
    assert '\n' not in str(error.value)
    return str(error.value)


def test_what_is_refused():
    text = refusal(planned, links('ring'), recipients=3)
    assert 'recipients=3, and client 0 has 2 neighbours' in text
    assert 'recipients has to be at least 1, got 0' in refusal(planned, recipients=0)
    text = refusal(planned, fragments=44)
    assert 'fragments of 43 parameters has to lie in [1, 43], got 44' in text
    found = planned()
    assert 'fragments=5: the events follow from it' in refusal(method_of, found, MODEL, fragments=5)
    text = refusal(plan, 'swift', links(), fast(), flops=1.0, bits=BITS, updates=9, recipients=2)
    assert 'the events of swift do not depend on recipients' in text
    text = refusal(planned, bits=32 * 10**9)
    assert 'use shorter intervals' in text
    assert planned(bits=32 * 10**8, seconds=6.5, intervals=6).events
