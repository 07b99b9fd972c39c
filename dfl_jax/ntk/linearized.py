"""The network of one aggregator, linearized on the data of the clients that it hears.

An NTK update needs three things of the Jacobian J that these clients' messages make up: the outputs
f0 where it was taken, the kernel under which they evolve, and J^T S for a residual S. A
linearization holds these three, however J was taken, sent and stored.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.checks import check_choice
from dfl_jax.exchange import Codec
from dfl_jax.models import Model
from dfl_jax.ntk.compressed import decoded_jacobian
from dfl_jax.ntk.evolution import Kernel
from dfl_jax.ntk.factored import factored
from dfl_jax.ntk.kernels import kernel_fn, members_kernel_fn
from dfl_jax.ntk.precision import product
from dfl_jax.ntk.projection import BLOCK, RandomProjection

JACOBIAN_WEIGHTS = ('averaged', 'neighbours')
KERNEL_FORMS = ('full', 'trace')
STEPS = ('projected', 'exact')


class Linearization(NamedTuple):
    """f(w + dw) = f0 + J dw on the N samples of one aggregator."""

    outputs: Array  # f0 [C, N]
    kernel: Kernel  # H [N, N] of Eq. (3), or S [C, N] -> K S of the full kernel
    vjp: Callable[[Array], PyTree]  # S [C, N] -> J^T S, leaves like w
    # (S, scale) -> outputs [C, N] of the network itself at w + scale J^T S, where that is faster
    # than to form these weights
    moved: Callable[[Array, Array], Array] | None = None


def linearization(
    model: Model,
    *,
    kernel: str = 'auto',
    codec: Codec | None = None,
    jacobian_weights: str = 'averaged',
) -> Callable[..., Linearization]:
    """linearize(key, w, x, unsent=0, members=None) -> Linearization with the kernel of Eq. (3).

    x [N, ...]. Without a codec no Jacobian is formed and the key is not used; with one, the first
    `unsent` samples, the aggregator's, keep exact Jacobians. Under jacobian_weights='neighbours'
    `members`, leaves [K, ...], are the weights of the members whose data x holds one after the
    other. For the settings see `dfl_jax.algorithms.ntk_dfl`.

    Raises ValueError for settings that contradict each other, before anything is traced.
    """
    ntk = kernel_fn(model, kernel)
    if codec is not None and kernel != 'auto':
        raise ValueError(f'kernel={kernel} needs exact Jacobians; leave it out beside compression')
    check_choice('jacobian_weights', jacobian_weights, JACOBIAN_WEIGHTS)
    at_neighbours = jacobian_weights == 'neighbours'
    if at_neighbours and (codec is not None or kernel != 'auto'):
        raise ValueError('jacobian_weights=neighbours takes exact Jacobians and kernel=auto')
    members_ntk = members_kernel_fn(model) if at_neighbours else None

    def linearize(key: Array, w: PyTree, x: Array, unsent: int = 0, members: PyTree = None):
        def of_members(step: PyTree) -> Array:
            logits = jax.vmap(lambda w, x: model.apply(jax.tree.map(jnp.add, w, step), x))(
                members, by_member
            )
            return logits.reshape(len(x), -1).T

        if members is None:
            f0, transpose = jax.vjp(lambda w: model.apply(w, x).T, w)
        else:  # x [K N, ...] as [K, N, ...]
            by_member = x.reshape(len(jax.tree.leaves(members)[0]), -1, *x.shape[1:])
            f0, transpose = jax.vjp(of_members, jax.tree.map(jnp.zeros_like, w))
        if codec is not None:
            return Linearization(f0, *decoded_jacobian(model, codec, key, w, x, unsent))
        kernel = ntk(w, x) if members_ntk is None else members_ntk(members, by_member)
        return Linearization(f0, kernel, lambda s: transpose(s)[0])

    return linearize


def with_row_factors(linearized: Linearization, factors: Array | None) -> Linearization:
    """The linearization whose J has the rows of each member's samples times its factor.

    factors: [K], of the members whose samples, equally many, follow one another; None: ones.
    """
    if factors is None:
        return linearized
    f0, kernel, vjp, moved = linearized
    r = jnp.repeat(factors.astype(f0.dtype), f0.shape[1] // len(factors))[None]  # [1, N]
    return Linearization(
        f0,
        (lambda s: r * kernel(r * s)) if callable(kernel) else r.T * kernel * r,
        lambda s: vjp(r * s),
        moved and (lambda s, scale: moved(r * s, scale)),
    )


def projected(
    model: Model,
    projection: RandomProjection,
    *,
    form: str = 'full',
    step: str = 'projected',
    codec: Codec | None = None,
) -> Callable[..., Linearization]:
    """linearize(key, table, w, x, mask, unsent=0) -> Linearization of J~ = J P.

    SPARK, section 3.2. The kernel is the `full` one of samples x outputs, J~ J~^T (Eq. 6), applied
    and never formed, or its `trace` over outputs [N, N] as in Eq. (3) of NTK-DFL. The step of a
    residual S is the `projected` one, P J~^T S (Eq. 16, 17), or the `exact` J^T S. J~ itself
    [k, C, N] is formed where a codec or the trace needs its entries, or where P costs too much to
    be applied twice a time step; else J~ u is the derivative of the network in the direction P u.

    table: what `projection.draw` kept of P; the rest as in `linearization`.

    Raises ValueError for settings that contradict each other, before anything is traced.
    """
    check_choice('kernel_form', form, KERNEL_FORMS)
    check_choice('step', step, STEPS)
    whole = projection.kind == 'none'
    if whole and codec is not None:
        raise ValueError('Jacobians are compressed after their projection; choose a projection')
    explicit = codec is not None or form == 'trace' or projection.columns is not None
    # Layer by layer a module that computes in 16 bits mixes its type with that of P
    in_full = jnp.finfo(model.output_type).bits >= 32
    near = factored(model, projection) if projection.factored and in_full else None

    def linearize(key: Array, table: PyTree, w: PyTree, x: Array, mask: Array, unsent: int = 0):
        if whole and form == 'trace':
            return linearization(model)(key, w, x)
        origin = jax.tree.map(jnp.zeros_like, w)

        def outputs(step: PyTree) -> Array:
            return model.apply(jax.tree.map(jnp.add, w, step), x).T

        f0, forward = jax.linearize(lambda w: model.apply(w, x).T, w)
        u0 = jnp.zeros(projection.dimension, f0.dtype)
        if near is not None:
            narrow, block, at = near(table, w, x)
        else:
            narrow = jax.linearize(lambda u: outputs(projection.lift(table, u)), u0)[1]
            of_weights = lambda step: forward(optax.tree.cast_like(step, w))  # noqa: E731
            block, at = _columns_of(projection, table, of_weights, narrow, u0), None
        if explicit:
            blocks = lax.map(block, jnp.arange(-(-len(u0) // BLOCK)))
            jac = blocks.reshape(-1, *f0.shape)[: len(u0)]  # [k, C, N]
            if codec is not None:
                jac = _received(codec, key, jnp.where(mask, jac, 0), unsent)
            flat = jac.reshape(len(jac), -1)
            narrow = lambda u: product(u, flat).reshape(f0.shape)  # noqa: E731
        back = jax.linear_transpose(narrow, u0)  # S -> J~^T S

        kernel: Kernel = lambda s: narrow(back(s)[0])  # noqa: E731
        if form == 'trace':
            tall = jac.reshape(-1, f0.shape[1])  # [k C, N]
            kernel = product(tall.T, tall) / model.classes
        if step == 'exact':
            exact = jax.linear_transpose(forward, origin)
            return Linearization(f0, kernel, lambda s: exact(s)[0])
        moved = None if at is None else lambda s, scale: at(scale * back(s)[0])
        return Linearization(f0, kernel, lambda s: projection.lift(table, back(s)[0]), moved)

    return linearize


def _columns_of(
    projection: RandomProjection, table: PyTree, forward: Callable, narrow: Callable, u0: Array
) -> Callable[[Array], Array]:
    """b -> columns b BLOCK, ... of J~ [BLOCK, C, N], J of columns of P or J~ of unit vectors."""

    def block(b: Array) -> Array:
        if projection.columns is not None:
            return jax.vmap(forward)(projection.columns(table, b))
        units = (b * BLOCK + jnp.arange(BLOCK))[:, None] == jnp.arange(len(u0))[None, :]
        return jax.vmap(narrow)(units.astype(u0.dtype))

    return block


def _received(codec: Codec, key: Array, jac: Array, each: int) -> Array:
    """J~ [k, C, K each] as the aggregator decodes it, a tensor of each member; its own is exact."""
    members = jac.reshape(*jac.shape[:2], -1, each)  # [k, C, K, each]
    keys = jax.random.split(key, members.shape[2])
    decoded = jax.vmap(codec.decoded, in_axes=(0, 2), out_axes=2)(keys, members)
    return decoded.at[:, :, 0].set(members[:, :, 0]).reshape(jac.shape)
