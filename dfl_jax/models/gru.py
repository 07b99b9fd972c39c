"""A recurrent network for sequences of tokens, such as the characters of a text."""

import jax
import jax.numpy as jnp
from flax import linen as nn


class GRU(nn.Module):
    """Logits of the token after each one: an embedding, a gated recurrent unit, a dense layer.

    Output l depends on the tokens up to l alone. Weights as flax draws them; the recurrent ones are
    orthogonal.
    """

    classes: int  # tokens that there are
    embedding: int = 16
    hidden: int = 64

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:  # tokens [B, L] -> [B, L, C]
        if x.ndim != 2:
            raise ValueError('it takes tokens [B, L]')
        # Data sets hold their inputs as float32, in which whole numbers to 2**24 are exact
        x = nn.Embed(self.classes, self.embedding)(x.astype(jnp.int32))
        return nn.Dense(self.classes)(nn.RNN(nn.GRUCell(self.hidden))(x))
