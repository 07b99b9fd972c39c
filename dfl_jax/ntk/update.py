"""One NTK update of one network on one aggregator's data: NTK-DFL, Algorithm 4.

Evolve the outputs under the kernel (Eq. 4, 11), move the weights with them (Eq. 5), and keep the
timestep with the lowest loss. NTK-FL does the same with the data of a cohort, SPARK with a
projected Jacobian and a target that is not one-hot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.checks import check_choice, check_range
from dfl_jax.models import Model
from dfl_jax.ntk import evolution as ntk_evolution
from dfl_jax.ntk.linearized import Linearization
from dfl_jax.ntk.precision import PRECISIONS

SELECTIONS = ('network', 'linearized')
TIMESTEPS = (100, 200, 300, 400, 500, 600, 700, 800)
TRIED_AT_ONCE = 4  # timesteps: their networks run as one wide product


@dataclass(frozen=True, kw_only=True)
class NtkUpdate:
    """How an aggregator evolves its outputs, and its weights with them.

    Args:
      lr: eta, the length of a time step.
      lr_decay: round k = 0, 1, ... uses lr * exp(-lr_decay * k).
      timesteps: candidates t among which each client chooses, increasing.
      loss: `cross_entropy` or `mse` (half squared error, whose update carries the 1/C of Eq. 5b).
      evolution: of the outputs, `rkc`, `euler` or `eigh` (of mse), see `dfl_jax.ntk.evolution`.
      selection: the timestep's loss is that of the true network with the evolved weights
        (`network`) or of the evolved outputs (`linearized`), on the data of an aggregator and its
        neighbours.
      precision: of the products of a round, `highest`, `high` or `default`, as
        `jax.default_matmul_precision` names them; CPUs know only one.

    Raises ValueError for settings out of range or that contradict each other.
    """

    lr: float = 0.01
    lr_decay: float = 0.0
    timesteps: Sequence[int] = TIMESTEPS
    loss: str = 'cross_entropy'
    evolution: str = 'rkc'
    selection: str = 'network'
    precision: str = 'highest'

    def __post_init__(self):
        ntk_evolution.check(self.timesteps, self.loss, self.evolution)
        check_choice('timestep selection', self.selection, SELECTIONS)
        check_choice('precision', self.precision, PRECISIONS)
        if not isinstance(self.lr, jax.core.Tracer):
            check_range('lr', self.lr, above=0)

    def rate(self, k: Array) -> Array:
        """The length of a time step in round k."""
        return self.lr * jnp.exp(-self.lr_decay * k)


def ntk_update(model: Model, settings: NtkUpdate) -> Callable[..., tuple[PyTree, Array, Array]]:
    """update(w, linearized, x, target, mask, rate, labels=None) -> (new weights, t, its loss).

    linearized: the Linearization at w on x [N, ...], which has zeros where mask [N] is False;
    target [C, N], what the outputs evolve towards; rate, the length eta of a time step; labels
    [C, N], by whose loss the timestep t is chosen (default: the target).
    """
    loss, selection = settings.loss, settings.selection
    timesteps = jnp.array(settings.timesteps)

    def update(
        w: PyTree,
        linearized: Linearization,
        x: Array,
        target: Array,
        mask: Array,
        rate: Array,
        labels: Array | None = None,
    ):
        n = jnp.maximum(jnp.sum(mask), 1)  # a cohort of which nobody answered
        if labels is None:
            labels = target
        totals = ntk_evolution.evolve(  # Eq. (4), (5b), (11)
            linearized.kernel,
            linearized.outputs,
            target,
            mask,
            rate,
            timesteps=settings.timesteps,
            loss=loss,
            method=settings.evolution,
        )
        scale = rate / n / (model.classes if loss == 'mse' else 1)

        def mean_loss(f):
            losses = ntk_evolution.sample_losses(f, labels, loss)
            return jnp.sum(jnp.where(mask, losses, 0)) / n

        def weights_at(total):
            step = linearized.vjp(total)  # J^T S_t
            return jax.tree.map(lambda w, s: w - scale * s, w, step)  # Eq. (5a)

        def loss_at(total):
            if selection == 'network' and linearized.moved is not None:
                return mean_loss(linearized.moved(total, -scale))
            if selection == 'network':
                return mean_loss(model.apply(weights_at(total), x).T)
            return mean_loss(
                linearized.outputs - rate / n * ntk_evolution.apply(linearized.kernel, total)
            )

        values = lax.map(loss_at, totals, batch_size=TRIED_AT_ONCE)
        chosen = jnp.argmin(jnp.where(jnp.isnan(values), jnp.inf, values))
        return weights_at(totals[chosen]), timesteps[chosen], values[chosen]

    return update
