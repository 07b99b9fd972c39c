"""How much sooner are five seeds done as one program than as five?

    python -m benchmarks.together

Wall-clock, start and compilation included, of `python -m experiments.sweep --sweep=seed:0..4` in
one process, and of `python -m experiments.run --seed=i` five times in sequence: 30 clients, the
handwritten digits, NTK-DFL, all settings at their defaults, no compilation cache. Both write run
directories and checkpoints.
"""

import tempfile

from absl import flags

from benchmarks import _common as common

_SEEDS = flags.DEFINE_integer('seeds', 5, 'runs', lower_bound=2)
_RUN_FLAGS = flags.DEFINE_multi_string('run_flag', [], 'a flag of both, e.g. --run_flag=--rounds=5')


def main() -> None:
    settings = [*_RUN_FLAGS.value, '--compilation_cache=off', '--noprogress']
    seeds = _SEEDS.value
    with tempfile.TemporaryDirectory() as folder:
        sweep = f'--sweep=seed:0..{seeds - 1}'
        together = common.command('sweep', sweep, f'--out={folder}/sweep', *settings)[0]
        print(f'{seeds} seeds, one program    {together:8.1f} s', flush=True)
        single = [
            common.command('run', f'--seed={seed}', f'--out={folder}/{seed}', *settings)[0]
            for seed in range(seeds)
        ]
    print(f'one after the other     {sum(single):8.1f} s')
    print(f'of these                {", ".join(f"{seconds:.1f}" for seconds in single)}')
    print(f'in sequence / together  {sum(single) / together:8.2f}')


if __name__ == '__main__':
    common.start(main)
