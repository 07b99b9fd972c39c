"""The figures of a report as SVG whose colours follow the page's."""

import io
import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

from dfl_jax.cli.report.measures import columns
from dfl_jax.cli.report.runs import Group
from dfl_jax.cli.tables.curves import CURVES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = (  # curve, x, what they are
    (CURVES[0], 'round', 'Aggregated model over rounds'),
    (CURVES[0], 'mbytes_total', 'Aggregated model over traffic'),
    (CURVES[1], 'round', 'Mean client over rounds'),
    (CURVES[1], 'mbytes_total', 'Mean client over traffic'),
)
GRID = '#e4e7eb'  # of plots.tidy


def curves(groups: Sequence[Group], target: float, name: str) -> list[str]:
    """An SVG for each of PANELS, a line a group; no traffic where a run sent none.

    name: of these groups.
    """
    from dfl_jax.cli.run.plots import plt
    from dfl_jax.cli.tables.panels import table_panels
    from dfl_jax.cli.tables.plot_panels import draw_panels

    runs = {
        str(place): [columns(run, (*CURVES, 'mbytes_total')) for run in group.counted]
        for place, group in enumerate(groups)
    }
    sent = all(run.get('mbytes_total', [0])[0] > 0 for cell in runs.values() for run in cell)
    reached = any(max(run[CURVES[0]]) >= target for cell in runs.values() for run in cell)
    drawn = []
    for curve, x, title in PANELS:
        if x == 'mbytes_total' and not sent:
            continue
        lines = [
            # The page has a legend of its own, and matplotlib would take a name for mathematics.
            {'cell': str(place), 'label': str(place), **group.look._asdict()}
            for place, group in enumerate(groups)
        ]
        panel = {'title': title, 'lines': lines, 'curve': curve, 'x': x}
        panels = table_panels({'rows': {}, 'panels': [panel]}, runs, lambda _: [])
        with plt.rc_context({'font.size': 12}):
            figure = draw_panels(panels, 'test accuracy (%)', target if reached else None)
        for legend in [*figure.legends]:
            legend.remove()  # the page has one for all
        drawn.append(
            svg(figure, f'{name}-{curve}-{x}', f'{title}: test accuracy in percent, a line a group')
        )
    return drawn


def svg(figure: 'Figure', name: str, label: str) -> str:
    """The figure as an <svg> element, closed afterwards. name: unlike that of any other figure."""
    from dfl_jax.cli.run.plots import plt

    text = io.StringIO()
    with plt.rc_context({'svg.fonttype': 'none', 'svg.hashsalt': name}):
        nobody = dict.fromkeys(('Date', 'Creator', 'Format', 'Type'))
        figure.savefig(text, format='svg', transparent=True, metadata=nobody)
    plt.close(figure)
    return themed(text.getvalue(), label)


def themed(text: str, label: str) -> str:
    """matplotlib's SVG as an element of the page: its colours and font, `label` to be read out."""
    from dfl_jax.cli.run.plots import COLOURS, MUTED

    text = text[text.index('<svg') :]
    text = re.sub(r'<defs>\s*<style.*?</style>\s*</defs>', '', text, count=1, flags=re.DOTALL)
    text = re.sub(r'<g id="[^"]*"', '<g', text)
    text = re.sub(r'font-family: [^;"]*;? ?', '', text)
    text = re.sub(r'font: ([\d.]+px) [^;"]*', r'font-size: \1', text)
    variables = {colour: f'c{place}' for place, colour in enumerate(COLOURS)}
    variables |= {MUTED: 'muted', GRID: 'line', '#000000': 'rule', '#ffffff': 'paper'}
    for colour, variable in variables.items():
        text = text.replace(colour, f'var(--{variable})')
    return text.replace('<svg ', f'<svg role="img" aria-label="{escape(label)}" ', 1).strip()
