"""Worlds by name, in files, and from the records of others."""

import json
import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dfl_jax.files import read_table
from dfl_jax.timing.world import FIELDS, Online, World, checked, subset, world

DEVICES = Path(__file__).parent / 'devices.csv'


def parse(text: str, clients: int, seed: int = 0) -> World:
    """A world by its description: `devices`, a file that `read` reads, or settings of `world`.

    Args:
      text: e.g. `speed=lognormal:1e10:0.5,uplink=5.6e6,latency=0.02`, `devices` or `world.csv`.
      clients: M, so many of the file's clients where it has more.
      seed: of the world, or of who of a file takes part.

    Raises ValueError, one line.
    """
    if text == 'devices' or text.endswith(('.npz', '.csv')):
        return subset(read(DEVICES if text == 'devices' else Path(text)), clients, seed)
    settings: dict[str, Any] = {}
    for item in filter(None, text.split(',')):
        name, sign, value = item.partition('=')
        if not sign or name not in (*FIELDS, 'online'):
            raise ValueError(
                f'--world={text}: {item!r} is no setting; write speed=, uplink=, downlink=, '
                'latency= or online= with commas between them, devices, or a file .npz or .csv'
            )
        if name in settings:
            raise ValueError(f'--world={text}: {name} is there twice; give it once')
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


def write(world: World, path: Path) -> None:
    """Writes a world as `.npz`, or without online times and links of their own as `.csv`."""
    arrays = {name: getattr(world, name) for name in FIELDS}
    if path.suffix == '.npz':
        if world.online is not None:
            arrays |= {f'online_{name}': part for name, part in world.online._asdict().items()}
        np.savez(path, **arrays)
        return
    if world.online is not None or world.latency.ndim == 2:
        raise ValueError(f'{path}: online times and latencies of links need an .npz')
    rows = np.stack([*arrays.values()], axis=1)
    text = '\n'.join(','.join(f'{value:.6g}' for value in row) for row in rows)
    path.write_text(f'{",".join(arrays)}\n{text}\n', encoding='utf-8')


def from_fedscale(
    capacity: str | Path | Mapping[Any, Mapping[str, float]],
    availability: str | Path | Mapping[Any, Mapping[str, Any]] | None = None,
    *,
    operations: float,
) -> World:
    """The world of FedScale's records of devices.

    Args:
      capacity: {device: {'computation': milliseconds a sample, 'communication': kbit/s}}, or a file
        of it, `.json` or a pickle of plain dictionaries and numbers.
      availability: {device: {'active': [seconds, ...], 'inactive': [...], 'finish_time': seconds}},
        the times at which it comes and goes, which repeat after its own finish time; or a file.
      operations: of the sample whose milliseconds are recorded.

    Raises ValueError, one line, for other records, and for a pickle that holds anything else.
    """
    devices = [*_records(capacity).values()]
    try:
        speed = np.array([operations / (float(each['computation']) / 1e3) for each in devices])
        link = np.array([1e3 * float(each['communication']) for each in devices])
        online = None if availability is None else _intervals([*_records(availability).values()])
    except (KeyError, TypeError, ZeroDivisionError) as error:
        raise ValueError(
            f'a record without {error}; FedScale has computation and communication of each '
            'device, and active, inactive and finish_time'
        ) from error
    if online is not None:
        online = online.of(slice(len(speed)))
    return checked(World(speed, link, link.copy(), np.zeros(len(speed)), online))


def _intervals(devices: list[Mapping[str, Any]]) -> Online:
    longest = max(len(each['active']) for each in devices)
    starts, ends = np.full((2, len(devices), max(longest, 1)), np.inf)
    periods = np.array([float(each['finish_time']) for each in devices])
    for row, (each, period) in enumerate(zip(devices, periods.tolist(), strict=True)):
        comes, goes = (
            [t for t in map(float, each[name]) if t < period] for name in ('active', 'inactive')
        )
        starts[row, : len(comes)] = comes
        ends[row, : len(comes)] = [min(t for t in (*goes, period) if t > come) for come in comes]
    alike = (periods == periods[0]).all()
    return Online(starts, ends, float(periods[0]) if alike else periods)


class _Plain(pickle.Unpickler):
    """Reads dictionaries, lists, texts and numbers, and runs nothing."""

    def find_class(self, module: str, name: str) -> Any:
        raise ValueError(f'it holds {module}.{name}, which is code; convert it to .json')


def _records(source: str | Path | Mapping[Any, Any]) -> Mapping[Any, Any]:
    if isinstance(source, Mapping):
        return source
    path = Path(source)
    try:
        with path.open('rb') as file:
            records = json.load(file) if path.suffix == '.json' else _Plain(file).load()
    except (ValueError, OSError, EOFError, pickle.UnpicklingError) as error:
        raise ValueError(f'{path} cannot be read: {error}') from error
    if not isinstance(records, Mapping) or not records:
        raise ValueError(f'{path} holds no records of devices')
    return records
