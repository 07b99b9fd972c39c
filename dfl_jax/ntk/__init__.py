"""Neural tangent kernels of one network, the evolution of its outputs, and the update of both.

An aggregator's data, the network linearized on it, the flow under the kernel, and SPARK's
projections and annealed targets.
"""

from dfl_jax.ntk.aggregator_data import (
    aggregator_data,
    aggregator_of_clients,
    draw_batches,
    drawn_samples,
    of_members,
    one_hot_targets,
)
from dfl_jax.ntk.distillation import Distillation, distillation_target
from dfl_jax.ntk.evolution import EVOLUTIONS, evolve
from dfl_jax.ntk.kernels import KERNELS, kernel_fn
from dfl_jax.ntk.linearized import JACOBIAN_WEIGHTS, Linearization, linearization, projected
from dfl_jax.ntk.precision import PRECISIONS, at_precision
from dfl_jax.ntk.update import SELECTIONS, TIMESTEPS, TRIED_AT_ONCE, NtkUpdate, ntk_update
