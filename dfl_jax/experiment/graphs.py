"""The graphs that the flags describe."""

from typing import Any

import numpy as np

from dfl_jax import topology
from dfl_jax.base import Graph
from dfl_jax.checks import check_range
from dfl_jax.experiment.method import Chosen
from dfl_jax.methods import EVENTS, Method
from dfl_jax.timing import World

# Failures after which the clients of a cluster have heard different models
LEAVES_CLIENTS_UNLIKE = (
    'link_dropout',
    'link_dropout_directed',
    'receive_dropout',
    'isolate_dropout',
)


def check_graphs(flags: Any, method: Method) -> dict[str, Any]:
    """The options of --topology, as `family_options`.

    Raises ValueError for a network that cannot be drawn, before any data is read.
    """
    options = family_options(flags)
    for name in (*LEAVES_CLIENTS_UNLIKE, 'client_dropout'):
        topology.check_probability(name.replace('_', ' '), flags[name].value)
    if method.graphs == EVENTS:  # where all messages are lost, nobody ever hears anyone
        check_range('--link_dropout', flags.link_dropout, least=0, below=1)
    if method.graphs != 'cohort':
        settings = topology.Settings(flags.clients, rounds=flags.rounds, **options)
        topology.check_schedule(flags.topology, flags.static_topology, settings)
    return options


def draw_graphs(
    flags: Any, seeds: dict[str, int], chosen: Chosen, world: World | None = None
) -> tuple[Graph, Graph]:
    """The schedule before any failure, and as it happens in the form that the method takes.

    world: whose absent clients sit rounds out where rounds begin at --round_seconds.

    Raises ValueError for settings that contradict the network.
    """
    settings, method = chosen.resolved, chosen.method
    if method.graphs == 'cohort':  # the dropout of clients is in it
        cohorts = topology.cohorts(
            flags.clients,
            flags.rounds,
            settings['cohort'],
            seed=seeds['graph'],
            dropout=flags.client_dropout,
        )
        return cohorts, cohorts
    intact = topology.schedule(
        flags.topology,
        flags.clients,
        flags.rounds,
        seed=seeds['graph'],
        static=flags.static_topology,
        **family_options(flags),
    )
    if method.graphs == EVENTS:
        return intact, intact
    if intact.weights is not None and 'mixing' in chosen.given:
        raise ValueError(
            f'--mixing={chosen.given["mixing"]}: the graphs of --topology={flags.topology} have '
            'weights of their own; leave it out'
        )
    graphs = with_failures(intact, flags, seeds)
    if world is not None and flags.round_seconds:
        begins = np.arange(flags.rounds) * flags.round_seconds
        present = [world.is_online(np.full(flags.clients, t)) for t in begins]
        graphs = topology.drop_absent(graphs, np.stack(present))
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
    return intact, graphs


def family_options(flags: Any) -> dict[str, Any]:
    """What `topology.schedule` takes besides family, clients, rounds and seed."""
    return {
        'degree': flags.degree,
        'probability': flags.link_probability,
        'path': flags.topology_file,
        'exponent': flags.degree_exponent,
        'dimensions': flags.torus_dimensions,
        'rewiring': flags.rewiring,
        'assortativity': flags.assortativity,
    }


def with_failures(graphs: Graph, flags: Any, seeds: dict[str, int]) -> Graph:
    """The schedule as it happens: links and clients fail."""
    if flags.link_dropout:
        directed = flags.directed_dropout or topology.FAMILIES[flags.topology].directed
        seed = seeds['links']
        graphs = topology.drop_links(graphs, flags.link_dropout, seed, directed=directed)
    if flags.link_dropout_directed:
        probability, seed = flags.link_dropout_directed, seeds['directions']
        graphs = topology.drop_links(graphs, probability, seed, directed=True)
    if flags.receive_dropout:
        graphs = topology.drop_receivers(graphs, flags.receive_dropout, seeds['receiving'])
    if flags.isolate_dropout:
        graphs = topology.isolate_clients(graphs, flags.isolate_dropout, seeds['isolation'])
    if flags.client_dropout:
        graphs = topology.drop_clients(graphs, flags.client_dropout, seeds['participation'])
    return graphs


def _by_cluster(flags: Any, graphs: Graph) -> Graph:
    """One aggregator a cluster. Raises ValueError where its clients would not stay alike."""
    if flags.topology != 'clustered':
        raise ValueError(f'--ntk_by_cluster needs --topology=clustered, not {flags.topology}')
    for name in LEAVES_CLIENTS_UNLIKE:
        if flags[name].value:
            raise ValueError(
                f'--{name}={flags[name].value} leaves the clients of a cluster with different '
                'weights; leave it out, or add --nontk_by_cluster'
            )
    return topology.by_cluster(graphs)
