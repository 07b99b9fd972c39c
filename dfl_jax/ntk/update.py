"""One NTK update of one network on one aggregator's data: NTK-DFL, Algorithm 4.

Evolve the outputs under the kernel (Eq. 4, 11), move the weights with them (Eq. 5), and keep the
timestep with the lowest loss. NTK-FL does the same with the data of a cohort, SPARK with a
projected Jacobian and a target that is not one-hot.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.models import Model
from dfl_jax.ntk import evolution as ntk_evolution
from dfl_jax.ntk.linearized import Linearization

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
) -> Callable[..., tuple[PyTree, Array, Array]]:
    """update(w, linearized, x, target, mask, rate, judge=None) -> (new weights, t, its loss).

    linearized: the Linearization at w on x [N, ...], which has zeros where mask [N] is False;
    target [C, N], what the outputs evolve towards; rate, the length eta of a time step; judge [C,
    N], by which the timestep t is chosen (default: the target). For the settings see
    `dfl_jax.algorithms.ntk_dfl`.

    Raises ValueError for settings that contradict each other, before anything is traced.
    """
    ntk_evolution.check(timesteps, loss, evolution)
    if selection not in SELECTIONS:
        raise ValueError(
            f'unknown timestep selection {selection!r}; choose one of {", ".join(SELECTIONS)}'
        )
    ts = jnp.array(timesteps)

    def update(
        w: PyTree,
        linearized: Linearization,
        x: Array,
        target: Array,
        mask: Array,
        rate: Array,
        judge: Array | None = None,
    ):
        n = jnp.maximum(jnp.sum(mask), 1)  # a cohort of which nobody answered
        if judge is None:
            judge = target
        totals = ntk_evolution.evolve(  # Eq. (4), (5b), (11)
            linearized.kernel,
            linearized.outputs,
            target,
            mask,
            rate,
            timesteps=timesteps,
            loss=loss,
            method=evolution,
        )
        scale = rate / n / (model.classes if loss == 'mse' else 1)

        def mean_loss(f):
            losses = ntk_evolution.sample_losses(f, judge, loss)
            return jnp.sum(jnp.where(mask, losses, 0)) / n

        def weights_at(total):
            step = linearized.vjp(total)  # J^T S_t
            return jax.tree.map(lambda w, s: w - scale * s, w, step)  # Eq. (5a)

        def loss_at(total):
            if selection == 'network':
                return mean_loss(model.apply(weights_at(total), x).T)
            return mean_loss(
                linearized.outputs - rate / n * ntk_evolution.apply(linearized.kernel, total)
            )

        values = lax.map(loss_at, totals, batch_size=TRIED_AT_ONCE)
        chosen = jnp.argmin(jnp.where(jnp.isnan(values), jnp.inf, values))
        return weights_at(totals[chosen]), ts[chosen], values[chosen]

    return update
