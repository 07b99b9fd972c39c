"""J~ = J P from the factors of P and what the layers of the network see and pass on.

A step A V of the weights of a dense layer adds Z V to its output, Z = (1, a) A [N, r] of its input
a [N, d_in]. Z is formed once. What a change of the layer's output does to the outputs is the signal
D [C, N, d_out] that backpropagation brings to it, hence column r s of J~ is Z_r * (D b_rs).

Features come first, Z [r, N] and not [N, r], which takes six sevenths of the CPU's time
(2026-11-23): docs/benchmarks.md, "Constants".
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from dfl_jax.base import Array, PyTree
from dfl_jax.models import Model
from dfl_jax.ntk.precision import product
from dfl_jax.ntk.projection import BLOCK, SHARED, RandomProjection, layer_of
from dfl_jax.ntk.structured import gate_of, leaf_at, plain_layers, record_layers


class Factored(NamedTuple):
    """A network near the weights w, in the directions of a P [P, k] of factors."""

    narrow: Callable[[Array], Array]  # u [k] -> J~ u [C, N]
    columns: Callable[[Array], Array]  # b -> columns b BLOCK, ... of J~ [BLOCK, C, N]
    # u -> the outputs [C, N] of the weights w + P u; None where the network itself is as fast
    moved: Callable[[Array], Array] | None


def factored(model: Model, projection: RandomProjection) -> Callable[..., Factored]:
    """near(table, w, x [N, ...]) -> Factored; table: what the projection drew, with factors."""
    layers_of = plain_layers(model)
    dense = {path for path, layer in layers_of.items() if issubclass(layer, nn.Dense)}
    names = {'/'.join(path) for path in dense}
    holders = {
        layer_of(path): tuple(key.key for key in path[:-1])
        for path, _ in jax.tree_util.tree_leaves_with_path(model.shapes)
    }
    only_dense = set(holders) <= names
    only_layers = set(holders.values()) <= set(layers_of)

    def near(table: PyTree, w: PyTree, x: Array) -> Factored:
        logits, layers = record_layers(model, w, x)
        outputs = {path: y for path, _, _, y in layers if path in dense}
        u0 = jnp.zeros(projection.dimension, logits.dtype)
        factors = {path: table['/'.join(path)] for path in dense}
        layer_inputs = {
            path: _layer_input(m, factors[path].left, a)
            for path, m, a, _ in layers
            if path in dense
        }

        def added(path: tuple[str, ...], u: Array) -> Array:
            """What P u adds to the output of a layer with the same input, [d_out, N]."""
            return product(factors[path].weights(u).T, layer_inputs[path])

        def network(u: Array, by_factors: set, fixed: set):
            """Logits [N, C] and layers, where P u moves all weights but those of these layers."""
            kept = {'/'.join(path) for path in by_factors | fixed}
            weights = jax.tree_util.tree_map_with_path(
                lambda path, w, step: w if layer_of(path) in kept else w + step,
                w,
                projection.lift(table, u),
            )
            return record_layers(model, weights, x, {p: added(p, u).T for p in by_factors})

        def derivative() -> Callable[[Array], Array]:
            last, head = ((), (), *(path for path, *_ in layers))[-2:]
            # A subclass may promise a dense head by inheritance and yet work on its output.
            promised = getattr(model.module, 'dense_head', False) and layers[-1][3] is logits
            if not (promised and only_layers and {last, head} <= dense):
                return jax.linearize(lambda u: network(u, dense, set())[0].T, u0)[1]

            # The logits are W^T (gate * dz) + Z V of the head, dz the change before the activation.
            gate = gate_of(model, w, x, last, jnp.zeros_like(outputs[last])).T  # [h, N]
            weights = leaf_at(w, head)['kernel']  # [h, C]
            earlier = None
            if len(layers) > 2:
                of_earlier = dense - {last, head}
                earlier = jax.linearize(
                    lambda u: network(u, of_earlier, {last, head})[1][-2][3].T, u0
                )[1]

            def narrow(u: Array) -> Array:
                change = added(last, u)
                if earlier is not None:
                    change = change + earlier(u)
                return product(weights.T, gate * change) + added(head, u)

            return narrow

        def columns() -> Callable[[Array], Array]:
            def forward(taps: dict) -> Array:
                return record_layers(model, w, x, taps)[0]

            vjp = jax.vjp(forward, jax.tree.map(jnp.zeros_like, outputs))[1]
            units = jnp.eye(model.classes, dtype=logits.dtype)
            of_output = lambda unit: vjp(jnp.broadcast_to(unit, logits.shape))[0]  # noqa: E731
            signals = jax.vmap(of_output)(units)  # of each layer, [C, N, d_out]
            others = None
            if not only_dense:
                others = jax.linearize(lambda u: network(u, set(), dense)[0].T, u0)[1]

            def block(b: Array) -> Array:
                places = b * BLOCK + jnp.arange(BLOCK)
                found = jnp.zeros((BLOCK, *logits.T.shape), logits.dtype)
                if others is not None:
                    units = places[:, None] == jnp.arange(len(u0))[None, :]
                    found = jax.vmap(others)(units.astype(u0.dtype))
                for path, signal in signals.items():
                    width = signal.shape[-1]
                    right = factors[path].right.reshape(-1, width).take(places, 0, mode='clip')
                    shares = product(right, signal.reshape(-1, width).T).reshape(found.shape)
                    left = layer_inputs[path].take(places // SHARED, 0, mode='clip')
                    found = found + left[:, None] * shares
                return found

            return block

        # The input of the first layer does not move; those of the others do, and their steps are
        # formed: A V takes d_in d_out r operations, Z V of a new input N r (d_in + d_out).
        moved = (lambda u: network(u, {layers[0][0]}, set())[0].T) if only_dense else None
        return Factored(derivative(), columns(), moved)

    return near


def _layer_input(module: nn.Dense, left: Array, a: Array) -> Array:
    """Z [r, N] = ((1, a) A)^T of inputs a [N, d_in]; A has the bias, if any, in its first row."""
    biases = int(module.use_bias)
    return product(left[biases:].T, a.T) + left[:biases].sum(axis=0)[:, None]
