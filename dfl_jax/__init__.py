"""dfl_jax: a JAX-native, vectorized simulator of decentralized federated learning."""

from dfl_jax.base import Algorithm, Clients, Graph

__version__ = '0.1.0'
__all__ = ['Algorithm', 'Clients', 'Graph', '__version__']
