"""The clients' initial weights."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from dfl_jax.base import Array, PyTree
from dfl_jax.checks import check_choice
from dfl_jax.models import Model

INITS = ('same', 'independent')

Init = str | Callable[[Array, Model, int], PyTree]  # (key, model, clients) -> leaves [M, ...]


def initial_params(key: Array, model: Model, clients: int, init: Init = 'same') -> PyTree:
    """Stacked initial parameters, leaves [M, ...].

    `same`: one draw shared by all clients (the default of NTK-DFL); `independent`: a draw for each
    client (NTK-DFL Figure 12); or a function that draws them, e.g. `gain_corrected(gain)`.
    """
    check_init(init)
    if callable(init):
        return init(key, model, clients)
    if init == 'same':
        params = model.init(key)
        return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *leaf.shape)), params)
    return jax.vmap(model.init)(jax.random.split(key, clients))


@jax.tree_util.register_dataclass
@dataclass(frozen=True, eq=False)
class gain_corrected:
    """Independent draws times the gain 1 / ||v_steady|| (Initialisation and topology, Algorithm 1).

    Averaging shrinks what clients draw independently by ||v_steady||, and leaves what they agree on
    (zero biases, unit scales of norms) as it is: only the former is scaled.

    gain: one for all clients, or [M], each client's estimate; see `dfl_jax.gossip.gain`.

    >>> gain_corrected(2.0) == gain_corrected(2.0), gain_corrected(2.0) == gain_corrected(3.0)
    (True, False)
    """

    gain: ArrayLike

    def __call__(self, key: Array, model: Model, clients: int) -> PyTree:
        gains = jnp.broadcast_to(jnp.asarray(self.gain), clients)

        def scaled(leaf: Array) -> Array:
            by_client = gains.astype(leaf.dtype).reshape(-1, *[1] * (leaf.ndim - 1))
            return jnp.where(jnp.all(leaf == leaf[:1]), leaf, by_client * leaf)

        return jax.tree.map(scaled, initial_params(key, model, clients, 'independent'))

    # By value, so that runs that start alike are one program
    def __eq__(self, other: object) -> bool:
        return isinstance(other, gain_corrected) and np.array_equal(self.gain, other.gain)

    def __hash__(self) -> int:
        return hash(np.asarray(self.gain, np.float64).tobytes())


def check_init(init: Init) -> None:
    """Raises ValueError for a name that is not one of INITS."""
    if not callable(init):
        check_choice('init', init, INITS)
