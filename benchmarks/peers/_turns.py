"""The peers that there are, and the table of their turns (`benchmarks.vs_peers`)."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from absl import app

from benchmarks._common import Table

OURS = 'ours'
ROOT = Path(__file__).resolve().parents[2]


def names() -> list[str]:
    """The peers that there is a script for."""
    scripts = (path.stem for path in (ROOT / 'benchmarks' / 'peers').glob('[a-z]*.py'))
    return sorted(name for name in scripts if name != OURS)


def interpreter(peer: str) -> tuple[str, str]:
    """The two parts of NAME:PYTHON."""
    name, _, python = peer.partition(':')
    if name not in names() or not python:
        raise app.UsageError(f'--peer={peer} is not NAME:PYTHON with NAME one of {names()}')
    return name, os.path.abspath(python)


def print_table(turns: list[dict[str, dict[str, Any]]]) -> None:
    """Prints medians over `turns`, each of which holds what every script reported."""
    clients = f'{turns[0][OURS]["clients"]} clients'
    table = Table(clients, 'ms a round', 'client-steps/s', 'rounds of ours', 'loss before, after')
    for name, first in turns[0].items():
        seconds, steps = (
            float(np.median([turn[name][key] for turn in turns]))
            for key in ('median', 'steps_per_second')
        )
        ratios = [turn[name]['median'] / turn[OURS]['median'] for turn in turns]
        before, after = first['loss']
        table.row(
            f'{first["peer"]} {first["version"]}',
            (1e3 * seconds, ',.0f'),
            (steps, ',.0f'),
            f'{np.median(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f})',
            f'{before:.2f}, {after:.2f}',
        )
    print()
