"""How much of the start does the compilation cache save?

    python -m benchmarks.restart

The same command, `python -m experiments.run` at its defaults, started twice with a compilation
cache that is empty at first. `compile` is what the run reports, of its rounds, to a tenth of a
second; the rest of the wall-clock holds the start of Python and JAX, the evaluation's programs, the
rounds themselves and the plot.
"""

import re
import subprocess
import sys
import tempfile
import time

from absl import app, flags

_RUN_FLAGS = flags.DEFINE_multi_string(
    'run_flag', [], 'a flag of the run, e.g. --run_flag=--rounds=5'
)


def main(argv: list[str]) -> None:
    del argv
    print(f'{"":8}{"compile s":>12}{"wall-clock s":>14}')
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ('first', 'second'):
            found.append(started(f'--compilation_cache={folder}/cache', f'--out={folder}/{name}'))
            print(f'{name:8}{found[-1][0]:12.1f}{found[-1][1]:14.1f}', flush=True)
    (cold, long), (warm, short) = found
    ratio = f'{cold / warm:12.1f}' if warm else f'{"over " + str(round(cold / 0.05)):>12}'
    print(f'{"ratio":8}{ratio}{long / short:14.2f}')


def started(*arguments: str) -> tuple[float, float]:
    """Seconds of the compilation and of the whole command."""
    command = [sys.executable, '-m', 'experiments.run', *arguments, *_RUN_FLAGS.value]
    start = time.perf_counter()
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - start
    compiled = re.search(r'compiled in ([\d.]+) s', done.stderr + done.stdout)
    if compiled is None:
        raise RuntimeError(f'the run did not say how long it compiled:\n{done.stderr}')
    return float(compiled[1]), seconds


if __name__ == '__main__':
    app.run(main)
