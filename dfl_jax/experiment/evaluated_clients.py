"""The clients over which means are taken, and others that a file lists."""

from pathlib import Path

import numpy as np

from dfl_jax.files import read_json
from dfl_jax.heterogeneous import Population
from dfl_jax.setting_error import SettingError

NAME = 'evaluate_clients'


def chosen_clients(path: str | None, clients: int) -> np.ndarray | None:
    """Whether each client is among those that a JSON file lists, [M] bool; None without a file.

    Raises SettingError, one line.
    """
    return None if path is None else listed_clients(NAME, path, Path(path), clients)


def listed_clients(name: str, value: str, path: Path, clients: int) -> np.ndarray:
    """Whether each client is among those that a JSON file lists, [M] bool.

    name, value: of the setting that names the file. Raises SettingError, one line.
    """
    try:
        numbers = read_json(path)
    except ValueError as error:
        raise SettingError(name, value, str(error)) from None
    whole = isinstance(numbers, list) and all(type(n) is int for n in numbers)
    if not whole or not numbers or len(set(numbers)) < len(numbers):
        text, remedy = 'holds no list of different clients', 'write it as [0, 1, 4]'
        raise SettingError(name, value, text, remedy, colon=False)
    if wrong := [n for n in numbers if not 0 <= n < clients]:
        text, remedy = (
            f'names client {wrong[0]} of {clients}',
            f'number them from 0 to {clients - 1}',
        )
        raise SettingError(name, value, text, remedy, colon=False)
    chosen = np.zeros(clients, bool)
    chosen[numbers] = True
    return chosen


def check_architectures(
    path: str | None, chosen: np.ndarray | None, population: Population | None
) -> None:
    """Raises SettingError for an architecture of which no client is chosen."""
    if chosen is None or population is None:
        return
    for name, clients in population.clients.items():
        if not chosen[clients].any():
            remedy = f'add one, e.g. {clients[0]}'
            raise SettingError(NAME, path, f'names no client of {name}', remedy, colon=False)
