"""The curves of a report: one figure for all groups that are drawn together."""

import io
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dfl_jax.cli.command import in_a_line
from dfl_jax.cli.report import html
from dfl_jax.cli.report.measures import columns
from dfl_jax.cli.report.runs import Group
from dfl_jax.cli.tables.curves import CURVES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = (  # curve, x, what they are
    (CURVES[0], 'round', 'Aggregated model over rounds'),
    (CURVES[1], 'round', 'Mean client over rounds'),
    (CURVES[0], 'mbytes_total', 'Aggregated model over traffic'),
    (CURVES[1], 'mbytes_total', 'Mean client over traffic'),
)
STYLES = ('solid', 'dashed', 'dotted')  # of lines whose colours come again


def curves(groups: Sequence[Group], target: float) -> str:
    """The PANELS side by side, a line a group; no traffic where a run sent none."""
    from dfl_jax.cli.run.plots import COLOURS
    from dfl_jax.cli.tables.panels import table_panels
    from dfl_jax.cli.tables.plot_panels import draw_panels

    runs = {
        str(place): [columns(run, (*CURVES, 'mbytes_total')) for run in group.counted]
        for place, group in enumerate(groups)
    }
    sent = all(run.get('mbytes_total', [0])[0] > 0 for cell in runs.values() for run in cell)
    reached = any(max(run[CURVES[0]]) >= target for cell in runs.values() for run in cell)
    lines = [
        {
            'cell': str(place),
            'label': in_a_line(group.label).replace('$', r'\$'),  # else it begins mathematics
            'colour': place,
            'style': STYLES[place // len(COLOURS) % len(STYLES)],
        }
        for place, group in enumerate(groups)
    ]
    panels = [
        {'title': title, 'lines': lines, 'curve': curve, 'x': x}
        for curve, x, title in PANELS
        if sent or x == 'round'
    ]
    drawn = table_panels({'rows': {}, 'panels': panels}, runs, lambda _: [])
    with warnings.catch_warnings():
        warnings.simplefilter('ignore')  # of glyphs that matplotlib lacks and a browser has
        figure = draw_panels(drawn, 'test accuracy (%)', target if reached else None, abreast=2)
        return html.figure(svg(figure), 'svg+xml', 'Test accuracy in percent, a line a group')


def svg(figure: 'Figure') -> bytes:
    """The figure as a file of its own; it is closed afterwards."""
    from dfl_jax.cli.run.plots import plt

    file = io.BytesIO()
    with plt.rc_context({'svg.fonttype': 'none'}):
        figure.savefig(file, format='svg')
    plt.close(figure)
    return file.getvalue()
