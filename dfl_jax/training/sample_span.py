"""Local training with the first layer's kernel as a combination of the client's samples.

The gradient of a dense layer's kernel on a batch is X_b^T D, the layer's inputs X_b [B, d] by the
derivative D [B, h] of the loss by its outputs. Where the inputs are the samples themselves, as in
an MLP, gradient descent never leaves W = s W_0 + X^T A, with the client's samples X [N, d],
coefficients A [N, h], and s = 1 unless weights decay. A step that carries (s, A) in place of W
takes its outputs from X W_0 and the Gram matrix X X^T, and adds D to the batch's rows of A: B N h
multiplications where two products with X_b take 2 B d h. Momentum and decay are linear in W and act
on (s, A) as they do on W.

A third of the time for 20 epochs of an MLP on images (2026-11-24): docs/benchmarks.md, "Constants".
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax.traverse_util import flatten_dict, unflatten_dict

from dfl_jax.base import Array, PyTree
from dfl_jax.models import Model, layers

Path = tuple[str, ...]


class Combination(NamedTuple):
    """A kernel s W_0 + X^T A."""

    share: Array  # s, a scalar
    coefficients: Array  # A [N, h]


class SampleForm(NamedTuple):
    """The weights of one client in this form.

    A form is the weights without the first kernel, by their paths, and the kernel's Combination.
    """

    start: PyTree
    # (form, rows [B], valid [B], loss_of, key) -> (loss, gradient, like a form); loss_of takes the
    # network's outputs on these samples, the key is of its dropout
    value_and_grad: Callable[..., tuple[Array, PyTree]]
    weights: Callable[[PyTree], PyTree]


def first_kernel(model: Model) -> Path | None:
    """The path of the kernel that takes the samples, None where the network promises none."""
    dense = getattr(model.module, 'dense_input', False)
    return (*layers(model)[0], 'kernel') if dense else None


def saves_flops(model: Model, path: Path, samples: int, seen: int) -> bool:
    """Whether this form takes fewer flops in a round than the kernel [d, h] itself.

    samples: N of a client; seen: how many samples its batches have in all.
    """
    features, units = flatten_dict(model.shapes)[path].shape
    once = 2 * samples * features * (2 * units + samples)  # X W_0, X^T A and X X^T
    return once + 2 * seen * samples * units < 4 * seen * features * units


def sample_form(model: Model, path: Path, params: PyTree, x: Array, mask: Array) -> SampleForm:
    """The form of a client's weights on its samples x [N, ...], mask [N]; path: `first_kernel`."""
    *layer, _ = path
    others = flatten_dict(params)
    initial = others.pop(path)
    rows_of = jnp.where(mask[:, None], x.reshape(len(x), -1), 0)  # X
    outputs, gram = rows_of @ initial, rows_of @ rows_of.T  # X W_0, X X^T
    bias = (*layer, 'bias')

    def apply(others: PyTree, z: Array, key: Array) -> Array:
        """The network's outputs where those of its first layer are z [B, h], but for the bias."""

        def replaced(call, args, kwargs, context):
            if context.module.path == tuple(layer):
                return z + others[bias][None] if bias in others else z
            return call(*args, **kwargs)

        with nn.intercept_methods(replaced):
            unused = jnp.zeros((len(z), *model.input_shape), z.dtype)
            return model.apply(unflatten_dict(others), unused, key)

    def value_and_grad(form: PyTree, rows: Array, valid: Array, loss_of: Callable, key: Array):
        others, (share, coefficients) = form

        def loss(z: Array, others: PyTree) -> Array:
            return loss_of(apply(others, z, key))

        z = jnp.where(valid[:, None], share * outputs[rows] + gram[rows] @ coefficients, 0)
        value, (d, gradient) = jax.value_and_grad(loss, (0, 1))(z, others)
        d = jnp.zeros_like(coefficients).at[rows].add(jnp.where(valid[:, None], d, 0))
        return value, (gradient, Combination(jnp.zeros_like(share), d))

    def weights(form: PyTree) -> PyTree:
        others, (share, coefficients) = form
        kernel = share * initial + rows_of.T @ coefficients
        return unflatten_dict(others | {path: kernel})

    none = jnp.zeros((len(x), initial.shape[1]), initial.dtype)
    return SampleForm((others, Combination(jnp.ones((), x.dtype), none)), value_and_grad, weights)
