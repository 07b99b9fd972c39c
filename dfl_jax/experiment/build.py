"""From an experiment to the objects of a run: data, network, graphs, algorithm, placement.

Everything that can be wrong with the input is found here, before any long computation, and raised
as a ValueError of one line.
"""

import contextlib
import inspect
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from dfl_jax import asynchronous, data, timing
from dfl_jax.base import Algorithm, Clients, Graph
from dfl_jax.checks import check_range
from dfl_jax.evaluation import Holdout, choose_samples
from dfl_jax.execution import Footprint
from dfl_jax.experiment.datasets import Parts, load_data, shifted
from dfl_jax.experiment.description import Description
from dfl_jax.experiment.gain import initial_gain
from dfl_jax.experiment.graphs import check_graphs, draw_graphs
from dfl_jax.experiment.method import ConfiguredMethod, configure, make_algorithm
from dfl_jax.experiment.networks import build_network
from dfl_jax.experiment.own_code import digest_of_code, partition_of
from dfl_jax.experiment.placement import bytes_of_graphs, chunk_of, footprint_of, mesh_for
from dfl_jax.experiment.run_settings import Partition
from dfl_jax.experiment.streams import streams
from dfl_jax.heterogeneous import Population
from dfl_jax.method_settings import assemble
from dfl_jax.methods import EVENTS, Run
from dfl_jax.models import Model
from dfl_jax.setting_error import SettingError
from dfl_jax.timing import ROUNDS, Rules, World
from dfl_jax.training import training_flops


@dataclass
class BuiltExperiment:
    """All that a run needs, and what describes it."""

    experiment: Description
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
    code: str | None  # digest of the modules of one's own
    evaluated: np.ndarray | None = None  # test samples that evaluate the clients; None for all
    world: World | None = None  # in which rounds take simulated seconds
    rules: Rules = ROUNDS  # who waits for what there

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


def build(experiment: Description, progress: bool = True) -> BuiltExperiment:
    """Builds an experiment. progress: show that of downloads. Raises ValueError, one line."""
    seeds, time = streams(experiment.seed), experiment.time
    configured = configure(experiment.method, of_the_run(experiment, seeds['jacobians']))
    check_graphs(experiment)
    world = simulated_world(experiment, seeds['world'])

    dataset = load_data(experiment.data, seeds, progress)
    parts, kept = partition(experiment.partition, dataset, seeds)
    sizes = np.array([len(part) for part in parts])
    model, population = build_network(experiment, dataset)
    network = population or model
    asked = experiment.evaluation.client_eval_samples
    evaluated = choose_evaluated(asked, dataset, seeds['evaluation'])
    configured = replace(configured, target=(dataset.train_y.shape[1:], dataset.train_y.dtype))
    make_algorithm(configured, network)  # for its checks, before graphs are drawn

    intact, graphs = draw_graphs(experiment, seeds, configured, world)
    if world is not None and configured.method.graphs == EVENTS:
        graphs, configured = plan_events(
            experiment, configured, model, graphs, world, sizes, seeds['links']
        )
        world = None  # their time is in the schedule
    gain = initial_gain(experiment, configured, intact, sizes, seeds['gain'])
    shift = experiment.data.feature_shift
    clients, validation, test_x = shifted(shift, dataset, parts, kept, seeds['feature_shift'])
    test = Holdout(test_x, dataset.test_y)

    mesh = mesh_for(experiment.placement, model, clients, graphs, configured.method)
    run = configured.run._replace(members=graphs.mask.shape[2])
    configured = replace(configured, run=run)
    chunk, work = chunk_of(configured, model, clients, graphs, mesh)
    configured = replace(configured, gain=gain, run=run._replace(chunk=chunk))
    algorithm = make_algorithm(configured, network)
    if algorithm.check is not None:
        algorithm.check(graphs, sizes)
    of_graphs = bytes_of_graphs(graphs, experiment.evaluation.eval_every)
    footprint = footprint_of(algorithm, clients, test, work, mesh, of_graphs)
    if world is not None:
        timing.check_counted(algorithm, clients, graphs)
        if not time.round_seconds:
            check_all_return(algorithm, clients, graphs, world, time.barrier)
    if validation is not None and algorithm.predict_own is None:
        raise SettingError(
            'validation_share',
            experiment.partition.validation_share,
            f'{configured.name} offers no local accuracy',
            'leave it out',
        )
    return BuiltExperiment(
        experiment=experiment,
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
        code=digest_of_code(experiment.flat()),
        evaluated=evaluated,
        # A client that is offline sits a round out, and no other waits for it
        world=world and (world._replace(online=None) if time.round_seconds else world),
        rules=Rules(barrier=time.barrier, period=time.round_seconds or 0.0),
    )


def of_the_run(experiment: Description, projection_seed: int) -> Run:
    """What methods take from the run, as far as the settings say it."""
    clients, senders = experiment.partition.clients, experiment.architectures.senders
    return Run(
        rounds=experiment.rounds,
        clients=clients,
        senders=clients // 2 if senders is None else senders,
        clustered=experiment.graphs.topology == 'clustered',
        projection_seed=projection_seed,
    )


def choose_evaluated(asked: int | None, dataset: data.Dataset, seed: int) -> np.ndarray | None:
    """The indices of so many test samples, None for all. Raises SettingError for more than there
    are."""
    if asked is None:
        return None
    if asked > (count := len(dataset.test_y)):
        text = f'of {count} test samples; lower it'
        raise SettingError('client_eval_samples', asked, text, colon=False)
    return choose_samples(dataset.test_y, asked, seed)


def simulated_world(experiment: Description, seed: int) -> World | None:
    """The network and device profile, if any. Raises SettingError for one that does not fit the
    method or the run."""
    asked, seconds = experiment.time.world, experiment.time.round_seconds
    name, graphs = experiment.method.name, experiment.method.row.graphs
    if graphs == EVENTS and (asked is None or seconds is None):
        raise SettingError(
            'algorithm',
            name,
            'has no rounds',
            'give it a `world`, and `round_seconds` for the intervals at which it is evaluated',
            colon=False,
        )
    if asked is None:
        return None
    if graphs == 'cohort':
        text = f'the server of {name} is none of the clients, whose times these are'
        raise SettingError('world', asked, text, 'leave it out')
    world = timing.parse(asked, experiment.partition.clients, seed)
    if seconds is not None:
        check_range('round_seconds', seconds, above=0)
        if world.online is None and graphs != EVENTS:
            text = f'in `world={asked}` all are always online'
            remedy = 'add online=sine:PERIOD:SHARE, or leave it out'
            raise SettingError('round_seconds', seconds, text, remedy)
    return world


def check_all_return(
    algorithm: Algorithm, clients: Clients, graphs: Graph, world: World, barrier: bool
) -> None:
    """Raises NeverOnlineError where a client that others wait for leaves for ever.

    Of methods whose work depends on the training it shows while they train.
    """
    if world.online is None or np.isfinite(world.online.period).all():
        return
    with contextlib.suppress(timing.DependsOnTrainingError):
        counts = timing.counted(algorithm, clients, graphs)
        rules = timing.rules_of(algorithm, graphs, len(clients.y), Rules(barrier=barrier))
        timing.finish_times(graphs, counts, world, rules)


def plan_events(
    experiment: Description,
    configured: ConfiguredMethod,
    model: Model,
    graphs: Graph,
    world: World,
    sizes: np.ndarray,
    seed: int,
) -> tuple[Graph, ConfiguredMethod]:
    """The schedule of a method without rounds, in intervals of `round_seconds`, and the method with
    what follows from it. Raises ValueError for what cannot be simulated."""
    name, factory, settings = configured.name, configured.method.factory, configured.settings
    default = inspect.signature(factory).parameters['training'].default
    training = assemble(factory, settings).get('training', default)
    of_events = asynchronous.EVENT_METHODS[name].settings
    seconds: Any = experiment.time.round_seconds
    planned = asynchronous.plan(
        *(name, graphs, world),
        flops=np.asarray(training_flops(model, training)(jnp.asarray(sizes))),
        bits=asynchronous.model_bits(name, model),
        number_bits=asynchronous.weight_bits(model),
        ends=np.arange(1, experiment.rounds + 1) * seconds,
        loss=experiment.graphs.link_dropout,
        sizes=sizes,
        seed=seed,
        **{name: settings[name] for name in of_events if name in settings},
    )
    width = planned.slots.active.shape[1]
    run = configured.run._replace(places=planned.places, width=width, seconds=seconds)
    slots: Any = asynchronous.intervals_of(planned)
    return slots, replace(configured, run=run)


def partition(
    asked: Partition, dataset: data.Dataset, seeds: dict[str, int]
) -> tuple[Parts, Parts]:
    """Each client's training samples, and those that it keeps for validation.

    Raises SettingError where no client would keep any.
    """
    parts = data.partition(
        *(partition_of(asked.partition), dataset, asked.clients),
        seed=seeds['partition'],
        alpha=asked.alpha,
        overlap=asked.partition_overlap,
        exponent=asked.zipf_exponent,
        lognormal_sigma=asked.lognormal_sigma,
        shards_per_client=asked.shards_per_client,
        samples_per_client=asked.samples_per_client,
        path=asked.partition_file,
    )
    share = asked.validation_share or 0
    training, kept = data.split_validation(parts, share, seeds['validation'])
    if share and not any(map(len, kept)):
        raise SettingError(
            'validation_share',
            share,
            'keeps no sample of any client, the largest of which has '
            f'{max(map(len, parts))}; raise it, or have fewer clients',
            colon=False,
        )
    return training, kept
