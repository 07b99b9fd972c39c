"""dfl_jax: a JAX-native, vectorized simulator of decentralized federated learning."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dfl_jax.base import Algorithm, Clients, Graph, Info

__version__ = '0.1.0'
__all__ = ['Algorithm', 'Clients', 'Graph', 'Info', '__version__']


def __getattr__(name: str) -> Any:
    """The types on first use: `dfl-jax --help` does not wait for JAX."""
    if name in __all__:
        from dfl_jax import base

        return getattr(base, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
