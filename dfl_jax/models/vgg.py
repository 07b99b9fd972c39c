"""VGG-16 for images of 32x32 pixels or more."""

import jax
from flax import linen as nn

from dfl_jax.models.conv import Conv, max_pool
from dfl_jax.models.mlp import dense_layers

BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


class VGG16(nn.Module):
    """Simonyan & Zisserman's configuration D: 13 convolutions 3x3, pooled 2x2 after each block.

    For 32x32 images the dense layers have 512, 512 and C units: 15,245,130 parameters on CIFAR-10.
    No batch normalisation and no dropout. ReLU activations, He-normal weights (fan-in), zero
    biases, 'SAME' padding.
    """

    classes: int
    dense_head = True

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [B, height, width, channels] -> [B, C]
        he = nn.initializers.he_normal()
        height, width, _ = x.shape[1:]
        if min(height, width) < 2 ** len(BLOCKS):
            raise ValueError(
                f'{height}x{width} pixels do not last for {len(BLOCKS)} poolings; '
                f'use at least {2 ** len(BLOCKS)}x{2 ** len(BLOCKS)}, or a smaller model'
            )
        for block in BLOCKS:
            for channels in block:
                x = nn.relu(Conv(channels, (3, 3), kernel_init=he)(x))
            x = max_pool(x)
        return dense_layers(x, (512, 512), self.classes)
