"""The operations of NTK updates: counted once from their programs, then by samples and products.

An update on the N samples of an aggregator linearizes the network and forms its kernel, takes the
products of the kernel that the flow needs, and tries some timesteps. Each of these takes
a N^2 + b N + c operations, which traces at three N tell.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dfl_jax.base import Array, PyTree
from dfl_jax.execution import operations
from dfl_jax.models import Model
from dfl_jax.ntk.evolution import apply
from dfl_jax.ntk.linearized import Linearization
from dfl_jax.ntk.update import NtkUpdate, candidates

# What is counted must not depend on how far an aggregator's data are padded.
SAMPLES = 1024


class Polynomial(NamedTuple):
    """a N^2 + b N + c."""

    square: float
    linear: float
    constant: float

    def at(self, samples: Array) -> Array:
        n = samples.astype(jnp.float32)
        return (self.square * n + self.linear) * n + self.constant


class UpdateWork(NamedTuple):
    """Operations of the parts of an update."""

    start: Polynomial  # the linearization, its kernel, and what products and timesteps share
    product: Polynomial  # another one of the kernel with S [C, N]
    candidate: Polynomial  # another timestep that is tried
    step: Polynomial  # J^T S of the timestep that is kept

    def total(self, samples: Array, products: Array, tried: Array) -> Array:
        """Operations, float32, of updates on so many samples, arrays of one shape."""
        return (
            self.start.at(samples)
            + products * self.product.at(samples)
            + tried * self.candidate.at(samples)
            + self.step.at(samples)
        )


def update_work(
    model: Model,
    settings: NtkUpdate,
    linearize: Callable[[Array, Array], Linearization],
    samples: int = SAMPLES,
) -> UpdateWork:
    """The operations of an update, as they grow with N up to so many samples.

    linearize: (weights, x [N, ...]) -> the linearization, for any N.
    """

    def at(n: int) -> list[int]:
        def array(*shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, jnp.result_type(float))

        x, s = array(n, *model.input_shape), array(model.classes, n)
        weights = jax.tree.map(lambda leaf: array(*leaf.shape), model.shapes)

        def count(products: int, tried: int, last: Callable = lambda way, s: ()) -> int:
            """Of an update with so many products of the kernel and timesteps tried, and more."""

            def update(w, x, *totals):
                linearized = linearize(w, x)
                way = candidates(model, settings, linearized, w, x, jnp.ones(()))
                found: list[PyTree] = [apply(linearized.kernel, s) for s in totals[:products]]
                for s in totals[products:-1]:
                    if settings.selection == 'network':
                        found.append(way.network(way.candidate_of(s)))
                    else:
                        found.append(apply(linearized.kernel, s))
                return linearized.outputs, found, last(way, totals[-1])

            return operations(update, weights, x, *[s] * (products + tried + 1))

        # Two of each tell what another one takes, apart from what all share.
        both = count(1, 1)
        product, candidate = count(2, 1) - both, count(1, 2) - both
        formed = count(1, 1, lambda way, s: way.candidate_of(s))
        kept = count(1, 1, lambda way, s: way.weights_of(way.candidate_of(s)))
        return [both - product - candidate, product, candidate, kept - formed]

    step = max(samples // 4, 1)
    sizes = [2 * step, 3 * step, 4 * step]

    def fitted(counts: Sequence[int]) -> Polynomial:
        first, second, third = counts
        square = (first - 2 * second + third) / (2 * step**2)
        linear = (second - first) / step - square * (sizes[0] + sizes[1])
        return Polynomial(square, linear, first - (square * sizes[0] + linear) * sizes[0])

    return UpdateWork(*map(fitted, zip(*map(at, sizes), strict=True)))
