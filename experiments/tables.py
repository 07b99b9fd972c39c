"""Sets our numbers beside a paper's: `python -m experiments.tables ntk_dfl/figure2 --runs=DIR`

A table is a folder experiments/PAPER/TABLE with published.json and one flagfile a cell, named
METHOD-COLUMN.flags. Its runs are the directories METHOD-COLUMN* below --runs, one a seed, e.g.
runs/figure2/ntk_dfl-alpha0.1-seed0. Prints the table, and writes it with the figure into --out.
"""

import json
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from absl import app, flags

from experiments.rundir import Row, RunDirectory

FLAGS = flags.FLAGS
HERE = Path(__file__).parent
FREE = ('seed', 'data_dir')  # a run may differ from its flagfile in these

Runs = dict[str, list[list[Row]]]  # cell -> runs -> rows


def rounds_to(target: float, rows: Sequence[Row]) -> float | None:
    """The first evaluated round whose consensus accuracy reaches the target."""
    return next((row['round'] for row in rows if row['consensus_accuracy'] >= target), None)


def final_accuracy(target: float, rows: Sequence[Row]) -> float | None:
    """Consensus accuracy of the last round, in percent."""
    del target
    return 100 * rows[-1]['consensus_accuracy']


METRICS: dict[str, Callable[[float, Sequence[Row]], float | None]] = {
    'rounds_to': rounds_to,
    'final_accuracy': final_accuracy,
}


def find_runs(folder: Path, runs: Path) -> tuple[Runs, list[str]]:
    """The runs of every cell that has some, and remarks about those that stray or are unfinished.

    Raises ValueError when there is none at all.
    """
    found: Runs = {}
    remarks = []
    for flagfile in sorted(folder.glob('*.flags')):
        wanted = read_flagfile(flagfile)
        for path in sorted(p for p in runs.glob(f'{flagfile.stem}*') if p.is_dir()):
            directory = RunDirectory(path)
            rows = directory.rows()
            if not rows:
                remarks.append(f'{path.name} holds no evaluation yet')
                continue
            if not directory.done.exists():
                remarks.append(f'{path.name} stopped at round {rows[-1]["round"]}')
            remarks += differences(path.name, wanted, json.loads(directory.config_file.read_text()))
            found.setdefault(flagfile.stem, []).append(rows)
    if not found:
        cells = ', '.join(f.stem for f in sorted(folder.glob('*.flags')))
        raise ValueError(f'--runs={runs} holds no run of {folder.name}; name them {cells}')
    return found, remarks


def read_flagfile(path: Path) -> dict[str, str]:
    """{flag: value} of a flagfile without nested ones; a bare --flag is True."""
    lines = (line.strip() for line in path.read_text().splitlines())
    pairs = (line.lstrip('-').partition('=') for line in lines if line.startswith('--'))
    return {name: value if sign else 'True' for name, sign, value in pairs}


def differences(name: str, wanted: dict[str, str], config: Row) -> list[str]:
    """Remarks on the settings in which a run strays from its flagfile."""
    settings = config['settings']
    if settings.get('partition_file'):
        file = Path(settings['partition_file']).name
        wanted = {k: v for k, v in wanted.items() if k not in ('partition', 'partition_overlap')}
        remarks = [f'{name}: partition from {file}']
    else:
        remarks = []
    return remarks + [
        f'{name}: --{flag}={settings.get(flag)}, the flagfile says {value}'
        for flag, value in wanted.items()
        if flag not in FREE and str(settings.get(flag)) != value
    ]


def table(published: Row, runs: Runs) -> str:
    """A Markdown table, a row a method, the paper's number and ours for every column."""
    metric = METRICS[published['metric']]
    head = ['method'] + [f'{c} {who}' for c in published['columns'] for who in ('paper', 'ours')]
    lines = [head, ['---'] * len(head)]
    for method, numbers in published['rows'].items():
        line = [method]
        for column, number in zip(published['columns'], numbers, strict=True):
            mine = runs.get(f'{method}-{column}', [])
            values = [metric(published.get('target', 0.0), rows) for rows in mine]
            line += [str(number), summary(values, mine)]
        lines.append(line)
    return '\n'.join('| ' + ' | '.join(line) + ' |' for line in lines)


def summary(values: Sequence[float | None], runs: Sequence[Sequence[Row]]) -> str:
    """Mean and standard deviation over seeds; `>N` where a run of N rounds never got there."""
    reached = [value for value in values if value is not None]
    if not runs:
        return '-'
    seeds = '1 seed' if len(runs) == 1 else f'{len(runs)} seeds'
    if len(reached) < len(values):
        return f'>{max(rows[-1]["round"] for rows in runs)} ({seeds})'
    mean = f'{statistics.mean(reached):.4g}'
    if len(reached) > 1:
        mean += f' ± {statistics.stdev(reached):.2g}'
    return f'{mean} ({seeds})'


def main(argv: list[str]) -> Any:
    known = sorted(str(f.parent.relative_to(HERE)) for f in HERE.glob('*/*/published.json'))
    if len(argv) != 2 or argv[1] not in known:
        print(f'error: name one table of {", ".join(known)}', file=sys.stderr)
        return 1
    folder = HERE / argv[1]
    published = json.loads((folder / 'published.json').read_text())
    try:
        runs, remarks = find_runs(folder, Path(FLAGS.runs))
    except ValueError as error:
        print(f'error: {error}', file=sys.stderr)
        return 1

    text = table(published, runs)
    what = published['metric'].replace('_', ' ')
    goal = f' {published["target"]:.0%} consensus accuracy' if 'target' in published else ''
    print(f'{published["title"]}: {what}{goal}\n({published["source"]})\n\n{text}')
    for remark in remarks:
        print(f'note: {remark}')
    out = Path(FLAGS.out or FLAGS.runs)
    out.mkdir(parents=True, exist_ok=True)
    name = argv[1].replace('/', '-')
    (out / f'{name}.md').write_text(text + '\n')

    from experiments.plots import plot_comparison

    plot_comparison(runs, published.get('target'), published['title'], out / f'{name}.png')
    print(f'written: {out / name}.md, {out / name}.png')
    return 0


if __name__ == '__main__':
    flags.DEFINE_string('runs', 'runs', 'Folder whose subfolders are the runs.')
    flags.DEFINE_string('out', None, 'Where the table and the figure go (default --runs).')
    app.run(main)
