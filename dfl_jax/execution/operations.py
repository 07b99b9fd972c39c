"""Floating-point operations of the matrix products and convolutions of a function."""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr


def operations(function: Callable, *arguments: Any) -> int:
    """Operations of one call, a multiplication and an addition being two.

    Products inside a scan count as often as it runs; elementwise work, a few per cent of a network
    that is worth training, does not count.

    arguments: arrays, or jax.ShapeDtypeStructs of them: nothing is computed.

    Raises ValueError for a loop whose length the data decide.

    >>> import jax.numpy as jnp
    >>> operations(jnp.dot, jnp.ones((2, 3)), jnp.ones((3, 5)))
    60
    """
    return _of(jax.make_jaxpr(function)(*arguments).jaxpr)


def _of(jaxpr: Jaxpr) -> int:
    total = 0
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        inner = [_of(part) for part in _inside(equation.params)]
        if name == 'dot_general':
            total += _of_product(equation)
        elif name == 'conv_general_dilated':
            total += _of_convolution(equation)
        elif name == 'scan':
            total += equation.params['length'] * sum(inner)
        elif name == 'cond':
            total += max(inner)
        elif name == 'while' and any(inner):
            raise ValueError('a loop whose length the data decide has no number of operations')
        else:
            total += sum(inner)
    return total


def _inside(params: dict[str, Any]) -> list[Jaxpr]:
    """The jaxprs among the parameters of an equation."""
    found = []
    for value in params.values():
        for each in value if isinstance(value, tuple | list) else (value,):
            if isinstance(each, ClosedJaxpr):
                found.append(each.jaxpr)
            elif isinstance(each, Jaxpr):
                found.append(each)
    return found


def _of_product(equation: Any) -> int:
    (contracted, _), _ = equation.params['dimension_numbers']
    left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    return 2 * math.prod(out) * math.prod(left[axis] for axis in contracted)


def _of_convolution(equation: Any) -> int:
    spec = equation.params['dimension_numbers'].rhs_spec  # output features, input features, space
    kernel, out = equation.invars[1].aval.shape, equation.outvars[0].aval.shape
    each = math.prod(kernel[axis] for axis in spec[1:])
    return 2 * math.prod(out) * each // equation.params['batch_group_count']
