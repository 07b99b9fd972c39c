"""Which form of the mixing multiply is fastest?

    python -m benchmarks.mixing

Median milliseconds of one multiply in float32, 2026-11-20, 2-core AMD EPYC CPU, JAX 0.10.2.
P = 79,510, from M = 1000 on a quarter of it.

    family      M    K   gather    dense     bcoo
    regular    30    6      0.5      0.6     21.1
    complete   30   30      1.5      0.6     95.7
    regular   300    6     35.0     62.2    214.2
    regular   300   20     56.5     62.7    686.0
    regular   300   60     84.8     59.6        -
    regular   300  100    120.4     62.3        -
    complete  300  300    261.6     64.9        -
    regular  1000   60     75.4    129.0        -
    regular  3000    6    100.5   1270.4    513.9

Gather wins at M = 15 K and the dense product at M = 5 K; nothing between was measured, and M = 8 K
between them sets `DENSE_UP_TO_CLIENTS_PER_MEMBER`. BCOO is never fastest. Every form compiles
in 0.05 to 0.16 s.
"""

import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import sparse

from dfl_jax.base import Array, Graph
from dfl_jax.gossip.mixing import mix, mixing_weights
from dfl_jax.topology import schedule

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
BCOO_UP_TO_ENTRIES = 10**9  # it forms [H * K, P]: 29 GB for the complete graph


def bcoo(weights: Array, members: Array, leaf: Array) -> Array:
    """The third form: a batched-coordinate sparse matrix of [H, M]; leaf [M, P] -> [H, P]."""
    aggregators = jnp.broadcast_to(jnp.arange(members.shape[0])[:, None], members.shape)
    indices = jnp.stack([aggregators.ravel(), members.ravel()], axis=1)
    shape = (members.shape[0], leaf.shape[0])
    return sparse.BCOO((weights.ravel(), indices), shape=shape) @ leaf


FORMS: dict[str, Callable[[Array, Array, Array], Array]] = {
    'gather': lambda weights, members, leaf: mix(weights, members, leaf, 'gather'),
    'dense': lambda weights, members, leaf: mix(weights, members, leaf, 'dense'),
    'bcoo': bcoo,
}


def measure(*arguments: Array) -> dict[str, tuple[float, float]]:
    """Seconds of one multiply (median after warm-up) and seconds to compile it, by form."""
    clients, width = arguments[0].shape
    times = {}
    for name, form in FORMS.items():
        if name == 'bcoo' and clients * width * arguments[2].shape[1] > BCOO_UP_TO_ENTRIES:
            continue
        start = time.perf_counter()
        multiply = jax.jit(form).lower(*arguments).compile()
        compile_seconds = time.perf_counter() - start
        seconds = []
        for _ in range(REPEATS + 2):
            start = time.perf_counter()
            multiply(*arguments).block_until_ready()
            seconds.append(time.perf_counter() - start)
        times[name] = float(np.median(seconds[2:])), compile_seconds
    return times


def main() -> None:
    """Prints one line a case and form.

    GB/s counts each aggregator's K gathered rows and the written one, GFLOP/s the 2 M K P useful
    operations, whatever a form moves or computes besides.
    """
    print(f'{jax.devices()[0].device_kind}, JAX {jax.__version__}, float32')
    header = ('family', 'M', 'K', 'P', 'form', 'ms', 'GB/s', 'GFLOP/s', 'x best', 'compile ms')
    print('{:8} {:>5} {:>4} {:>6} {:6} {:>8} {:>6} {:>7} {:>6} {:>10}'.format(*header))
    for family, clients, degree, parameters in CASES:
        graph = schedule(family, clients, 1, seed=0, degree=degree)
        graph = Graph(*(jnp.asarray(a[0]) for a in graph))
        sizes = jnp.full(clients, 200)
        leaf = jax.random.normal(jax.random.key(0), (clients, parameters))
        weights, width = mixing_weights(graph, sizes), degree + 1
        times = measure(weights, graph.members, leaf)
        best = min(seconds for seconds, _ in times.values())
        for name, (seconds, compile_seconds) in times.items():
            moved = 4e-9 * clients * (width + 1) * parameters / seconds
            computed = 2e-9 * clients * width * parameters / seconds
            print(
                f'{family:8} {clients:5} {width:4} {parameters:6} {name:6} {1e3 * seconds:8.1f} '
                f'{moved:6.1f} {computed:7.1f} {seconds / best:6.2f} {1e3 * compile_seconds:10.0f}',
                flush=True,
            )


if __name__ == '__main__':
    main()
