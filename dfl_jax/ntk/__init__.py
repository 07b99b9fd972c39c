"""Neural tangent kernels of one network, the evolution of its outputs, and the update of both."""

from dfl_jax.ntk.evolution import EVOLUTIONS, evolve
from dfl_jax.ntk.kernels import KERNELS, kernel_fn
from dfl_jax.ntk.linearized import JACOBIAN_WEIGHTS, Linearization, linearization
from dfl_jax.ntk.precision import PRECISIONS, at_precision
from dfl_jax.ntk.update import SELECTIONS, TIMESTEPS, TRIED_AT_ONCE, NtkUpdate, ntk_update

__all__ = [
    'EVOLUTIONS',
    'JACOBIAN_WEIGHTS',
    'KERNELS',
    'PRECISIONS',
    'SELECTIONS',
    'TIMESTEPS',
    'TRIED_AT_ONCE',
    'Linearization',
    'NtkUpdate',
    'at_precision',
    'evolve',
    'kernel_fn',
    'linearization',
    'ntk_update',
]
