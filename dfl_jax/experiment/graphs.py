"""The graphs of an experiment: as they are drawn, and as they happen."""

import numpy as np

from dfl_jax import topology
from dfl_jax.base import Graph
from dfl_jax.checks import check_range
from dfl_jax.experiment.configured_method import ConfiguredMethod
from dfl_jax.experiment.description import Description
from dfl_jax.experiment.run_settings import OF_FAMILIES, Graphs
from dfl_jax.experiment.table_rows import TableRows
from dfl_jax.methods import EVENTS
from dfl_jax.setting_error import InputError, SettingError, by_flat_names
from dfl_jax.timing import World

FLAT_NAMES = {field: name for name, field in OF_FAMILIES.items()} | {'cohort': 'ntk_fl_cohort'}
# Failures after which the clients of a cluster have heard different models
LEAVES_CLIENTS_UNLIKE = (
    'link_dropout',
    'link_dropout_directed',
    'receive_dropout',
    'isolate_dropout',
)


def check_graphs(experiment: Description, rows: TableRows) -> None:
    """Raises ValueError for a network that cannot be drawn, before any data is read."""
    asked, graphs = experiment.graphs, rows.method.graphs
    for name in (*LEAVES_CLIENTS_UNLIKE, 'client_dropout'):
        topology.check_probability(name.replace('_', ' '), getattr(asked, name))
    if graphs != 'cohort':
        clients, rounds = experiment.partition.clients, experiment.rounds
        settings = topology.Settings(clients, rounds=rounds, **rows.family_options)
        with by_flat_names(FLAT_NAMES), rows.reporting('topology', 'check', but=(ValueError,)):
            topology.check_schedule(rows.family, asked.static_topology, settings)
    if graphs == EVENTS:  # where all messages are lost, nobody ever hears anyone
        check_range('link_dropout', asked.link_dropout, least=0, below=1)


def draw_graphs(
    experiment: Description,
    rows: TableRows,
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
        with by_flat_names(FLAT_NAMES):
            cohorts = topology.cohorts(clients, rounds, size, seed=seeds['graph'], dropout=dropout)
        return cohorts, cohorts
    with by_flat_names(FLAT_NAMES), rows.reporting('topology', 'draw', but=(ValueError,)):
        intact = topology.schedule(
            *(rows.family, clients, rounds),
            seed=seeds['graph'],
            static=asked.static_topology,
            **rows.family_options,
        )
    if method.graphs == EVENTS:
        return intact, intact
    if intact.weights is not None and 'mixing' in configured.given:
        text = f'the graphs of `topology={rows.name("topology")}` have weights of their own'
        raise SettingError('mixing', configured.given['mixing'], text, 'leave it out')
    graphs = with_failures(intact, asked, rows.family.directed, seeds)
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


def with_failures(graphs: Graph, asked: Graphs, directed: bool, seeds: dict[str, int]) -> Graph:
    """The schedule as it happens: links, which may be directed, and clients fail."""
    if asked.link_dropout:
        directed = directed or asked.directed_dropout
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
        raise InputError(f'`ntk_by_cluster` needs `topology=clustered`, not {asked.topology}')
    for name in LEAVES_CLIENTS_UNLIKE:
        if getattr(asked, name):
            text = 'leaves the clients of a cluster with different weights'
            remedy = 'leave it out, or add `ntk_by_cluster=False`'
            raise SettingError(name, getattr(asked, name), text, remedy, colon=False)
    return topology.by_cluster(graphs)
