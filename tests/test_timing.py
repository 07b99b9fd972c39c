"""Simulated time: worlds, the clock of rounds, and what methods count."""

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from dfl_jax import simulate, timing, topology
from dfl_jax.algorithms.spark import EXCHANGES, NTK, Projection
from dfl_jax.base import Clients, Graph
from dfl_jax.cli.time.plot import _online_over_time
from dfl_jax.evaluation import Holdout
from dfl_jax.execution.flops import flops_of
from dfl_jax.heterogeneous import populate
from dfl_jax.heterogeneous.mutual import Mutual
from dfl_jax.heterogeneous.mutual_flops import meeting_flops
from dfl_jax.heterogeneous.population import Participants
from dfl_jax.methods import IN_ROUNDS, make
from dfl_jax.models import CNN3, MLP, architecture, bind
from dfl_jax.ntk import NtkUpdate, flops_of_update, linearization, projected
from dfl_jax.ntk.evolution import apply
from dfl_jax.ntk.projection import projection
from dfl_jax.timing import Counts, Online, Rules, World, finish_times
from dfl_jax.training import Batch, LocalTraining, batch_loss, gradient_flops, training_flops

CLIENTS, ROUNDS = 7, 6


def world_of(clients=CLIENTS, seed=0, **more):
    rng = np.random.default_rng(seed)
    arrays = rng.uniform(1, 3, (4, clients)) * np.array([[1e9], [1e6], [2e6], [0.1]])
    return World(*arrays)._replace(**more)


def counts_of(rounds=ROUNDS, clients=CLIENTS, seed=0):
    rng = np.random.default_rng([seed, 1])
    bits, work = rng.uniform(1, 2, (2, rounds, clients)) * np.array([1e6, 1e9])[:, None, None]
    return Counts(bits, work)


# ---------------------------------------------------------------------------------------- worlds


def test_worlds_are_as_described():
    world = timing.parse('speed=two:1e9:1e10:0.25,uplink=lognormal:1e6:0.5,latency=0.1', 2000, 3)
    assert (np.sort(world.speed)[:500] == 1e9).all() and (np.sort(world.speed)[500:] == 1e10).all()
    assert np.median(world.uplink) == pytest.approx(1e6, rel=0.05)
    assert np.log(world.uplink).std() == pytest.approx(0.5, rel=0.05)
    assert (world.downlink == world.uplink).all() and (world.latency == 0.1).all()
    same, other = (timing.parse('speed=lognormal:1:1', 9, seed).speed for seed in (3, 4))
    assert (same == timing.parse('speed=lognormal:1:1', 9, 3).speed).all() and (same != other).all()


def test_clients_that_are_always_online():
    for seed in range(5):
        assert timing.parse('online=sine:86400:1', 100, seed).online is None


def test_clients_are_online_for_their_share():
    world = timing.parse('online=sine:100:0.3', 500)
    at = np.array([world.is_online(np.full(500, t)) for t in range(1000, 1100)])
    assert abs(at.mean(axis=0) - 0.3).max() <= 0.011
    assert at.mean() == pytest.approx(0.3, abs=0.01) and at.mean(axis=1).std() < 0.03
    times = np.random.default_rng(0).uniform(0, 1e4, 500)
    then = world.next_online(times)
    assert (then >= times).all() and (then < times + 100).all()
    np.testing.assert_allclose(world.next_online(then), then, rtol=1e-14)
    before = np.maximum(then - 1e-6, times)
    assert (~world.is_online(before) | (then == times)).all()


def test_online_times_without_a_period_end():
    online = Online(np.array([[0.0, 50.0]]), np.array([[10.0, 60.0]]))
    world = world_of(1, online=online)
    found = [float(world.next_online(np.array([t]))[0]) for t in (5, 10, 55, 60)]
    assert found == [5, 50, 55, np.inf]


@pytest.mark.parametrize('name', ['world.csv', 'world.npz'])
def test_files_of_worlds(tmp_path, name):
    world = world_of()
    arrays = {name: each for name, each in world._asdict().items() if name != 'online'}
    if name == 'world.npz':
        np.savez(tmp_path / name, **arrays)
    else:
        rows = np.stack([*arrays.values()], axis=1)
        np.savetxt(tmp_path / name, rows, delimiter=',', header=','.join(arrays), comments='')
    read = timing.parse(str(tmp_path / name), CLIENTS)
    for there, here in zip(world[:4], read[:4], strict=True):
        np.testing.assert_allclose(here, there, rtol=1e-5)
    few = timing.parse(str(tmp_path / name), 3, seed=1)
    assert len(few.speed) == 3 and set(few.speed) < set(read.speed)


@pytest.mark.parametrize(
    'text',
    [
        'speed,uplink\n1e9,2e6\n3e9,4e6\n',
        '# of R\n"speed","uplink"\n"1e9","2e6"\n3e9,4e6\n',
        'uplink;speed\n2e6;1e9\n4e6;3e9\n',
        'speed, uplink\r\n1e9, 2e6\r\n\r\n3e9, 4e6\r\n',
        'speed\tuplink\n1e9\t2e6\n3e9\t4e6',
    ],
)
@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig'])
def test_forms_of_a_file(tmp_path, text, encoding):
    (tmp_path / 'world.csv').write_bytes(text.encode(encoding))
    world = timing.parse(str(tmp_path / 'world.csv'), 2)
    assert world.speed.tolist() == [1e9, 3e9] and world.uplink.tolist() == [2e6, 4e6]


def test_online_times_in_a_file(tmp_path):
    world = timing.parse('online=sine:100:0.3', CLIENTS)
    times = {f'online_{name}': part for name, part in world.online._asdict().items()}
    np.savez(tmp_path / 'world.npz', speed=world.speed, uplink=world.uplink, **times)
    read = timing.read(tmp_path / 'world.npz').online
    assert (read.starts == world.online.starts).all() and read.period == 100


def test_devices_that_come_along():
    world = timing.parse('devices', 300)
    assert len(np.unique(world.speed)) > 250 and world.speed.max() > 100 * np.median(world.speed)
    assert (world.downlink > world.uplink).mean() > 0.9


def reference_online(starts, ends, period, time):
    """Whether a device is online, one device and interval at a time."""
    within = time % period if period < np.inf else time
    return any(start <= within < end for start, end in zip(starts, ends, strict=True))


def test_every_device_has_a_period_of_its_own():
    """Also one that is online to its end, one that leaves after it, and one that never comes."""
    never, periods = np.inf, np.array([200.0, 35.0, 40.0, 60.0, 11.0])
    starts = np.array([[0, 100], [10, never], [30, never], [5, never], [never, never]])
    ends = np.array([[50, 150], [20, never], [40, never], [60, never], [never, never]])
    world = timing.world(5)._replace(online=Online(starts, ends, periods))
    for time in np.arange(0, 500, 2.5):
        expected = [
            reference_online(*each, time) for each in zip(starts, ends, periods, strict=True)
        ]
        assert world.is_online(np.full(5, time)).tolist() == expected, time
    then = world.next_online(np.array([160.0, 60.0, 45.0, 60.0, 3.0]))
    assert then.tolist() == [200.0, 80.0, 70.0, 65.0, np.inf]


@pytest.mark.parametrize('kind', ['npz', 'csv'])
def test_files_with_a_period_of_each_client(kind, tmp_path):
    """And so have some of its clients, and one of them for the events of asynchronous methods."""
    starts, ends, periods = [0.0, 10.0, 5.0], [4.0, 20.0, 9.0], [7.0, 35.0, np.inf]
    path = tmp_path / ('world.csv' if kind == 'csv' else 'world.npz')
    columns = {'online_starts': starts, 'online_ends': ends, 'online_period': periods}
    columns = {'speed': [1.0, 2.0, 3.0], 'uplink': [1.0] * 3} | columns
    if kind == 'csv':
        lines = (','.join(map(str, line)) for line in zip(*columns.values(), strict=True))
        path.write_text('\n'.join([','.join(columns), *lines]))
    else:
        np.savez(path, **columns)
    world, few = timing.parse(str(path), 3), timing.parse(str(path), 2, seed=3)
    for time in np.arange(0, 90, 0.5):
        expected = [
            reference_online([start], [end], period, time)
            for start, end, period in zip(starts, ends, periods, strict=True)
        ]
        assert world.is_online(np.full(3, time)).tolist() == expected
        drawn = (few.speed - 1).astype(int)
        assert few.is_online(np.full(2, time)).tolist() == [expected[client] for client in drawn]
        for client in range(3):
            alone = world._replace(online=world.online.of(slice(client, client + 1)))
            assert alone.is_online(np.array([time])).tolist() == [expected[client]]
    _online_over_time(world)


@pytest.mark.parametrize(
    ('text', 'pattern'),
    [
        ('speed=0', 'speed of client 0 is 0 operations a second; it has to be above 0'),
        ('speed=nan', 'speed of client 0 is nan'),
        ('uplink=-5', 'uplink of client 0 is -5 bits a second'),
        ('latency=-1', 'latency of client 0 is -1 seconds; it has to be at least 0'),
        ('speed=fast', 'speed=fast: write a number of operations a second, lognormal'),
        ('speed=two:1:2:3', 'speed=two:1:2:3: write'),
        ('power=3', "'power=3' is no setting; write speed="),
        ('online=sine:0:0.5', 'online=sine:0:0.5: write always or sine:PERIOD:SHARE'),
        ('online=often', 'online=often: write'),
        ('missing.csv', 'missing.csv cannot be read: No such file'),
        ('speed=1e9,uplink=5,speed=2e9', 'world=.*: speed is there twice; give it once'),
        ('online=always,online=always', 'online is there twice'),
    ],
)
def test_worlds_that_are_refused(text, pattern):
    with pytest.raises(ValueError, match=pattern):
        timing.parse(text, 4)


@pytest.mark.parametrize(
    ('content', 'pattern'),
    [
        ('speed,uplink\n1e9,1e6\n', 'a world of 1 clients for 4; name a larger one'),
        ('speed,uplink,colour\n1,2,3\n', "has a column 'colour'; it may have speed"),
        ('speed\n1\n', "has no column 'uplink'"),
        ('speed,uplink\n1,2\n3\n', 'is no table of numbers'),
        ('speed,uplink\n', 'holds no client'),
        ('speed,uplink,speed\n1,2,3\n', 'it has several columns speed: give each a name'),
        ('speed,uplink\n"1,5","2,5"\n', "is no table of numbers .*: '1,5'"),
        ('', 'holds no client'),
    ],
)
def test_files_that_are_refused(tmp_path, content, pattern):
    (tmp_path / 'world.csv').write_text(content)
    with pytest.raises(ValueError, match=pattern):
        timing.parse(str(tmp_path / 'world.csv'), 4)


@pytest.mark.parametrize(
    ('arrays', 'pattern'),
    [
        ({'speed': 1e9, 'uplink': 1e6}, r'speed has the shape \(\); give an array'),
        (
            {
                **{'speed': [1, 1], 'uplink': [1, 1], 'online_period': [2.0]},
                **{'online_starts': [0, 0], 'online_ends': [1, 1]},
            },
            r'a period of shape \[1\] for 2 clients; give one number, or one for each client',
        ),
        (
            {
                **{'speed': [1, 1], 'uplink': [1, 1], 'online_period': [2.0, 0.0]},
                **{'online_starts': [0, 0], 'online_ends': [1, 0]},
            },
            'repeat after 0 seconds; it has to be above 0',
        ),
        (
            {
                **{'speed': [1, 1], 'uplink': [1, 1], 'online_period': [20.0, 3.0]},
                **{'online_starts': [0, 0], 'online_ends': [4, 4]},
            },
            'online times of client 1 run backwards, overlap or pass the period of 3 s',
        ),
    ],
)
def test_arrays_that_are_refused(tmp_path, arrays, pattern):
    path = tmp_path / 'world.npz'
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=pattern):
        timing.read(path)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ValueError, match=r'is no \.npz of numbers'):
        timing.read(path)


@pytest.mark.parametrize('lacks', ['starts', 'ends'])
def test_online_times_without_their_other_half(lacks, tmp_path):
    times = {'online_starts': [[0.0]], 'online_ends': [[1.0]], 'online_period': 2.0}
    del times[f'online_{lacks}']
    np.savez(tmp_path / 'world.npz', speed=[1.0], uplink=[1.0], **times)
    with pytest.raises(ValueError, match=f'online times without online_{lacks}'):
        timing.read(tmp_path / 'world.npz')


def test_times_that_run_backwards(tmp_path):
    starts, ends = np.array([[0.0, 50.0], [0.0, 20.0]]), np.array([[10.0, 60.0], [30.0, 40.0]])
    np.savez(
        tmp_path / 'world.npz', speed=[1, 1], uplink=[1, 1], online_starts=starts, online_ends=ends
    )
    with pytest.raises(ValueError, match='online times of client 1 run backwards, overlap or pass'):
        timing.read(tmp_path / 'world.npz')


# ----------------------------------------------------------------------------------------- clock


def by_hand(graphs, counts, world, barrier=False, overlap=False):
    """The clock link by link."""
    now, idle, found = [0.0] * CLIENTS, [0.0] * CLIENTS, []
    for r in range(len(graphs.members)):
        links = [
            (int(m), h)
            for h in range(CLIENTS)
            for m, heard in zip(graphs.members[r, h, 1:], graphs.mask[r, h, 1:], strict=True)
            if heard and graphs.active[r, h]
        ]
        began = [float(world.next_online(np.full(CLIENTS, now[i]))[i]) for i in range(CLIENTS)]
        ready = [began[i] + counts.flops[r, i] / world.speed[i] for i in range(CLIENTS)]
        leaves = [max(idle[i], began[i] if overlap else ready[i]) for i in range(CLIENTS)]
        idle = [leaves[i] + counts.bits[r, i] / world.uplink[i] for i in range(CLIENTS)]
        done = [ready[i] if graphs.active[r, i] else now[i] for i in range(CLIENTS)]
        for m, h in links:
            out, into = sum(a == m for a, _ in links), sum(b == h for _, b in links)
            rate = min(world.uplink[m] / out, world.downlink[h] / into)
            latency = world.latency[m] if world.latency.ndim == 1 else world.latency[m, h]
            done[h] = max(done[h], leaves[m] + latency + counts.bits[r, m] / out / rate)
        now = [max(done)] * CLIENTS if barrier else done
        found.append(now)
    return np.array(found)


@pytest.mark.parametrize('rules', [Rules(), Rules(barrier=True), Rules(overlap=True)])
@pytest.mark.parametrize('seed', [0, 1])
def test_the_clock_equals_one_kept_by_hand(rules, seed):
    family = 'erdos_renyi' if seed else 'k_random'
    graphs = topology.schedule(family, CLIENTS, ROUNDS, seed=seed, degree=3)
    graphs = topology.drop_clients(topology.drop_links(graphs, 0.2, seed), 0.2, seed)
    world = world_of(seed=seed)
    if seed:
        latency = np.random.default_rng(5).uniform(0, 1, (CLIENTS, CLIENTS))
        world = world._replace(
            online=timing.parse('online=sine:20:0.6', CLIENTS).online, latency=latency
        )
    counts = counts_of(seed=seed)
    expected = by_hand(graphs, counts, world, rules.barrier, rules.overlap)
    np.testing.assert_allclose(finish_times(graphs, counts, world, rules), expected, rtol=1e-12)
    half = ROUNDS // 2  # in two parts
    parts = slice(half), slice(half, None)
    first, rest = (
        (jax.tree.map(lambda a, part=part: a[part], graphs), Counts(*(c[part] for c in counts[:2])))
        for part in parts
    )
    _, clock = timing.advance(*first, world, rules)
    times, _ = timing.advance(*rest, world, rules, clock, half)
    np.testing.assert_allclose(times, expected[half:], rtol=1e-12)


def test_equal_clients_take_work_and_transfer():
    graphs = topology.schedule('regular', 20, 9, seed=0, degree=4)
    counts = Counts(np.full((9, 20), 4e6), np.full((9, 20), 3e9))
    world = timing.world(20, speed=1e9, uplink=2e6, latency=0.25)
    times = finish_times(graphs, counts, world)
    assert (times == np.arange(1, 10)[:, None] * (3 + 0.25 + 1e6 / (2e6 / 4))).all()
    overlapping = finish_times(graphs, counts, world, Rules(overlap=True))
    assert (overlapping == np.arange(1, 10)[:, None] * 3).all()


def largest_cycle_mean(weights):
    """Karp 1978: of the cycles of a strongly connected digraph, weights [n, n], -inf for no arc."""
    n = len(weights)
    best = np.full((n + 1, n), -np.inf)
    best[0, 0] = 0
    for k in range(n):
        best[k + 1] = (best[k][:, None] + weights).max(axis=0)
    with np.errstate(invalid='ignore'):
        means = (best[n] - best[:n]) / (n - np.arange(n))[:, None]
    return np.nanmax(np.where(np.isfinite(best[n]), np.nanmin(means, axis=0), -np.inf))


@pytest.mark.parametrize('seed', range(5))
def test_the_period_is_the_largest_cycle_mean(seed):
    n, rounds = 12, 2000
    for attempt in range(100):
        graphs = topology.schedule(
            'k_random', n, rounds, seed=100 * seed + attempt, degree=2, static=True
        )
        arcs = [(int(m), h) for h in range(n) for m in graphs.members[0, h, 1:]]
        if nx.is_strongly_connected(nx.DiGraph(arcs)):
            break
    world, one = world_of(n, seed), counts_of(1, n, seed)
    counts = Counts(*(np.broadcast_to(c, (rounds, n)) for c in one[:2]))
    out, into = (np.bincount([arc[end] for arc in arcs], minlength=n) for end in (0, 1))
    # Of the ends of rounds, and below of when uplinks are idle: each from what it waits for
    weights = np.full((2 * n, 2 * n), -np.inf)
    work, uploading = one.flops[0] / world.speed, one.bits[0] / world.uplink
    for m, h in arcs:
        rate = min(world.uplink[m] / out[m], world.downlink[h] / into[h])
        transfer = world.latency[m] + one.bits[0, m] / out[m] / rate
        weights[m, h], weights[n + m, h] = work[m] + transfer, transfer
    ends, idle = np.arange(n), np.arange(n, 2 * n)
    weights[ends, ends], weights[idle, idle] = work, uploading
    weights[ends, idle] = work + uploading
    times = finish_times(graphs, counts, world)
    lengths = 840  # a multiple of the lengths of small cycles
    grown = (times[-1] - times[-1 - lengths]) / lengths
    np.testing.assert_allclose(grown, largest_cycle_mean(weights), rtol=1e-9)


def test_a_straggler_slows_whom_it_can_reach():
    n = 16
    graphs = topology.schedule('ring', n, 6, seed=0, static=True)
    counts = Counts(np.full((6, n), 1e6), np.full((6, n), 1e9))
    speed = np.full(n, 1e9)
    even = finish_times(graphs, counts, World(speed, speed, speed, np.zeros(n)))
    speed[0] = 1e8
    slow = finish_times(graphs, counts, World(speed, np.full(n, 1e9), np.full(n, 1e9), np.zeros(n)))
    distance = np.minimum(np.arange(n), n - np.arange(n))
    for r in range(6):
        assert ((slow[r] > even[r] + 1) == (distance <= r + 1)).all()


def test_senders_wait_for_what_comes_back():
    links = topology.schedule('complete', 4, 1, seed=0)
    graphs = topology.meetings(links, 2, seed=0)  # one aggregator, two senders
    members = graphs.members[0, 0]
    counts = Counts(np.full((1, 4), 2e6), np.full((1, 4), 1e9))
    world = timing.world(4, speed=1e9, uplink=1e6, latency=0)
    times = finish_times(graphs, counts, world, Rules(meetings=True, replies=True))[0]
    came = 1 + max(2e6 / 1e6, 2e6 / (1e6 / 2))  # two at once into the aggregator
    came += 1  # the aggregator works when all is there
    assert times[members[0]] == pytest.approx(came)
    back = 1e6 / (1e6 / 2)  # half of what it sends to each of two, at half of its uplink
    assert times[members[1:]] == pytest.approx(came + back)
    assert times[[i for i in range(4) if i not in members]] == pytest.approx([0])
    without = finish_times(graphs, counts, world, Rules(meetings=True))[0]
    assert without[members[0]] == pytest.approx(came)
    assert without[members[1:]] == pytest.approx([1, 1])  # they have worked and go on


def test_aggregators_train_while_their_senders_do():
    links = topology.schedule('complete', 3, 1, seed=0)
    graphs = topology.meetings(links, 2, seed=0)
    members = graphs.members[0, 0]
    combining = np.zeros((1, 3))
    combining[0, members[0]] = 2e9
    counts = Counts(np.zeros((1, 3)), np.full((1, 3), 1e9) + combining, combining)
    world = timing.world(3, speed=1e9, latency=0)
    times = finish_times(graphs, counts, world, Rules(meetings=True, replies=True))[0]
    assert (times == 3).all()  # 1 of training, of all at once, and 2 of combining


def test_an_uplink_carries_no_more_than_it_can():
    n, rounds = 10, 50
    graphs = topology.schedule('ring', n, rounds, seed=0, static=True)
    counts = Counts(np.full((rounds, n), 10.0), np.ones((rounds, n)))
    uplink = np.full(n, 1e9)
    uplink[0] = 1.0  # ten seconds a round, of two messages at once
    world = World(np.ones(n), uplink, np.full(n, 1e9), np.zeros(n))
    times = finish_times(graphs, counts, world)
    np.testing.assert_allclose(np.diff(times.max(axis=1))[n:], 10, rtol=1e-6)
    world = world._replace(uplink=np.full(n, 1e-303))
    ever = pytest.raises(ValueError, match='a message of round 1 takes for ever')
    with np.errstate(over='ignore'), ever:
        finish_times(graphs, counts._replace(bits=np.full((rounds, n), 1e10)), world)


def test_who_never_comes_back():
    graphs = topology.schedule('ring', 4, 9, seed=0)
    counts = counts_of(9, 4)
    ends = np.array([[1e9], [1e9], [2.0], [1e9]])
    world = world_of(4, online=Online(np.zeros((4, 1)), ends))
    with pytest.raises(ValueError, match=r'client 2 never comes back after .* s, and others wait'):
        finish_times(graphs, counts, world, Rules(barrier=True))


def test_rounds_that_begin_by_the_clock():
    graphs = topology.schedule('ring', 4, 5, seed=0)
    counts = Counts(np.zeros((5, 4)), np.full((5, 4), 1e9))
    world = timing.world(4, speed=1e9, latency=0)
    times = finish_times(graphs, counts, world, Rules(period=10))
    assert (times == np.array([1, 11, 21, 31, 41])[:, None]).all()


# ---------------------------------------------------------------------------------------- counts

MODEL = bind(MLP(10, (30,)), (20,))
SIZES = np.array([5, 23, 40, 17, 32, 9, 40])


def network():
    rng = np.random.default_rng(0)
    mask = np.arange(40) < SIZES[:, None]
    x = np.where(mask[..., None], rng.normal(size=(CLIENTS, 40, 20)), 0).astype(np.float32)
    return Clients(x, rng.integers(0, 10, (CLIENTS, 40)).astype(np.int32), mask)


OPTIONS: dict[str, dict] = {
    'ntk_dfl': {'timesteps': (5, 10)},
    'spark': {'timesteps': (5, 10), 'projection_dim': 20},
    'relay_sgd': {'members': 3},
    'dispfl': {'anneal_rounds': 5},
}
NETWORKS = {'relay_sgd': 'line', 'd2': 'ring', 'choco_sgd': 'ring', 'beer': 'ring'}
# These count as D-PSGD does, by the gradients of their training and what all gossip sends.
ALIKE = (
    *('dfedavg', 'dfedavgm', 'decavg', 'epidemic', 'dfedprox'),
    *('qg_dsgdm', 'd2', 'dsgt', 'dfed_admm', 'choco_sgd'),
)
COUNTED = [
    pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ())
    for name, method in IN_ROUNDS.items()
    if method.graphs == 'neighbours'
]


@pytest.mark.parametrize('name', COUNTED)
def test_counts_without_training_are_those_of_the_run(name):
    """Bits always; the operations of NTK methods, which depend on the training, from the run."""
    algorithm = make(name, MODEL, **OPTIONS.get(name, {}))
    family, clients = NETWORKS.get(name), network()
    graphs = topology.schedule(
        family or 'regular', CLIENTS, 3, seed=0, degree=4, static=family is not None
    )
    test = Holdout(clients.x[0, :5], clients.y[0, :5])
    rows = [row for row, *_ in simulate.run(algorithm, clients, graphs, test, jax.random.key(0))]
    totals = [row['operations_total'] for row in rows]
    if name in ('ntk_dfl', 'spark'):
        with pytest.raises(ValueError, match='depends on the training; replay a run that has'):
            timing.counted(algorithm, clients, graphs)
        counts = timing.counted(algorithm, clients, graphs, np.diff(totals, prepend=0))
    else:
        counts = timing.counted(algorithm, clients, graphs)
    np.testing.assert_allclose(counts.flops.sum(axis=1).cumsum(), totals, rtol=1e-6)
    megabytes = counts.bits.sum(axis=1).cumsum() / 8e6
    np.testing.assert_allclose(megabytes, [row['mbytes_total'] for row in rows], rtol=1e-12)
    assert (counts.flops > 0).all()


def flops(function, *arguments):
    return jax.jit(function).lower(*arguments).compile().cost_analysis()['flops']


WIDE = bind(MLP(10, (256,)), (784,))


def test_products_of_nested_functions_count_as_often_as_they_run():
    x = jnp.eye(4)
    assert flops_of(jax.jit(lambda x: x @ x), x) == 2 * 4**3
    thrice = jax.jit(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y @ y, x))
    assert flops_of(thrice, x) == 3 * 2 * 4**3


@pytest.mark.parametrize('settings', [{'local_epochs': 2}, {'local_steps': 7}, {'sam_radius': 0.1}])
def test_operations_of_training_are_those_of_the_compiled_minibatches(settings):
    settings = LocalTraining(lr=0.1, batch_size=16).replace(**settings)
    sizes = [40, 64, 5]
    found = training_flops(WIDE, settings)(jnp.array(sizes))

    def of_batch(size):
        x, y = jnp.zeros((size, 784)), jnp.zeros(size, jnp.int32)
        gradient = jax.grad(lambda w: batch_loss(WIDE, w, Batch(x, y, jnp.ones(size))))
        return flops(gradient, WIDE.shapes) * (2 if settings.sam_radius else 1)

    for count, n in zip(found, sizes, strict=True):
        batches = [16] * (n // 16) + [n % 16] * (n % 16 > 0)
        if settings.local_steps:
            batches = (batches * 7)[:7]
        else:
            batches *= settings.local_epochs
        expected = sum(of_batch(size) for size in batches)
        assert float(count) == pytest.approx(expected, rel=0.05)


def test_operations_of_an_ntk_update_are_those_of_its_compiled_parts():
    linearize, key, n = linearization(WIDE), jax.random.key(0), 96
    work = flops_of_update(WIDE, NtkUpdate(), lambda w, x: linearize(key, w, x), n)
    x, s = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((n, 784), (10, n)))

    def start(w, x):
        linearized = linearize(key, w, x)
        return linearized.outputs, linearized.kernel

    def candidate(w, x, s):
        moved = jax.tree.map(jnp.subtract, w, linearize(key, w, x).vjp(s))
        return WIDE.apply(moved, x)

    samples = jnp.int32(n)
    assert float(work.start.at(samples)) == pytest.approx(flops(start, WIDE.shapes, x), rel=0.05)
    product = flops(apply, jax.ShapeDtypeStruct((n, n), jnp.float32), s)
    assert float(work.product.at(samples)) == pytest.approx(product, rel=0.05)
    # The network is evaluated once for the transposed product
    forward = flops(lambda w, x: WIDE.apply(w, x), WIDE.shapes, x)
    tried = flops(candidate, WIDE.shapes, x, s) - forward
    assert float(work.candidate.at(samples)) == pytest.approx(tried, rel=0.05)
    total = work.total(jnp.array([n]), jnp.array([110]), jnp.array([4]))
    parts = flops(start, WIDE.shapes, x) + 110 * product + 4 * tried
    assert float(total[0]) == pytest.approx(parts, rel=0.05)


# XLA counts the body of a loop once, and what int8 sends is formed by 50 columns at a time.
@pytest.mark.parametrize(('exchange', 'dimension'), [('float32', 400), ('int8', 50)])
def test_operations_of_sparks_update_are_those_of_its_compiled_parts(exchange, dimension):
    settings, codec = Projection(projection_dim=dimension), EXCHANGES[exchange]
    random = projection(settings.projection, WIDE.shapes, dimension)
    linearize = projected(WIDE, random, codec=codec)
    key, n = jax.random.key(0), 960

    def linearized_at(w, x):
        return linearize(key, random.draw(key), w, x, jnp.ones(len(x), bool), len(x))

    def compiled(products, tried):
        def update(w, x, *totals):
            linearized = linearized_at(w, x)
            found = [apply(linearized.kernel, s) for s in totals[:products]]
            moved = [linearized.moved(s, 0.1) for s in totals[products:]]
            return linearized.outputs, found, moved

        x, s = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((n, 784), (10, n)))
        return flops(update, WIDE.shapes, x, *[s] * (products + tried))

    work, samples = flops_of_update(WIDE, NTK, linearized_at, n), jnp.int32(n)
    both = compiled(1, 1)
    counted = [float(part.at(samples)) for part in work[:3]]
    assert sum(counted) == pytest.approx(both, rel=0.05)
    assert counted[1] == pytest.approx(compiled(2, 1) - both, rel=0.05)
    if exchange == 'float32':  # at 50 dimensions a tenth of it is no product
        assert counted[2] == pytest.approx(compiled(1, 2) - both, rel=0.05)


def test_operations_of_mutual_learning_are_those_of_a_compiled_step():
    models, size = [bind(MLP(10, (hidden,)), (784,)) for hidden in (256, 128, 256)], 64

    def loss(weights, x, y):
        logits = [model.apply(w, x) for model, w in zip(models, weights, strict=True)]
        taught = [jax.lax.stop_gradient(jax.nn.softmax(z)) for z in logits]
        total = 0.0
        for n, z in enumerate(logits):
            log_p = jax.nn.log_softmax(z)
            total -= jnp.take_along_axis(log_p, y[:, None], 1).mean()
            total -= sum((p * log_p).sum(axis=1).mean() for p in taught[:n] + taught[n + 1 :])
        return total

    x = jax.ShapeDtypeStruct((size, 784), jnp.float32)
    y = jax.ShapeDtypeStruct((size,), jnp.int32)
    compiled = flops(jax.grad(loss), [model.shapes for model in models], x, y)
    counted = size * sum(gradient_flops(model) for model in models)
    assert counted == pytest.approx(compiled, rel=0.05)


def test_more_operations_than_an_int32_holds():
    """Gradients and teachers of a published network, on one sample of CIFAR-10."""
    model = bind(architecture('resnet-64-128-256-512', 10), (32, 32, 3))
    each = gradient_flops(model)
    assert each > 2**31
    training = LocalTraining(lr=0.1, batch_size=16)
    work = jax.jit(training_flops(model, training))(jnp.array([100, 3]))
    np.testing.assert_allclose(work, [100 * each, 3 * each], rtol=1e-6)
    graph = Graph(jnp.array([[0, 1, 2]]), jnp.ones((1, 3), bool), jnp.ones(1, bool))
    one_each = jnp.arange(3)
    there = {'resnet': Participants(jnp.ones(3, bool), one_each, one_each, one_each)}
    population = populate({'resnet': model}, ['resnet'] * 3)
    work = meeting_flops(population, Mutual(10, vanilla=True), there, graph, jnp.full(3, 7))
    forward = flops_of(model.apply, model.shapes, jnp.zeros((1, 32, 32, 3)))
    np.testing.assert_allclose(work, [10 * 7 * (each + 2 * forward), 0, 0], rtol=1e-6)


def test_a_search_of_masks_counts_its_gradient():
    model = bind(CNN3(10), (28, 28, 1))
    clients = Clients(
        jnp.zeros((2, 100, 28, 28, 1)), jnp.zeros((2, 100), int), jnp.ones((2, 100), bool)
    )
    graphs = topology.schedule('complete', 2, 1, seed=0)
    algorithm = make('dispfl', model, batch_size=100, local_epochs=1)
    counts = timing.counted(algorithm, clients, graphs)
    expected = gradient_flops(model) * (100 + 100)
    assert expected > 2**31
    np.testing.assert_allclose(counts.flops, expected, rtol=1e-6)


def test_energy():
    counts = Counts(np.full((2, 3), 1e6), np.full((2, 3), 1e9))
    assert timing.energy(counts, 1e-9, 1e-6).tolist() == pytest.approx([6.0, 12.0])


@pytest.mark.parametrize(
    'name', [name for name, method in IN_ROUNDS.items() if method.heterogeneous]
)
def test_the_work_of_meetings(name):
    """Local training of who trains, and mutual learning at aggregators, by hand."""
    narrow, wide = bind(MLP(10, (8,)), (20,)), bind(MLP(10, (30,)), (20,))
    alike = name in ('def_kt', 'dec_fedavg', 'dec_fedprox')
    models = {'narrow': narrow} if alike else {'narrow': narrow, 'wide': wide}
    owners = ['narrow' if alike or i % 2 else 'wide' for i in range(CLIENTS)]
    settings = LocalTraining(lr=0.01, batch_size=16, local_epochs=2)
    options = {'training': settings}
    if name == 'dfml':
        options |= {'rounds': 2, 'mutual_epochs': 3}
    if name == 'def_kt':
        options |= {'mutual_epochs': 3}
    algorithm = make(name, populate(models, owners), **options)
    pairs = IN_ROUNDS[name].graphs == 'pairs'
    graphs = topology.meetings(
        topology.schedule('complete', CLIENTS, 2, seed=0), 3, seed=0, aggregators=3 if pairs else 1
    )
    clients = network()
    counts = timing.counted(algorithm, clients, graphs)
    cost = {
        each: 2 * (20 * hidden * 2 + hidden * 10 * 3)
        for each, hidden in (('narrow', 8), ('wide', 30))
    }
    for r in range(2):
        expected = np.zeros(CLIENTS)
        for members, mask in zip(graphs.members[r], graphs.mask[r], strict=True):
            here = [int(m) for m, there in zip(members, mask, strict=True) if there]
            aggregator = int(members[0])
            for m in here:
                if name == 'dec_fml':  # the two models of a client, on its own data
                    sizes = sorted(models, key=lambda each: models[each].size)
                    meme = sizes[len(sizes) // 2]
                    expected[m] += 2 * SIZES[m] * (cost[owners[m]] + cost[meme])
                    continue
                if name != 'def_kt' or m != aggregator:
                    expected[m] += 2 * SIZES[m] * cost[owners[m]]
                if name in ('dfml', 'def_kt') and len(here) > (name == 'def_kt'):
                    expected[aggregator] += 3 * SIZES[aggregator] * cost[owners[m]]
        np.testing.assert_allclose(counts.flops[r], expected, rtol=1e-6)


def test_what_is_sent_may_follow_from_the_number_of_the_round():
    """As of methods that begin otherwise than they go on; counted in blocks."""
    plain = make('dpsgd', MODEL)

    def step(key, state, round):
        after, info = plain.step(key, state, round)
        once = round.exchange.ledger.sent['weights']
        round.exchange.count('weights', once.messages * (round.number % 3 - 1), once.bits)
        return after, info._replace(flops=info.flops * (round.number > 0))

    graphs = topology.schedule('ring', CLIENTS, timing.counts.BLOCK + 5, seed=0)
    counts = timing.counted(plain._replace(step=step), network(), graphs)
    always = timing.counted(plain, network(), graphs)
    rounds = np.arange(timing.counts.BLOCK + 5)[:, None]
    np.testing.assert_array_equal(counts.bits, always.bits * (rounds % 3))
    np.testing.assert_array_equal(counts.flops, always.flops * (rounds > 0))
    assert always.bits.all() and always.flops.all()
