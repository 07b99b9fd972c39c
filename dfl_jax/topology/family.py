"""What a family of graphs is: how one is drawn, what it takes, and how large it becomes."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import networkx as nx
import numpy as np

from dfl_jax.setting_error import SettingError
from dfl_jax.topology.family_settings import (
    Settings,
    TopologyError,
    check_assortativity,
    check_probability,
)
from dfl_jax.topology.own_graphs import links_of_networkx

LARGEST_EXPONENT = 1000  # of a power law


@dataclass(frozen=True)
class Family:
    """A family of graphs: a row of `FAMILIES`, or one of your own.

    `draw(settings, rng)` returns one graph of the clients 0 to M - 1, M = settings.clients: links
    [E, 2], or a networkx graph of M nodes, whose edges may have a `weight` as for `from_networkx`.
    Where links go one way, a link (i, j) says that i hears j, and so does an edge from j to i.
    Self-loops are left out.

    >>> matching = Family(lambda settings, rng: np.arange(settings.clients).reshape(-1, 2))
    >>> draw(matching, Settings(4), np.random.default_rng(0))[0].tolist()
    [[0, 1], [2, 3]]
    """

    draw: Callable[[Settings, np.random.Generator], Any]
    takes: tuple[str, ...] = ()  # the fields of Settings that it reads, beside clients and rounds
    directed: bool = False  # whether a client may hear another that does not hear it
    # Whether `draw` returns the graphs of successive rounds, [(arcs [E, 2], weights [E]), ...],
    # which are gone through again when they are used up, without relabelling
    sequence: bool = False
    static: bool | None = None  # always or never the same graph in all rounds; None: as asked for
    fixed_shape: bool = False  # whether only the places of the clients differ from draw to draw
    equal_degrees: bool = False
    least_clients: int = 2
    check: Callable[[Settings], None] = lambda settings: None  # raises SettingError
    # The most neighbours of a client in settings.rounds draws, exact or a bound that is rarely
    # exceeded, from which the memory is planned; None: those of binomial degrees
    neighbours: Callable[[Settings], float] | None = None
    links: Callable[[Settings], int] | None = None  # E of a draw; None: from the degrees
    by_networkx: Callable[[Settings], bool] = lambda settings: False  # which takes more memory


def mean_degree(settings: Settings) -> float:
    """The neighbours of a client, or their mean."""
    if settings.probability is None:
        return settings.degree
    return settings.probability * (settings.clients - 1)


def draw(
    family: Family, settings: Settings, rng: np.random.Generator, name: str = 'the family'
) -> tuple[np.ndarray, np.ndarray | None]:
    """The links [E, 2] int32 of one graph of a family that is no sequence, and their weights [E].

    None where they have no weights. name: of the family, for errors.

    Raises `TopologyError` for what is no graph of these clients.
    """
    drawn, weights = family.draw(settings, rng), None
    if isinstance(drawn, tuple):
        drawn, weights = drawn
    elif isinstance(drawn, nx.Graph):
        if drawn.is_directed() != family.directed or len(drawn) != settings.clients:
            raise TopologyError(
                f'{name} draws a {type(drawn).__name__} of {len(drawn)} nodes; draw '
                f'{settings.clients}, in a DiGraph if directed=True and else in a Graph'
            )
        drawn, weights = links_of_networkx(drawn, name)
    links = np.asarray(drawn)
    links = links if links.size else np.zeros((0, 2), np.int32)
    whole = links.dtype.kind in 'iu' and links.shape[1:] == (2,)
    if not whole or (len(links) and not 0 <= links.min() <= links.max() < settings.clients):
        raise TopologyError(
            f'{name} draws {links.dtype} {links.shape}; give links [E, 2] between the clients 0 to '
            f'{settings.clients - 1}'
        )
    others = links[:, 0] != links[:, 1]
    if not others.all():
        links, weights = links[others], None if weights is None else weights[others]
    return links.astype(np.int32, copy=False), weights


def check_settings(name: str, family: Family, settings: Settings) -> None:
    """Raises SettingError for settings of which no graph can be drawn."""
    clients, degree, probability = settings.clients, settings.degree, settings.probability
    if settings.rounds < 1:
        raise settings.error('rounds', 'a schedule needs at least 1 round')
    if clients < family.least_clients:
        raise settings.error('clients', f'{name} needs at least {family.least_clients} clients')
    if 'degree' in family.takes:
        if degree < 1:
            raise settings.error('degree', f'{name} needs a degree of at least 1')
        if degree >= clients:
            raise SettingError.of(
                f'degree {degree} needs more than {degree} clients, got clients={clients}; '
                f'lower the degree to {clients - 1} or less',
                degree=degree,
            )
    family.check(settings)
    if probability is not None:
        check_probability('the probability of a link', probability, 'probability')
        if 'probability' not in family.takes:
            text = f'{name} has no probability of a link; leave it out'
            raise SettingError.of(text, probability=probability)
    if 'rewiring' in family.takes:
        check_probability('rewiring', settings.rewiring)
    if 'exponent' in family.takes and not 2 < settings.exponent <= LARGEST_EXPONENT:
        raise settings.error(
            'exponent',
            f'{name} needs a finite exponent above 2, where the mean degree of any number of '
            f'clients is bounded, and up to {LARGEST_EXPONENT}',
            'take 2.5',
        )
    if 'path' in family.takes and settings.path is None:
        of_what = 'weights [M, M], as numpy.save writes it' if family.sequence else 'links'
        raise SettingError.of(f'{name} needs the path of a file of {of_what}, got none', path=None)
    if 'path' not in family.takes and settings.path is not None:
        takers = 'edge_list or directed_edge_list or matrix'
        text = f'{name} reads no file, got {settings.path}; take {takers}'
        raise SettingError.of(text, path=settings.path)
    if settings.assortativity is None:
        return
    check_assortativity(settings.assortativity)
    reason = ''
    if family.directed or family.sequence:
        reason = f'only undirected links without weights are rewired, and those of {name} are not'
    elif family.equal_degrees:
        reason = f'the clients of {name} have equal degrees, which no assortativity tells apart'
    if reason:
        raise settings.error('assortativity', reason, 'leave it out or take erdos_renyi')


def most_members(family: Family, settings: Settings) -> int:
    """K of settings.rounds draws: exact where the family fixes it, else rarely exceeded."""
    most = (family.neighbours or _most_of_binomial)(settings)
    return 1 + min(math.ceil(most), settings.clients - 1)


def _most_of_binomial(settings: Settings) -> float:
    """The largest of M T binomial degrees, bounded by Bernstein's inequality."""
    surprise = math.log(settings.clients) + math.log(settings.rounds)
    mean = mean_degree(settings)
    return mean + surprise / 3 + math.sqrt(surprise**2 / 9 + 2 * mean * surprise)


def links_of(family: Family, settings: Settings) -> int:
    """About the number of links E of one draw, in directed families those of both directions."""
    if family.links is not None:
        return family.links(settings)
    clients = settings.clients
    known = 'degree' in family.takes
    mean = mean_degree(settings) if known else most_members(family, settings) - 1
    heard = int(clients * min(mean, clients - 1))
    return heard if family.directed or family.sequence else heard // 2
