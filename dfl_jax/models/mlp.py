"""Multilayer perceptron of any depth."""

from collections.abc import Sequence

import jax
from flax import linen as nn


class MLP(nn.Module):
    """Flatten, then dense layers with ReLU between; He-normal weights (fan-in), zero biases.

    The default is the two-layer network of NTK-DFL section 5.1 (784-100-10 on Fashion-MNIST).
    """

    classes: int
    hidden: Sequence[int] = (100,)
    dense_head = True
    dense_input = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [B, ...] -> [B, C]
        return dense_layers(x, self.hidden, self.classes)


class Linear(nn.Module):
    """One dense layer: logistic regression under cross-entropy, least squares under squared error.

    Zero weights, the start of both that has no direction.
    """

    classes: int
    use_bias: bool = True
    dense_input = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [B, ...] -> [B, C]
        zeros = nn.initializers.zeros
        return nn.Dense(self.classes, self.use_bias, kernel_init=zeros)(x.reshape(len(x), -1))


def dense_layers(x: jax.Array, hidden: Sequence[int], classes: int) -> jax.Array:
    """[B, ...] flattened, through dense layers with ReLU between -> [B, C]; within a module."""
    he = nn.initializers.he_normal()
    x = x.reshape(x.shape[0], -1)
    for width in hidden:
        x = nn.relu(nn.Dense(width, kernel_init=he)(x))
    return nn.Dense(classes, kernel_init=he)(x)
