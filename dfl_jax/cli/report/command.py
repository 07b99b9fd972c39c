"""Shows runs to others, on one HTML page: `python -m experiments.report --runs=DIR`

Takes every run directory of experiments.run at or below DIR and writes one file that needs nothing
else, neither network nor scripts: what was reached, grouped over seeds, beside the papers' tables
that the runs belong to (see experiments.tables), curves, settings, partition, topology, traffic and
timing. Runs that are not finished are named as such, and count only where their group has no
finished one; directories that cannot be read are listed with the reason.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from absl import flags

from dfl_jax.cli.command import check_writable, counted, one_line_errors
from dfl_jax.cli.report import html
from dfl_jax.cli.report.runs import SavedRun, find, group
from dfl_jax.cli.run.rundir import write_atomically

FLAGS = flags.FLAGS


def write_report(source: Path, out: Path, target: float, overwrite: bool) -> str:
    """Writes the page of the runs below `source` to `out`; returns what it shows.

    target: consensus accuracy in [0, 1]. Raises ValueError or OSError, one line.
    """
    if not 0 < target <= 1:
        raise ValueError(f'--target={target} has to be an accuracy above 0 and at most 1')
    if os.path.isdir(out):
        raise ValueError(f'--out={out} is a folder; name a file in it')
    check_writable(out.parent, [out.name])
    if out.exists() and not overwrite and not is_report(out):
        raise ValueError(
            f'--out={out} exists and is no report; choose another --out, or add --overwrite'
        )
    runs, broken = find(source)
    text = report(source.resolve().name, runs, broken, target)
    text = text.encode('utf-8', 'backslashreplace').decode()  # a name or a setting may be no text
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text)
    skipped = f', {len(broken)} that cannot be read' if broken else ''
    return f'{counted(len(runs), "run")}{skipped}'


def is_report(path: Path) -> bool:
    """Whether this tool wrote the file."""
    if not path.is_file():  # a pipe, say, which nobody writes to
        return False
    with open(path, errors='replace') as file:
        return html.MARK in file.read(1000)


def report(name: str, runs: Sequence[SavedRun], broken: dict[str, str], target: float) -> str:
    """The page. name: of what it reports on; broken: {directory: why it cannot be read}."""
    from dfl_jax.cli.report import pictures, sections

    groups = group(runs)
    unfinished = sum(not run.done for run in runs)
    lead = [counted(len(runs), 'run'), counted(len(groups), 'setting')]
    lead += [f'{unfinished} unfinished'] * (unfinished > 0)
    lead += [f'{len(broken)} unreadable'] * (len(broken) > 0)
    parts: list[tuple[str, str]] = [
        ('Summary', sections.summary(groups, target)),
        ('Curves', sections.curves(groups, target)),
        ('Beside the papers', sections.beside_papers(runs)),
        ('Traffic', sections.traffic(groups, target)),
        ('Simulated time', sections.time(groups, target)),
        ('Settings', sections.settings(groups)),
        ('Data', pictures.partitions(groups)),
        ('Topology', pictures.topologies(groups)),
        ('Runs', sections.list_of_runs(groups, broken)),
        ('Timing and versions', sections.timing(groups)),
    ]
    date = datetime.now(UTC).strftime('%Y-%m-%d %H:%M UTC')
    foot = f'Written on {date} by python -m experiments.report of dfl_jax.'
    shown = [(heading, body) for heading, body in parts if body]
    return html.page(f'Runs of {name}', ', '.join(lead) + '.', shown, foot)


def define_flags(_: Sequence[str]) -> None:
    """Defines the flags of this command, whose names others use for something else."""
    flags.DEFINE_string('runs', 'runs', 'A run directory, or a folder of them at any depth.')
    flags.DEFINE_string(
        'out',
        None,
        'The page (default: report.html in --runs).',
        allow_override=True,  # the flags of a run, which say what its settings mean, have one too
    )
    flags.DEFINE_float('target', 0.85, 'Accuracy to which rounds and megabytes are counted.')
    flags.DEFINE_bool('overwrite', False, 'Replace --out even where it is no report.')


@one_line_errors('interrupted, and nothing written; start again', '--runs=DIR names the runs')
def main(_: list[str]) -> int:
    source = Path(FLAGS.runs)
    out = Path(FLAGS.out or source / 'report.html')
    print(f'{write_report(source, out, FLAGS.target, FLAGS.overwrite)}: {out}')
    return 0
