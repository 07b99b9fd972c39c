"""What a task measures over simulated seconds, a panel a world; and what the worlds are like."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dfl_jax.plots import COLOURS, plt, save
from dfl_jax.timing import World
from dfl_jax.timing.world import FIELDS, UNITS


def plot_times(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws the replays that `time.json` holds; seeds of a run have one colour and one entry of the
    legend, which counts them."""
    worlds = list(dict.fromkeys(row['world'] for row in rows))
    seeds = Counter(without_seed(name) for name in {row['run'] for row in rows})
    runs = list(dict.fromkeys(without_seed(row['run']) for row in rows))
    size = 5.2 * len(worlds), 4
    figure, axes = plt.subplots(1, len(worlds), figsize=size, squeeze=False, sharey=True)
    for axis, world in zip(axes[0], worlds, strict=True):
        for row in (row for row in rows if row['world'] == world):
            run = without_seed(row['run'])
            colour = COLOURS[runs.index(run) % len(COLOURS)]
            times = row['simulated_seconds']
            one = 'o' if len(times) == 1 else None  # which no line would show
            axis.plot(times, row[row['metric']], color=colour, marker=one, label=run)
        axis.set(xscale='log', xlabel='simulated seconds', title=world[:60])
        axis.grid(alpha=0.3)
    metrics = ' or '.join(sorted({row['metric'] for row in rows}))
    axes[0, 0].set_ylabel(f'{metrics} of the consensus model')
    lines = dict(zip(*reversed(axes[0, 0].get_legend_handles_labels()), strict=True))
    names = [name if seeds[name] == 1 else f'{name} ({seeds[name]} seeds)' for name in lines]
    axes[0, 0].legend(lines.values(), names, fontsize=8)
    figure.tight_layout()
    save(figure, path)


def without_seed(run: str) -> str:
    """The name of a run as tables and sweeps write it, dpsgd-iid-seed0 or alpha=0.1,seed=0, without
    the seed."""
    return re.sub(r'(^|[-,/])seed=?\d+', '', run).lstrip(',-') or run


def plot_worlds(worlds: Mapping[str, World], path: Path) -> None:
    """Draws what the clients of each world have, from the least to the most, and how many of them
    are online over a period."""
    panels = [*FIELDS, 'online']
    figure, axes = plt.subplots(1, len(panels), figsize=(3.3 * len(panels), 3.4))
    for number, (name, world) in enumerate(worlds.items()):
        colour = COLOURS[number % len(COLOURS)]
        share = np.linspace(0, 100, len(world.speed))
        for axis, field in zip(axes, FIELDS, strict=False):
            values = getattr(world, field)
            values = values if values.ndim == 1 else values.mean(axis=1)
            axis.plot(share, np.sort(values), color=colour, label=name[:60])
        times, online = _online_over_time(world)
        axes[-1].plot(times, 100 * online, color=colour)
    for axis, field in zip(axes, FIELDS, strict=False):
        axis.set(yscale='log', xlabel='clients (%)', title=f'{field}, {UNITS[field]}')
    axes[FIELDS.index('latency')].set_yscale('symlog', linthresh=1e-3)
    axes[-1].set(xlabel='seconds', title='clients online (%)', ylim=(0, 105))
    for axis in axes:
        axis.grid(alpha=0.3)
    figure.legend(*axes[0].get_legend_handles_labels(), loc='lower center', ncols=2, frameon=False)
    figure.tight_layout(rect=(0, 0.04 + 0.05 * -(-len(worlds) // 2), 1, 1))
    save(figure, path)


def _online_over_time(world: World) -> tuple[np.ndarray, np.ndarray]:
    """Times [201] and the share of the clients that is online at each of them."""
    end = 1.0
    if world.online is not None:
        shown = np.append(world.online.ends, world.online.period)
        end = float(shown[np.isfinite(shown)].max(initial=1.0))
    times = np.linspace(0, end, 201)
    return times, np.array([world.is_online(np.full(len(world.speed), t)).mean() for t in times])
