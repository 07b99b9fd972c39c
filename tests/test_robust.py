"""Rules that stand liars, and the lies, against plain NumPy, one receiver at a time."""

import functools

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
import reference_robust as reference
from jax.flatten_util import ravel_pytree

from dfl_jax import Clients, Graph
from dfl_jax.exchange import Attack, Exchange, round_of
from dfl_jax.exchange.aggregation import (
    RULES,
    aggregation_named,
    members_needed,
    ordered,
    takes_loss,
)
from dfl_jax.exchange.attacks import ATTACKS, tamper_named
from dfl_jax.gossip import mixing_weights
from dfl_jax.methods import make
from dfl_jax.models import Linear, bind
from dfl_jax.setting_error import SettingError

MEMBERS, SIZES = 9, (4, 7)  # of two tensors
REFERENCES = {
    'median': lambda v, w: reference.median(v),
    'trimmed_mean:2': lambda v, w: reference.trimmed_mean(v, 2),
    'geometric_median:8': lambda v, w: reference.geometric_median(v, 8),
    'krum:1': lambda v, w: reference.krum(v, 1),
    'multi_krum:1': lambda v, w: reference.multi_krum(v, 1),
    'clipping:0.7': lambda v, w: reference.clipping(v, w, 0.7),
    'clipping:adaptive': lambda v, w: reference.clipping(v, w, reference.adaptive_radius(v, w)),
    'nearest:2': lambda v, w: reference.nearest_mixed(v, 2),
    'nna:2': lambda v, w: reference.nearest_to_own(v, 2),
    'mozi:0.6,0.05': lambda v, w: reference.mozi(v, loss_of_vector, 0.6, 0.05),
    'mozi:0.6,9': lambda v, w: reference.mozi(
        v, loss_of_vector, 0.6, 9
    ),  # no loss is so much lower
}


def loss_of_vector(vector):
    return np.mean((vector - 0.3) ** 2)


def loss_of_tree(tree):
    squares = [
        jnp.square(leaf.astype(jnp.result_type(leaf, 'float32')) - 0.3) for leaf in tree.values()
    ]
    return jnp.concatenate(squares).mean()


def neighbourhood(heard, seed=0):
    """Vectors [K, P], which are heard [K], and weights [K] that sum to one."""
    rng = np.random.default_rng(seed)
    mask = np.zeros(MEMBERS, bool)
    mask[[0, *(1 + rng.permutation(MEMBERS - 1)[: heard - 1])]] = True
    weights = np.where(mask, rng.uniform(0.5, 1.5, MEMBERS), 0)
    return rng.normal(size=(MEMBERS, sum(SIZES))), mask, weights / weights.sum()


def as_tree(vectors):
    first, second = jnp.split(jnp.asarray(vectors), [SIZES[0]], axis=-1)
    return {'a': first, 'b': second}


def as_vectors(tree):
    return np.concatenate([tree['a'], tree['b']], axis=-1)


@functools.cache
def compiled(named, name):
    """A rule or an attack, compiled once for all tests."""
    return jax.jit(named(name))


def rule(name):
    named = aggregation_named(name)
    return (lambda *of: named(*of, loss_of_tree)) if takes_loss(name) else named


def combined(name, vectors, mask, weights):
    tree = as_tree(vectors)
    own = jax.tree.map(lambda a: a[0], tree)
    return as_vectors(compiled(rule, name)(own, tree, weights, mask))


@pytest.mark.parametrize('heard', [1, 2, 3, 4, 6, 9])
@pytest.mark.parametrize('name', REFERENCES)
@pytest.mark.usefixtures('x64')
def test_a_rule_is_the_reference(name, heard):
    vectors, mask, weights = neighbourhood(heard, seed=heard)
    expected = REFERENCES[name](vectors[mask], weights[mask])
    np.testing.assert_allclose(combined(name, vectors, mask, weights), expected, atol=1e-12)
    # Nor does it matter what lies in the padding, or in which order the neighbours come
    other = np.where(mask[:, None], vectors, np.nan)
    np.testing.assert_allclose(combined(name, other, mask, weights), expected, atol=1e-12)
    order = np.r_[0, 1 + np.random.default_rng(1).permutation(MEMBERS - 1)]
    found = combined(name, vectors[order], mask[order], weights[order])
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize('name', REFERENCES)
def test_a_huge_lie_is_not_the_nearest_to_anything(name):
    """Its distances overflow, and so are infinite like those of messages that are not there."""
    vectors, mask, weights = neighbourhood(7, seed=5)
    vectors[np.flatnonzero(mask)[3]] = 1e25
    found = combined(name, vectors.astype('float32'), mask, weights.astype('float32'))
    assert np.abs(found).max() < 10


@pytest.mark.parametrize('name', [name for name in REFERENCES if 'krum' not in name])
def test_models_of_16_bits_are_as_far_apart_as_they_are(name):
    """Squares of a thousand weights are more than float16 holds."""
    rng = np.random.default_rng(0)
    vectors = (8 * rng.normal(size=(5, 3000))).astype('float16')
    weights, all_heard = np.full(5, 0.2, 'float32'), np.ones(5, bool)
    narrow = combined(name, vectors, all_heard, weights)
    wide = combined(name, vectors.astype('float32'), all_heard, weights)
    assert narrow.dtype == np.float16
    np.testing.assert_allclose(narrow, wide, atol=0.05)


def test_every_rule_has_a_reference():
    assert {name.partition(':')[0] for name in REFERENCES} == set(RULES)


@pytest.mark.parametrize('bad', [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize('name', REFERENCES)
@pytest.mark.usefixtures('x64')
def test_a_message_that_is_not_finite_is_as_one_that_was_lost(name, bad):
    vectors, mask, weights = neighbourhood(6)
    broken = vectors.copy()
    liar = np.flatnonzero(mask)[2]
    broken[liar, 3] = bad
    lost = mask & (np.arange(MEMBERS) != liar)
    found = combined(name, broken, mask, weights)
    assert np.isfinite(found).all()
    np.testing.assert_array_equal(found, combined(name, vectors, lost, weights))


@pytest.mark.parametrize('count', [1, 2, 3, 5, 8, 13, 31, 32, 40])
def test_few_and_many_are_ordered(count):
    values = np.random.default_rng(count).normal(size=(count, 50)).astype('float32')
    np.testing.assert_array_equal(np.stack(ordered(jnp.asarray(values))), np.sort(values, axis=0))


@pytest.mark.parametrize('b', [1, 2, 3])
@pytest.mark.parametrize('name', ['trimmed_mean', 'krum', 'multi_krum', 'nearest', 'nna'])
def test_it_stands_as_many_liars_as_it_says_and_no_more(name, b):
    """Liars who tell one story: b leave the result near the honest ones, more than half do not."""
    rule = f'{name}:{b}'
    members = members_needed(rule)
    rng = np.random.default_rng(b)
    vectors = rng.normal(size=(members, sum(SIZES)))
    diameter = max(np.linalg.norm(u - v) for u in vectors for v in vectors)
    weights, all_heard = np.full(members, 1 / members), np.ones(members, bool)

    def distance(liars):
        told = vectors.copy()
        told[members - liars :] = 1e6
        honest = vectors[: members - liars].mean(axis=0)
        found = combined(rule, told, all_heard, weights)
        return np.linalg.norm(found - honest)

    assert distance(b) <= diameter
    if name != 'nna':  # which is bound to its own model, and hears more liars than it leaves out
        assert distance(members - b) > 1e4
    assert (distance(b + 1) > 1e4) == (name != 'krum')  # of which one liar more is far from others


def test_clipping_moves_no_further_than_its_radius_whatever_is_sent():
    vectors, mask, weights = neighbourhood(9)
    for size in (1e3, 1e6):
        told = np.concatenate([vectors[:1], size * vectors[1:]])
        moved = combined('clipping:0.3', told, mask, weights) - told[0]
        assert np.linalg.norm(moved) <= 0.3 * (1 - weights[0]) + 1e-5


def test_a_model_whose_loss_is_not_finite_is_no_choice():
    """Nor does it come to that where the loss of no model among the nearest is."""
    vectors, mask, weights = neighbourhood(9)
    mozi, tree = aggregation_named('mozi:1,9'), as_tree(vectors.astype('float32'))
    own = jax.tree.map(lambda a: a[0], tree)
    order = np.argsort(np.where(np.arange(MEMBERS) > 0, tree['a'][:, 0], np.inf))

    def found(broken):
        where = tree['a'][order[broken - 1], 0] if broken else -np.inf
        loss = lambda one: jnp.where(one['a'][0] <= where, jnp.nan, one['a'][0])  # noqa: E731
        return as_vectors(mozi(own, tree, weights, mask, loss))

    for broken in (0, 3):
        expected = (vectors[0] + vectors[order[broken]]) / 2
        np.testing.assert_allclose(found(broken), expected, rtol=1e-5)
    np.testing.assert_array_equal(found(MEMBERS - 1), as_vectors(own))


@pytest.mark.usefixtures('x64')
def test_a_client_judges_models_by_its_own_samples():
    rng, clients = np.random.default_rng(0), 5
    x, y = rng.normal(size=(clients, 8, 3)), rng.integers(4, size=(clients, 8))
    mask = np.arange(8) < rng.integers(3, 8, clients)[:, None]
    model = bind(Linear(4), (3,))
    params = jax.tree.map(lambda a: rng.normal(size=(clients, *a.shape)), model.shapes)
    members = jnp.asarray((np.arange(clients)[:, None] + np.arange(clients)) % clients)
    graph = Graph(members, members >= 0, jnp.ones(clients, bool))
    exchange = make('dpsgd', model, aggregation='mozi:0.5,0.1').exchange
    now = round_of(0, graph, Clients(x, y, mask), exchange)
    rows = mixing_weights(graph, now.sizes, 'uniform')
    found, _ = ravel(now.exchange.combine(jax.random.key(0), now, rows, params))
    vectors, one = ravel(params)
    for i in range(clients):

        def loss(vector, i=i):
            logits = model.apply(one(vector), x[i][mask[i]])
            terms = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
            return -np.mean(terms[np.arange(mask[i].sum()), y[i][mask[i]]])

        expected = reference.mozi(vectors[np.roll(np.arange(clients), -i)], loss, 0.5, 0.1)
        np.testing.assert_allclose(found[i], expected, rtol=1e-12)


def ravel(stacked):
    """The models [M, P], and what makes a tree of one of them."""
    rows = [ravel_pytree(jax.tree.map(lambda a, i=i: a[i], stacked)) for i in range(5)]
    return np.stack([row for row, _ in rows]), rows[0][1]


def test_mozi_needs_a_neighbour_among_the_nearest():
    assert [members_needed(f'mozi:{rho},0') for rho in (1, 0.5, 0.4, 0.25)] == [2, 3, 4, 5]


# ------------------------------------------------------------------------ consensus among liars


def ring_of_liars():
    """Five honest clients on a ring, each with two liars, client 0 with three (He et al.)."""
    links = [(i, (i + 1) % 5) for i in range(5)]
    links += [(i, i + 5) for i in range(5)] + [(i, i + 10) for i in range(5)] + [(0, 15)]
    return 16, links, np.arange(16) >= 5


def two_cliques():
    """Two cliques of five, a client between them, and a liar in each clique."""
    cliques = [(a, b) for c in (0, 5) for a in range(c, c + 5) for b in range(a + 1, c + 5)]
    return 11, [*cliques, (0, 10), (5, 10)], np.isin(np.arange(11), [4, 9])


CONSENSUS_RULES = {
    'mean': lambda v, w: w @ v,
    'median': REFERENCES['median'],
    'trimmed_mean:2': REFERENCES['trimmed_mean:2'],
    'clipping:0.3': lambda v, w: reference.clipping(v, w, 0.3),
}


@functools.cache
def distances_to_consensus(network, rule, rounds=12):
    """The largest distance of an honest client from the mean of all honest ones at first, after
    each round of averaging under dissensus: of the exchange and of NumPy."""
    count, links, liars = network()
    graph = nx.Graph(links)
    width = 1 + max(degree for _, degree in graph.degree)
    members = np.array([[i, *graph[i], *[i] * (width - 1 - len(graph[i]))] for i in range(count)])
    heard_by = np.array([1 + len(graph[i]) for i in range(count)])
    mask = np.arange(width) < heard_by[:, None]
    one = Graph(jnp.asarray(members), jnp.asarray(mask), jnp.ones(count, bool))
    nothing = jnp.zeros((count, 1), int)
    data = Clients(jnp.zeros((count, 1, 1)), nothing, nothing == 0)
    rows = np.asarray(mixing_weights(one, jnp.ones(count, int), 'metropolis'))
    attack = Attack(liars, tamper_named('dissensus:1.5'))
    exchange = Exchange(attack=attack, aggregation=aggregation_named(rule))
    now = round_of(0, one, data, exchange)
    ours = jnp.asarray(np.random.default_rng(0).normal(size=(count, 6)))
    theirs, start = np.array(ours), np.array(ours)[~liars].mean(axis=0)

    def distance(models):
        return np.linalg.norm(np.asarray(models)[~liars] - start, axis=1).max()

    found = []
    for _ in range(rounds):
        ours = now.exchange.combine(jax.random.key(0), now, jnp.asarray(rows), ours)
        heard = theirs.copy()
        for i in np.flatnonzero(~liars):
            at = members[i][mask[i]]
            vectors, lies, weights = heard[at].copy(), liars[at], rows[i][mask[i]]
            if lies.any():
                vectors[lies] = reference.dissensus(vectors, lies, weights, 1.5)
            theirs[i] = CONSENSUS_RULES[rule](vectors, weights)
        found.append((distance(ours), distance(theirs)))
    return np.array(found), distance(np.random.default_rng(0).normal(size=(count, 6)))


@pytest.mark.parametrize('rule', CONSENSUS_RULES)
@pytest.mark.parametrize('network', [ring_of_liars, two_cliques])
@pytest.mark.usefixtures('x64')
def test_averaging_among_liars_is_that_of_one_receiver_at_a_time(network, rule):
    found, _ = distances_to_consensus(network, rule)
    np.testing.assert_allclose(found[:, 0], found[:, 1], rtol=1e-12)


@pytest.mark.usefixtures('x64')
def test_dissensus_drives_clients_apart_and_clipping_holds_them():
    """Where liars are the majority of every neighbourhood, the median is theirs; where honest
    cliques hang together by one client, it keeps them apart."""

    def course(network, rule):
        found, first = distances_to_consensus(network, rule)
        return found[:, 0] / first

    for rule in ('mean', 'median', 'trimmed_mean:2'):
        assert course(ring_of_liars, rule)[-1] > 20
    assert course(ring_of_liars, 'clipping:0.3')[-1] < 1.05
    assert course(two_cliques, 'mean')[-1] > 20
    stuck = course(two_cliques, 'median')[3:]
    np.testing.assert_allclose(stuck, stuck[0], rtol=1e-6)
    assert (np.diff(course(two_cliques, 'clipping:0.3')) < 0).all()


# ----------------------------------------------------------------------------------------- attacks


def lied(name, vectors, lies, delivered, weights, key=0):
    tree = as_tree(vectors)
    own = jax.tree.map(lambda a: a[0], tree)
    tamper = compiled(tamper_named, name)
    return as_vectors(tamper(jax.random.key(key), tree, lies & delivered, own, weights, delivered))


KNOWING = {
    'alie:1.5': lambda v, lies, w: reference.alie(v, lies, 1.5),
    'ipm:0.1': lambda v, lies, w: reference.inner_product(v, lies, 0.1),
    'dissensus:1.5': lambda v, lies, w: reference.dissensus(v, lies, w, 1.5),
}


@pytest.mark.parametrize('liars', [1, 3, 5])
@pytest.mark.parametrize('name', KNOWING)
@pytest.mark.usefixtures('x64')
def test_an_attack_is_the_reference(name, liars):
    vectors, delivered, weights = neighbourhood(6, seed=liars)
    lies = np.zeros(MEMBERS, bool)
    lies[np.flatnonzero(delivered)[1 : 1 + liars]] = True
    found = lied(name, vectors, lies, delivered, weights)
    told = KNOWING[name](vectors[delivered], lies[delivered], weights[delivered])
    np.testing.assert_allclose(found[lies], np.tile(told, (liars, 1)), atol=1e-12)
    np.testing.assert_array_equal(found[~lies], vectors[~lies])


@pytest.mark.parametrize(
    ('name', 'expected'),
    [
        ('sign_flip', lambda v: -v),
        ('sign_flip:4', lambda v: -4 * v),
        ('zero', lambda v: 0 * v),
        ('nan', lambda v: np.nan * v),
        ('same_value', lambda v: 100 + 0 * v),
        ('same_value:-2', lambda v: -2 + 0 * v),
    ],
)
def test_a_lie_that_knows_nothing(name, expected):
    vectors, delivered, weights = neighbourhood(9)
    lies = np.arange(MEMBERS) % 2 == 1
    found = lied(name, vectors.astype('float32'), lies, delivered, weights)
    np.testing.assert_allclose(found[lies], expected(vectors[lies]), rtol=1e-6)
    np.testing.assert_array_equal(found[~lies], vectors[~lies].astype('float32'))


def test_random_lies_differ_from_link_to_link_and_are_of_their_size():
    vectors, delivered, weights = neighbourhood(9)
    lies = np.arange(MEMBERS) > 0
    say = functools.partial(lied, vectors=vectors, lies=lies, delivered=delivered, weights=weights)
    noise = np.concatenate([say('gaussian:3', key=key)[1:] for key in range(50)])
    assert abs(noise.std() - 3) < 0.1 and abs(noise.mean()) < 0.1
    assert len(np.unique(noise)) > 0.99 * noise.size
    models = np.stack([say('random_model', key=key)[1, : SIZES[0]] for key in range(300)])
    assert abs(models.mean() - vectors[1, : SIZES[0]].mean()) < 0.1
    assert abs(models.std() - vectors[1, : SIZES[0]].std()) < 0.1


def test_every_attack_is_tested():
    named = {'sign_flip', 'zero', 'nan', 'same_value', 'gaussian', 'random_model'}
    assert named | {name.partition(':')[0] for name in KNOWING} == set(ATTACKS)


@pytest.mark.parametrize(
    ('value', 'words'),
    [
        ('medain', "unknown aggregation 'medain', did you mean median?"),
        ('trimmed_mean', 'trimmed_mean takes b, a whole number from 1'),
        ('trimmed_mean:0', 'trimmed_mean takes b, a whole number from 1'),
        ('krum:1.5', 'krum takes b, a whole number from 1'),
        ('median:2', 'median takes no value'),
        ('median:', 'median takes no value'),
        ('mean:1', 'mean takes no value'),
        ('clipping:-1', 'clipping takes tau, a number above 0 or adaptive'),
        ('clipping:inf', 'clipping takes tau'),
        ('mozi', 'mozi takes rho,epsilon, a share.*; write mozi:RHO,EPSILON'),
        ('mozi:0.4', 'mozi takes rho,epsilon, a share above 0'),
        ('mozi:1.5,0', 'mozi takes rho,epsilon, a share above 0'),
    ],
)
def test_rules_that_there_are_not(value, words):
    with pytest.raises(SettingError, match=words):
        aggregation_named(value)


@pytest.mark.parametrize(
    ('value', 'words'),
    [
        ('sing_flip', "unknown attack 'sing_flip', did you mean sign_flip?"),
        ('alie', 'alie takes z'),
        ('alie:x', 'alie takes z'),
        ('gaussian:-1', 'gaussian takes sigma, a standard deviation; write gaussian:SIGMA'),
        ('nan:1', 'nan takes no value'),
        ('ipm:inf', 'ipm takes epsilon'),
    ],
)
def test_attacks_that_there_are_not(value, words):
    with pytest.raises(SettingError, match=words):
        tamper_named(value)
