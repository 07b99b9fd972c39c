"""How much memory things take, and how many aggregators or clients fit into it at once."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dfl_jax.base import PyTree
from dfl_jax.host_memory import free_bytes, in_bytes
from dfl_jax.models import Model
from dfl_jax.setting_error import SettingError

ROUND_COPIES = 2  # of the state, beside it: the averages, and the models trained from them
SHARE = 0.5  # of the free memory: the rest is for data, state and the allocator
MATRICES = {'cpu': 4, 'gpu': 2, 'tpu': 4}  # N~ x N~, of an aggregator's evolution


def available_bytes() -> int:
    """Free bytes of the default device; of the machine for a CPU."""
    device = jax.local_devices()[0]
    stats = device.memory_stats()
    if stats and 'bytes_limit' in stats:
        return stats['bytes_limit'] - stats['bytes_in_use']
    return free_bytes()


def bytes_of(tree: PyTree) -> int:
    """Bytes of arrays, or of anything with shapes and dtypes."""
    return sum(
        math.prod(leaf.shape) * jnp.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(tree)
    )


def aggregator_bytes(samples: int, model: Model, platform: str | None = None) -> int:
    """Bytes that one aggregator's evolution takes; more with large activations.

    Some N~ x N~ matrices, three copies of the inputs and eight of the weights. XLA asks for 21.9
    MiB an aggregator on an H200 and 31.6 MiB on a v5e (table of docs/compiled.md, 300 aggregators
    of 1,182 samples); these are 23.7 and 34.3 MiB.

    samples: N~, padded samples of the aggregator and its neighbours; platform: JAX's by default.
    """
    inputs = samples * math.prod(model.input_shape)
    matrices = MATRICES.get(platform or jax.default_backend(), MATRICES['tpu'])
    return 4 * (matrices * samples**2 + 3 * inputs + 8 * model.size)


def client_bytes(samples: int, model: Model, orders: int = 1, gradients: int = 0) -> int:
    """Bytes that the local training of one client takes; more with large activations.

    Two copies of its data, eight of the weights (gradient, update, moments, ascent) and three of
    the orders of its samples. samples: N, padded; orders: how often its samples are shuffled;
    gradients: of single samples, held at once.
    """
    of_data = 2 * samples * math.prod(model.input_shape) + 3 * samples * orders
    return 4 * (of_data + (8 + gradients) * model.size)


class Footprint(NamedTuple):
    """About the bytes that a run takes of a device's memory; a CPU's devices share theirs."""

    data: int  # clients and test set
    state: int
    copies: int  # of the state, made by a round
    work: int  # what is computed at once: kernels, activations, gradients
    graphs: int = 0  # the schedule, and the rounds of a block

    @property
    def total(self) -> int:
        return sum(self)

    def __str__(self) -> str:
        parts = ', '.join(f'{name} {in_bytes(size)}' for name, size in self._asdict().items())
        return f'{in_bytes(self.total)} ({parts})'


def choose_chunk(count: int, each: int, chunk: int | None = None, advice: str = '') -> int:
    """How many of `count` aggregators or clients to work on at once: `chunk`, or what memory holds.

    One on a CPU, whose cores the products of a single aggregator fill (2026-11-20):
    docs/benchmarks.md, "Constants".

    Args:
      count: aggregators or clients.
      each: bytes of one, from the method's memory formula.
      chunk: the user's choice.
      advice: what to do if not even one fits.

    Raises SettingError when not even one fits, or not `chunk` of them.
    """
    free = available_bytes()
    fitting = int(SHARE * free / each)
    if fitting < (chunk or 1):
        raise SettingError.of(
            f'{chunk or 1} at once need {(chunk or 1) * each / 2**30:.1f} GiB '
            f'and {SHARE:.0%} of the free memory is {SHARE * free / 2**30:.1f} GiB; '
            + ('lower `chunk`' if chunk and fitting else advice),
            chunk=chunk,
        )
    if chunk:
        return min(chunk, count)
    return 1 if jax.default_backend() == 'cpu' else min(count, fitting)
