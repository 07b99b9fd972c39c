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
from dfl_jax.ntk.kernels import kernel_fn, members_kernel_fn

SELECTIONS = ('network', 'linearized')
JACOBIAN_WEIGHTS = ('hub', 'own')
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
    jacobian_weights: str = 'hub',
) -> Callable[..., tuple[PyTree, Array, Array]]:
    """update(key, w, x, labels, mask, rate, own=0, members=None) -> (new weights, t, its loss).

    x [N, ...] with zeros where mask [N] is False, labels [N] int32, `rate` the length eta of a
    time step, t the chosen timestep. Without a codec no Jacobian is formed, and neither the key nor
    `own`, the number of leading samples whose Jacobian is not sent, means anything. Under
    jacobian_weights='own' `members`, leaves [K, ...], are the weights of the members whose data x
    holds one after the other. For the settings see `dfl_jax.algorithms.ntk_dfl`.

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
    if jacobian_weights not in JACOBIAN_WEIGHTS:
        raise ValueError(
            f'unknown Jacobian weights {jacobian_weights!r}; '
            f'choose one of {", ".join(JACOBIAN_WEIGHTS)}'
        )
    at_own = jacobian_weights == 'own'
    if at_own and (codec is not None or kernel != 'auto'):
        raise ValueError('jacobian_weights=own takes exact Jacobians and kernel=auto')
    members_ntk = members_kernel_fn(model) if at_own else None
    ts = jnp.array(timesteps)

    def linearized(key: Array, w: PyTree, x: Array, own: int, members: PyTree):
        """f0 [C, N], H [N, N] of Eq. (3), and the map from S [C, N] to J^T S."""
        if members_ntk is not None:
            count = len(jax.tree.leaves(members)[0])
            each = x.reshape(count, -1, *x.shape[1:])
            f0, vjp = jax.vjp(
                lambda w: jax.vmap(model.apply)(w, each).reshape(len(x), -1).T, members
            )
            pull = lambda total: jax.tree.map(lambda g: g.sum(axis=0), vjp(total)[0])  # noqa: E731
            return f0, members_ntk(members, each), pull
        f0, vjp = jax.vjp(lambda w: model.apply(w, x).T, w)
        if codec is not None:
            return f0, *decoded_jacobian(model, codec, key, w, x, own)
        return f0, ntk(w, x), lambda total: vjp(total)[0]

    def update(
        key: Array,
        w: PyTree,
        x: Array,
        labels: Array,
        mask: Array,
        rate: Array,
        own: int = 0,
        members: PyTree = None,
    ):
        n = jnp.maximum(jnp.sum(mask), 1)  # a cohort of which nobody answered
        y = jax.nn.one_hot(labels, model.classes, dtype=x.dtype).T  # [C, N]

        f0, h, pull = linearized(key, w, x, own, members)
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
