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


class Aggregator(NamedTuple):
    """What one aggregator works on; its samples are its own and its neighbours'."""

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
    """The programs of one client, compiled for aggregators like `aggregator`.

    J [N~, C, P] is in memory whole: 3.8 GB for 1,182 samples of the MLP 784-100-10.
    """

    def __init__(self, model: Model, aggregator: Aggregator, timesteps: tuple[int, ...]):
        start = time.perf_counter()
        n, c = aggregator.y.shape[::-1]
        self.model, self.timesteps = model, timesteps
        shape = jax.ShapeDtypeStruct
        j, h = shape((n, c, model.size), aggregator.x.dtype), shape((n, n), aggregator.x.dtype)
        totals = shape((len(timesteps), c, n), aggregator.x.dtype)
        self._jacobian = compiled(self._form_jacobian, aggregator.params, aggregator.x).call
        self._kernel = compiled(self._form_kernel, j, aggregator.mask).call
        self._evolve = compiled(self._evolve_outputs, h, aggregator).call
        self._pull = compiled(self._pull_back, j, totals).call
        self._loss = compiled(self._loss_at, self._flat(aggregator), aggregator).call
        self.compile_seconds = time.perf_counter() - start

    def client(self, aggregator: Aggregator) -> Outcome:
        """One client's evolution, Algorithm 4."""
        seconds, (params, timestep) = seconds_of(self._client, aggregator)
        return Outcome(seconds, params, timestep)

    def _client(self, aggregator: Aggregator) -> tuple[PyTree, int]:
        j = self._jacobian(aggregator.params, aggregator.x)
        totals = self._evolve(self._kernel(j, aggregator.mask), aggregator)
        updates = self._pull(j, totals)
        start, scale = self._flat(aggregator), aggregator.rate / jnp.sum(aggregator.mask)
        candidates = [start - scale * update for update in updates]  # Eq. (5a)
        losses = [float(self._loss(w, aggregator)) for w in candidates]
        best = losses.index(min(losses))
        return ravel_pytree(aggregator.params)[1](candidates[best]), self.timesteps[best]

    def _form_jacobian(self, params: PyTree, x: Array) -> Array:
        block = 16 if jax.default_backend() == 'cpu' else 128
        return jacobian(self.model, params, x, block)  # Eq. (2)

    def _form_kernel(self, j: Array, mask: Array) -> Array:
        rows = j.reshape(len(j), -1)
        h = jnp.matmul(rows, rows.T, precision='highest') / j.shape[1]  # Eq. (3)
        return jnp.where(mask[:, None] & mask[None, :], h, 0)

    def _evolve_outputs(self, h: Array, aggregator: Aggregator) -> Array:
        f0 = self.model.apply(aggregator.params, aggregator.x).T
        return evolve(
            h,
            f0,
            aggregator.y,
            aggregator.mask,
            aggregator.rate,
            timesteps=self.timesteps,
            method='euler',
        )  # Eq. (5b)

    def _pull_back(self, j: Array, totals: Array) -> Array:
        rows = totals.transpose(0, 2, 1).reshape(len(totals), -1)
        return rows @ j.reshape(rows.shape[1], -1)  # J^T S_t, [T, P]

    def _loss_at(self, w: Array, aggregator: Aggregator) -> Array:
        f = self.model.apply(ravel_pytree(aggregator.params)[1](w), aggregator.x).T
        losses = sample_losses(f, aggregator.y, 'cross_entropy')
        return jnp.sum(jnp.where(aggregator.mask, losses, 0)) / jnp.sum(aggregator.mask)

    def _flat(self, aggregator: Aggregator) -> Array:
        return ravel_pytree(aggregator.params)[0]
