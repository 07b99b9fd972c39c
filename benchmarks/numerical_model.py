"""How long does the numerical model of gossip take on tens of thousands of nodes?

    python -m benchmarks.numerical_model

Seconds to draw the graph, to find ||v_steady||, to compile, and of all rounds of a second run.

One core of a shared Intel Xeon, JAX 0.10.2, 2026-11-21: 21 to 33 s of rounds, 5 to 10 s to compile,
up to 8.4 s to draw a graph and 0.5 s for ||v_steady||.
"""

from functools import partial
from typing import Any

import jax
import numpy as np
from absl import flags

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


def main() -> None:
    nodes, rounds = _NODES.value, _ROUNDS.value
    print(f'{common.about()}\n{nodes:,} nodes of {_PARAMETERS.value} parameters, {rounds} rounds\n')
    table = common.Table('family', 'graph s', 'v_steady s', 'compile s', 'rounds s')
    simulate = partial(
        numerical_model.simulate, parameters=_PARAMETERS.value, rounds=rounds, sigma_noise=1e-3
    )
    for family, options in FAMILIES.items():
        drawing, links = common.seconds_of(
            families.draw, family, families.Settings(nodes, **options), np.random.default_rng(0)
        )
        matrix = uniform_matrix(links, nodes)
        solving, _ = common.seconds_of(gain_of, matrix)
        first, second = (
            common.seconds_of(simulate, jax.random.key(seed), matrix)[0] for seed in (0, 1)
        )
        table.row(family, *((s, '.1f') for s in (drawing, solving, first - second, second)))


if __name__ == '__main__':
    common.start(main)
