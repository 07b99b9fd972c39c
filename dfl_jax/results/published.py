"""The tables that there are, and what the papers published: published.json, read and checked."""

from collections.abc import Iterable
from pathlib import Path

from dfl_jax.experiment.run_directory import Row
from dfl_jax.files import read_json
from dfl_jax.paper_folder import PAPERS
from dfl_jax.results.curves import CURVES, line_curve, panel_curves
from dfl_jax.results.measured import METRICS, by_metric


def known_tables() -> dict[str, Path]:
    """The file of every table and study, by PAPER/TABLE."""
    files = [f for kind in ('published', 'computed') for f in PAPERS.glob(f'*/*/{kind}.json')]
    return {str(file.parent.relative_to(PAPERS)): file for file in files}


def table_named(name: str) -> tuple[str, Path]:
    """What a table is called and its file. name: PAPER/TABLE, or a folder of one's own.

    Raises ValueError for what is neither.
    """
    known, folder = known_tables(), Path(name)
    if name in known:
        return name, known[name]
    for kind in ('published', 'computed'):
        if (file := folder / f'{kind}.json').is_file():
            return folder.resolve().name, file
    raise ValueError(
        f'{name} is no table; name one of {", ".join(sorted(known))}, all, or a folder that holds '
        'published.json'
    )


def flagfiles_of(published: Row, folder: Path) -> dict[str, Path]:
    """The flagfile of every cell that has one. folder: the table's own."""
    cells = sorted(f'{m}-{column}' for m in published['rows'] for column in published['columns'])
    folders = [PAPERS / name for name in published['flags']] if 'flags' in published else [folder]
    files = {cell: [f / f'{cell}.flags' for f in folders] for cell in cells}
    existing = {cell: [file for file in files[cell] if file.exists()] for cell in cells}
    return {cell: those[0] for cell, those in existing.items() if those}


def read_published(file: Path) -> Row:
    """A table, as docs/tables.md describes it. Raises ValueError for what is none."""
    published = read_titled(file, 'columns', 'rows', 'panels')
    parts = by_metric(published | {'rows': {}})
    of_claims = {str(m) for claim in published.get('claims', ()) for m in _metrics_of(claim)}
    if unknown := (of_claims | {str(part.get('metric')) for part in parts}) - {*METRICS}:
        raise ValueError(f'{file}: its metric {min(unknown)} is none of {", ".join(METRICS)}')
    width = len(published['columns'])
    for method, row in published['rows'].items():
        of_each = row if 'metrics' in published else [row]
        if len(of_each) != len(parts) or any(len(numbers) != width for numbers in of_each):
            raise ValueError(f"{file}: its row '{method}' has to have a number for every column")
    return published


def read_titled(file: Path, *names: str) -> Row:
    """A file with these entries beside its title and source, none of them empty."""
    table = read_json(file)
    if not isinstance(table, dict):
        raise ValueError(f'{file} is no table but a {type(table).__name__}')
    if missing := [name for name in ('title', 'source', *names) if not table.get(name)]:
        raise ValueError(f'{file} has no {" and no ".join(missing)}')
    return table


def needed_columns(published: Row, cells: Iterable[str]) -> dict[str, list[str]]:
    """{cell: what metric and panels take from the rows of its runs, 'round' apart}."""
    panels = published['panels']
    metrics = [METRICS[part['metric']] for part in by_metric(published)]
    shared = {metric.takes for metric in metrics if metric.takes}
    shared |= {panel.get('x', 'round') for panel in panels} - {'round', 'minibatches'}
    shared |= {c for panel in panels if 'lines' not in panel for c in panel_curves(panel)}
    shared |= {'client_accuracy_quantiles' for panel in panels if 'rounds' in panel}
    lines = [(panel, line) for panel in panels for line in panel.get('lines', ())]
    shown = {(line['cell'], line_curve(panel, line)) for panel, line in lines}
    for claim in published.get('claims', ()):
        taken = [METRICS[metric].takes for metric in _metrics_of(claim)]
        shown |= {(cell, name) for cell in _cells_of(claim) for name in taken if name}
    return {
        cell: [*CURVES, *sorted((shared | {name for c, name in shown if c == cell}) - {*CURVES})]
        for cell in cells
    }


def _metrics_of(claim: Row) -> list[str]:
    """The metrics that a claim names."""
    return [*claim.get('correlation', ()), *([claim['metric']] if 'metric' in claim else [])]


def _cells_of(claim: Row) -> set[str]:
    """The cells that a claim names, without their rounds."""
    named = [cell for field in ('order', 'effect', 'cells') for cell in claim.get(field, ())]
    return {one.partition('@')[0] for cell in named for one in cell.split(' - ')}
