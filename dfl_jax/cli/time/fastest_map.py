"""The map of the fastest method: where each one is first at a target, by link and by computer.

`dfl-jax time --map` draws what map.json describes:

  title, source  what it shows, and where its numbers are from
  targets        accuracies of the consensus model
  columns        settings of the data
  uplink, speed  the least and the largest, bits and operations a second
  latency        seconds
  points         [label, uplink, speed] at which times are told
  methods        [{label, mbytes and gflop of a client in a round, curves: {column: [file, cell]}}]

All clients are alike, so that a round takes its work and its transfer. Rounds until a target are
the mean over the seeds of a stored curve; a method that never gets there is left out.
"""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from dfl_jax.experiment.run_directory import Row
from dfl_jax.files import read_json, write_atomically
from dfl_jax.paper_folder import CHECKOUT, PAPERS
from dfl_jax.plain_text import markdown_table
from dfl_jax.plots import COLOURS, plt, save
from dfl_jax.results.measured import mean, to_target

DEFINITION = PAPERS / 'comparison' / 'map.json'
CELLS = 161  # a side of the map
FILES = ('time-map.md', 'time-map.png')
Reached = dict[tuple[str, float], list[float]]  # (column, target) -> rounds, by method; inf: never
NAMES = {1: 'second', 60: 'minute', 3600: 'hour', 86400: 'day', 31557600: 'year'}


def rounds_to(target: float, method: Row, column: str, folder: Path) -> float:
    """Mean rounds over the seeds of a stored curve; infinite where one never gets there."""
    if column not in method['curves']:
        return np.inf
    file, cell = method['curves'][column]
    runs = read_json(folder / file)['runs'][cell]
    found = mean([to_target('round')({'target': target}, run) for run in runs])
    return np.inf if found.bound else found.value


def in_units(time: float) -> str:
    """Seconds in the unit that leaves a number from 1 to a few hundred."""
    if not np.isfinite(time):
        return '-'
    unit = max((each for each in NAMES if time >= each), default=1)
    number = f'{time / unit:.3g}'
    return f'{number} {NAMES[unit]}{"s" * (number != "1")}'


def read_definition() -> tuple[Row, Path]:
    """What the map shows, and the folder of the stored curves. Raises ValueError without these."""
    folder = CHECKOUT.parent / 'docs' / 'results'
    if not folder.is_dir():
        raise ValueError('the stored curves lie in the documents; draw the map from a checkout')
    return read_json(DEFINITION), folder


def rounds_to_targets(definition: Row, folder: Path) -> Reached:
    """Rounds until each target of all methods, by panel."""
    return {
        (column, target): [rounds_to(target, m, column, folder) for m in definition['methods']]
        for column in definition['columns']
        for target in definition['targets']
    }


def draw_map(out: Path) -> str:
    """Writes the map and its table into `out`; returns the table."""
    definition, folder = read_definition()
    rounds = rounds_to_targets(definition, folder)
    text = report(definition, rounds)
    out.mkdir(parents=True, exist_ok=True)
    _plot(definition, rounds, out / FILES[1])
    write_atomically(out / FILES[0], text + '\n')
    return text


def _times(definition: Row, rounds: list[float], uplink: Any, speed: Any) -> np.ndarray:
    """Seconds until so many rounds of each method are over, its clients alike, [methods, ...]."""
    return np.stack(
        [
            r * (m['gflop'] * 1e9 / speed + m['mbytes'] * 8e6 / uplink + definition['latency'])
            for m, r in zip(definition['methods'], rounds, strict=True)
        ]
    )


def _panel(column: str, target: float) -> str:
    return f'{100 * target:g} %, {column.replace("alpha", "alpha = ")}'


def report(definition: Row, reached: Reached) -> str:
    """Rounds, traffic and work to each target, and the times at the chosen points."""
    head = ['', 'MB a round', 'GFLOP a round', *(f'rounds to {_panel(*each)}' for each in reached)]
    rows = [
        [m['label'], f'{m["mbytes"]:,.4g}', f'{m["gflop"]:,.3g}']
        + ['-' if np.isinf(each[i]) else f'{each[i]:.3g}' for each in reached.values()]
        for i, m in enumerate(definition['methods'])
    ]
    parts = [markdown_table(head, rows, 1)]
    points, uplinks, speeds = zip(*definition['points'], strict=True)
    for panel, rounds in reached.items():
        times = _times(definition, rounds, np.array(uplinks), np.array(speeds))  # [methods, points]
        rows = []
        for i in np.flatnonzero(np.isfinite(rounds)):
            cells = zip(map(in_units, times[i].tolist()), times.argmin(axis=0) == i, strict=True)
            marked = [f'**{words}**' if fastest else words for words, fastest in cells]
            rows.append([definition['methods'][i]['label'], *marked])
        parts.append(f'Time to {_panel(*panel)}:\n\n{markdown_table(["", *points], rows, 1)}')
    return '\n\n'.join(parts)


def _plot(definition: Row, reached: Reached, path: Path) -> None:
    methods = definition['methods']
    up, speed = (np.geomspace(*definition[name], CELLS) for name in ('uplink', 'speed'))
    figure, axes = plt.subplots(
        2, -(-len(reached) // 2), figsize=(9.5, 8.4), sharex=True, sharey=True, squeeze=False
    )
    colours = ListedColormap([COLOURS[i % len(COLOURS)] for i in range(len(methods))])
    shown: set[int] = set()
    for axis, ((column, target), rounds) in zip(axes.ravel(), reached.items(), strict=False):
        times = _times(definition, rounds, *np.meshgrid(up, speed))
        first = times.argmin(axis=0)
        shown |= {*np.unique(first).tolist()}
        look = {'cmap': colours, 'vmin': -0.5, 'vmax': len(methods) - 0.5, 'alpha': 0.6}
        axis.pcolormesh(up, speed, first, rasterized=True, **look)
        look = {'levels': [*NAMES], 'colors': 'k', 'linewidths': 0.8}
        lines = axis.contour(up, speed, times.min(axis=0), **look)
        axis.clabel(lines, fmt={each: f'1 {name}' for each, name in NAMES.items()}, fontsize=8)
        axis.set(xscale='log', yscale='log', title=f'fastest to {_panel(column, target)}')
    for axis in axes[-1]:
        axis.set_xlabel('link, bits a second')
    for axis in axes[:, 0]:
        axis.set_ylabel('computer, operations a second')
    patches = [Patch(color=colours(i), alpha=0.6, label=methods[i]['label']) for i in sorted(shown)]
    figure.legend(handles=patches, loc='lower center', ncols=4, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    save(figure, path)
