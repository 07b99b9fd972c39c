"""EfficientNet B0 to B4."""

import math
from collections.abc import Sequence

import jax
from flax import linen as nn

from dfl_jax.models.conv import DepthwiseConv, group_norm, plain_conv

# Tan & Le (2019), Table 1: expansion, kernel size, stride of the first block, channels, blocks.
STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
VARIANTS = {  # name: (width, depth, dropout)
    'b0': (1.0, 1.0, 0.2),
    'b1': (1.0, 1.1, 0.2),
    'b2': (1.1, 1.2, 0.3),
    'b3': (1.2, 1.4, 0.3),
    'b4': (1.4, 1.8, 0.4),
}


class EfficientNet(nn.Module):
    """Tan & Le (2019), for images of any size; VARIANTS holds the arguments of B0 to B4.

    A stem 3x3 of stride 2, stages of inverted residual blocks, a convolution 1x1, the mean over the
    image, dropout and dense C. Swish activations. Group normalisation in place of batch
    normalisation, whose statistics would leak between clients; no stochastic depth, which the paper
    trains with. Convolutions without bias, He-normal weights (fan-in).

    width, depth: multipliers of all channels (rounded to multiples of 8) and of the blocks of each
    stage (rounded up). stages: rows as those of STAGES.
    """

    classes: int
    width: float = 1.0
    depth: float = 1.0
    dropout: float = 0.2
    stages: Sequence[tuple[int, int, int, int, int]] = STAGES

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """[B, height, width, channels] -> [B, C]; `train` drops out, by the key named dropout."""
        x = nn.swish(group_norm(plain_conv(round_to_8(32 * self.width), 3, 2)(x)))
        for expansion, kernel, stride, channels, blocks in self.stages:
            features = round_to_8(channels * self.width)
            for block in range(math.ceil(blocks * self.depth)):
                x = InvertedResidual(features, expansion, kernel, stride if block == 0 else 1)(x)
        x = nn.swish(group_norm(plain_conv(round_to_8(1280 * self.width), 1)(x)))
        x = nn.Dropout(self.dropout)(x.mean(axis=(1, 2)), deterministic=not train)
        return nn.Dense(self.classes, kernel_init=nn.initializers.he_normal())(x)


class InvertedResidual(nn.Module):
    """MBConv: widen, filter every channel by itself, squeeze and excite, narrow; added to the input
    where the shape stays."""

    features: int
    expansion: int
    kernel: int
    stride: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [B, h, w, c] -> [B, ~h / s, ~w / s, features]
        channels = x.shape[-1]
        y = x
        if self.expansion > 1:
            y = nn.swish(group_norm(plain_conv(self.expansion * channels, 1)(y)))
        y = DepthwiseConv((self.kernel, self.kernel), self.stride)(y)
        y = nn.swish(group_norm(y))
        he = nn.initializers.he_normal()
        squeezed = nn.swish(nn.Dense(max(1, channels // 4), kernel_init=he)(y.mean(axis=(1, 2))))
        excited = nn.sigmoid(nn.Dense(y.shape[-1], kernel_init=he)(squeezed))  # [B, channels of y]
        y = y * excited[:, None, None]
        y = group_norm(plain_conv(self.features, 1)(y))
        return x + y if self.stride == 1 and channels == self.features else y


def round_to_8(channels: float) -> int:
    """The nearest multiple of 8, at least 8 and not below nine tenths of `channels`."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8
