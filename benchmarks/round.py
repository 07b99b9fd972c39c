"""How long is a round of NTK-DFL, and how near to the matrix products that it cannot avoid?

    python -m benchmarks.round
    python -m benchmarks.round --data_dir=DIR --partition_file=FILE

One steady round (the second: after a warm-up round) of 300 clients with 197 samples each, MLP
784-100-10, dynamic 5-regular graph, set beside

* the bare products: nothing but the matrix products of an aggregator, of the same shapes and as
many as
  the aggregator computes (the Gram products of the kernel, S H of the evolution, the VJP and the
  forward pass of every timestep), in the same process;
* the textbook: a Python loop over clients with the dense Jacobian J [N~, C, P] of each by
  `jax.jacrev`, H = J J^T / C, 800 Euler steps, J^T S for all eight timesteps, the best of them.
  A few clients of it, scaled to all.

The phases are timed one by one for one aggregator (mixing for all aggregators, divided by their
number); `rest` is what an aggregator of the whole round takes beyond them.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging
from jax import lax
from jax.flatten_util import ravel_pytree

from benchmarks import _common as common
from benchmarks._textbook import Aggregator, Textbook
from dfl_jax import data, topology
from dfl_jax.algorithms.ntk_dfl import ntk_dfl
from dfl_jax.base import Array, Clients, Graph, PyTree
from dfl_jax.execution.memory import aggregator_bytes, choose_chunk
from dfl_jax.gossip.mixing import mix, mixing_weights
from dfl_jax.models import MLP, Model, bind
from dfl_jax.ntk import (
    EVOLUTIONS,
    KERNELS,
    SELECTIONS,
    TIMESTEPS,
    TRIED_AT_ONCE,
    kernel_fn,
)
from dfl_jax.ntk import evolution as ntk_evolution
from dfl_jax.ntk.aggregator_data import aggregator_data

_CLIENTS = flags.DEFINE_integer('clients', 300, 'M', lower_bound=2)
_SAMPLES = flags.DEFINE_integer('samples', 197, 'samples of each random client', lower_bound=1)
_DEGREE = flags.DEFINE_integer('degree', 5, 'neighbours of a client', lower_bound=1)
_DATASET = flags.DEFINE_string('dataset', 'random', 'random, or a name that --data_dir holds')
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'folder of real data; implies fashion_mnist')
_PARTITION_FILE = flags.DEFINE_string('partition_file', None, 'JSON, for real data')
_EVOLUTION = flags.DEFINE_enum('evolution', 'rkc', [e for e in EVOLUTIONS if e != 'eigh'], 'Eq. 4')
_KERNEL = flags.DEFINE_enum('kernel', 'auto', KERNELS, 'backend')
_SELECTION = flags.DEFINE_enum('selection', 'network', SELECTIONS, 'how a timestep is chosen')
_CHUNK = flags.DEFINE_integer('chunk', None, 'aggregators at once, default as memory allows')
_REPEATS = flags.DEFINE_integer('repeats', 3, 'timed rounds', lower_bound=1)
_DENSE_CLIENTS = flags.DEFINE_integer('dense_clients', 2, 'textbook clients, 0 = none', 0)

HIDDEN = 100
LR = 0.01
HIGHEST = lax.Precision.HIGHEST


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    clients, model = load()
    aggregators, width = clients.mask.shape
    samples = width * (_DEGREE.value + 1)  # N~
    chunk = choose_chunk(aggregators, aggregator_bytes(samples, model), _CHUNK.value)
    print(
        f'{common.about()}\n{aggregators} clients, {samples} samples each, '
        f'{chunk} aggregator(s) at once'
    )

    schedule = topology.schedule('regular', aggregators, 2, seed=0, degree=_DEGREE.value)
    warm_up, graph = (Graph(*(jnp.asarray(a[r]) for a in schedule)) for r in range(2))
    algorithm = ntk_dfl(
        model,
        lr=LR,
        evolution=_EVOLUTION.value,
        selection=_SELECTION.value,
        kernel=_KERNEL.value,
        chunk=chunk,
    )
    key = jax.random.key(0)
    state = jax.jit(algorithm.init)(key, clients)
    step = common.compiled(algorithm.step, key, state, warm_up, clients, donate=1)
    state, _ = step.call(key, state, warm_up, clients)
    times = []
    for _ in range(_REPEATS.value):  # the second round, again and again
        donated = jax.block_until_ready(jax.tree.map(jnp.copy, state))
        seconds, (after, info) = common.seconds_of(step.call, key, donated, graph, clients)
        times.append(seconds)
    seconds = float(np.median(times))
    peak = common.peak_bytes()

    mixed = jax.jit(mix_all)(state, graph)
    rate = jnp.asarray(LR)

    def aggregator(h: int) -> Aggregator:
        x, labels, mask = data_of(clients, graph.members[h], graph.mask[h])
        return Aggregator(at(mixed, h), x, jax.nn.one_hot(labels, model.classes).T, mask, rate)

    some = np.linspace(0, aggregators - 1, min(8, aggregators)).astype(int)
    products = round(evolution_products(model, [aggregator(h) for h in some]))
    bare, flops = bare_products(model, samples, products)
    bare_seconds = sum(bare.values())

    print_lines(
        ('compile', step.seconds, 's'),
        (f'round (median of {len(times)})', seconds, 's'),
        ('aggregator', 1e3 * seconds / aggregators, 'ms'),
        ('useful operations', flops * aggregators / seconds / 1e9, 'GFLOP/s'),
        ('peak memory', peak / common.GIB, 'GiB'),
        ('bare products, aggregator', 1e3 * bare_seconds, 'ms'),
        ('bare products', flops / bare_seconds / 1e9, 'GFLOP/s'),
        ('round / bare products', seconds / aggregators / bare_seconds, ''),
    )

    phases = phase_seconds(model, state, graph, clients, aggregator(0))
    phases['rest'] = seconds / aggregators - sum(phases.values())
    print(f'\n{"phase of one aggregator":20}{"ms":>10}{"bare ms":>10}{"share":>8}')
    for name, value in phases.items():
        alone = f'{1e3 * bare[name]:10.2f}' if name in bare else ' ' * 10
        print(f'{name:20}{1e3 * value:10.2f}{alone}{value / (seconds / aggregators):8.0%}')
    print(
        f'products S H of one evolution: {products} (mean of {len(some)} aggregators)', flush=True
    )

    if _DENSE_CLIENTS.value:
        textbook = Textbook(model, aggregator(0), TIMESTEPS)
        numbers = range(min(_DENSE_CLIENTS.value, aggregators))
        runs = [textbook.client(aggregator(h)) for h in numbers]
        dense_seconds = aggregators * float(np.median([run.seconds for run in runs]))
        print_lines(
            ('textbook: compile', textbook.compile_seconds, 's'),
            ('textbook: client', dense_seconds / aggregators, 's'),
            ('textbook: round, scaled', dense_seconds, 's'),
            ('textbook / round', dense_seconds / seconds, ''),
            ('peak memory with the textbook', common.peak_bytes() / common.GIB, 'GiB'),
        )
        for h, run in zip(numbers, runs, strict=True):
            ours, theirs, start = (
                ravel_pytree(p)[0] for p in (at(after.params, h), run.params, at(mixed, h))
            )
            apart = jnp.linalg.norm(ours - theirs) / jnp.linalg.norm(theirs - start)
            print(
                f'client {h}: timestep {info["timestep"][h, 0]}, textbook {run.timestep}; '
                f'the updates differ by {apart:.1e} of their length'
            )


def load() -> tuple[Clients, Model]:
    """The network's data, and the MLP that fits it."""
    if _DATASET.value == 'random' and not _DATA_DIR.value:
        clients, classes = common.random_clients(_CLIENTS.value, _SAMPLES.value), common.CLASSES
    else:
        name = 'fashion_mnist' if _DATASET.value == 'random' else _DATASET.value
        dataset = data.load(name, _DATA_DIR.value)
        parts = data.partition(
            'dirichlet', dataset, _CLIENTS.value, seed=0, path=_PARTITION_FILE.value
        )
        clients = data.pack(dataset.train_x, dataset.train_y, parts)
        classes = int(dataset.train_y.max()) + 1
    return clients, bind(MLP(classes, (HIDDEN,)), clients.x.shape[2:])


def print_lines(*lines: tuple[str, float, str]) -> None:
    print()
    for name, value, unit in lines:
        print(f'{name:32}{value:10.2f} {unit}', flush=True)


def median_seconds(function: Callable[..., Any], *args: Any) -> float:
    return common.median_seconds(common.compiled(function, *args).call, *args, repeats=9)


def at(tree: PyTree, h: int | Array) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[h], tree)


# -------------------------------------------------------------------------- the pieces of a
# aggregator


def mix_all(state: Any, graph: Graph) -> PyTree:
    return mix(mixing_weights(graph, state.sizes), graph.members, state.params)  # Eq. (1)


def data_of(clients: Clients, members: Array, linked: Array) -> tuple[Array, Array, Array]:
    return aggregator_data(at(clients, members), linked)


def kernel_of(model: Model, aggregator: Aggregator) -> Array:
    h = kernel_fn(model, _KERNEL.value)(aggregator.params, aggregator.x)
    return jnp.where(aggregator.mask[:, None] & aggregator.mask[None, :], h, 0)  # Eq. (3)


def evolve(kernel: Array, f0: Array, aggregator: Aggregator) -> Array:
    return ntk_evolution.evolve(
        kernel,
        f0,
        aggregator.y,
        aggregator.mask,
        aggregator.rate,
        timesteps=TIMESTEPS,
        method=_EVOLUTION.value,
    )


def select(model: Model, kernel: Array, f0: Array, totals: Array, aggregator: Aggregator) -> PyTree:
    """The weights of Eq. (5a) at the best timestep, as `ntk_dfl` chooses it."""
    n = jnp.sum(aggregator.mask)
    pull = jax.vjp(lambda w: model.apply(w, aggregator.x).T, aggregator.params)[1]

    def weights_at(total):
        return jax.tree.map(
            lambda w, u: w - aggregator.rate / n * u, aggregator.params, pull(total)[0]
        )

    def loss(f):
        losses = ntk_evolution.sample_losses(f, aggregator.y, 'cross_entropy')
        return jnp.sum(jnp.where(aggregator.mask, losses, 0)) / n

    def loss_at(total):
        if _SELECTION.value == 'network':
            return loss(model.apply(weights_at(total), aggregator.x).T)
        return loss(f0 - aggregator.rate / n * ntk_evolution.apply(kernel, total))

    values = lax.map(loss_at, totals, batch_size=TRIED_AT_ONCE)
    return weights_at(totals[jnp.argmin(values)])


def phase_seconds(
    model: Model, state: Any, graph: Graph, clients: Clients, aggregator: Aggregator
) -> dict[str, float]:
    """Seconds of each phase for one aggregator, each a program of its own."""
    f0 = jax.jit(model.apply)(aggregator.params, aggregator.x).T
    kernel = jax.jit(lambda aggregator: kernel_of(model, aggregator))(aggregator)
    totals = jax.jit(evolve)(kernel, f0, aggregator)
    one = graph.members[0], graph.mask[0]

    return {
        'mixing': median_seconds(mix_all, state, graph) / len(graph.active),
        'data': median_seconds(data_of, clients, *one),
        'kernel': median_seconds(lambda aggregator: kernel_of(model, aggregator), aggregator),
        'evolution': median_seconds(evolve, kernel, f0, aggregator),
        'selection': median_seconds(lambda *a: select(model, *a), kernel, f0, totals, aggregator),
    }


def evolution_products(model: Model, aggregators: Sequence[Aggregator]) -> float:
    """Mean over the aggregators."""
    kernel, logits = jax.jit(lambda aggregator: kernel_of(model, aggregator)), jax.jit(model.apply)
    runs = [(kernel(h), logits(h.params, h.x).T, h.y, h.mask, h.rate) for h in aggregators]
    counts = common.count_products(runs, timesteps=TIMESTEPS, method=_EVOLUTION.value)
    return float(np.mean(counts))


# --------------------------------------------------------------------------- (a) bare products


def bare_products(model: Model, n: int, products: int) -> tuple[dict[str, float], float]:
    """Seconds of an aggregator's matrix products by phase, and its floating-point operations.

    n: N~; products: S H of one evolution. The matrices are random, scaled so that repeated products
    stay finite, and the products of a loop differ, so that the compiler leaves none out.
    """
    d, c, t = math.prod(model.input_shape), model.classes, len(TIMESTEPS)
    by_network = _SELECTION.value == 'network'
    pulls = t if by_network else 1
    rng = np.random.default_rng(0)

    def matrix(*shape):
        return jnp.asarray(rng.standard_normal(shape, np.float32) / shape[-1] ** 0.5)

    def grams(inputs, hidden, gate):
        return [jnp.matmul(m, m.T, precision=HIGHEST) for m in (inputs, hidden, gate)]

    def evolution(s, h):
        return lax.fori_loop(0, products, lambda _, s: jnp.matmul(s, h, precision=HIGHEST), s)

    def selection(inputs, hidden, h, w1, w2, totals):  # w1 [pulls + 1, d, hidden], totals [t, C, n]
        def one(_, candidate):
            s, w = candidate
            pulled = inputs.T @ (s.T @ w2.T), hidden.T @ s.T
            return None, (pulled, (inputs @ w) @ w2 if by_network else None)

        found = lax.scan(one, None, (totals[:pulls], w1[1:]))[1], (inputs @ w1[0]) @ w2
        return found if by_network else (found, jnp.matmul(totals, h, precision=HIGHEST))

    inputs, hidden, h = matrix(n, d), matrix(n, HIDDEN), matrix(n, n)
    w1, w2, totals = matrix(pulls + 1, d, HIDDEN), matrix(HIDDEN, c), matrix(t, c, n)
    seconds = {
        'kernel': median_seconds(grams, inputs, hidden, matrix(n, HIDDEN)),
        'evolution': median_seconds(evolution, totals[0], h),
        'selection': median_seconds(selection, inputs, hidden, h, w1, w2, totals),
    }
    forward = n * (d * HIDDEN + HIDDEN * c)
    operations = (
        n * n * (d + 2 * HIDDEN)
        + products * c * n * n
        + pulls * (forward + n * HIDDEN * c)  # inputs' and hidden layer's, and the signal
        + (1 + pulls if by_network else 1) * forward
        + (0 if by_network else t * c * n * n)
    )
    return seconds, 2.0 * operations


if __name__ == '__main__':
    app.run(main)
