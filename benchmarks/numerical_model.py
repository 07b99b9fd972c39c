"""How long the numerical model of gossip takes on tens of thousands of nodes.

    python -m benchmarks.numerical_model

Seconds to draw the graph, to find ||v_steady||, to compile, and of all rounds of a second run.

One core of an Intel Xeon that other work shared, JAX 0.10.2, 2026-11-21; 65,536 nodes of 10
parameters, 200 rounds:

| family | graph s | v_steady s | compile s | rounds s |
|---|--:|--:|--:|--:|
| regular | 7.4 | 0.1 | 6.0 | 26.6 |
| erdos_renyi | 8.4 | 0.5 | 9.5 | 33.0 |
| barabasi_albert | 3.8 | 0.3 | 4.6 | 26.9 |
| configuration | 0.7 | 0.5 | 7.4 | 24.3 |
| torus | 0.0 | 0.0 | 6.6 | 21.1 |
"""

from functools import partial
from typing import Any

import jax
import numpy as np
from absl import app, flags, logging

from benchmarks import _common as common
from dfl_jax.gossip import untrained as numerical_model
from dfl_jax.gossip.gain import gain_of, uniform_matrix
from dfl_jax.topology import families

_NODES = flags.DEFINE_integer('nodes', 65_536, 'nodes n of every graph', lower_bound=9)
_PARAMETERS = flags.DEFINE_integer('parameters', 10, 'parameters d of a node', lower_bound=1)
_ROUNDS = flags.DEFINE_integer('rounds', 200, 'rounds', lower_bound=1)

FAMILIES: dict[str, dict[str, Any]] = {
    'regular': {'degree': 8},
    'erdos_renyi': {'degree': 16},
    'barabasi_albert': {'degree': 8},
    'configuration': {'degree': 8, 'exponent': 2.5},
    'torus': {'dimensions': 2},
}


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    size = f'{_NODES.value:,} nodes of {_PARAMETERS.value} parameters, {_ROUNDS.value} rounds'
    print(f'{common.about()}\n{size}\n')
    print('| family | graph s | v_steady s | compile s | rounds s |\n|---|--:|--:|--:|--:|')
    for family, options in FAMILIES.items():
        print(f'| {family} | {" | ".join(f"{t:.1f}" for t in measure(family, options))} |')


def measure(family: str, options: dict[str, Any]) -> list[float]:
    """Seconds of graph, ||v_steady||, compilation, and of a second simulation."""
    nodes = _NODES.value
    settings = families.Settings(nodes, **options)
    drawing, links = common.seconds_of(families.draw, family, settings, np.random.default_rng(0))
    matrix = uniform_matrix(links, nodes)
    solving, _ = common.seconds_of(gain_of, matrix)
    simulate = partial(
        numerical_model.simulate,
        parameters=_PARAMETERS.value,
        rounds=_ROUNDS.value,
        sigma_noise=1e-3,
    )
    first, second = (
        common.seconds_of(simulate, jax.random.key(seed), matrix)[0] for seed in (0, 1)
    )
    return [drawing, solving, first - second, second]


if __name__ == '__main__':
    app.run(main)
