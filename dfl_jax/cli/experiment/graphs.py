"""The graphs that the flags describe, and the gain of the initial weights in them."""

import math
from typing import Any

import numpy as np

from dfl_jax import topology
from dfl_jax.algorithms import Method
from dfl_jax.base import Graph
from dfl_jax.cli.experiment.method import Chosen
from dfl_jax.gossip import gain

FAMILY_ROUNDS = 20  # of the schedules from which --gain=family takes the gain of a changing graph


def check_graphs(flags: Any, method: Method) -> None:
    """Raises ValueError for a network that cannot be drawn, before any data is read."""
    for name in ('link_dropout', 'client_isolation', 'client_dropout'):
        topology.check_probability(name.replace('_', ' '), flags[name].value)
    if method.graphs != 'cohort':
        settings = topology.Settings(flags.clients, **family_options(flags))
        topology.check_schedule(flags.topology, flags.rounds, flags.static_topology, settings)


def draw_graphs(
    flags: Any, seeds: dict[str, int], chosen: Chosen, sizes: np.ndarray
) -> tuple[Graph, Chosen]:
    """The schedule of the flags as it happens, in the form that the method takes, and the method.

    The method comes back with the gain of its initial weights in this schedule, and how long they
    are averaged first, where it asks for them.

    sizes: [M], samples of each client. Raises ValueError for settings that contradict the network.
    """
    settings, method = chosen.resolved, chosen.method
    if method.graphs == 'cohort':  # the dropout of clients is in it
        graphs = topology.cohorts(
            flags.clients,
            flags.rounds,
            settings['cohort'],
            seed=seeds['graph'],
            dropout=flags.client_dropout,
        )
        return graphs, chosen
    intact = neighbours(flags, seeds['graph'])
    graphs = with_failures(intact, flags, seeds)
    if settings.get('by_cluster'):
        graphs = _by_cluster(flags, graphs)
    if method.heterogeneous:
        aggregators = chosen.run.senders if method.graphs == 'pairs' else 1
        if flags.aggregators is not None:
            aggregators = flags.aggregators
        graphs = topology.meetings(
            graphs,
            chosen.run.senders,
            seed=seeds['meetings'],
            aggregators=aggregators,
            choice=flags.aggregator,
        )
    if chosen.corrected:
        mixing = settings['mixing']
        chosen = chosen.replace(gain=initial_gain(flags, intact, sizes, mixing, seeds['gain']))
        if 'averaging_warmup' in method.from_run and 'averaging_warmup' not in chosen.given:
            steps = settings['gossip_steps']
            warmup = averaging_warmup(flags, intact, graphs, sizes, mixing, steps)
            chosen = chosen.replace(averaging_warmup=warmup)
    return graphs, chosen


def neighbours(flags: Any, seed: int) -> Graph:
    """The graphs of --topology before any failure."""
    return topology.schedule(
        flags.topology,
        flags.clients,
        flags.rounds,
        seed=seed,
        static=flags.static_topology,
        **family_options(flags),
    )


def family_options(flags: Any) -> dict[str, Any]:
    """What `topology.schedule` takes besides family, clients, rounds and seed."""
    return {
        'degree': flags.degree,
        'path': flags.topology_file,
        'exponent': flags.degree_exponent,
        'dimensions': flags.torus_dimensions,
        'assortativity': flags.assortativity,
    }


def with_failures(graphs: Graph, flags: Any, seeds: dict[str, int]) -> Graph:
    """The schedule as it happens: links and clients fail."""
    if flags.link_dropout:
        graphs = topology.drop_links(graphs, flags.link_dropout, seeds['links'])
    if flags.client_isolation:
        graphs = topology.isolate_clients(graphs, flags.client_isolation, seeds['isolation'])
    if flags.client_dropout:
        graphs = topology.drop_clients(graphs, flags.client_dropout, seeds['participation'])
    return graphs


def _by_cluster(flags: Any, graphs: Graph) -> Graph:
    """One aggregator a cluster. Raises ValueError where its clients would not stay alike."""
    if flags.topology != 'clustered':
        raise ValueError(f'--ntk_by_cluster needs --topology=clustered, not {flags.topology}')
    for name in ('link_dropout', 'client_isolation'):
        if flags[name].value:
            raise ValueError(
                f'--{name}={flags[name].value} leaves the clients of a cluster with different '
                'weights; leave it out, or add --nontk_by_cluster'
            )
    return topology.by_cluster(graphs)


def initial_gain(
    flags: Any, graphs: Graph, sizes: np.ndarray, mixing: str, seed: int
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
        return gain.gain_of(*gain.mixing_matrices(graphs, sizes, mixing))
    if flags.gain == 'push_sum':
        known = gain.push_sum_size(graphs, flags.gain_rounds)
        return gain.gain_of_size(known, flags.gain_exponent)
    known = flags.clients * flags.gain_size_factor
    if flags.gain == 'size':
        return float(gain.gain_of_size(known, flags.gain_exponent))
    changing = np.asarray(graphs.members).strides[0] != 0
    if flags.gain == 'degrees':
        if changing or mixing == 'metropolis':
            against = '--mixing=metropolis' if mixing == 'metropolis' else 'a changing graph'
            raise ValueError(
                f'--gain=degrees is of uniform weights on one graph, not of {against}; use '
                '--gain=family, or --static_topology'
            )
        return gain.gain_of_degrees(gain.polled_degrees(graphs, flags.gain_polled, seed), known)
    try:
        return gain.gain_of_family(
            flags.topology,
            round(known),
            mixing='metropolis' if mixing == 'metropolis' else 'uniform',
            rounds=FAMILY_ROUNDS if changing else 1,
            seed=seed,
            **family_options(flags),
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
    norm = 1 / gain.gain_of(*gain.mixing_matrices(intact, sizes, mixing))
    averages = gain.warmup_rounds(graphs, sizes, mixing, norm)
    if averages is None:
        raise ValueError(
            f'--rounds={flags.rounds} of averaging do not bring {flags.clients} clients with '
            'initial weights of their own together, and leave none to train; raise --rounds, the '
            'degree or the links that hold, or set --averaging_warmup'
        )
    return -(-averages // steps)
