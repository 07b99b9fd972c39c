"""Flops of NTK updates: counted once from their programs, then by samples and products.

An update on the N samples of an aggregator linearizes the network and forms its kernel, takes the
products of the kernel that the flow needs, and tries some timesteps. Each of these takes
a N^2 + b N + c flops, which traces at three N tell.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dfl_jax.base import Array
from dfl_jax.execution import counted_flops
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


class UpdateFlops(NamedTuple):
    """Flops of the parts of an update."""

    start: Polynomial  # the linearization, its kernel, and what products and timesteps share
    product: Polynomial  # another one of the kernel with S [C, N]
    candidate: Polynomial  # another timestep that is tried
    step: Polynomial  # J^T S of the timestep that is kept

    def total(self, samples: Array, products: Array, tried: Array) -> Array:
        """Flops, float32, of updates on so many samples, arrays of one shape."""
        return (
            self.start.at(samples)
            + products * self.product.at(samples)
            + tried * self.candidate.at(samples)
            + self.step.at(samples)
        )


def flops_of_update(
    model: Model,
    settings: NtkUpdate,
    linearize: Callable[[Array, Array], Linearization],
    samples: int = SAMPLES,
) -> UpdateFlops:
    """The flops of an update, as they grow with N up to so many samples.

    linearize: (weights, x [N, ...]) -> the linearization, for any N.
    """

    def at(n: int) -> list[int]:
        def array(*shape: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, jnp.result_type(float))

        x, s = array(n, *model.input_shape), array(model.classes, n)
        weights = jax.tree.map(lambda leaf: array(*leaf.shape), model.shapes)

        def update(w, x, totals):
            linearized = linearize(w, x)
            trial = candidates(model, settings, linearized, w, x, jnp.ones(()))

            def product(s):
                return apply(linearized.kernel, s)

            def network(s):
                return trial.network(trial.candidate_of(s))

            tried = network if settings.selection == 'network' else product
            chosen = trial.candidate_of(totals[4])
            return {
                'outputs': linearized.outputs,
                'products': [product(s) for s in totals[:2]],
                'tried': [tried(s) for s in totals[2:4]],
                'chosen': chosen,
                'weights': trial.weights_of(chosen),
            }

        count = counted_flops(update, weights, x, [s] * 5)

        def of(products: int, tried: int, chosen: bool = False, weights: bool = False) -> int:
            wanted = {'outputs': True, 'chosen': chosen, 'weights': weights}
            return count(wanted | {'products': [True, products > 1], 'tried': [True, tried > 1]})

        # A second one tells what another one takes, apart from what they all share.
        one = of(1, 1)
        product, candidate = of(2, 1) - one, of(1, 2) - one
        step = of(1, 1, weights=True) - of(1, 1, chosen=True)
        return [one - product - candidate, product, candidate, step]

    step = max(samples // 4, 1)
    sizes = [2 * step, 3 * step, 4 * step]

    def fitted(counts: Sequence[int]) -> Polynomial:
        first, second, third = counts
        square = (first - 2 * second + third) / (2 * step**2)
        linear = (second - first) / step - square * (sizes[0] + sizes[1])
        return Polynomial(square, linear, first - (square * sizes[0] + linear) * sizes[0])

    return UpdateFlops(*map(fitted, zip(*map(at, sizes), strict=True)))


def total_flops(*arguments) -> Callable[[Array, Array, Array], Array]:
    """(samples, products, tried) -> flops, float32: `UpdateFlops.total` of `flops_of_update` with
    these arguments, counted when they are first asked for; arrays of one shape."""
    counted = cache(partial(flops_of_update, *arguments))
    return lambda samples, products, tried: counted().total(samples, products, tried)
