"""How much sooner are five seeds done as one program than as five?

    python -m benchmarks.together

Wall-clock, start and compilation included, of `python -m experiments.sweep --sweep=seed:0..4` in
one process, and of `python -m experiments.run --seed=i` five times in sequence: 30 clients, the
handwritten digits, NTK-DFL, all settings at their defaults, no compilation cache. Both write run
directories and checkpoints.
"""

import subprocess
import sys
import tempfile
import time

from absl import app, flags

_SEEDS = flags.DEFINE_integer('seeds', 5, 'runs', lower_bound=2)
_RUN_FLAGS = flags.DEFINE_multi_string('run_flag', [], 'a flag of both, e.g. --run_flag=--rounds=5')


def main(argv: list[str]) -> None:
    del argv
    with tempfile.TemporaryDirectory() as folder:
        sweep = [f'--sweep=seed:0..{_SEEDS.value - 1}', f'--out={folder}/sweep']
        together = seconds_of('experiments.sweep', *sweep)
        print(f'{_SEEDS.value} seeds, one program    {together:8.1f} s', flush=True)
        single = [
            seconds_of('experiments.run', f'--seed={seed}', f'--out={folder}/{seed}')
            for seed in range(_SEEDS.value)
        ]
    print(f'one after the other     {sum(single):8.1f} s')
    print(f'of these                {", ".join(f"{seconds:.1f}" for seconds in single)}')
    print(f'in sequence / together  {sum(single) / together:8.2f}')


def seconds_of(module: str, *arguments: str) -> float:
    """Wall-clock of a command, from its start to its end."""
    command = [sys.executable, '-m', module, *arguments, *_RUN_FLAGS.value]
    command += ['--compilation_cache=off', '--noprogress']
    start = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


if __name__ == '__main__':
    app.run(main)
