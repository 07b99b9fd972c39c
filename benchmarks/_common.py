"""What benchmarks share: the start, tables, times, networks, counted kernel products."""

import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, logging

from benchmarks.peers._common import CLASSES, random_samples
from dfl_jax import data, topology
from dfl_jax.base import Array, Clients, Graph
from dfl_jax.models import MLP, Model, bind
from dfl_jax.ntk import evolution

GIB = 2**30
IMAGE = (28, 28, 1)
SIDE = 2048  # of `product_rate`


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


def compiled(
    function: Callable[..., Any], *args: Any, donate: int | None = None
) -> tuple[Callable[..., Any], float]:
    """`function` compiled for arguments of these shapes, and the seconds that this took.

    donate: the number of an argument that is.
    """
    begin = time.perf_counter()
    program = jax.jit(function, donate_argnums=donate).lower(*args).compile()
    return program, time.perf_counter() - begin


def seconds_of(call: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    """Seconds until the results are there, and the results."""
    begin = time.perf_counter()
    results = jax.block_until_ready(call(*args))
    return time.perf_counter() - begin, results


def median_seconds(function: Callable[..., Any], *args: Any) -> float:
    """Median over nine calls after a warm-up; fewer once they took ten seconds.

    A first call that alone takes so long is the result.
    """
    program, _ = compiled(function, *args)
    times = [seconds_of(program, *args)[0]]
    while len(times) <= 9 and sum(times) < 10:
        times.append(seconds_of(program, *args)[0])
    return float(np.median(times[1:] or times))


def product_rate() -> float:
    """Operations a second of a large square matrix product."""
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.standard_normal((SIDE, SIDE)), jnp.float32) for _ in range(2))
    return 2 * SIDE**3 / median_seconds(partial(jnp.matmul, precision='highest'), a, b)


def peak_bytes() -> int:
    """The most memory held so far: on the device where it says so, else by the process."""
    stats = jax.devices()[0].memory_stats()
    if stats and 'peak_bytes_in_use' in stats:
        return stats['peak_bytes_in_use']
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == 'darwin' else 1024 * peak


def random_clients(clients: int, samples: int) -> Clients:
    """Clients of `random_samples`, none of them padded."""
    x, y = random_samples(clients, samples, IMAGE)
    return Clients(jnp.asarray(x), jnp.asarray(y), jnp.ones((clients, samples), bool))


def real_clients(
    name: str, data_dir: str | None, clients: int, partition_file: str | None
) -> tuple[Clients, Model]:
    """A data set over clients by the file, else by Dirichlet(0.1), and the MLP that fits it."""
    dataset = data.load(name, data_dir)
    parts = data.partition('dirichlet', dataset, clients, seed=0, path=partition_file)
    packed = data.pack(dataset.train_x, dataset.train_y, parts)
    return packed, bind(MLP(dataset.classes), packed.x.shape[2:])


def mlp() -> Model:
    """The two-layer network of most benchmarks, 784-100-10 on the random images."""
    return bind(MLP(CLASSES), IMAGE)


def regular_graphs(clients: int, rounds: int, degree: int) -> list[Graph]:
    """A random regular graph a round, on the device."""
    schedule = topology.schedule('regular', clients, rounds, seed=0, degree=degree)
    return [jax.tree.map(lambda a, r=r: jnp.asarray(a[r]), schedule) for r in range(rounds)]


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
