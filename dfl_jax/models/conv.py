"""Layers of images in forms that stay fast under vmap over clients and inside loops.

XLA's CPU backend runs a convolution whose weights are batched, as those of several clients or
timesteps are, group by group, and its fast routine leaves loops out. Patches and one product, and a
depthwise convolution as a sum of shifted images, take a tenth of the time or less (2026-11-20 to
29): docs/benchmarks.md, "Constants".
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from flax.linen.linear import canonicalize_padding
from jax import lax

GROUP = 8  # channels normalised together


class Conv(nn.Conv):
    """`flax.linen.Conv` of images, neither dilated nor grouped; the same parameters.

    `padding` is 'SAME', 'VALID' or pairs of zeros before and after. With strides 'SAME' puts the
    odd zero after, as XLA does; pairs of k // 2 pad as PyTorch does, to the same output size.
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [B, height, width, channels]
        if (
            self.feature_group_count != 1
            or self.mask is not None
            or self.dtype is not None
            or {*np.ravel(self.kernel_dilation), *np.ravel(self.input_dilation)} - {None, 1}
        ):
            raise ValueError('groups, dilations, a mask or a dtype are for flax.linen.Conv')
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param('kernel', self.kernel_init, shape, self.param_dtype)
        y = patches(self, x) @ kernel.reshape(-1, self.features)
        if not self.use_bias:
            return y
        bias = self.param('bias', self.bias_init, (self.features,), self.param_dtype)
        return y + jnp.broadcast_to(bias, y.shape)


class BatchLastConv(nn.Module):
    """A square convolution of images [channels, height, width, B].

    The parameters are those of `Conv`. Patches are copied in runs of w B numbers, where `Conv`
    copies runs of the channels: half the time to five sixths (2026-11-23).
    """

    features: int
    size: int
    padding: str = 'SAME'
    kernel_init: Callable[..., jax.Array] = nn.initializers.he_normal()

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        shape = (self.size, self.size, x.shape[0], self.features)
        kernel = self.param('kernel', self.kernel_init, shape, jnp.float32)
        kernel = kernel.reshape(-1, self.features)
        bias = self.param('bias', nn.initializers.zeros, (self.features,), jnp.float32)
        padded = _padded(x, shape[:2], (1, 1), self.padding)
        across = jnp.stack(_windows(padded, 2, self.size, 1))
        patches = jnp.stack(_windows(across, 2, self.size, 1))
        products = kernel.T @ patches.reshape(len(kernel), -1)
        return products.reshape(-1, *patches.shape[3:]) + bias.reshape(-1, 1, 1, 1)


class DepthwiseConv(nn.Module):
    """A convolution with one filter a channel, without bias; k // 2 zeros on every side."""

    kernel_size: tuple[int, int]
    strides: int = 1

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # [B, h, w, c] -> [B, ~h / s, ~w / s, c]
        shape = (*self.kernel_size, 1, x.shape[-1])  # as flax.linen.Conv of c groups has it
        kernel = self.param('kernel', nn.initializers.he_normal(), shape, jnp.float32)
        rows, columns = self.kernel_size
        margins = [(k // 2, k // 2) for k in self.kernel_size]
        padded = jnp.pad(x, [(0, 0), *margins, (0, 0)])
        shifted = [
            part
            for row in _windows(padded, 1, rows, self.strides)
            for part in _windows(row, 2, columns, self.strides)
        ]
        weights = kernel.reshape(-1, 1, 1, 1, x.shape[-1])
        return sum(part * weight for part, weight in zip(shifted, weights, strict=True))


def patches(conv: nn.Conv, x: jax.Array) -> jax.Array:
    """What a plain convolution sees at each place of its output.

    x: [B, height, width, channels] -> [B, height', width', rows * columns * channels].
    """
    rows, columns = conv.kernel_size
    strides = conv.strides or 1
    down, right = (strides, strides) if isinstance(strides, int) else strides
    padded = _padded(x, conv.kernel_size, (down, right), canonicalize_padding(conv.padding, 2))
    # Columns, then rows: 10 slices of a 5x5 kernel, where 25 take half as long again.
    across = jnp.concatenate(_windows(padded, 2, columns, right), axis=-1)
    return jnp.concatenate(_windows(across, 1, rows, down), axis=-1)


def plain_conv(features: int, size: int, stride: int = 1) -> Conv:
    """A square convolution without bias, He-normal weights (fan-in), k // 2 zeros on every side."""
    margin = (size // 2, size // 2)
    return Conv(
        features,
        (size, size),
        strides=stride,
        padding=(margin, margin),
        use_bias=False,
        kernel_init=nn.initializers.he_normal(),
    )


def max_pool(x: jax.Array) -> jax.Array:
    """The largest of every 2x2, [B, h, w, c] -> [B, h // 2, w // 2, c]; odd last lines are left.

    Images with the batch last, [c, h, w, B], are pooled alike.
    """
    first, height, width, last = x.shape
    even = x[:, : height // 2 * 2, : width // 2 * 2]
    return even.reshape(first, height // 2, 2, width // 2, 2, last).max((2, 4))


def group_norm(x: jax.Array) -> jax.Array:
    """Normalises [B, h, w, c] over the image and groups of 8 channels; call it within a module.

    Of fewer channels all are one group; where 8 does not divide them the groups are the next larger
    that do. A scale and a bias for each channel.
    """
    channels = x.shape[-1]
    sizes = range(min(GROUP, channels), channels + 1)
    size = next(size for size in sizes if channels % size == 0)
    return nn.GroupNorm(num_groups=None, group_size=size)(x)


def _padded(
    x: jax.Array,
    kernel_size: Sequence[int],
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
) -> jax.Array:
    """Images [B, h, w, c] with the zeros that a convolution sees around them."""
    if isinstance(padding, str):
        padding = lax.padtype_to_pads(x.shape[1:3], kernel_size, strides, padding)
    return jnp.pad(x, [(0, 0), *padding, (0, 0)])


def _windows(x: jax.Array, axis: int, size: int, stride: int) -> list[jax.Array]:
    """What each of `size` places of a kernel meets along one axis."""
    last = (x.shape[axis] - size) // stride * stride  # where the last output starts
    return [lax.slice_in_dim(x, i, i + last + 1, stride, axis) for i in range(size)]
