"""Gradients of which no sample decides much, and changes of models of which no client does.

DP-SGD (Abadi et al., CCS 2016): the gradient of every sample is clipped to a norm, and the sum gets
Gaussian noise. Where all layers are dense and take one row a sample, the norms follow from a
layer's inputs a and the derivatives d by its outputs, ||a||^2 ||d||^2 (Goodfellow 2015), so that no
gradient of a single sample is formed; elsewhere they are, for CHUNK samples at a time.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.execution.random_numbers import normal_like
from dfl_jax.models import Model
from dfl_jax.training.batches import Batch
from dfl_jax.training.local_settings import CHUNK, LocalTraining

Path = tuple[str, ...]
Inputs = dict[Path, Array]


def dense_layers(model: Model) -> tuple[Path, ...] | None:
    """The paths of the layers of a network that has dense ones alone, each called once, on one row
    a sample; None for other networks."""
    paths = {path[:-1] for path in flatten_dict(model.shapes)}
    called: list[Path] = []

    def record(call, args, kwargs, context):
        if type(context.module) is nn.Dense and args[0].shape[:-1] == (1,):
            called.append(context.module.path)
        return call(*args, **kwargs)

    sample = jax.ShapeDtypeStruct((1, *model.input_shape), jnp.float32)
    with nn.intercept_methods(record):
        jax.eval_shape(lambda w, x: model.apply(w, x), model.shapes, sample)  # traced anew
    return tuple(called) if sorted(called) == sorted(paths) else None


def private_gradient(
    settings: LocalTraining,
    model: Model,
    params: PyTree,
    batch: Batch,
    losses_of: Callable[[Array, Array], Array],
    samples: Array,
    k_apply: Array,
    k_noise: Array,
) -> tuple[Array, PyTree]:
    """The mean loss of a batch, and its gradient: the sum of the samples', each clipped, with
    noise, over the samples of a full batch, so that a short one has no more noise.

    Args:
      losses_of: (outputs of the network [B, ...], y [B, ...]) -> losses [B].
      samples: of the client, a scalar.
      k_apply: of dropout.
    """
    clip, noise = _bounds(settings)
    valid = batch.weight > 0
    loss, gradient = clipped_sum(model, params, batch.x, batch.y, losses_of, valid, clip, k_apply)
    if noise:
        gradient = _with_noise(k_noise, gradient, noise * clip)
    size = jnp.minimum(settings.batch_size, samples)
    return loss / jnp.maximum(valid.sum(), 1), optax.tree.scale(1 / size, gradient)


def clipped_sum(
    model: Model,
    params: PyTree,
    x: Array,
    y: Array,
    losses_of: Callable[[Array, Array], Array],
    valid: Array,
    clip: float,
    key: Array,
) -> tuple[Array, PyTree]:
    """Sum of the losses of a batch, and the sum of its samples' gradients, each clipped.

    Args:
      x, y: [B, ...].
      losses_of: (outputs of the network [B, ...], y) -> losses [B].
      valid: [B] bool, the samples that count.
      clip: the largest norm of one sample's gradient over all weights.
      key: of dropout.
    """
    paths = dense_layers(model)
    if paths is None:
        return _by_samples(model, params, x, y, losses_of, valid, clip, key)
    weights = flatten_dict(params)
    units = {path: weights[*path, 'kernel'].shape[1] for path in paths}

    def of_sample(row: Array, x: Array, y: Array) -> tuple[tuple[Array, Inputs], Inputs]:
        """Its loss, each layer's inputs [1, d], and the derivatives by its outputs [1, h]."""

        def loss_of(shifts: Inputs) -> tuple[Array, Inputs]:
            inputs = {}

            def shifted(call, args, kwargs, context):
                if (path := context.module.path) not in shifts:
                    return call(*args, **kwargs)
                inputs[path] = args[0]
                return call(*args, **kwargs) + shifts[path]

            with nn.intercept_methods(shifted):
                outputs = model.apply(params, x[None], jax.random.fold_in(key, row))
            return losses_of(outputs, y[None])[0], inputs

        zeros = {path: jnp.zeros((1, h), x.dtype) for path, h in units.items()}
        return jax.value_and_grad(loss_of, has_aux=True)(zeros)

    (losses, inputs), derivatives = jax.vmap(of_sample)(jnp.arange(len(x)), x, y)
    inputs, derivatives = (jax.tree.map(lambda a: a[:, 0], each) for each in (inputs, derivatives))
    squares = sum(
        jnp.sum(derivatives[path] ** 2, axis=1)
        * (jnp.sum(inputs[path] ** 2, axis=1) + ((*path, 'bias') in weights))
        for path in paths
    )
    counts, factors = _clipping(jnp.sqrt(squares), clip, valid)
    gradient = {}
    for path in paths:
        scaled = jnp.where(counts[:, None], factors[:, None] * derivatives[path], 0)
        of_layer = jnp.where(counts[:, None], inputs[path], 0)
        gradient[*path, 'kernel'] = jnp.matmul(of_layer.T, scaled, precision='highest')
        if (*path, 'bias') in weights:
            gradient[*path, 'bias'] = scaled.sum(axis=0)
    gradient = unflatten_dict({path: gradient[path] for path in weights})
    return jnp.sum(jnp.where(valid, losses, 0)), gradient


def _by_samples(
    model: Model,
    params: PyTree,
    x: Array,
    y: Array,
    losses_of: Callable[[Array, Array], Array],
    valid: Array,
    clip: float,
    key: Array,
) -> tuple[Array, PyTree]:
    """`clipped_sum` of a network with layers of any kind."""
    rows = jnp.arange(len(x) + -len(x) % CHUNK)

    def of_sample(row: Array) -> tuple[Array, PyTree]:
        def loss_of(params: PyTree) -> Array:
            outputs = model.apply(params, x[row][None], jax.random.fold_in(key, row))
            return losses_of(outputs, y[row][None])[0]

        in_batch = valid[row] & (row < len(x))
        loss, gradient = jax.value_and_grad(loss_of)(params)
        counts, factor = _clipping(optax.tree.norm(gradient), clip, in_batch)
        clipped = jax.tree.map(lambda g: jnp.where(counts, factor * g, 0), gradient)
        return jnp.where(in_batch, loss, 0), clipped

    def add(total: PyTree, chunk: Array) -> tuple[PyTree, None]:
        found = jax.vmap(of_sample)(chunk)
        return jax.tree.map(lambda t, a: t + a.sum(axis=0), total, found), None

    start = (jnp.zeros((), x.dtype), optax.tree.zeros_like(params))
    return lax.scan(add, start, rows.reshape(-1, CHUNK))[0]


def _clipping(norm: Array, clip: float, valid: Array | bool = True) -> tuple[Array, Array]:
    """Whether something of this norm counts, and the factor that clips it. What is not finite does
    not, as no factor would bound it."""
    factor = jnp.minimum(1, clip / jnp.maximum(norm, jnp.finfo(norm.dtype).tiny))
    return jnp.isfinite(norm) & valid, factor


def _with_noise(key: Array, tree: PyTree, deviation: Array | float) -> PyTree:
    """The tree with independent Gaussian noise of this standard deviation on every number."""
    return optax.tree.add_scale(tree, deviation, normal_like(key, tree))


def private_change(settings: LocalTraining, key: Array, new: PyTree, start: PyTree) -> PyTree:
    """The weights `new`, whose change from `start` is clipped to a norm and gets noise."""
    clip, noise = _bounds(settings)
    change = optax.tree.sub(new, start)
    counts, factor = _clipping(optax.tree.norm(change), clip)
    clipped = jax.tree.map(lambda c: jnp.where(counts, factor * c, 0), change)
    return optax.tree.add(start, _with_noise(key, clipped, noise * clip) if noise else clipped)


def _bounds(settings: LocalTraining) -> tuple[float, float]:
    """The bound of norms, and the noise multiplier, zero for no noise."""
    assert settings.dp_clip is not None
    return settings.dp_clip, settings.dp_noise_multiplier or 0.0
