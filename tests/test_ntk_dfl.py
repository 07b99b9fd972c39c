"""NTK-DFL against the plain NumPy reference, in float64."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from helpers import (
    as_reference,
    assert_close,
    assert_equals_reference,
    compiled,
    flipping,
    round_of,
    widen,
)
from helpers import rounds_of as all_rounds_of

from dfl_jax import Clients, Graph, topology
from dfl_jax.exchange import one_round
from dfl_jax.methods import make
from dfl_jax.models import MLP, SmallCNN, bind
from dfl_jax.ntk import compressed
from dfl_jax.ntk.aggregator_data import at_least_width, draw_batches, widths_of
from dfl_jax.ntk.kernels import members_kernel_fn
from experiments.ntk_dfl.authors_logs.in_turn import ntk_dfl_in_turn

CLIENTS, FEATURES, CLASSES = 6, 5, 3
TIMESTEPS = (3, 10, 25)
MODEL = bind(MLP(CLASSES, (8,)), (FEATURES,))


draw = jax.jit(draw_batches, static_argnums=(2, 3))


def as_indices(key, clients, batches, share):
    """What `draw_batches` draws, as index arrays: for each client one a batch."""
    named = clients._replace(y=jnp.broadcast_to(jnp.arange(clients.y.shape[1]), clients.y.shape))
    drawn = jax.device_get(draw(key, named, batches, share))
    return [
        [rows[valid] for rows, valid in zip(*client, strict=True)]
        for client in zip(drawn.y, drawn.mask, strict=True)
    ]


def run_both(
    network,
    init='independent',
    hidden=(8,),
    lr=0.05,
    lr_decay=0.2,
    batches=1,
    subsampling=1,
    flipped=None,
    **settings,
):
    data, clients, graphs = network
    attack, factor = flipping(flipped)
    options = {
        'loss': 'cross_entropy',
        'evolution': 'euler',
        'selection': 'network',
        'mixing': 'size',
        'averaging': True,
    } | settings
    model = bind(MLP(CLASSES, hidden), (FEATURES,))
    method = compiled(
        'ntk_dfl',
        model,
        init=init,
        lr=lr,
        lr_decay=lr_decay,
        timesteps=TIMESTEPS,
        batches=batches,
        subsampling=subsampling,
        attack=attack,
        **options,
    )
    states, infos = all_rounds_of(method, clients, graphs)
    params = [as_reference(states[0].params, i) for i in range(CLIENTS)]
    for r in range(len(infos)):
        neighbours = reference.neighbours_of(graphs.members[r], graphs.mask[r])
        params, chosen, losses = reference.ntk_dfl_round(
            params,
            data,
            neighbours,
            lr=lr * np.exp(-lr_decay * r),
            timesteps=TIMESTEPS,
            batches=as_indices(
                jax.random.split(jax.random.key(r))[0], clients, batches, Fraction(1, subsampling)
            ),
            factor=factor,
            **options,
        )
    return states[-1], infos[-1], params, chosen, losses


@pytest.mark.parametrize(
    'settings',
    [
        {},
        {'mixing': 'uniform', 'selection': 'linearized', 'hidden': (6, 4)},
        {'averaging': False, 'hidden': (), 'init': 'same'},
        pytest.param({'loss': 'mse'}, marks=pytest.mark.slow),  # the next has it too
        {'loss': 'mse', 'evolution': 'eigh', 'subsampling': 3},
        {'jacobian_weights': 'neighbours'},
        pytest.param(
            {'jacobian_weights': 'neighbours', 'averaging': False, 'hidden': (6, 4)},
            marks=pytest.mark.slow,
        ),
        {'batches': 3, 'subsampling': 2, 'averaging': False},
        pytest.param({'bits': 4, 'hidden': (6, 4)}, marks=pytest.mark.slow),
        {'sparsity': 0.25, 'bits': 6, 'batches': 2, 'subsampling': 2},
        {'flipped': 2.0, 'batches': 2},
    ],
    ids=str,
)
def test_three_rounds_equal_the_reference(network, settings):
    state, info, params, chosen, losses = run_both(network, **settings)
    assert_equals_reference(state.params, params)
    np.testing.assert_array_equal(info.metrics['timestep'].values, chosen)
    np.testing.assert_allclose(info.loss, losses, rtol=1e-10)


def rounds_of(clients, graphs, model=MODEL, **settings):
    """The state after the schedule, and the infos of its rounds."""
    states, infos = all_rounds_of(compiled('ntk_dfl', model, **settings), clients, graphs)
    return states[-1], infos


# ------------------------------------------------------------------- batches and parts of the data


@pytest.mark.parametrize(('batches', 'divisor'), [(1, 2), (3, 1), (5, 3), (9, 8)])
def test_batches_deal_out_a_random_part_of_the_data(network, batches, divisor):
    data, clients, _ = network
    drawn = as_indices(jax.random.key(1), clients, batches, Fraction(1, divisor))
    again = as_indices(jax.random.key(2), clients, batches, Fraction(1, divisor))
    for rows, other, (x, _) in zip(drawn, again, data, strict=True):
        sizes = [len(part) for part in rows]
        chosen = np.concatenate(rows)
        assert sum(sizes) == -(-len(x) // divisor) == len(set(chosen))
        assert max(sizes) - min(sizes) <= 1
        assert set(chosen) <= set(range(len(x)))
        if divisor == 1:
            assert set(chosen) == set(np.concatenate(other))
    assert any(list(a[0]) != list(b[0]) for a, b in zip(drawn, again, strict=True))


def test_one_batch_of_all_data_is_the_data_itself(network):
    _, clients, _ = network
    drawn = draw_batches(jax.random.key(0), clients, 1, Fraction(1))
    assert drawn.arrival is None
    for ours, theirs in zip(drawn[:3], clients[:3], strict=True):
        np.testing.assert_array_equal(ours[:, 0], theirs)


def test_padding_never_enters_a_batch(network):
    """Not with compressed Jacobians of drawn batches either."""
    _, clients, graphs = network
    padding = ~clients.mask
    garbage = Clients(
        jnp.where(padding[..., None], jnp.nan, clients.x),
        jnp.where(padding, 77, clients.y),
        clients.mask,
    )
    settings = {'timesteps': (3,), 'batches': 2, 'subsampling': 2}
    settings |= {'sparsity': 0.5, 'bits': 4, 'rounding': 'stochastic'}
    clean, _ = rounds_of(clients, graphs, **settings)
    dirty, _ = rounds_of(garbage, graphs, **settings)
    assert_close(clean, dirty, 0)


# ----------------------------------------------------------------------- weights of one's own


@pytest.mark.parametrize('averaging', [True, False])
def test_jacobians_at_weights_of_ones_own_need_no_weights_of_the_aggregator(network, averaging):
    """With equal weights everywhere the two readings are one; what is sent differs."""
    _, clients, graphs = network
    settings = {'timesteps': (3, 9), 'averaging': averaging}
    _, aggregator_infos = rounds_of(clients, graphs, **settings)
    _, own_infos = rounds_of(clients, graphs, **settings, jacobian_weights='neighbours')
    np.testing.assert_allclose(aggregator_infos[0].loss, own_infos[0].loss, rtol=1e-10)
    assert abs(aggregator_infos[-1].loss - own_infos[-1].loss).max() > 1e-4
    for mine, theirs in zip(own_infos, aggregator_infos, strict=True):
        mine, theirs = ({k: v.messages for k, v in info.sent.items()} for info in (mine, theirs))
        np.testing.assert_array_equal(mine['jacobian_rows'], theirs['jacobian_rows'])
        assert mine['weights'].sum() == (theirs['weights'].sum() // 2) * averaging


@pytest.mark.slow
def test_the_kernel_of_members_is_that_of_their_jacobians(x64):
    """Also of convolutions, against one network at a time and all pairs of rows."""
    for model in (
        bind(MLP(CLASSES, (8, 4)), (FEATURES,)),
        bind(MLP(CLASSES, ()), (FEATURES,)),
        bind(SmallCNN(CLASSES), (4, 4, 1)),
    ):
        keys = jax.random.split(jax.random.key(0), 3)
        params = jax.vmap(model.init)(keys)
        params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
        x = jax.random.normal(jax.random.key(1), (3, 2, *model.input_shape), jnp.float64)

        def rows(w, x, model=model):  # [N, C, P]
            jacobian = jax.jacrev(lambda w: model.apply(w, x))(w)
            flat = [leaf.reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(jacobian)]
            return jnp.concatenate(flat, axis=2)

        explicit = jax.vmap(rows)(params, x).reshape(6, CLASSES, -1)
        expected = jnp.einsum('mcp,ncp->mn', explicit, explicit) / CLASSES
        np.testing.assert_allclose(members_kernel_fn(model)(params, x), expected, rtol=1e-10)


# ------------------------------------------------------------------------- compressed Jacobians


@pytest.mark.slow
def test_rows_kept_or_computed_again_are_the_same(network, monkeypatch):
    _, clients, graphs = network
    settings = {'timesteps': (3, 9), 'sparsity': 0.5, 'bits': 3}
    for rounding in ('nearest', 'stochastic'):
        kept, _ = rounds_of(*network[1:], **settings, rounding=rounding)
        with monkeypatch.context() as patch:
            patch.setattr(compressed, 'STORED', 0)
            again, _ = rounds_of(clients, graphs, **settings, rounding=rounding)
        assert_close(kept, again)


def test_a_codec_that_loses_nothing_changes_nothing(network):
    exact, _ = rounds_of(*network[1:], timesteps=(3, 9))
    rows, _ = rounds_of(*network[1:], timesteps=(3, 9), sparsity=0.0)
    coarse, _ = rounds_of(*network[1:], timesteps=(3, 9), sparsity=0.9)
    assert_close(exact.params, rows.params)
    lost = jax.tree.leaves(jax.tree.map(lambda a, b: abs(a - b).max(), exact, coarse))
    assert max(lost) > 1e-4


def test_a_compressed_row_costs_what_its_codec_says(network):
    _, clients, graphs = network
    short = jax.tree.map(lambda a: a[:1], graphs)

    def row_bits(**settings):
        _, (info,) = rounds_of(clients, short, timesteps=(3,), **settings)
        return info.sent['jacobian_rows'].bits

    rows = row_bits(sparsity=0.5, bits=6)
    tensors = (FEATURES * 8, 8, 8 * CLASSES, CLASSES)  # half of each in 6 bits, bitmap, step
    assert rows == sum(-(-size // 2) * 6 + size + 32 for size in tensors)
    assert row_bits() == 32 * sum(tensors)


# ------------------------------------------------------------------------------------- clusters


@pytest.mark.parametrize('lost', [0.0, 0.4])
@pytest.mark.parametrize('settings', [{'batches': 2, 'subsampling': 2}], ids=str)
def test_a_cluster_is_the_update_of_each_of_its_clients(network, lost, settings):
    """One aggregator a cluster and one a client give the same models, at a fraction of the
    messages."""
    data, clients, _ = network
    graphs = topology.schedule('clustered', CLIENTS, 4, seed=2, degree=2)
    graphs = topology.drop_clients(graphs, lost, seed=1)
    shared = topology.by_cluster(graphs)
    assert shared.members.shape[1] == 2
    settings = {'timesteps': (3, 9), 'mixing': 'uniform', 'init': 'independent'} | settings
    alone, _ = rounds_of(clients, graphs, **settings)
    together, infos = rounds_of(clients, shared, **settings, by_cluster=True)
    assert_close(alone.params, together.params)

    parts, divisor = settings.get('batches', 1), settings.get('subsampling', 1)
    for r, info in enumerate(infos):
        weights, rows = np.zeros(CLIENTS, int), np.zeros(CLIENTS, int)
        for members, heard in zip(shared.members[r], shared.mask[r], strict=True):
            for client in members[1:][heard[1:]]:
                weights[client] += 1  # its own
                weights[members[0]] += parts + 1  # the average, those between, the new ones
                rows[client] += CLASSES * -(-len(data[client][0]) // divisor)
        np.testing.assert_array_equal(info.sent['weights'].messages, weights)
        np.testing.assert_array_equal(info.sent['jacobian_rows'].messages, rows)


def test_a_cluster_of_one_evolves_on_its_own_data(network):
    data, clients, _ = network
    aggregators = np.arange(CLIENTS, dtype=np.int32)[None, :, None]
    alone = Graph(aggregators, np.ones_like(aggregators, bool), np.ones((1, CLIENTS), bool))
    model = bind(MLP(CLASSES, (8,)), (FEATURES,))
    algorithm = make(
        'ntk_dfl', model, lr=0.05, timesteps=TIMESTEPS, evolution='euler', by_cluster=True
    )
    start = widen(jax.jit(algorithm.init)(jax.random.key(0), clients))
    graph = round_of(topology.by_cluster(alone), 0)
    step = jax.jit(functools.partial(one_round, algorithm))
    state, info = step(jax.random.key(0), start, 0, graph, clients)
    for i, (x, y) in enumerate(data):
        w = as_reference(start.params, i)
        expected, chosen, loss = reference.ntk_update(
            w,
            reference.jacobian(w, x),
            reference.mlp(w, x),
            x,
            y,
            lr=0.05,
            timesteps=TIMESTEPS,
            loss='cross_entropy',
            evolution='euler',
            selection='network',
        )
        assert_close(as_reference(state.params, i), expected)
        assert info.metrics['timestep'].values[i] == chosen and info.loss[i] == pytest.approx(loss)
    assert not any(v.messages.any() for v in info.sent.values())


@pytest.mark.parametrize(
    ('settings', 'pattern'),
    [
        ({'batches': 0}, 'batches has to be at least 1, got 0'),
        ({'subsampling': -2}, 'subsampling has to be at least 1, got -2'),
        ({'sparsity': 1.0}, r'sparsity .* got 1.0'),
        ({'bits': 1}, r'bits .* got 1'),
        ({'rounding': 'nearest'}, 'no effect without bits'),
        ({'bits': 6, 'kernel': 'nt'}, 'kernel=nt needs exact Jacobians'),
        ({'by_cluster': True, 'averaging': False}, 'share one average'),
        ({'jacobian_weights': 'all'}, "'all'; choose one of averaged, neighbours"),
        ({'jacobian_weights': 'neighbours', 'bits': 6}, 'takes exact Jacobians'),
        ({'jacobian_weights': 'neighbours', 'batches': 2}, 'leave out batches'),
        ({'by_cluster': True, 'mixing': 'metropolis'}, 'use size or uniform'),
    ],
    ids=str,
)
def test_what_is_refused(settings, pattern):
    with pytest.raises(ValueError, match=pattern):
        make('ntk_dfl', bind(MLP(CLASSES), (FEATURES,)), **settings)


def test_the_width_holds_every_member_that_is_linked():
    assert widths_of(12) == [12] and widths_of(16) == [6, 8, 12, 16] and widths_of(15)[-1] == 15
    for linked in range(16):
        row = np.arange(16) == linked
        row[0] = True
        width = int(
            at_least_width(lambda width: jnp.int32(width), jnp.asarray(row), [6, 8, 12, 16])
        )
        assert width == min(w for w in (6, 8, 12, 16) if w > linked)


def test_an_aggregator_alone_computes_what_many_together_do(x64):
    """Alone it leaves out most of its padding; many at once share the width of the busiest."""
    clients, rng = 14, np.random.default_rng(3)
    mask = np.arange(3) < np.array([3, 1, 2, 3, 2, 3, 1, 1, 2, 3, 3, 2, 1, 3])[:, None]
    x = np.where(mask[:, :, None], rng.normal(size=(clients, 3, FEATURES)), np.nan)
    data = Clients(jnp.asarray(x), jnp.asarray(rng.integers(CLASSES, size=mask.shape)), mask)
    star = topology.drop_links(topology.schedule('star', clients, 2, seed=1), 0.2, 0)
    states = []
    for chunk in (1, clients):
        options = {'timesteps': TIMESTEPS, 'evolution': 'euler', 'init': 'independent'}
        algorithm = make('ntk_dfl', MODEL, chunk=chunk, **options)
        step = jax.jit(functools.partial(one_round, algorithm))
        state = widen(jax.jit(algorithm.init)(jax.random.key(0), data))
        for r in range(2):
            state, _ = step(jax.random.key(r), state, r, round_of(star, r), data)
        states.append(state.params)
    assert_close(*states)


def test_clients_in_turn_are_rounds_in_which_one_client_is_active(network):
    """`experiments/ntk_dfl/authors_logs`: whoever is later in a round hears the new models."""
    _, clients, graphs = network
    graph, key = round_of(graphs, 0), jax.random.key(1)
    method = compiled('ntk_dfl', MODEL, init='independent')
    begin = widen(method.init(jax.random.key(0), clients))
    expected = begin
    for i in range(len(clients.y)):
        active = jnp.arange(len(clients.y)) == i
        expected, _ = method.step(key, expected, 0, graph._replace(active=active), clients)
    at_once, info = method.step(key, begin, 0, graph, clients)
    step = jax.jit(functools.partial(one_round, ntk_dfl_in_turn(MODEL)))
    found, in_turn = step(key, begin, 0, graph, clients)
    assert_close(found.params, expected.params)
    assert in_turn.loss.shape == info.loss.shape
    assert jax.tree.structure(in_turn.sent) == jax.tree.structure(info.sent)
    assert_close(in_turn.sent, info.sent)
    with pytest.raises(AssertionError):
        assert_close(found.params, at_once.params, 1e-3)
