"""What `benchmarks.accelerator` writes, and how it reads what its processes leave."""

import json
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from dfl_jax.experiment.run_directory import RunDirectory

Row = dict[str, Any]
GIB = 2**30
HEADINGS = {  # of a table's columns: key -> heading, unit of it, format
    'ms': ('ms a round', 1, '.3g'),
    'seconds': ('s a round', 1, '.3g'),
    'rounds': ('rounds', 1, 'd'),
    'timed': ('timed', 1, 'd'),
    'accuracy': ('accuracy', 1, '.4f'),
    'client_accuracy': ('mean client', 1, '.4f'),
    'compile': ('compile s', 1, '.1f'),
    'wall': ('whole s', 1, '.0f'),
    'operations': ('10^9 operations', 1e9, '.3g'),
    'arguments': ('arguments GiB', GIB, '.2f'),
    'temporary': ('temporary GiB', GIB, '.2f'),
    'peak': ('peak GiB', GIB, '.2f'),
    'peak_so_far': ('peak so far GiB', GIB, '.2f'),
    'product': ('product GFLOP/s', 1e9, '.0f'),
}


def versions() -> dict[str, str]:
    """Versions of what decides the numbers."""
    found = {'python': platform.python_version()}
    for package in ('jax', 'jaxlib', 'jax-cuda12-plugin', 'jax-cuda13-plugin', 'libtpu'):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def read_run(folder: Path, _: str) -> Row:
    """Seconds, accuracies and peak memory of the newest run in the folder.

    Raises OSError, ValueError or LookupError where it has not come to an evaluation.
    """
    run = RunDirectory(max(path.parent for path in folder.glob('*/config.json')))
    rows = run.rows()
    ends, seconds = ([row[name] for row in rows] for name in ('round', 'seconds'))
    each = np.diff(seconds, prepend=0) / np.diff(ends, prepend=0)
    took = folder / 'took.json'
    return {
        'seconds': float(np.median(each[1:] if len(each) > 1 else each)),
        'rounds': ends[-1],
        'accuracy': rows[-1]['consensus_accuracy'],
        'client_accuracy': rows[-1]['client_accuracy_mean'],
        'accuracies': [row['client_accuracy_mean'] for row in rows],
        **(json.loads(took.read_text(encoding='utf-8')) if took.exists() else {}),
        **({} if run.done.exists() else {'goes_on': run.config()['settings']['rounds']}),
    }


def line(row: Row) -> str:
    """A row in one line."""
    for what, said in (('error', 'failed: '), ('not_run', 'not run: ')):
        if what in row:
            return said + str(row[what])
    if 'kernels' in row:
        first = row['kernels'][0]
        return f'{first["kernel"]} takes {first["share"]:.0%}'
    shown = [key for key in HEADINGS if row.get(key) is not None]
    return ', '.join(f'{HEADINGS[key][0]} {_cell(key, row[key])}' for key in shown)


def page(content: Row) -> str:
    """All results as Markdown."""
    about = content['about']
    lines = [
        '# Measurements of an accelerator',
        '',
        '; '.join(f'{name} {value}' for name, value in about.items() if value is not None),
        '',
        f'    {content["command"]}',
        '',
        f'Last run on {content["date"]}. Rounds are medians without the first, in seconds without '
        'compilation and evaluation.',
    ]
    groups: dict[str, dict[str, Row]] = {}
    for name, row in content['parts'].items():
        group, _, rest = name.partition('/')
        groups.setdefault(group, {})[rest] = row
    for group, rows in groups.items():
        lines += ['', f'## {group}', '', *_table(rows)]
    return '\n'.join(lines) + '\n'


def _table(rows: dict[str, Row]) -> list[str]:
    lines: list[str] = []
    good = {name: row for name, row in rows.items() if not {'error', 'not_run'} & row.keys()}
    for name, row in good.items():
        if 'kernels' in row:
            kernels = (_kernel(**each) for each in row['kernels'])
            lines += [f'{name}:', '', *_markdown(['kernel', 'calls', 'ms', 'share'], kernels)]
    numbers = {name: row for name, row in good.items() if 'kernels' not in row}
    if numbers:
        keys = [key for key in HEADINGS if any(r.get(key) is not None for r in numbers.values())]
        headings = ['', *(HEADINGS[key][0] for key in keys)]
        cells = ([name, *(_cell(k, row.get(k)) for k in keys)] for name, row in numbers.items())
        lines += _markdown(headings, cells)
    others = [f'* {name} {line(row)}' for name, row in rows.items() if name not in good]
    return lines + ([''] if lines and others else []) + others


def _kernel(kernel: str, calls: int, ms: float, share: float) -> list[str]:
    return [f'`{kernel.replace("|", "/")[:80]}`', str(calls), f'{ms:.3g}', f'{share:.1%}']


def _cell(key: str, value: float | None) -> str:
    _, unit, form = HEADINGS[key]
    if value is None:
        return ''
    return format(value if form == 'd' else value / unit, form)


def _markdown(headings: list[str], rows: Iterable[list[str]]) -> list[str]:
    head, *lines = (f'| {" | ".join(cells)} |' for cells in (headings, *rows))
    return [head, f'|---|{"--:|" * (len(headings) - 1)}', *lines]
