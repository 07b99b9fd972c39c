"""Streams of random numbers of a run, one a purpose, from the one --seed."""

import numpy as np

STREAMS = (
    'partition',
    'subset',
    'graph',
    'links',
    'participation',
    'training',
    'projection',
    'jacobians',
    'gain',
    'isolation',
    'meetings',
    'validation',
)


def streams(seed: int) -> dict[str, int]:
    """A seed of its own for each purpose. Raises ValueError for a negative one."""
    if seed < 0:
        raise ValueError(f'--seed has to be at least 0, got {seed}')
    return {
        name: int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        for number, name in enumerate(STREAMS)
    }
