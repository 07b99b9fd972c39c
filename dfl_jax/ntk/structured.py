"""The kernel of a network of dense and convolutional layers, layer by layer.

Eq. (3) of NTK-DFL, H[m, n] = 1/C sum_c <J_c(x_m), J_c(x_n)>. The Jacobian of a dense layer is
an outer product a (x) d_c of its input and the backpropagated signal of output c, so its share of
the kernel is (A A^T + 1) * sum_c D_c D_c^T. A convolution contributes the Gram matrix of its small
parameter Jacobian, one output at a time.
"""

from collections.abc import Callable
from functools import reduce

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.models import Model
from dfl_jax.models.conv import Conv, patches
from dfl_jax.ntk.precision import gram, product, symmetric, traced_precision

# What the layers compute whose kernels are known; a subclass may compute something else
LAYERS = (nn.Dense.__call__, nn.Conv.__call__, Conv.__call__)
Block = Callable[[slice, slice], Array]  # rows, columns -> entries of a symmetric matrix there


def record_layers(model: Model, params: PyTree, x: Array, taps: dict | None = None):
    """Logits and, in order of the calls, each layer's (path, module, input, output).

    `taps` adds a perturbation to the output of the layers it names, so that the derivative by a
    tap is the signal that backpropagation brings to that layer.
    """
    layers = []

    def record(call, args, kwargs, context):
        y = call(*args, **kwargs)
        module = context.module
        known = isinstance(module, nn.Dense | nn.Conv) and type(module).__call__ in LAYERS
        if context.method_name == '__call__' and known:
            path = context.module.path
            if taps is not None and path in taps:
                y = y + taps[path]
            layers.append((path, context.module, args[0], y))
        return y

    with nn.intercept_methods(record):
        logits = model.apply(params, x)
    return logits, layers


def plain_layers(model: Model) -> dict[tuple[str, ...], type[nn.Module]]:
    """The paths of the plain dense and convolutional layers that the network calls once."""
    calls: list = []

    def trace(key, x):
        layers = record_layers(model, model.init(key), x)[1]
        calls.extend((path, module, a.ndim) for path, module, a, _ in layers)

    jax.eval_shape(
        trace,
        jax.eval_shape(lambda: jax.random.key(0)),
        jax.ShapeDtypeStruct((2, *model.input_shape), jnp.float32),
    )

    def plain(module, ndim):
        if isinstance(module, nn.Dense):
            return ndim == 2
        return (
            ndim == 4
            and len(module.kernel_size) == 2
            and module.feature_group_count == 1
            and module.kernel_dilation in (None, 1)
            and module.input_dilation in (None, 1)
            and module.mask is None
            and (not isinstance(module.padding, str) or module.padding in ('SAME', 'VALID'))
        )

    paths = [path for path, _, _ in calls]
    return {path: type(m) for path, m, ndim in calls if plain(m, ndim) and paths.count(path) == 1}


def unstructured_parameters(model: Model) -> list[str]:
    """Names of the parameters that no plain layer holds."""
    known = plain_layers(model)
    leaves = jax.tree_util.tree_leaves_with_path(model.shapes)
    return [
        '/'.join(str(k.key) for k in keys)
        for keys, _ in leaves
        if tuple(k.key for k in keys[:-1]) not in known
    ]


def structured(model: Model, params: PyTree, x: Array) -> Array:
    """H [N, N] of the weights `params` on x [N, ...]."""
    logits, layers = record_layers(model, params, x)
    taps = {path: jnp.zeros_like(y) for path, _, _, y in layers}
    classes = model.classes
    parts: list[Block] = []  # whose sum is C H

    _, head, a, output = layers[-1]
    # A subclass may promise a dense head by inheritance and yet work on its output.
    if getattr(model.module, 'dense_head', False) and output is logits:
        of_head = _dense_inputs(head, a)  # D_c is the c-th unit vector
        parts.append(lambda i, j: classes * of_head(i, j))
        layers = layers[:-1]
        if layers and isinstance(layers[-1][1], nn.Dense):
            # With D_c = gate * W[:, c] the sum over outputs collapses to (G * s) G^T,
            # s_h = sum_c W[h, c]^2.
            path, module, a, _ = layers[-1]
            gate = gate_of(model, params, x, path, taps[path])
            head_weights = leaf_at(params, head.path)['kernel']  # [h, C]
            s = jnp.sum(head_weights**2, axis=1)
            signal = gate * jnp.sqrt(s)[None, :]
            of_inputs = _dense_inputs(module, a)
            parts.append(lambda i, j: of_inputs(i, j) * product(signal[i], signal[j].T))
            layers = layers[:-1]

    if layers:
        forward = lambda t: record_layers(model, params, x, t)[0]  # noqa: E731
        remaining = _remaining_layers(forward, layers, taps)
        parts.append(lambda i, j: remaining[i, j])
    # Block by block: whole matrices of every layer would pass through memory several times
    return symmetric(lambda i, j: reduce(jnp.add, (part(i, j) for part in parts)) / classes, len(x))


def structured_members(model: Model, params: PyTree, x: Array) -> Array:
    """H [K N, K N] of members' weights, leaves [K, ...], each on its own data, x [K, N, ...]."""
    modules: list = []

    def record(w: PyTree, x: Array):
        logits, layers = record_layers(model, w, x)
        modules[:] = [(path, module, output is logits) for path, module, _, output in layers]
        return [a for *_, a, _ in layers], [output for *_, output in layers]

    def flat(a: Array) -> Array:
        return a.reshape(-1, *a.shape[2:])

    def forward(taps: dict) -> Array:
        each = jax.tree.map(lambda t: t.reshape(*x.shape[:2], *t.shape[1:]), taps)
        return flat(jax.vmap(lambda w, x, t: record_layers(model, w, x, t)[0])(params, x, each))

    inputs, outputs = jax.vmap(record)(params, x)
    taps = {path: jnp.zeros_like(flat(y)) for (path, *_), y in zip(modules, outputs, strict=True)}
    layers = [
        (path, module, flat(a), None) for (path, module, _), a in zip(modules, inputs, strict=True)
    ]
    kernel = jnp.zeros((x.shape[0] * x.shape[1],) * 2, outputs[-1].dtype)
    if getattr(model.module, 'dense_head', False) and modules[-1][2]:
        *layers, (_, head, a, _) = layers
        kernel = model.classes * symmetric(_dense_inputs(head, a), len(a))  # D_c as above
    if layers:
        kernel = kernel + _remaining_layers(forward, layers, taps)
    return kernel / model.classes


def gate_of(model: Model, params: PyTree, x: Array, path, tap: Array) -> Array:
    """d a / d z of the elementwise activation between the last two dense layers, [N, h]."""

    def head_input(tap):
        return record_layers(model, params, x, {path: tap})[1][-1][2]

    a, vjp = jax.vjp(head_input, tap)
    return vjp(jnp.ones_like(a))[0]


def _remaining_layers(forward: Callable[[dict], Array], layers, taps: dict) -> Array:
    """The share of layers whose signals differ from output to output, one output at a time.

    forward: perturbations of these layers' outputs -> logits [N, C].
    """
    logits, vjp = jax.vjp(forward, {path: taps[path] for path, *_ in layers})
    dense = [layer for layer in layers if isinstance(layer[1], nn.Dense)]
    seen = {path: (m, patches(m, a)) for path, m, a, _ in layers if isinstance(m, nn.Conv)}

    def one_output(carry, c):
        signals_gram, conv_gram = carry
        (signals,) = vjp(jnp.zeros_like(logits).at[:, c].set(1))
        signals_gram = {path: so_far + gram(signals[path]) for path, so_far in signals_gram.items()}
        for path, (module, inputs) in seen.items():
            conv_gram = conv_gram + gram(_convolution_rows(module, inputs, signals[path]))
        return (signals_gram, conv_gram), None

    samples, classes = logits.shape
    zeros = jnp.zeros((samples, samples), logits.dtype)
    start = ({path: zeros for path, *_ in dense}, zeros)
    (signals_gram, kernel), _ = lax.scan(one_output, start, jnp.arange(classes))
    for path, module, a, _ in dense:
        kernel = kernel + symmetric(_dense_inputs(module, a), samples) * signals_gram[path]
    return kernel


def _dense_inputs(module: nn.Dense, a: Array) -> Block:
    """Blocks of A A^T, plus one where the layer has a bias."""
    one = 1 if module.use_bias else 0
    return lambda i, j: product(a[i], a[j].T) + one


def _convolution_rows(module: nn.Conv, seen: Array, signal: Array) -> Array:
    """The Jacobian of one output by a convolution's parameters, [N, parameters of the layer].

    seen: its patches, [N, height', width', k]; signal: [N, height', width', features].
    """
    rows = jnp.einsum('nhwk,nhwf->nkf', seen, signal, precision=traced_precision())
    rows = rows.reshape(len(rows), -1)
    if module.use_bias:
        rows = jnp.concatenate([rows, signal.sum(axis=(1, 2))], axis=1)
    return rows


def leaf_at(params: PyTree, path: tuple[str, ...]) -> PyTree:
    for name in path:
        params = params[name]
    return params
