"""How fast is a gradient round, beside a loop over clients and beside a large matrix product?

    python -m benchmarks.local

One round of D-PSGD with the work of a small baseline: 300 clients of 200 random samples, one epoch
of 10 steps of batch 20, MLP 784-100-10, dynamic 5-regular graph. Two things are timed in one
process, in turns, so that a busy machine slows both:

round        a block of five rounds as `simulate.run` compiles it, local training and mixing,
             state donated; the time of one
client loop  what a per-client simulator does: a Python loop over clients and batches, one jitted,
             donated training step a call, then the same mixing

The rate of the matrix products that the round cannot avoid (per step and client X W1, A W2, D W2^T,
A^T D, X^T E) stands beside that of a 2048^3 product in the same process.

By --chunk, one run each on two cores of a shared AMD EPYC (2026-11-20): 1 client at once 267 ms,
2 237 ms, 10 221 ms, 300 297 ms.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax import lax

from benchmarks import _common as common
from dfl_jax import topology
from dfl_jax.algorithms import make
from dfl_jax.base import Algorithm, Clients, Graph
from dfl_jax.execution.memory import choose_chunk, client_bytes
from dfl_jax.gossip.mixing import mix, mixing_weights
from dfl_jax.models import Model
from dfl_jax.training.batches import Batch
from dfl_jax.training.local import batch_loss

_CLIENTS = flags.DEFINE_integer('clients', 300, 'M', lower_bound=2)
_SAMPLES = flags.DEFINE_integer('samples', 200, 'samples a client', lower_bound=1)
_BATCH = flags.DEFINE_integer('batch_size', 20, 'samples a step', lower_bound=1)
_DEGREE = flags.DEFINE_integer('degree', 5, 'neighbours of a client', lower_bound=1)
_CHUNK = flags.DEFINE_integer('chunk', None, 'clients at once (default: by the device)')
_REPEATS = flags.DEFINE_integer('repeats', 7, 'timed rounds of each kind', lower_bound=1)

LR = 0.01
HIDDEN = 100
ROUNDS = 5  # of one block


def main() -> None:
    clients, model = common.random_clients(_CLIENTS.value, _SAMPLES.value), common.mlp()
    schedule = topology.schedule('regular', _CLIENTS.value, ROUNDS, seed=0, degree=_DEGREE.value)
    chunk = choose_chunk(_CLIENTS.value, client_bytes(_SAMPLES.value, model), _CHUNK.value)
    algorithm = make('dpsgd', model, lr=LR, batch_size=_BATCH.value, chunk=chunk)
    steps = _CLIENTS.value * -(-_SAMPLES.value // _BATCH.value)
    print(f'{common.about()}\n{steps} client-steps a round, {chunk} client(s) at once\n')

    medians = common.in_turns(
        {
            'round': jitted_rounds(algorithm, schedule, clients),
            'client loop': client_loop(model, algorithm, schedule, clients),
        },
        _REPEATS.value,
    )
    medians['round'] /= ROUNDS
    table = common.Table('', 'ms', 'client-steps/s')
    for name, seconds in medians.items():
        table.row(name, (1e3 * seconds, '.1f'), (steps / seconds, ',.0f'))
    print(f'\nclient loop / round    {medians["client loop"] / medians["round"]:.2f}')
    rate, product = operations() / medians['round'], common.product_rate()
    print(f'useful operations      {rate / 1e9:.1f} GFLOP/s')
    print(f'large product          {product / 1e9:.1f} GFLOP/s, {product / rate:.1f} times as fast')


def operations() -> int:
    """Floating-point operations of a round's matrix products; the images have no gradient."""
    first, second = math.prod(common.IMAGE) * HIDDEN, HIDDEN * common.CLASSES
    return _CLIENTS.value * _SAMPLES.value * 2 * (2 * first + 3 * second)


def jitted_rounds(algorithm: Algorithm, schedule: Graph, clients: Clients) -> Callable[[], Any]:
    """A call that trains ROUNDS more rounds in one program, as `simulate.run` does."""
    graphs = jax.tree.map(jnp.asarray, schedule)
    state = jax.jit(algorithm.init)(jax.random.key(0), clients)

    def rounds(state, graphs, clients):
        def one(state, inputs):
            key, graph = inputs
            return algorithm.step(key, state, graph, clients)

        return lax.scan(one, state, (jax.random.split(jax.random.key(1), ROUNDS), graphs))

    program = common.compiled(rounds, state, graphs, clients, donate=0)
    print(f'compile {program.seconds:.2f} s\n')

    def call():
        nonlocal state
        state, info = program.call(state, graphs, clients)
        return info

    call()
    return call


def client_loop(
    model: Model, algorithm: Algorithm, schedule: Graph, clients: Clients
) -> Callable[[], Any]:
    """A call that trains one more round, client by client and batch by batch."""
    graph = common.graphs_of(schedule)[0]
    rows = mixing_weights(graph, clients.mask.sum(axis=1), 'uniform')
    params = jax.jit(algorithm.init)(jax.random.key(0), clients).params
    networks = [jax.tree.map(lambda w, i=i: w[i], params) for i in range(len(clients.x))]
    size, samples = _BATCH.value, clients.x.shape[1]
    rng = np.random.default_rng(0)

    @jax.jit(donate_argnums=0)
    def train(params, x, y):
        batch = Batch(x, y, jnp.ones(len(x)))
        gradient = jax.grad(batch_loss, argnums=1)(model, params, batch)
        return jax.tree.map(lambda w, g: w - LR * g, params, gradient)

    @jax.jit
    def gossip(networks):
        mixed = mix(rows, graph.members, jax.tree.map(lambda *w: jnp.stack(w), *networks))
        return [jax.tree.map(lambda w, i=i: w[i], mixed) for i in range(len(networks))]

    xs, ys = np.asarray(clients.x), np.asarray(clients.y)

    def call():
        nonlocal networks
        for i, x, y in zip(range(len(networks)), xs, ys, strict=True):
            order = rng.permutation(samples)
            for start in range(0, samples, size):
                at = order[start : start + size]
                networks[i] = train(networks[i], x[at], y[at])
        networks = gossip(networks)
        return networks

    call()
    return call


if __name__ == '__main__':
    common.start(main)
