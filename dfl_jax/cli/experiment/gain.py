"""The gain of --init=gain_corrected, as the flags let clients know it, and what follows from it."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from dfl_jax import gossip, topology
from dfl_jax.base import Graph
from dfl_jax.cli.experiment.method import Chosen

FAMILY_ROUNDS = 20  # of the schedules from which --gain=family takes the gain of a changing graph


def gain_and_warmup(
    flags: Any,
    chosen: Chosen,
    family: Mapping[str, Any],
    intact: Graph,
    graphs: Graph,
    sizes: np.ndarray,
    seed: int,
) -> tuple[float | np.ndarray | None, int]:
    """The gain of the initial weights, None without one, and the rounds of averaging warm-up.

    family: the options of --topology; intact, graphs: the schedule before any failure, and as it
    happens; sizes: [M], samples of each client; seed: of draws and polls.

    Raises ValueError where there is no common gain, or where the warm-up is the whole run.
    """
    if not chosen.corrected:
        return None, 0
    mixing, warmup = chosen.resolved['mixing'], 0
    if 'averaging_warmup' in chosen.method.from_run and 'averaging_warmup' not in chosen.given:
        steps = chosen.resolved['gossip_steps']
        warmup = averaging_warmup(flags, intact, graphs, sizes, mixing, steps)
    return initial_gain(flags, family, intact, sizes, mixing, seed), warmup


def initial_gain(
    flags: Any,
    family: Mapping[str, Any],
    graphs: Graph,
    sizes: np.ndarray,
    mixing: str,
    seed: int,
) -> float | np.ndarray:
    """The gain of --init=gain_corrected, of all clients or each one's own [M].

    Args:
      graphs: the schedule before any failure, which nobody can foresee.
      sizes: [M], samples of each client.
      mixing: the method's mixing weights.
      seed: of draws and polls.

    Raises ValueError where the network has no common gain, or a number of clients does not fit.
    """
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
        if changing or mixing == 'metropolis':
            against = '--mixing=metropolis' if mixing == 'metropolis' else 'a changing graph'
            raise ValueError(
                f'--gain=degrees is of uniform weights on one graph, not of {against}; use '
                '--gain=family, or --static_topology'
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


def averaging_warmup(
    flags: Any, intact: Graph, graphs: Graph, sizes: np.ndarray, mixing: str, steps: int
) -> int:
    """Rounds of averaging before the first training, of `steps` averages each.

    intact, graphs: the schedule before any failure, and as it happens; sizes, mixing: as in
    `initial_gain`. Raises ValueError where that is the whole run.
    """
    norm = 1 / gossip.gain_of(*gossip.mixing_matrices(intact, sizes, mixing))
    averages = gossip.warmup_rounds(graphs, sizes, mixing, norm)
    if averages is None:
        raise ValueError(
            f'--rounds={flags.rounds} of averaging do not bring {flags.clients} clients with '
            'initial weights of their own together, and leave none to train; raise --rounds, the '
            'degree or the links that hold, or set --averaging_warmup'
        )
    return -(-averages // steps)
