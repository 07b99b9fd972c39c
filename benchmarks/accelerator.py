"""What does an accelerator make of this program? One command for whoever gets one.

    python -m benchmarks.accelerator --data_dir=DIR --minutes=12 --out=runs/accelerator
    python -m benchmarks.accelerator --small

A queue of measurements in the order of their worth. Each is saved into accelerator.json and .md of
--out as it ends; what no longer fits into --minutes is listed as not run, and the same command goes
on with it. What fails or runs out of memory is recorded with its error, and tried again last.

rounds   NTK-DFL and SPARK in each precision, 300 clients on the authors' partition: 8 rounds, the
         median of those after the first, accuracy after the last
methods  a round of every method on random images, as `benchmarks.aot --platform=here` has it
trace    which kernels a round of NTK-DFL spends its time in, by JAX's profiler
clients  rounds of 3,000 and 10,000 clients, as `benchmarks.throughput` has them
table8   DFML and decentralized FedAvg of DFML's Table 8, from checkpoints, for what time is left

DIR holds fashion_mnist/ and cifar10/, in their official files, and partitions/ with the authors'
fashion_mnist_300_alpha0.1_0.json. Without it 30 clients learn the handwritten digits. Every process
shares one compilation cache in --out. --small is the same queue for a CPU, in minutes.
"""

import json
import sys
import time
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path

from absl import app, flags

from benchmarks import _accelerator_tables as tables
from benchmarks._queue import Part, Queue, Row, processes
from dfl_jax.files import write_atomically
from dfl_jax.methods import IN_ROUNDS

_DATA_DIR = flags.DEFINE_string('data_dir', None, 'folder of the data (default: digits)')
_OUT = flags.DEFINE_string('out', 'runs/accelerator', 'folder of the results')
_MINUTES = flags.DEFINE_float('minutes', 12.0, 'after which nothing goes on', lower_bound=0)
_PARTS = flags.DEFINE_list('parts', ['*'], 'patterns of what is measured, e.g. rounds/*,trace/*')
_SMALL = flags.DEFINE_bool('small', False, 'sizes for a CPU')
_MEASURE = flags.DEFINE_list('measure', None, 'measure these in this process, print JSON')

PRECISIONS = {
    'ntk_dfl': ('highest', 'default', 'bfloat16', 'float16_kernel', 'high'),
    'spark': ('highest', 'default', 'bfloat16', 'high'),
}
FLAGFILES = {
    'ntk_dfl': 'ntk_dfl/figure2/ntk_dfl-alpha0.1.flags',
    'spark': 'spark/flags/spark-alpha0.1.flags',
}
PARTITION = 'partitions/fashion_mnist_300_alpha0.1_0.json'


def main(_: list[str]) -> None:
    if _MEASURE.value:
        for name in _MEASURE.value:
            print(json.dumps({'part': name, 'begun': True}), flush=True)
            try:
                found = measure(name)
            except Exception as error:  # out of memory, whatever a compiler says
                found = {'error': f'{type(error).__name__}: {error}'.splitlines()[0][:300]}
            print(json.dumps({'part': name} | found), flush=True)
        return
    out = Path(_OUT.value)
    out.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, '-m', 'benchmarks.accelerator', *['--small'] * _SMALL.value]
    of = Queue(
        out, time.monotonic() + 60 * _MINUTES.value, [*command, '--measure'], not _SMALL.value
    )
    results = Results(out / 'accelerator.json')
    wanted = [p for p in parts(out) if any(fnmatch(p.name, each) for each in _PARTS.value)]
    if not wanted:
        raise app.UsageError(f'--parts={",".join(_PARTS.value)}: no measurement has such a name')
    results.begin(wanted, next(processes([Part('device', 0)], of))[1])
    for name, row in processes(results.left(wanted), of):
        results.add(name, row)
        print(f'{name}: {tables.line(row)}', flush=True)
    print(f'{results.path.with_suffix(".md")}')


class Results:
    """The measurements of one device, on disk after each of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.content: Row = (
            json.loads(path.read_text(encoding='utf-8')) if path.exists() else {'parts': {}}
        )

    def begin(self, wanted: list[Part], device: Row) -> None:
        """Notes what is to be measured, and where. Ends where others were measured elsewhere."""
        if 'error' in device:
            sys.exit(f'error: no device: {device["error"]}')
        if 'not_run' in device:
            sys.exit('error: no time is left to look at the device; raise --minutes')
        about = device | {'small': _SMALL.value, 'data': bool(_DATA_DIR.value)}
        known = self.content.setdefault('about', about)
        if other := [
            f'{name} {known.get(name)}' for name in about if about[name] != known.get(name)
        ]:
            sys.exit(f'error: {self.path} is of {", ".join(other)}; choose another --out')
        if device['device'].startswith('cpu') and not _SMALL.value:
            sys.exit('error: JAX finds no accelerator; install dfl_jax[cuda], or give --small')
        command = ' '.join(['python -m benchmarks.accelerator', *sys.argv[1:]])
        self.content |= {'command': command, 'date': time.strftime('%Y-%m-%d')}
        for part in wanted:
            self.content['parts'].setdefault(part.name, {'not_run': 'not reached'})
        self.save()

    def left(self, wanted: list[Part]) -> list[Part]:
        """What is not measured yet or goes on, in order; what failed before comes last."""
        rows = self.content['parts']
        done = [p for p in wanted if not {'error', 'not_run', 'goes_on'} & rows[p.name].keys()]
        failed = [p for p in wanted if 'error' in rows[p.name]]
        return [p for p in wanted if p not in done and p not in failed] + failed

    def add(self, name: str, row: Row) -> None:
        before = self.content['parts'][name]
        if 'not_run' not in row or not before.keys() - {'not_run'}:  # what there is stays
            self.content['parts'][name] = row | {'date': time.strftime('%Y-%m-%d %H:%M')}
        self.save()

    def save(self) -> None:
        write_atomically(self.path, json.dumps(self.content, indent=1) + '\n')
        write_atomically(self.path.with_suffix('.md'), tables.page(self.content))


def parts(out: Path) -> list[Part]:
    """The queue, in the order of worth."""
    few = _SMALL.value
    precise = [f'rounds/{name}-{each}' for name, those in PRECISIONS.items() for each in those]
    precise.sort(key=lambda name: not name.endswith('-highest'))
    runs = [Part(name, 40, *of_rounds(name, out / name)) for name in precise]
    methods = [Part(f'methods/{name}', 12) for name in IN_ROUNDS]
    counts = ('12', '24') if few else ('3000', '10000')
    sized = [
        Part(f'clients/{count}-{name}', 60, of_clients(name, count))
        for count in counts
        for name in ('dfedavg', 'ntk_dfl')
    ]
    table8 = [
        Part(f'table8/{name}-iid', 90, *of_table8(name, out / f'table8/{name}-iid'), share)
        for name, share in (('dec_fedavg', 0.3), ('dfml', 0.95))
    ]
    return [*runs, *methods, Part('trace/ntk_dfl', 30), *sized, *table8]


def of_rounds(name: str, folder: Path) -> tuple[tuple[str, ...], Callable[[Path, str], Row]]:
    """The command of a run of NTK-DFL or SPARK in a precision, and what reads it."""
    method, precision = name.removeprefix('rounds/').split('-')
    if _DATA_DIR.value and not _SMALL.value:
        of_run = [f'--flagfile={FLAGFILES[method]}', f'--data_dir={_DATA_DIR.value}']
        of_run += [f'--partition_file={Path(_DATA_DIR.value) / PARTITION}', '--rounds=8']
    else:
        few = ['--clients=6', '--train_samples=240', '--rounds=2', '--degree=2']
        of_run = [f'--algorithm={method}', *(few if _SMALL.value else ['--rounds=8'])]
    of_run += [f'--ntk_precision={precision}', '--nocheckpoint', '--client_eval_samples=200']
    return of_a_run(of_run, folder / time.strftime('%Y%m%d-%H%M%S')), tables.read_run


def of_table8(name: str, folder: Path) -> tuple[tuple[str, ...], Callable[[Path, str], Row]]:
    """The command of a run of Table 8, which goes on with what there is, and what reads it."""
    run = folder / 'run'
    if (run / 'checkpoints').is_dir():
        return of_a_run(['--resume'], run), tables.read_run
    if _DATA_DIR.value and not _SMALL.value:
        file = f'dfml/flags/{name}-h2_cnn_n10-cifar10-iid.flags'
        of_run = [f'--flagfile={file}', f'--data_dir={_DATA_DIR.value}', '--eval_every=2']
    else:
        of_run = [f'--algorithm={name}', '--clients=4', '--train_samples=80', '--rounds=2']
        of_run += ['--architectures=cnn-2-4,cnn-4-8', '--eval_every=1']
    return of_a_run(of_run, run), tables.read_run


def of_a_run(settings: list[str], out: Path) -> tuple[str, ...]:
    measured = (sys.executable, '-m', 'benchmarks._measured_run', str(out.parent / 'took.json'))
    cache = f'--compilation_cache={(Path(_OUT.value) / "xla").absolute()}'
    return (*measured, *settings, '--seed=0', '--noprogress', cache, f'--out={out}')


def of_clients(name: str, count: str) -> tuple[str, ...]:
    """The command that measures a round of so many clients."""
    size = ['--samples=8', '--budget=1', '--degree=2', '--devices=1'] if _SMALL.value else []
    command = (sys.executable, '-m', 'benchmarks.throughput', f'--worker={name}')
    return (*command, f'--clients={count}', '--rounds=2', *(size or ['--budget=20']))


def measure(name: str) -> Row:
    """What is measured in a process that others share."""
    import jax

    from benchmarks import _common as common
    from benchmarks import aot
    from benchmarks._profile import profiled

    device = jax.devices()[0]
    if name == 'device':
        limit = (device.memory_stats() or {}).get('bytes_limit')
        kind = f'{device.platform} {device.device_kind}, {jax.device_count()} of them'
        return {'device': kind, 'memory': limit, **tables.versions()}
    group, method = name.split('/')
    size = aot.Size(6, 8, 6, 8, 0.0625, 2) if _SMALL.value else aot.Size()
    sharding = jax.sharding.SingleDeviceSharding(device)
    compiled, program, count = aot.compiled_round(method, 'here', sharding, size)
    if group == 'trace':
        step, state = aot.started_round(method, program, size)
        for _ in range(2):
            state = jax.block_until_ready(step(state))
        return {'kernels': profiled(lambda: step(state))}
    plan = program.memory_analysis()
    return {
        'ms': aot.round_milliseconds(method, program, size),
        'compile': compiled,
        'operations': count,
        'arguments': plan.argument_size_in_bytes,
        'temporary': plan.temp_size_in_bytes,
        'peak_so_far': common.peak_bytes(),
    }


if __name__ == '__main__':
    app.run(main)
