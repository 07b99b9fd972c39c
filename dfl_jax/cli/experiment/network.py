"""The network that the flags describe: its graphs, and the gain of the initial weights in it."""

import math
from typing import Any

import numpy as np

from dfl_jax import topology
from dfl_jax.base import Graph
from dfl_jax.gossip import gain

FAMILY_ROUNDS = 20  # of the schedules from which --gain=family takes the gain of a changing graph
OF_THE_TOPOLOGY = (
    'topology',
    'degree',
    'degree_exponent',
    'torus_dimensions',
    'assortativity',
    'static_topology',
    'topology_file',
    'link_dropout',
    'client_isolation',
)


def check_network(flags: Any, resolved: dict[str, Any]) -> None:
    """Raises ValueError for a network that cannot be drawn, before any data is read.

    resolved: the algorithm's settings.
    """
    for name in ('link_dropout', 'client_isolation', 'client_dropout'):
        topology.check_probability(name.replace('_', ' '), flags[name].value)
    if 'cohort' not in resolved:
        settings = topology.Settings(flags.clients, **family_options(flags))
        topology.check_schedule(flags.topology, flags.rounds, flags.static_topology, settings)
        return
    for name in OF_THE_TOPOLOGY:
        if flags[name].present:
            raise ValueError(
                f'--{name}={flags[name].value} does not apply to --algorithm={flags.algorithm}, '
                'whose server hears a cohort; leave it out'
            )


def draw_graphs(flags: Any, seeds: dict[str, int], resolved: dict[str, Any]) -> Graph:
    """The schedule before any failure: of cohorts for a centralized method, else of the topology.

    resolved: the algorithm's settings. The dropout of clients from cohorts is in it already.
    """
    if 'cohort' not in resolved:
        return topology.schedule(
            flags.topology,
            flags.clients,
            flags.rounds,
            seed=seeds['graph'],
            static=flags.static_topology,
            **family_options(flags),
        )
    return topology.cohorts(
        flags.clients,
        flags.rounds,
        resolved['cohort'],
        seed=seeds['graph'],
        dropout=flags.client_dropout,
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


def with_failures(
    graphs: Graph, flags: Any, seeds: dict[str, int], resolved: dict[str, Any]
) -> Graph:
    """The schedule as it happens: links and clients fail, and a cluster is one aggregator where it
    can."""
    if 'cohort' in resolved:
        return graphs
    if flags.link_dropout:
        graphs = topology.drop_links(graphs, flags.link_dropout, seeds['links'])
    if flags.client_isolation:
        graphs = topology.isolate_clients(graphs, flags.client_isolation, seeds['isolation'])
    if flags.client_dropout:
        graphs = topology.drop_clients(graphs, flags.client_dropout, seeds['participation'])
    if not resolved.get('by_cluster'):
        return graphs
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

    Args:
      intact, graphs: the schedule before any failure, and as it happens.
      sizes, mixing: as `initial_gain`.

    Raises ValueError where that is the whole run.
    """
    norm = 1 / gain.gain_of(*gain.mixing_matrices(intact, sizes, mixing))
    averages = gain.warmup_rounds(graphs, sizes, mixing, norm)
    if averages is None:
        raise ValueError(
            f'--rounds={flags.rounds} of averaging do not bring {flags.clients} clients with '
            'initial weights of their own together, and leave none to train; raise --rounds, the '
            'degree or the links that hold, or set --warmup_rounds'
        )
    return -(-averages // steps)


def gain_rules(flags: Any) -> dict[str, tuple[bool, str]]:
    """Of every flag of the gain whether it has an effect, and what it would be lost on."""
    corrected = flags.init == 'gain_corrected'
    if not corrected:
        against = f'--init={flags.init}' if flags.init else 'the default --init'
        return {name: (False, against) for name in flags if name.startswith('gain')}
    against = f'--gain={flags.gain}'
    return {
        'gain_size_factor': (flags.gain in ('family', 'degrees', 'size'), against),
        'gain_exponent': (flags.gain in ('size', 'push_sum'), against),
        'gain_polled': (flags.gain == 'degrees', against),
        'gain_rounds': (flags.gain == 'push_sum', against),
    }
