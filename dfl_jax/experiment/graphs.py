"""The graphs of an experiment: as they are drawn, and as they happen."""

from typing import Any

import numpy as np

from dfl_jax import topology
from dfl_jax.base import Graph
from dfl_jax.checks import check_range
from dfl_jax.experiment.description import Description
from dfl_jax.experiment.method import ConfiguredMethod
from dfl_jax.experiment.own_code import family_of
from dfl_jax.experiment.run_settings import Graphs
from dfl_jax.methods import EVENTS
from dfl_jax.setting_error import SettingError
from dfl_jax.timing import World

# Failures after which the clients of a cluster have heard different models
LEAVES_CLIENTS_UNLIKE = (
    'link_dropout',
    'link_dropout_directed',
    'receive_dropout',
    'isolate_dropout',
)


def check_graphs(experiment: Description) -> None:
    """Raises ValueError for a network that cannot be drawn, before any data is read."""
    asked, graphs = experiment.graphs, experiment.method.row.graphs
    for name in (*LEAVES_CLIENTS_UNLIKE, 'client_dropout'):
        topology.check_probability(name.replace('_', ' '), getattr(asked, name))
    if graphs == EVENTS:  # where all messages are lost, nobody ever hears anyone
        check_range('link_dropout', asked.link_dropout, least=0, below=1)
    if graphs != 'cohort':
        clients, options = experiment.partition.clients, family_options(asked)
        settings = topology.Settings(clients, rounds=experiment.rounds, **options)
        topology.check_schedule(family_of(asked.topology), asked.static_topology, settings)


def draw_graphs(
    experiment: Description,
    seeds: dict[str, int],
    configured: ConfiguredMethod,
    world: World | None = None,
) -> tuple[Graph, Graph]:
    """The schedule before any failure, and as it happens in the form that the method takes.

    world: whose absent clients sit rounds out where rounds begin at `round_seconds`.

    Raises ValueError for settings that contradict the network.
    """
    asked, clients, rounds = experiment.graphs, experiment.partition.clients, experiment.rounds
    settings, method, senders = configured.resolved, configured.method, configured.run.senders
    if method.graphs == 'cohort':  # the dropout of clients is in it
        size, dropout = settings['cohort'], asked.client_dropout
        cohorts = topology.cohorts(clients, rounds, size, seed=seeds['graph'], dropout=dropout)
        return cohorts, cohorts
    intact = topology.schedule(
        *(family_of(asked.topology), clients, rounds),
        seed=seeds['graph'],
        static=asked.static_topology,
        **family_options(asked),
    )
    if method.graphs == EVENTS:
        return intact, intact
    if intact.weights is not None and 'mixing' in configured.given:
        raise SettingError(
            'mixing',
            configured.given['mixing'],
            f'the graphs of `topology={asked.topology}` have weights of their own',
            'leave it out',
        )
    graphs = with_failures(intact, asked, seeds)
    if world is not None and experiment.time.round_seconds:
        begins = np.arange(rounds) * experiment.time.round_seconds
        present = [world.is_online(np.full(clients, t)) for t in begins]
        graphs = topology.drop_absent(graphs, np.stack(present))
    if settings.get('by_cluster'):
        graphs = _by_cluster(asked, graphs)
    if method.heterogeneous:
        meetings = experiment.architectures
        aggregators = senders if method.graphs == 'pairs' else 1
        if meetings.aggregators is not None:
            aggregators = meetings.aggregators
        graphs = topology.meetings(
            *(graphs, senders),
            seed=seeds['meetings'],
            aggregators=aggregators,
            choice=meetings.aggregator,
        )
    return intact, graphs


def family_options(asked: Graphs) -> dict[str, Any]:
    """What `topology.schedule` takes besides family, clients, rounds and seed."""
    return {
        'degree': asked.degree,
        'probability': asked.link_probability,
        'path': asked.topology_file,
        'exponent': asked.degree_exponent,
        'dimensions': asked.torus_dimensions,
        'rewiring': asked.rewiring,
        'assortativity': asked.assortativity,
    }


def with_failures(graphs: Graph, asked: Graphs, seeds: dict[str, int]) -> Graph:
    """The schedule as it happens: links and clients fail."""
    if asked.link_dropout:
        _, family = topology.family_named(family_of(asked.topology))
        directed = asked.directed_dropout or family.directed
        graphs = topology.drop_links(graphs, asked.link_dropout, seeds['links'], directed=directed)
    if asked.link_dropout_directed:
        probability, seed = asked.link_dropout_directed, seeds['directions']
        graphs = topology.drop_links(graphs, probability, seed, directed=True)
    if asked.receive_dropout:
        graphs = topology.drop_receivers(graphs, asked.receive_dropout, seeds['receiving'])
    if asked.isolate_dropout:
        graphs = topology.isolate_clients(graphs, asked.isolate_dropout, seeds['isolation'])
    if asked.client_dropout:
        graphs = topology.drop_clients(graphs, asked.client_dropout, seeds['participation'])
    return graphs


def _by_cluster(asked: Graphs, graphs: Graph) -> Graph:
    """One aggregator a cluster. Raises ValueError where its clients would not stay alike."""
    if asked.topology != 'clustered':
        raise ValueError(f'`ntk_by_cluster` needs `topology=clustered`, not {asked.topology}')
    for name in LEAVES_CLIENTS_UNLIKE:
        if getattr(asked, name):
            raise SettingError(
                name,
                getattr(asked, name),
                'leaves the clients of a cluster with different weights',
                'leave it out, or add `ntk_by_cluster=False`',
                colon=False,
            )
    return topology.by_cluster(graphs)
