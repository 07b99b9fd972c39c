"""What a table (see docs/tables.md) takes from metrics.jsonl, and from which of its runs."""

from collections.abc import Iterable

from dfl_jax.cli.run.rundir import Row
from dfl_jax.cli.tables.curves import CURVES, LOCAL, LOSS, line_curve, panel_curves
from dfl_jax.cli.tables.metrics import by_metric


def columns(published: Row, cells: Iterable[str]) -> dict[str, list[str]]:
    """{cell: what metric and panels take from the rows of its runs, 'round' apart}."""
    lines = [(p, line) for p in published['panels'] for line in p.get('lines', ())]
    shown = {(line['cell'], line_curve(panel, line)) for panel, line in lines}
    shared = _of_all(published)
    return {
        cell: [*CURVES, *sorted((shared | {name for c, name in shown if c == cell}) - {*CURVES})]
        for cell in cells
    }


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
    return wanted
