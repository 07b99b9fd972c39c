"""What each family of graphs needs of its settings."""

from collections.abc import Iterable

from dfl_jax.checks import check_choice
from dfl_jax.topology.families import (
    DIRECTED,
    EQUAL_DEGREES,
    FAMILIES,
    FROM_FILE,
    SEQUENCES,
    WITH_DEGREE,
    sides_of,
)
from dfl_jax.topology.family_settings import (
    Settings,
    TopologyError,
    check_assortativity,
    check_probability,
)

STEEPEST = 1000  # the largest exponent of a power law
SEARCHED = 1000  # how many numbers of clients are searched for one that has a torus


def check(family: str, rounds: int, settings: Settings) -> None:
    """Raises `TopologyError` for a schedule that cannot be drawn."""
    clients, degree, path = settings.clients, settings.degree, settings.path
    check_choice('topology', family, FAMILIES, TopologyError)
    if rounds < 1:
        raise TopologyError(f'a schedule needs at least 1 round, got rounds={rounds}')
    least = 3 if family == 'ring' else 2
    if clients < least:
        raise TopologyError(f'{family} needs at least {least} clients, got clients={clients}')
    if family in WITH_DEGREE:
        if degree < 1:
            raise TopologyError(f'{family} needs a degree of at least 1, got degree={degree}')
        if degree >= clients:
            raise TopologyError(
                f'degree {degree} needs more than {degree} clients, got clients={clients}; '
                f'lower the degree to {clients - 1} or less'
            )
    if family == 'regular' and clients * degree % 2:
        raise TopologyError(
            f'degree {degree} needs clients*degree even, got clients={clients}; '
            f'take {clients + 1} clients or degree {degree - 1 or degree + 1}'
        )
    if settings.probability is not None:
        check_probability('the probability of a link', settings.probability)
        if family != 'erdos_renyi':
            raise TopologyError(f'{family} has no probability of a link; leave it out')
    if family == 'watts_strogatz':
        check_probability('rewiring', settings.rewiring)
        if degree % 2:
            raise TopologyError(
                f'watts_strogatz needs an even degree, got degree={degree}; '
                f'take {degree - 1 or degree + 1}'
            )
    if family in ('configuration', 'chung_lu') and not 2 < settings.exponent <= STEEPEST:
        raise TopologyError(
            f'{family} needs a finite exponent above 2, where the mean degree of any number '
            f'of clients is bounded, and up to {STEEPEST}, got exponent={settings.exponent}; '
            'take 2.5'
        )
    if family == 'torus':
        _check_torus(clients, settings.dimensions)
    if family == 'hypercube' and clients & (clients - 1):
        below = 2 ** (clients.bit_length() - 1)
        raise TopologyError(
            f'hypercube needs a power of two of clients, got clients={clients}; take {below} or '
            f'{2 * below}'
        )
    if family in FROM_FILE and path is None:
        of_what = 'weights [M, M], as numpy.save writes it' if family == 'matrix' else 'links'
        raise TopologyError(f'{family} needs the path of a file of {of_what}, got none')
    if family not in FROM_FILE and path is not None:
        raise TopologyError(f'{family} reads no file, got {path}; take {" or ".join(FROM_FILE)}')
    if settings.assortativity is not None:
        check_assortativity(settings.assortativity)
        if family in (*DIRECTED, *SEQUENCES, 'matrix'):
            raise TopologyError(
                f'only undirected links without weights are rewired, and those of {family} are '
                f'not, got assortativity={settings.assortativity}; leave it out or take erdos_renyi'
            )
        if family in EQUAL_DEGREES:
            raise TopologyError(
                f'the clients of {family} have equal degrees, which no assortativity tells apart, '
                f'got assortativity={settings.assortativity}; leave it out or take erdos_renyi'
            )


def _check_torus(clients: int, dimensions: int) -> None:
    if dimensions < 1:
        raise TopologyError(f'torus needs at least 1 dimension, got dimensions={dimensions}')
    most = 0  # dimensions, of so many clients
    while 3 ** (most + 1) <= clients:
        most += 1
    if dimensions > most or not sides_of(clients, dimensions):
        near: Iterable[int] = ()
        if dimensions <= most + 1:
            start = max(clients, 3**dimensions)
            near = range(start, start + SEARCHED)
        fits = next((n for n in near if sides_of(n, dimensions)), None)
        raise TopologyError(
            f'torus needs clients to be a product of {dimensions} sides of at least 3, got '
            f'clients={clients}; take {fits or f"dimensions={max(min(most, dimensions - 1), 1)}"}'
        )
