"""What does a round of every method compile to, for an accelerator that this machine has or not?

    pip install jax-cuda12-plugin jax-cuda12-pjrt   # of JAX's version; no driver is needed
    python -m benchmarks.aot --platform=cuda
    pip install 'libtpu==0.0.42.*'                  # the one that jaxlib 0.10.2 asks for
    python -m benchmarks.aot --platform=tpu --methods=ntk_dfl,spark
    python -m benchmarks.aot --platform=here        # JAX's own device, on which rounds are timed

XLA compiles for a described device: an H200, without autotuning, or one chip of a v5e. A round of
300 clients of 197 samples is compiled with all clients or aggregators at once, the methods of DFML
with 50 clients of 1,000 images of 32 x 32 pixels. With `here` it is then run on random images, each
client hearing the next ones on a ring: the median of rounds after two. Printed are the seconds of
compilation, the bytes of the arguments (data, state and graph) and of what the round needs beside
them, how many kernels, loops and calls of libraries the program has, and the operations of its
products and convolutions. The least milliseconds are those that these take at the peak rate of the
data sheet, or that reading the arguments once takes at its bandwidth, whichever is more.
"""

import contextlib
import functools
import os
import re
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from benchmarks import _common as common
from benchmarks.peers._common import CLASSES, WARM_UP, random_samples
from dfl_jax import models
from dfl_jax.base import Clients, Graph
from dfl_jax.exchange import one_round
from dfl_jax.heterogeneous import assign_architectures, populate
from dfl_jax.methods import IN_ROUNDS, Run, make
from dfl_jax.timing import DependsOnTrainingError, counted

_PLATFORM = flags.DEFINE_enum(
    'platform', 'cuda', ('cuda', 'tpu', 'here'), 'whose compiler; `here` also runs the rounds'
)
_METHODS = flags.DEFINE_list('methods', list(IN_ROUNDS), 'methods to compile')
_CHUNK = flags.DEFINE_integer('chunk', None, 'clients or aggregators at once, default all', 1)

ROUNDS = 5  # timed
_samples = functools.cache(random_samples)
ALIKE = ('def_kt', 'dec_fedprox')  # methods whose clients have one architecture
# Operations and bytes a second by the data sheets: float32 of an H200, bfloat16 of a v5e, whose
# float32 takes several such products
PEAKS = {'cuda': (67e12, 4.8e12), 'tpu': (197e12, 819e9)}


class Size(NamedTuple):
    """How much a round is of: `of` the methods of DFML, whose clients have images, the rest not."""

    clients: int = 300
    samples: int = 197  # of a client
    clients_of: int = 50
    samples_of: int = 1000
    width: float = 1.0  # factor on the channels of their CNNs
    networks: int = 5  # how many different ones, at most
    chunk: int | None = None  # clients or aggregators at once; None: all


# The figures of NVIDIA's data sheet and of CUDA's table of compute capability 9.0.
H200 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 150754820096
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 patch: 0 }
runtime_version { major: 12 minor: 9 patch: 0 }
device_description_str: "NVIDIA H200"
"""


def main() -> None:
    here = _PLATFORM.value == 'here'
    described = jax.devices()[0] if here else device(_PLATFORM.value)
    sharding = jax.sharding.SingleDeviceSharding(described)
    print(f'{described.device_kind}, JAX {jax.__version__}{"" if here else ", not run"}\n')
    table = common.Table(
        *('method', 'compile s', 'arguments GiB', 'temporary GiB'),
        *('kernels', 'loops', 'calls of libraries', '10^9 operations'),
        'ms a round' if here else 'least ms',
    )
    size = Size(chunk=_CHUNK.value)
    for name in _METHODS.value:
        seconds, program, count = compiled_round(name, _PLATFORM.value, sharding, size)
        work = '-' if count is None else (count / 1e9, '.0f')
        if here:
            least: object = (round_milliseconds(name, program, size), '.3g')
        else:
            least = floor_of(program, count)
        table.row(name, (seconds, '.0f'), *figures_of(program), work, least)


def device(platform: str) -> Any:
    """One device of the platform, as its compiler knows it."""
    from jax.experimental import topologies

    jax.config.update('jax_platforms', 'cpu')  # a plugin without its device is not to be started
    if platform == 'cuda':
        target = {'topology_name': 'h200', 'target_config': H200, 'topology': '1x1x1'}
    else:
        target = {'topology_name': 'v5e:2x2'}
        os.environ |= {
            'TPU_SKIP_MDS_QUERY': '1',
            'TPU_ACCELERATOR_TYPE': 'v5litepod-4',
            'TPU_WORKER_HOSTNAMES': 'localhost',
            'TPU_WORKER_ID': '0',
            'ALLOW_MULTIPLE_LIBTPU_LOAD': 'true',
        }
    try:
        return topologies.get_topology_desc(platform=platform, **target).devices[0]
    except Exception as error:  # whatever a plugin that is not there makes of it
        sys.exit(f'no compiler for --platform={platform}: {error}\n{__doc__}')


def compiled_round(
    name: str, platform: str, sharding: jax.sharding.Sharding, size: Size
) -> tuple[float, Any, float | None]:
    """Seconds of compilation, the program of one round of a method, and its operations.

    None where the training decides how many these are.
    """
    algorithm, clients, graph = round_of(name, size)
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(algorithm.init, key, clients)
    arguments = jax.tree.map(
        lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding),
        (key, state, jax.eval_shape(lambda: jnp.int32(0)), graph, clients),
    )
    begin = time.perf_counter()
    traced = jax.jit(functools.partial(one_round, algorithm), donate_argnums=1).trace(*arguments)
    platforms = None if platform == 'here' else (platform,)
    program = traced.lower(lowering_platforms=platforms).compile()
    seconds, count = time.perf_counter() - begin, None
    with contextlib.suppress(DependsOnTrainingError):
        ones = jax.tree.map(lambda a: np.broadcast_to(np.ones((), a.dtype), a.shape), clients)
        graphs = jax.tree.map(lambda a: a[None], _complete(graph, len(clients.y)))
        count = float(counted(algorithm, ones, graphs).flops.sum())
    return seconds, program, count


def _complete(graph: Graph, clients: int) -> Graph:
    """A graph of this shape in which all clients are active and all links delivered."""
    rows, members = graph.members.shape
    apart = 1 if rows == clients else members  # meetings and pairs have no client in common
    network = (apart * np.arange(rows)[:, None] + np.arange(members)) % clients
    linked = np.ones((rows, members), bool)
    return Graph(network.astype(np.int32), linked, linked[:, 0])


def figures_of(program: Any) -> list[tuple[float, str]]:
    """Memory and structure of a compiled round, as the table has them."""
    memory, text = program.memory_analysis(), program.as_text()
    counts = (len(re.findall(rf' {kind}\(', text)) for kind in ('fusion', 'while', 'custom-call'))
    return [
        (memory.argument_size_in_bytes / common.GIB, '.2f'),
        (memory.temp_size_in_bytes / common.GIB, '.2f'),
        *((count, 'd') for count in counts),
    ]


def floor_of(program: Any, count: float | None) -> object:
    """The least milliseconds that a round of so many operations can take."""
    if count is None:
        return '-'
    rate, bandwidth = PEAKS[_PLATFORM.value]
    read = program.memory_analysis().argument_size_in_bytes
    return 1e3 * max(count / rate, read / bandwidth), '.2g'


def round_milliseconds(name: str, program: Any, size: Size) -> float:
    """Median milliseconds of a compiled round; all clients are active and all links delivered."""
    step, state = started_round(name, program, size)
    times = []
    for _ in range(WARM_UP + ROUNDS):
        seconds, state = common.seconds_of(step, state)
        times.append(seconds)
    return 1e3 * float(np.median(times[WARM_UP:]))


def started_round(name: str, program: Any, size: Size) -> tuple[Callable[[Any], Any], Any]:
    """A compiled round on random images, state -> state, and the first state."""
    algorithm, shapes, graph = round_of(name, size)
    x, y = _samples(*shapes.y.shape, shapes.x.shape[2:])
    clients = Clients(jnp.asarray(x), jnp.asarray(y), jnp.ones(y.shape, bool))
    graph, key = jax.tree.map(jnp.asarray, _complete(graph, len(y))), jax.random.key(0)
    start = jax.jit(algorithm.init)(key, clients)
    return lambda state: program(key, state, graph, clients)[0], start


def round_of(name: str, size: Size) -> tuple[Any, Clients, Graph]:
    """A method, and the shapes of its clients and of a round's graph."""
    method = IN_ROUNDS[name]
    network: Any = common.mlp()
    count, samples, shape = size.clients, size.samples, common.IMAGE
    if method.heterogeneous:
        count, samples, shape = size.clients_of, size.samples_of, (32, 32, 3)
        asked = ('h0',) if name in ALIKE else (method.architectures,)
        names = models.expand(asked)[: size.networks]
        networks = {
            each: models.bind(models.architecture(each, CLASSES, size.width), shape)
            for each in names
        }
        network = populate(networks, assign_architectures(names, count, [1.0] * len(names)))
    rows, members = {
        'neighbours': (count, 6),
        'cohort': (1, min(20, count)),
        'meetings': (1, count // 2 + 1),
        'pairs': (count // 2, 2),
    }[method.graphs]
    run = Run(30, count, count // 2, False, 0, members, size.chunk or count)
    settings = {setting: value(run) for setting, value in method.from_run.items()}
    if method.graphs == 'cohort':
        settings['cohort'] = members
    algorithm = make(name, network, **settings)

    def shapes() -> tuple[Clients, Graph]:
        data = jnp.zeros((count, samples, *shape)), jnp.zeros((count, samples), jnp.int32)
        linked = jnp.zeros((rows, members), bool)
        graph = Graph(linked.astype(jnp.int32), linked, linked[:, 0])
        return Clients(*data, data[1] > 0), graph

    clients, graph = jax.eval_shape(shapes)
    return algorithm, clients, graph


if __name__ == '__main__':
    common.start(main)
