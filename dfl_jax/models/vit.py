"""The vision transformer for small data sets."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import linen as nn

HEAD = 64  # dimensions of an attention head


class ViT(nn.Module):
    """Lee et al. (2021), "Vision Transformer for Small-Size Datasets", in the sizes of DFML.

    Shifted patch tokens and a class token, learnt positions, then for each entry of `channels`,
    which are all equal, locality self-attention and a multilayer perceptron, both normalised before
    and added to their input. Logits are a dense layer of the normalised class token.

    As DFML's Appendix A.2: patches 4x4, heads of 64 dimensions (one head where there are fewer
    channels), dropout 0.1 of the embedding and in the layers, there after each dense layer that
    follows the attention. It does not state the perceptron's hidden width: twice the channels
    here, as by Lee et al. Glorot-normal weights, zero biases, class token and positions N(0, 1).
    """

    classes: int
    channels: Sequence[int] = (512, 512)
    patch: int = 4
    dropout: float = 0.1

    def __post_init__(self):
        super().__post_init__()
        if len(set(self.channels)) != 1:
            raise ValueError(
                f'the layers of a ViT have one width, got channels {tuple(self.channels)}'
            )

    @nn.compact
    def __call__(self, x: jax.Array, train: bool = False) -> jax.Array:
        """[B, height, width, channels] -> [B, C]; `train` drops out, by the key named dropout."""
        width = self.channels[0]
        tokens = _dense(width)(nn.LayerNorm()(shifted_patches(x, self.patch)))
        normal = nn.initializers.normal(1.0)
        first = self.param('class_token', normal, (1, 1, width), jnp.float32)
        first = jnp.broadcast_to(first, (len(x), 1, width))
        tokens = jnp.concatenate([first, tokens], axis=1)
        tokens = tokens + self.param('positions', normal, (1, *tokens.shape[1:]), jnp.float32)
        tokens = nn.Dropout(self.dropout)(tokens, deterministic=not train)
        for _ in self.channels:
            tokens = Layer(self.dropout)(tokens, train)
        return _dense(self.classes)(nn.LayerNorm()(tokens[:, 0]))


class Layer(nn.Module):
    """Locality self-attention and a perceptron with GELU, each added to its input."""

    dropout: float

    @nn.compact
    def __call__(self, tokens: jax.Array, train: bool) -> jax.Array:  # [B, n, width] both
        width = tokens.shape[-1]
        drop = nn.Dropout(self.dropout, deterministic=not train)
        attended = LocalitySelfAttention(max(1, width // HEAD))(nn.LayerNorm()(tokens))
        tokens = tokens + drop(_dense(width)(attended))
        hidden = nn.gelu(_dense(2 * width)(nn.LayerNorm()(tokens)), approximate=False)
        return tokens + drop(_dense(width)(drop(hidden)))


class LocalitySelfAttention(nn.Module):
    """Each token attends to all others but itself, with a temperature learnt for each head.

    softmax(q k^T / temperature) v, the diagonal of q k^T masked (Lee et al. 2021, section 3.3). As
    in the authors' published code the parameter is 1 / temperature and begins at 1 / sqrt(64). A
    token alone attends to itself.
    """

    heads: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:  # [B, n, width] -> [B, n, heads 64]
        batch, n, _ = tokens.shape

        def project(name: str) -> jax.Array:
            """[B, n, heads, 64]; apart for q, k and v, so that each has the first heads first."""
            y = _dense(self.heads * HEAD, use_bias=False, name=name)(tokens)
            return y.reshape(batch, n, self.heads, HEAD)

        q, k, v = map(project, ('query', 'key', 'value'))
        begin = nn.initializers.constant(HEAD**-0.5)
        scale = self.param('scale', begin, (self.heads,), jnp.float32)
        scores = jnp.einsum('bqhd,bkhd->bhqk', q, k) * scale[None, :, None, None]
        itself = jnp.eye(n, dtype=bool)[None, None]
        weights = nn.softmax(jnp.where(itself, jnp.finfo(scores.dtype).min, scores))
        return jnp.einsum('bhqk,bkhd->bqhd', weights, v).reshape(batch, n, self.heads * HEAD)


def shifted_patches(x: jax.Array, patch: int) -> jax.Array:
    """Shifted patch tokenization before its dense layer (Lee et al. 2021, section 3.2).

    The image and itself shifted by half a patch to the right and down, left and down, right and up,
    left and up, with zeros for what comes in, are stacked along the channels and cut into patches.

    Args:
      x: [B, height, width, channels].
      patch: side of a patch.

    Returns:
      [B, patches, patch * patch * 5 * channels], patches row by row; within one the rows, the
      columns, then the channels of the image and of its shifts.

    Raises:
      ValueError: a side that patches do not divide.
    """
    batch, height, width, _ = x.shape
    if height % patch or width % patch:
        raise ValueError(
            f'{height}x{width} pixels do not split into patches of {patch}x{patch}; '
            f'crop or pad the sides to multiples of {patch}'
        )
    half = patch // 2
    padded = jnp.pad(x, [(0, 0), (half, half), (half, half), (0, 0)])
    shifts = [
        padded[:, i : i + height, j : j + width] for i in (0, 2 * half) for j in (0, 2 * half)
    ]
    stacked = jnp.concatenate([x, *shifts], axis=-1)
    rows, columns = height // patch, width // patch
    cut = stacked.reshape(batch, rows, patch, columns, patch, -1).transpose(0, 1, 3, 2, 4, 5)
    return cut.reshape(batch, rows * columns, -1)


def _dense(features: int, **options) -> nn.Dense:
    return nn.Dense(features, kernel_init=nn.initializers.glorot_normal(), **options)
