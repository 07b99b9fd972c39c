"""The empirical neural tangent kernel of one network, without its Jacobian.

Every backend computes Eq. (3) of NTK-DFL, H[m, n] = 1/C sum_c <J_c(x_m), J_c(x_n)>, with J_c the
Jacobian of output c by all parameters:

`structured`   layer by layer. The Jacobian of a dense layer is an outer product a (x) d_c of its
               input and the backpropagated signal of output c, so its share of the kernel is
               (A A^T + 1) * sum_c D_c D_c^T. A convolution contributes the Gram matrix of its own,
               small, parameter Jacobian, one output at a time.
`output_scan`  any network: per-sample gradients of one output at a time, in blocks of samples.
`nt`           neural-tangents, in the same blocks.
`auto`         `structured` where every parameter lies in a layer it knows, else `output_scan`.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax
from jax.flatten_util import ravel_pytree

from dfl_jax.base import Array, PyTree
from dfl_jax.models import Model

KERNELS = ('auto', 'structured', 'output_scan', 'nt')
Kernel = Callable[[PyTree, Array], Array]  # (params, x [N, ...]) -> H [N, N]

gram_product = partial(jnp.matmul, precision=lax.Precision.HIGHEST)


def kernel_fn(model: Model, method: str = 'auto') -> Kernel:
    """The kernel function of `model` by the named backend.

    Raises ValueError for an unknown backend, or for `structured` on a network that holds
    parameters outside plain dense and convolutional layers.
    """
    if method not in KERNELS:
        raise ValueError(f'unknown kernel {method!r}; choose one of {", ".join(KERNELS)}')
    if method in ('auto', 'structured'):
        unknown = _unstructured_parameters(model)
        if not unknown:
            return partial(_structured, model)
        if method == 'structured':
            raise ValueError(
                f'kernel structured does not know the layers of {", ".join(unknown)}; '
                'use --kernel=output_scan'
            )
    if method == 'nt':
        return _in_blocks(_neural_tangents_block(model), model, budget=32 * 2**20)
    return _in_blocks(partial(_output_scan_block, model), model, budget=256 * 2**20)


def members_kernel_fn(model: Model) -> Kernel:
    """The kernel of Jacobians that members take at weights of their own, layer by layer.

    (params with leaves [K, ...], x [K, N, ...]) -> H [K N, K N], the member's data one after the
    other. Raises ValueError where `structured` does not know the network.
    """
    unknown = _unstructured_parameters(model)
    if unknown:
        raise ValueError(
            f'Jacobians at weights of their own need dense and convolutional layers, not those of '
            f'{", ".join(unknown)}'
        )
    return partial(_structured_members, model)


# ---------------------------------------------------------------------------------- structured


def _record_layers(model: Model, params: PyTree, x: Array, taps: dict | None = None):
    """Logits and, in order of the calls, each layer's (path, module, input, output).

    `taps` adds a perturbation to the output of the layers it names, so that the derivative by a
    tap is the signal that backpropagation brings to that layer.
    """
    layers = []

    def record(call, args, kwargs, context):
        y = call(*args, **kwargs)
        if context.method_name == '__call__' and isinstance(context.module, nn.Dense | nn.Conv):
            path = context.module.path
            if taps is not None and path in taps:
                y = y + taps[path]
            layers.append((path, context.module, args[0], y))
        return y

    with nn.intercept_methods(record):
        logits = model.module.apply({'params': params}, x)
    return logits, layers


def plain_layers(model: Model) -> dict[tuple[str, ...], type[nn.Module]]:
    """The paths of the plain dense and convolutional layers that the network calls once."""
    found: list = []

    def trace(key, x):
        layers = _record_layers(model, model.init(key), x)[1]
        found.extend((path, module, a.ndim) for path, module, a, _ in layers)

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

    paths = [path for path, _, _ in found]
    return {path: type(m) for path, m, ndim in found if plain(m, ndim) and paths.count(path) == 1}


def _unstructured_parameters(model: Model) -> list[str]:
    """Names of the parameters that no plain layer holds."""
    known = plain_layers(model)
    leaves = jax.tree_util.tree_leaves_with_path(model.shapes)
    return [
        '/'.join(str(k.key) for k in keys)
        for keys, _ in leaves
        if tuple(k.key for k in keys[:-1]) not in known
    ]


def _structured(model: Model, params: PyTree, x: Array) -> Array:
    logits, layers = _record_layers(model, params, x)
    taps = {path: jnp.zeros_like(y) for path, _, _, y in layers}
    classes = model.classes
    kernel = jnp.zeros((len(x), len(x)), logits.dtype)

    _, head, a, output = layers[-1]
    # A subclass may promise a dense head by inheritance and yet work on its output.
    if getattr(model.module, 'dense_head', False) and output is logits:
        kernel = kernel + classes * _dense_inputs(head, a)  # D_c is the c-th unit vector
        layers = layers[:-1]
        if layers and isinstance(layers[-1][1], nn.Dense):
            # With D_c = gate * W[:, c] the sum over outputs collapses to (G * s) G^T,
            # s_h = sum_c W[h, c]^2.
            path, module, a, _ = layers[-1]
            gate = _gate(model, params, x, path, taps[path])
            head_weights = _get(params, head.path)['kernel']  # [h, C]
            s = jnp.sum(head_weights**2, axis=1)
            signal = gram_product(gate * s[None, :], gate.T)
            kernel = kernel + _dense_inputs(module, a) * signal
            layers = layers[:-1]

    if layers:
        forward = lambda t: _record_layers(model, params, x, t)[0]  # noqa: E731
        kernel = kernel + _remaining_layers(forward, layers, taps)
    return kernel / classes


def _structured_members(model: Model, params: PyTree, x: Array) -> Array:
    modules: list = []

    def record(w: PyTree, x: Array):
        logits, layers = _record_layers(model, w, x)
        modules[:] = [(path, module, output is logits) for path, module, _, output in layers]
        return [a for *_, a, _ in layers], [output for *_, output in layers]

    def flat(a: Array) -> Array:
        return a.reshape(-1, *a.shape[2:])

    def forward(taps: dict) -> Array:
        each = jax.tree.map(lambda t: t.reshape(*x.shape[:2], *t.shape[1:]), taps)
        return flat(jax.vmap(lambda w, x, t: _record_layers(model, w, x, t)[0])(params, x, each))

    inputs, outputs = jax.vmap(record)(params, x)
    taps = {path: jnp.zeros_like(flat(y)) for (path, *_), y in zip(modules, outputs, strict=True)}
    layers = [
        (path, module, flat(a), None) for (path, module, _), a in zip(modules, inputs, strict=True)
    ]
    kernel = jnp.zeros((x.shape[0] * x.shape[1],) * 2, outputs[-1].dtype)
    if getattr(model.module, 'dense_head', False) and modules[-1][2]:
        *layers, (_, head, a, _) = layers
        kernel = kernel + model.classes * _dense_inputs(head, a)  # D_c is the c-th unit vector
    if layers:
        kernel = kernel + _remaining_layers(forward, layers, taps)
    return kernel / model.classes


def _gate(model: Model, params: PyTree, x: Array, path, tap: Array) -> Array:
    """d a / d z of the elementwise activation between the last two dense layers, [N, h]."""

    def head_input(tap):
        return _record_layers(model, params, x, {path: tap})[1][-1][2]

    a, pull = jax.vjp(head_input, tap)
    return pull(jnp.ones_like(a))[0]


def _remaining_layers(forward: Callable[[dict], Array], layers, taps: dict) -> Array:
    """The share of layers whose signals differ from output to output, one output at a time.

    forward: perturbations of these layers' outputs -> logits [N, C].
    """
    mine = {path: taps[path] for path, *_ in layers}
    logits, pull = jax.vjp(forward, mine)
    dense = [layer for layer in layers if isinstance(layer[1], nn.Dense)]
    patches = {p: (m, _patches(m, a)) for p, m, a, _ in layers if isinstance(m, nn.Conv)}

    def one_output(carry, c):
        signals_gram, conv_gram = carry
        (signals,) = pull(jnp.zeros_like(logits).at[:, c].set(1))
        signals_gram = {
            path: gram + gram_product(signals[path], signals[path].T)
            for path, gram in signals_gram.items()
        }
        for path, (module, inputs) in patches.items():
            rows = _convolution_rows(module, inputs, signals[path])
            conv_gram = conv_gram + gram_product(rows, rows.T)
        return (signals_gram, conv_gram), None

    samples, classes = logits.shape
    zeros = jnp.zeros((samples, samples), logits.dtype)
    start = ({path: zeros for path, *_ in dense}, zeros)
    (signals_gram, kernel), _ = lax.scan(one_output, start, jnp.arange(classes))
    for path, module, a, _ in dense:
        kernel = kernel + _dense_inputs(module, a) * signals_gram[path]
    return kernel


def _dense_inputs(module: nn.Dense, a: Array) -> Array:
    """A A^T, plus one where the layer has a bias; [N, N]."""
    return gram_product(a, a.T) + (1 if module.use_bias else 0)


def _patches(module: nn.Conv, a: Array) -> Array:
    """What each place of a convolution's output sees of its input, [N, places, channels kernel].

    a: [N, height, width, channels].
    """
    strides = module.strides or 1
    patches = lax.conv_general_dilated_patches(
        a,
        module.kernel_size,
        (strides, strides) if isinstance(strides, int) else strides,
        module.padding,
        dimension_numbers=('NHWC', 'HWIO', 'NHWC'),
    )
    return patches.reshape(len(a), -1, patches.shape[-1])


def _convolution_rows(module: nn.Conv, patches: Array, signal: Array) -> Array:
    """Jacobian of one output by a convolution's own parameters, [N, parameters of the layer].

    patches: [N, places, channels kernel]; signal: [N, height', width', features].
    """
    n = len(patches)
    places = signal.reshape(n, -1, signal.shape[-1])
    rows = jnp.einsum('npk,npf->nkf', patches, places, precision=lax.Precision.HIGHEST)
    rows = rows.reshape(n, -1)
    if module.use_bias:
        rows = jnp.concatenate([rows, places.sum(axis=1)], axis=1)
    return rows


def _get(params: PyTree, path: tuple[str, ...]) -> PyTree:
    for name in path:
        params = params[name]
    return params


# ------------------------------------------------------------------------ blocks of samples


def _in_blocks(block_fn, model: Model, budget: int) -> Kernel:
    """H assembled from blocks(params, x_i, x_j) small enough that per-sample gradients fit.

    budget: bytes that the gradients of two blocks may take; what neural-tangents holds beside them
    is several times that. Recomputing the gradients of x_j for
    every x_i costs little beside the inner products, which grow with the block.
    """

    def kernel(params, x):
        n, itemsize = len(x), jnp.result_type(x).itemsize
        b = max(1, min(n, 128, budget // (2 * model.size * itemsize)))
        blocks = -(-n // b)
        padded = jnp.pad(x, [(0, blocks * b - n)] + [(0, 0)] * (x.ndim - 1))
        xs = padded.reshape(blocks, b, *x.shape[1:])
        rows = lax.map(lambda xi: lax.map(lambda xj: block_fn(params, xi, xj), xs), xs)
        return rows.transpose(0, 2, 1, 3).reshape(blocks * b, blocks * b)[:n, :n]

    return kernel


def _output_scan_block(model: Model, params: PyTree, xi: Array, xj: Array) -> Array:
    def one_output(total, c):
        def gradients(x):  # [b, P], output c only
            def gradient(sample):
                by_layer = jax.grad(lambda p: model.apply(p, sample[None])[0, c])(params)
                return ravel_pytree(by_layer)[0]

            return jax.vmap(gradient)(x)

        return total + gram_product(gradients(xi), gradients(xj).T), None

    zeros = jnp.zeros((len(xi), len(xj)), jnp.result_type(*jax.tree.leaves(params)))
    return lax.scan(one_output, zeros, jnp.arange(model.classes))[0] / model.classes


def _neural_tangents_block(model: Model):
    from dfl_jax.ntk import neural_tangents

    nt = neural_tangents.load()
    ntk = nt.empirical_ntk_fn(
        model.apply,
        trace_axes=(-1,),
        vmap_axes=0,
        implementation=nt.NtkImplementation.NTK_VECTOR_PRODUCTS,
    )
    return lambda params, xi, xj: ntk(xi, xj, params)
