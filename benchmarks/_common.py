"""What benchmarks share: the start, networks, times, tables, counted kernel products."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging
from jax import lax
from jax.flatten_util import ravel_pytree

from benchmarks.peers._common import CLASSES, random_samples
from dfl_jax import data, topology
from dfl_jax.base import Algorithm, Array, Clients, Graph, PyTree
from dfl_jax.models import MLP, Model, bind
from dfl_jax.ntk import evolution

GIB = 2**30
IMAGE = (28, 28, 1)
SIDE = 2048  # of `product_rate`


# ---------------------------------------------------------------------------- start and output


def start(main: Callable[[], None]) -> None:
    """Reads the flags and runs a benchmark, logging warnings only."""

    def run(argv: list[str]) -> None:
        del argv
        logging.set_verbosity(logging.WARNING)
        main()

    app.run(run)


def about() -> str:
    """The device and the version, the head of every table."""
    device = jax.devices()[0]
    return f'{device.platform} {device.device_kind}, JAX {jax.__version__}, float32'


class Table:
    """A Markdown table whose rows are printed as soon as they are measured."""

    def __init__(self, *columns: str) -> None:
        self.row(*columns)
        print(f'|---|{"--:|" * (len(columns) - 1)}')

    def row(self, *cells: object) -> None:
        """Prints a row, numbers as `format` makes them when they come as (number, format)."""
        shown = (format(*cell) if isinstance(cell, tuple) else str(cell) for cell in cells)
        print(f'| {" | ".join(shown)} |', flush=True)


def in_process(benchmark: str, worker: object, *passed: flags.FlagHolder) -> dict[str, Any]:
    """What a fresh process of `benchmark` with this --worker and these flags prints, as JSON."""
    command = [sys.executable, '-m', f'benchmarks.{benchmark}', f'--worker={worker}']
    command += [f'--{flag.name}={flag.value}' for flag in passed if flag.value is not None]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


# --------------------------------------------------------------------------- times and memory


class Compiled(NamedTuple):
    """A program compiled ahead of its first call."""

    call: Callable[..., Any]
    seconds: float  # to trace and compile it
    temporary: int  # bytes that XLA plans for intermediate results


def compiled(function: Callable[..., Any], *args: Any, donate: int | None = None) -> Compiled:
    """`function` compiled for arguments of these shapes; `donate` is the number of one of them."""
    begin = time.perf_counter()
    program = jax.jit(function, donate_argnums=donate).lower(*args).compile()
    seconds, memory = time.perf_counter() - begin, program.memory_analysis()
    return Compiled(program, seconds, memory.temp_size_in_bytes if memory else 0)


def seconds_of(call: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    """Seconds until the results are there, and the results."""
    begin = time.perf_counter()
    results = jax.block_until_ready(call(*args))
    return time.perf_counter() - begin, results


def median_seconds(
    call: Callable[..., Any], *args: Any, repeats: int, budget: float = 10.0
) -> float:
    """Median over `repeats` calls after a warm-up; fewer once they took `budget` seconds.

    A first call that alone exceeds the budget is the result.
    """
    times = [seconds_of(call, *args)[0]]
    while len(times) <= repeats and sum(times) < budget:
        times.append(seconds_of(call, *args)[0])
    return float(np.median(times[1:] or times))


def product_rate() -> float:
    """Operations a second of a large square matrix product."""
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.standard_normal((SIDE, SIDE)), jnp.float32) for _ in range(2))
    multiply = jax.jit(lambda a, b: jnp.matmul(a, b, precision='highest'))
    return 2 * SIDE**3 / median_seconds(multiply, a, b, repeats=7)


def in_turns(contenders: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each contender, called in turns so that a busy machine slows all alike."""
    times = [[seconds_of(call)[0] for call in contenders.values()] for _ in range(repeats)]
    return dict(zip(contenders, np.median(times, axis=0).tolist(), strict=True))


class Rounds(NamedTuple):
    """What rounds of a method took, and what the last one reported."""

    compile_seconds: float
    seconds: float  # median of the rounds after the first
    info: Any


def timed_rounds(algorithm: Algorithm, clients: Clients, graphs: Sequence[Graph]) -> Rounds:
    """The times of one round a graph, the state donated; the first round warms up."""
    key = jax.random.key(0)
    state = jax.jit(algorithm.init)(key, clients)
    step = compiled(algorithm.step, key, state, graphs[0], clients, donate=1)
    times, info = [], None
    for graph in graphs:
        seconds, (state, info) = seconds_of(step.call, key, state, graph, clients)
        times.append(seconds)
    return Rounds(step.seconds, float(np.median(times[1:])), info)


def peak_bytes() -> int:
    """The most memory held so far: on the device where it says so, else by the process."""
    stats = jax.devices()[0].memory_stats()
    if stats and 'peak_bytes_in_use' in stats:
        return stats['peak_bytes_in_use']
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == 'darwin' else 1024 * peak


# -------------------------------------------------------------------------------- networks


def random_clients(clients: int, samples: int, shape: Sequence[int] = IMAGE) -> Clients:
    """Clients of `random_samples`, none of them padded."""
    x, y = random_samples(clients, samples, shape)
    return Clients(jnp.asarray(x), jnp.asarray(y), jnp.ones((clients, samples), bool))


def real_clients(
    name: str, data_dir: str | None, clients: int, partition_file: str | None
) -> tuple[Clients, Model]:
    """A data set over clients by the file, else by Dirichlet(0.1), and the MLP that fits it."""
    dataset = data.load(name, data_dir)
    parts = data.partition('dirichlet', dataset, clients, seed=0, path=partition_file)
    packed = data.pack(dataset.train_x, dataset.train_y, parts)
    return packed, bind(MLP(dataset.classes), packed.x.shape[2:])


def mlp(shape: Sequence[int] = IMAGE) -> Model:
    """The two-layer network of most benchmarks, 784-100-10 on the random images."""
    return bind(MLP(CLASSES), shape)


def graphs_of(schedule: Graph) -> list[Graph]:
    """The graph of each round of a schedule, on the device."""
    return [Graph(*(jnp.asarray(a[r]) for a in schedule)) for r in range(len(schedule.active))]


def regular_graphs(clients: int, rounds: int, degree: int) -> list[Graph]:
    """A random regular graph a round."""
    return graphs_of(topology.schedule('regular', clients, rounds, seed=0, degree=degree))


# ------------------------------------------------------------------- Jacobians, kernel products


def jacobian(model: Model, params: PyTree, x: Array, block: int = 128) -> Array:
    """The dense Jacobian of the logits by the flattened parameters: x [B, ...] -> [B, C, P].

    block: samples whose Jacobians are formed at once.
    """
    flat, unravel = ravel_pytree(params)

    def logits(w, sample):
        return model.apply(unravel(w), sample[None])[0]

    return lax.map(lambda sample: jax.jacrev(logits)(flat, sample), x, batch_size=block)


def counted(function: Callable[..., Any]) -> Callable[..., tuple[Any, int]]:
    """`function` compiled, whose calls also return how many products with the kernel it took.

    They are those of `evolution.apply`: a product of a kernel's bound, with a vector, is not one.
    """
    products = 0

    def tick() -> None:
        nonlocal products
        products += 1

    def ticking(kernel: evolution.Kernel, total: Array) -> Array:
        jax.debug.callback(tick)
        return plain(kernel, total)

    def traced(*args: Any) -> Any:
        with mock.patch.object(evolution, 'apply', ticking):
            return function(*args)

    def run(*args: Any) -> tuple[Any, int]:
        nonlocal products
        products = 0
        results = jax.block_until_ready(program(*args))
        jax.effects_barrier()
        return results, products

    plain, program = evolution.apply, jax.jit(traced)
    return run
