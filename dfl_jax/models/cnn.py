"""Convolutional networks for images of about 32x32 pixels."""

from collections.abc import Sequence

import jax
from flax import linen as nn

from dfl_jax.models.conv import BatchLastConv, Conv, max_pool
from dfl_jax.models.mlp import dense_layers

VGG16_BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


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
            x = max_pool(nn.relu(Conv(channels, (3, 3), kernel_init=he)(x)))
        return dense_layers(x, (100,), self.classes)


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
        return dense_layers(x, (128, 64), self.classes)


class DropoutCNN(nn.Module):
    """Convolutions 3x3 with 32 and 64 channels, pooled once, then dense 128 and C; with dropout.

    The network of He, Karimireddy & Jaggi (2022) on MNIST: no padding, dropout of whole channels
    (0.25) and of the dense layer (0.5). Weights uniform within 1 / sqrt(fan-in), as PyTorch draws
    them; zero biases.
    """

    classes: int
    dense_head = True

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """[B, height, width, channels] -> [B, C]; `train` drops out, by the key named dropout."""
        uniform = nn.initializers.variance_scaling(1 / 3, 'fan_in', 'uniform')
        x = x.transpose(3, 1, 2, 0)  # [channels, height, width, B]
        x = nn.relu(BatchLastConv(32, 3, 'VALID', uniform)(x))
        x = max_pool(BatchLastConv(64, 3, 'VALID', uniform)(x))
        x = nn.Dropout(0.25, broadcast_dims=(1, 2))(x, deterministic=not train)
        x = nn.relu(nn.Dense(128, kernel_init=uniform)(x.reshape(-1, x.shape[-1]).T))
        x = nn.Dropout(0.5)(x, deterministic=not train)
        return nn.Dense(self.classes, kernel_init=uniform)(x)


class ConvNet(nn.Module):
    """The CNNs of DFML's Table 10: for each entry of `channels` a convolution 5x5, ReLU, 2x2 max
    pooling and layer normalisation, then dense C.

    The paper (Appendix A.2) does not say over which axes it normalises: here over height, width and
    channels, with a scale and a bias for each channel. Nor does it describe the head: flattening
    makes [32, 64] the median of mode H2 in parameters, as Appendix A.4.11 has it, and pooling over
    the whole image would not. It flattens channel by channel, so that the weights of the first
    channels come first. He-normal weights (fan-in), zero biases, 'SAME' padding.
    """

    classes: int
    channels: Sequence[int]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [B, height, width, channels] -> [B, C]
        height, width, _ = x.shape[1:]
        poolings = min(height, width).bit_length() - 1
        if len(self.channels) > poolings:
            raise ValueError(
                f'{height}x{width} pixels allow {poolings} poolings, channels '
                f'{tuple(self.channels)} ask for {len(self.channels)}; use fewer layers'
            )
        x = x.transpose(3, 1, 2, 0)  # [channels, height, width, B] from here
        for number, channels in enumerate(self.channels):
            x = max_pool(nn.relu(BatchLastConv(channels, 5, name=f'Conv_{number}')(x)))
            x = nn.LayerNorm(reduction_axes=(0, 1, 2), feature_axes=0)(x)
        return dense_layers(x.reshape(-1, x.shape[-1]).T, (), self.classes)


class VGG16(nn.Module):
    """Simonyan & Zisserman's configuration D: 13 convolutions 3x3, pooled 2x2 after each block.

    The dense layers have 4096, 4096 and C units, with dropout 0.5 between: 33,638,218 parameters on
    CIFAR-10. No batch normalisation. ReLU activations, He-normal weights (fan-in), zero
    biases, 'SAME' padding.
    """

    classes: int
    dense_head = True

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """[B, height, width, channels] -> [B, C]; `train` drops out, by the key named dropout."""
        he = nn.initializers.he_normal()
        height, width, _ = x.shape[1:]
        least = 2 ** len(VGG16_BLOCKS)
        if min(height, width) < least:
            raise ValueError(
                f'{height}x{width} pixels do not last for {len(VGG16_BLOCKS)} poolings; '
                f'use at least {least}x{least}, or a smaller model'
            )
        for block in VGG16_BLOCKS:
            for channels in block:
                x = nn.relu(Conv(channels, (3, 3), kernel_init=he)(x))
            x = max_pool(x)
        x = x.reshape(x.shape[0], -1)
        for _ in range(2):
            x = nn.relu(nn.Dense(4096, kernel_init=he)(x))
            x = nn.Dropout(0.5)(x, deterministic=not train)
        return nn.Dense(self.classes, kernel_init=he)(x)
