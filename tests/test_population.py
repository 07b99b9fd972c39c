"""Who has which architecture, who sits where in a round, and who meets whom."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dfl_jax import topology
from dfl_jax.base import Graph
from dfl_jax.execution import client_mesh, map_present
from dfl_jax.heterogeneous.population import (
    assign_architectures,
    assign_participants,
    by_client,
    by_position,
    gather,
    initial_stacked,
    populate,
    scatter,
)
from dfl_jax.models import MLP, bind
from dfl_jax.setting_error import SettingError
from dfl_jax.topology.meetings import meetings

MODELS = {'wide': bind(MLP(3, (8,)), (5,)), 'narrow': bind(MLP(3, (2,)), (5,))}
PEOPLE = populate(MODELS, ['wide', 'narrow', 'narrow', 'wide', 'narrow', 'narrow'])


def graph(members, mask, active=None):
    active = np.ones(len(members), bool) if active is None else active
    return Graph(jnp.array(members, jnp.int32), jnp.array(mask, bool), jnp.array(active, bool))


def test_architectures_are_dealt_evenly_and_in_ratios():
    assert assign_architectures(['a', 'b', 'c'], 7, [1, 1, 1]) == list('abcabca')
    assert assign_architectures(['a', 'b'], 9, [2, 1]) == list('abaabaaba')
    shared = assign_architectures(['a', 'b', 'c'], 1000, [5, 3, 2])
    assert [shared.count(name) for name in 'abc'] == [500, 300, 200]
    assert [shared[:10].count(name) for name in 'abc'] == [5, 3, 2]


@pytest.mark.parametrize(
    ('call', 'message'),
    [
        (lambda: assign_architectures(['a', 'b'], 3, [1]), '1 ratios for 2'),
        (lambda: assign_architectures(['a', 'b'], 3, [1, 0]), 'positive, got 1, 0'),
        (lambda: populate(MODELS, ['wide', 'wide']), 'architecture narrow has no client among 2'),
        (lambda: populate(MODELS, ['wide', 'narrow', 'tall']), 'client 2 .* unknown .* tall'),
        (
            lambda: populate({'a': MODELS['wide'], 'b': bind(MLP(4), (5,))}, ['a', 'b']),
            'differ in inputs or classes',
        ),
        (lambda: initial_stacked(jax.random.key(0), PEOPLE, 'equal'), "unknown init 'equal'"),
    ],
)
def test_bad_populations(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize('init', ['same', 'independent'])
def test_initial_weights_of_an_architecture(init):
    stacked = initial_stacked(jax.random.key(0), PEOPLE, init)
    for name, clients in PEOPLE.clients.items():
        kernels = np.asarray(stacked[name]['Dense_0']['kernel'])
        assert len(kernels) == len(clients)
        assert (kernels == kernels[0]).all() == (init == 'same')


def test_participants_take_their_architectures_slots():
    meeting = graph([[4, 0, 3], [2, 5, 2]], [[1, 1, 1], [1, 0, 0]])
    participants = assign_participants(PEOPLE, meeting)
    taken = {
        name: sorted(
            (int(s), int(c), int(r))
            for s, c, r, on in zip(
                group.position, group.client, group.row, group.present, strict=True
            )
            if on
        )
        for name, group in participants.items()
    }
    assert taken == {'wide': [(1, 0, 0), (2, 3, 1)], 'narrow': [(0, 4, 2), (3, 2, 1)]}
    for group in participants.values():
        assert (np.diff(group.present.astype(int)) <= 0).all(), 'those present come first'
    values = {name: group.client.astype(float) + 0.5 for name, group in participants.items()}
    np.testing.assert_array_equal(
        by_position(values, participants, meeting), [[4.5, 0.5, 3.5], [2.5, 0, 0]], strict=False
    )


@pytest.mark.parametrize('devices', [2, 3, 8])
def test_devices_share_the_participants_evenly(devices):
    population = populate(MODELS, ['wide', 'narrow', 'narrow'] * 5)
    assign = jax.jit(lambda meeting: assign_participants(population, meeting))
    for senders in (1, 4, 7, 12):
        drawn = meetings(complete(15, 1), senders, seed=senders)
        one = jax.tree.map(lambda a: a[0], drawn)
        with jax.set_mesh(client_mesh(devices)):
            groups = assign(one)
        present = [np.asarray(group.present).reshape(devices, -1) for group in groups.values()]
        each = sum(share.sum(axis=1) for share in present)
        assert each.sum() == senders + 1
        assert each.max() - each.min() <= 1, each
        clients = [np.asarray(group.client)[group.present] for group in groups.values()]
        assert set(np.concatenate(clients)) == set(np.asarray(one.members)[one.mask].tolist())


def test_an_inactive_aggregator_seats_nobody():
    participants = assign_participants(
        PEOPLE, graph([[4, 0, 3], [2, 5, 1]], np.ones((2, 3)), [False, True])
    )
    assert [int(group.present.sum()) for group in participants.values()] == [0, 3]


def test_what_is_gathered_and_scattered_comes_home():
    stacked = {name: {'w': jnp.asarray(c, jnp.float32)} for name, c in PEOPLE.clients.items()}
    participants = assign_participants(PEOPLE, graph([[4, 0, 5]], [[1, 1, 1]]))
    seen = gather(stacked, participants)
    for name, group in participants.items():
        np.testing.assert_array_equal(seen[name]['w'][group.present], group.client[group.present])
    new = jax.tree.map(lambda leaf: leaf + 100, seen)
    after = scatter(stacked, new, participants)
    merged = by_client({name: after[name]['w'] for name in after}, PEOPLE)
    np.testing.assert_array_equal(merged, [100, 1, 2, 3, 104, 105])


@pytest.mark.parametrize('chunk', [None, 1, 2, 3])
def test_absent_slots_are_skipped(chunk):
    present = jnp.array([True, False, True, False, False])
    found = map_present(lambda x: 10 * x, lambda x: x, jnp.arange(5.0), present, chunk)
    np.testing.assert_array_equal(found, [0, 1, 20, 3, 4])


# -------------------------------------------------------------------------------------- meetings


def complete(clients=10, rounds=50):
    return topology.schedule('complete', clients, rounds, seed=0)


@pytest.mark.parametrize(('senders', 'aggregators'), [(5, 1), (9, 1), (5, 5), (6, 3)])
def test_senders_and_aggregators_are_disjoint(senders, aggregators):
    met = meetings(complete(rounds=200), senders, seed=3, aggregators=aggregators)
    assert met.members.shape == (200, aggregators, 1 + senders // aggregators)
    assert met.mask.all() and met.active.all()
    for row in met.members.reshape(200, -1):
        assert len(set(row)) == senders + aggregators
    assert (np.diff(met.members[:, :, 1:], axis=2) > 0).all()
    counts = np.bincount(met.members[:, :, 0].ravel(), minlength=10)
    assert counts.min() > 0, 'some client never aggregates'
    again = meetings(complete(rounds=200), senders, seed=3, aggregators=aggregators)
    assert (met.members == again.members).all()
    assert (
        met.members
        != meetings(complete(rounds=200), senders, seed=4, aggregators=aggregators).members
    ).any()


def test_every_sender_is_equally_likely():
    met = meetings(complete(rounds=4000), 3, seed=0)
    counts = np.bincount(met.members[:, 0, 1:].ravel(), minlength=10)
    np.testing.assert_allclose(counts, 1200, atol=5 * np.sqrt(1200))


def test_senders_are_among_those_that_are_reached():
    graphs = topology.schedule('two_group', 10, 200, seed=0, static=True)
    met = meetings(graphs, 6, seed=1)
    heard = {
        aggregator: set(graphs.members[0, aggregator][graphs.mask[0, aggregator]])
        for aggregator in range(10)
    }
    for members, mask in zip(met.members[:, 0], met.mask[:, 0], strict=True):
        assert set(members[mask]) <= heard[members[0]]
        assert mask.sum() == min(7, len(heard[members[0]]))
        assert (members[~mask] == members[0]).all()


def test_the_aggregator_walks_over_the_graph():
    graphs = topology.schedule('ring', 10, 100, seed=0, static=True)
    aggregators = meetings(graphs, 2, seed=1, choice='walk').members[:, 0, 0]
    assert aggregators[0] == 0
    for before, after in itertools.pairwise(aggregators):
        assert after in graphs.members[0, before, 1:]
    assert (meetings(graphs, 2, seed=1, choice='fixed').members[:, 0, 0] == 0).all()


def test_clients_that_are_away_do_not_meet():
    graphs = topology.drop_clients(complete(), 0.5, seed=2)
    met = meetings(graphs, 3, seed=1)
    for r in range(50):
        who = met.members[r, 0][met.mask[r, 0]]
        assert graphs.active[r, who].all()
        assert met.active[r, 0] == graphs.active[r].any()


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'senders': 10}, r'10 senders and 1 aggregator\(s\) of 10 clients: use 1 to 9'),
        ({'senders': 0}, '0 senders'),
        ({'senders': 5, 'aggregators': 2}, 'not dealt evenly over 2'),
        ({'senders': 5, 'aggregators': 0}, '0 aggregators of 10'),
        ({'senders': 4, 'aggregators': 2, 'choice': 'walk'}, 'a single one, not 2'),
        ({'senders': 4, 'choice': 'largest'}, "unknown aggregator 'largest'"),
    ],
    ids=str,
)
def test_bad_meetings(options, message):
    with pytest.raises(SettingError, match=message):
        meetings(complete(rounds=1), seed=0, **options)


@pytest.mark.parametrize('init', ['same', 'independent'])
def test_every_architecture_has_an_initialisation_key_of_its_own(init):
    """Two architectures of the same shapes start from different weights."""
    model = bind(MLP(3, (4,)), (5,))
    twins = populate({'one': model, 'two': model}, ['one', 'two', 'one', 'two'])
    stacked = jax.jit(lambda key: initial_stacked(key, twins, init))(jax.random.key(0))
    one, two = (np.asarray(stacked[name]['Dense_0']['kernel']) for name in ('one', 'two'))
    assert (one != two).all()
    assert (one[0] == one[1]).all() == (init == 'same')
