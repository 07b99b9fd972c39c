"""What does each algorithm get out of this device?

    python -m benchmarks.throughput [--out=FILE]

Steady rounds of `simulate.run`, state donated, evaluation on a handful of samples and apart: MLP
784-100-10, dynamic 5-regular graph, published settings, random images. dfml takes the setting of
benchmarks/mutual.py, 50 clients of 64 samples and the five CNNs of mode H2 narrowed to 1/16. Every
algorithm runs in a process of its own, whose peak memory is therefore its own: of the device where
it says so, else of the whole process, with Python, JAX and the data. On a CPU its cores are the
devices but for dfml, as in experiments.run.

s/round     median of the rounds after the first; of as many as --budget seconds allow, and where
            the first alone takes longer, that one
steps/s     minibatch steps, or updates of aggregators, of all clients
GFLOP/s     operations of the round / s, beside a 2048^3 product in the same process right after,
            as what else runs on a machine changes both
touched     bytes that these operations read and write / s, in GB/s

Operations and bytes are XLA's (`cost_analysis`), of the pieces of a round without a loop, times how
often the round does them: it counts the body of a loop once, and every round here is loops, so that
its figure for a whole round would be wrong by orders of magnitude. The pieces are

gradients   loss, gradient and optimiser's step of one batch; for dfml also the logits of the other
            pass; and the averages, 2 M K P operations on M (K + 1) P numbers
ntk_dfl,    linearization and kernel, one product with the kernel, J^T S and the network at a
spark       timestep. How many products an evolution takes depends on the data: the mean over
            COUNTED aggregators of a network of that many clients, same samples and rounds

Left out: drawing (batches, projections), copies of the data, the evolution's work beside its
products, diagnostics. Operations are those of the program as written, before XLA fuses it; bytes
those of the compiled pieces, with each fusion's operands counted once, wherever they came from:
they say how much is touched, and what caches serve never reaches the memory. A rate above the copy
rate is therefore possible, and no bandwidth. A cell is empty where a piece has a loop.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags, logging
from jax.sharding import Mesh

from benchmarks import _common as common
from dfl_jax import simulate, topology
from dfl_jax.algorithms import ALGORITHMS, make, settings_of
from dfl_jax.base import Algorithm, Array, Clients, Graph, PyTree
from dfl_jax.execution.devices import client_mesh, cores_as_devices, mesh_of_cores
from dfl_jax.execution.memory import aggregator_bytes, choose_chunk, client_bytes, projected_bytes
from dfl_jax.heterogeneous.population import Population, assign_architectures, populate
from dfl_jax.models import MLP, MODES, Model, architecture, bind
from dfl_jax.ntk import evolution as ntk_evolution
from dfl_jax.ntk.linearized import linearization, projected
from dfl_jax.ntk.projection import projection
from dfl_jax.topology.aggregators import meetings
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
_OUT = flags.DEFINE_string('out', None, 'a file for the table')
_WORKER = flags.DEFINE_string('worker', None, 'measure this one algorithm and print it as JSON')

MACHINE = 'machine'  # the worker that measures the device itself
COUNTED = 8
MUTUAL_EPOCHS, MUTUAL_BATCH, MUTUAL_CLIENTS, MUTUAL_SAMPLES = 10, 64, 50, 64
SIDE, COPIED = 2048, 2**28  # of the matrix product; bytes of the copy
COLUMNS = (
    'algorithm',
    'devices',
    'compile s',
    's/round',
    'rounds',
    'steps/s',
    'GFLOP/s',
    'of the product rate',
    'touched GB/s',
    'peak GiB',
)
HEAD = f'| {" | ".join(COLUMNS)} |\n|:--{"|--:" * (len(COLUMNS) - 1)}|\n'


class Cost(NamedTuple):
    """Operations and bytes that a program reads and writes."""

    flops: float
    touched: float

    def __mul__(self, times) -> 'Cost':
        return Cost(self.flops * times, self.touched * times)

    def plus(self, other: 'Cost', times: float = 1.0) -> 'Cost':
        return Cost(self.flops + times * other.flops, self.touched + times * other.touched)


class Setting(NamedTuple):
    """An algorithm, and what it runs on."""

    algorithm: Algorithm
    network: Model | Population
    clients: Clients
    schedule: Graph


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    if _WORKER.value:
        cores_as_devices(_DEVICES.value)
        name = _WORKER.value
        print(json.dumps(measure_machine() if name == MACHINE else measure(name)))
        return
    for name in _ALGORITHMS.value:
        if name not in OFFERED:
            raise app.UsageError(f'--algorithms={name}: choose some of {", ".join(OFFERED)}')
    machine = in_process(MACHINE)
    product, copy = machine['product'], machine['copy']
    text = (
        f'{machine["about"]}\n'
        f'{_CLIENTS.value} clients x {_SAMPLES.value} samples, degree {_DEGREE.value}\n'
        f'{SIDE}^3 product at highest {product / 1e9:.0f} GFLOP/s, copy {copy / 1e9:.1f} GB/s\n\n'
        + HEAD
    )
    print(text, end='', flush=True)
    for name in _ALGORITHMS.value:
        line = line_of(name, in_process(name))
        print(line, end='', flush=True)
        text += line
    if _OUT.value:
        Path(_OUT.value).write_text(text)


def line_of(name: str, row: dict[str, Any]) -> str:
    """A line of the table."""
    seconds, timed = row['seconds'], row['timed'] or 'first'
    work = ['', '', '']
    if row['flops']:
        rate = row['flops'] / seconds
        work = [
            f'{rate / 1e9:.1f}',
            f'{rate / row["product"]:.0%}',
            f'{row["touched"] / seconds / 1e9:.1f}',
        ]
    cells = [
        name,
        f'{row["devices"]}',
        f'{row["compile"]:.1f}',
        f'{seconds:.3g}',
        f'{timed}',
        f'{row["steps"] / seconds:,.0f}',
        *work,
        f'{row["peak"] / common.GIB:.2f}',
    ]
    return f'| {" | ".join(cells)} |\n'


def in_process(name: str) -> dict[str, Any]:
    """What a fresh process measures; this one leaves the device alone."""
    command = [sys.executable, '-m', 'benchmarks.throughput', f'--worker={name}']
    passed = (_CLIENTS, _SAMPLES, _DEGREE, _ROUNDS, _BUDGET, _DEVICES, _WIDTH)
    command += [f'--{flag.name}={flag.value}' for flag in passed if flag.value is not None]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure_machine() -> dict[str, Any]:
    """What one device does at its best: operations and bytes a second."""
    copy = jax.jit(lambda x: x + 1, donate_argnums=0)  # else the system's new pages are timed
    x, passes = jnp.zeros(COPIED // 4, jnp.float32), []
    for _ in range(16):
        seconds, x = common.seconds_of(copy, x)
        passes.append(seconds)
    cores = f', {os.cpu_count()} cores' if jax.default_backend() == 'cpu' else ''
    return {
        'about': common.about() + cores,
        'product': product_rate(),
        'copy': 2 * COPIED / float(np.median(passes[1:])),
    }


def product_rate() -> float:
    """Operations a second of a large matrix product."""
    rng = np.random.default_rng(0)
    a, b = (jnp.asarray(rng.standard_normal((SIDE, SIDE)), jnp.float32) for _ in range(2))
    multiply = jax.jit(lambda a, b: jnp.matmul(a, b, precision='highest'))
    return 2 * SIDE**3 / common.median_seconds(multiply, a, b, repeats=7)


def measure(name: str) -> dict[str, Any]:
    """Seconds, bytes and work of one algorithm."""
    setting = setting_of(name, _CLIENTS.value, _ROUNDS.value + 1)
    mesh = mesh_for(name, len(setting.clients.y))
    devices = mesh.size if mesh else 1
    compiled: list[float] = []
    times = round_seconds(setting, _BUDGET.value, on_compile=compiled.append, mesh=mesh)
    peak, product = common.peak_bytes(), product_rate()
    timed = slice(1, None) if len(times) > 1 else slice(0, 1)
    rounds = range(len(times))[timed]
    steps, cost = work_of(name, setting, rounds)
    return {
        'compile': compiled[0],
        'seconds': float(np.median(times[timed])),
        'timed': len(times) - 1,
        'steps': steps,
        'flops': cost.flops if cost else None,
        'touched': cost.touched if cost else None,
        'peak': peak,
        'devices': devices,
        'product': product * (1 if jax.default_backend() == 'cpu' else devices),
    }


def mesh_for(name: str, clients: int) -> Mesh | None:
    if _DEVICES.value:
        return client_mesh(_DEVICES.value)
    return None if name == 'dfml' else mesh_of_cores(clients)


def round_seconds(setting: Setting, budget: float, **options: Any) -> list[float]:
    """The seconds of each round, as many as `budget` seconds allow and at least one."""
    test = simulate.Holdout(setting.clients.x[0, :8], setting.clients.y[0, :8])
    ends = [0.0]
    key = jax.random.key(0)
    run = simulate.run(setting.algorithm, setting.clients, setting.schedule, test, key, **options)
    for _, _, progress in run:
        ends.append(progress.seconds)
        if ends[-1] >= budget:
            break
    return np.diff(ends).tolist()


def setting_of(name: str, count: int, rounds: int) -> Setting:
    """The published settings of an algorithm at the standard size."""
    if name == 'dfml':
        return mutual_setting(rounds)
    clients = common.random_clients(count, _SAMPLES.value)
    model = bind(MLP(common.CLASSES), clients.x.shape[2:])
    samples = _SAMPLES.value * (_DEGREE.value + 1)
    if name == 'ntk_dfl':
        each = aggregator_bytes(samples, model)
    elif name == 'spark':
        random = projection_of(name, model)
        each = projected_bytes(samples, model, random.columns is not None, random.dimension)
    else:
        each = client_bytes(_SAMPLES.value, model)
    schedule = topology.schedule('regular', count, rounds, seed=0, degree=_DEGREE.value)
    algorithm = make(name, model, chunk=choose_chunk(count, each))
    return Setting(algorithm, model, clients, schedule)


def mutual_setting(rounds: int) -> Setting:
    """The setting of benchmarks/mutual.py."""
    clients = common.random_clients(MUTUAL_CLIENTS, MUTUAL_SAMPLES)
    names = MODES['h2_cnn']
    models = {
        name: bind(architecture(name, common.CLASSES, _WIDTH.value), clients.x.shape[2:])
        for name in names
    }
    population = populate(models, assign_architectures(names, MUTUAL_CLIENTS, [1] * len(names)))
    graphs = topology.schedule('complete', MUTUAL_CLIENTS, rounds, seed=0)
    algorithm = make(
        'dfml',
        population,
        rounds=10**3,
        schedule='fixed',
        alpha=0.5,
        mutual_epochs=MUTUAL_EPOCHS,
        batch_size=MUTUAL_BATCH,
        lr=0.01,
        chunk=1 if jax.default_backend() == 'cpu' else None,
    )
    return Setting(algorithm, population, clients, meetings(graphs, MUTUAL_CLIENTS // 2, seed=0))


# ------------------------------------------------------------------------------ the work of a round


def work_of(name: str, setting: Setting, rounds: range) -> tuple[float, Cost | None]:
    """(steps, cost) of a round, the mean of `rounds`; no cost where a piece has a loop."""
    if name == 'dfml':
        return mutual_work(setting, rounds)
    assert isinstance(setting.network, Model)
    if name in ('ntk_dfl', 'spark'):
        cost = aggregator_cost(name, setting.network, rounds)
        return _CLIENTS.value, cost and cost * _CLIENTS.value
    training = training_of(name)
    size = min(training.batch_size, _SAMPLES.value)
    steps = _CLIENTS.value * (training.local_epochs or 0) * -(-_SAMPLES.value // size)
    step = cost_of(step_of(setting.network, training), *of_step(setting.network, training, size))
    members, weights = _DEGREE.value + 1, _CLIENTS.value * setting.network.size
    averages = Cost(2 * members * weights, 4 * (members + 1) * weights)
    return steps, step and averages.plus(step, steps)


def cost_of(function, *args: Any) -> Cost | None:
    """XLA's count for arguments of these shapes, None for a program with a loop."""
    lowered = jax.jit(function).lower(*args)
    if 'stablehlo.while' in lowered.as_text():
        return None
    program, written = lowered.compile().cost_analysis(), lowered.cost_analysis()
    if not program or not written or 'flops' not in written:
        return None
    return Cost(written['flops'], program['bytes accessed'])


def training_of(name: str) -> LocalTraining:
    """The published local training of a gradient method."""
    settings = settings_of(ALGORITHMS[name])
    fields = LocalTraining.__dataclass_fields__
    return LocalTraining(**{field: settings[field] for field in fields})


def step_of(model: Model, training: LocalTraining):
    """One batch of local training: (params, moments, batch) -> (params, moments)."""
    optimiser = optimiser_of(training, jnp.zeros(()))

    def step(params: PyTree, moments: PyTree, batch: Batch):
        gradient = jax.grad(batch_loss, argnums=1)(model, params, batch)
        change, moments = optimiser.update(gradient, moments, params)
        return optax.apply_updates(params, change), moments

    return step


def of_step(model: Model, training: LocalTraining, size: int) -> tuple[PyTree, PyTree, Batch]:
    """Shapes of what `step_of` takes."""

    def inputs(key: Array):
        params = model.init(key)
        moments = optimiser_of(training, jnp.zeros(())).init(params)
        x, labels = jnp.zeros((size, *model.input_shape)), jnp.zeros(size, jnp.int32)
        return params, moments, Batch(x, labels, jnp.ones(size))

    return jax.eval_shape(inputs, jax.random.key(0))


def mutual_work(setting: Setting, rounds: range) -> tuple[float, Cost | None]:
    """Of DFML: every participant trains an epoch and learns from the others K epochs."""
    population = setting.network
    assert isinstance(population, Population)
    training = training_of('dfml')
    size = min(MUTUAL_BATCH, MUTUAL_SAMPLES)
    epoch = -(-MUTUAL_SAMPLES // size)
    local, mutual = epoch * (training.local_epochs or 0), epoch * MUTUAL_EPOCHS
    name_of = {int(c): name for name, group in population.clients.items() for c in group}
    members = np.asarray(setting.schedule.members)[list(rounds), 0]
    present = np.asarray(setting.schedule.mask)[list(rounds), 0]
    total = Cost(0.0, 0.0)
    for name, model in population.models.items():
        params, moments, batch = of_step(model, training, size)
        step = cost_of(step_of(model, training), params, moments, batch)
        logits = cost_of(model.apply, params, batch.x)
        if step is None or logits is None:
            return float(present.sum() / len(rounds) * (local + mutual)), None
        positions = sum(name_of[int(c)] == name for c in members[present]) / len(rounds)
        total = total.plus(step, positions * (local + mutual)).plus(logits, positions * mutual)
    return float(present.sum() / len(rounds) * (local + mutual)), total


def projection_of(name: str, model: Model):
    settings = settings_of(ALGORITHMS[name])
    return projection(settings['projection'], model.shapes, settings['projection_dim'])


def aggregator_cost(name: str, model: Model, rounds: range) -> Cost | None:
    """Of one aggregator's update; what differs by one product, or one timestep, is the cost of
    that."""
    trials = len(settings_of(ALGORITHMS[name])['timesteps'])
    samples = _SAMPLES.value * (_DEGREE.value + 1)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    x = jax.ShapeDtypeStruct((samples, *model.input_shape), jnp.float32)
    mask = jax.ShapeDtypeStruct((samples,), bool)
    table = None
    if name == 'spark':
        random = projection_of(name, model)
        table = jax.eval_shape(random.draw, jax.random.key(0))

    def aggregator(products: int, tried: int):
        def pieces(w: PyTree, table: PyTree, x: Array, mask: Array):
            if name == 'spark':
                linearized = projected(model, random)(jax.random.key(0), table, w, x, mask)
            else:
                linearized = linearization(model)(jax.random.key(0), w, x)
            total = linearized.outputs
            for _ in range(products):
                total = ntk_evolution.apply(linearized.kernel, total)
            found = []
            for number in range(tried):
                pulled = linearized.vjp(total + number)
                found.append(model.apply(jax.tree.map(jnp.subtract, w, pulled), x))
            return found, total

        return cost_of(pieces, shapes, table, x, mask)

    one, more, tried = aggregator(1, 1), aggregator(2, 1), aggregator(1, 2)
    if one is None or more is None or tried is None:
        return None
    product, trial = more.plus(one, -1), tried.plus(one, -1)
    return one.plus(product, products_of(name, rounds) - 1).plus(trial, trials - 1)


def products_of(name: str, rounds: range) -> float:
    """Products with the kernel of one evolution, the mean of these rounds of COUNTED
    aggregators."""
    count = 0

    def tick() -> None:
        nonlocal count
        count += 1

    def counted(kernel: ntk_evolution.Kernel, total: Array) -> Array:
        jax.debug.callback(tick)
        return plain(kernel, total)

    plain = ntk_evolution.apply
    aggregators = max(COUNTED, _DEGREE.value + 1)
    aggregators += aggregators * _DEGREE.value % 2
    setting = setting_of(name, aggregators, rounds.stop)
    before = 0
    with mock.patch.object(ntk_evolution, 'apply', counted):
        test = simulate.Holdout(setting.clients.x[0, :8], setting.clients.y[0, :8])
        key = jax.random.key(0)
        run = simulate.run(setting.algorithm, setting.clients, setting.schedule, test, key)
        for number, _ in enumerate(run):
            jax.effects_barrier()
            if number + 1 == rounds.start:
                before = count
    return (count - before) / len(rounds) / aggregators


if __name__ == '__main__':
    app.run(main)
