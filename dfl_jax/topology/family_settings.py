"""The settings of a topology, its errors and checks, and the random streams of its parts."""

import enum
import os
from typing import NamedTuple

from dfl_jax.host_memory import lack_of_memory
from dfl_jax.setting_error import SettingError

BYTES_OF_PLACE = 5  # a member and its mask
BYTES_OF_WEIGHT = 8


class Stream(enum.IntEnum):
    """Streams of random numbers, so that a common seed does not correlate what is drawn."""

    GRAPH = 0
    LINKS = 1
    CLIENTS = 2
    COHORTS = 3
    RECEIVERS = 4
    REWIRING = 5
    MEETINGS = 6
    ISOLATED = 7


class TopologyError(ValueError):
    """A graph that cannot be read, held or used; of settings it is a SettingError."""


class Settings(NamedTuple):
    """The settings of all families; each reads what it needs."""

    clients: int  # M
    degree: int = 5  # neighbours of a client without itself, or their mean
    path: str | os.PathLike | None = None  # edge_list, directed_edge_list, matrix
    probability: float | None = None  # erdos_renyi, of a link, in place of the degree
    rewiring: float = 0.1  # watts_strogatz, probability
    exponent: float = 2.5  # configuration, chung_lu
    dimensions: int = 2  # torus
    assortativity: float | None = None  # target to which every draw is rewired
    rounds: int = 1  # T

    def error(self, field: str, message: str, remedy: str = '') -> SettingError:
        """The error of a field whose value follows the message."""
        text = f'{message}, got {field}={getattr(self, field)}{remedy and f"; {remedy}"}'
        return SettingError.of(text, **{field: getattr(self, field)})


def check_probability(name: str, value: float, setting: str | None = None) -> None:
    """Raises SettingError for a value outside [0, 1].

    name: of the setting, in words; setting: its name where that is another.
    """
    if not 0 <= value <= 1:
        text = f'{name} is a probability between 0 and 1, got {value}'
        raise SettingError.of(text, **{setting or name.replace(' ', '_'): value})


def check_assortativity(target: float) -> None:
    """Raises SettingError for a value outside [-1, 1]."""
    if not -1 <= target <= 1:
        text = f'assortativity is a correlation between -1 and 1, got {target}'
        raise SettingError.of(text, assortativity=target)


def check_memory(what: str, rounds: int, clients: int, size: int) -> None:
    """Raises `TopologyError` for graphs of `size` bytes that the host has not free."""
    if lack := lack_of_memory(size):
        often = f' in {rounds} rounds' if rounds > 1 else ''
        raise TopologyError(
            f'{what} of {clients} clients{often} take {lack}; lower the clients, '
            f'{"the rounds, " if rounds > 1 else ""}or the degree'
        )
