"""From flags to the objects of a run: method, data, network, graphs, placement.

Everything that can be wrong with the input is found here, before any long computation, and raised
as a ValueError of one line.
"""

from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from dfl_jax import data
from dfl_jax.base import Algorithm, Clients, Graph
from dfl_jax.cli.experiment.algorithm import make_algorithm
from dfl_jax.cli.experiment.data import build_data
from dfl_jax.cli.experiment.gain import gain_and_warmup
from dfl_jax.cli.experiment.graphs import check_graphs, draw_graphs
from dfl_jax.cli.experiment.method import Chosen, choose_method
from dfl_jax.cli.experiment.networks import Network, build_network
from dfl_jax.cli.experiment.placement import place
from dfl_jax.cli.experiment.seeds import streams
from dfl_jax.evaluation import Holdout
from dfl_jax.execution import Footprint
from dfl_jax.heterogeneous import Population
from dfl_jax.models import Model


@dataclass
class Experiment:
    """All that a run needs, and what describes it."""

    chosen: Chosen  # the method and its settings
    dataset: data.Dataset
    parts: list[np.ndarray]
    clients: Clients
    graphs: Graph
    test: Holdout
    network: Network
    algorithm: Algorithm
    key: jax.Array
    footprint: Footprint
    mesh: Mesh | None  # the devices, where there are several
    validation: Clients | None = None  # what clients keep from training

    @property
    def settings(self) -> dict[str, Any]:
        """What `algorithm` was made of, by `make`."""
        return self.chosen.settings

    @property
    def resolved(self) -> dict[str, Any]:
        """The same with the defaults of the method, as config.json records it."""
        architectures = (
            {name: len(c) for name, c in self.population.clients.items()}
            if (self.population)
            else None
        )
        return self.chosen.resolved | ({'architectures': architectures} if architectures else {})

    @property
    def model(self) -> Model:
        """The model of every client, or the largest of those that they have."""
        return self.network.model

    @property
    def population(self) -> Population | None:
        """The networks of the clients where they may differ."""
        return self.network.population


def build(flags: Any) -> Experiment:
    """Builds the experiment that the flags describe. Raises ValueError naming the bad one."""
    seeds = streams(flags.seed)
    chosen = choose_method(flags, seeds['jacobians'])
    family = check_graphs(flags, chosen.method)
    dataset, parts, kept = build_data(flags, seeds)
    network = build_network(flags, dataset, chosen.method)
    algorithm = make_algorithm(chosen, network.trained)  # for its checks; the last comes below
    # Late, as it takes the longest
    intact, graphs = draw_graphs(flags, seeds, chosen)
    sizes = np.array([len(part) for part in parts])
    gain, warmup = gain_and_warmup(flags, chosen, family, intact, graphs, sizes, seeds['gain'])
    clients = data.pack(dataset.train_x, dataset.train_y, parts)
    test = Holdout(dataset.test_x, dataset.test_y)
    placement = place(flags, chosen, network.model, algorithm, graphs, clients, test)
    run = chosen.run._replace(averaging_warmup=warmup, chunk=placement.chunk)
    chosen = replace(chosen, gain=gain, run=run)
    algorithm = make_algorithm(chosen, network.trained)
    keeps = any(map(len, kept))
    if keeps and algorithm.predict_own is None:
        raise ValueError(
            f'--validation_share={flags.validation_share}: {chosen.name} offers no local accuracy; '
            'leave it out'
        )
    return Experiment(
        chosen=chosen,
        dataset=dataset,
        parts=parts,
        clients=clients,
        graphs=graphs,
        test=test,
        network=network,
        algorithm=algorithm,
        key=jax.random.key(seeds['training']),
        footprint=placement.footprint,
        mesh=placement.mesh,
        validation=data.pack(dataset.train_x, dataset.train_y, kept) if keeps else None,
    )
