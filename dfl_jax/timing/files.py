"""Worlds by name, and in files."""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dfl_jax.files import read_table
from dfl_jax.setting_error import SettingError
from dfl_jax.timing.world import FIELDS, Online, World, checked, subset, world

DEVICES = Path(__file__).parent / 'devices.csv'


def parse(text: str, clients: int, seed: int = 0) -> World:
    """A world by its description: `devices`, a file that `read` reads, or settings of `world`.

    Args:
      text: e.g. `speed=lognormal:1e10:0.5,uplink=5.6e6,latency=0.02`, `devices` or `world.csv`.
      clients: M, so many of the file's clients where it has more.
      seed: of the world, or of who of a file takes part.

    Raises SettingError for a text that is none of these, ValueError, one line, for a bad world.
    """
    if text == 'devices' or text.endswith(('.npz', '.csv')):
        return subset(read(DEVICES if text == 'devices' else Path(text)), clients, seed)
    settings: dict[str, Any] = {}
    for item in filter(None, text.split(',')):
        name, sign, value = item.partition('=')
        if not sign or name not in (*FIELDS, 'online'):
            remedy = (
                'write speed=, uplink=, downlink=, latency= or online= with commas between them, '
                'devices, or a file .npz or .csv'
            )
            raise SettingError('world', text, f'{item!r} is no setting', remedy)
        if name in settings:
            raise SettingError('world', text, f'{name} is there twice', 'give it once')
        settings[name] = value
    return world(clients, seed, **settings)


def read(path: Path) -> World:
    """The world of a `.csv`, a line a client, or of an `.npz` with arrays of the same names.

    Columns: speed, uplink, and if need be downlink (as uplink) and latency (0), and
    `online_starts`, `online_ends` with `online_period`, one interval a client. An `.npz` may have a
    latency [M, M], several intervals [M, J], and one period for all.

    Raises ValueError, one line, for what is not such a file.
    """
    try:
        arrays = _npz(path) if path.suffix == '.npz' else _csv(path)
    except OSError as error:
        raise ValueError(f'{path} cannot be read: {error.strerror or error}') from error
    known = (*FIELDS, 'online_starts', 'online_ends', 'online_period')
    if unknown := sorted(arrays.keys() - set(known)):
        raise ValueError(f'{path} has a column {unknown[0]!r}; it may have {", ".join(known)}')
    if missing := [name for name in ('speed', 'uplink') if name not in arrays]:
        raise ValueError(f'{path} has no column {missing[0]!r}')
    for name, array in arrays.items():
        if array.ndim == 0 and name != 'online_period':
            raise ValueError(f'{path}: {name} has the shape (); give an array, an entry a client')
    online = None
    absent = {'online_starts', 'online_ends'} - arrays.keys()
    if absent and any(name.startswith('online') for name in arrays):
        raise ValueError(f'{path} has online times without {min(absent)}')
    if not absent:
        period = arrays.get('online_period', np.array(np.inf))
        times = (arrays[name] for name in ('online_starts', 'online_ends'))
        starts, ends = (a[:, None] if a.ndim == 1 else a for a in times)
        online = Online(starts, ends, period if period.ndim else float(period))
    try:
        return checked(
            World(
                arrays['speed'],
                arrays['uplink'],
                arrays.get('downlink', arrays['uplink']),
                arrays.get('latency', np.zeros(len(arrays['speed']))),
                online,
            )
        )
    except ValueError as error:
        raise ValueError(f'{path}: {error}') from error


def _npz(path: Path) -> Mapping[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: np.asarray(file[name], float) for name in file.files}
    except (ValueError, KeyError, EOFError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise ValueError(f'{path} is no .npz of numbers: {error}') from error


def _csv(path: Path) -> Mapping[str, np.ndarray]:
    try:
        table = read_table(path, comments=True)
        rows = [[float(field) for field in row] for row in table.rows()]
    except ValueError as error:
        raise ValueError(f'{path} is no table of numbers below a line of names: {error}') from error
    if not rows:
        raise ValueError(f'{path} holds no client')
    return dict(zip(table.names, np.array(rows).T, strict=True))
