"""Augmentation of training images, drawn anew for every batch.

Axis letters: B samples, h rows, w columns, c channels.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

AUGMENTATIONS = ('none', 'standard')


def standard(key: Array, x: Array, padding: int = 4) -> Array:
    """The images shifted at random, and mirrored left to right with probability 1/2.

    The usual augmentation of CIFAR (He et al., 2016, section 4.2): a random window of the original
    size out of the image padded by zeros. Inputs are standardised, so that zero is the mean pixel.

    Args:
      key: each sample has its own window and flip.
      x: [B, h, w, c], images.
      padding: rows and columns of zeros on each side.

    Returns [B, h, w, c]. Raises ValueError for inputs of another rank.
    """
    if x.ndim != 4:
        raise ValueError(f'augmentation is for images [B, h, w, c], got inputs of shape {x.shape}')
    k_window, k_flip = jax.random.split(key)
    corners = jax.random.randint(k_window, (len(x), 2), 0, 2 * padding + 1)  # [B, 2] row, column
    flips = jax.random.bernoulli(k_flip, 0.5, (len(x),))
    margin = (padding, padding)

    def one(image: Array, corner: Array, flip: Array) -> Array:
        padded = jnp.pad(image, (margin, margin, (0, 0)))
        window = lax.dynamic_slice(padded, (*corner, 0), image.shape)
        return jnp.where(flip, window[:, ::-1], window)

    return jax.vmap(one)(x, corners, flips)
