"""The figure of experiments.select."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from dfl_jax.experiment.run_directory import Row
from dfl_jax.papers.select.table import LABELS, TIMES
from dfl_jax.plots import COLOURS, MUTED, plt, save, tidy

ORDERS = {  # of selection.json; the last lies on top
    'best_to_worst': COLOURS[1],
    'random': COLOURS[2],
    'worst_to_best': COLOURS[0],
}
NEIGHBOURS = {'all': ('all neighbours', COLOURS[0]), 'better half': ('better half', COLOURS[3])}


def plot_select(selection: Row, path: Path) -> None:
    """Figure 6, accuracy against clients averaged beside the clients, and final topologies.

    selection: what selection.json holds.
    """
    size, widths = (11, 4.2), (2.2, 0.7, 1.5)
    figure, panels = plt.subplots(1, 3, figsize=size, width_ratios=widths, layout='constrained')
    panels[1].sharey(panels[0])
    _orders(panels[0], selection)
    _clients(panels[1], selection)
    _topologies(panels[2], selection)
    for axes in panels:
        tidy(axes)
    save(figure, path)


def _orders(axes, selection: Row) -> None:
    for how, colour in ORDERS.items():
        curves = 100 * np.array(selection['orders'][how]['accuracies'])  # [draws, M]
        low, mean, high = curves.min(axis=0), curves.mean(axis=0), curves.max(axis=0)
        sizes = range(1, len(mean) + 1)
        axes.fill_between(sizes, low, high, color=colour, alpha=0.18, linewidth=0)
        label = LABELS[how] + (f' (range of {len(curves)})' if len(curves) > 1 else '')
        axes.plot(sizes, mean, color=colour, lw=2, label=label)
    target = 100 * selection['target']
    axes.axhline(target, color=MUTED, lw=1, ls=':', label=f'{target:.4g} %')
    axes.set_xscale('log')
    _ticks(axes, [n for n in (1, 3, 10, 30, 100, 300, 1000) if n <= len(mean)])
    axes.set(xlabel='clients averaged', ylabel='test accuracy (%)')
    axes.legend(frameon=False, loc='lower right')


def _clients(axes, selection: Row) -> None:
    accuracies = [100 * accuracy for accuracy in selection['client_accuracies']]
    axes.hist(accuracies, bins=25, orientation='horizontal', color=MUTED)
    axes.set_xlabel('number of clients')
    axes.tick_params(labelleft=False)


def _topologies(axes, selection: Row) -> None:
    for neighbours, (label, colour) in NEIGHBOURS.items():
        rows = [row for row in selection['final_topologies'] if row['neighbours'] == neighbours]
        degrees = [row['degree'] for row in rows]
        for step, (often, style) in enumerate(zip(TIMES, ('-', '--'), strict=True)):
            means = [100 * row['mean'][step] for row in rows]
            look = {'color': colour, 'marker': 'o', 'ms': 4, 'label': f'{label}, {often}'}
            axes.plot(degrees, means, style, **look)
    average = 100 * selection['average_of_all']
    axes.axhline(average, color=COLOURS[6], lw=1.2, label='average of all')
    axes.set_xscale('log')
    _ticks(axes, degrees)
    axes.set(xlabel='degree of the final topology', ylabel='accuracy of the mean client (%)')
    axes.legend(frameon=False, fontsize=8, loc='lower right')


def _ticks(axes, places: Sequence[int]) -> None:
    """Whole numbers on a logarithmic axis."""
    axes.set_xticks(places, list(map(str, places)))
    axes.minorticks_off()
