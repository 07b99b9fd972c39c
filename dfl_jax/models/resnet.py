"""Pre-activation residual networks for small images."""

from collections.abc import Sequence

import jax
from flax import linen as nn

from dfl_jax.models.conv import group_norm, plain_conv


class PreActResNet(nn.Module):
    """He et al. (2016b), "Identity Mappings in Deep Residual Networks"; the default is ResNet-18.

    A stem of 3x3 for images of about 32x32, two blocks for each entry of `channels`, the first of
    every stage but the first with stride 2, then normalisation, ReLU, the mean over the image and
    dense C. Group normalisation in place of batch normalisation, whose statistics would leak
    between clients. Convolutions without bias, He-normal weights (fan-in).

    On CIFAR-10 it has 11,172,170 parameters. The 11,171,146 often published belong to an
    implementation that leaves out the last normalisation and ReLU (2 x 512 parameters), which He et
    al. and the networks of HeteroFL have.
    """

    classes: int
    channels: Sequence[int] = (64, 128, 256, 512)

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [B, height, width, channels] -> [B, C]
        x = plain_conv(self.channels[0], 3)(x)
        for stage, channels in enumerate(self.channels):
            x = Block(channels, stride=1 if stage == 0 else 2)(x)
            x = Block(channels)(x)
        x = nn.relu(group_norm(x)).mean(axis=(1, 2))
        return nn.Dense(self.classes, kernel_init=nn.initializers.he_normal())(x)


class Block(nn.Module):
    """Two convolutions 3x3, each after normalisation and ReLU, beside a shortcut.

    The shortcut is the identity or, where the shape changes, a convolution 1x1 of the activated
    input.
    """

    channels: int
    stride: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [B, h, w, c] -> [B, ~h / s, ~w / s, channels]
        active = nn.relu(group_norm(x))
        y = plain_conv(self.channels, 3, self.stride)(active)
        y = plain_conv(self.channels, 3)(nn.relu(group_norm(y)))
        if x.shape != y.shape:
            x = plain_conv(self.channels, 1, self.stride)(active)
        return x + y
