"""The papers' tables to which the runs of a report belong."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from dfl_jax.cli.report import html
from dfl_jax.cli.report.runs import SavedRun
from dfl_jax.cli.run.rundir import Row
from dfl_jax.cli.tables import files
from dfl_jax.cli.tables.curves import SKIPPED, Runs, differences, kept_columns, read_flagfile
from dfl_jax.cli.tables.metrics import what
from dfl_jax.cli.tables.table import OFF_PAPER, below, cells

MOST_WARNINGS = 6  # on a table


def beside_papers(runs: Sequence[SavedRun]) -> str:
    """The tables of the papers to which any of the runs belongs."""
    parts = []
    for file in sorted(files.PAPERS.glob('*/*/published.json')):
        published = files.read_published(file)
        runs_of_cells, warnings = runs_of_table(published, file.parent, runs)
        if runs_of_cells:
            name, words = file.parent.relative_to(files.PAPERS), what(published)
            more = f'And {len(warnings) - MOST_WARNINGS} warnings more.'
            lines = warnings[:MOST_WARNINGS] + [more] * (len(warnings) > MOST_WARNINGS)
            notes = f'<p class="note">{"<br>".join(map(escape, lines))}</p>' if lines else ''
            parts.append(
                f'<h3>{escape(str(name))}: {escape(published["title"])}</h3>\n'
                f'<p>{escape(words[:1].upper() + words[1:])} ({escape(published["source"])})</p>\n'
                f'{_table(published, runs_of_cells)}\n{notes}'
            )
    return '\n'.join(parts)


def _table(published: Row, runs: Runs) -> str:
    """What `dfl-jax tables` prints of a table, as HTML."""
    caption = 'The paper beside these runs, mean ± deviation over seeds'
    findings, off = below(published, runs)
    parts = [html.table(*cells(published, runs), caption)]
    parts += [html.bullets(findings)] * bool(findings)
    parts += [f'<p>{escape(OFF_PAPER)}</p>', html.bullets(off)] * bool(off)
    return '\n'.join(parts)


def runs_of_table(published: Row, folder: Path, runs: Sequence[SavedRun]) -> tuple[Runs, list[str]]:
    """The runs of every cell of a table, by their names and settings, and warnings of them.

    A run of a cell's name whose settings differ from the cell's flagfile belongs elsewhere.
    """
    of_cells: Runs = {}
    warnings = []
    flagfiles = files.flagfiles(published, folder)
    needed = files.columns(published, flagfiles)
    for cell, flagfile in flagfiles.items():
        named = [run for run in runs if f'{run.path.resolve().name}-'.startswith(f'{cell}-')]
        wanted = read_flagfile(flagfile) if named else {}
        for run in named:
            settings = run.settings | {'rounds': int(run.settings['rounds'])}
            try:
                all_of_run = differences(run.name, wanted, run.config | {'settings': settings})
                mismatches = [warning for warning in all_of_run if ': --' in warning]
                if mismatches or not run.rows:
                    warnings += [f'Left out: {warning}.' for warning in mismatches[:1]]
                    continue
                kept = kept_columns(run.path.name, run.rows, needed[cell])
            except ValueError as error:
                warnings.append(f'{run.name} {SKIPPED}: {error}.')
                continue
            of_cells.setdefault(cell, []).append(kept)
            warnings += [f'{warning}.' for warning in all_of_run]
            warnings += [f'{run.name}: {run.status}.'] * (not run.done)
    return of_cells, warnings
