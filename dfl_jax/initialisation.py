"""The clients' initial weights."""

import jax
import jax.numpy as jnp

from dfl_jax.base import Array, PyTree
from dfl_jax.models import Model

INITS = ('same', 'independent')


def initial_params(key: Array, model: Model, clients: int, how: str = 'same') -> PyTree:
    """Stacked initial parameters, leaves [M, ...].

    `same`: one draw shared by all clients (the default of NTK-DFL); `independent`: a draw for each
    client (NTK-DFL Figure 12).
    """
    if how == 'same':
        params = model.init(key)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *leaf.shape)), params)
    if how == 'independent':
        return jax.vmap(model.init)(jax.random.split(key, clients))
    raise ValueError(f'unknown init {how!r}; choose one of {", ".join(INITS)}')
