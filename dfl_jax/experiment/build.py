"""From an experiment to the objects of a run: data, network, graphs, algorithm, placement.

Everything that can be wrong with the input is found here, before any long computation, and raised
as a ValueError of one line.
"""

import warnings
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dfl_jax import data, timing
from dfl_jax.base import Algorithm, Clients, Graph, PyTree, State
from dfl_jax.data import feature_shift
from dfl_jax.evaluation import CLIENTS, Holdout, choose_samples, consensus_weights
from dfl_jax.execution import Footprint
from dfl_jax.experiment.adversaries import (
    adversaries,
    check_neighbourhoods,
    check_reached,
    honest_of,
    with_attack,
)
from dfl_jax.experiment.algorithm_check import make_checked
from dfl_jax.experiment.configured_method import ConfiguredMethod, configure
from dfl_jax.experiment.datasets import Parts, load_data, partition
from dfl_jax.experiment.description import Description
from dfl_jax.experiment.evaluated_clients import check_architectures, chosen_clients
from dfl_jax.experiment.gain import initial_gain
from dfl_jax.experiment.graphs import check_graphs, draw_graphs
from dfl_jax.experiment.networks import build_network
from dfl_jax.experiment.own_models import check_own_models
from dfl_jax.experiment.placement import bytes_of_graphs, chunk_of, footprint_of, mesh_for
from dfl_jax.experiment.privacy import EPSILON, Spending, with_privacy
from dfl_jax.experiment.privacy_checks import check_covered
from dfl_jax.experiment.simulated_time import plan_events, simulated_world
from dfl_jax.experiment.streams import streams
from dfl_jax.experiment.table_rows import TableRows, table_rows
from dfl_jax.heterogeneous import Population
from dfl_jax.methods import EVENTS
from dfl_jax.models import Model
from dfl_jax.run_checks import check_theory
from dfl_jax.timing import ROUNDS, Rules, World


@dataclass
class BuiltExperiment:
    """All that a run needs, and what describes it."""

    experiment: Description
    rows: TableRows  # what its names mean
    configured: ConfiguredMethod  # the method and its settings
    dataset: data.Dataset
    parts: Parts
    clients: Clients
    graphs: Graph
    first: Graph  # that of round 1 before any failure, NumPy arrays
    test: Holdout
    model: Model  # of every client, or the largest of those that they have
    population: Population | None  # the networks of the clients where they may differ
    algorithm: Algorithm
    key: jax.Array
    footprint: Footprint
    mesh: Mesh | None  # the devices, where there are several
    validation: Clients | None  # what clients keep from training
    evaluated: np.ndarray | None = None  # test samples that evaluate the clients; None for all
    world: World | None = None  # in which rounds take simulated seconds
    rules: Rules = ROUNDS  # who waits for what there
    judged: np.ndarray | None = None  # [M] bool, over whom means are taken; None for all
    attackers: np.ndarray | None = None  # [M] bool, who lies; None for nobody
    spending: Spending | None = None  # of privacy; None where no epsilon is claimed

    @property
    def resolved(self) -> dict[str, Any]:
        """The settings of the method with its defaults, as config.json records them."""
        resolved = self.configured.resolved
        if self.graphs.weights is not None and 'mixing' in resolved:
            resolved['mixing'] = 'graph'
        if self.population is None:
            return resolved
        clients = self.population.clients.items()
        return resolved | {'architectures': {name: len(c) for name, c in clients}}

    def completed(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row of an evaluation, with the epsilon that a private run has spent by then."""
        if self.spending is None:
            return row
        each = self.spending.after(row['round'])
        of_clients = row[CLIENTS] | {EPSILON: each.tolist()}
        return row | {EPSILON: float(each.max()), CLIENTS: of_clients}

    def consensus(self, state: State, rounds: int) -> PyTree:
        """The parameters of the consensus model after so many rounds."""
        weights = consensus_weights(self.algorithm, self.clients, rounds, self.judged)
        return self.algorithm.consensus(state, weights)


def build(experiment: Description, progress: bool = True) -> BuiltExperiment:
    """Builds an experiment. progress: show that of downloads. Raises ValueError, one line."""
    seeds, rows = streams(experiment.seed), table_rows(experiment.flat())
    time, evaluation = experiment.time, experiment.evaluation
    configured = configure(experiment, rows.functions, seeds['jacobians'])
    liars = adversaries(experiment, rows, seeds['adversaries'])
    check_graphs(experiment, rows)
    world = simulated_world(experiment, seeds['world'])

    dataset = load_data(experiment.data, rows, seeds, progress)
    parts, kept = partition(experiment.partition, rows, dataset, seeds)
    sizes = np.array([len(part) for part in parts])
    judged = chosen_clients(evaluation.evaluate_clients, len(parts))
    evaluated = choose_samples(dataset.test_y, evaluation.client_eval_samples, seeds['evaluation'])

    model, population = build_network(experiment, rows, dataset)
    network = population or model
    check_architectures(evaluation.evaluate_clients, judged, population)
    if liars is not None:
        judged = honest_of(liars, judged, evaluation.evaluate_clients)
        configured = with_attack(configured, liars.attack)
    make_checked(configured, network, dataset.train_y)  # for its checks, before graphs are drawn
    intact, graphs = draw_graphs(experiment, rows, seeds, configured, world)
    if world is not None and rows.method.graphs == EVENTS:
        graphs, configured = plan_events(
            experiment, configured, model, graphs, world, sizes, seeds['links']
        )
        world = None  # their time is in the schedule
    configured, spending, graphs = with_privacy(
        configured, experiment.privacy, sizes, graphs, experiment.partition.arrival is not None
    )
    check_neighbourhoods(experiment, intact, liars and liars.liars, configured)
    gain = initial_gain(experiment, rows, configured, intact, sizes, seeds['gain'])
    x, y, test_x = dataset.train_x, dataset.train_y, dataset.test_x
    clients = data.pack(x, y, parts)
    if (arrival := experiment.partition.arrival) is not None:
        rounds = data.arrival_rounds(arrival, y, parts, seeds['arrival'])
        clients = clients._replace(arrival=jnp.asarray(rounds))
        if late := int((np.asarray(clients.mask) & (rounds >= experiment.rounds)).sum()):
            warnings.warn(
                f'{late} of {sizes.sum()} samples arrive after the last round of this run',
                stacklevel=2,
            )
    validation = data.pack(x, y, kept, empty=True) if any(map(len, kept)) else None
    if rows.shift is not None:
        clients, validation, test_x = feature_shift.shifted(
            *(rows.shift, clients, validation, test_x), seeds['feature_shift']
        )
    test = Holdout(test_x, dataset.test_y)
    if liars is not None:  # after the shift, so that a trigger looks the same in the test set
        clients, test = liars.on_data(clients, test, dataset, seeds['adversaries'])

    mesh = mesh_for(experiment.placement, model, clients, graphs, rows.method)
    run = configured.run._replace(members=graphs.mask.shape[2])
    chunk, work = chunk_of(replace(configured, run=run), model, clients, graphs, mesh)
    configured = replace(configured, gain=gain, run=run._replace(chunk=chunk))
    algorithm = make_checked(configured, network, dataset.train_y)
    check_theory(algorithm, clients, graphs)
    check_reached(rows, algorithm, clients, graphs)
    check_covered(algorithm, configured, model)
    check_own_models(experiment, configured.name, algorithm, parts, kept, judged)
    of_graphs = bytes_of_graphs(graphs, evaluation.eval_every)
    footprint = footprint_of(algorithm, clients, test, work, mesh, of_graphs)
    rules = Rules(barrier=time.barrier, period=time.round_seconds or 0.0)
    if world is not None:
        timing.check_rounds(algorithm, clients, graphs, world, rules)
    return BuiltExperiment(
        experiment=experiment,
        rows=rows,
        configured=configured,
        dataset=dataset,
        parts=parts,
        clients=clients,
        graphs=graphs,
        first=jax.tree.map(lambda array: np.array(array[0]), intact),
        test=test,
        model=model,
        population=population,
        algorithm=algorithm,
        key=jax.random.key(seeds['training']),
        footprint=footprint,
        mesh=mesh,
        validation=validation,
        evaluated=evaluated,
        judged=judged,
        attackers=None if liars is None else liars.liars,
        spending=spending,
        # A client that is offline sits a round out, and no other waits for it
        world=world and (world._replace(online=None) if time.round_seconds else world),
        rules=rules,
    )
