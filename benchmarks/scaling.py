"""Do time and memory grow in proportion to the number of clients?

    python -m benchmarks.scaling

One steady NTK-DFL round (MLP 784-100-10, dynamic 5-regular graph, random data) at a fixed number of
samples a client. Every M runs in a process of its own, whose peak memory is therefore its own; the
base taken off it is the peak of the same process after the same round of a network as small as the
graph allows.
"""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
from absl import flags

from benchmarks import _common as common
from dfl_jax.algorithms import make
from dfl_jax.execution.memory import aggregator_bytes, choose_chunk

_CLIENTS = flags.DEFINE_list('clients', ['30', '100', '300', '1000'], 'numbers of clients M')
_SAMPLES = flags.DEFINE_integer('samples', 60, 'samples a client', lower_bound=1)
_DEGREE = flags.DEFINE_integer('degree', 5, 'neighbours of a client', lower_bound=1)
_REPEATS = flags.DEFINE_integer('repeats', 3, 'timed rounds', lower_bound=1)
_PLOT = flags.DEFINE_string('plot', 'docs/results/scaling.png', 'the figure, empty for none')
_WORKER = flags.DEFINE_integer('worker', None, 'measure this one M and print it as JSON')

MIB = 2**20


def main() -> None:
    if _WORKER.value:
        print(json.dumps(measure(_WORKER.value)))
        return
    print(f'{_SAMPLES.value} samples a client, degree {_DEGREE.value}')
    columns = 'M', 'compile s', 's/round', 'ms/client', 'peak GiB', 'MiB/client above the base'
    table, rows = None, []
    for clients in map(int, _CLIENTS.value):
        row = common.in_process('scaling', clients, _SAMPLES, _DEGREE, _REPEATS)
        rows.append(row)
        if table is None:  # this process leaves the device to the others
            print(f'{row["about"]}\n')
            table = common.Table(*columns)
        table.row(
            clients,
            (row['compile'], '.1f'),
            (row['seconds'], '.3g'),
            (1e3 * row['seconds'] / clients, '.1f'),
            (row['peak'] / common.GIB, '.2f'),
            ((row['peak'] - row['base']) / MIB / clients, '.2f'),
        )
    if len(rows) > 1:
        m, s = np.log([[row['clients'], row['seconds']] for row in rows]).T
        print(f'\ntime grows as M^{np.polyfit(m, s, 1)[0]:.2f}')
    if _PLOT.value:
        plot(rows, Path(_PLOT.value))


def measure(clients: int) -> dict[str, Any]:
    """Seconds and bytes of one M; compilation apart."""
    smallest = _DEGREE.value + 1
    rounds(smallest + smallest * _DEGREE.value % 2, 1)
    base = common.peak_bytes()
    compilation, seconds = rounds(clients, _REPEATS.value)
    return {
        'about': common.about(),
        'clients': clients,
        'compile': compilation,
        'seconds': seconds,
        'base': base,
        'peak': common.peak_bytes(),
    }


def rounds(clients: int, repeats: int) -> tuple[float, float]:
    """Seconds to compile, and of a round, the median of `repeats` after one to warm up."""
    model = common.mlp()
    chunk = choose_chunk(clients, aggregator_bytes(_SAMPLES.value * (_DEGREE.value + 1), model))
    graphs = common.regular_graphs(clients, repeats + 1, _DEGREE.value)
    data = common.random_clients(clients, _SAMPLES.value)
    algorithm, key = make('ntk_dfl', model, chunk=chunk), jax.random.key(0)
    state = jax.jit(algorithm.init)(key, data)
    step, compilation = common.compiled(algorithm.step, key, state, graphs[0], data, donate=1)
    times = []
    for graph in graphs:
        seconds, (state, _) = common.seconds_of(step, key, state, graph, data)
        times.append(seconds)
    return compilation, float(np.median(times[1:]))


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws time and memory against M on logarithmic axes, with lines of slope one."""
    from dfl_jax.cli.run.plots import plt

    clients = np.array([row['clients'] for row in rows])
    seconds = np.array([row['seconds'] for row in rows])
    above = np.array([max(row['peak'] - row['base'], 0) for row in rows]) / common.GIB
    figure, panels = plt.subplots(1, 2, figsize=(8, 3.4), layout='constrained')
    for panel, values, label in (
        (panels[0], seconds, 'seconds a round'),
        (panels[1], above, 'peak memory above the base, GiB'),
    ):
        panel.loglog(clients, values, 'o-', label='measured')
        panel.loglog(clients, values[-1] * clients / clients[-1], 'k:', label='slope one')
        panel.set(xlabel='clients M', ylabel=label)
        panel.set_xticks(clients, map(str, clients))
        panel.minorticks_off()
        panel.grid(alpha=0.3)
        panel.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    print(f'figure: {path}')


if __name__ == '__main__':
    common.start(main)
