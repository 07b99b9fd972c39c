"""One NTK update of one network on one hub's data: NTK-DFL, Algorithm 4.

Form the kernel at the weights given (Eq. 3), evolve the outputs under it (Eq. 4, 11), move the
weights with them (Eq. 5), and keep the timestep with the lowest loss. NTK-FL does the same with
the data of a cohort.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.compression import Codec
from dfl_jax.models import Model
from dfl_jax.ntk import evolution as ntk_evolution
from dfl_jax.ntk.compressed import decoded_jacobian
from dfl_jax.ntk.kernels import kernel_fn

SELECTIONS = ('network', 'linearized')
TIMESTEPS = (100, 200, 300, 400, 500, 600, 700, 800)
TRIED_AT_ONCE = 4  # timesteps: their networks run as one wide product


def ntk_update(
    model: Model,
    *,
    timesteps: Sequence[int] = TIMESTEPS,
    loss: str = 'cross_entropy',
    evolution: str = 'rkc',
    selection: str = 'network',
    kernel: str = 'auto',
    codec: Codec | None = None,
) -> Callable[..., tuple[PyTree, Array, Array]]:
    """update(key, w, x, labels, mask, rate, own=0) -> (new weights, chosen timestep, its loss).

    x [N, ...] with zeros where mask [N] is False, labels [N] int32, `rate` the length eta of a
    time step. Without a codec the Jacobians are exact, no Jacobian is formed, and neither the key
    nor `own`, the number of leading samples whose Jacobian is not sent, means anything. For the
    settings see `dfl_jax.algorithms.ntk_dfl`.

    Raises ValueError for settings that contradict each other, before anything is traced.
    """
    ntk_evolution.check(timesteps, loss, evolution)
    if selection not in SELECTIONS:
        raise ValueError(
            f'unknown timestep selection {selection!r}; choose one of {", ".join(SELECTIONS)}'
        )
    ntk = kernel_fn(model, kernel)
    if codec is not None and kernel != 'auto':
        raise ValueError(f'kernel={kernel} needs exact Jacobians; leave it out beside compression')
    ts = jnp.array(timesteps)

    def update(key: Array, w: PyTree, x, labels, mask: Array, rate: Array, own: int = 0):
        n = jnp.maximum(jnp.sum(mask), 1)  # a cohort of which nobody answered
        y = jax.nn.one_hot(labels, model.classes, dtype=x.dtype).T  # [C, N]

        f0, vjp = jax.vjp(lambda w: model.apply(w, x).T, w)
        if codec is None:
            h, pull = ntk(w, x), lambda total: vjp(total)[0]  # Eq. (3)
        else:
            h, pull = decoded_jacobian(model, codec, key, w, x, own)
        h = jnp.where(mask[:, None] & mask[None, :], h, 0)
        totals = ntk_evolution.evolve(  # Eq. (4), (5b), (11)
            h, f0, y, mask, rate, timesteps=timesteps, loss=loss, method=evolution
        )
        scale = rate / n / (model.classes if loss == 'mse' else 1)

        def mean_loss(f):
            losses = ntk_evolution.sample_losses(f, y, loss)
            return jnp.sum(jnp.where(mask, losses, 0)) / n

        def weights_at(total):
            step = pull(total)  # J^T S_t
            return jax.tree.map(lambda w, s: w - scale * s, w, step)  # Eq. (5a)

        def loss_at(total):
            if selection == 'network':
                return mean_loss(model.apply(weights_at(total), x).T)
            return mean_loss(f0 - rate / n * ntk_evolution.product(total, h))

        values = lax.map(loss_at, totals, batch_size=TRIED_AT_ONCE)
        chosen = jnp.argmin(jnp.where(jnp.isnan(values), jnp.inf, values))
        return weights_at(totals[chosen]), ts[chosen], values[chosen]

    return update
