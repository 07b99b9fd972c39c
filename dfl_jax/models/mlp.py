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

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [B, ...] -> [B, C]
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width, kernel_init=nn.initializers.he_normal())(x))
        return nn.Dense(self.classes, kernel_init=nn.initializers.he_normal())(x)
