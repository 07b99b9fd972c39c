"""The random streams of a run, which all follow from its one seed."""

from collections.abc import Sequence

import numpy as np

STREAMS = (  # one a purpose, whose place is its number: new ones come last
    'partition',
    'subset',
    'graph',
    'links',
    'participation',
    'training',
    'projection',
    'jacobians',
    'gain',
    'receiving',
    'meetings',
    'validation',
    'world',
    'feature_shift',
    'evaluation',
    'directions',
    'isolation',
    'arrival',
    'adversaries',
)


def streams(seed: int, names: Sequence[str] = STREAMS) -> dict[str, int]:
    """A seed of its own for each purpose.

    >>> streams(0)['partition'] != streams(1)['partition'] != streams(1)['graph']
    True
    """
    return {
        name: int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        for number, name in enumerate(names)
    }
