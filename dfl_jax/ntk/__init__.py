"""Neural tangent kernels of one network, the evolution of its outputs, and the update of both.

An aggregator's data, the network linearized on it, the flow under the kernel, and SPARK's
projections and annealed targets.
"""

from dfl_jax.ntk.aggregator_data import (
    aggregator_data,
    aggregator_of_clients,
    at_least_width,
    count_data,
    draw_batches,
    drawn_samples,
    label_bits,
    of_members,
    output_targets,
    widths_of,
)
from dfl_jax.ntk.distillation import Distillation, distillation_target
from dfl_jax.ntk.evolution import evolve
from dfl_jax.ntk.kernels import kernel_fn
from dfl_jax.ntk.linearized import Linearization, linearization, projected, with_row_factors
from dfl_jax.ntk.precision import at_precision
from dfl_jax.ntk.update import TIMESTEPS, NtkUpdate, ntk_update
from dfl_jax.ntk.update_flops import flops_of_update, total_flops
