"""Do computation and traffic of a round in clusters depend on the number of neighbours?

    python -m benchmarks.clusters

One steady NTK-DFL round (MLP 784-100-10, random data) on a random regular graph, where every client
is an aggregator, and in clusters of as many clients, one aggregator each (NTK-DFL, appendix E.2).
`Jacobians` are the sets of rows that a client computes, its own included, `MB` what it sends on
average. All rounds are timed in one run.
"""

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging

from benchmarks import _common as common
from dfl_jax import topology
from dfl_jax.algorithms.ntk_dfl import ntk_dfl
from dfl_jax.models import MLP, bind

_CLIENTS = flags.DEFINE_integer('clients', 60, 'clients M', lower_bound=2)
_SAMPLES = flags.DEFINE_integer('samples', 200, 'samples a client', lower_bound=1)
_SIZES = flags.DEFINE_list('sizes', ['3', '6', '12'], 'clients of a cluster, degree plus one')
_REPEATS = flags.DEFINE_integer('repeats', 3, 'timed rounds', lower_bound=1)


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    print(f'{common.about()}\n{_CLIENTS.value} clients of {_SAMPLES.value} samples\n')
    print('| clients that meet | graph | aggregators | Jacobians | MB | s/round | ratio |')
    print('|--:|---|--:|--:|--:|--:|--:|')
    for size in map(int, _SIZES.value):
        regular = measure(size, 'regular', None)
        measure(size, 'clusters', regular)


def measure(size: int, graph: str, baseline: float | None) -> float:
    """Prints a row; seconds of a round. baseline: seconds of the round to compare with."""
    shared = graph == 'clusters'
    family = 'clustered' if shared else 'regular'
    graphs = topology.schedule(family, _CLIENTS.value, 2, seed=0, degree=size - 1)
    if shared:
        graphs = topology.by_cluster(graphs)
    clients = common.random_clients(_CLIENTS.value, _SAMPLES.value)
    algorithm = ntk_dfl(bind(MLP(common.CLASSES), (28, 28, 1)), by_cluster=shared)
    warm_up, second = (jax.tree.map(lambda a, r=r: jnp.asarray(a[r]), graphs) for r in (0, 1))
    key = jax.random.key(0)
    state = jax.jit(algorithm.init)(key, clients)
    program = common.compiled(algorithm.step, key, state, warm_up, clients)
    state, info = program.call(key, state, warm_up, clients)
    seconds = common.median_seconds(
        program.call, key, state, second, clients, repeats=_REPEATS.value, budget=60
    )
    sets = 1 if shared else size
    bits = sum(
        algorithm.unit_bits[name.removeprefix('sent/')] * int(np.asarray(counts, np.int64).sum())
        for name, counts in info.items()
        if name.startswith('sent/')
    )
    ratio = f'{baseline / seconds:.1f}' if baseline else ''
    print(
        f'| {size} | {graph} | {len(graphs.active[0])} | {sets} '
        f'| {bits / 8e6 / _CLIENTS.value:,.0f} | {seconds:.3g} | {ratio} |',
        flush=True,
    )
    return seconds


if __name__ == '__main__':
    app.run(main)
