"""NTK-DFL as the equations stand: dense Jacobians, one client after the other.

What `benchmarks/round.py` compares with. It is not slowed down anywhere: the products are matrix
products of the whole, compiled ahead, all timesteps in one, and the Jacobian is formed in the
blocks that were fastest.
"""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from benchmarks._common import compiled, jacobian, seconds_of
from dfl_jax.base import Array, PyTree
from dfl_jax.models import Model
from dfl_jax.ntk import evolve
from dfl_jax.ntk.evolution import sample_losses


class Hub(NamedTuple):
    """What one hub works on; its samples are its own and its neighbours'."""

    params: PyTree  # w_bar
    x: Array  # [N~, ...]
    y: Array  # [C, N~] one-hot
    mask: Array  # [N~] bool
    rate: Array  # learning rate of this round


class Outcome(NamedTuple):
    seconds: float
    params: PyTree
    timestep: int


class Textbook:
    """The programs of one client, compiled for hubs like `hub`.

    J [N~, C, P] is in memory whole: 3.8 GB for 1,182 samples of the MLP 784-100-10.
    """

    def __init__(self, model: Model, hub: Hub, timesteps: tuple[int, ...]):
        start = time.perf_counter()
        n, c = hub.y.shape[::-1]
        self.model, self.timesteps = model, timesteps
        shape = jax.ShapeDtypeStruct
        j, h = shape((n, c, model.size), hub.x.dtype), shape((n, n), hub.x.dtype)
        totals = shape((len(timesteps), c, n), hub.x.dtype)
        self._jacobian = compiled(self._form_jacobian, hub.params, hub.x).call
        self._kernel = compiled(self._form_kernel, j, hub.mask).call
        self._evolve = compiled(self._evolve_outputs, h, hub).call
        self._pull = compiled(self._pull_back, j, totals).call
        self._loss = compiled(self._loss_at, self._flat(hub), hub).call
        self.compile_seconds = time.perf_counter() - start

    def client(self, hub: Hub) -> Outcome:
        """One client's evolution, Algorithm 4."""
        seconds, (params, timestep) = seconds_of(self._client, hub)
        return Outcome(seconds, params, timestep)

    def _client(self, hub: Hub) -> tuple[PyTree, int]:
        j = self._jacobian(hub.params, hub.x)
        totals = self._evolve(self._kernel(j, hub.mask), hub)
        updates = self._pull(j, totals)
        start, scale = self._flat(hub), hub.rate / jnp.sum(hub.mask)
        candidates = [start - scale * update for update in updates]  # Eq. (5a)
        losses = [float(self._loss(w, hub)) for w in candidates]
        best = losses.index(min(losses))
        return ravel_pytree(hub.params)[1](candidates[best]), self.timesteps[best]

    def _form_jacobian(self, params: PyTree, x: Array) -> Array:
        block = 16 if jax.default_backend() == 'cpu' else 128
        return jacobian(self.model, params, x, block)  # Eq. (2)

    def _form_kernel(self, j: Array, mask: Array) -> Array:
        rows = j.reshape(len(j), -1)
        h = jnp.matmul(rows, rows.T, precision='highest') / j.shape[1]  # Eq. (3)
        return jnp.where(mask[:, None] & mask[None, :], h, 0)

    def _evolve_outputs(self, h: Array, hub: Hub) -> Array:
        f0 = self.model.apply(hub.params, hub.x).T
        return evolve(
            h, f0, hub.y, hub.mask, hub.rate, timesteps=self.timesteps, method='euler'
        )  # Eq. (5b)

    def _pull_back(self, j: Array, totals: Array) -> Array:
        rows = totals.transpose(0, 2, 1).reshape(len(totals), -1)
        return rows @ j.reshape(rows.shape[1], -1)  # J^T S_t, [T, P]

    def _loss_at(self, w: Array, hub: Hub) -> Array:
        f = self.model.apply(ravel_pytree(hub.params)[1](w), hub.x).T
        losses = sample_losses(f, hub.y, 'cross_entropy')
        return jnp.sum(jnp.where(hub.mask, losses, 0)) / jnp.sum(hub.mask)

    def _flat(self, hub: Hub) -> Array:
        return ravel_pytree(hub.params)[0]
