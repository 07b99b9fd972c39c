"""The table of all methods, what each of them needs of a run, and how to make one by name.

A method is a factory of `Algorithm`, and a row of METHODS says what else the program has to know.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dfl_jax import algorithms
from dfl_jax.algorithms.ntk_dfl import memory as ntk_dfl_memory
from dfl_jax.algorithms.ntk_fl import memory as ntk_fl_memory
from dfl_jax.algorithms.spark import memory as spark_memory
from dfl_jax.asynchronous import EVENT_METHODS, by_interval
from dfl_jax.base import Algorithm, Array, PyTree
from dfl_jax.exchange import (
    OLD_STEP,
    Attack,
    Combining,
    Compression,
    Exchange,
    aggregation_named,
    takes_loss,
    with_error_feedback,
)
from dfl_jax.heterogeneous import Population
from dfl_jax.method_settings import assemble, described, nearest
from dfl_jax.models import Model
from dfl_jax.setting_error import SettingError
from dfl_jax.training.local import training_bytes


class Run(NamedTuple):
    """What a method may take from the run that it is part of."""

    rounds: int  # T
    clients: int  # M
    senders: int  # that meet at an aggregator, for graphs of meetings
    clustered: bool  # the topology is one of disjoint cliques
    projection_seed: int  # a random stream of the run's seed
    members: int = 2  # K of the schedule
    chunk: int = 1  # clients or aggregators that fit into the memory at once
    places: int = 1  # of past models, events of a slot, seconds of an interval: without rounds
    width: int = 1
    seconds: float = 1.0


class Method(NamedTuple):
    """A method, and its needs."""

    factory: Callable[..., Algorithm]  # (network, **settings)
    label: str = ''  # as the papers write it
    paper: str = ''
    # `neighbours`: an aggregator a client; `cohort`: one server, which hears `cohort` clients;
    # `meetings`: some aggregators and their senders, clients of any architecture; `pairs`: the same
    # with one sender an aggregator; `events`: no rounds, see `dfl_jax.asynchronous`
    graphs: str = 'neighbours'
    # (model, samples N, members K, settings) -> bytes of one client, aggregator or participant
    memory: Callable[[Model, int, int, Mapping[str, Any]], int] = training_bytes
    advice: str = 'use a smaller `model`, or lower `local_epochs` or `local_steps`'
    # setting -> what it is in a run, where the user does not say
    from_run: Mapping[str, Callable[[Run], Any]] = {}
    # setting -> what it is in a run, where the user says 0
    from_run_at_zero: Mapping[str, Callable[[Run], Any]] = {}
    # flag of the run -> its default under this method, in place of the flag's own
    defaults: Mapping[str, Any] = {}
    traced: tuple[str, ...] = ('lr',)  # settings that may differ between the runs of one program
    architectures: str = ''  # where clients may differ, those of the paper's comparison
    # setting -> the name by which an experiment has it, where these differ
    flat_names: Mapping[str, str] = {}

    @property
    def heterogeneous(self) -> bool:
        """Whether clients may have different architectures."""
        return self.graphs in ('meetings', 'pairs')


PREFIXES = {  # of the flat names of settings whose own names would say too little
    'message': ('sparsity', 'sparsifier', 'bits', 'quantizer', 'rounding', 'error_feedback'),
    'ntk': (
        *('precision', 'timesteps', 'search', 'averaging', 'jacobian_weights'),
        *('batches', 'subsampling', 'by_cluster'),
    ),
    'ntk_fl': ('cohort',),
    'spark': (
        *('projection', 'projection_dim', 'projection_refresh', 'exchange', 'sampling'),
        *('warmup', 'alpha_init', 'alpha_final', 'tau_init', 'tau_final'),
    ),
    'dfml': (
        *('mutual_epochs', 'schedule', 'alpha', 'period', 'period_growth', 'peak_updates'),
        *('scheduled', 'teachers', 'transfer', 'weighted_samples', 'temperature'),
    ),
    'dec_fedavg': ('server',),
    'partial': ('channels',),
    'fml': ('meme',),
    'dispfl': ('density', 'prune_rate', 'anneal_rounds', 'regrow'),
}
FLAT_NAMES = {  # setting -> its flat name, where they differ
    'proximal': 'fedprox_mu',
    'selection': 'timestep_selection',
    'kernel_form': 'spark_kernel',
    'step_form': 'spark_step',
    'rounds': 'spark_schedule_rounds',
} | {name: f'{prefix}_{name}' for prefix, names in PREFIXES.items() for name in names}
EVENTS = 'events'  # `Method.graphs` of methods without rounds
CHUNK = {'chunk': lambda run: run.chunk}
ROUNDS = {'rounds': lambda run: run.rounds}
PLANNED = {name: attrgetter(name) for name in ('places', 'width', 'seconds')}
STATIC = {'static_topology': True}
# The defaults of DFML's comparison
MEETINGS = {'topology': 'complete', 'partition': 'dirichlet_split', 'validation_share': 0.2}
MEETING_ADVICE = 'use smaller `architectures`, or lower `dfml_mutual_epochs` or `local_epochs`'


def _peak_updates(run: Run) -> int:
    """DFML, A.4.6: clients over senders where fewer than half of the clients send."""
    few = run.senders < run.clients // 2
    return round(run.clients / max(run.senders, 1)) if few else 1


def _in_chunks(
    factory: Callable[..., Algorithm],
    label: str,
    paper: str,
    from_run: Mapping[str, Callable[[Run], Any]] = {},
    **options: Any,
) -> Method:
    """The row of a method that works on as many clients at once as the memory holds."""
    return Method(factory, label, paper, from_run={**CHUNK, **from_run}, **options)


def _of_meetings(factory: Callable[..., Algorithm], label: str, **options: Any) -> Method:
    """The row of a method of DFML's comparison."""
    options = {'graphs': 'meetings', 'architectures': 'h2_cnn'} | options
    return _in_chunks(factory, label, 'DFML', advice=MEETING_ADVICE, defaults=MEETINGS, **options)


def _without_rounds(name: str, label: str, paper: str) -> Method:
    """The row of an asynchronous method, whose rounds are intervals of simulated time."""
    factory = by_interval(EVENT_METHODS[name].factory)
    return _in_chunks(factory, label, paper, PLANNED, graphs=EVENTS, defaults=STATIC)


OF_EXCHANGES: dict[str, Any] = {  # settings of what clients send, which every method has
    'compression': Compression(),
    'combining': Combining(),
    'attack': None,  # an `Attack`
}


def exchanging(factory: Callable[..., Algorithm]) -> Callable[..., Algorithm]:
    """The factory of a method, which takes the settings OF_EXCHANGES, too.

    Those that it takes itself, or settings of their names, it is given as they are.
    """
    known = described(factory).keys()
    own = {
        name: default
        for name, default in OF_EXCHANGES.items()
        if not known & {name, *(vars(default) if default else ())}
    }
    if hasattr(factory, 'exchanging') or not own:
        return factory
    parameters = list(inspect.signature(factory).parameters.values())

    @functools.wraps(getattr(factory, 'func', factory))  # of a partial, what it is of
    def make(network: Any, **settings: Any) -> Any:
        given = {name: settings.pop(name, default) for name, default in own.items()}
        algorithm = factory(network, **settings)
        if given == own:
            return algorithm
        return _with_exchange(algorithm, network, **OF_EXCHANGES | given)

    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
        for name, default in own.items()
    ]
    anything = [p for p in parameters if p.kind is p.VAR_KEYWORD]
    named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
    make.__signature__ = inspect.Signature([*named, *more, *anything])  # type: ignore[attr-defined]
    make.exchanging = frozenset(own)  # type: ignore[attr-defined]
    return make


def _with_exchange(
    algorithm: Algorithm,
    network: Any,
    compression: Compression,
    combining: Combining,
    attack: Attack | None,
) -> Algorithm:
    """The method with messages that are coded, combined and tampered with. Raises ValueError."""
    exchange = algorithm.exchange or Exchange()
    codec = compression.codec('stochastic', feedback=True)
    if codec is not None and exchange.codec is not None:
        raise ValueError('this method codes its messages itself; leave the compression out')
    named = combining.aggregation
    rule = aggregation_named(named)
    if rule is not None and algorithm.linear:
        text = f'this method needs a linear average: {algorithm.linear}'
        raise SettingError('aggregation', named, text, 'leave it out')
    exchange = exchange._replace(
        codec=codec or exchange.codec,
        aggregation=rule or exchange.aggregation,
        attack=attack or exchange.attack,
        loss=functools.partial(_loss, network, named) if takes_loss(named) else None,
    )
    algorithm = algorithm._replace(exchange=exchange)
    return with_error_feedback(algorithm) if compression.error_feedback else algorithm


def _loss(
    model: Model, rule: str | Callable, x: Array, y: Array, mask: Array, params: PyTree
) -> Array:
    """The mean loss of a model over the samples that count, for a rule that takes it.

    x, y: [N, ...]; mask: [N]. Raises SettingError for parameters that are not those of the model.
    """
    sent, whole = (jax.tree.map(lambda a: a.shape, tree) for tree in (params, model.shapes))
    if sent != whole:
        text = 'takes the loss of what clients send, which is no whole model in this method'
        raise SettingError('aggregation', rule, text, 'take another rule', colon=False)
    _, losses = model.task.summed(model.apply(params, x), y, mask)
    return losses / jnp.maximum(mask.sum(), 1)


METHODS: dict[str, Method] = {
    'ntk_dfl': _in_chunks(
        *(algorithms.ntk_dfl, 'NTK-DFL', 'NTK-DFL', {'by_cluster': lambda run: run.clustered}),
        memory=ntk_dfl_memory,
        advice='lower `degree`, raise `ntk_batches`, or use more clients or a smaller model',
    ),
    'dpsgd': _in_chunks(algorithms.dpsgd, 'D-PSGD', 'NTK-DFL'),
    'dfedavg': _in_chunks(algorithms.dfedavg, 'DFedAvg', 'NTK-DFL'),
    'dfedavgm': _in_chunks(algorithms.dfedavgm, 'DFedAvgM', 'NTK-DFL'),
    'dfedsam': _in_chunks(algorithms.dfedsam, 'DFedSAM', 'NTK-DFL'),
    'dispfl': _in_chunks(
        algorithms.dispfl, 'DisPFL', 'NTK-DFL', {'anneal_rounds': lambda run: run.rounds}
    ),
    'ntk_fl': Method(
        *(algorithms.ntk_fl, 'NTK-FL', 'NTK-DFL'),
        graphs='cohort',
        memory=ntk_fl_memory,
        advice='lower `ntk_fl_cohort`, or use more clients or a smaller model',
    ),
    'decavg': _in_chunks(algorithms.decavg, 'DecAvg', 'Initialisation and topology'),
    'spark': _in_chunks(
        *(algorithms.spark, 'SPARK', 'SPARK', {'projection_seed': lambda run: run.projection_seed}),
        memory=spark_memory,
        advice='lower `degree`, `spark_projection_dim` or `spark_sampling`, or use more clients '
        'or a smaller model',
        from_run_at_zero=ROUNDS,
        traced=('lr', 'projection_seed'),
    ),
    'dsgt': _in_chunks(algorithms.dsgt, 'DSGT', 'Gradient tracking'),
    'd2': _in_chunks(algorithms.d2, 'D²', 'D²', defaults=STATIC),
    'relay_sgd': _in_chunks(
        *(algorithms.relay_sgd, 'RelaySGD', 'RelaySGD', {'members': lambda run: run.members}),
        defaults=STATIC | {'topology': 'line'},
    ),
    'qg_dsgdm': _in_chunks(algorithms.qg_dsgdm, 'QG-DSGDm', 'Quasi-global momentum'),
    'sgp': _in_chunks(algorithms.sgp, 'SGP', 'SGP', defaults={'topology': 'k_random'}),
    'choco_sgd': _in_chunks(algorithms.choco_sgd, 'CHOCO-SGD', 'CHOCO-SGD', defaults=STATIC),
    'beer': _in_chunks(algorithms.beer, 'BEER', 'BEER', defaults=STATIC),
    'epidemic': _in_chunks(
        algorithms.epidemic, 'Epidemic', 'Epidemic learning', defaults={'topology': 'epidemic'}
    ),
    'dfedprox': _in_chunks(algorithms.dfedprox, 'DFedProx', 'FedProx'),
    'dfed_admm': _in_chunks(algorithms.dfed_admm, 'DFedADMM', 'DFedADMM'),
    'dfed_alt': _in_chunks(algorithms.dfed_alt, 'DFedAlt', 'DFedAlt'),
    'dfml': _of_meetings(
        algorithms.dfml, 'DFML', from_run=ROUNDS | {'peak_updates': _peak_updates}
    ),
    'dec_fedavg': _of_meetings(algorithms.dec_fedavg, 'Dec. FedAvg'),
    'dec_fedprox': _of_meetings(algorithms.dec_fedprox, 'Dec. FedProx', architectures='h0'),
    'def_kt': _of_meetings(algorithms.def_kt, 'Def-KT', graphs='pairs', architectures='h0'),
    'dec_fed_dropout': _of_meetings(
        algorithms.dec_fed_dropout, 'Dec. Federated Dropout', architectures='h1_cnn'
    ),
    'dec_heterofl': _of_meetings(algorithms.dec_heterofl, 'Dec. HeteroFL', architectures='h1_cnn'),
    'dec_fedrolex': _of_meetings(algorithms.dec_fedrolex, 'Dec. FedRolex', architectures='h1_cnn'),
    'dec_fml': _of_meetings(algorithms.dec_fml, 'Dec. FML'),
    'ad_psgd': _without_rounds('ad_psgd', 'AD-PSGD', 'Lian et al., ICML 2018'),
    'gossip_learning': _without_rounds(
        'gossip_learning', 'Gossip learning', 'Hegedus et al., 2021'
    ),
    'swift': _without_rounds('swift', 'SWIFT', 'Bornstein et al., ICLR 2023'),
    'divshare': _without_rounds('divshare', 'DivShare', 'Biswas et al., WWW 2025'),
}
METHODS = {
    name: row._replace(factory=exchanging(row.factory), flat_names=FLAT_NAMES)
    for name, row in METHODS.items()
}
IN_ROUNDS = {name: row for name, row in METHODS.items() if row.graphs != EVENTS}


def make(
    method: str | Method | Callable[..., Algorithm], network: Model | Population, **settings: Any
) -> Algorithm:
    """A method with some of its published settings replaced: `make('dfedavg', model, lr=0.05)`.

    Args:
      method: a name of `METHODS`, or a factory, or a `Method`.
      network: the model of all clients, or the population of a method that takes one.
      settings: any of `settings_of`, those of its dataclasses by their own names.

    Raises ValueError for a name that is not known, a network that is not bound or a setting out of
    range, TypeError for a setting that the method does not have, with the nearest that it has.

    >>> from dfl_jax.models import MLP, bind
    >>> make('dfedavg', bind(MLP(3, (2,)), (4,)), lr=0.05, bits=8).exchange.codec is None
    False
    """
    if not isinstance(network, Model | Population):
        raise ValueError(
            f'{type(network).__name__} is no network of clients; bind a module to the shape of a '
            'sample, models.bind(module, x.shape[1:]), or take a Population'
        )
    if isinstance(method, Method):
        method = method.factory
    if callable(method):
        method = exchanging(method)
    if isinstance(method, str):
        if method not in METHODS:
            raise ValueError(
                f'unknown algorithm {method!r}{nearest(method, METHODS)}; choose one of '
                f'{", ".join(METHODS)}, or give a factory in place of a name'
            )
        name, factory = method, METHODS[method].factory
    else:
        name, factory = getattr(method, '__name__', str(method)), method
    try:
        arguments = assemble(factory, settings)
    except TypeError as error:
        raise TypeError(f'{name}: {error}') from error
    try:
        return factory(network, **arguments)
    except TypeError as error:
        if 'unit_bits' in str(error):
            raise TypeError(OLD_STEP) from error
        raise
