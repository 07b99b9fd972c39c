"""The gain of --init=gain_corrected, as the flags let clients know it."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from dfl_jax import gossip, topology
from dfl_jax.base import Graph
from dfl_jax.experiment.method import Chosen
from dfl_jax.topology import FAMILIES

FAMILY_ROUNDS = 20  # of the schedules from which --gain=family takes the gain of a changing graph


def initial_gain(
    flags: Any,
    chosen: Chosen,
    family: Mapping[str, Any],
    graphs: Graph,
    sizes: np.ndarray,
    seed: int,
) -> float | np.ndarray | None:
    """The gain of --init=gain_corrected, of all clients or each one's own [M]; None without it.

    Args:
      family: the options of --topology.
      graphs: the schedule before any failure, which nobody can foresee.
      sizes: [M], samples of each client.
      seed: of draws and polls.

    Warns of a method that trains on the corrected weights before it averages them.

    Raises ValueError where the network has no common gain, or a number of clients does not fit.
    """
    if not chosen.corrected:
        return None
    if 'mixing' not in chosen.resolved:
        raise ValueError(
            f'--init=gain_corrected is for weights that are averaged by a --mixing, and '
            f'--algorithm={chosen.name} has none; take another --init'
        )
    mixing = chosen.resolved['mixing']
    if chosen.resolved.get('round_order', 'average_first') != 'average_first':
        warnings.warn(
            'training begins with weights that are too large by the gain, as they have not been '
            'averaged; add --round_order=average_first --loss_cap=10',
            stacklevel=2,
        )
    for name in ('gain_size_factor', 'gain_exponent'):
        if not 0 < flags[name].value < math.inf:
            raise ValueError(f'--{name}={flags[name].value} has to be positive and finite')
    if flags.gain == 'graph':
        return gossip.gain_of(*gossip.mixing_matrices(graphs, sizes, mixing))
    if flags.gain == 'push_sum':
        known = gossip.push_sum_size(graphs, flags.gain_rounds)
        return gossip.gain_of_size(known, flags.gain_exponent)
    known = flags.clients * flags.gain_size_factor
    if flags.gain == 'size':
        return float(gossip.gain_of_size(known, flags.gain_exponent))
    changing = np.asarray(graphs.members).strides[0] != 0
    if flags.gain == 'degrees':
        reasons = {
            f'the weights of --topology={flags.topology}': graphs.weights is not None,
            '--mixing=metropolis': mixing == 'metropolis',
            '--mixing=size where clients differ in size': mixing == 'size' and len(set(sizes)) > 1,
            f'--topology={flags.topology}, whose links go one way': (
                FAMILIES[flags.topology].directed
            ),
            'a changing graph': changing,
        }
        if against := next((reason for reason, holds in reasons.items() if holds), None):
            raise ValueError(
                f'--gain=degrees is of uniform weights on one graph, not of {against}; use '
                '--gain=graph, of uniform weights --gain=family, or --static_topology'
            )
        return gossip.gain_of_degrees(gossip.polled_degrees(graphs, flags.gain_polled, seed), known)
    try:
        return gossip.gain_of_family(
            flags.topology,
            round(known),
            mixing='metropolis' if mixing == 'metropolis' else 'uniform',
            rounds=FAMILY_ROUNDS if changing else 1,
            seed=seed,
            **family,
        )
    except topology.TopologyError as error:
        raise ValueError(f'--gain=family, networks of {round(known)} clients: {error}') from error
