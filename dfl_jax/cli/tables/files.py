"""The tables that there are: published.json and computed.json, read and checked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from dfl_jax.cli import papers
from dfl_jax.cli.run.rundir import Row, read_json
from dfl_jax.cli.tables.metrics import METRICS

HERE = papers.folder()


def known_tables(home: Path) -> dict[str, Path]:
    """The file of every table and study below `home`, by PAPER/TABLE."""
    files = [f for kind in ('published', 'computed') for f in home.glob(f'*/*/{kind}.json')]
    return {str(file.parent.relative_to(home)): file for file in files}


def flagfiles(published: Row, folder: Path) -> dict[str, Path]:
    """The flagfile of every cell that has one. folder: the table's own."""
    cells = sorted(f'{m}-{column}' for m in published['rows'] for column in published['columns'])
    folders = [HERE / name for name in published['flags']] if 'flags' in published else [folder]
    files = {cell: [f / f'{cell}.flags' for f in folders] for cell in cells}
    existing = {cell: [file for file in files[cell] if file.exists()] for cell in cells}
    return {cell: those[0] for cell, those in existing.items() if those}


def read_published(file: Path) -> Row:
    """A table, as docs/tables.md describes it. Raises ValueError for what is none."""
    published = _read(file)
    _check(file, published, 'columns', lambda v: _texts(v) and bool(v), 'a list of names')
    parts = published.get('metrics', [published.get('metric')])
    names = [p.get('metric') if isinstance(p, dict) else p for p in _list(parts)]
    if not names or any(name not in METRICS for name in map(str, names)):
        raise ValueError(f'{file}: its metric is none of {", ".join(METRICS)}')
    width = len(published['columns'])

    def fits(row: Any) -> bool:
        of_each = row if 'metrics' in published else [row]
        return len(_list(of_each)) == len(names) and all(len(_list(r)) == width for r in of_each)

    def rows_fit(rows: Any) -> bool:
        return isinstance(rows, dict) and bool(rows) and all(map(fits, rows.values()))

    def panels_fit(panels: Any) -> bool:
        return bool(_list(panels)) and all(isinstance(p, dict) and 'title' in p for p in panels)

    _check(file, published, 'rows', rows_fit, 'a list of numbers a method, one a column')
    _check(file, published, 'panels', panels_fit, 'a list of panels with titles')
    return published


def read_computed(file: Path) -> Row:
    """Studies, as dfl_jax.cli.tables.studies describes them. Raises ValueError likewise."""
    from dfl_jax.cli.tables.studies import STUDIES

    def is_study(study: Any) -> bool:
        needed = {'study', 'title', 'families', 'sizes', 'draws'}
        return isinstance(study, dict) and needed <= {*study} and str(study['study']) in STUDIES

    def are_studies(studies: Any) -> bool:
        return bool(_list(studies)) and all(map(is_study, studies))

    computed = _read(file)
    _check(file, computed, 'studies', are_studies, f'a list of studies of {", ".join(STUDIES)}')
    return computed


def _read(file: Path) -> Row:
    table = read_json(file)
    if not isinstance(table, dict):
        raise ValueError(f'{file} is no table but a {type(table).__name__}')
    for name in ('title', 'source'):
        _check(file, table, name, lambda value: isinstance(value, str), 'text')
    return table


def _check(file: Path, table: Row, name: str, fits: Callable[[Any], bool], what: str) -> None:
    if name not in table or not fits(table[name]):
        raise ValueError(f"{file}: its '{name}' has to be {what}")


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


def _list(value: Any) -> list:
    return value if isinstance(value, list) else []
