"""What a table (see docs/tables.md) takes from metrics.jsonl, and from which of its runs."""

from dfl_jax.cli.run.rundir import Row
from dfl_jax.cli.tables.curves import CURVES, LOCAL, LOSS, line_curve, panel_curves
from dfl_jax.cli.tables.metrics import by_metric


def columns(published: Row) -> tuple[str, ...]:
    """What metric and panels take from the rows of a run, 'round' apart."""
    return (*CURVES, *sorted(_of_all(published) | _of_lines(published).keys()))


def columns_of_cells(published: Row) -> dict[str, set[str]]:
    """{column: the cells that need it}, of those that only single lines of the figure show."""
    shared = {*CURVES, *_of_all(published)}
    return {name: cells for name, cells in _of_lines(published).items() if name not in shared}


def _of_lines(published: Row) -> dict[str, set[str]]:
    cells: dict[str, set[str]] = {}
    for panel in published['panels']:
        for line in panel.get('lines', ()):
            cells.setdefault(line_curve(panel, line), set()).add(line['cell'])
    return {name: cells[name] for name in cells if name not in CURVES}


def _of_all(published: Row) -> set[str]:
    panels, metrics = published['panels'], {part['metric'] for part in by_metric(published)}
    wanted = {panel.get('x', 'round') for panel in panels} - {'round', 'minibatches'}
    wanted |= {c for panel in panels if 'lines' not in panel for c in panel_curves(panel)}
    if {'megabytes_to', 'megabytes_saved'} & metrics:
        wanted.add('mbytes_total')
    if {'loss_to', 'loss_at'} & metrics:
        wanted.add(LOSS)
    if 'local_accuracy_at' in metrics:
        wanted.add(LOCAL)
    if any('rounds' in panel for panel in panels):
        wanted.add('client_accuracy_quantiles')
    return wanted - {*CURVES}
