"""Do computation and traffic of a round in clusters depend on the number of neighbours?

    python -m benchmarks.clusters

One steady NTK-DFL round (MLP 784-100-10, random data) on a random regular graph, where every client
is an aggregator, and in clusters of as many clients, one aggregator each (NTK-DFL, appendix E.2).
`Jacobians` are the sets of rows that a client computes, its own included, `MB` what it sends on
average. All rounds are timed in one run.
"""

import numpy as np
from absl import flags

from benchmarks import _common as common
from dfl_jax import topology
from dfl_jax.algorithms import make

_CLIENTS = flags.DEFINE_integer('clients', 60, 'clients M', lower_bound=2)
_SAMPLES = flags.DEFINE_integer('samples', 200, 'samples a client', lower_bound=1)
_SIZES = flags.DEFINE_list('sizes', ['3', '6', '12'], 'clients of a cluster, degree plus one')
_REPEATS = flags.DEFINE_integer('repeats', 3, 'timed rounds', lower_bound=1)


def main() -> None:
    print(f'{common.about()}\n{_CLIENTS.value} clients of {_SAMPLES.value} samples\n')
    table = common.Table(
        'clients that meet', 'graph', 'aggregators', 'Jacobians', 'MB', 's/round', 'ratio'
    )
    clients = common.random_clients(_CLIENTS.value, _SAMPLES.value)
    for size in map(int, _SIZES.value):
        regular = None
        for graph in ('regular', 'clusters'):
            shared = graph == 'clusters'
            family = 'clustered' if shared else 'regular'
            schedule = topology.schedule(
                family, _CLIENTS.value, _REPEATS.value + 1, seed=0, degree=size - 1
            )
            graphs = common.graphs_of(topology.by_cluster(schedule) if shared else schedule)
            algorithm = make('ntk_dfl', common.mlp(), by_cluster=shared)
            timed = common.timed_rounds(algorithm, clients, graphs)
            bits = sum(
                algorithm.unit_bits[unit] * int(np.sum(sent, dtype=np.int64))
                for unit, sent in timed.info.sent.items()
            )
            table.row(
                size,
                graph,
                len(graphs[0].active),
                1 if shared else size,
                (bits / 8e6 / _CLIENTS.value, ',.0f'),
                (timed.seconds, '.3g'),
                (regular / timed.seconds, '.1f') if regular else '',
            )
            regular = timed.seconds


if __name__ == '__main__':
    common.start(main)
