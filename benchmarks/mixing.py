"""Which form of the mixing multiply is fastest?

    python -m benchmarks.mixing

Median milliseconds of one multiply in float32, 2026-11-20, 2-core AMD EPYC CPU, JAX 0.10.2.
P = 79,510, from M = 1000 on a quarter of it.

    family      M    K   gather    dense
    regular    30    6      0.5      0.6
    complete   30   30      1.5      0.6
    regular   300    6     35.0     62.2
    regular   300   20     56.5     62.7
    regular   300   60     84.8     59.6
    regular   300  100    120.4     62.3
    complete  300  300    261.6     64.9
    regular  1000   60     75.4    129.0
    regular  3000    6    100.5   1270.4

Gather wins at M = 15 K and the dense product at M = 5 K; nothing between was measured, and M = 8 K
between them sets `DENSE_UP_TO_CLIENTS_PER_MEMBER`. A sparse matrix (BCOO) took 5 to 160 times as
long as the faster of the two. GB/s counts each aggregator's K gathered rows and the written one,
GFLOP/s the 2 M K P useful operations, whatever a form does besides.
"""

from functools import partial

import jax
import jax.numpy as jnp

from benchmarks import _common as common
from dfl_jax import topology
from dfl_jax.gossip.mixing import mix, mixing_weights

PARAMETERS = 79_510  # the MLP 784-100-10
CASES = (  # family, M, degree, P
    ('regular', 30, 5, PARAMETERS),
    ('regular', 300, 5, PARAMETERS),
    ('complete', 30, 29, PARAMETERS),
    ('regular', 300, 19, PARAMETERS),
    ('regular', 300, 59, PARAMETERS),
    ('regular', 300, 99, PARAMETERS),
    ('complete', 300, 299, PARAMETERS),
    ('regular', 1000, 59, PARAMETERS // 4),
    ('regular', 3000, 5, PARAMETERS // 4),
)
REPEATS = 15


def main() -> None:
    print(f'{common.about()}\n')
    table = common.Table('family', 'M', 'K', 'P', 'form', 'ms', 'GB/s', 'GFLOP/s', 'compile ms')
    for family, clients, degree, parameters in CASES:
        (graph,) = common.graphs_of(topology.schedule(family, clients, 1, seed=0, degree=degree))
        weights, width = mixing_weights(graph, jnp.full(clients, 200)), degree + 1
        leaf = jax.random.normal(jax.random.key(0), (clients, parameters))
        for name in ('gather', 'dense'):
            multiply = common.compiled(partial(mix, method=name), weights, graph.members, leaf)
            seconds = common.median_seconds(
                multiply.call, weights, graph.members, leaf, repeats=REPEATS
            )
            table.row(
                *(family, clients, width, parameters, name, (1e3 * seconds, '.1f')),
                (4e-9 * clients * (width + 1) * parameters / seconds, '.1f'),
                (2e-9 * clients * width * parameters / seconds, '.1f'),
                (1e3 * multiply.seconds, '.0f'),
            )


if __name__ == '__main__':
    common.start(main)
