"""dfl_jax: a JAX-native, vectorized simulator of decentralized federated learning."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dfl_jax.base import Algorithm, Clients, Graph, Info

__version__: str
__all__ = ['Algorithm', 'Clients', 'Graph', 'Info', '__version__']


def __getattr__(name: str) -> Any:
    """The types on first use: `dfl-jax --help` does not wait for JAX. And the version installed."""
    if name == '__version__':
        from importlib.metadata import version

        return version('dfl_jax')
    if name in __all__:
        from dfl_jax import base

        return getattr(base, name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
