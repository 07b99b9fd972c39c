"""Shows runs to others, on one interactive HTML page: `dfl-jax report --runs=DIR`

Takes every run directory at or below DIR and writes one file that needs nothing else, no network
either: what was reached, grouped over seeds, beside the papers' tables that the runs belong to,
curves over axes of choice, the clients on their network, settings of any two runs side by side.
Unfinished runs count only where their group has no finished one; directories that cannot be read
are listed with the reason. It needs the extra `report`.
"""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from absl import flags

from dfl_jax.cli.command import check_writable, define_path, one_line_errors
from dfl_jax.cli.report.saved_runs import SavedRun, find_runs, group_runs
from dfl_jax.files import to_json, write_atomically
from dfl_jax.plain_text import counted

FLAGS = flags.FLAGS
MARK = 'dfl_jax experiments.report'  # the generator of a page, by which it is known again


def write_report(source: Path, out: Path, target: float, overwrite: bool) -> str:
    """Writes the page of the runs below `source` to `out`; returns what it shows.

    target: consensus accuracy in [0, 1]. Raises ValueError or OSError, one line.
    """
    check_target(target)
    if os.path.isdir(out):
        raise ValueError(f'--out={out} is a folder; name a file in it')
    check_writable(out.parent, [out.name])
    if out.exists() and not overwrite and not is_report(out):
        raise ValueError(
            f'--out={out} exists and is no report; choose another --out, or add --overwrite'
        )
    runs, broken = find_runs(source)
    text = report(source.resolve().name, runs, broken, target)
    text = text.encode('utf-8', 'backslashreplace').decode()  # a name or a setting may be no text
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text)
    skipped = f', {len(broken)} that cannot be read' if broken else ''
    return f'{counted(len(runs), "run")}{skipped}'


def check_target(target: float) -> None:
    if not 0 < target <= 1:
        raise ValueError(f'--target={target} has to be an accuracy above 0 and at most 1')


def is_report(path: Path) -> bool:
    """Whether this tool wrote the file."""
    if not path.is_file():  # a pipe, say, which nobody writes to
        return False
    with open(path, encoding='utf-8', errors='replace') as file:
        return MARK in file.read(1000)


def report(name: str, runs: Sequence[SavedRun], broken: dict[str, str], target: float) -> str:
    """The page. name: of what it reports on; broken: {directory: why it cannot be read}."""
    try:
        from bokeh.resources import Resources
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
    except ImportError as error:
        raise ImportError(f"the page needs {error.name}: pip install 'dfl_jax[report]'") from None
    from dfl_jax.cli.report import tables
    from dfl_jax.cli.report.curves import curves
    from dfl_jax.cli.report.network import clients
    from dfl_jax.results.table import FAR_OFF_HEAD

    groups = group_runs(runs)
    ordered = [run for each in groups for run in each.runs]
    unfinished = sum(not run.done for run in runs)
    lead = [counted(len(runs), 'run'), counted(len(groups), 'setting')]
    lead += [f'{unfinished} unfinished'] * (unfinished > 0)
    lead += [f'{len(broken)} unreadable'] * (len(broken) > 0)
    here = FileSystemLoader(Path(__file__).parent)
    templates = Environment(loader=here, autoescape=True, undefined=StrictUndefined)
    templates.trim_blocks = True
    # Not sorted: Bokeh describes a model where it comes first, and refers to it from there on.
    templates.policies['json.dumps_kwargs'] = {'separators': (',', ':')}
    templates.policies['json.dumps_function'] = to_json
    return templates.get_template('page.html').render(
        {'mark': MARK, 't': tables, 'off_paper': FAR_OFF_HEAD, 'enumerate': enumerate, 'zip': zip},
        title=f'Runs of {name}',
        lead=', '.join(lead),
        unfinished=unfinished,
        repeats=any(each.repeats for each in groups),
        groups=groups,
        runs=ordered,
        settings=tables.settings(ordered),
        broken=[*broken.items()],
        tables=tables.measured(groups, target),
        curves=curves(groups, target),
        clients=clients(groups),
        several_seeds=any(len(each.counted) > 1 for each in groups),
        date=datetime.now(UTC).strftime('%Y-%m-%d %H:%M UTC'),
        bokeh=Resources(mode='inline', components=['bokeh'], log_level='error').js_raw,
    )


def define_flags(_: Sequence[str]) -> None:
    """Defines the flags of this command, whose names others use for something else."""
    define_path('runs', 'runs', 'A run directory, or a folder of them at any depth.')
    define_path(
        'out',
        None,
        'File of the page (default: report.html in --runs).',
        allow_override=True,  # the flags of a run, which say what its settings mean, have one too
    )
    flags.DEFINE_float('target', 0.85, 'Accuracy until which rounds and megabytes are counted.')
    flags.DEFINE_bool('overwrite', False, 'Replace the file --out even if it is not a report.')


@one_line_errors('interrupted, and nothing written; start again', '--runs=DIR names the runs')
def main(_: list[str]) -> int:
    source = Path(FLAGS.runs)
    out = Path(FLAGS.out or source / 'report.html')
    print(f'{write_report(source, out, FLAGS.target, FLAGS.overwrite)}: {out}')
    return 0
