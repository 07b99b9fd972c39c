"""DFML's baselines against the plain NumPy reference, in float64, and what their parts promise."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import reference_dfml
import reference_robust
from helpers import round_of, widen
from test_dfml import as_reference, batches_alone, batches_taught, largest_difference

from dfl_jax import Clients, algorithms, topology
from dfl_jax.algorithms.dec_partial import dec_partial
from dfl_jax.exchange import Attack, one_round, tamper_named
from dfl_jax.heterogeneous.population import assign_architectures, populate
from dfl_jax.heterogeneous.submodels import Axis, axes, channels, indices
from dfl_jax.method_settings import settings_of
from dfl_jax.methods import METHODS, make
from dfl_jax.models import MLP, ConvNet, PreActResNet, bind
from dfl_jax.topology import meetings

CLIENTS, FEATURES, CLASSES = 6, 5, 3
HIDDEN = {'linear': (), 'deep': (6, 3), 'wide': (6, 4), 'middle': (3, 3), 'narrow': (2, 2)}
WIDTHS = ('wide', 'narrow')  # sub-models of one
ROUNDS = 5
OPTIMISER = {'lr': 0.3, 'momentum': 0.9, 'weight_decay': 0.05}


def population(*names, clients=CLIENTS):
    models = {name: bind(MLP(CLASSES, HIDDEN[name]), (FEATURES,)) for name in names}
    return populate(models, assign_architectures(names, clients, [1] * len(names)))


def schedule(senders=3, aggregators=1):
    """Five rounds: a full one, one sender unheard, nobody active, one unheard, nobody heard."""
    graphs = topology.schedule('complete', CLIENTS, ROUNDS, seed=0)
    met = meetings(graphs, senders, seed=2, aggregators=aggregators)
    mask, active = met.mask.copy(), met.active.copy()
    mask[1, 0, -1] = mask[3, -1, 1] = False
    mask[2, 0], active[2, 0] = False, False
    mask[4, 0, 1:] = False
    return met._replace(mask=mask, active=active)


def positions_of(graphs, r):
    """The participants of every meeting of a round, the aggregators first."""
    return [
        [int(n) for n in members[mask]]
        for members, mask, active in zip(
            graphs.members[r], graphs.mask[r], graphs.active[r], strict=True
        )
        if active
    ]


COMPILED = {}  # one round of an algorithm, by its step


def stepping(algorithm):
    """One round of an algorithm, compiled once for all tests."""
    compiled = jax.jit(functools.partial(one_round, algorithm))
    return COMPILED.setdefault(algorithm.step, compiled)


def started(algorithm, clients):
    """A state of random weights in double precision; init itself would be compiled."""
    rng = np.random.default_rng(1)

    def leaf(of):
        if jnp.issubdtype(of.dtype, jnp.integer):
            return jnp.zeros(of.shape, of.dtype)
        return jnp.asarray(rng.normal(size=of.shape) / np.sqrt(FEATURES))

    return jax.tree.map(leaf, jax.eval_shape(algorithm.init, jax.random.key(0), clients))


def check_absentees(people, before, after, present):
    """Clients that take no part keep their weights to the bit."""
    for n in set(range(people.size)) - set(present):
        assert (reference.flatten(before[n]) == reference.flatten(after[n])).all()


def check_losses(losses, expected):
    """Those of the clients that trained, {client: loss}; the others' is the mean of them."""
    losses = np.asarray(losses)
    assert losses.shape == (CLIENTS,) and np.isfinite(losses).all()
    mean = np.mean(list(expected.values())) if expected else 0.0
    values = [expected.get(n, mean) for n in range(CLIENTS)]
    np.testing.assert_allclose(losses, values, rtol=0, atol=1e-10)


def first_losses(models, data, who, how='wsm'):
    """The losses of one step on all samples, those of the models as they were."""
    found = {}
    for n in who:
        x, y = data[n]
        logits = reference.mlp(models[n], x)
        found[n] = reference_dfml.supervision(logits, y, y.mean(axis=0), how)[0]
    return found


def everybody(positions):
    return positions


def compare(
    network, people, algorithm, graphs, round_, size, *, trains=everybody, acts=everybody, **rest
):
    """Rounds of the algorithm against `round_(models, data, positions, batches=, r=, key=, ...)`.

    trains: who of a meeting trains alone; acts: whose
    model changes.
    """
    data, clients, _ = network
    state, step = started(algorithm, clients), stepping(algorithm)
    models = as_reference(people, state.params)
    for r in range(ROUNDS):
        key, before = jax.random.key(10 + r), as_reference(people, state.params)
        state, info = step(key, state, r, round_of(graphs, r), clients)
        positions = positions_of(graphs, r)
        trained = [n for meeting in positions for n in trains(meeting)]
        if size >= clients.mask.shape[1]:
            how = rest.get('how', 'wsm')
            check_losses(info.loss, first_losses(models, data, trained, how))
        alone = batches_alone(key, clients, size)
        models = round_(models, data, positions, batches=alone, r=r, key=key, **rest)
        ours = as_reference(people, state.params)
        assert largest_difference(ours, models) < 1e-10
        check_absentees(people, before, ours, [n for meeting in positions for n in acts(meeting)])
    return state


# ------------------------------------------------------------------- averages of an architecture


def fedavg(models, data, positions, *, r, key, **options):
    return reference_dfml.fedavg_round(models, data, positions, **options)


def test_dec_fedavg_equals_the_reference(network):
    people = population('deep', 'linear')
    algorithm = make('dec_fedavg', people, batch_size=3, init='independent', chunk=1, **OPTIMISER)
    graphs = schedule(senders=4)
    compare(network, people, algorithm, graphs, fedavg, 3, how='wsm', **OPTIMISER)


def test_dec_fedavg_with_several_aggregators_equals_the_reference(network):
    people = population('deep', 'linear')
    algorithm = make(
        'dec_fedavg', people, supervision='ace', init='independent', chunk=1, **OPTIMISER
    )
    graphs = schedule(senders=4, aggregators=2)
    compare(network, people, algorithm, graphs, fedavg, 64, how='ace', **OPTIMISER)


@pytest.mark.parametrize(
    ('attack', 'lie'),
    [
        ('same_value:0.2', lambda v, lies, w, own: np.full_like(own, 0.2)),
        ('alie:1.5', lambda v, lies, w, own: reference_robust.alie(v, lies, 1.5)),
        (
            'dissensus:0.5',
            lambda v, lies, w, own: reference_robust.dissensus(v, lies, w, 0.5, own),
        ),
    ],
)
def test_liars_at_meetings_are_those_of_the_reference(network, attack, lie):
    """Of senders and of aggregators, of architectures that the aggregator has and has not."""
    people, graphs = population('deep', 'linear'), schedule(senders=4, aggregators=2)
    liars = reference_robust.Liars(np.isin(np.arange(CLIENTS), [1, 2, 4]), lie)
    told = Attack(liars.attackers, tamper_named(attack))
    algorithm = make('dec_fedavg', people, attack=told, chunk=1, **OPTIMISER)
    compare(network, people, algorithm, graphs, fedavg, 64, how='wsm', liars=liars, **OPTIMISER)


def test_lies_at_meetings_cost_what_was_learnt_and_no_traffic(network):
    _, clients, _ = network
    clients = clients._replace(y=clients.x[..., :CLASSES].argmax(axis=-1))
    graphs = meetings(topology.schedule('complete', CLIENTS, ROUNDS, seed=0), CLIENTS - 1, seed=2)

    def last(attack=None):
        options = {'supervision': 'ce', 'lr': 0.3, 'attack': attack, 'chunk': 1}
        algorithm = make('dec_fedavg', population('linear'), **options)
        state, step = started(algorithm, clients), stepping(algorithm)
        for r in range(ROUNDS):
            state, info = step(jax.random.key(r), state, r, round_of(graphs, r), clients)
        return info

    told = Attack(np.arange(CLIENTS) < 2, tamper_named('sign_flip:5'))
    plain, attacked = last(), last(told)
    assert attacked.loss[2:].mean() > 1.25 * plain.loss[2:].mean()
    jax.tree.map(np.testing.assert_array_equal, attacked.sent, plain.sent)


def test_a_server_gives_everybody_the_average(network):
    """All clients of an architecture go on with it, present or not."""
    data, clients, _ = network
    people, graphs = population('deep', 'linear'), schedule(senders=3)
    algorithm = make('dec_fedavg', people, server=True, chunk=1, **OPTIMISER)
    state, step = started(algorithm, clients), stepping(algorithm)
    models, changed = as_reference(people, state.params), []
    for r in range(ROUNDS):
        key, before = jax.random.key(r), as_reference(people, state.params)
        state, _ = step(key, state, r, round_of(graphs, r), clients)
        alone, positions = batches_alone(key, clients, 64), positions_of(graphs, r)
        models = reference_dfml.fedavg_round(
            models, data, positions, batches=alone, server=True, how='wsm', **OPTIMISER
        )
        ours = as_reference(people, state.params)
        assert largest_difference(ours, models) < 1e-10
        met = {n % 2 for meeting in positions for n in meeting}  # the architectures
        for kind in (0, 1):
            alike = np.stack([reference.flatten(ours[n]) for n in range(kind, CLIENTS, 2)])
            assert (alike == alike[0]).all()
        check_absentees(people, before, ours, [n for n in range(CLIENTS) if n % 2 in met])
        changed.append(met)
    assert {0, 1} in changed and set() in changed and ({0} in changed or {1} in changed)


def test_dec_fedprox_equals_the_reference(network):
    people = population('deep', 'linear')
    settings = {'proximal': 2.0, **OPTIMISER}
    algorithm = make('dec_fedprox', people, batch_size=2, chunk=1, **settings)
    graphs = schedule(senders=4)
    compare(network, people, algorithm, graphs, fedavg, 2, how='wsm', **settings)


def test_dec_fedprox_is_dec_fedavg_with_a_proximal_term():
    assert algorithms.dec_fedprox.func is algorithms.dec_fedavg
    for name in ('dec_fedprox', 'dec_fedavg'):
        assert METHODS[name].factory.__wrapped__ is algorithms.dec_fedavg
    assert settings_of(METHODS['dec_fedprox'].factory)['proximal'] == 0.5


def test_one_architecture_and_everybody_is_gossip_on_the_complete_graph(network):
    _, clients, _ = network
    people = population('deep')
    settings = {'momentum': 0.9, 'weight_decay': 0.1, 'lr': 0.2, 'batch_size': 64}
    settings |= {'local_epochs': 3, 'chunk': 1}
    ours = make('dec_fedavg', people, supervision='ce', init='independent', **settings)
    theirs = make('dfedavg', people.models['deep'], mixing='size', **settings)
    complete = topology.schedule('complete', CLIENTS, 1, seed=0)
    met = meetings(complete, CLIENTS - 1, seed=0)
    state = started(ours, clients)
    start = widen(jax.jit(theirs.init)(jax.random.key(0), clients))
    start = start._replace(params=state.params['deep'])
    key = jax.random.key(3)
    state, info = stepping(ours)(key, state, 0, round_of(met, 0), clients)
    expected, gossip = stepping(theirs)(key, start, 0, round_of(complete, 0), clients)
    close = functools.partial(np.testing.assert_allclose, rtol=0, atol=1e-10)
    jax.tree.map(close, state.params['deep'], expected.params)
    close(info.loss, gossip.loss)


# ------------------------------------------------------------------------------- partial training


def cyclic(r, size, total):
    """Eq. (9) as it is written, in the order of its sets."""
    start = r % total
    if start + size <= total:
        return list(range(start, start + size))
    return [*range(start, total), *range(start + size - total)]


def held_by(held, r, key):
    """held(n, d, J) of `reference_dfml.partial_round`."""
    if held == 'random':
        _, k_combine = jax.random.split(key)

        def drawn(n, size, total):
            k_client = jax.random.fold_in(k_combine, n)
            found = channels('random', size, jnp.int32(total), 6, jnp.int32(r), k_client)
            return [int(j) for j in found]

        return drawn
    return {
        'first': lambda n, size, total: list(range(size)),
        'rolled': lambda n, size, total: cyclic(r, size, total),
        'sorted': lambda n, size, total: sorted(cyclic(r, size, total)),
    }[held]


def partial(models, data, positions, *, r, key, held, **options):
    return reference_dfml.partial_round(models, data, positions, held_by(held, r, key), **options)


@functools.cache
def parts(held):
    return make(
        dec_partial, population(*WIDTHS), channels=held, init='independent', chunk=1, **OPTIMISER
    )


@pytest.mark.parametrize(
    'held',
    ['first', 'random', *(pytest.param(h, marks=pytest.mark.slow) for h in ('rolled', 'sorted'))],
)
def test_partial_training_equals_the_reference(network, held):
    people, graphs = population(*WIDTHS), schedule(senders=4, aggregators=2)
    compare(network, people, parts(held), graphs, partial, 64, held=held, how='wsm', **OPTIMISER)


def test_the_names_of_partial_training():
    for name, held in (('heterofl', 'first'), ('fedrolex', 'rolled'), ('fed_dropout', 'random')):
        method = getattr(algorithms, f'dec_{name}')
        assert method.func is dec_partial and method.keywords == {'channels': held}
        made = METHODS[f'dec_{name}'].factory
        assert made.__wrapped__ is dec_partial and settings_of(made)['channels'] == held
    with pytest.raises(ValueError, match="unknown channels 'last'; choose one of first, rolled"):
        make(dec_partial, population(*WIDTHS), channels='last')


def test_models_that_roll_alike_are_those_that_do_not_roll(network):
    _, clients, _ = network
    people, graphs = population(*WIDTHS), schedule(senders=4, aggregators=2)
    found = {}
    for held in ('first', 'rolled', 'sorted'):
        step, state = stepping(parts(held)), started(parts('first'), clients)
        for r in range(2):
            graph = round_of(graphs, r)
            state, _ = step(jax.random.key(r), state, r + 1, graph, clients)  # in 0 all are alike
        found[held] = as_reference(people, state.params)
    assert largest_difference(found['first'], found['rolled']) < 1e-12
    assert largest_difference(found['first'], found['sorted']) > 1e-3


def test_the_channels_of_three_rounds():
    def held(rule, size, total, t):
        key = jax.random.key(0)
        return list(map(int, channels(rule, size, jnp.int32(total), 8, jnp.int32(t), key)))

    for t in (0, 1, 4):
        assert held('first', 3, 5, t) == [0, 1, 2]
    assert [held('rolled', 3, 5, t) for t in (0, 1, 4)] == [[0, 1, 2], [1, 2, 3], [4, 0, 1]]
    assert [held('sorted', 3, 5, t) for t in (0, 1, 4)] == [[0, 1, 2], [1, 2, 3], [0, 1, 4]]
    assert held('rolled', 3, 5, 8) == [3, 4, 0]
    assert held('sorted', 5, 5, 7) == [0, 1, 2, 3, 4]


def test_the_places_of_channels_in_an_axis():
    key, t = jax.random.key(0), jnp.int32(2)

    def places(axis, total):
        return list(map(int, indices('rolled', axis, jnp.int32(total), t, key)))

    assert places(Axis(size=2, widest=4, narrowest=2, pixels=1), 3) == [2, 0]
    assert places(Axis(size=4, widest=8, narrowest=4, pixels=2), 6) == [4, 5, 0, 1]
    assert places(Axis(size=3, widest=3, narrowest=3, pixels=1), 3) == [0, 1, 2], 'held whole'


def test_drawn_channels():
    def drawn(size, total, seed, widest=8):
        key = jax.random.key(seed)
        return np.asarray(channels('random', size, jnp.int32(total), widest, jnp.int32(0), key))

    for seed in range(20):
        found = drawn(3, 6, seed)
        assert found.shape == (3,) and found.dtype == np.int32
        assert (np.diff(found) > 0).all() and found[0] >= 0 and found[-1] < 6
        # Layers of equal width share their draw: a smaller part lies within a larger one.
        assert set(drawn(2, 6, seed)) < set(found)
        assert (drawn(6, 6, seed) == np.arange(6)).all(), 'the largest holds everything'
    draws = np.array([drawn(3, 6, seed) for seed in range(300)])
    assert len(np.unique(draws, axis=0)) == 20  # 6 choose 3
    counts = np.bincount(draws.ravel(), minlength=6)
    np.testing.assert_allclose(counts, 150, atol=5 * np.sqrt(75))
    assert (drawn(3, 6, 0) == drawn(3, 6, 0)).all()


@pytest.mark.parametrize('held', ['first', 'random'])
def test_layers_of_equal_width_hold_the_same_channels(held):
    models = {f'm{w}': bind(MLP(CLASSES, (w, w)), (FEATURES,)) for w in (6, 2)}
    people = populate(models, ['m6', 'm2'])
    key, t, names = jax.random.key(4), jnp.int32(0), ('bias', 'kernel')
    leaves = axes(people)['m2']  # of Dense_0, Dense_1 and Dense_2, biases first
    assert len(leaves) == 3 * len(names)
    hidden = [leaves[0][0], leaves[1][1], leaves[2][0], leaves[3][0], leaves[3][1], leaves[5][0]]
    assert {(axis.size, axis.widest, axis.narrowest) for axis in hidden} == {(2, 6, 2)}
    found = [list(map(int, indices(held, axis, jnp.int32(6), t, key))) for axis in hidden]
    assert found == [found[0]] * len(hidden)
    whole = [leaves[1][0], leaves[4][0], leaves[5][1]]  # features and classes
    assert [len(indices(held, a, jnp.int32(a.size), t, key)) for a in whole] == [5, 3, 3]


def test_heterofl_of_one_architecture_is_fedavg(network):
    """With equally many samples each, which Eq. (5) weighs by and Eq. (6) does not."""
    _, clients, _ = network
    equal = clients._replace(mask=jnp.zeros_like(clients.mask).at[:, :3].set(True))
    people, graphs, found = population('deep'), schedule(), {}
    for name in ('dec_heterofl', 'dec_fedavg'):
        algorithm = make(name, people, init='independent', chunk=1, **OPTIMISER)
        state, step = started(algorithm, equal), stepping(algorithm)
        for r in range(ROUNDS):
            state, info = step(jax.random.key(r), state, r, round_of(graphs, r), equal)
            assert np.isfinite(info.loss).all()
        found[name] = as_reference(people, state.params)
    assert largest_difference(*found.values()) < 1e-12


@pytest.mark.parametrize(
    'modules',
    [
        {'two': MLP(CLASSES, (4, 4)), 'one': MLP(CLASSES, (4,))},
        {'cnn': ConvNet(CLASSES, (4,)), 'mlp': MLP(CLASSES, (4,))},
        {'resnet': PreActResNet(CLASSES, (4, 8)), 'cnn': ConvNet(CLASSES, (4, 8))},
    ],
    ids=' '.join,
)
def test_architectures_that_are_no_submodels(modules):
    models = {name: bind(module, (4, 4, 1)) for name, module in modules.items()}
    people = populate(models, list(models))
    for name in ('dec_heterofl', 'dec_fedrolex', 'dec_fed_dropout'):
        with pytest.raises(ValueError, match='differ in layers, not in width alone'):
            make(name, people)


def test_the_head_of_a_flattened_map_is_shared_channel_by_channel(x64):
    """Two pixels by two of every channel: a sub-model of 2 channels holds the head's first rows."""
    models = {f'c{c}': bind(ConvNet(CLASSES, (c,)), (4, 4, 1)) for c in (4, 2)}
    people = populate(models, ['c4', 'c2', 'c4', 'c2'])
    rng = np.random.default_rng(0)
    clients = simple_clients(rng.normal(size=(4, 3, 4, 4, 1)), rng.integers(CLASSES, size=(4, 3)))
    complete = topology.schedule('complete', 4, 1, seed=0)
    graph = round_of(meetings(complete, 2, seed=1), 0)
    positions = [int(n) for n in graph.members[0]]
    assert sorted(n % 2 for n in positions) in ([0, 0, 1], [0, 1, 1])
    # With a rate of next to nothing the models meet as they are.
    algorithm = make(
        'dec_heterofl', people, lr=1e-300, weight_decay=0.0, init='independent', chunk=1
    )
    state = started(algorithm, clients)
    new, _ = stepping(algorithm)(jax.random.key(1), state, 0, graph, clients)

    def leaf_of(state, n, layer, part):
        return np.asarray(state.params[f'c{4 - n % 2 * 2}'][layer][part][n // 2])

    for layer, part, cut_out in [
        ('Dense_0', 'kernel', lambda w: w[:8]),  # 2 channels of 2x2 pixels
        ('Dense_0', 'bias', lambda w: w),
        ('Conv_0', 'kernel', lambda w: w[..., :2]),
        ('Conv_0', 'bias', lambda w: w[:2]),
        ('LayerNorm_0', 'scale', lambda w: w[:2]),
    ]:
        before = {n: leaf_of(state, n, layer, part) for n in range(4)}
        shared = np.mean([cut_out(before[n]) for n in positions], axis=0)
        rest = np.mean([before[n] for n in positions if n % 2 == 0], axis=0)
        for n in range(4):
            after = leaf_of(new, n, layer, part)
            if n not in positions:
                assert (after == before[n]).all()
                continue
            np.testing.assert_allclose(cut_out(after), shared, rtol=0, atol=1e-12)
            if n % 2 == 0 and shared.shape != after.shape:
                outside = after != np.inf
                outside[np.isin(before[n], cut_out(before[n]))] = False
                np.testing.assert_allclose(after[outside], rest[outside], rtol=0, atol=1e-12)
    head = leaf_of(new, 0, 'Dense_0', 'kernel')
    assert head.shape == (16, CLASSES)


def simple_clients(x, y):
    return Clients(jnp.asarray(x), jnp.asarray(y, jnp.int32), jnp.ones(y.shape, bool))


# ------------------------------------------------------------------------------ mutual learning


def test_def_kt_equals_the_reference(network):
    _, clients, _ = network
    people, graphs = population('deep'), schedule(senders=3, aggregators=3)
    algorithm = make(
        'def_kt', people, mutual_epochs=2, batch_size=64, init='independent', chunk=1, **OPTIMISER
    )

    def transfer(models, data, positions, *, r, key, **options):
        aggregators = graphs.members[r, :, 0]
        taught = batches_taught(jax.random.split(key)[1], clients, aggregators, 64, epochs=2)
        new = reference_dfml.def_kt_round(models, data, positions, mutual_batches=taught, **options)
        for aggregator, *senders in positions:
            if not senders:
                assert new[aggregator] is models[aggregator]
            for n in senders:
                alone = reference_dfml.train_alone(
                    models[n], data[n], options['batches'][n], how='wsm', **OPTIMISER
                )
                assert largest_difference([new[n]], [alone]) == 0
        return new

    compare(
        network,
        people,
        algorithm,
        graphs,
        transfer,
        64,
        trains=lambda positions: positions[1:],
        acts=lambda positions: positions if len(positions) > 1 else [],
        how='wsm',
        **OPTIMISER,
    )


def test_def_kt_refuses_what_it_cannot_replace(network):
    _, clients, _ = network
    with pytest.raises(ValueError, match='same architecture, not deep, linear'):
        make('def_kt', population('deep', 'linear'))
    with pytest.raises(ValueError, match='mutual_epochs has to be at least 1, got 0'):
        make('def_kt', population('deep'), mutual_epochs=0)
    algorithm = make('def_kt', population('linear'))
    state = jax.eval_shape(algorithm.init, jax.random.key(0), clients)
    graph = round_of(schedule(senders=3), 0)
    with pytest.raises(ValueError, match='meets in pairs, got 3 senders an aggregator'):
        jax.eval_shape(stepping(algorithm), jax.random.key(0), state, 0, graph, clients)


def test_dec_fml_equals_the_reference(network):
    data, clients, _ = network
    names = ('wide', 'narrow')
    people, graphs = population(*names), schedule(senders=4)
    settings = {'batch_size': 4, 'local_epochs': 2, 'init': 'independent', 'chunk': 1, **OPTIMISER}
    algorithm = make('dec_fml', people, meme='narrow', alpha=0.3, **settings)
    state, step = started(algorithm, clients), stepping(algorithm)
    memes_alone = populate({'meme': people.models['narrow']}, ['meme'] * CLIENTS)

    def both(state):
        own = as_reference(people, {name: state.params[name] for name in names})
        return own, as_reference(memes_alone, {'meme': state.params['meme']})

    models, memes = both(state)
    for r in range(ROUNDS):
        key, before = jax.random.key(20 + r), both(state)
        positions = positions_of(graphs, r)
        present = {n for meeting in positions for n in meeting}
        batches = batches_taught(key, clients, graphs.members[r].ravel(), 4, epochs=2)
        state, info = step(key, state, r, round_of(graphs, r), clients)
        models, memes = reference_dfml.fml_round(
            models, memes, data, positions, batches=batches, alpha=0.3, how='wsm', **OPTIMISER
        )
        ours = both(state)
        assert largest_difference(ours[0], models) < 1e-10
        assert largest_difference(ours[1], memes) < 1e-10
        for kind in (0, 1):
            check_absentees(people, before[kind], ours[kind], present)
        for name in ('loss', 'meme_loss'):
            losses = np.asarray(info.loss if name == 'loss' else info.metrics[name].values)
            assert np.isfinite(losses).all()
            absent = losses[sorted(set(range(CLIENTS)) - present)]
            mean = losses[sorted(present)].mean() if present else 0.0
            np.testing.assert_allclose(absent, mean, rtol=0, atol=1e-12)
    x = np.asarray(data[0][0])
    logits = algorithm.predict(state, jnp.asarray(x))
    assert {'client', 'consensus', 'meme'} <= set(logits)
    for n in range(CLIENTS):
        np.testing.assert_allclose(logits['meme'][n], reference.mlp(memes[n], x), atol=1e-10)
        np.testing.assert_allclose(logits['client'][n], reference.mlp(models[n], x), atol=1e-10)


def test_the_meme_is_the_median_in_size(network):
    algorithm = make('dec_fml', population('wide', 'middle', 'narrow'))
    state = jax.eval_shape(algorithm.init, jax.random.key(0), network[1])
    assert state.params['meme']['Dense_0']['kernel'].shape == (CLIENTS, FEATURES, 3)


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'meme': 'deep'}, "unknown meme 'deep'"),
        ({'alpha': 1.5}, r'alpha has to lie in \[0, 1\], got 1.5'),
        ({'init': 'zero'}, "unknown init 'zero'"),
        ({'supervision': 'mse'}, "unknown supervision 'mse'"),
    ],
    ids=str,
)
def test_bad_settings_of_dec_fml(options, message):
    with pytest.raises(ValueError, match=message):
        make('dec_fml', population(*WIDTHS), **options)
