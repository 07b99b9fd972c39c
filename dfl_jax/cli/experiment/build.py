"""From flags to the objects of a run: data, clients, graphs, model, algorithm.

Everything that can be wrong with the input is found here, before any long computation, and raised
as a ValueError of one line.
"""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import linen as nn
from jax.sharding import Mesh

from dfl_jax import data, topology
from dfl_jax.algorithms import ALGORITHMS, REQUIRED, make, settings_of
from dfl_jax.base import Algorithm, Clients, Graph
from dfl_jax.cli.experiment.hardware import (
    bytes_of_graphs,
    chunk_of,
    cores_of,
    footprint_of,
    mesh_of,
)
from dfl_jax.cli.experiment.method_flags import ALGORITHM_FLAGS
from dfl_jax.cli.experiment.network import (
    averaging_warmup,
    check_network,
    draw_graphs,
    gain_rules,
    initial_gain,
    with_failures,
)
from dfl_jax.cli.experiment.plugins import check_algorithm, named, of_others, told
from dfl_jax.cli.experiment.population import (
    build_population,
    check_no_population,
    draw_meetings,
    senders_of,
)
from dfl_jax.cli.experiment.values import check_values
from dfl_jax.execution.memory import Footprint
from dfl_jax.heterogeneous.population import Population
from dfl_jax.initialisation import gain_corrected
from dfl_jax.models import MLP, MODELS, Model, bind, with_initializer
from dfl_jax.simulate import Holdout

# Streams of the one --seed: independent draws for every purpose.
STREAMS = (
    'partition',
    'subset',
    'graph',
    'links',
    'participation',
    'training',
    'projection',
    'jacobians',
    'gain',
    'isolation',
    'meetings',
    'validation',
)


@dataclass
class Experiment:
    """All that a run needs, and what describes it."""

    dataset: data.Dataset
    parts: list[np.ndarray]
    clients: Clients
    graphs: Graph
    test: Holdout
    model: Model
    algorithm: Algorithm
    key: jax.Array
    resolved: dict[str, Any]  # the algorithm's settings, defaults filled in
    factory: Callable[..., Algorithm]
    settings: dict[str, Any]  # what `algorithm` was made of, by `make`
    footprint: Footprint
    mesh: Mesh | None  # the devices, where there are several
    population: Population | None = None  # where clients may differ; `model` is their largest
    validation: Clients | None = None  # what clients keep from training


def build(flags: Any) -> Experiment:
    """Builds the experiment that the flags describe. Raises ValueError naming the bad one."""
    check_values(flags)
    _check_applicable(flags)
    mesh = mesh_of(flags)
    seeds = streams(flags)
    factory = named('algorithm', flags.algorithm, ALGORITHMS)
    with told('algorithm', flags.algorithm, 'factory'):
        defaults = settings_of(factory)
    settings = _algorithm_settings(flags, defaults)
    if 'by_cluster' in defaults:
        settings.setdefault('by_cluster', flags.topology == 'clustered')
    if 'anneal_rounds' in defaults:
        settings.setdefault('anneal_rounds', flags.rounds)
    if 'rounds' in defaults:
        settings.setdefault('rounds', flags.rounds)
    if 'projection_seed' in defaults:
        settings['projection_seed'] = seeds['jacobians']
    if 'peak_updates' in defaults and senders_of(flags) < flags.clients // 2:  # DFML, A.4.6
        settings.setdefault('peak_updates', round(flags.clients / max(senders_of(flags), 1)))
    meeting = 'population' in inspect.signature(factory).parameters
    if not meeting:
        check_no_population(flags)
    resolved = {n: value for n, value in defaults.items() if value is not REQUIRED} | settings
    check_network(flags, resolved)
    dataset = load_data(flags, seeds)
    judging, available = flags.client_eval_samples, len(dataset.test_y)
    if judging is not None and judging > available:
        raise ValueError(f'--client_eval_samples={judging} of {available} test samples; lower it')
    parts, held = deal(flags, dataset, seeds)
    population = build_population(flags, dataset) if meeting else None
    if population is None:
        model = _model(flags, dataset)
    else:
        model = max(population.models.values(), key=lambda each: each.size)
        resolved['architectures'] = {name: len(c) for name, c in population.clients.items()}
    known = {n: v for n, v in settings.items() if (n, v) != ('init', 'gain_corrected')}
    _made(flags, factory, population or model, known)  # for its checks
    # Last of the input, as it takes the longest; every purpose has a stream of seeds of its own.
    intact = draw_graphs(flags, seeds, resolved)
    graphs = with_failures(intact, flags, seeds, resolved)
    if meeting:
        graphs = draw_meetings(flags, graphs, seeds['meetings'])
    if flags.init == 'gain_corrected':
        sizes, mixing = np.array([len(part) for part in parts]), resolved.get('mixing', 'uniform')
        found = initial_gain(flags, intact, sizes, mixing, seeds['gain'])
        settings['init'] = gain_corrected(found)
        resolved['gain'] = float(np.mean(found))
        if 'averaging_warmup' in defaults and 'averaging_warmup' not in settings:
            steps = resolved['gossip_steps']
            rounds = averaging_warmup(flags, intact, graphs, sizes, mixing, steps)
            settings['averaging_warmup'] = resolved['averaging_warmup'] = rounds
    mesh = mesh or cores_of(flags, model, parts, graphs.members.shape[1], meeting)
    chunk, each = chunk_of(flags, model, graphs, max(map(len, parts)), resolved, meeting, mesh)
    if 'chunk' in defaults:
        settings['chunk'] = resolved['chunk'] = chunk
    clients = data.pack(dataset.train_x, dataset.train_y, parts)
    algorithm = _made(flags, factory, population or model, settings)
    test, key = Holdout(dataset.test_x, dataset.test_y), jax.random.key(seeds['training'])
    if of_others(flags.algorithm) and population is None:
        check_algorithm(flags.algorithm, algorithm, model, key, clients, graphs)
    keeps = any(map(len, held))
    if keeps and algorithm.predict_own is None:
        raise ValueError(
            f'--validation_share={flags.validation_share}: {flags.algorithm} offers no local '
            'accuracy; leave it out'
        )
    return Experiment(
        dataset=dataset,
        parts=parts,
        clients=clients,
        graphs=graphs,
        test=test,
        model=model,
        algorithm=algorithm,
        key=key,
        resolved=resolved,
        factory=factory,
        settings=settings,
        footprint=footprint_of(
            *(algorithm, key, clients, test, chunk * each, mesh),
            bytes_of_graphs(graphs, flags.eval_every),
        ),
        mesh=mesh,
        population=population,
        validation=data.pack(dataset.train_x, dataset.train_y, held) if keeps else None,
    )


def _check_applicable(flags: Any) -> None:
    """Raises ValueError for a data or network flag that was given and would be ignored."""
    from_file = flags.partition_file is not None
    dirichlet = flags.partition in ('dirichlet', 'dirichlet_split') or from_file
    embedded = flags.dataset in ('digits', 'synthetic') or flags.dataset.endswith('.npz')
    rules = {
        'alpha': (dirichlet, f'--partition={flags.partition}'),
        'partition_overlap': (dirichlet, f'--partition={flags.partition}'),
        'zipf_exponent': (flags.partition == 'zipf', f'--partition={flags.partition}'),
        'shards_per_client': (flags.partition == 'shards', f'--partition={flags.partition}'),
        'samples_per_client': (flags.partition == 'balanced', f'--partition={flags.partition}'),
        'train_samples': (not from_file, '--partition_file, whose indices mean the whole set'),
        'image_size': (flags.dataset == 'image_folder', f'--dataset={flags.dataset}'),
        'data_dir': (not embedded, f'--dataset={flags.dataset}'),
        'topology_file': (flags.topology == 'edge_list', f'--topology={flags.topology}'),
        'degree': (
            flags.topology in topology.WITH_DEGREE or flags.topology not in topology.FAMILIES,
            f'--topology={flags.topology}',
        ),
        'degree_exponent': (flags.topology == 'configuration', f'--topology={flags.topology}'),
        'torus_dimensions': (flags.topology == 'torus', f'--topology={flags.topology}'),
        **gain_rules(flags),
    }
    for name, (applies, against) in rules.items():
        if not applies and flags[name].present:
            raise ValueError(
                f'--{name}={flags[name].value} does not apply to {against}; leave it out'
            )


def streams(flags: Any) -> dict[str, int]:
    """A seed of its own for each purpose, all derived from the one --seed."""
    if flags.seed < 0:
        raise ValueError(f'--seed has to be at least 0, got {flags.seed}')
    return {
        name: int(np.random.SeedSequence([flags.seed, number]).generate_state(1)[0])
        for number, name in enumerate(STREAMS)
    }


def load_data(flags: Any, seeds: dict[str, int]) -> data.Dataset:
    """The data set of the flags, or their subset of it."""
    dataset = data.load(
        flags.dataset,
        flags.data_dir,
        train_samples=flags.train_samples,
        test_samples=flags.test_samples,
        seed=seeds['subset'],
        image_size=flags.image_size,
        progress=flags.progress,
    )
    if flags.input_projection is not None:
        dataset = data.project(dataset, flags.input_projection, seeds['projection'])
    return dataset


def deal(
    flags: Any, dataset: data.Dataset, seeds: dict[str, int]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Of every client the training samples, and those that it keeps for validation."""
    parts = data.partition(
        flags.partition,
        dataset,
        flags.clients,
        seed=seeds['partition'],
        alpha=flags.alpha,
        overlap=flags.partition_overlap,
        exponent=flags.zipf_exponent,
        shards_per_client=flags.shards_per_client,
        samples_per_client=flags.samples_per_client,
        path=flags.partition_file,
    )
    return data.split_validation(parts, flags.validation_share or 0, seeds['validation'])


def _made(
    flags: Any,
    factory: Callable[..., Algorithm],
    network: Model | Population,
    settings: dict[str, Any],
) -> Algorithm:
    """The method. Raises ValueError for settings out of range."""
    try:
        with told('algorithm', flags.algorithm, 'factory'):
            return make(factory, network, **settings)
    except ImportError as error:  # a backend that is not installed
        raise ValueError(f'--algorithm={flags.algorithm}: {error}') from error


def _model(flags: Any, dataset: data.Dataset) -> Model:
    shape = dataset.train_x.shape[1:]
    factory = named('model', flags.model, MODELS)
    if flags.hidden is None:
        with told('model', flags.model, f'factory, called with the {dataset.classes} classes,'):
            module = factory(dataset.classes)
        if not isinstance(module, nn.Module):
            raise ValueError(
                f'--model={flags.model} returns {type(module).__name__}, not a flax.linen.Module'
            )
        with told('model', flags.model, 'module'):
            model = bind(module, shape)
    elif flags.model != 'mlp':
        raise ValueError(f'--hidden shapes --model=mlp, not --model={flags.model}; leave it out')
    else:
        widths = _integers('hidden', flags.hidden)
        if any(width < 1 for width in widths):
            raise ValueError(f'--hidden={",".join(flags.hidden)}: use widths of at least 1')
        model = bind(MLP(dataset.classes, widths), shape)
    return with_initializer(model, flags.initializer) if flags.initializer else model


def _algorithm_settings(flags: Any, accepted: dict[str, Any]) -> dict[str, Any]:
    """The algorithm flags that were given, by the names of the settings."""
    settings = {}
    for argument, holder in ALGORITHM_FLAGS.items():
        value: Any = holder.value
        if value is None:
            continue
        if argument not in accepted:
            raise ValueError(
                f'{flags[holder.name].serialize()} does not apply to '
                f'--algorithm={flags.algorithm}; leave it out'
            )
        if argument == 'timesteps':
            value = _integers(holder.name, value)
        settings[argument] = value
    if 'local_steps' in settings and 'local_epochs' not in settings:
        settings['local_epochs'] = None
    elif 'local_epochs' in settings and 'local_steps' not in settings:
        settings['local_steps'] = None
    return settings


def _integers(flag: str, values: Sequence[str]) -> tuple[int, ...]:
    """The whole numbers of a flag. Raises ValueError naming it."""
    try:
        return tuple(int(value) for value in values)
    except ValueError:
        raise ValueError(
            f'--{flag} takes whole numbers separated by commas, got {",".join(values)}'
        ) from None
