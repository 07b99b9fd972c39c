"""The empirical neural tangent kernel of one network, without its Jacobian.

Every backend computes Eq. (3) of NTK-DFL, H[m, n] = 1/C sum_c <J_c(x_m), J_c(x_n)>, with J_c the
Jacobian of output c by all parameters:

`structured`   layer by layer, see `dfl_jax.ntk.structured`; dense and convolutional layers only.
`output_scan`  any network: per-sample gradients of one output at a time, in blocks of samples.
`nt`           neural-tangents, in the same blocks.
`auto`         `structured` where every parameter lies in a layer it knows, else `output_scan`.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from dfl_jax.base import Array, PyTree
from dfl_jax.checks import check_choice
from dfl_jax.execution import folded
from dfl_jax.models import Model
from dfl_jax.ntk.precision import product
from dfl_jax.ntk.structured import structured, structured_members, unstructured_parameters
from dfl_jax.setting_error import InputError

KERNELS = ('auto', 'structured', 'output_scan', 'nt')
Kernel = Callable[[PyTree, Array], Array]  # (params, x [N, ...]) -> H [N, N]


def kernel_fn(model: Model, method: str = 'auto') -> Kernel:
    """The function of parameters and x [N, ...] that returns the kernel [N, N], by a backend.

    Raises ValueError for an unknown backend, or for `structured` on a network that holds
    parameters outside plain dense and convolutional layers.
    """
    check_choice('kernel', method, KERNELS)
    if method in ('auto', 'structured'):
        unknown = unstructured_parameters(model)
        if not unknown:
            return partial(structured, model)
        if method == 'structured':
            raise InputError(
                f'kernel structured does not know the layers of {", ".join(unknown)}; '
                'use `kernel=output_scan`'
            )
    if method == 'nt':
        return _in_blocks(_neural_tangents_block(model), model, budget=32 * 2**20)
    return _in_blocks(partial(_output_scan_block, model), model, budget=256 * 2**20)


def members_kernel_fn(model: Model) -> Kernel:
    """The kernel of Jacobians that members take at their own weights, layer by layer.

    (params with leaves [K, ...], x [K, N, ...]) -> H [K N, K N], the members' data one after the
    other. Raises ValueError where `structured` does not know the network.
    """
    unknown = unstructured_parameters(model)
    if unknown:
        raise ValueError(
            f'Jacobians at weights of their own need dense and convolutional layers, not those of '
            f'{", ".join(unknown)}'
        )
    return partial(structured_members, model)


def _in_blocks(block_fn, model: Model, budget: int) -> Kernel:
    """H assembled from block_fn(params, x_i, x_j), in blocks whose per-sample gradients fit.

    budget: bytes that the gradients of two blocks may take; neural-tangents takes several times as
    much. Recomputing the gradients of x_j for every x_i costs little beside the inner products,
    which grow with the block.
    """

    def kernel(params, x):
        n, itemsize = len(x), jnp.result_type(x).itemsize
        b = max(1, min(n, 128, budget // (2 * model.size * itemsize)))
        xs = folded(x, b)
        rows = lax.map(lambda xi: lax.map(lambda xj: block_fn(params, xi, xj), xs), xs)
        return rows.transpose(0, 2, 1, 3).reshape(len(xs) * b, len(xs) * b)[:n, :n]

    return kernel


def _output_scan_block(model: Model, params: PyTree, xi: Array, xj: Array) -> Array:
    def one_output(total, c):
        def gradients(x):  # [b, P], output c only
            def gradient(sample):
                by_layer = jax.grad(lambda p: model.apply(p, sample[None])[0, c])(params)
                return ravel_pytree(by_layer)[0]

            return jax.vmap(gradient)(x)

        return total + product(gradients(xi), gradients(xj).T), None

    zeros = jnp.zeros((len(xi), len(xj)), jnp.result_type(*jax.tree.leaves(params)))
    return lax.scan(one_output, zeros, jnp.arange(model.classes))[0] / model.classes


def _neural_tangents_block(model: Model):
    from dfl_jax.ntk import neural_tangents

    nt = neural_tangents.load()
    ntk = nt.empirical_ntk_fn(
        model.apply,
        trace_axes=(-1,),
        vmap_axes=0,
        implementation=nt.NtkImplementation.NTK_VECTOR_PRODUCTS,
    )
    return lambda params, xi, xj: ntk(xi, xj, params)
