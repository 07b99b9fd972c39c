"""How long is a round of NTK-DFL, and how near to the device's rate are its matrix products?

    python -m benchmarks.round
    python -m benchmarks.round --data_dir=DIR --partition_file=FILE

One steady round (the second: after a warm-up round) of 300 clients with 197 samples each, MLP
784-100-10, dynamic 5-regular graph, set beside

* a large product: the rate of the matrix products that a round cannot avoid (the Gram products of
  the kernel, S H of the evolution, the VJP and the forward pass of every timestep) beside that of
  a 2048^3 product in the same process;
* the textbook: a Python loop over clients with the dense Jacobian J [N~, C, P] of each by
  `jax.jacrev`, H = J J^T / C, 800 Euler steps, J^T S for all eight timesteps, the best of them.
  A few clients of it, scaled to all.

The phases are timed one by one for one aggregator (mixing for all aggregators, divided by their
number; selection as what the update takes beyond the evolution); `rest` is what an aggregator of
the whole round takes beyond them. What the other methods get out of a device: `throughput`.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax import lax
from jax.flatten_util import ravel_pytree

from benchmarks import _common as common
from dfl_jax.base import Array, Clients, Graph, PyTree
from dfl_jax.exchange import one_round
from dfl_jax.execution.memory import aggregator_bytes, choose_chunk
from dfl_jax.gossip.mixing import mix, mixing_weights
from dfl_jax.methods import make
from dfl_jax.models import Model
from dfl_jax.ntk import TIMESTEPS, Linearization, NtkUpdate, evolve, kernel_fn, ntk_update
from dfl_jax.ntk.aggregator_data import aggregator_data, output_targets
from dfl_jax.ntk.evolution import sample_losses

_CLIENTS = flags.DEFINE_integer('clients', 300, 'M', lower_bound=2)
_SAMPLES = flags.DEFINE_integer('samples', 197, 'samples of each random client', lower_bound=1)
_DEGREE = flags.DEFINE_integer('degree', 5, 'neighbours of a client', lower_bound=1)
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'folder of Fashion-MNIST (default: random data)')
_PARTITION_FILE = flags.DEFINE_string('partition_file', None, 'JSON, for real data')
_CHUNK = flags.DEFINE_integer('chunk', None, 'aggregators at once, default as memory allows')
_REPEATS = flags.DEFINE_integer('repeats', 3, 'timed rounds', lower_bound=1)
_DENSE_CLIENTS = flags.DEFINE_integer('dense_clients', 2, 'textbook clients, 0 = none', 0)

HIDDEN = 100
LR = 0.01


class Aggregator(NamedTuple):
    """What one aggregator works on: its averaged weights, its samples and its neighbours'."""

    params: PyTree  # w_bar
    x: Array  # [N~, ...]
    y: Array  # [C, N~] one-hot
    mask: Array  # [N~] bool
    rate: Array  # learning rate of this round


def main() -> None:
    clients, model = load()
    aggregators, width = clients.mask.shape
    samples = width * (_DEGREE.value + 1)  # N~
    chunk = choose_chunk(aggregators, aggregator_bytes(samples, model), _CHUNK.value)
    print(
        f'{common.about()}\n{aggregators} clients, {samples} samples an aggregator, '
        f'{chunk} aggregator(s) at once\n'
    )
    algorithm = make('ntk_dfl', model, lr=LR, chunk=chunk)
    warm_up, graph = common.regular_graphs(aggregators, 2, _DEGREE.value)
    key = jax.random.key(0)
    state = jax.jit(algorithm.init)(key, clients)
    step, compilation = common.compiled(
        partial(one_round, algorithm), key, state, 0, warm_up, clients, donate=1
    )
    state, _ = step(key, state, 0, warm_up, clients)
    times = []
    for _ in range(_REPEATS.value):  # the second round, again and again
        donated = jax.block_until_ready(jax.tree.map(jnp.copy, state))
        seconds, (after, info) = common.seconds_of(step, key, donated, 1, graph, clients)
        times.append(seconds)
    seconds = float(np.median(times)) / aggregators
    peak = common.peak_bytes()

    averaged = jax.jit(average)(state, clients.mask.sum(axis=1), graph)

    def aggregator(h: int) -> Aggregator:
        x, labels, mask = data_of(clients, graph.members[h], graph.mask[h])
        y = output_targets(model, labels, x.dtype)
        return Aggregator(at(averaged, h), x, y, mask, jnp.asarray(LR))

    some = np.linspace(0, aggregators - 1, min(8, aggregators)).astype(int)
    products = round(evolution_products(model, [aggregator(h) for h in some]))
    rate, product = operations_of(model, samples, products) / seconds, common.product_rate()
    figures(
        ('compile', compilation, 's'),
        (f'round (median of {len(times)})', seconds * aggregators, 's'),
        ('aggregator', 1e3 * seconds, 'ms'),
        ('useful operations', rate / 1e9, 'GFLOP/s'),
        ('large product', product / 1e9, 'GFLOP/s'),
        ('useful operations / large product', 100 * rate / product, '%'),
        ('peak memory', peak / common.GIB, 'GiB'),
    )

    phases = phase_seconds(model, state, graph, clients, aggregator(0))
    phases['rest'] = seconds - sum(phases.values())
    table = common.Table('phase of one aggregator', 'ms', 'share')
    for name, value in phases.items():
        table.row(name, (1e3 * value, '.2f'), (value / seconds, '.0%'))
    print(f'\nproducts S H of one evolution: {products} (mean of {len(some)} aggregators)\n')

    numbers = range(min(_DENSE_CLIENTS.value, aggregators))
    if not numbers:
        return
    dense, dense_compilation = common.compiled(partial(textbook, model), aggregator(0))
    runs = [common.seconds_of(dense, aggregator(h)) for h in numbers]
    dense_seconds = float(np.median([each for each, _ in runs]))
    figures(
        ('textbook: compile', dense_compilation, 's'),
        ('textbook: client', dense_seconds, 's'),
        ('textbook: round, scaled', dense_seconds * aggregators, 's'),
        ('textbook / round', dense_seconds / seconds, ''),
        ('peak memory with the textbook', common.peak_bytes() / common.GIB, 'GiB'),
    )
    chosen = info.metrics['timestep'].values
    for h, (_, (params, timestep)) in zip(numbers, runs, strict=True):
        ours, theirs, start = (
            ravel_pytree(p)[0] for p in (at(after.params, h), params, at(averaged, h))
        )
        apart = jnp.linalg.norm(ours - theirs) / jnp.linalg.norm(theirs - start)
        print(
            f'client {h}: timestep {chosen[h, 0]}, textbook {timestep}; '
            f'the updates differ by {apart:.1e} of their length'
        )


def load() -> tuple[Clients, Model]:
    """The network's data, and the MLP that fits it."""
    if not _DATA_DIR.value:
        return common.random_clients(_CLIENTS.value, _SAMPLES.value), common.mlp()
    return common.real_clients(
        'fashion_mnist', _DATA_DIR.value, _CLIENTS.value, _PARTITION_FILE.value
    )


def figures(*lines: tuple[str, float, str]) -> None:
    """Prints a table of numbers and their units."""
    table = common.Table('', 'value', 'unit')
    for name, value, unit in lines:
        table.row(name, (value, '.2f'), unit)
    print()


def at(tree: PyTree, h: int | Array) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[h], tree)


def textbook(model: Model, aggregator: Aggregator) -> tuple[PyTree, Array]:
    """The new weights of an aggregator and the timestep chosen, Algorithm 4 as its equations stand.

    It is not slowed down anywhere: the products are matrix products of the whole, all timesteps in
    one, and the Jacobian is formed in the blocks that were fastest. J [N~, C, P] is in memory
    whole: 3.8 GB for 1,182 samples of the MLP 784-100-10.
    """
    w, x, y, mask, rate = aggregator
    n = jnp.sum(mask)
    flat, unravel = ravel_pytree(w)

    def logits(flat: Array, sample: Array) -> Array:
        return model.apply(unravel(flat), sample[None])[0]

    block = 16 if jax.default_backend() == 'cpu' else 128
    j = lax.map(lambda sample: jax.jacrev(logits)(flat, sample), x, batch_size=block)  # Eq. (2)
    rows = j.reshape(len(x), -1)
    h = jnp.matmul(rows, rows.T, precision='highest') / model.classes  # Eq. (3)
    h = jnp.where(mask[:, None] & mask[None, :], h, 0)
    f0 = model.apply(w, x).T
    totals = evolve(h, f0, y, mask, rate, timesteps=TIMESTEPS, method='euler')
    signals = totals.transpose(0, 2, 1).reshape(len(TIMESTEPS), -1)  # Eq. (5b), [T, N~ C]
    tried = flat - rate / n * (signals @ j.reshape(signals.shape[1], -1))  # Eq. (5a), [T, P]

    def loss(flat: Array) -> Array:
        losses = sample_losses(model.apply(unravel(flat), x).T, y, 'cross_entropy')
        return jnp.sum(jnp.where(mask, losses, 0)) / n

    best = jnp.argmin(lax.map(loss, tried))
    return unravel(tried[best]), jnp.asarray(TIMESTEPS)[best]


# ---------------------------------------------------------------- the pieces of an aggregator


def average(state: Any, sizes: Array, graph: Graph) -> PyTree:
    return mix(mixing_weights(graph, sizes), graph.members, state.params)  # Eq. (1)


def data_of(clients: Clients, members: Array, linked: Array) -> tuple[Array, Array, Array]:
    return aggregator_data(at(clients, members), linked)


def kernel_of(model: Model, aggregator: Aggregator) -> Array:
    h = kernel_fn(model)(aggregator.params, aggregator.x)
    return jnp.where(aggregator.mask[:, None] & aggregator.mask[None, :], h, 0)  # Eq. (3)


def evolved(kernel: Array, f0: Array, aggregator: Aggregator) -> Array:
    _, _, y, mask, rate = aggregator
    return evolve(kernel, f0, y, mask, rate, timesteps=TIMESTEPS)


def phase_seconds(
    model: Model, state: Any, graph: Graph, clients: Clients, aggregator: Aggregator
) -> dict[str, float]:
    """Seconds of each phase for one aggregator, each a program of its own."""
    update = ntk_update(model, NtkUpdate())

    def updated(kernel: Array, f0: Array, aggregator: Aggregator) -> PyTree:
        w, x, y, mask, rate = aggregator
        vjp = jax.vjp(lambda w: model.apply(w, x).T, w)[1]
        return update(w, Linearization(f0, kernel, lambda s: vjp(s)[0]), x, y, mask, rate)

    f0 = jax.jit(model.apply)(aggregator.params, aggregator.x).T
    kernel = jax.jit(partial(kernel_of, model))(aggregator)
    evolution = common.median_seconds(evolved, kernel, f0, aggregator)
    return {
        'mixing': common.median_seconds(average, state, clients.mask.sum(axis=1), graph)
        / len(graph.active),
        'data': common.median_seconds(data_of, clients, graph.members[0], graph.mask[0]),
        'kernel': common.median_seconds(partial(kernel_of, model), aggregator),
        'evolution': evolution,
        'selection': common.median_seconds(updated, kernel, f0, aggregator) - evolution,
    }


def evolution_products(model: Model, aggregators: Sequence[Aggregator]) -> float:
    """The products S H of one evolution, the mean over the aggregators."""

    def evolution(aggregator: Aggregator) -> Array:
        f0 = model.apply(aggregator.params, aggregator.x).T
        return evolved(kernel_of(model, aggregator), f0, aggregator)

    count = common.counted(evolution)
    return float(np.mean([count(aggregator)[1] for aggregator in aggregators]))


def operations_of(model: Model, n: int, products: int) -> float:
    """Floating-point operations of an aggregator's matrix products: N~ = n, `products` S H."""
    d, c, t = math.prod(model.input_shape), model.classes, len(TIMESTEPS)
    kernel, evolution = n * n * (d + 2 * HIDDEN), products * c * n * n
    forward, signal = n * (d * HIDDEN + HIDDEN * c), n * HIDDEN * c
    return 2.0 * (kernel + evolution + t * (2 * forward + signal))


if __name__ == '__main__':
    common.start(main)
