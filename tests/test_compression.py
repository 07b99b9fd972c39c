"""Quantization of messages: its error, its expectation, its size, its place in gossip; top-k."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dfl_jax import Clients, simulate, topology
from dfl_jax.exchange import one_round
from dfl_jax.exchange.compression import (
    ROUNDINGS,
    Compression,
    bits_of,
    chain,
    half_precision,
    largest,
    qsgd,
    quantization,
    random_k,
    top_k,
)
from dfl_jax.methods import make
from dfl_jax.models import MLP, bind

CLIENTS, FEATURES, CLASSES = 6, 5, 3


MODEL = bind(MLP(CLASSES, (8,)), (FEATURES,))
TENSORS, SIZE = 4, FEATURES * 8 + 8 + 8 * CLASSES + CLASSES


def codec_of(sparsity=None, bits=None, rounding=None):
    """The codec of weights, whose default is stochastic rounding."""
    return Compression(sparsity=sparsity, bits=bits, rounding=rounding).codec('stochastic')


every_rounding = pytest.mark.parametrize('rounding', ROUNDINGS)


def tree():
    """Tensors of different scales, one of them zero."""
    rng = np.random.default_rng(0)
    return {
        'large': rng.uniform(-100, 100, (30, 20)).astype(np.float32),
        'small': (1e-4 * rng.normal(size=50)).astype(np.float32),
        'zero': np.zeros((4, 3), np.float32),
    }


def sent(bits, rounding, key=0):
    received = quantization(bits, rounding).transmit(jax.random.key(key), tree())
    return {name: np.asarray(tensor) for name, tensor in received.items()}


def step_of(tensor, bits):
    return np.abs(tensor.astype(np.float64)).max() / (2 ** (bits - 1) - 1)


def nearest(tensor, bits):
    """The definition again, in NumPy."""
    step = step_of(tensor, bits)
    return np.round(tensor / step) * step if step else tensor


# -------------------------------------------------------------------------------------- the codec


@pytest.mark.parametrize('bits', [2, 3, 4, 8, 12])
@every_rounding
def test_the_error_is_within_a_step(bits, rounding):
    for name, tensor in sent(bits, rounding).items():
        step, error = step_of(tree()[name], bits), np.abs(tensor - tree()[name].astype(np.float64))
        rounding_error = 1e-6 * np.abs(tree()[name]).max()
        assert (error <= (step / 2 if rounding == 'nearest' else step) + rounding_error).all()
        assert name == 'zero' or error.max() > 0.4 * step


@pytest.mark.parametrize('bits', [2, 3, 4, 8])
@every_rounding
def test_the_levels_are_few_and_symmetric(bits, rounding):
    received = sent(bits, rounding)
    for name in ('large', 'small'):
        levels = received[name].astype(np.float64) / step_of(tree()[name], bits)
        np.testing.assert_allclose(levels, np.round(levels), atol=1e-3)
        assert len(np.unique(received[name])) <= 2**bits - 1
        assert set(np.unique(np.round(np.abs(levels)))) <= set(range(2 ** (bits - 1)))
    if bits <= 4:
        assert len(np.unique(received['large'])) == 2**bits - 1


@every_rounding
def test_zero_stays_zero_and_the_largest_weight_is_kept(rounding):
    for bits in (2, 5, 8, 16):
        received = sent(bits, rounding)
        assert (received['zero'] == 0).all()
        for name in ('large', 'small'):
            at = np.abs(tree()[name]).argmax()
            assert received[name].ravel()[at] == pytest.approx(tree()[name].ravel()[at], rel=1e-6)


@every_rounding
def test_many_bits_lose_next_to_nothing(rounding):
    for bits in (24, 32):
        for name, tensor in sent(bits, rounding).items():
            assert np.abs(tensor - tree()[name]).max() <= 1e-6 * np.abs(tree()[name]).max()


def test_nearest_is_deterministic_and_stochastic_is_not():
    first, second = sent(4, 'nearest'), sent(4, 'nearest', key=1)
    assert all((first[name] == second[name]).all() for name in first)
    np.testing.assert_allclose(first['large'], nearest(tree()['large'], 4), rtol=1e-6)
    first, same, second = sent(4, 'stochastic'), sent(4, 'stochastic'), sent(4, 'stochastic', key=1)
    assert all((first[name] == same[name]).all() for name in first)
    assert 0.05 < np.mean(first['large'] != second['large']) < 0.95


@pytest.mark.parametrize('bits', [2, 4])
def test_stochastic_rounding_is_unbiased(bits):
    """Each weight's mean over 4000 messages lies within five of its standard errors."""
    draws, rng = 4000, np.random.default_rng(1)
    w = rng.normal(size=200).astype(np.float32)
    transmit = jax.vmap(quantization(bits).transmit, (0, None))
    received = np.asarray(transmit(jax.random.split(jax.random.key(2), draws), {'w': w})['w'])
    step = step_of(w, bits)
    remainder = w / step - np.floor(w / step)
    deviation = step * np.sqrt(remainder * (1 - remainder) / draws)
    error = np.abs(received.mean(axis=0, dtype=np.float64) - w)
    assert (error <= 5 * deviation + 1e-5 * step).all()
    # and the weights of one message are rounded independently
    ups = received[:, remainder.argsort()[::-1][:2]] > w[remainder.argsort()[::-1][:2]]
    assert not (ups[:, 0] == ups[:, 1]).all()
    np.testing.assert_allclose(received.std(axis=0), deviation * np.sqrt(draws), atol=0.05 * step)


def test_the_bits_of_a_message():
    assert MODEL.size == SIZE and len(jax.tree.leaves(MODEL.shapes)) == TENSORS
    assert codec_of(None, None, None) is None
    assert chain().bits(MODEL.shapes) == 32 * SIZE
    for bits in (2, 8, 32):
        assert codec_of(None, bits, None).bits(MODEL.shapes) == bits * SIZE + 32 * TENSORS
    received = chain().transmit(jax.random.key(0), tree())
    assert all((received[name] == tensor).all() for name, tensor in tree().items())


def test_the_default_rounding_is_stochastic():
    # a chain draws for each of its codecs
    once = jax.vmap(lambda key: jax.random.fold_in(key, 0))(jax.random.split(jax.random.key(0), 3))
    received = codec_of(None, 4, None).transmit(jax.random.key(0), tree())
    for key, (name, tensor) in zip(once, tree().items(), strict=True):
        assert (received[name] == quantization(4).decoded(key, tensor)).all()


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64])
def test_a_number_costs_the_bits_of_its_type(dtype, x64):
    width = 8 * jnp.dtype(dtype).itemsize
    shapes = {'a': jax.ShapeDtypeStruct((50, 2), dtype), 'b': jax.ShapeDtypeStruct((7,), dtype)}
    assert bits_of(shapes) == chain().bits(shapes) == 107 * width
    assert top_k(0.5).bits(shapes) == (50 + 4) * width + 100 + 7
    assert quantization(4).bits(shapes) == 4 * 107 + 2 * width
    assert codec_of(0.5, 4).bits(shapes) == 4 * 54 + 107 + 2 * width
    assert half_precision().bits(shapes) == 107 * 16
    mixed = shapes | {'c': jax.ShapeDtypeStruct((3,), np.float32)}
    assert bits_of(mixed) == 107 * width + 96


@pytest.mark.parametrize('bits', [2, 5, 12])
@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
@every_rounding
def test_tensors_of_16_bits_are_quantized_as_those_of_32(dtype, bits, rounding):
    """Up to the rounding of what is decoded; their arithmetic has fewer digits than the levels."""
    for tensor in tree().values():
        half = jnp.asarray(tensor, dtype)
        key, decoded = jax.random.key(0), quantization(bits, rounding).decoded
        received, wide = decoded(key, half), decoded(key, half.astype(jnp.float32))
        assert received.dtype == dtype
        np.testing.assert_array_equal(received, wide.astype(dtype))


# -------------------------------------------------------------- differences that have to contract

CONTRACTED = {
    'normal': lambda rng: rng.normal(size=2000),
    'one large entry': lambda rng: np.append(rng.normal(size=2000), 60.0),
    'heavy tails': lambda rng: rng.normal(size=2000) ** 5,
    'equal': lambda rng: np.full(2000, 0.3),
    'few': lambda rng: rng.normal(size=3),
}


def relative_errors(tensor, draws=40, **settings):
    """E |Q(x) - x|^2 / |x|^2 of a codec that contracts and of one that does not."""
    x = jnp.asarray(tensor, jnp.float32)
    keys, found = jax.random.split(jax.random.key(0), draws), []
    for contracting in (True, False):
        codec = Compression(**settings).codec('stochastic', contracting=contracting)
        errors = jax.vmap(lambda key, q=codec: jnp.sum((q.decoded(key, x) - x) ** 2))(keys)
        found.append(float(errors.mean() / jnp.sum(x**2)))
    return found


@pytest.mark.parametrize(
    'settings',
    [
        {'bits': 2},
        {'bits': 3},
        {'bits': 2, 'sparsity': 0.3},
        {'bits': 3, 'sparsity': 0.9},
        {'bits': 2, 'rounding': 'nearest'},
    ],
    ids=str,
)
@pytest.mark.parametrize('name', CONTRACTED)
def test_what_is_left_of_a_difference_is_less_than_it(name, settings):
    tensor = CONTRACTED[name](np.random.default_rng(0))
    contracting, plain = relative_errors(tensor, **settings)
    assert contracting < 0.98
    if plain < 0.45:
        assert contracting == plain, 'what contracts well stays as it is'
    if plain > 0.6 and not {'sparsity', 'rounding'} & {*settings}:
        assert contracting == pytest.approx(plain / (1 + plain), rel=0.1)


def test_two_stochastic_bits_alone_do_not_contract():
    normal = np.random.default_rng(0).normal(size=2000)
    assert relative_errors(normal, bits=2)[1] > 1.9
    for settings in ({'bits': 3}, {'bits': 5}, {'bits': 5, 'sparsity': 0.9}):
        contracting, plain = relative_errors(normal, **settings)
        assert contracting == plain < 0.6
    for received in (quantization(2, contracting=True), quantization(3, contracting=True)):
        assert (received.transmit(jax.random.key(0), tree())['zero'] == 0).all()


@pytest.mark.parametrize('name', ['choco_sgd', 'beer'])
@pytest.mark.parametrize(
    'more',
    [
        {},
        {'sparsity': 0.2},
        {'sparsity': 0.5, 'sparsifier': 'random_k'},
        {'bits': 4, 'quantizer': 'qsgd', 'consensus_step': 0.1},
    ],
    ids=str,
)
def test_methods_that_send_differences_converge_with_few_bits(name, more):
    """Without the division their clients are hundreds apart after 200 rounds, or not finite."""
    model = bind(MLP(CLASSES, (60,)), (FEATURES,))
    settings = {'lr': 0.1, 'batch_size': 7, 'bits': 2, 'sparsity': None, 'consensus_step': 0.3}
    algorithm = make(name, model, **settings | more)
    graphs = topology.schedule('ring', CLIENTS, 200, seed=0, static=True)
    holdout = simulate.Holdout(np.zeros((9, FEATURES), np.float32), np.zeros(9, np.int32))
    *_, (metrics, _, _) = simulate.run(
        algorithm, network(), graphs, holdout, jax.random.key(0), eval_every=200
    )
    assert metrics['consensus_distance'] < 3


# -------------------------------------------------------------------------------- random-k, qsgd


def decoded_often(codec, tensor, draws=4000):
    """What receivers decode of one tensor, by as many keys, [draws, ...] in float64."""
    keys = jax.random.split(jax.random.key(1), draws)
    decode = jax.vmap(codec.decoded, (0, None))
    return np.asarray(decode(keys, jnp.asarray(tensor, jnp.float32)), np.float64)


def square_error(codec, tensor):
    """E |Q(x) - x|^2 / |x|^2."""
    errors = decoded_often(codec, tensor) - tensor
    return np.mean(np.sum(errors**2, axis=1)) / np.sum(tensor**2)


def test_random_k_keeps_as_many_entries_wherever_they_are():
    tensor = np.random.default_rng(0).normal(size=40)
    received = decoded_often(random_k(0.75), tensor)
    assert ((received == 0) | np.isclose(received, tensor, rtol=1e-6)).all()
    assert ((received != 0).sum(axis=1) == 10).all()
    np.testing.assert_allclose((received != 0).mean(axis=0), 0.25, atol=0.03)
    assert square_error(random_k(0.75), tensor) == pytest.approx(0.75, abs=0.01)
    shapes = {'w': jax.ShapeDtypeStruct((40,), np.float32)}
    assert random_k(0.75).bits(shapes) == 10 * 32, 'positions follow from the key'
    settings = Compression(sparsity=0.75, sparsifier='random_k', bits=4, quantizer='qsgd')
    assert settings.codec('stochastic').bits(shapes) == 10 * 4 + 32


@pytest.mark.parametrize('bits', [2, 3, 5])
def test_qsgd_is_unbiased_and_contracts_as_its_papers_say(bits):
    """Alistarh et al. 2017, Lemma 3.1; Koloskova et al. 2019, section 3.5."""
    levels, tensor = 2 ** (bits - 1) - 1, np.random.default_rng(0).normal(size=30)
    norm = np.linalg.norm(tensor)
    received = decoded_often(qsgd(bits), tensor)
    assert (np.sign(received) * np.sign(tensor) >= 0).all()
    multiples = np.abs(received) * levels / norm
    np.testing.assert_allclose(multiples, np.round(multiples), atol=1e-4)
    share = levels * np.abs(tensor) / norm
    assert (np.abs(multiples - share) < 1 + 1e-4).all(), 'one of the two levels around it'
    np.testing.assert_allclose(received.mean(axis=0), tensor, atol=5 * norm / levels / 4000**0.5)
    # Of d entries, each between two levels: their variances
    exact = np.sum((share % 1) * (1 - share % 1)) / levels**2
    bound = min(30 / levels**2, 30**0.5 / levels)
    assert square_error(qsgd(bits), tensor) == pytest.approx(exact, rel=0.05) and exact <= bound
    left = square_error(qsgd(bits, contracting=True), tensor)
    assert left == pytest.approx((exact + bound**2) / (1 + bound) ** 2, rel=0.05)
    assert left <= bound / (1 + bound)


def test_qsgd_scales_by_the_entries_that_are_not_zero():
    few, many = np.array([3.0, 4.0]), np.array([3.0, *[0.0] * 500, 4.0])
    both = (decoded_often(qsgd(2, contracting=True), tensor, 400) for tensor in (few, many))
    left, right = (np.unique(np.abs(received).round(5)) for received in both)
    np.testing.assert_allclose(left, right)
    assert (decoded_often(qsgd(2), np.zeros(3), 5) == 0).all()


def test_half_precision_keeps_eleven_bits():
    """Also inside a compiled program, where the two conversions must not cancel."""
    exact = [0, 1, -0.5, 2047, 2048, -65504, 2**-14]
    rounded = {2049: 2048, 2051: 2052, 0.1: 0.0999755859375, 1 / 3: 0.333251953125}
    tensor = np.array([*exact, *rounded, 7e4, -1e30], np.float32)
    expected = np.array([*exact, *rounded.values(), np.inf, -np.inf], np.float32)
    decoded = half_precision().decoded
    for decode in (decoded, jax.jit(decoded)):
        received = decode(jax.random.key(0), jnp.asarray(tensor))
        assert received.dtype == np.float32
        np.testing.assert_array_equal(received, expected)
    received = half_precision().transmit(jax.random.key(0), tree())
    error = np.abs(received['large'] - tree()['large'])
    assert error.max() > 0 and (error <= 2.0**-11 * np.abs(tree()['large'])).all()
    assert (received['zero'] == 0).all()


def test_half_precision_halves_a_message():
    assert half_precision().bits(MODEL.shapes) == 16 * SIZE
    shapes = {'w': jax.ShapeDtypeStruct((100,), np.float32)}
    assert chain(top_k(0.5), half_precision()).bits(shapes) == 50 * 16 + 100


# --------------------------------------------------------------------------------- top-k, chained


def test_top_k_keeps_the_largest_moduli():
    tensor = np.array([[3.0, -1.0, 0.5], [-4.0, 2.0, 0.0]], np.float32)
    for sparsity, kept in [
        (0.0, [[3, -1, 0.5], [-4, 2, 0]]),
        (0.5, [[3, 0, 0], [-4, 2, 0]]),
        (0.9, [[0, 0, 0], [-4, 0, 0]]),
    ]:
        received = top_k(sparsity).transmit(jax.random.key(0), {'w': tensor})
        np.testing.assert_array_equal(received['w'], np.array(kept, np.float32))
    equal = top_k(0.5).transmit(jax.random.key(0), {'w': np.ones(4, np.float32)})
    np.testing.assert_array_equal(equal['w'], [1, 1, 0, 0])  # of equal ones the first


@pytest.mark.parametrize(
    ('size', 'sparsity', 'bits', 'expected'),
    [
        (100, 0.5, None, 50 * 32 + 100),  # bitmap: 100 bits are fewer than 50 * 7
        (100, 0.9, None, 10 * 32 + 10 * 7),  # indices: 70 bits are fewer than 100
        (100, 0.9, 6, 10 * 6 + 70 + 32),  # and the step of the quantizer
        (100, 0.25, 6, 75 * 6 + 100 + 32),
        (1024, 0.99, None, 11 * 32 + 11 * 10),  # ceil(10.24) entries
        (1, 0.5, None, 32),  # one of one: its place is known
        (100, None, 6, 100 * 6 + 32),
    ],
)
def test_the_bits_of_a_sparse_message(size, sparsity, bits, expected):
    shapes = {'w': jax.ShapeDtypeStruct((size,), np.float32)}
    assert codec_of(sparsity, bits, None).bits(shapes) == expected
    several = {'a': jax.ShapeDtypeStruct((size, 1), np.float32)} | shapes
    assert codec_of(sparsity, bits, None).bits(several) == 2 * expected


def test_a_chain_sparsifies_and_then_quantizes():
    tensor = np.array([1.0, -0.6, 0.3, 0.1], np.float32)
    received = codec_of(0.5, 2, 'nearest').transmit(jax.random.key(0), {'w': tensor})
    np.testing.assert_array_equal(received['w'], [1, -1, 0, 0])  # levels -1, 0, 1
    two_bits = quantization(2, 'nearest').transmit(jax.random.key(0), {'w': tensor})
    np.testing.assert_array_equal(two_bits['w'], [1, -1, 0, 0])
    received = codec_of(0.25, 3, 'nearest').transmit(jax.random.key(0), {'w': tensor})
    np.testing.assert_allclose(received['w'], [1, -2 / 3, 1 / 3, 0], rtol=1e-6)


@pytest.mark.parametrize('sparsity', [-0.1, 1.0, 1.5])
def test_a_sparsity_out_of_range_is_refused(sparsity):
    with pytest.raises(ValueError, match=rf'sparsity .* \[0, 1\), got {sparsity}'):
        codec_of(sparsity, None, None)


@pytest.mark.parametrize(
    ('settings', 'pattern'),
    [
        ({'sparsifier': 'random_k'}, 'sparsifier=random_k has no effect without sparsity'),
        ({'quantizer': 'qsgd'}, 'quantizer=qsgd has no effect without bits'),
        ({'bits': 3, 'quantizer': 'qsgd', 'rounding': 'nearest'}, 'qsgd rounds at random'),
        ({'sparsity': 0.5, 'sparsifier': 'rand'}, "'rand'; choose one of top_k, random_k"),
    ],
)
def test_operators_that_are_refused(settings, pattern):
    with pytest.raises(ValueError, match=pattern):
        Compression(**settings)


@pytest.mark.parametrize(
    ('bits', 'rounding', 'pattern'),
    [
        (1, None, r'bits .* \[2, 32\], got 1'),
        (0, None, 'got 0'),
        (33, 'nearest', r'bits .* \[2, 32\], got 33'),
        (None, 'nearest', 'rounding=nearest has no effect without bits'),
        (8, 'up', "'up'; choose one of stochastic, nearest"),
    ],
)
def test_what_is_refused(bits, rounding, pattern):
    with pytest.raises(ValueError, match=pattern):
        codec_of(None, bits, rounding)
    with pytest.raises(ValueError, match=pattern):
        make('dpsgd', MODEL, bits=bits, rounding=rounding)


# -------------------------------------------------------------------------------------- in gossip


def network():
    rng = np.random.default_rng(3)
    sizes = np.array([4, 7, 5, 6, 3, 7])
    mask = np.arange(7) < sizes[:, None]
    x = rng.normal(size=(CLIENTS, 7, FEATURES)).astype(np.float32) * mask[:, :, None]
    y = rng.integers(CLASSES, size=(CLIENTS, 7)).astype(np.int32) * mask
    return Clients(jnp.asarray(x), jnp.asarray(y), jnp.asarray(mask))


def first_round(graph, **settings):
    """The weights before it and after."""
    algorithm = make('dpsgd', MODEL, batch_size=4, init='independent', **settings)
    state = algorithm.init(jax.random.key(0), network())
    graph = jax.tree.map(jnp.asarray, graph)
    step = jax.jit(functools.partial(one_round, algorithm))
    after, _ = step(jax.random.key(1), state, 0, graph, network())
    return jax.device_get((state.params, after.params))


@pytest.mark.parametrize('round_order', ['train_first', 'parallel'])
def test_gossip_averages_what_the_channel_delivers(round_order):
    """Every model that enters a mean is quantized, tensor by tensor, and nothing else is."""
    graphs = topology.schedule('erdos_renyi', CLIENTS, 1, seed=1, degree=2)
    graph = jax.tree.map(lambda a: a[0], graphs)
    mixing = np.zeros((CLIENTS, CLIENTS))
    for i, (members, linked) in enumerate(zip(graph.members, graph.mask, strict=True)):
        mixing[i, members[linked]] = 1 / linked.sum()
    alone = graph._replace(mask=graph.mask & (np.arange(graph.mask.shape[1]) == 0))
    previous, trained = first_round(alone)
    _, ours = first_round(graph, bits=8, rounding='nearest', round_order=round_order)
    leaves = (jax.tree.leaves(t) for t in (previous, trained, ours))
    for x, z, new in zip(*leaves, strict=True):
        channel = np.stack([nearest(w, 8) for w in (z if round_order == 'train_first' else x)])
        expected = np.tensordot(mixing, channel, 1)
        if round_order == 'parallel':
            expected = expected + (z - x)
        np.testing.assert_allclose(new, expected, rtol=1e-5, atol=1e-6)
        unquantized = np.tensordot(mixing, z if round_order == 'train_first' else x, 1)
        assert not x.any() or np.abs(unquantized - np.tensordot(mixing, channel, 1)).max() > 1e-4


def test_every_client_rounds_by_draws_of_its_own():
    """Equal models, rounded at random, leave clients that are alone with different ones."""
    graph = topology.schedule('ring', CLIENTS, 1, seed=0)
    alone = jax.tree.map(lambda a: a[0], graph)
    alone = alone._replace(mask=alone.mask & (np.arange(alone.mask.shape[1]) == 0))
    algorithm = make('dpsgd', MODEL, round_order='parallel', lr=1e-12, bits=3)
    state = algorithm.init(jax.random.key(0), network())
    step = jax.jit(functools.partial(one_round, algorithm))
    alone = jax.tree.map(jnp.asarray, alone)
    after, _ = step(jax.random.key(1), state, 0, alone, network())
    kernel = np.asarray(after.params['Dense_0']['kernel']).round(5)
    assert len(np.unique(kernel.reshape(CLIENTS, -1), axis=0)) == CLIENTS


@pytest.mark.parametrize('gossip_steps', [pytest.param(1, marks=pytest.mark.slow), 3])
def test_fewer_bits_are_less_traffic(gossip_steps):
    rounds, links = 4, CLIENTS * 2  # of a ring, in both directions
    graphs = topology.schedule('ring', CLIENTS, rounds, seed=0)
    x, y = np.zeros((9, FEATURES), np.float32), np.zeros(9, np.int32)
    for bits, message in ((None, 32 * SIZE), (8, 8 * SIZE + 32 * TENSORS)):
        algorithm = make('dpsgd', MODEL, bits=bits, gossip_steps=gossip_steps)
        *_, (metrics, _, _) = simulate.run(
            algorithm, network(), graphs, simulate.Holdout(x, y), jax.random.key(0), eval_every=2
        )
        assert metrics['mbytes_total'] == gossip_steps * rounds * links * message / 8e6


# -------------------------------------------------------------------------------- the k largest


def k_first(values, k, among):
    """The mask of the first k candidates in the stable descending order of values."""
    candidates = np.flatnonzero(among)
    chosen = candidates[np.argsort(-values.ravel()[candidates], kind='stable')[:k]]
    mask = np.zeros(values.size, bool)
    mask[chosen] = True
    return mask.reshape(values.shape)


def assert_every_k_is_found(values, among):
    choose = jax.jit(largest)  # k is traced
    for k in range(among.sum() + 1):
        chosen = np.asarray(choose(values, k, among))
        assert chosen.shape == values.shape and chosen.dtype == bool
        assert chosen.sum() == k
        np.testing.assert_array_equal(chosen, k_first(values, k, among), err_msg=f'k={k}')


@pytest.mark.parametrize('shape', [(1,), (8,), (31,), (6, 7), (3, 2, 5)], ids=str)
@pytest.mark.parametrize('levels', [1, 2, 4, 1000])
def test_the_k_largest(shape, levels):
    """`levels` different values, zero among them: one level leaves nothing but ties."""
    rng = np.random.default_rng(levels)
    values = (rng.integers(levels, size=shape) / 7).astype(np.float32)
    assert_every_k_is_found(values, np.ones(shape, bool))
    assert_every_k_is_found(values, rng.random(shape) < 0.6)
    assert_every_k_is_found(values, np.zeros(shape, bool))


def test_the_k_largest_of_extreme_values():
    tiny, huge = np.finfo(np.float32).tiny, np.finfo(np.float32).max
    values = np.array([0, tiny, huge, np.inf, 1, np.nextafter(np.float32(1), 2), 0, huge, 1e-45])
    assert_every_k_is_found(values.astype(np.float32), np.ones(9, bool))


@pytest.mark.parametrize('dtype', [np.float32, np.float64])
def test_the_k_largest_in_double_precision(dtype, x64):
    """Values that only float64 tells apart are no ties there, and are in float32."""
    rng = np.random.default_rng(0)
    values = (1 + rng.permutation(24).reshape(4, 6) * 1e-14).astype(dtype)
    assert len(np.unique(values)) == (24 if dtype == np.float64 else 1)
    values.ravel()[::5] = 0
    assert_every_k_is_found(values, rng.random((4, 6)) < 0.8)


@pytest.mark.parametrize('dtype', [jnp.bfloat16, jnp.float16])
def test_the_k_largest_of_half_precision(dtype):
    """More values than a half counts exactly, and than it tells apart."""
    values = jnp.arange(3000, dtype=jnp.float32).astype(dtype)
    chosen = np.asarray(largest(values, 2500))
    np.testing.assert_array_equal(
        chosen, k_first(np.asarray(values.astype(jnp.float32)), 2500, np.ones(3000, bool))
    )


def test_the_k_largest_of_a_known_k():
    values = np.array([3, 1, 2, 3], np.float32)
    for k, expected in ((0, [0, 0, 0, 0]), (1, [1, 0, 0, 0]), (3, [1, 0, 1, 1])):
        np.testing.assert_array_equal(largest(values, k, np.ones(4, bool)), expected)
