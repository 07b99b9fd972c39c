"""One NTK update of one network on one aggregator's data: NTK-DFL, Algorithm 4.

Evolve the outputs under the kernel (Eq. 4, 11), move the weights with them (Eq. 5), and keep the
timestep with the lowest loss. NTK-FL does the same with the data of a cohort, SPARK with a
projected Jacobian and a target that is not one-hot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.checks import check_choice, check_range
from dfl_jax.models import Model
from dfl_jax.ntk import evolution as ntk_evolution
from dfl_jax.ntk.evolution import OWN
from dfl_jax.ntk.linearized import Linearization
from dfl_jax.ntk.precision import PRECISIONS
from dfl_jax.ntk.timestep_search import every, section

SELECTIONS = ('network', 'linearized')
SEARCHES = {'section': section, 'all': every}
TIMESTEPS = (100, 200, 300, 400, 500, 600, 700, 800)


@dataclass(frozen=True, kw_only=True)
class NtkUpdate:
    """How an aggregator evolves its outputs, and its weights with them.

    Args:
      lr: length eta of a time step.
      lr_decay: rate of decay: round k = 0, 1, ... uses lr * exp(-lr_decay * k); 0 for none.
      timesteps: numbers of time steps, increasing; each client keeps the weights of the one with
        the lowest loss.
      loss: `cross_entropy`; `mse`, half of the squared error, mean over samples and outputs; or
        `task`, that of the task whatever it is, whose gradient the outputs follow.
      evolution: how the residual that moves the weights is accumulated: `sampled`, summed over
        whole steps of the gradient flow; `rkc`, integrated over the flow; `euler`, summed over
        steps of Euler's method; or `eigh`, as `sampled` in closed form (for mse). See
        `dfl_jax.ntk.evolution`.
      selection: the loss by which a timestep is chosen, on the data of an aggregator and its
        neighbours: that of the network with the evolved weights (`network`), or that of the
        evolved outputs (`linearized`, which always falls, so that the last timestep is chosen).
      search: for the timestep of the lowest loss: `all` tries every timestep; `section` is a
        Fibonacci search, which takes the loss to fall and then to rise and tries 3 to 5 of eight.
      precision: of the matrix products of a round: `highest`, `high` or `default`, as in
        `jax.default_matmul_precision` (by default GPUs of NVIDIA multiply in TF32), or `bfloat16`;
        CPUs have only one. `float16_kernel` is the highest, with the evolution's kernel in float16:
        less memory on a GPU, no faster on a CPU.

    Raises ValueError for settings out of range or that contradict each other.
    """

    lr: float = 0.01
    lr_decay: float = 0.0
    timesteps: Sequence[int] = TIMESTEPS
    loss: str = 'cross_entropy'
    evolution: str = 'sampled'
    selection: str = 'network'
    search: str = 'section'
    precision: str = 'highest'

    def __post_init__(self):
        check_choice('loss', self.loss, (*ntk_evolution.LOSSES, OWN))
        loss = _unknown if self.loss == OWN else self.loss
        ntk_evolution.check(self.timesteps, loss, self.evolution)
        check_choice('selection', self.selection, SELECTIONS)
        check_choice('precision', self.precision, PRECISIONS)
        if self.float16_kernel and self.evolution == 'eigh':
            raise ValueError(
                'precision=float16_kernel is for an evolution by products with the kernel; eigh '
                f'factorizes it; use {ntk_evolution.FOR_ANY}'
            )
        check_choice('search', self.search, SEARCHES)
        if not isinstance(self.lr, jax.core.Tracer):
            check_range('lr', self.lr, above=0)

    @property
    def float16_kernel(self) -> bool:
        """Whether the evolution keeps its kernel in float16."""
        return self.precision == 'float16_kernel'

    def rate(self, k: Array) -> Array:
        """The length of a time step in round k."""
        return self.lr * jnp.exp(-self.lr_decay * k)


class _Search(NamedTuple):
    """The search for the timestep of the lowest loss."""

    tried: Array  # timesteps, int32
    chosen: Array  # index of the timestep of the lowest loss, int32
    loss: Array  # that loss
    best: PyTree  # and the candidate that has it


class Candidates(NamedTuple):
    """What stands for a timestep while it is tried."""

    candidate_of: Callable[[Array], PyTree]  # of S_t
    network: Callable[[PyTree], Array]  # outputs [C, N] of the network with its weights
    weights_of: Callable[[PyTree], PyTree]


class Updated(NamedTuple):
    """What an update leads to."""

    weights: PyTree
    timestep: Array  # t of the lowest loss, int32
    loss: Array  # that loss
    products: Array  # of the kernel, by their flops
    tried: Array  # timesteps, int32


def check_task(model: Model, loss: str) -> None:
    """Raises ValueError for a task whose outputs no NTK method evolves, or not under this loss."""
    task = model.task
    if task.sequences or not (task.flow or loss == OWN):
        own = '' if task.sequences else f', or set loss={OWN}, which is the loss of the task itself'
        raise ValueError(
            f'NTK methods evolve the outputs of a classifier or a regression, not of {task.name}; '
            f'take a gradient method, such as dfedavg{own}'
        )
    if loss not in (*task.flow, OWN):
        raise ValueError(
            f'loss={loss} is none of {task.name}; set loss={" or ".join((*task.flow, OWN))}, or '
            'take a gradient method, such as dfedavg'
        )


def loss_of(model: Model, loss: str) -> ntk_evolution.SampleLoss:
    """The loss of that name as the evolution takes it, that of the task as a function."""
    if loss != OWN:
        return loss
    return lambda f, y: model.task.losses(f.T, y)


def _unknown(f: Array, y: Array) -> Array:
    """Stands for the losses of a task before it is known which."""
    raise NotImplementedError


def candidates(
    model: Model, settings: NtkUpdate, linearized: Linearization, w: PyTree, x: Array, scale: Array
) -> Candidates:
    """How timesteps are tried: by their weights, or by S_t itself where that is all that is needed,
    which is smaller."""

    def weights_at(total: Array) -> PyTree:
        step = linearized.vjp(total)  # J^T S_t
        return jax.tree.map(lambda w, s: w - scale * s, w, step)  # Eq. (5a)

    moved = linearized.moved
    if settings.selection == 'network' and moved is None:
        return Candidates(weights_at, lambda w: model.apply(w, x).T, lambda w: w)
    return Candidates(lambda s: s, lambda s: moved(s, -scale) if moved else s, weights_at)


def ntk_update(model: Model, settings: NtkUpdate) -> Callable[..., Updated]:
    """update(w, linearized, x, target, mask, rate, labels=None) -> Updated.

    linearized: the Linearization at w on x [N, ...], which has zeros where mask [N] is False;
    target [C, N], what the outputs evolve towards, or what the loss of the task takes; rate, the
    length eta of a time step; labels [C, N], by whose loss the timestep t is chosen (default: the
    target). See `output_targets`.
    """
    check_task(model, settings.loss)
    loss = loss_of(model, settings.loss)
    timesteps = jnp.array(settings.timesteps, jnp.int32)

    def update(
        w: PyTree,
        linearized: Linearization,
        x: Array,
        target: Array,
        mask: Array,
        rate: Array,
        labels: Array | None = None,
    ):
        n = jnp.maximum(jnp.sum(mask), 1)  # a cohort of which no client answered
        if labels is None:
            labels = target
        begin, reach = ntk_evolution.evolution(  # Eq. (4), (5b), (11)
            linearized.kernel,
            linearized.outputs,
            target,
            mask,
            rate,
            timesteps=settings.timesteps,
            loss=loss,
            method=settings.evolution,
            float16_kernel=settings.float16_kernel,
        )
        scale = jnp.asarray(ntk_evolution.mean_rate(rate, mask, model.classes, loss))

        def mean_loss(f):
            losses = ntk_evolution.sample_losses(f, labels, loss)
            return jnp.sum(jnp.where(mask, losses, 0)) / n

        def evolved_outputs(integral):
            return linearized.outputs - scale * ntk_evolution.apply(linearized.kernel, integral)

        trial = candidates(model, settings, linearized, w, x, scale)
        reached = lax.scan(reach, begin, timesteps)[1]
        linear = settings.selection == 'linearized'

        def attempt(at: _Search, index: Array) -> tuple[_Search, Array]:
            total, integral, _ = jax.tree.map(lambda a: a[index], reached)
            candidate = trial.candidate_of(total)
            value = mean_loss(evolved_outputs(integral) if linear else trial.network(candidate))
            # No number is above all numbers.
            now, lowest = (jnp.where(jnp.isnan(v), jnp.inf, v) for v in (value, at.loss))
            lower = (now < lowest) | (at.tried == 0)
            kept = lambda new, old: jnp.where(lower, new, old)  # noqa: E731
            chosen, loss, best = jax.tree.map(
                kept, (index, value, candidate), (at.chosen, at.loss, at.best)
            )
            return _Search(at.tried + 1, chosen, loss, best), now

        nothing, first = jnp.int32(0), jax.eval_shape(trial.candidate_of, linearized.outputs)
        unknown = jnp.full((), jnp.inf, linearized.outputs.dtype)
        untried = _Search(nothing, nothing, unknown, jax.tree.map(jnp.zeros_like, first))
        search = SEARCHES[settings.search](attempt, untried, len(timesteps), unknown)
        timestep = timesteps[search.chosen]
        weights = optax.tree.cast_like(trial.weights_of(search.best), w)
        return Updated(weights, timestep, search.loss, jnp.max(reached.products), search.tried)

    return update
