"""dfl_jax: a JAX-native, vectorized simulator of decentralized federated learning.

>>> import dfl_jax
>>> run = dfl_jax.Experiment.of(algorithm='dpsgd', dataset='digits', rounds=2).run(progress=False)
>>> for row in run: print(row['round'], row['consensus_accuracy'] > 0.1)
1 True
2 True
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dfl_jax.base import Algorithm, Clients, Graph, Info
    from dfl_jax.experiment.experiment import Experiment
    from dfl_jax.experiment.saved_run import load
    from dfl_jax.methods import make
    from dfl_jax.setting_error import SettingError

__version__: str
_MODULES = {  # name -> where it is
    **dict.fromkeys(('Algorithm', 'Clients', 'Graph', 'Info'), 'base'),
    'Experiment': 'experiment.experiment',
    'SettingError': 'setting_error',
    'load': 'experiment.saved_run',
    'make': 'methods',
}
__all__ = [
    *('Algorithm', 'Clients', 'Experiment', 'Graph', 'Info', 'SettingError'),
    *('__version__', 'load', 'make'),
]


def __getattr__(name: str) -> Any:
    """These on first use: `dfl-jax --help` does not wait for JAX. And the version installed."""
    if name == '__version__':
        from importlib.metadata import version

        return version('dfl_jax')
    if name in _MODULES:
        return getattr(importlib.import_module(f'dfl_jax.{_MODULES[name]}'), name)
    raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
