"""What several benchmarks share: timing, memory, random networks, counted kernel products."""

import resource
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.flatten_util import ravel_pytree

from dfl_jax.base import Array, Clients, PyTree
from dfl_jax.models import Model
from dfl_jax.ntk import evolution

GIB = 2**30
CLASSES = 10


class Compiled(NamedTuple):
    """A program compiled ahead of its first call."""

    call: Callable[..., Any]
    seconds: float  # to trace and compile it
    temporary: int  # bytes that XLA plans for intermediate results


def compiled(function: Callable[..., Any], *args: Any, donate: int | None = None) -> Compiled:
    """Compiles `function` for arguments of these shapes; `donate` is the number of one of them."""
    start = time.perf_counter()
    program = jax.jit(function, donate_argnums=donate).lower(*args).compile()
    seconds, memory = time.perf_counter() - start, program.memory_analysis()
    return Compiled(program, seconds, memory.temp_size_in_bytes if memory else 0)


def seconds_of(call: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    """Seconds until the results are there, and the results."""
    start = time.perf_counter()
    results = jax.block_until_ready(call(*args))
    return time.perf_counter() - start, results


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


def peak_bytes() -> int:
    """The most memory held so far: on the device where it says so, else by the process."""
    stats = jax.devices()[0].memory_stats()
    if stats and 'peak_bytes_in_use' in stats:
        return stats['peak_bytes_in_use']
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == 'darwin' else 1024 * peak


def about() -> str:
    """The device and the version, the head of every table."""
    device = jax.devices()[0]
    return f'{device.platform} {device.device_kind}, JAX {jax.__version__}, float32'


def random_clients(clients: int, samples: int, shape: Sequence[int] = (28, 28, 1)) -> Clients:
    """Gaussian noise on a Gaussian image of each class and one that all share; random labels.

    Sized such that kernels are as stiff, and so `rkc` as dear, as on Fashion-MNIST: without the
    shared image the largest eigenvalue of the first H / N~ is 35 instead of 250, and with labels
    that cannot be learned it falls to a tenth in the first round.
    """
    rng = np.random.default_rng(0)
    y = rng.integers(CLASSES, size=(clients, samples), dtype=np.int32)
    x = rng.standard_normal((clients, samples, *shape), np.float32)
    x += 0.6 * rng.standard_normal(shape, np.float32)
    for label in range(CLASSES):
        x[y == label] += 0.5 * rng.standard_normal(shape, np.float32)
    return Clients(jnp.asarray(x), jnp.asarray(y), jnp.ones((clients, samples), bool))


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
        results = jax.device_get(program(*args))
        jax.effects_barrier()
        return results, products

    plain, program = evolution.apply, jax.jit(traced)
    return run


def count_products(runs: Sequence[tuple[Array, ...]], **settings: Any) -> list[int]:
    """How many products with the kernel `evolve(*run, **settings)` takes, for each of `runs`.

    runs: positional arguments of equal shapes.
    """
    program = counted(lambda *run: evolution.evolve(*run, **settings))
    return [program(*run)[1] for run in runs]
