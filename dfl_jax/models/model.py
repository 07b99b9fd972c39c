"""A flax module bound to the shape of its inputs."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.errors import InvalidRngError, ScopeParamShapeError
from flax.traverse_util import flatten_dict
from jax.typing import DTypeLike

from dfl_jax.base import Array, PyTree
from dfl_jax.models.cnn import CNN3, VGG16, DropoutCNN, SmallCNN
from dfl_jax.models.gru import GRU
from dfl_jax.models.mlp import MLP, Linear
from dfl_jax.models.switches import SWITCHES, Dropouts, Switched
from dfl_jax.tasks import CLASSIFICATION, Task

MODELS: dict[str, Callable[[int], nn.Module]] = {
    'mlp': MLP,
    'linear': Linear,
    'cnn': SmallCNN,
    'cnn3': CNN3,
    'cnn_dropout': DropoutCNN,
    'vgg16': VGG16,
    'gru': GRU,
}
MISFITS = (TypeError, ValueError, ZeroDivisionError, ScopeParamShapeError)  # of inputs


class Model(NamedTuple):
    """What the algorithms need of a network.

    `module.dense_head` (a class attribute, False when absent) promises that the logits are
    Dense(activation(z)) with an elementwise activation and z the output of the dense layer called
    just before; the structured kernel is cheaper then. `module.dense_input` promises that the first
    dense layer called, and nothing else, takes the samples, flattened, and that it is called once;
    local training is cheaper then.

    With a key `apply` trains: the module's switch (`switches.SWITCHES`), if any, is set to train,
    and the key is for its dropout. Without a key it evaluates. Logits are of 32 bits or more, also
    those of a module that computes in 16: losses are taken of them.
    """

    module: nn.Module
    init: Callable[[Array], PyTree]  # key -> params
    apply: Callable[..., Array]  # (params, x [B, ...], key=None) -> logits [B, C]
    input_shape: tuple[int, ...]  # of one sample
    classes: int
    size: int  # P
    shapes: PyTree  # of the parameters, leaves jax.ShapeDtypeStruct
    task: Task = CLASSIFICATION  # what it learns
    output_type: DTypeLike = jnp.float32  # in which the module computes its logits


def layers(model: Model) -> list[tuple[str, ...]]:
    """The paths of the modules that have weights of their own, in the order of their first call;
    those that flax does not call as modules come last, by name."""
    paths = {path[:-1] for path in flatten_dict(model.shapes)}
    called: dict[tuple[str, ...], None] = {}

    def record(call, args, kwargs, context):
        if context.module.path in paths:
            called.setdefault(context.module.path)
        return call(*args, **kwargs)

    sample = jax.ShapeDtypeStruct((1, *model.input_shape), jnp.float32)
    with nn.intercept_methods(record):
        jax.eval_shape(lambda w, x: model.apply(w, x), model.shapes, sample)  # traced anew
    return [*called, *sorted(paths - called.keys())]


def first_weights(model: Model) -> tuple[str, ...]:
    """The path of the weights of the first layer that has some, biases and scales apart."""
    shapes = flatten_dict(model.shapes)
    matrices = [path for path, leaf in shapes.items() if leaf.ndim > 1]
    order = layers(model)
    return min(matrices or shapes, key=lambda path: (len(path) == 1, order.index(path[:-1])))


def bind(module: nn.Module, input_shape: Sequence[int], task: Task = CLASSIFICATION) -> Model:
    """A flax module bound to inputs of `input_shape` (one sample, no batch axis) and to a task.

    Raises ValueError when the module is none, does not take such inputs, maps a batch [B, ...] to
    anything but [B, C] ([B, L, C] under next_token), draws random numbers other than for dropout
    while it trains, has dropout that stays off then, has a switch that is not known, or carries
    state besides its parameters (batch statistics would leak between clients).

    >>> model = bind(nn.Dense(3), (4,))
    >>> model.size, model.apply(model.init(jax.random.key(0)), jnp.ones((2, 4))).shape
    (15, (2, 3))
    """
    if not isinstance(module, nn.Module):
        raise ValueError(
            f'{module!r} is no flax.linen.Module; make one of a class, as MLP(classes=10)'
        )
    sample = jax.ShapeDtypeStruct((2, *input_shape), jnp.float32)
    key = jax.eval_shape(lambda: jax.random.key(0))
    switched, dropouts = Switched(module), Dropouts()
    evaluating, evaluated = switched.mode(train=False)
    training, trained = switched.mode(train=True)
    name = f'model {type(module).__name__}'
    try:
        with nn.intercept_methods(dropouts):
            logits, variables = jax.eval_shape(
                lambda key, x: evaluating.init_with_output(key, x, **evaluated), key, sample
            )
    except Exception as error:
        _check_bridged(name, dropouts, error)
        if not isinstance(error, MISFITS):
            raise
        reason = str(error).partition('\n')[0]
        grey = '; if these are grey images, give x[..., None]' * (len(input_shape) == 2)
        raise ValueError(
            f'{name} does not take inputs of shape {sample.shape}: {reason}{grey}'
        ) from error
    _check_bridged(name, dropouts)
    axes = ('B', 'L', 'C') if task.sequences else ('B', 'C')
    if logits.ndim != len(axes) or logits.shape[0] != 2:
        raise ValueError(
            f'{name} maps {sample.shape} to {logits.shape}; '
            f'it has to return logits [{", ".join(axes)}]'
        )
    if extra := sorted(set(variables) - {'params'}):
        raise ValueError(
            f'{name} has variables {extra} besides its parameters; '
            'replace batch statistics by layer or group normalisation'
        )
    if 'params' not in variables:
        raise ValueError(f'{name} has no parameters: nothing can be trained')

    def init(key: Array) -> PyTree:
        sample = jnp.zeros((1, *input_shape), jnp.float32)
        return evaluating.init(key, sample, **evaluated)['params']

    def apply(params: PyTree, x: Array, key: Array | None = None) -> Array:
        if key is None:
            outputs = evaluating.apply({'params': params}, x, **evaluated)
        else:
            outputs = training.apply({'params': params}, x, rngs={'dropout': key}, **trained)
        return outputs.astype(jnp.promote_types(outputs.dtype, jnp.float32))

    shapes = variables['params']
    dropouts = Dropouts()
    try:
        jax.eval_shape(apply, shapes, sample)
        with nn.intercept_methods(dropouts):
            jax.eval_shape(apply, shapes, sample, key)
    except InvalidRngError as error:
        raise ValueError(
            f'{name} draws random numbers other than for dropout, or where '
            'it evaluates; let its __call__ take the keyword `train`, and its nn.Dropout '
            'deterministic=not train'
        ) from error
    if silent := dropouts.silent():
        raise ValueError(
            f'{name} has dropout that stays off while it trains, {silent}; let its __call__ take '
            f'a switch ({", ".join(SWITCHES)}) and hand it on, or set the rate to 0'
        )
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes))
    shape, classes = tuple(input_shape), logits.shape[-1]
    return Model(module, init, apply, shape, classes, size, shapes, task, logits.dtype)


def _check_bridged(name: str, dropouts: Dropouts, error: Exception | None = None) -> None:
    """Raises ValueError for dropout of flax.nnx, whose keys the bridge to linen does not hand on:
    it would be on where the model evaluates, too."""
    if dropouts.bridged or "RngStream named 'dropout'" in str(error):  # nnx has no key for it
        raise ValueError(
            f'{name} has dropout of flax.nnx, which the bridge cannot switch; write the module '
            'with flax.linen, or set the rate to 0'
        )
