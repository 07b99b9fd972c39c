"""Imports neural-tangents 0.6.5, its last release, on the JAX of today.

neural-tangents is one backend of the kernel and the oracle of its tests. It imports names that JAX
has moved since, and its `experimental` subpackage TensorFlow. `load` provides those names during
its import. `JACOBIAN_CONTRACTION` and `NTK_VECTOR_PRODUCTS` then run, also under `jit` and `vmap`;
`STRUCTURED_DERIVATIVES` and `AUTO`, which tries it, do not.

Source: Novak et al., "Neural Tangents: Fast and Easy Infinite Neural Networks in Python" (2020) and
"Fast Finite Width Neural Tangent Kernel" (2022); https://github.com/google/neural-tangents
"""

import contextlib
import functools
import importlib
import sys
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from unittest import mock

import jax.core
import jax.extend.core
import jax.interpreters.ad

INSTALL = 'pip install --no-deps neural-tangents==0.6.5 && pip install frozendict'

EXPERIMENTAL = 'neural_tangents.experimental'
_MOVED = ('Jaxpr', 'JaxprEqn', 'Literal', 'Var', 'Primitive', 'ClosedJaxpr')  # core -> extend.core


@functools.cache
def load() -> types.ModuleType:
    """The neural_tangents module; the first call imports it and leaves JAX's modules as they were.

    Raises ImportError where neural-tangents or frozendict is not installed; the message says how.
    """
    try:
        with warnings.catch_warnings(), _names_of_old_jax():
            warnings.simplefilter('ignore')  # escapes in docstrings, deprecated names
            return importlib.import_module('neural_tangents')
    except ImportError as error:
        raise ImportError(
            f'neural-tangents cannot be imported ({error}); install it with `make nt`, or with '
            f'`{INSTALL}` (--no-deps: it would bring TensorFlow along, which nothing here uses)'
        ) from error


@contextlib.contextmanager
def _names_of_old_jax() -> Iterator[None]:
    """Adds to JAX what neural-tangents looks for, and takes it away again."""
    util = types.ModuleType('jax.util')
    util.safe_map = _safe_map  # type: ignore[attr-defined]
    util.safe_zip = _safe_zip  # type: ignore[attr-defined]
    # A key of its tables of rules: the primitive is gone from JAX, so the key is never met.
    zeros_like_p = jax.extend.core.Primitive('zeros_like')
    moved = {name: getattr(jax.extend.core, name) for name in _MOVED}
    with (
        mock.patch.multiple(jax.core, create=True, **moved),
        mock.patch.object(jax.interpreters.ad, 'zeros_like_p', zeros_like_p, create=True),
        _stand_in('jax.util', util),
        # The one subpackage that needs TensorFlow
        _stand_in(EXPERIMENTAL, types.ModuleType(EXPERIMENTAL)),
    ):
        yield


@contextlib.contextmanager
def _stand_in(name: str, module: types.ModuleType) -> Iterator[None]:
    """Answers `import name` with `module` in the context, then forgets it."""
    before = sys.modules.get(name)
    sys.modules[name] = module
    try:
        yield
    finally:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before


def _safe_map(f: Callable[..., Any], *args: Iterable[Any]) -> list[Any]:
    """Maps over iterables of one length; a list, as `jax.util.safe_map` returned."""
    return [f(*items) for items in zip(*args, strict=True)]


def _safe_zip(*args: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Zips iterables of one length; a list, as `jax.util.safe_zip` returned."""
    return list(zip(*args, strict=True))
