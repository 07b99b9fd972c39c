"""The peers that there are, and the table of their turns (`benchmarks.vs_peers`)."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from absl import app

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


def table(turns: list[dict[str, dict[str, Any]]]) -> str:
    """Markdown: medians over `turns`, of which each has what every script reported."""
    rows = [
        f'| {turns[0][OURS]["clients"]} clients | ms a round | client-steps/s | rounds of ours '
        '| loss before, after |',
        '| --- | --: | --: | --: | --: |',
    ]
    for name in turns[0]:
        lines = [turn[name] for turn in turns]
        ratios = [turn[name]['median'] / turn[OURS]['median'] for turn in turns]
        before, after = lines[0]['loss']
        rows.append(
            f'| {lines[0]["peer"]} {lines[0]["version"]} '
            f'| {1e3 * np.median([line["median"] for line in lines]):,.0f} '
            f'| {np.median([line["steps_per_second"] for line in lines]):,.0f} '
            f'| {np.median(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f}) '
            f'| {before:.2f}, {after:.2f} |'
        )
    return '\n'.join(rows)
