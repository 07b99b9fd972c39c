"""From flags to the objects of a run: seeds, method, data, network, graphs, placement.

Everything that can be wrong with the input is found here, before any long computation, and raised
as a ValueError of one line.
"""

import contextlib
import inspect
from collections.abc import Sequence
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
from dfl_jax.experiment.datasets import load_data, shifted
from dfl_jax.experiment.gain import initial_gain
from dfl_jax.experiment.graphs import check_graphs, draw_graphs
from dfl_jax.experiment.method import Chosen, choose_method, make_algorithm
from dfl_jax.experiment.networks import build_network
from dfl_jax.experiment.own_code import digest_of_code
from dfl_jax.experiment.placement import place
from dfl_jax.heterogeneous import Population
from dfl_jax.method_settings import assemble
from dfl_jax.methods import EVENTS
from dfl_jax.models import Model
from dfl_jax.timing import ROUNDS, Rules, World
from dfl_jax.training import training_flops

STREAMS = (  # of random numbers, one a purpose
    'partition',
    'subset',
    'graph',
    'links',
    'participation',
    'training',
    'projection',
    'jacobians',
    'gain',
    'receiving',
    'meetings',
    'validation',
    'world',
    'feature_shift',
    'evaluation',
    'directions',
    'isolation',
)


@dataclass
class Experiment:
    """All that a run needs, and what describes it."""

    chosen: Chosen  # the method and its settings
    dataset: data.Dataset
    parts: list[np.ndarray]
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
        resolved = self.chosen.resolved
        if self.graphs.weights is not None and 'mixing' in resolved:
            resolved['mixing'] = 'graph'
        if self.population is None:
            return resolved
        clients = self.population.clients.items()
        return resolved | {'architectures': {name: len(c) for name, c in clients}}


def streams(seed: int, names: Sequence[str] = STREAMS) -> dict[str, int]:
    """A seed of its own for each purpose."""
    return {
        name: int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        for number, name in enumerate(names)
    }


def build(flags: Any) -> Experiment:
    """Builds the experiment that the flags describe. Raises ValueError naming the bad one."""
    seeds = streams(flags.seed)
    chosen = choose_method(flags, seeds['jacobians'])
    family = check_graphs(flags, chosen.method)
    world = simulated_world(flags, seeds['world'], chosen)
    dataset = load_data(flags, seeds)
    parts, kept = partition(flags, dataset, seeds)
    model, population = build_network(flags, dataset, chosen.method)
    evaluated = choose_evaluated(flags.client_eval_samples, dataset, seeds['evaluation'])
    network = population or model
    chosen = replace(chosen, target=(dataset.train_y.shape[1:], dataset.train_y.dtype))
    algorithm = make_algorithm(chosen, network)  # for its checks; the last comes below
    # Late, as it takes the longest
    intact, graphs = draw_graphs(flags, seeds, chosen, world)
    sizes = np.array([len(part) for part in parts])
    if world is not None and chosen.method.graphs == EVENTS:
        graphs, chosen = plan_events(flags, chosen, model, graphs, world, sizes, seeds['links'])
        world = None  # their time is in the schedule
    chosen = replace(chosen, run=chosen.run._replace(members=graphs.mask.shape[2]))
    algorithm = make_algorithm(chosen, network)
    if algorithm.check is not None:
        algorithm.check(graphs, sizes)
    gain = initial_gain(flags, chosen, family, intact, sizes, seeds['gain'])
    clients, validation, test_x = shifted(flags, dataset, parts, kept, seeds['feature_shift'])
    test = Holdout(test_x, dataset.test_y)
    placement = place(flags, chosen, model, algorithm, graphs, clients, test)
    chosen = replace(chosen, gain=gain, run=chosen.run._replace(chunk=placement.chunk))
    algorithm = make_algorithm(chosen, network)
    if world is not None:
        timing.check_counted(algorithm, clients, graphs)
        if not flags.round_seconds:
            check_all_return(algorithm, clients, graphs, world, flags.barrier)
    if validation is not None and algorithm.predict_own is None:
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
        first=jax.tree.map(lambda array: np.array(array[0]), intact),
        test=test,
        model=model,
        population=population,
        algorithm=algorithm,
        key=jax.random.key(seeds['training']),
        footprint=placement.footprint,
        mesh=placement.mesh,
        validation=validation,
        code=digest_of_code(flags),
        evaluated=evaluated,
        # Who is offline sits a round out, and nobody waits for him
        world=world and (world._replace(online=None) if flags.round_seconds else world),
        rules=Rules(barrier=flags.barrier, period=flags.round_seconds or 0.0),
    )


def choose_evaluated(asked: int | None, dataset: data.Dataset, seed: int) -> np.ndarray | None:
    """The test samples of --client_eval_samples by their indices, None for all. Raises ValueError
    for more than there are."""
    if asked is None:
        return None
    if asked > len(dataset.test_y):
        raise ValueError(
            f'--client_eval_samples={asked} of {len(dataset.test_y)} test samples; lower it'
        )
    return choose_samples(dataset.test_y, asked, seed)


def simulated_world(flags: Any, seed: int, chosen: Chosen) -> World | None:
    """The --world, if any. Raises ValueError for one that does not fit the method or the run."""
    without_rounds = chosen.method.graphs == EVENTS
    if without_rounds and (flags.world is None or flags.round_seconds is None):
        raise ValueError(
            f'--algorithm={chosen.name} has no rounds; give it a --world, and --round_seconds for '
            'the intervals at which it is evaluated'
        )
    if flags.world is None:
        return None
    if chosen.method.graphs == 'cohort':
        raise ValueError(
            f'--world={flags.world}: the server of {chosen.name} is none of the clients, whose '
            'times these are; leave it out'
        )
    world = timing.parse(flags.world, flags.clients, seed)
    if flags.round_seconds is not None:
        check_range('--round_seconds', flags.round_seconds, above=0)
        if world.online is None and not without_rounds:
            raise ValueError(
                f'--round_seconds={flags.round_seconds}: in --world={flags.world} all are always '
                'online; add online=sine:PERIOD:SHARE, or leave it out'
            )
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
    flags: Any,
    chosen: Chosen,
    model: Model,
    graphs: Graph,
    world: World,
    sizes: np.ndarray,
    seed: int,
) -> tuple[Graph, Chosen]:
    """The schedule of a method without rounds, in intervals of --round_seconds, and the method with
    what follows from it. Raises ValueError for what cannot be simulated."""
    factory, settings = chosen.method.factory, chosen.settings
    default = inspect.signature(factory).parameters['training'].default
    training = assemble(factory, settings).get('training', default)
    of_events = asynchronous.EVENT_METHODS[chosen.name].settings
    planned = asynchronous.plan(
        chosen.name,
        graphs,
        world,
        flops=np.asarray(training_flops(model, training)(jnp.asarray(sizes))),
        bits=asynchronous.model_bits(chosen.name, model),
        number_bits=asynchronous.weight_bits(model),
        ends=np.arange(1, flags.rounds + 1) * flags.round_seconds,
        loss=flags.link_dropout,
        sizes=sizes,
        seed=seed,
        **{name: settings[name] for name in of_events if name in settings},
    )
    run = chosen.run._replace(
        places=planned.places,
        width=planned.slots.active.shape[1],
        seconds=flags.round_seconds,
    )
    slots: Any = asynchronous.intervals_of(planned)
    return slots, replace(chosen, run=run)


def partition(
    flags: Any, dataset: data.Dataset, seeds: dict[str, int]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Each client's training samples, and those that it keeps for validation.

    Raises ValueError where no client would keep any.
    """
    parts = data.partition(
        flags.partition,
        dataset,
        flags.clients,
        seed=seeds['partition'],
        alpha=flags.alpha,
        overlap=flags.partition_overlap,
        exponent=flags.zipf_exponent,
        lognormal_sigma=flags.lognormal_sigma,
        shards_per_client=flags.shards_per_client,
        samples_per_client=flags.samples_per_client,
        path=flags.partition_file,
    )
    share = flags.validation_share or 0
    training, kept = data.split_validation(parts, share, seeds['validation'])
    if share and not any(map(len, kept)):
        raise ValueError(
            f'--validation_share={share} keeps no sample of any client, the largest of which has '
            f'{max(map(len, parts))}; raise it, or have fewer clients'
        )
    return training, kept
