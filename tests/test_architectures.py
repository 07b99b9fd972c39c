"""DFML's architectures: sizes, layers against plain computations, and what clients need of them."""

import itertools
import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dfl_jax.models import (
    MODES,
    ConvNet,
    EfficientNet,
    PreActResNet,
    ViT,
    architecture,
    bind,
    expand,
)
from dfl_jax.models.conv import Conv, DepthwiseConv, group_norm
from dfl_jax.models.efficientnet import InvertedResidual
from dfl_jax.models.resnet import Block
from dfl_jax.models.vit import LocalitySelfAttention, shifted_patches
from dfl_jax.ntk import kernel_fn

# What runs once here compiles in half the time without the backend's optimisations.
jit = partial(jax.jit, compiler_options={'xla_backend_optimization_level': 0})

COLOUR = (32, 32, 3)
NARROW = {  # one of each family, with all its kinds of layers
    'cnn': (ConvNet(5, (4, 8)), COLOUR),
    'cnn-grey': (ConvNet(5, (3,)), (28, 28, 1)),
    'resnet': (PreActResNet(5, (4, 8)), COLOUR),
    'vit': (ViT(5, (16,)), COLOUR),
    'efficientnet': (EfficientNet(5, width=0.25, stages=((6, 3, 1, 32, 1),)), COLOUR),
}


@pytest.fixture(scope='module', params=NARROW)
def case(request):
    """A narrow model, its weights for two clients and three images of each."""
    model = bind(*NARROW[request.param])
    params = jax.tree.map(lambda *own: np.stack(own), *(weights(model.shapes, i) for i in (0, 1)))
    x = jax.random.normal(jax.random.key(1), (2, 3, *model.input_shape))
    return model, params, x


def weights(shapes, seed=0):
    """Random leaves of these shapes, biases and scales included."""
    rng = np.random.default_rng(seed)
    return jax.tree.map(
        lambda leaf: rng.normal(0, leaf.shape[-1] ** -0.5, leaf.shape).astype(np.float32), shapes
    )


def client(tree, i):
    return jax.tree.map(lambda leaf: leaf[i], tree)


def size_of(name, classes, shape=COLOUR):
    return bind(architecture(name, classes), shape).size


# ------------------------------------------------------------------------------------- sizes


@pytest.mark.parametrize(
    ('variant', 'size'),
    [
        ('b0', 5_288_548),
        pytest.param('b1', 7_794_184, marks=pytest.mark.slow),
        pytest.param('b2', 9_109_994, marks=pytest.mark.slow),
        pytest.param('b3', 12_233_232, marks=pytest.mark.slow),
        ('b4', 19_341_616),
    ],
)
def test_efficientnets_have_the_published_sizes(variant, size):
    assert size_of(f'efficientnet-{variant}', 1000, (224, 224, 3)) == size


def test_resnet_18_has_the_published_size_and_a_last_normalisation():
    assert size_of('resnet-64-128-256-512', 10) == 11_171_146 + 2 * 512


def test_size_of_the_vit():
    width, patch = 512, 5 * 3 * 4 * 4
    embedding = 2 * patch + (patch + 1) * width + width + (8 * 8 + 1) * width
    attention = 2 * width + 3 * width * 512 + 8 + (512 + 1) * width
    perceptron = 2 * width + (width + 1) * 2 * width + (2 * width + 1) * width
    head = 2 * width + (width + 1) * 10
    assert size_of('vit-512-512', 10) == embedding + 2 * (attention + perceptron) + head


@pytest.mark.parametrize('classes', [10, 100])
@pytest.mark.parametrize('shape', [COLOUR, (28, 28, 1)])
def test_the_homogeneous_cnn_is_the_median_of_mode_h2(classes, shape):
    """DFML, Appendix A.4.11."""
    sizes = {name: size_of(name, classes, shape) for name in MODES['h2_cnn']}
    assert sorted(sizes, key=sizes.get)[2] == 'cnn-32-64'
    assert min(sizes, key=sizes.get) not in MODES['h2_mixed']


def test_size_of_the_cnn():
    conv = (25 * 3 + 1) * 32 + 2 * 32 + (25 * 32 + 1) * 64 + 2 * 64
    assert size_of('cnn-32-64', 10) == conv + (8 * 8 * 64 + 1) * 10


@pytest.mark.parametrize('mode', ['h1_cnn', 'h1_resnet', 'h1_vit'])
def test_h1_models_are_corners_of_the_largest(mode):
    shapes = [bind(architecture(name, 10), COLOUR).shapes for name in MODES[mode]]
    for wide, narrow in itertools.pairwise(shapes):
        assert jax.tree.structure(wide) == jax.tree.structure(narrow)
        for w, n in zip(jax.tree.leaves(wide), jax.tree.leaves(narrow), strict=True):
            assert len(w.shape) == len(n.shape)
            assert all(a >= b for a, b in zip(w.shape, n.shape, strict=True))


def test_strides_of_efficientnet_are_the_published_ones():
    module = EfficientNet(2)

    def sides(x):
        keep = lambda m, _: isinstance(m, InvertedResidual)  # noqa: E731
        variables = module.init(jax.random.key(0), x)
        _, state = module.apply(variables, x, capture_intermediates=keep, mutable='intermediates')
        return state['intermediates']

    found = jax.eval_shape(sides, jax.ShapeDtypeStruct((1, 224, 224, 3), jnp.float32))
    outputs = [found[f'InvertedResidual_{i}']['__call__'][0].shape for i in range(16)]
    stages = [(112, 16)] + 2 * [(56, 24)] + 2 * [(28, 40)] + 3 * [(14, 80)] + 3 * [(14, 112)]
    stages += 4 * [(7, 192)] + [(7, 320)]
    assert outputs == [(1, side, side, channels) for side, channels in stages]


# ------------------------------------------------------------------------ what clients need


def test_clients_at_once_equal_one_by_one_and_samples_do_not_meet(case):
    model, params, x = case
    at_once = jit(jax.vmap(model.apply))(params, x)
    apply = jit(model.apply)
    assert at_once.shape == (2, 3, 5) and at_once.dtype == jnp.float32
    for i in range(2):
        np.testing.assert_allclose(at_once[i], apply(client(params, i), x[i]), rtol=1e-4, atol=1e-5)
    others = x[0].at[1:].set(100 * x[1, 1:])
    alone, among = apply(client(params, 0), x[0])[0], apply(client(params, 0), others)[0]
    np.testing.assert_allclose(alone, among, rtol=1e-5, atol=1e-6)
    assert np.ptp(np.asarray(at_once[:, :, 0])) > 1e-3


def test_gradients_in_training_are_finite_and_reach_every_parameter(case):
    model, params, x = case

    def loss(params, key):
        return (model.apply(params, x[0], key) ** 2).sum()

    gradient = jit(jax.grad(loss))(client(params, 0), jax.random.key(2))
    for leaf in jax.tree.leaves(gradient):
        assert jnp.isfinite(leaf).all() and leaf.any()


@pytest.mark.parametrize('name', ['vit', 'efficientnet'])
def test_dropout_is_of_the_key_and_only_with_one(name):
    module, shape = NARROW[name]
    model, sure = bind(module, shape), bind(module.clone(dropout=0.0), shape)
    params = weights(model.shapes)
    x = jax.random.normal(jax.random.key(1), (2, *shape))
    apply = jit(model.apply)
    keys = jax.random.split(jax.random.key(2), 2)
    assert (apply(params, x, keys[0]) == apply(params, x, keys[0])).all()
    assert (apply(params, x, keys[0]) != apply(params, x, keys[1])).any(axis=1).all()
    np.testing.assert_allclose(
        jit(sure.apply)(params, x, keys[0]), apply(params, x), rtol=1e-4, atol=1e-5
    )


class Telling(nn.Module):
    """Twice as much in training; its `train` has no default."""

    @nn.compact
    def __call__(self, x, *, train):
        return nn.Dense(3)(x) * (2 if train else 1)


def test_a_key_trains_modules_that_ask_for_it_and_no_others():
    x, keys = jnp.ones((2, 4)), jax.random.split(jax.random.key(1))
    model = bind(Telling(), (4,))
    params = weights(model.shapes)
    assert jax.tree.map(jnp.shape, model.init(keys[0])) == jax.tree.map(jnp.shape, params)
    judged, trained = model.apply(params, x), model.apply(params, x, keys[0])
    np.testing.assert_array_equal(trained, 2 * judged)
    each = jax.vmap(model.apply, (None, None, 0))(params, x, keys)
    np.testing.assert_array_equal(each, [trained, trained])
    cnn, x = bind(ConvNet(3, (2,)), (4, 4, 1)), jnp.ones((2, 4, 4, 1))
    params, apply = weights(cnn.shapes), jit(cnn.apply)
    np.testing.assert_array_equal(apply(params, x, keys[0]), apply(params, x))


@pytest.mark.parametrize('name', NARROW)
def test_parameters_are_float32_and_double_inputs_stay_double(name, x64):
    model = bind(*NARROW[name])
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {np.dtype('float32')}
    for dtype in (jnp.float32, jnp.float64):
        x = jax.ShapeDtypeStruct((2, *model.input_shape), dtype)
        assert jax.eval_shape(model.apply, params, x).dtype == dtype
        assert jax.eval_shape(model.apply, params, x, jax.random.key(0)).dtype == dtype


# ------------------------------------------------------------------------------------- layers


@pytest.mark.parametrize(
    ('kernel', 'strides', 'padding'),
    [
        ((3, 3), 2, 'SAME'),
        ((5, 3), (2, 1), 'VALID'),
        ((3, 3), 2, ((1, 1), (1, 1))),
        ((5, 3), (1, 2), ((2, 2), (1, 1))),
        ((1, 1), 2, ((0, 0), (0, 0))),
    ],
)
def test_strided_convolution_is_that_of_flax(kernel, strides, padding, x64):
    x = np.random.default_rng(1).normal(size=(2, 7, 8, 3))
    options = {'strides': strides, 'padding': padding, 'use_bias': False}
    ours, flax = Conv(4, kernel, **options), nn.Conv(4, kernel, **options)
    params, y = with_weights(ours, x)
    assert list(params) == ['kernel']
    np.testing.assert_allclose(y, jit(flax.apply)({'params': params}, x), atol=1e-6)


@pytest.mark.parametrize(('size', 'stride'), [(3, 1), (5, 2)])
def test_depthwise_convolution_is_that_of_flax(size, stride, x64):
    x = np.random.default_rng(1).normal(size=(2, 7, 8, 3))
    zeros = 2 * [(size // 2, size // 2)]
    flax = nn.Conv(3, (size, size), stride, zeros, feature_group_count=3, use_bias=False)
    ours = DepthwiseConv((size, size), stride)
    params, y = with_weights(ours, x)
    np.testing.assert_allclose(y, jit(flax.apply)({'params': params}, x), atol=1e-6)


class Strided(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(Conv(4, (3, 3), strides=2, padding=((1, 1), (1, 1)))(x))
        return nn.Dense(3)(x.reshape(len(x), -1))


def test_the_structured_kernel_knows_strides():
    model = bind(Strided(), (6, 6, 2))
    params = weights(model.shapes)
    x = jax.random.normal(jax.random.key(1), (4, 6, 6, 2))
    structured, scanned = (jit(kernel_fn(model, by)) for by in ('structured', 'output_scan'))
    np.testing.assert_allclose(structured(params, x), scanned(params, x), rtol=1e-4)


@pytest.mark.parametrize(('channels', 'groups'), [(4, 1), (16, 2), (20, 2), (11, 1)])
def test_groups_of_eight_channels(channels, groups):
    class Normed(nn.Module):
        @nn.compact
        def __call__(self, x):
            return group_norm(x)

    x = np.random.default_rng(0).normal(2, 3, size=(2, 3, 4, channels)).astype(np.float32)
    y, variables = jit(Normed().init_with_output)(jax.random.key(0), x)
    parts = x.reshape(2, 12, groups, -1)
    expected = (parts - parts.mean((1, 3), keepdims=True)) / parts.std((1, 3), keepdims=True)
    np.testing.assert_allclose(y, expected.reshape(x.shape), atol=1e-4)
    assert {leaf.shape for leaf in jax.tree.leaves(variables)} == {(channels,)}


def with_weights(module, x, seed=0):
    """Random weights of a module and its compiled application to `x`."""
    params = weights(jax.eval_shape(module.init, jax.random.key(0), x)['params'], seed)
    return params, jit(module.apply)({'params': params}, x)


def normed(x, layer, size=8):
    """Group normalisation of [B, h, w, c] in NumPy."""
    parts = x.reshape(len(x), -1, x.shape[-1] // size, size)
    deviations = parts - parts.mean((1, 3), keepdims=True)
    y = deviations / np.sqrt((deviations**2).mean((1, 3), keepdims=True) + 1e-6)
    return y.reshape(x.shape) * layer['scale'] + layer['bias']


def convolved(x, kernel, stride=1):
    """Convolution [B, h, w, c] with k // 2 zeros around in NumPy, of each channel where c' = 1."""
    size = len(kernel)
    height, width = (-(-side // stride) for side in x.shape[1:3])
    around = 2 * [(size // 2, size // 2)]
    padded = np.pad(x, [(0, 0), *around, (0, 0)])
    y = np.zeros((len(x), height, width, kernel.shape[-1]))
    for i in range(height):
        for j in range(width):
            seen = padded[:, i * stride :, j * stride :][:, :size, :size]
            if kernel.shape[2] == 1:
                y[:, i, j] = (seen * kernel[:, :, 0]).sum((1, 2))
            else:
                y[:, i, j] = np.tensordot(seen, kernel, 3)
    return y


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def swish(x):
    return x * sigmoid(x)


def test_the_cnn_against_numpy():
    module = ConvNet(3, (4,))
    x = np.random.default_rng(1).normal(size=(2, 7, 4, 2)).astype(np.float32)
    params, found = with_weights(module, x)
    y = np.maximum(convolved(x, params['Conv_0']['kernel']) + params['Conv_0']['bias'], 0)
    y = np.stack(
        [[y[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].max((1, 2)) for j in (0, 1)] for i in range(3)]
    )
    y = y.transpose(2, 0, 1, 3)  # [B, 3, 2, 4]
    y = normed(y, params['LayerNorm_0'], size=4)
    flat = np.concatenate([y[..., c].reshape(2, 6) for c in range(4)], axis=1)
    expected = flat @ params['Dense_0']['kernel'] + params['Dense_0']['bias']
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(('features', 'stride'), [(16, 2), (8, 1)])
def test_the_residual_block_against_numpy(features, stride):
    module = Block(features, stride)
    x = np.random.default_rng(1).normal(size=(2, 5, 4, 8)).astype(np.float32)
    params, found = with_weights(module, x)
    kernels = [params[f'Conv_{i}']['kernel'] for i in range(len(params) - 2)]
    active = np.maximum(normed(x, params['GroupNorm_0']), 0)
    y = convolved(active, kernels[0], stride)
    y = convolved(np.maximum(normed(y, params['GroupNorm_1']), 0), kernels[1])
    same = (features, stride) == (8, 1)
    assert len(kernels) == (2 if same else 3)
    y += x if same else convolved(active, kernels[2], stride)
    np.testing.assert_allclose(found, y, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(('features', 'stride'), [(8, 1), (8, 2)])
def test_the_inverted_residual_against_numpy(features, stride):
    module = InvertedResidual(features, expansion=2, kernel=3, stride=stride)
    x = np.random.default_rng(1).normal(size=(2, 5, 4, 8)).astype(np.float32)
    params, found = with_weights(module, x)
    y = swish(normed(convolved(x, params['Conv_0']['kernel']), params['GroupNorm_0']))
    y = convolved(y, params['DepthwiseConv_0']['kernel'], stride)
    y = swish(normed(y, params['GroupNorm_1']))
    squeeze, excite = params['Dense_0'], params['Dense_1']
    assert squeeze['kernel'].shape == (16, 2)
    hidden = swish(y.mean((1, 2)) @ squeeze['kernel'] + squeeze['bias'])
    y = y * sigmoid(hidden @ excite['kernel'] + excite['bias'])[:, None, None]
    y = normed(convolved(y, params['Conv_1']['kernel']), params['GroupNorm_2'])
    if stride == 1:
        y += x
    np.testing.assert_allclose(found, y, rtol=1e-4, atol=1e-4)


def test_locality_self_attention_against_numpy():
    module = LocalitySelfAttention(2)
    x = np.random.default_rng(1).normal(size=(2, 4, 6)).astype(np.float32)
    begin = jit(module.init)(jax.random.key(0), x)['params']['scale']
    np.testing.assert_allclose(begin, 2 * [1 / 8])
    params, y = with_weights(module, x)
    for sample in range(2):
        for head in range(2):
            mine = slice(64 * head, 64 * head + 64)
            q, k, v = (
                x[sample] @ np.asarray(params[name]['kernel'])[:, mine]
                for name in ('query', 'key', 'value')
            )
            odds = np.exp(params['scale'][head] * q @ k.T)
            np.fill_diagonal(odds, 0)
            expected = odds / odds.sum(axis=1, keepdims=True) @ v
            np.testing.assert_allclose(y[sample, :, mine], expected, rtol=1e-4, atol=1e-4)


def test_a_token_alone_attends_to_itself():
    module = LocalitySelfAttention(1)
    x = jnp.ones((1, 1, 6))
    params, y = with_weights(module, x)
    np.testing.assert_allclose(y, x @ params['value']['kernel'], rtol=1e-5)
    gradient = jit(jax.grad(lambda w: module.apply({'params': w}, x).sum()))(params)
    assert all(jnp.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


def test_shifted_patches_by_hand():
    image = np.arange(1, 17).reshape(4, 4)  # 1 2 3 4 / 5 6 7 8 / ...
    patches = shifted_patches(jnp.asarray(image[None, :, :, None], jnp.float32), 2)
    assert patches.shape == (1, 4, 20)
    first, last = patches[0, 0].reshape(2, 2, 5), patches[0, 3].reshape(2, 2, 5)
    np.testing.assert_array_equal(first[..., 0], [[1, 2], [5, 6]])
    np.testing.assert_array_equal(first[..., 1], [[0, 0], [0, 1]])  # right and down
    np.testing.assert_array_equal(first[..., 2], [[0, 0], [2, 3]])  # left and down
    np.testing.assert_array_equal(first[..., 3], [[0, 5], [0, 9]])  # right and up
    np.testing.assert_array_equal(first[..., 4], [[6, 7], [10, 11]])  # left and up
    np.testing.assert_array_equal(last[..., 0], [[11, 12], [15, 16]])
    np.testing.assert_array_equal(last[..., 1], [[6, 7], [10, 11]])
    np.testing.assert_array_equal(last[..., 4], [[16, 0], [0, 0]])
    np.testing.assert_array_equal(patches[0, 1].reshape(2, 2, 5)[..., 0], [[3, 4], [7, 8]])


def test_shifts_are_half_a_patch():
    patches = shifted_patches(jnp.ones((1, 8, 4, 2)), 4)
    assert patches.shape == (1, 2, 4 * 4 * 5 * 2)
    shifted = patches[0, 0].reshape(4, 4, 5, 2)[:, :, 1, 0]
    np.testing.assert_array_equal(shifted, np.outer([0, 0, 1, 1], [0, 0, 1, 1]))


# ------------------------------------------------------------------------------ narrow in wide


def in_corner(narrow, wide):
    """Zeros of the wide leaf's shape with the narrow leaf in their first corner."""
    return jax.tree.map(
        lambda n, w: np.pad(n, [(0, b - a) for a, b in zip(n.shape, w.shape, strict=True)]),
        narrow,
        wide,
    )


@pytest.mark.parametrize('stride', [1, 2])
def test_a_narrow_residual_block_is_a_wide_one_without_its_other_channels(stride):
    x = np.random.default_rng(1).normal(size=(2, 6, 6, 8)).astype(np.float32)
    x_wide = np.pad(x, [(0, 0), (0, 0), (0, 0), (0, 8)])
    params, expected = with_weights(Block(8, stride), x)
    wide = Block(16, stride)
    shapes = jax.eval_shape(wide.init, jax.random.key(0), x_wide)['params']
    y = jit(wide.apply)({'params': in_corner(params, shapes)}, x_wide)
    np.testing.assert_allclose(y[..., :8], expected, rtol=1e-4, atol=1e-5)
    assert not y[..., 8:].any()


def test_a_narrow_attention_is_a_wide_one_without_its_other_heads():
    narrow, wide = LocalitySelfAttention(1), LocalitySelfAttention(2)
    x = np.random.default_rng(1).normal(size=(2, 3, 64)).astype(np.float32)
    x_wide = np.pad(x, [(0, 0), (0, 0), (0, 64)])
    params, expected = with_weights(narrow, x)
    shapes = jax.eval_shape(wide.init, jax.random.key(0), x_wide)['params']
    y = jit(wide.apply)({'params': in_corner(params, shapes)}, x_wide)
    np.testing.assert_allclose(y[..., :64], expected, rtol=1e-4, atol=1e-6)


def test_a_narrow_cnn_has_the_first_channels_of_a_wide_one():
    narrow, wide = (bind(ConvNet(3, (channels,)), (4, 4, 1)) for channels in (2, 4))
    x = jax.random.normal(jax.random.key(1), (2, 4, 4, 1))
    params = weights(narrow.shapes)
    twice = {  # both halves see the same, so that the normalisation is that of one
        layer: jax.tree.map(lambda leaf: np.concatenate([leaf, leaf], axis=-1), params[layer])
        for layer in ('Conv_0', 'LayerNorm_0')
    }
    head = in_corner(params['Dense_0'], wide.shapes['Dense_0'])
    np.testing.assert_allclose(
        jit(wide.apply)({**twice, 'Dense_0': head}, x),
        jit(narrow.apply)(params, x),
        rtol=1e-3,
        atol=1e-4,
    )


# -------------------------------------------------------------------------------------- names


@pytest.mark.parametrize(
    ('name', 'width', 'module'),
    [
        ('cnn-32-64-128', 1.0, ConvNet(7, (32, 64, 128))),
        ('cnn-8', 0.01, ConvNet(7, (1,))),
        ('resnet-64-128-256-512', 0.125, PreActResNet(7, (8, 16, 32, 64))),
        ('vit-512-512', 0.03125, ViT(7, (16, 16))),
        ('efficientnet-b4', 0.5, EfficientNet(7, 0.7, 1.8, 0.4)),
        ('efficientnet-b1', 1.0, EfficientNet(7, 1.0, 1.1, 0.2)),
    ],
)
def test_names(name, width, module):
    assert architecture(name, 7, width) == module


@pytest.mark.parametrize(
    'name',
    ['', 'cnn', 'cnn-32-x', 'cnn-0', 'cnn--3', 'cnn-3.5', 'vit-512-256', 'efficientnet-b5', 'mlp'],
)
def test_unknown_names(name):
    with pytest.raises(ValueError, match=rf"unknown architecture '{name}'; .*cnn-32-64.*-b4"):
        architecture(name, 10)
    with pytest.raises(ValueError, match=rf"'{name}'.* modes are h0, h1_cnn.*h2_mixed"):
        expand(['h0', name])


@pytest.mark.parametrize('width', [0, -1, math.nan])
def test_widths_out_of_range(width):
    with pytest.raises(ValueError, match=f'width has to be positive, got {width}'):
        architecture('cnn-8', 10, width)


def test_modes_are_table_10():
    assert {mode: len(names) for mode, names in MODES.items()} == {
        'h0': 1,
        'h1_cnn': 5,
        'h1_resnet': 5,
        'h1_vit': 5,
        'h2_cnn': 5,
        'h2_efficientnet': 5,
        'h2_mixed': 10,
    }
    for name in expand(list(MODES)):
        architecture(name, 10)
    assert MODES['h2_mixed'][:3] == ('vit-512-512', 'vit-256-256', 'resnet-64-128-256-512')
    assert MODES['h2_mixed'][-4:] == tuple(n for n in MODES['h2_cnn'] if n != 'cnn-8-16-32-64')


def test_expand():
    assert expand(['h0', 'resnet-4-8', 'h0']) == ('cnn-32-64', 'resnet-4-8', 'cnn-32-64')
    assert expand([]) == ()


@pytest.mark.parametrize(
    ('module', 'shape', 'message'),
    [
        (ConvNet(3, (4, 4, 4)), (7, 9, 1), r'7x9 pixels allow 2 .*\(4, 4, 4\) ask for 3'),
        (ViT(3, (8,)), (30, 28, 1), r'30x28 pixels .* patches of 4x4; crop or pad .* of 4$'),
        (PreActResNet(3, (4, 4)), (784,), r'PreActResNet does not take .*\(2, 784\)'),
        (EfficientNet(3), (784,), r'EfficientNet does not take inputs of shape \(2, 784\)'),
        (ViT(3), (784,), r'ViT does not take inputs of shape \(2, 784\)'),
    ],
)
def test_inputs_that_do_not_fit(module, shape, message):
    with pytest.raises(ValueError, match=message):
        bind(module, shape)


def test_layers_of_a_vit_have_one_width():
    for channels in ((64, 32), ()):
        with pytest.raises(ValueError, match=r'one width, got channels \('):
            ViT(3, channels)
