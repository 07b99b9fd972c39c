"""What does each algorithm get out of this device?

    python -m benchmarks.throughput
    python -m benchmarks.throughput --algorithms=ntk_dfl --clients=30,100,300,1000 --samples=60

Steady rounds of `simulate.run`, state donated, evaluation on a handful of samples and apart: MLP
784-100-10, dynamic 5-regular graph, published settings, random images. dfml has 50 clients of 64
samples, the five CNNs of mode H2 narrowed to 1/16 and 25 senders a round. Every algorithm runs in a
process of its own, whose peak memory is therefore its own: of the device where it says so, else of
the whole process, with Python, JAX and the data. On a CPU its cores are the devices, as in
experiments.run.

s/round     median of the rounds after the first, as many as --budget seconds allow, or the first
steps/s     minibatch steps, or updates of aggregators, of all clients
product     rate of a 2048^3 product in the same process right after: the machine's speed then

With several numbers of clients M it says how time grows with them, and --plot draws it.
"""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from absl import app, flags
from jax.sharding import Mesh

from benchmarks import _common as common
from dfl_jax import simulate, topology
from dfl_jax.base import Algorithm, Clients, Graph
from dfl_jax.execution.devices import client_mesh, cores_as_devices, mesh_of_cores
from dfl_jax.execution.memory import choose_chunk
from dfl_jax.heterogeneous.population import populate
from dfl_jax.method_settings import settings_of
from dfl_jax.methods import IN_ROUNDS, make
from dfl_jax.models import MODES, architecture, bind

OFFERED = ('ntk_dfl', 'spark', 'dfedavg', 'dfedavgm', 'dpsgd', 'dfml')
_ALGORITHMS = flags.DEFINE_list(
    'algorithms', ['ntk_dfl', 'spark', 'dfedavg', 'dpsgd', 'dfml'], f'some of {", ".join(OFFERED)}'
)
_CLIENTS = flags.DEFINE_list('clients', ['300'], 'numbers of clients M; dfml has 50')
_SAMPLES = flags.DEFINE_integer('samples', 200, 'samples a client; dfml has 64', lower_bound=1)
_DEGREE = flags.DEFINE_integer('degree', 5, 'neighbours of a client', lower_bound=1)
_ROUNDS = flags.DEFINE_integer('rounds', 3, 'timed rounds', lower_bound=1)
_BUDGET = flags.DEFINE_float('budget', 45.0, 'seconds, beyond which no further round is timed')
_DEVICES = flags.DEFINE_integer(
    'devices', None, 'of the mesh (default: cores of a CPU, one accelerator)', lower_bound=1
)
_WIDTH = flags.DEFINE_float('width', 0.0625, 'factor on all channels of the CNNs of dfml')
_PLOT = flags.DEFINE_string('plot', None, 'draw time and memory against M into this file')
_WORKER = flags.DEFINE_string('worker', None, 'measure this one algorithm and print it as JSON')

MUTUAL_EPOCHS, MUTUAL_BATCH, MUTUAL_CLIENTS, MUTUAL_SAMPLES = 10, 64, 50, 64


class Setting(NamedTuple):
    """An algorithm, and what it runs on."""

    algorithm: Algorithm
    clients: Clients
    schedule: Graph


def main() -> None:
    if _WORKER.value:
        cores_as_devices(_DEVICES.value)
        print(json.dumps(measure(_WORKER.value, int(_CLIENTS.value[0]))))
        return
    for name in _ALGORITHMS.value:
        if name not in OFFERED:
            raise app.UsageError(f'--algorithms={name}: choose some of {", ".join(OFFERED)}')
    print(f'{_SAMPLES.value} samples a client, degree {_DEGREE.value}')
    columns = 'algorithm,clients,devices,compile s,s/round,rounds,steps/s,product GFLOP/s,peak GiB'
    table, rows = None, []
    for name, clients in itertools.product(_ALGORITHMS.value, _CLIENTS.value):
        row = in_process(name, clients)
        rows.append(row)
        if table is None:  # this process leaves the device to the others
            print(f'{row["about"]}\n')
            table = common.Table(*columns.split(','))
        table.row(
            name,
            row['clients'],
            row['devices'],
            (row['compile'], '.1f'),
            (row['seconds'], '.3g'),
            row['timed'] or 'first',
            (row['steps'] / row['seconds'], ',.0f'),
            (row['product'] / 1e9, '.0f'),
            (row['peak'] / common.GIB, '.2f'),
        )
    for name in _ALGORITHMS.value:
        m, s = np.log([[r['clients'], r['seconds']] for r in rows if r['name'] == name]).T
        if len({*m}) > 1:
            print(f'\n{name}: time grows as M^{np.polyfit(m, s, 1)[0]:.2f}')
    if _PLOT.value:
        plot(rows, Path(_PLOT.value))


def in_process(name: str, clients: str) -> dict[str, Any]:
    """What `measure` finds in a fresh process, with the same flags."""
    command = [sys.executable, '-m', 'benchmarks.throughput', f'--worker={name}']
    for flag in (_SAMPLES, _DEGREE, _ROUNDS, _BUDGET, _DEVICES, _WIDTH):
        command += [f'--{flag.name}={flag.value}'] if flag.value is not None else []
    command.append(f'--clients={clients}')
    done = subprocess.run(command, stdout=subprocess.PIPE, encoding='utf-8', check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(name: str, clients: int) -> dict[str, Any]:
    """Seconds, memory and work of one algorithm."""
    setting = setting_of(name, clients)
    cores = mesh_of_cores(len(setting.clients.y))
    mesh = client_mesh(_DEVICES.value) if _DEVICES.value else cores
    devices = mesh.size if mesh else 1
    compiled, times = round_seconds(setting, mesh)
    peak, product = common.peak_bytes(), common.product_rate()
    rounds = range(1, len(times)) if len(times) > 1 else range(1)
    count = f', {os.cpu_count()} cores' if jax.default_backend() == 'cpu' else ''
    return {
        'about': common.about() + count,
        'name': name,
        'clients': len(setting.clients.y),
        'compile': compiled,
        'seconds': float(np.median([times[r] for r in rounds])),
        'timed': len(times) - 1,
        'steps': steps_of(name, setting, rounds),
        'peak': peak,
        'devices': devices,
        'product': product * (1 if jax.default_backend() == 'cpu' else devices),
    }


def round_seconds(setting: Setting, mesh: Mesh | None) -> tuple[float, list[float]]:
    """Seconds to compile, and of each round, as many as --budget allows and at least one."""
    algorithm, clients, schedule = setting
    test = simulate.Holdout(clients.x[0, :8], clients.y[0, :8])
    compiled, ends = [0.0], [0.0]
    key, noted = jax.random.key(0), compiled.append
    run = simulate.run(algorithm, clients, schedule, test, key, on_compile=noted, mesh=mesh)
    for _, _, progress in run:
        ends.append(progress.seconds)
        if ends[-1] >= _BUDGET.value:
            break
    return compiled[1], np.diff(ends).tolist()


def setting_of(name: str, clients: int) -> Setting:
    """The published settings of an algorithm at the standard size."""
    if name == 'dfml':
        return mutual_setting()
    model, method, rounds = common.mlp(), IN_ROUNDS[name], _ROUNDS.value + 1
    each = method.memory(model, _SAMPLES.value, _DEGREE.value + 1, settings_of(method.factory))
    schedule = topology.schedule('regular', clients, rounds, seed=0, degree=_DEGREE.value)
    algorithm = make(name, model, chunk=choose_chunk(clients, each))
    return Setting(algorithm, common.random_clients(clients, _SAMPLES.value), schedule)


def mutual_setting() -> Setting:
    """DFML among the five CNNs of mode H2; half of the clients send to one aggregator."""
    names = MODES['h2_cnn']
    models = {
        name: bind(architecture(name, common.CLASSES, _WIDTH.value), common.IMAGE) for name in names
    }
    algorithm = make(
        'dfml',
        populate(models, (names * MUTUAL_CLIENTS)[:MUTUAL_CLIENTS]),
        rounds=10**3,
        schedule='fixed',
        alpha=0.5,
        lr=0.01,
        mutual_epochs=MUTUAL_EPOCHS,
        batch_size=MUTUAL_BATCH,
        chunk=1 if jax.default_backend() == 'cpu' else None,  # empty places cost time on a CPU
    )
    complete = topology.schedule('complete', MUTUAL_CLIENTS, _ROUNDS.value + 1, seed=0)
    schedule = topology.meetings(complete, MUTUAL_CLIENTS // 2, seed=0)
    return Setting(algorithm, common.random_clients(MUTUAL_CLIENTS, MUTUAL_SAMPLES), schedule)


def steps_of(name: str, setting: Setting, rounds: range) -> float:
    """Steps of a round, the mean of `rounds`."""
    clients = len(setting.clients.y)
    if name in ('ntk_dfl', 'spark'):
        return clients
    settings = settings_of(IN_ROUNDS[name].factory)
    epochs = settings['local_epochs'] or 0
    if name == 'dfml':
        participants = float(setting.schedule.mask[list(rounds), 0].sum(axis=1).mean())
        return participants * (epochs + MUTUAL_EPOCHS) * -(-MUTUAL_SAMPLES // MUTUAL_BATCH)
    size = min(settings['batch_size'], _SAMPLES.value)
    return clients * epochs * -(-_SAMPLES.value // size)


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws seconds a round and peak memory of each algorithm against M, on logarithmic axes."""
    from dfl_jax.plots import plt

    figure, panels = plt.subplots(1, 2, figsize=(8, 3.4), layout='constrained')
    for panel, key, unit, label in (
        (panels[0], 'seconds', 1, 'seconds a round'),
        (panels[1], 'peak', common.GIB, 'peak memory, GiB'),
    ):
        for name in _ALGORITHMS.value:
            points = [(row['clients'], row[key] / unit) for row in rows if row['name'] == name]
            panel.loglog(*zip(*points, strict=True), 'o-', label=name)
        panel.set(xlabel='clients M', ylabel=label)
        panel.grid(alpha=0.3)
        panel.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f'figure: {path}')


if __name__ == '__main__':
    common.start(main)
