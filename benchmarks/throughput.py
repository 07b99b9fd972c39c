"""What does each algorithm get out of this device?

    python -m benchmarks.throughput

Steady rounds of `simulate.run`, state donated, evaluation on a handful of samples and apart: MLP
784-100-10, dynamic 5-regular graph, published settings, random images. dfml takes the setting of
benchmarks/mutual.py, 50 clients of 64 samples and the five CNNs of mode H2 narrowed to 1/16. Every
algorithm runs in a process of its own, whose peak memory is therefore its own: of the device where
it says so, else of the whole process, with Python, JAX and the data. On a CPU its cores are the
devices but for dfml, as in experiments.run.

s/round     median of the rounds after the first, as many as --budget seconds allow, or the first
steps/s     minibatch steps, or updates of aggregators, of all clients
GFLOP/s     operations of the round / s, beside a 2048^3 product in the same process right after

Operations are XLA's (`cost_analysis`), before it fuses them, of the pieces of a round without a
loop, times how often the round does them: XLA counts the body of a loop once. The pieces are

gradients   loss, gradient and optimiser's step of one batch; for dfml also the logits of the other
            pass; and the averages, 2 M K P operations
ntk_dfl,    linearization and kernel, one product with the kernel, J^T S and the network at a
spark       timestep. How many products an evolution takes depends on the data: the mean over
            COUNTED aggregators of a network of that many clients, same samples and rounds

Left out: drawing (batches, projections), copies of the data, the evolution's work beside its
products, diagnostics. A cell is empty where a piece has a loop.
"""

import inspect
import json
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from jax.sharding import Mesh

from benchmarks import _common as common
from dfl_jax import simulate, topology
from dfl_jax.algorithms import METHODS, make, settings_of
from dfl_jax.algorithms.spark import Projection
from dfl_jax.base import Algorithm, Array, Clients, Graph, PyTree
from dfl_jax.execution.devices import client_mesh, cores_as_devices, mesh_of_cores
from dfl_jax.execution.memory import choose_chunk
from dfl_jax.heterogeneous.population import Population
from dfl_jax.models import Model
from dfl_jax.ntk import evolution, linearization
from dfl_jax.ntk.linearized import projected
from dfl_jax.ntk.projection import projection
from dfl_jax.training.batches import Batch
from dfl_jax.training.local import LocalTraining, batch_loss, optimiser_of

OFFERED = ('ntk_dfl', 'spark', 'dfedavg', 'dfedavgm', 'dpsgd', 'dfml')
_ALGORITHMS = flags.DEFINE_list(
    'algorithms', ['ntk_dfl', 'spark', 'dfedavg', 'dpsgd', 'dfml'], f'some of {", ".join(OFFERED)}'
)
_CLIENTS = flags.DEFINE_integer('clients', 300, 'M; dfml has 50', lower_bound=6)
_SAMPLES = flags.DEFINE_integer('samples', 200, 'samples a client; dfml has 64', lower_bound=1)
_DEGREE = flags.DEFINE_integer('degree', 5, 'neighbours of a client', lower_bound=1)
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'timed rounds', lower_bound=1)
_BUDGET = flags.DEFINE_float('budget', 45.0, 'seconds, beyond which no further round is timed')
_DEVICES = flags.DEFINE_integer(
    'devices', None, 'of the mesh (default: cores of a CPU, one accelerator)', lower_bound=1
)
_WIDTH = flags.DEFINE_float('width', 0.0625, 'factor on all channels of the CNNs of dfml')
_WORKER = flags.DEFINE_string('worker', None, 'measure this one algorithm and print it as JSON')

COUNTED = 8
MUTUAL_EPOCHS, MUTUAL_BATCH, MUTUAL_CLIENTS, MUTUAL_SAMPLES = 10, 64, 50, 64
SIDE = 2048  # of the matrix product


class Setting(NamedTuple):
    """An algorithm, and what it runs on."""

    algorithm: Algorithm
    network: Model | Population
    clients: Clients
    schedule: Graph


def main() -> None:
    if _WORKER.value:
        cores_as_devices(_DEVICES.value)
        print(json.dumps(measure(_WORKER.value)))
        return
    for name in _ALGORITHMS.value:
        if name not in OFFERED:
            raise app.UsageError(f'--algorithms={name}: choose some of {", ".join(OFFERED)}')
    print(f'{_CLIENTS.value} clients x {_SAMPLES.value} samples, degree {_DEGREE.value}')
    columns = 'algorithm,devices,compile s,s/round,rounds,steps/s,GFLOP/s,of the product rate'
    table = None
    passed = (_CLIENTS, _SAMPLES, _DEGREE, _ROUNDS, _BUDGET, _DEVICES, _WIDTH)
    for name in _ALGORITHMS.value:
        row = common.in_process('throughput', name, *passed)
        if table is None:  # this process leaves the device to the others
            print(f'{row["about"]}\n')
            table = common.Table(*columns.split(','), 'peak GiB')
        seconds, known = row['seconds'], np.isfinite(row['flops'])
        rate = row['flops'] / seconds
        table.row(
            name,
            row['devices'],
            (row['compile'], '.1f'),
            (seconds, '.3g'),
            row['timed'] or 'first',
            (row['steps'] / seconds, ',.0f'),
            (rate / 1e9, '.1f') if known else '',
            (rate / row['product'], '.0%') if known else '',
            (row['peak'] / common.GIB, '.2f'),
        )


def product_rate() -> float:
    """Operations a second of a large matrix product."""
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.standard_normal((SIDE, SIDE)), jnp.float32) for _ in range(2))
    multiply = jax.jit(lambda a, b: jnp.matmul(a, b, precision='highest'))
    return 2 * SIDE**3 / common.median_seconds(multiply, a, b, repeats=7)


def measure(name: str) -> dict[str, Any]:
    """Seconds, memory and work of one algorithm."""
    setting = setting_of(name, _CLIENTS.value, _ROUNDS.value + 1)
    cores = None if name == 'dfml' else mesh_of_cores(len(setting.clients.y))
    mesh = client_mesh(_DEVICES.value) if _DEVICES.value else cores
    devices = mesh.size if mesh else 1
    compiled, times = round_seconds(setting, mesh)
    peak, product = common.peak_bytes(), product_rate()
    rounds = range(1, len(times)) if len(times) > 1 else range(1)
    steps, operations = work_of(name, setting, rounds)
    count = f', {os.cpu_count()} cores' if jax.default_backend() == 'cpu' else ''
    return {
        'about': common.about() + count,
        'compile': compiled,
        'seconds': float(np.median([times[r] for r in rounds])),
        'timed': len(times) - 1,
        'steps': steps,
        'flops': operations,
        'peak': peak,
        'devices': devices,
        'product': product * (1 if jax.default_backend() == 'cpu' else devices),
    }


def round_seconds(setting: Setting, mesh: Mesh | None) -> tuple[float, list[float]]:
    """Seconds to compile, and of each round, as many as --budget allows and at least one."""
    algorithm, _, clients, schedule = setting
    test = simulate.Holdout(clients.x[0, :8], clients.y[0, :8])
    compiled, ends = [0.0], [0.0]
    key, noted = jax.random.key(0), compiled.append
    run = simulate.run(algorithm, clients, schedule, test, key, on_compile=noted, mesh=mesh)
    for _, _, progress in run:
        ends.append(progress.seconds)
        if ends[-1] >= _BUDGET.value:
            break
    return compiled[1], np.diff(ends).tolist()


def setting_of(name: str, count: int, rounds: int) -> Setting:
    """The published settings of an algorithm at the standard size."""
    if name == 'dfml':
        algorithm, population, schedule = common.mutual_network(
            MUTUAL_CLIENTS,
            rounds,
            width=_WIDTH.value,
            chunk=None,
            mutual_epochs=MUTUAL_EPOCHS,
            batch_size=MUTUAL_BATCH,
        )
        clients = common.random_clients(MUTUAL_CLIENTS, MUTUAL_SAMPLES)
        return Setting(algorithm, population, clients, schedule)
    model, method = common.mlp(), METHODS[name]
    each = method.memory(model, _SAMPLES.value, _DEGREE.value + 1, settings_of(method.factory))
    schedule = topology.schedule('regular', count, rounds, seed=0, degree=_DEGREE.value)
    algorithm = make(name, model, chunk=choose_chunk(count, each))
    return Setting(algorithm, model, common.random_clients(count, _SAMPLES.value), schedule)


# ------------------------------------------------------------------------------ the work of a round


def work_of(name: str, setting: Setting, rounds: range) -> tuple[float, float]:
    """(steps, operations) of a round, the mean of `rounds`."""
    if isinstance(setting.network, Population):
        return mutual_work(setting.network, setting.schedule, rounds)
    if name in ('ntk_dfl', 'spark'):
        return _CLIENTS.value, _CLIENTS.value * aggregator_cost(name, setting.network, rounds)
    training = training_of(name)
    size = min(training.batch_size, _SAMPLES.value)
    steps = _CLIENTS.value * (training.local_epochs or 0) * -(-_SAMPLES.value // size)
    averages = 2 * (_DEGREE.value + 1) * _CLIENTS.value * setting.network.size
    return steps, averages + steps * step_costs(setting.network, training, size)[0]


def cost_of(function: Callable[..., Any], *args: Any) -> float:
    """XLA's count of operations for arguments of these shapes, NaN for a program with a loop."""
    lowered = jax.jit(function).lower(*args)
    if 'stablehlo.while' in lowered.as_text():
        return math.nan
    return (lowered.cost_analysis() or {}).get('flops', math.nan)


def training_of(name: str) -> LocalTraining:
    """The published local training of a gradient method."""
    return inspect.signature(METHODS[name].factory).parameters['training'].default


def step_costs(model: Model, training: LocalTraining, size: int) -> tuple[float, float]:
    """Operations of local training on one batch, and of the batch's logits."""
    optimiser = optimiser_of(training, jnp.zeros(()))

    def step(params: PyTree, moments: PyTree, batch: Batch) -> tuple[PyTree, PyTree]:
        gradient = jax.grad(batch_loss, argnums=1)(model, params, batch)
        change, moments = optimiser.update(gradient, moments, params)
        return optax.apply_updates(params, change), moments

    def inputs(key: Array) -> tuple[PyTree, PyTree, Batch]:
        params = model.init(key)
        x, labels = jnp.zeros((size, *model.input_shape)), jnp.zeros(size, jnp.int32)
        return params, optimiser.init(params), Batch(x, labels, jnp.ones(size))

    params, moments, batch = jax.eval_shape(inputs, jax.random.key(0))
    return cost_of(step, params, moments, batch), cost_of(model.apply, params, batch.x)


def mutual_work(population: Population, schedule: Graph, rounds: range) -> tuple[float, float]:
    """Steps and operations of DFML, whose participants train an epoch and learn together for K."""
    training = training_of('dfml')
    size = min(MUTUAL_BATCH, MUTUAL_SAMPLES)
    epoch = -(-MUTUAL_SAMPLES // size)
    local, mutual = epoch * (training.local_epochs or 0), epoch * MUTUAL_EPOCHS
    members, mask = (np.asarray(a)[list(rounds), 0] for a in (schedule.members, schedule.mask))
    name_of = common.architectures_of(population)
    present = [name_of[int(client)] for client in members[mask]]
    total = 0.0
    for name, model in population.models.items():
        step, logits = step_costs(model, training, size)
        total += present.count(name) / len(rounds) * ((local + mutual) * step + mutual * logits)
    return len(present) / len(rounds) * (local + mutual), total


def aggregator_cost(name: str, model: Model, rounds: range) -> float:
    """Operations of one aggregator's update; those of one product, or one timestep, are the
    difference which another makes."""
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    samples = _SAMPLES.value * (_DEGREE.value + 1)
    x = jax.ShapeDtypeStruct((samples, *model.input_shape), jnp.float32)
    mask = jax.ShapeDtypeStruct((samples,), bool)
    kind, k = Projection().projection, Projection().projection_dim
    random = projection(kind, model.shapes, k) if name == 'spark' else None
    table = jax.eval_shape(random.draw, jax.random.key(0)) if random else None

    def cost(products: int, tried: int) -> float:
        def pieces(w: PyTree, table: PyTree, x: Array, mask: Array):
            key = jax.random.key(0)
            if random:
                linearized = projected(model, random)(key, table, w, x, mask)
            else:
                linearized = linearization(model)(key, w, x)
            total = linearized.outputs
            for _ in range(products):
                total = evolution.apply(linearized.kernel, total)
            steps = [linearized.vjp(total + number) for number in range(tried)]
            return [model.apply(jax.tree.map(jnp.subtract, w, s), x) for s in steps], total

        return cost_of(pieces, shapes, table, x, mask)

    one = cost(1, 1)
    trials = len(settings_of(METHODS[name].factory)['timesteps'])
    products = products_of(name, rounds)
    return one + (products - 1) * (cost(2, 1) - one) + (trials - 1) * (cost(1, 2) - one)


def products_of(name: str, rounds: range) -> float:
    """Products with the kernel of one evolution, the mean of these rounds of COUNTED
    aggregators."""
    aggregators = max(COUNTED, _DEGREE.value + 1)
    aggregators += aggregators * _DEGREE.value % 2
    setting = setting_of(name, aggregators, rounds.stop)
    state = jax.jit(setting.algorithm.init)(jax.random.key(0), setting.clients)
    step = common.counted(setting.algorithm.step)
    counts = []
    for number, graph in enumerate(common.graphs_of(setting.schedule)):
        key = jax.random.fold_in(jax.random.key(0), number)
        (state, _), count = step(key, state, graph, setting.clients)
        counts.append(count)
    return float(np.mean([counts[r] for r in rounds])) / aggregators


if __name__ == '__main__':
    common.start(main)
