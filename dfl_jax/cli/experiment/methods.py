"""The methods that a command line may name: those in rounds, and those without."""

from operator import attrgetter

from dfl_jax import algorithms, asynchronous
from dfl_jax.algorithms import CHUNK, STATIC, Method
from dfl_jax.asynchronous import by_interval

EVENTS = 'events'  # `Method.graphs` of those without rounds
FROM_PLAN = {name: attrgetter(name) for name in ('places', 'width', 'seconds')}
LABELS = {
    'ad_psgd': ('AD-PSGD', 'Lian et al., ICML 2018'),
    'divshare': ('DivShare', 'Biswas et al., WWW 2025'),
    'gossip_learning': ('Gossip learning', 'Hegedus et al., 2021'),
    'swift': ('SWIFT', 'Bornstein et al., ICLR 2023'),
}
METHODS: dict[str, Method] = algorithms.METHODS | {
    name: Method(
        by_interval(each.factory),
        *LABELS[name],
        graphs=EVENTS,
        from_run=CHUNK | FROM_PLAN,
        defaults=STATIC,
    )
    for name, each in asynchronous.METHODS.items()
}
