"""Every kernel backend against the Gram matrix of a dense Jacobian, and what each may store."""

import functools
import importlib.util
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from dfl_jax.models import MLP, SmallCNN, bind
from dfl_jax.ntk import kernel_fn, kernels

CLASSES = 3
HAS_NEURAL_TANGENTS = all(importlib.util.find_spec(n) for n in ('neural_tangents', 'frozendict'))
needs_neural_tangents = pytest.mark.skipif(
    not HAS_NEURAL_TANGENTS, reason='neural-tangents is not installed: make nt'
)
BACKENDS = {'structured': 1e-12, 'output_scan': 1e-12, 'nt': 1e-10}
BACKEND_PARAMS = [
    pytest.param(name, marks=needs_neural_tangents if name == 'nt' else ()) for name in BACKENDS
]


class ConvNet(nn.Module):
    """One hidden convolution of the given options, then dense layers."""

    options: tuple = ()  # of nn.Conv, as pairs
    bias: bool = True
    dense_head = True

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(4, (3, 3), use_bias=self.bias, **dict(self.options))(x))
        x = nn.relu(nn.Conv(3, (2, 2), use_bias=self.bias, **dict(self.options))(x))
        x = x.reshape(len(x), -1)
        x = nn.relu(nn.Dense(6, use_bias=self.bias)(x))
        return nn.Dense(CLASSES, use_bias=self.bias)(x)


class DenseOptions(nn.Module):
    """Dense layers, some without a bias, other activations between them."""

    bias: Sequence[bool] = (True, True, True)
    dense_head = True

    @nn.compact
    def __call__(self, x):
        x = nn.tanh(nn.Dense(7, use_bias=self.bias[0])(x))
        x = nn.relu(nn.Dense(5, use_bias=self.bias[1])(x))
        return nn.Dense(CLASSES, use_bias=self.bias[2])(x)


class NoDenseHead(nn.Module):
    """Logits that are scaled after the last dense layer: nothing may be assumed of the head."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(7)(x))
        x = nn.softmax(nn.Dense(5)(x))  # not elementwise
        return 2.5 * nn.tanh(nn.Dense(CLASSES)(x))


class ScaledMLP(MLP):
    """Inherits the promise of a dense head and breaks it."""

    def __call__(self, x):
        return 0.1 * super().__call__(x)


class ConvHead(nn.Module):
    """No dense layer at all: the logits are averages of a convolution's output."""

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(4, (3, 3), strides=2)(x))
        return nn.Conv(CLASSES, (1, 1))(x).mean(axis=(1, 2))


class WithLayerNorm(nn.Module):
    dense_head = True

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.LayerNorm()(nn.Dense(7)(x)))
        return nn.Dense(CLASSES)(x)


class SharedDense(nn.Module):
    dense_head = True

    @nn.compact
    def __call__(self, x):
        shared = nn.Dense(x.shape[-1], name='shared')
        return nn.Dense(CLASSES)(nn.relu(shared(nn.relu(shared(x)))))


class GroupedConv(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Conv(4, (3, 3), feature_group_count=2)(x))
        return nn.Dense(CLASSES)(x.reshape(len(x), -1))


NETWORKS = {
    'mlp-0-hidden': (MLP(CLASSES, ()), (6,)),
    'mlp-1-hidden': (MLP(CLASSES, (7,)), (6,)),
    'mlp-2-hidden': (MLP(CLASSES, (7, 5)), (6,)),
    'mlp-3-hidden': (MLP(CLASSES, (7, 5, 6)), (6,)),
    'mlp-on-images': (MLP(CLASSES, (7,)), (3, 4, 2)),
    'small-cnn': (SmallCNN(CLASSES), (8, 8, 1)),
    'cnn-strides': (ConvNet((('strides', 2),)), (7, 8, 2)),
    'cnn-two-strides': (ConvNet((('strides', (2, 1)),)), (7, 8, 2)),
    'cnn-valid': (ConvNet((('padding', 'VALID'),)), (7, 8, 2)),
    'cnn-explicit-padding': (ConvNet((('padding', ((2, 1), (0, 1))),)), (7, 8, 2)),
    'cnn-without-bias': (ConvNet((('strides', 2), ('padding', 'VALID')), False), (8, 8, 2)),
    'dense-without-bias': (DenseOptions((False, False, False)), (6,)),
    'dense-with-some-bias': (DenseOptions((True, False, True)), (6,)),
    'no-dense-head': (NoDenseHead(), (6,)),
    'head-worked-on': (ScaledMLP(CLASSES, (7,)), (6,)),
    'no-dense-layer': (ConvHead(), (6, 6, 2)),
}
UNSTRUCTURED = {
    'LayerNorm_0/scale': (WithLayerNorm(), (6,)),
    'shared/kernel': (SharedDense(), (6,)),
    'Conv_0/kernel': (GroupedConv(), (5, 5, 2)),
}


def problem(network, samples=5):
    """A model, float64 parameters with biases that are not zero, and inputs, drawn by NumPy."""
    model = bind(*network)
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)))
    params = jax.tree.map(
        lambda leaf: jnp.asarray(
            rng.normal(size=leaf.shape) / max(1, np.prod(leaf.shape[:-1])) ** 0.5
        ),
        shapes,
    )
    return model, params, jnp.asarray(rng.normal(size=(samples, *model.input_shape)))


def dense_kernel(model, params, x):
    """Eq. (3) from the whole Jacobian."""
    jacobian = jax.jit(jax.jacrev(model.apply))(params, x)
    rows = np.concatenate(
        [np.reshape(leaf, (len(x), model.classes, -1)) for leaf in jax.tree.leaves(jacobian)],
        axis=2,
    )
    assert rows.shape[2] == model.size
    return np.einsum('mcp,ncp->mn', rows, rows, optimize=True) / model.classes


@functools.cache
def solved(name):
    """A network of the table with its expected kernel; call it in double precision."""
    model, params, x = problem(NETWORKS[name])
    return model, params, x, dense_kernel(model, params, x)


def assert_close(actual, expected, tolerance):
    assert actual.shape == expected.shape
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert np.linalg.norm(actual - expected) <= tolerance * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ('network', 'backend'),
    [(n, b) for n in NETWORKS for b in ('structured', 'output_scan')]
    + [
        pytest.param(n, 'nt', marks=needs_neural_tangents)
        for n in ('mlp-0-hidden', 'mlp-3-hidden', 'small-cnn', 'cnn-without-bias', 'no-dense-head')
    ],
)
def test_equals_the_dense_jacobian(x64, network, backend):
    model, params, x, expected = solved(network)
    kernel = jax.jit(kernel_fn(model, backend))(params, x)
    assert kernel.dtype == jnp.float64
    assert_close(kernel, expected, BACKENDS[backend])


@pytest.mark.parametrize(
    ('network', 'backend'),
    [('cnn-strides', 'structured')]
    + [pytest.param('mlp-2-hidden', *p.values, marks=p.marks) for p in BACKEND_PARAMS],
)
def test_under_vmap(x64, network, backend):
    model, params, x, expected = solved(network)
    flipped = jax.tree.map(lambda leaf: jnp.stack([leaf, -leaf]), params)
    kernels_of_both = jax.jit(jax.vmap(kernel_fn(model, backend)))(flipped, jnp.stack([x, x[::-1]]))
    assert_close(kernels_of_both[0], expected, BACKENDS[backend])
    negative = jax.tree.map(lambda leaf: -leaf, params)
    assert_close(kernels_of_both[1], dense_kernel(model, negative, x[::-1]), BACKENDS[backend])


@pytest.mark.parametrize('backend', BACKEND_PARAMS)
def test_float32_parameters_give_a_float32_kernel(backend):
    model = bind(*NETWORKS['mlp-1-hidden'])
    rng = np.random.default_rng(1)
    params = model.init(jax.random.key(0))
    x = jnp.asarray(rng.normal(size=(5, *model.input_shape)), jnp.float32)
    kernel = jax.jit(kernel_fn(model, backend))(params, x)
    assert kernel.dtype == jnp.float32
    assert_close(kernel, dense_kernel(model, params, x), 1e-6)


@pytest.mark.parametrize('name', UNSTRUCTURED)
def test_auto_scans_outputs_where_a_layer_is_unknown(x64, name):
    model, params, x = problem(UNSTRUCTURED[name])
    expected = dense_kernel(model, params, x)
    assert_close(jax.jit(kernel_fn(model))(params, x), expected, 1e-12)
    with pytest.raises(ValueError, match=f'{name}.*kernel=output_scan'):
        kernel_fn(model, 'structured')


def test_auto_is_structured_where_every_layer_is_known():
    model = bind(MLP(10), (784,))
    assert temporary_bytes(kernel_fn(model), model, 800) == temporary_bytes(
        kernel_fn(model, 'structured'), model, 800
    )


def test_unknown_backend():
    with pytest.raises(ValueError, match="unknown kernel 'dense'; choose one of auto, structured"):
        kernel_fn(bind(*NETWORKS['mlp-0-hidden']), 'dense')


@pytest.mark.parametrize('block', [1, 4, 9, 10])
def test_output_scan_in_blocks(x64, block):
    model, params, x = problem(NETWORKS['mlp-1-hidden'], samples=10)
    kernel = kernels._in_blocks(
        functools.partial(kernels._output_scan_block, model),
        model,
        budget=block * 2 * model.size * 8,
    )
    text = str(jax.make_jaxpr(kernel)(params, x))
    blocks = -(-10 // block)
    assert f'f64[{blocks},{blocks},{block},{block}]' in text, 'the budget sets the block'
    assert_close(jax.jit(kernel)(params, x), dense_kernel(model, params, x), 1e-12)


@pytest.mark.parametrize('backend', [BACKEND_PARAMS[1], BACKEND_PARAMS[2]])
def test_more_samples_than_a_block_holds(x64, backend):
    model, params, x = problem(NETWORKS['mlp-1-hidden'], samples=150)
    kernel = jax.jit(kernel_fn(model, backend))(params, x)
    assert_close(kernel, dense_kernel(model, params, x), BACKENDS[backend])


def temporary_bytes(kernel, model, samples):
    params = jax.eval_shape(model.init, jax.eval_shape(lambda: jax.random.key(0)))
    x = jax.ShapeDtypeStruct((samples, *model.input_shape), jnp.float32)
    compiled = jax.jit(kernel).lower(params, x).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize('backend', ['structured', 'output_scan'])
def test_never_a_dense_jacobian(backend):
    samples, model = 800, bind(MLP(10), (784,))
    dense = samples * model.classes * model.size * 4  # 2.5 GB
    assert temporary_bytes(kernel_fn(model, backend), model, samples) < dense / 10


@pytest.mark.gpu
@pytest.mark.parametrize('backend', ['structured', 'output_scan'])
def test_no_tensor_float_32_in_the_products_of_a_kernel(backend):
    with jax.enable_x64(True):
        model, params, x = problem((MLP(10, (100,)), (784,)), samples=64)
        expected = dense_kernel(model, params, x)
    narrow = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (params, x))
    with jax.default_matmul_precision('highest'):  # the forward pass has its own precision
        kernel = jax.jit(kernel_fn(model, backend))(*narrow)
    assert_close(kernel, expected, 1e-5)


class Tripled(nn.Dense):
    """A dense layer by its class, and another by what it computes."""

    @nn.compact
    def __call__(self, x):
        shape = (x.shape[-1], self.features)
        return 3 * x @ self.param('kernel', self.kernel_init, shape)


class Doubled(nn.Dense):
    @nn.compact
    def __call__(self, x):
        return 2 * super().__call__(x)


class Squared(nn.Conv):
    @nn.compact
    def __call__(self, x):
        return super().__call__(x) ** 2


class Renamed(nn.Dense):
    """Only its name is another."""


class OwnLayers(nn.Module):
    layer: type
    dense_head = True

    @nn.compact
    def __call__(self, x):
        if issubclass(self.layer, nn.Conv):
            x = self.layer(2, (2, 2))(x)
        x = nn.relu(nn.Dense(5)(x.reshape(len(x), -1)))
        return self.layer(CLASSES)(x) if issubclass(self.layer, nn.Dense) else nn.Dense(CLASSES)(x)


@pytest.mark.parametrize('layer', [Tripled, Doubled, Squared, Renamed])
def test_a_layer_is_known_by_what_it_computes_and_not_by_its_class(x64, layer):
    model, params, x = problem((OwnLayers(layer), (4, 4, 1)))
    expected = dense_kernel(model, params, x)
    np.testing.assert_allclose(kernel_fn(model)(params, x), expected, rtol=1e-10)
    assert (kernels.unstructured_parameters(model) == []) == (layer is Renamed)


class Switching(nn.Module):
    """Dropout that a switch turns off, which the kernel has to know as the model does."""

    training: bool = True

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dropout(0.5, deterministic=not (self.training and train))(nn.Dense(5)(x))
        return nn.Dense(CLASSES)(nn.relu(x))


def test_the_kernel_of_a_network_whose_switch_has_no_default(x64):
    model, params, x = problem((Switching(), (4,)))
    expected = dense_kernel(model, params, x)
    np.testing.assert_allclose(kernel_fn(model)(params, x), expected, rtol=1e-10)
