"""One run or several in one program, and their shares on devices that do not divide the clients."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
from jax import lax
from jax.sharding import PartitionSpec

from dfl_jax.base import Algorithm, Array, Clients, Graph, PyTree, State
from dfl_jax.execution.devices import filled, replicated, unfilled


class Runs(NamedTuple):
    """One run, or `several` with a leading axis R on all arrays."""

    algorithm_of: Callable[[PyTree], Algorithm]
    values: PyTree
    clients: Clients
    graphs: Graph
    keys: Array
    several: bool

    def vmap_runs(self, function: Callable, in_axes: tuple[int | None, ...]) -> Callable:
        """A function of one run for all; where R is 1 it is not batched (see `map_in_chunks`)."""
        if not self.several:
            return function
        if len(self.keys) > 1:
            return jax.vmap(function, in_axes)

        def without_axis(*arguments):
            first = [
                a if axis is None else jax.tree.map(lambda leaf: leaf[0], a)
                for a, axis in zip(arguments, in_axes, strict=True)
            ]
            return jax.tree.map(lambda leaf: leaf[None], function(*first))

        return without_axis

    def each(self, tree: PyTree) -> list[PyTree]:
        """The entries of each run, of arrays on the host."""
        if not self.several:
            return [tree]
        return [jax.tree.map(lambda a, i=i: a[i], tree) for i in range(len(self.keys))]


def on_shares(runs: Runs, devices: int) -> tuple[Runs, Callable[[State], State]]:
    """The runs with clients and states that are `filled` for so many devices, and what makes of
    such a state, whole on every device, that of the algorithm."""
    if devices == 1:
        return runs, lambda state: state
    data = jax.eval_shape(lambda clients: runs.each(clients)[0], runs.clients)
    algorithm = runs.algorithm_of(runs.each(runs.values)[0])
    shapes = jax.eval_shape(algorithm.init, jax.random.key(0), data)
    fill = functools.partial(filled, parts=devices)
    if jax.eval_shape(fill, (data, shapes)) == (data, shapes):
        return runs, lambda state: state
    data_of, state_of = (functools.partial(unfilled, like=like) for like in (data, shapes))

    def algorithm_of(value: PyTree) -> Algorithm:
        algorithm = runs.algorithm_of(value)
        own = algorithm.predict_own

        def step(key, state, round):
            # Whole on each device: its uneven shares would be exchanged where links are counted.
            graph = lax.with_sharding_constraint(round.graph, PartitionSpec())
            clients = data_of(round.clients)
            round = round._replace(
                graph=graph, clients=clients, sizes=round.sizes[: len(clients.y)]
            )
            state, info = algorithm.step(key, state_of(state), round)
            return fill(state), info

        return algorithm._replace(
            init=lambda key, clients: fill(algorithm.init(key, data_of(clients))),
            step=step,
            predict=lambda state, *of: algorithm.predict(state_of(state), *of),
            predict_own=own and (lambda state, x: fill(own(state_of(state), x[: len(data.y)]))),
        )

    whole = jax.jit(runs.vmap_runs(state_of, (0,)), out_shardings=replicated())
    return runs._replace(algorithm_of=algorithm_of), whole
