"""Accuracy over simulated seconds, a panel a world."""

from pathlib import Path
from typing import Any

from dfl_jax.cli.run.plots import COLOURS, plt


def plot_times(rows: list[dict[str, Any]], path: Path) -> None:
    """Draws the replays that `time.json` holds."""
    worlds = list(dict.fromkeys(row['world'] for row in rows))
    runs = list(dict.fromkeys(row['run'] for row in rows))
    figure, axes = plt.subplots(
        1, len(worlds), figsize=(5.2 * len(worlds), 4), squeeze=False, sharey=True
    )
    for axis, world in zip(axes[0], worlds, strict=True):
        for row in (row for row in rows if row['world'] == world):
            colour = COLOURS[runs.index(row['run']) % len(COLOURS)]
            axis.plot(row['simulated_seconds'], row['accuracy'], color=colour, label=row['run'])
        axis.set(xscale='log', xlabel='simulated seconds', title=world[:60])
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylabel('accuracy of the aggregated model')
    axes[0, 0].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)
