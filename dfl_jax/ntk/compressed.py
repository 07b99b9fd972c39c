"""The kernel and the update of one network from Jacobians as their receiver decodes them.

A compressed Jacobian has no layer structure left, so its rows have to be formed. One output at a
time they take N~ P floats, and the kernel (Eq. 3) and the update (Eq. 5a) are sums over outputs:

    H = 1/C sum_c J_c J_c^T          J^T S = sum_c J_c^T S_c

A row, the gradient of one output at one sample, is one message with the tensors of the weights,
each compressed by the codec. The kernel costs 2 N~^2 C P operations, where the structured one costs
2 N~^2 (d_in + d_h) for two dense layers. Rows that fit into STORED bytes are kept for the update;
others are computed again.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.exchange import Codec
from dfl_jax.models import Model
from dfl_jax.ntk.precision import product, traced_precision

STORED = 2**30
ROWS_AT_ONCE = 64  # compressed together: their temporaries stay in the cache


def decoded_jacobian(
    model: Model, codec: Codec, key: Array, w: PyTree, x: Array, unsent: int
) -> tuple[Array, Callable[[Array], PyTree]]:
    """H [N, N] of Eq. (3), and the map from S [C, N] to J^T S (leaves like w).

    x: [N, ...]; its first `unsent` samples are the aggregator's, whose Jacobian is exact.
    """
    keys = jax.random.split(key, (model.classes, len(x)))

    def gradient(c: Array, sample: Array) -> PyTree:
        return jax.grad(lambda w: model.apply(w, sample[None])[0, c])(w)

    def rows(c: Array) -> PyTree:
        """J_c, leaves [N, ...]."""
        exact = jax.vmap(lambda sample: gradient(c, sample))(x[:unsent])
        sent = lax.map(
            lambda one: codec.transmit(one[0], gradient(c, one[1])),
            (keys[c, unsent:], x[unsent:]),
            batch_size=ROWS_AT_ONCE,
        )
        return jax.tree.map(lambda *parts: jnp.concatenate(parts), exact, sent)

    outputs = jnp.arange(model.classes)
    rows_of = rows
    if row_bytes(len(x), model) * model.classes <= STORED:
        stored = lax.map(rows, outputs)

        def rows_of(c: Array) -> PyTree:
            return jax.tree.map(lambda leaf: leaf[c], stored)

    def add_gram(h: Array, c: Array) -> tuple[Array, None]:
        flat = [leaf.reshape(len(x), -1) for leaf in jax.tree.leaves(rows_of(c))]
        return h + sum(product(a, a.T) for a in flat), None

    h, _ = lax.scan(add_gram, jnp.zeros((len(x), len(x)), x.dtype), outputs)

    def vjp(total: Array) -> PyTree:
        def add(step: PyTree, c: Array) -> tuple[PyTree, None]:
            share = jax.tree.map(
                lambda j: jnp.tensordot(total[c], j, 1, precision=traced_precision()), rows_of(c)
            )
            return jax.tree.map(jnp.add, step, share), None

        start = jax.tree.map(lambda a: jnp.zeros(a.shape, jnp.result_type(a, total)), w)
        return lax.scan(add, start, outputs)[0]

    return h / model.classes, vjp


def row_bytes(samples: int, model: Model) -> int:
    """Bytes of the rows J_c [N, P] of one output in float32."""
    return 4 * samples * model.size


def compressed_bytes(samples: int, model: Model) -> int:
    """Bytes of the rows that an aggregator holds: of all outputs, or of one and its copy."""
    each = row_bytes(samples, model)
    return each * (model.classes + 1) if each * model.classes <= STORED else 2 * each
