"""The models, their initial weights and what binds them to a data set."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx
from flax.traverse_util import flatten_dict

from dfl_jax.execution.memory import aggregator_bytes, choose_chunk, client_bytes
from dfl_jax.initialisation import initial_params
from dfl_jax.models import (
    CNN3,
    GRU,
    INITIALIZERS,
    MLP,
    MODELS,
    VGG16,
    DropoutCNN,
    Model,
    SmallCNN,
    architecture,
    bind,
    first_weights,
    layers,
    with_initializer,
)
from dfl_jax.models.conv import Conv, max_pool
from dfl_jax.ntk import kernel_fn
from dfl_jax.tasks import CLASSIFICATION, NEXT_TOKEN

leaves_by_name = functools.partial(flatten_dict, sep='/')


@pytest.mark.parametrize(
    ('module', 'shape', 'size'),
    [
        (MLP(10), (784,), 79_510),
        (MLP(10), (28, 28, 1), 79_510),
        (MLP(3, ()), (5,), 18),
        (MLP(3, (7, 6)), (5,), 42 + 48 + 21),
        (SmallCNN(10), (28, 28, 1), 320 + 18_496 + (7 * 7 * 64 + 1) * 100 + 1_010),
        (SmallCNN(10), (32, 32, 3), 896 + 18_496 + (8 * 8 * 64 + 1) * 100 + 1_010),
        (
            CNN3(17),
            (32, 32, 10),
            (9 * 10 + 1) * 32
            + (9 * 32 + 1) * 64
            + (9 * 64 + 1) * 64
            + (32 * 32 * 64 + 1) * 128
            + (128 + 1) * 64
            + (64 + 1) * 17,
        ),
        (DropoutCNN(10), (28, 28, 1), 320 + 18_496 + (12 * 12 * 64 + 1) * 128 + 1_290),
        (VGG16(10), (32, 32, 3), 33_638_218),
        (VGG16(10), (64, 40, 3), 33_638_218 + 512 * 4096),
    ],
    ids=str,
)
def test_shapes_and_parameter_count(module, shape, size):
    model = bind(module, list(shape))
    assert model.size == size
    assert model.input_shape == shape and model.classes == module.classes
    params = jax.eval_shape(model.init, jax.random.key(0))
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == size
    logits = jax.eval_shape(model.apply, params, jax.ShapeDtypeStruct((7, *shape), jnp.float32))
    assert logits.shape == (7, model.classes)


@pytest.mark.parametrize(
    'name',
    [
        pytest.param(n, marks=pytest.mark.slow) if n == 'vgg16' else n
        for n in MODELS
        if n not in ('linear', 'gru', 'cnn_dropout')  # zeros; flax's own; PyTorch's
    ],
)
def test_he_normal_weights_and_zero_biases(name):
    model = bind(MODELS[name](10), (32, 32, 1))
    params = jax.jit(model.init)(jax.random.key(0))
    for layer, leaf in leaves_by_name(params).items():
        leaf = np.asarray(leaf)
        if layer.endswith('bias'):
            assert not leaf.any()
        else:
            fan_in = leaf.size // leaf.shape[-1]
            noise = 5 / np.sqrt(2 * leaf.size)  # five standard errors of a standard deviation
            assert leaf.std() == pytest.approx(np.sqrt(2 / fan_in), rel=noise), layer
            assert abs(leaf.mean()) < 5 * leaf.std() / np.sqrt(leaf.size)


def test_the_mlp_is_the_one_of_the_paper():
    model = bind(MLP(3, (4,)), (2, 3))
    params = model.init(jax.random.key(1))
    layers = leaves_by_name(params)
    x = np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32)
    hidden = np.maximum(x.reshape(5, 6) @ layers['Dense_0/kernel'] + 0.0, 0)
    np.testing.assert_allclose(
        model.apply(params, x), hidden @ layers['Dense_1/kernel'], rtol=1e-5, atol=1e-6
    )


class BatchNormed(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.BatchNorm(use_running_average=True)(nn.Dense(4)(x))
        return nn.Dense(3)(x)


class Images(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Conv(3, (3, 3))(x)


class Constant(nn.Module):
    def __call__(self, x):
        return x


class OneRow(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(x).sum(axis=0, keepdims=True)


class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=False)(x))


class NoisyWhereItTrains(nn.Module):
    @nn.compact
    def __call__(self, x, train=False):
        x = nn.Dense(3)(x)
        return x + jax.random.normal(self.make_rng('noise'), x.shape) if train else x


@pytest.mark.parametrize(
    ('module', 'shape', 'message'),
    [
        (Noisy(), (5,), 'Noisy draws random numbers .* deterministic=not train'),
        (NoisyWhereItTrains(), (5,), 'NoisyWhereItTrains draws random numbers other than for drop'),
        (BatchNormed(), (5,), r"BatchNormed has variables \['batch_stats'\].*group normalisation"),
        (Images(), (6, 6, 1), r'Images maps \(2, 6, 6, 1\) to \(2, 6, 6, 3\).*logits \[B, C\]'),
        (Constant(), (5,), 'Constant has no parameters'),
        (OneRow(), (5,), r'OneRow maps \(2, 5\) to \(1, 3\)'),
        (VGG16(10), (28, 28, 1), r'VGG16 .*\(2, 28, 28, 1\): 28x28 .*5 poolings; .*32x32'),
        (VGG16(10), (784,), r'VGG16 does not take inputs of shape \(2, 784\)'),
        (SmallCNN(10), (28, 28), r'\(2, 28, 28\): .*; if these are grey images, give x'),
        (CNN3(10), (28, 28), r'if these are grey images, give x\[\.\.\., None\]'),
    ],
)
def test_modules_that_cannot_be_bound(module, shape, message):
    with pytest.raises(ValueError, match=message):
        bind(module, shape)


# -------------------------------------------------------------------------------- initializers


class Normed(nn.Module):
    """Kernels of both kinds, scales, and biases that are not zero."""

    @nn.compact
    def __call__(self, x):  # [B, height, width, channels] -> [B, C]
        noise = nn.initializers.normal()
        x = nn.relu(nn.LayerNorm()(Conv(24, (3, 3), bias_init=noise)(x)))
        x = nn.relu(nn.Dense(40, bias_init=noise)(x.reshape(x.shape[0], -1)))
        return nn.Dense(50, bias_init=noise)(x)


@pytest.mark.parametrize(
    'name',
    [
        n if n in ('glorot_uniform', 'orthogonal') else pytest.param(n, marks=pytest.mark.slow)
        for n in INITIALIZERS
    ],
)
def test_with_initializer(name):
    own = bind(Normed(), (6, 6, 16))
    model = with_initializer(own, name)
    key = jax.random.key(4)
    before, after = (leaves_by_name(jax.jit(m.init)(key)) for m in (own, model))
    assert list(before) == list(after)
    numerator = {'he': 2, 'lecun': 1, 'glorot': 2, 'orthogonal': 1}[name.split('_')[0]]
    for layer, leaf in after.items():
        leaf = np.asarray(leaf)
        assert leaf.shape == before[layer].shape and leaf.dtype == before[layer].dtype
        if not layer.endswith('kernel'):
            np.testing.assert_array_equal(leaf, before[layer])
            continue
        matrix = leaf.reshape(-1, leaf.shape[-1])
        fan_in, fan_out = matrix.shape[0], leaf.size // leaf.shape[-2]
        if name == 'orthogonal':
            gram = matrix.T @ matrix if matrix.shape[0] >= matrix.shape[1] else matrix @ matrix.T
            np.testing.assert_allclose(gram, np.eye(len(gram)), atol=1e-5)
            continue
        variance = numerator / (fan_in + fan_out if name.startswith('glorot') else fan_in)
        noise = 5 * np.sqrt(2 / leaf.size)  # five standard errors of a variance
        assert leaf.var() == pytest.approx(variance, rel=noise), layer
        if name.endswith('uniform'):
            bound = np.sqrt(3 * variance)
            assert 0.99 * bound < np.abs(leaf).max() <= bound * 1.000001
        else:
            assert np.abs(leaf).max() > 2 * np.sqrt(variance)


def test_every_kernel_and_client_has_a_draw_of_its_own():
    model = with_initializer(bind(MLP(6, (6, 6)), (6,)), 'he_normal')
    one = leaves_by_name(model.init(jax.random.key(0)))
    kernels = [np.asarray(leaf) for layer, leaf in one.items() if layer.endswith('kernel')]
    assert len(np.unique(np.stack(kernels))) == 3 * 36
    np.testing.assert_array_equal(
        model.init(jax.random.key(0))['Dense_1']['kernel'], one['Dense_1/kernel']
    )
    stacked = initial_params(jax.random.key(1), model, 5, 'independent')
    assert len(np.unique(np.asarray(stacked['Dense_0']['kernel']))) == 5 * 36


def test_initializers_that_cannot_be_used(small):
    with pytest.raises(
        ValueError, match=r"unknown initializer 'xavier'; choose .*he_normal, .*ort"
    ):
        with_initializer(small, 'xavier')
    with pytest.raises(ValueError, match='Shift has no parameter named kernel for he_normal'):
        with_initializer(bind(Shift(), (5,)), 'he_normal')


class Shift(nn.Module):
    @nn.compact
    def __call__(self, x):
        return x + self.param('shift', nn.initializers.zeros, (1, x.shape[-1]))


class Doubled(MLP):
    """A user's own model: the MLP on inputs twice as large."""

    @nn.compact
    def __call__(self, x):
        return super().__call__(2 * x)


@pytest.mark.parametrize(
    ('module', 'first', 'last'),
    [
        (MLP(3), ('Dense_0', 'kernel'), ('Dense_1',)),
        (SmallCNN(3), ('Conv_0', 'kernel'), ('Dense_1',)),
        (GRU(3), ('Embed_0', 'embedding'), ('Dense_0',)),
        (architecture('resnet-4-8', 3), ('Conv_0', 'kernel'), ('Dense_0',)),
        (architecture('vit-8-8', 3), ('Dense_0', 'kernel'), ('Dense_1',)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_layers_in_the_order_of_their_calls(module, first, last):
    text = isinstance(module, GRU)
    model = bind(module, (6,) if text else (16, 16, 3), NEXT_TOKEN if text else CLASSIFICATION)
    assert first_weights(model) == first and layers(model)[-1] == last
    assert {path[:-1] for path in flatten_dict(model.shapes)} == {*layers(model)}


def test_a_users_own_model():
    """It binds, initialises and has a kernel like any other."""
    model, plain = bind(Doubled(3, (4,)), (5,)), bind(MLP(3, (4,)), (5,))
    assert model.size == plain.size
    params = model.init(jax.random.key(0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 5)), jnp.float32)
    np.testing.assert_allclose(model.apply(params, x), plain.apply(params, 2 * x), rtol=1e-6)
    np.testing.assert_allclose(
        kernel_fn(model)(params, x), kernel_fn(plain)(params, 2 * x), rtol=1e-5
    )


def test_a_model_of_flax_nnx():
    """By flax's own bridge it is a module like any other, of the same kernel."""

    class Net(nnx.Module):
        def __init__(self, width, classes, *, rngs):
            self.hidden = nnx.Linear(5, width, rngs=rngs)
            self.out = nnx.Linear(width, classes, rngs=rngs)

        def __call__(self, x):
            return self.out(nnx.relu(self.hidden(x)))

    model, plain = bind(nnx.bridge.to_linen(Net, 4, 3), (5,)), bind(MLP(3, (4,)), (5,))
    assert model.size == plain.size
    params = model.init(jax.random.key(0))
    same = {'Dense_0': params['hidden'], 'Dense_1': params['out']}
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 5)), jnp.float32)
    np.testing.assert_allclose(model.apply(params, x), plain.apply(same, x), rtol=1e-6)
    np.testing.assert_allclose(kernel_fn(model)(params, x), kernel_fn(plain)(same, x), rtol=1e-5)


# -------------------------------------------------------------------------------- switches


class Switchable(nn.Module):
    """Dropout that any switch turns on, given in the call."""

    @nn.compact
    def __call__(self, x, **switch):
        ((name, value),) = switch.items()
        off = value if name in ('deterministic', 'inference', 'is_eval') else not value
        return nn.Dense(3)(nn.Dropout(0.5)(x, deterministic=off))


def switched_by(name: str, default: object, keyword_only: bool) -> nn.Module:
    """A module whose `__call__` has a switch of that name."""
    star, given = '*, ' if keyword_only else '', '' if default is ... else f'={default}'
    names = {'Switchable': Switchable, 'nn': nn}
    exec(
        f'class Own(nn.Module):\n'
        f'    @nn.compact\n'
        f'    def __call__(self, x, {star}{name}{given}):\n'
        f'        return Switchable()(x, {name}={name})\n',
        names,
    )
    return names['Own']()


class BySwitchOfItsOwn(nn.Module):
    """The switch is a field, as flax's own modules have it."""

    deterministic: bool | None = None

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=self.deterministic)(x))


class ByField(nn.Module):
    training: bool = False

    def setup(self):
        self.drop, self.out = nn.Dropout(0.5), nn.Dense(3)

    def __call__(self, x):
        return self.out(self.drop(x, deterministic=not self.training))


class ByItsKey(nn.Module):
    """No switch: it drops out where it is given a key."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.Dropout(0.5)(x, deterministic=not self.has_rng('dropout')))


def check_dropout(model: Model) -> None:
    """It drops out in training, by the key, and not in evaluation."""
    params, x = model.init(jax.random.key(0)), jnp.ones((4, 50))
    plain = model.apply(params, x)
    np.testing.assert_array_equal(plain, model.apply(params, x))
    one, other = (model.apply(params, x, jax.random.key(n)) for n in range(2))
    assert not np.allclose(one, plain) and not np.allclose(one, other)
    np.testing.assert_array_equal(one, model.apply(params, x, jax.random.key(0)))
    dense = params.get('Dense_0') or params.get('out') or params['Switchable_0']['Dense_0']
    expected = np.asarray(x) @ np.asarray(dense['kernel'])  # biases are zero
    np.testing.assert_allclose(plain, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ('name', 'default', 'keyword_only'),
    [
        ('train', False, False),
        ('training', False, False),
        ('is_training', ..., True),
        ('deterministic', True, False),
        ('deterministic', None, True),
        ('inference', ..., False),
        ('is_eval', True, True),
    ],
)
def test_a_switch_of_any_known_name_turns_dropout_on_in_training_alone(name, default, keyword_only):
    check_dropout(bind(switched_by(name, default, keyword_only), (50,)))


@pytest.mark.parametrize(
    'module',
    [BySwitchOfItsOwn(), BySwitchOfItsOwn(True), ByField(), ByItsKey(), nn.remat(ByField)()],
)
def test_a_switch_may_be_a_field_or_the_key(module):
    check_dropout(bind(module, (50,)))


def test_a_text_that_is_no_mode_is_no_switch():
    bind(switched_by('train', False, False), (5,))
    assert bind(Pooled(), (5,)).classes == 3


@pytest.mark.parametrize('default', [False, True, "'eval'", ...])
def test_an_unknown_switch_is_refused(default):
    with pytest.raises(ValueError, match=r'Own takes noisy, which may be a switch .* train,'):
        bind(switched_by('noisy', default, False), (5,))


class Pooled(nn.Module):
    @nn.compact
    def __call__(self, x, pool='mean'):
        return nn.Dense(3)(x if pool == 'mean' else 2 * x)


class SwitchedOff(nn.Module):
    """Dropout that nobody can turn on, of one of flax's modules or of a part made in `setup`."""

    kind: str

    def setup(self):
        self.out = nn.Dense(3)
        self.parts = [nn.Dropout(0.3), BySwitchOfItsOwn(True)]
        self.attention = nn.MultiHeadDotProductAttention(
            1, dropout_rate=0.1 * (self.kind == 'attention'), deterministic=True
        )

    def __call__(self, x, mask=None, noisy=None):
        if self.kind == 'part' or noisy:
            return self.parts[1](x)
        x = self.parts[0](x, deterministic=self.kind != 'never called')
        return self.out(self.attention(x[:, None])[:, 0] if self.kind == 'attention' else x)


@pytest.mark.parametrize('kind', ['flag', 'part', 'attention'])
def test_dropout_that_stays_off_in_training_is_refused(kind):
    with pytest.raises(ValueError, match='SwitchedOff has dropout that stays off while it trains'):
        bind(SwitchedOff(kind), (5,))


def test_dropout_of_no_rate_need_not_be_switched():
    class Plain(nn.Module):
        @nn.compact
        def __call__(self, x, mask=None, width: int = 3):
            return nn.Dense(width)(nn.Dropout(0.0, deterministic=True)(x))

    assert bind(Plain(), (5,)).classes == 3


def test_dropout_of_flax_nnx_is_refused_in_a_line():
    """Its draws come from keys that the bridge does not hand on, in evaluation, too."""

    class Net(nnx.Module):
        def __init__(self, rate, keys=None, *, rngs):
            self.out = nnx.Linear(5, 3, rngs=rngs)
            self.drop = nnx.Dropout(rate, rngs=keys or rngs)

        def __call__(self, x, train=False):
            return self.out(self.drop(x, deterministic=not train))

    class OwnKeys(Net):
        def __init__(self, rate, *, rngs):
            super().__init__(rate, nnx.Rngs(0), rngs=rngs)

    class Around(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nnx.bridge.to_linen(OwnKeys, 0.5)(x)

    for module in (nnx.bridge.to_linen(Net, 0.5), Around()):
        with pytest.raises(ValueError, match=r'has dropout of flax.nnx.* write the module with'):
            bind(module, (5,))


# ---------------------------------------------------------------------------- initial weights


@pytest.fixture(scope='module')
def small():
    return bind(MLP(3, (4,)), (5,))


def test_same_initial_weights(small):
    params = initial_params(jax.random.key(2), small, 6)
    one = small.init(jax.random.key(2))
    for leaf, expected in zip(jax.tree.leaves(params), jax.tree.leaves(one), strict=True):
        assert leaf.shape == (6, *expected.shape)
        assert (leaf == expected[None]).all()


def test_independent_initial_weights(small):
    params = initial_params(jax.random.key(2), small, 6, 'independent')
    for name, leaf in leaves_by_name(params).items():
        assert leaf.shape[0] == 6
        if name.endswith('kernel'):
            assert len(np.unique(np.asarray(leaf).reshape(6, -1)[:, 0])) == 6
    again = initial_params(jax.random.key(2), small, 6, 'independent')
    other = initial_params(jax.random.key(3), small, 6, 'independent')
    assert (params['Dense_0']['kernel'] == again['Dense_0']['kernel']).all()
    assert (params['Dense_0']['kernel'] != other['Dense_0']['kernel']).all()


def test_unknown_init(small):
    with pytest.raises(ValueError, match="unknown init 'zeros'; choose one of same, independent"):
        initial_params(jax.random.key(0), small, 2, 'zeros')


# ------------------------------------------------------------------------------------- memory


def test_as_many_as_fit():
    assert choose_chunk(5, 1000, chunk=3) == 3
    assert choose_chunk(2, 1000, chunk=3) == 2
    assert choose_chunk(5, 1000) == (1 if jax.default_backend() == 'cpu' else 5)


@pytest.mark.parametrize(
    ('each', 'asked', 'remedy'),
    [
        (10**15, None, 'lower --degree'),
        (10**15, 4, 'lower --degree'),
        (10**6, 10**9, 'lower chunk'),
    ],
)
def test_more_than_fit(each, asked, remedy):
    with pytest.raises(ValueError, match=remedy) as caught:
        choose_chunk(10**9, each, asked, 'lower --degree')
    need = (asked or 1) * each / 2**30
    assert f'{asked or 1} at once need {need:.1f} GiB' in str(caught.value)
    assert '\n' not in str(caught.value)


def test_a_aggregator_holds_its_kernel_at_least(small):
    kernel = 4 * 1000**2
    assert aggregator_bytes(1000, small) > kernel
    assert aggregator_bytes(2000, small) > 3.9 * aggregator_bytes(1000, small)


def test_a_client_holds_its_data_and_the_weights(small):
    data = 4 * 1000 * math.prod(small.input_shape)
    assert client_bytes(1000, small) > data + 4 * small.size
    assert client_bytes(2000, small) > data + client_bytes(1000, small)


def test_the_convolution_and_the_pooling_are_those_of_flax(x64):
    x = jax.random.normal(jax.random.key(0), (3, 9, 6, 2), jnp.float64)
    ours, flax = Conv(5, (3, 5), param_dtype=jnp.float64), nn.Conv(5, (3, 5))
    variables = ours.init(jax.random.key(1), x)
    bias = variables['params']['bias'] + jnp.arange(5.0)
    variables = {'params': variables['params'] | {'bias': bias}}
    np.testing.assert_allclose(ours.apply(variables, x), flax.apply(variables, x), atol=1e-12)

    def loss(module, pool):
        return jax.value_and_grad(lambda v: (pool(module.apply(v, x)) ** 2).sum())(variables)

    theirs = loss(flax, lambda y: nn.max_pool(y, (2, 2), (2, 2)))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-10)
    jax.tree.map(close, loss(ours, max_pool), theirs)


def test_what_our_convolution_leaves_to_flax():
    image = jnp.zeros((1, 4, 4, 4))
    for other in ({'feature_group_count': 2}, {'kernel_dilation': 2}, {'dtype': jnp.bfloat16}):
        with pytest.raises(ValueError, match='are for flax'):
            Conv(4, (3, 3), **other).init(jax.random.key(0), image)
