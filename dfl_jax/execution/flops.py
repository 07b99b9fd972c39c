"""Floating-point operations of the matrix products and convolutions of a function."""

import math
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal, Var
from jax.interpreters.partial_eval import dce_jaxpr

from dfl_jax.base import PyTree


def flops_of(function: Callable, *arguments: Any) -> int:
    """Floating-point operations of one call, a multiplication and an addition being two.

    Products inside a scan count as often as it runs; elementwise work, a few per cent of a network
    that is worth training, does not count.

    arguments: arrays, or jax.ShapeDtypeStructs of them: nothing is computed.

    Raises ValueError for a loop whose length the data decide.

    >>> import jax.numpy as jnp
    >>> flops_of(jnp.dot, jnp.ones((2, 3)), jnp.ones((3, 5)))
    60
    """
    return counted_flops(function, *arguments)(True)


def counted_flops(function: Callable, *arguments: Any) -> Callable[[PyTree], int]:
    """count(wanted) -> flops of one call of which only some results are used, as of
    `flops_of`; wanted: booleans, a prefix of the function's results. It is traced once."""
    closed, results = jax.make_jaxpr(function, return_shape=True)(*arguments)

    def count(wanted: PyTree) -> int:
        used = jax.tree.leaves(jax.tree.broadcast(wanted, results))
        return _of(dce_jaxpr(closed.jaxpr, used)[0])

    return count


def _of(jaxpr: Jaxpr) -> int:
    """What is computed twice from the same, as tracing often writes it, counts once."""
    total = 0
    same: dict[Var, Var] = {}  # a variable -> the first that holds the same value
    known: dict[tuple, list[tuple[dict[str, Any], list[Var]]]] = {}  # -> parameters, results
    for equation in jaxpr.eqns:
        inputs = (str(v) if isinstance(v, Literal) else same.get(v, v) for v in equation.invars)
        constants = [id(c) for part in _closed(equation.params) for c in part.consts]
        alike = known.setdefault((equation.primitive.name, *constants, *inputs), [])
        # Printing functions takes long, so only the parameters of what could be the same are.
        for params, results in alike:
            if str(params) == str(equation.params):
                same |= dict(zip(equation.outvars, results, strict=True))
                break
        else:
            alike.append((equation.params, equation.outvars))
            total += _of_equation(equation)
    return total


def _of_equation(equation: Any) -> int:
    name = equation.primitive.name
    if name == 'dot_general':
        return _of_product(equation)
    if name == 'conv_general_dilated':
        return _of_convolution(equation)
    inner = [_of(part) for part in _inside(equation.params)]
    if name == 'scan':
        return equation.params['length'] * sum(inner)
    if name == 'cond':
        return max(inner)
    if name == 'while' and any(inner):
        raise ValueError('a loop whose length the data decide has no number of operations')
    return sum(inner)


def _inside(params: dict[str, Any]) -> list[Jaxpr]:
    """The jaxprs among the parameters of an equation; from JAX 0.11 on closed ones are Jaxprs."""
    leaves = jax.tree.leaves(params)
    closed = [each.jaxpr for each in _closed(params)]
    return closed + [e for e in leaves if isinstance(e, Jaxpr) and not isinstance(e, ClosedJaxpr)]


def _closed(params: dict[str, Any]) -> list[ClosedJaxpr]:
    return [each for each in jax.tree.leaves(params) if isinstance(each, ClosedJaxpr)]


def _of_product(equation: Any) -> int:
    (contracted, _), _ = equation.params['dimension_numbers']
    left, out = equation.invars[0].aval.shape, equation.outvars[0].aval.shape
    return 2 * math.prod(out) * math.prod(left[axis] for axis in contracted)


def _of_convolution(equation: Any) -> int:
    spec = equation.params['dimension_numbers'].rhs_spec  # output features, input features, space
    kernel, out = equation.invars[1].aval.shape, equation.outvars[0].aval.shape
    each = math.prod(kernel[axis] for axis in spec[1:])
    return 2 * math.prod(out) * each // equation.params['batch_group_count']
