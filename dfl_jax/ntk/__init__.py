"""Neural tangent kernels of one network and the evolution of its outputs under them."""

from dfl_jax.ntk.evolution import EVOLUTIONS, evolve
from dfl_jax.ntk.kernels import KERNELS, kernel_fn

__all__ = ['EVOLUTIONS', 'KERNELS', 'evolve', 'kernel_fn']
