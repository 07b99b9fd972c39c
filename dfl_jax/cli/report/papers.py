"""The papers' tables to which the runs of a report belong."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from dfl_jax.cli.report import html as markup
from dfl_jax.cli.report.runs import Found
from dfl_jax.cli.run.rundir import Row
from dfl_jax.cli.tables import command as tables
from dfl_jax.cli.tables.columns import columns as table_columns
from dfl_jax.cli.tables.columns import columns_of_cells
from dfl_jax.cli.tables.curves import SKIPPED, Runs, columns_of, differences, read_flagfile, rounded
from dfl_jax.cli.tables.files import read_published
from dfl_jax.cli.tables.metrics import what

MOST_REMARKS = 6  # on a table


def beside_papers(runs: Sequence[Found]) -> str:
    """The tables of the papers to which any of the runs belongs."""
    found = []
    for file in sorted(tables.HERE.glob('*/*/published.json')):
        published = read_published(file)
        cells, warnings = cells_of(published, file.parent, runs)
        if cells:
            name, words = file.parent.relative_to(tables.HERE), what(published)
            more = f'And {len(warnings) - MOST_REMARKS} warnings more.'
            said = warnings[:MOST_REMARKS] + [more] * (len(warnings) > MOST_REMARKS)
            notes = f'<p class="note">{"<br>".join(map(escape, said))}</p>' if said else ''
            found.append(
                f'<h3>{escape(str(name))}: {escape(published["title"])}</h3>\n'
                f'<p>{escape(words[:1].upper() + words[1:])} ({escape(published["source"])})</p>\n'
                f'{markup.markdown(tables.report(published, cells))}\n{notes}'
            )
    return '\n'.join(found)


def cells_of(published: Row, folder: Path, runs: Sequence[Found]) -> tuple[Runs, list[str]]:
    """The runs of every cell of a table, by their names and settings, and warnings on them.

    A run of a cell's name whose settings stray from the cell's flagfile belongs elsewhere.
    """
    names, only = table_columns(published), columns_of_cells(published)
    cells: Runs = {}
    warnings = []
    for cell, flagfile in tables.flagfiles(published, folder).items():
        named = [run for run in runs if f'{run.path.resolve().name}-'.startswith(f'{cell}-')]
        wanted = read_flagfile(flagfile) if named else {}
        for run in named:
            settings = run.settings | {'rounds': int(run.settings['rounds'])}
            try:
                said = differences(run.name, wanted, run.config | {'settings': settings})
                mismatches = [warning for warning in said if ': --' in warning]
                if mismatches or not run.rows:
                    warnings += [f'Left out: {warning}.' for warning in mismatches[:1]]
                    continue
                needed = [name for name in names if cell in only.get(name, [cell])]
                own = columns_of(run.path.name, run.rows, needed, [*{*names} - {*needed}])
            except ValueError as error:
                warnings.append(f'{run.name} {SKIPPED}: {error}.')
                continue
            for name in {*own} & {*names}:
                own[name] = [rounded(value, name) for value in own[name]]
            cells.setdefault(cell, []).append(own)
            warnings += [f'{warning}.' for warning in said]
            warnings += [f'{run.name}: {run.status}.'] * (not run.done)
    return cells, warnings
