"""Finished runs in any world, or in several: `dfl-jax time --runs=DIR --world="A;B"`

Replays runs on the clock of one or several worlds without training again: the graphs follow from
the settings and the seed, the bits of each message and the operations of each client from the
method. Prints the simulated seconds until the consensus model is at the targets, and writes
time.md, time.json, time.png and worlds.png, a picture of the worlds, into --out.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from absl import flags
from tqdm import tqdm

from dfl_jax import timing
from dfl_jax.cli import command
from dfl_jax.cli.flags.run_flags import MOVED_MEANINGS, given_settings, refuse_others
from dfl_jax.cli.run import command as run
from dfl_jax.cli.time.replay import Replay, replay
from dfl_jax.experiment.environment import check_jax
from dfl_jax.experiment.run_directory import RunDirectory
from dfl_jax.experiment.streams import streams
from dfl_jax.files import to_json, write_atomically
from dfl_jax.plain_text import markdown_table
from dfl_jax.results.directories import directories

FLAGS = flags.FLAGS
SHARED = (*MOVED_MEANINGS, 'world', 'barrier', 'out', 'allow_imports', 'progress')
MEANINGS = MOVED_MEANINGS | {'out': 'Folder of the results (default time)'}
OF_RUNS = (
    *('runs', 'world', 'barrier', 'targets', 'operations'),
    *('joules_per_operation', 'joules_per_bit'),
)
FILES = ('time.md', 'time.json', 'time.png', 'worlds.png')
WORLD = 'speed=1e10,uplink=5.6e6,latency=0.05'


def define_flags(arguments: Sequence[str] = ()) -> None:
    """Defines the flags of this command beside those of runs."""
    run.define_flags(arguments)
    if 'targets' in FLAGS:
        return
    for name in SHARED:
        flags.declare_key_flag(name)
    command.define_paths('runs', None, 'Run directories, or folders of them.')
    flags.DEFINE_bool(
        'map',
        False,
        'Draw the map of the fastest method by link and computer, from the stored curves of the '
        'documents, into --out; no runs are needed.',
    )
    flags.DEFINE_list(
        'targets', ['0.8', '0.85'], 'Accuracies for which the time until they are reached is given.'
    )
    flags.DEFINE_float(
        'operations',
        None,
        'Operations of a client in a round, for runs that have not recorded their own.',
        lower_bound=0,
    )
    flags.DEFINE_float(
        'joules_per_operation', 1e-11, 'Energy of an operation of a client.', lower_bound=0
    )
    flags.DEFINE_float('joules_per_bit', 1e-7, 'Energy of a bit that is sent.', lower_bound=0)


def find_runs() -> dict[str, RunDirectory]:
    """The runs of --runs, by their names. Raises ValueError where there is none."""
    found = {}
    for source in map(Path, FLAGS.runs):
        there = [path for path in directories(source) if (path / 'config.json').exists()]
        if not there:
            raise ValueError(f'--runs={source} holds no run; name run directories or their folder')
        for path in there:
            inside = path != source and str(path.relative_to(source)) not in found
            found[str(path.relative_to(source) if inside else path)] = RunDirectory(path)
    return found


def read_targets() -> list[float]:
    """The accuracies of --targets. Raises ValueError for what is none."""
    try:
        found = [float(text) for text in FLAGS.targets]
    except ValueError as error:
        raise ValueError(f'--targets={",".join(FLAGS.targets)}: {error}') from None
    if none := next((each for each in found if not 0 < each <= 1), None):
        raise ValueError(f'--targets={none:g} is no accuracy; name some in (0, 1], e.g. 0.85')
    return found


def read_worlds() -> list[str]:
    """The worlds of --world. Raises ValueError for one of no words."""
    texts = [text.strip() for text in (FLAGS.world or WORLD).split(';')]
    if not all(texts):
        raise ValueError(
            f'--world={FLAGS.world}: a world between semicolons is empty; leave it out'
        )
    return texts


def row_of(
    replayed: Replay, world: str, goals: list[float], seconds: np.ndarray, joules: np.ndarray
) -> dict[str, Any]:
    """What is told of a run in a world."""
    to = {f'{target:g}': replayed.evaluation_at(target) for target in goals}
    return {
        'run': replayed.name,
        'world': world,
        'round': replayed.rounds.tolist(),
        replayed.metric: replayed.values.tolist(),
        'metric': replayed.metric,
        'simulated_seconds': seconds.tolist(),
        'joules': joules.tolist(),
        'seconds_to': {t: None if at is None else float(seconds[at]) for t, at in to.items()},
        'joules_to': {t: None if at is None else float(joules[at]) for t, at in to.items()},
    }


def times_table(rows: list[dict[str, Any]]) -> str:
    """The replays as a Markdown table."""
    names, metrics = list(rows[0]['seconds_to']), sorted({row['metric'] for row in rows})
    head = [
        *('run', 'world', 'rounds', 'seconds a round', ' or '.join(metrics)),
        *(f's to {t}' for t in names),
        *(f'kJ to {t}' for t in names),
    ]
    cells = [
        [
            row['run'],
            row['world'],
            str(row['round'][-1]),
            f'{row["simulated_seconds"][-1] / row["round"][-1]:,.4g}',
            f'{row[row["metric"]][-1]:.4f}',
            *('-' if v is None else f'{v:,.4g}' for v in row['seconds_to'].values()),
            *('-' if v is None else f'{v / 1e3:,.4g}' for v in row['joules_to'].values()),
        ]
        for row in rows
    ]
    return markdown_table(head, cells, 2)


@command.one_line_errors('interrupted, and nothing written; start again', 'name runs by --runs=DIR')
def main(_: list[str]) -> int:
    if FLAGS.map:
        from dfl_jax.cli.time import fastest_map

        if unused := next((name for name in OF_RUNS if FLAGS[name].present), None):
            raise ValueError(f'--{unused} is of runs, and the --map takes none; leave it out')
        folder = Path(FLAGS.out or 'time')
        command.check_writable(folder, fastest_map.FILES)
        print(fastest_map.draw_map(folder))
        print('\n'.join(str(folder / name) for name in fastest_map.FILES))
        return 0
    if FLAGS.runs is None:
        raise ValueError('name finished runs, --runs=DIR, or draw the --map')
    refuse_others(SHARED, ': runs keep their settings')
    found, goals, texts = find_runs(), read_targets(), read_worlds()
    if FLAGS.operations is not None and all(
        'operations_total' in (run.rows() or [{}])[-1] for run in found.values()
    ):
        raise ValueError('--operations: these runs have counted their own; leave it out')
    out, given = Path(FLAGS.out or 'time'), given_settings()
    command.check_writable(out, FILES)
    from dfl_jax.cli.time.plot import plot_times, plot_worlds

    check_jax()
    rows: list[dict[str, Any]] = []
    worlds: dict[str, timing.World] = {}
    for name, directory in tqdm(found.items(), 'runs', disable=not FLAGS.progress):
        try:
            replayed = replay(name, directory, given, FLAGS.allow_imports, FLAGS.operations)
        except ValueError as error:
            if len(found) == 1:
                raise
            command.warn(f'left out: {command.in_flags(error)}')
            continue
        joules = replayed.joules(FLAGS.joules_per_operation, FLAGS.joules_per_bit)
        seed = streams(replayed.seed)['world']
        for text in texts:
            world = timing.parse(text, replayed.counts.flops.shape[1], seed)
            if replayed.rules.period and world.online and text != replayed.world:
                command.warn(
                    f'left out: {name} in {text}: who was offline was settled when it trained; '
                    'leave online= out'
                )
                continue
            worlds.setdefault(text, world)
            seconds = replayed.seconds(world, FLAGS.barrier)
            rows.append(row_of(replayed, text, goals, seconds, joules))
    if not rows:
        raise ValueError('no run can be replayed, see above')
    print(times_table(rows))
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / FILES[0], times_table(rows) + '\n')
    write_atomically(out / FILES[1], to_json(rows, separators=(',', ':')) + '\n')
    plot_times(rows, out / FILES[2])
    plot_worlds(worlds, out / FILES[3])
    print('\n'.join(str(out / name) for name in FILES))
    return 0
