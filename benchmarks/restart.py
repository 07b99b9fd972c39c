"""How much of the start does the compilation cache save?

    python -m benchmarks.restart

The same command, `python -m experiments.run` at its defaults, started twice with a compilation
cache that is empty at first. `compile` is what the run reports, of its rounds, to a tenth of a
second; the rest of the wall-clock holds the start of Python and JAX, the evaluation's programs, the
rounds themselves and the plot.
"""

import re
import tempfile

from absl import flags

from benchmarks import _common as common

_RUN_FLAGS = flags.DEFINE_multi_string(
    'run_flag', [], 'a flag of the run, e.g. --run_flag=--rounds=5'
)


def main() -> None:
    table = common.Table('', 'compile s', 'wall-clock s')
    times = []
    with tempfile.TemporaryDirectory() as folder:
        for name in ('first', 'second'):
            paths = f'--compilation_cache={folder}/cache', f'--out={folder}/{name}'
            seconds, printed = common.command('run', *paths, *_RUN_FLAGS.value)
            compiled = re.search(r'compiled in ([\d.]+) s', printed)
            if compiled is None:
                raise RuntimeError(f'the run did not say how long it compiled:\n{printed}')
            times.append((float(compiled[1]), seconds))
            table.row(name, *((t, '.1f') for t in times[-1]))
    (cold, long), (warm, short) = times
    ratio = f'{cold / warm:.1f}' if warm else f'over {round(cold / 0.05)}'
    table.row('ratio', ratio, (long / short, '.2f'))


if __name__ == '__main__':
    common.start(main)
