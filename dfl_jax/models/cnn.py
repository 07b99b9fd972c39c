"""Small convolutional networks for 28x28 or 32x32 images."""

import jax
from flax import linen as nn

from dfl_jax.models.conv import Conv, max_pool


class SmallCNN(nn.Module):
    """Convolutions 3x3 with 32 and 64 channels, each pooled 2x2, then dense 100 and C.

    ReLU activations, He-normal weights (fan-in), zero biases, 'SAME' padding.
    """

    classes: int
    dense_head = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [B, height, width, channels] -> [B, C]
        he = nn.initializers.he_normal()
        for channels in (32, 64):
            x = nn.relu(Conv(channels, (3, 3), kernel_init=he)(x))
            x = max_pool(x)
        x = x.reshape(x.shape[0], -1)
        x = nn.relu(nn.Dense(100, kernel_init=he)(x))
        return nn.Dense(self.classes, kernel_init=he)(x)


class CNN3(nn.Module):
    """Convolutions 3x3 with 32, 64 and 64 channels, then dense 128, 64 and C.

    The network of the initialisation and topology paper's Appendix A (So2Sat): one pixel of zero
    padding, and no pooling, as its text names none. ReLU activations, He-normal weights (fan-in),
    zero biases.
    """

    classes: int
    dense_head = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [B, height, width, channels] -> [B, C]
        he = nn.initializers.he_normal()
        for channels in (32, 64, 64):
            x = nn.relu(Conv(channels, (3, 3), kernel_init=he)(x))
        x = x.reshape(x.shape[0], -1)
        for width in (128, 64):
            x = nn.relu(nn.Dense(width, kernel_init=he)(x))
        return nn.Dense(self.classes, kernel_init=he)(x)
