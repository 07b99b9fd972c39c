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
from collections.abc import Iterator
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
    vars(util).update(  # both of iterables of one length; they return lists
        safe_map=lambda f, *each: [f(*items) for items in zip(*each, strict=True)],
        safe_zip=lambda *each: list(zip(*each, strict=True)),
    )
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
