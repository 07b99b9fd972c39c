"""The operations of NTK updates: counted once from their programs, then by samples and products.

An update on the N samples of an aggregator linearizes the network and forms its kernel, takes the
products of the kernel that the flow needs, and tries some timesteps. Each of these takes
a N^2 + b N operations, which two traces at different N tell.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dfl_jax.base import Array
from dfl_jax.execution import operations
from dfl_jax.models import Model
from dfl_jax.ntk.evolution import apply
from dfl_jax.ntk.linearized import Linearization
from dfl_jax.ntk.update import NtkUpdate, candidates


class Polynomial(NamedTuple):
    """a N^2 + b N."""

    square: float
    linear: float

    def at(self, samples: Array) -> Array:
        n = samples.astype(jnp.float32)
        return (self.square * n + self.linear) * n


class UpdateWork(NamedTuple):
    """Operations of the parts of an update."""

    start: Polynomial  # the linearization and its kernel
    product: Polynomial  # of the kernel with S [C, N]
    candidate: Polynomial  # a timestep that is tried
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
    samples: int,
) -> UpdateWork:
    """The operations of an update of about so many samples.

    linearize: (weights, x [N, ...]) -> the linearization, for any N.
    """

    def at(n: int) -> list[int]:
        x = jax.ShapeDtypeStruct((n, *model.input_shape), jnp.float32)
        s = jax.ShapeDtypeStruct((model.classes, n), jnp.float32)

        def count(part: Callable) -> int:
            def of_one(w, x, s):
                linearized = linearize(w, x)
                return part(
                    linearized, candidates(model, settings, linearized, w, x, jnp.ones(())), s
                )

            return operations(of_one, model.shapes, x, s)

        start = count(lambda linearized, way, s: linearized.outputs)
        product = count(lambda linearized, way, s: apply(linearized.kernel, s))
        formed = count(lambda linearized, way, s: way.candidate_of(s))
        tried = count(lambda linearized, way, s: way.network(way.candidate_of(s)))
        kept = count(lambda linearized, way, s: way.weights_of(way.candidate_of(s)))
        tried = product if settings.selection == 'linearized' else tried
        return [start, product - start, tried - start, kept - formed]

    few, many = max(samples // 2, 1), 2 * max(samples // 2, 1)

    def fitted(at_few: int, at_many: int) -> Polynomial:
        square = (at_many / many - at_few / few) / (many - few)
        return Polynomial(square, at_few / few - square * few)

    return UpdateWork(*map(fitted, at(few), at(many)))
