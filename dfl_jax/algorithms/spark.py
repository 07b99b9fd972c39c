"""SPARK: Xia, "SPARK: Igniting Communication-Efficient Decentralized Learning via Stage-wise
Projected NTK and Accelerated Regularization", section 3, Algorithms 1 and 2.

One round of client i: average the weights with the neighbours' (NTK-DFL, Eq. 1), gather their
projected Jacobians (Eq. 3, 5) and outputs, evolve under the projected kernel (Eq. 6, 14) towards
labels softened by the neighbours' logits (Eq. 10, 11), map the residual back to the weights
(Eq. 16, 17), and add the step to a velocity that looks ahead (Eq. 12, 13).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_method import (
    chosen_by,
    initial_state,
    keep_inactive,
    stacked_method,
)
from dfl_jax.algorithms.graph_requirements import countable
from dfl_jax.base import Algorithm, Array, Info, PyTree, Round
from dfl_jax.checks import check_choice, check_range
from dfl_jax.exchange import (
    FLOAT_BITS,
    LABEL_BITS,
    SENT,
    Codec,
    Message,
    bits_of,
    chain,
    half_precision,
    heard_messages,
    number_bits,
    quantization,
)
from dfl_jax.execution import aggregator_bytes, bytes_of, map_in_chunks
from dfl_jax.metrics import dispersion
from dfl_jax.models import Model
from dfl_jax.ntk import (
    Distillation,
    Linearization,
    NtkUpdate,
    aggregator_data,
    at_precision,
    distillation_target,
    draw_batches,
    drawn_samples,
    ntk_update,
    of_members,
    output_targets,
    projected,
    total_flops,
    with_row_factors,
)
from dfl_jax.ntk.evolution import OWN
from dfl_jax.ntk.projection import RandomProjection
from dfl_jax.ntk.projection import projection as projection_of

REFRESHES = {  # whether P differs between rounds, and between aggregators
    'never': (False, False),
    'client': (False, True),
    'round': (True, False),
    'aggregator': (True, True),
}
EXCHANGES: dict[str, Codec | None] = {
    'float32': None,
    'float16': half_precision(),
    'int8': quantization(8, 'nearest'),
}
# Eq. (15) sums the iterates from which its outputs follow, as `rkc` does.
NTK = NtkUpdate(timesteps=(100, 200, 400, 800), evolution='rkc')


@dataclass(frozen=True, kw_only=True)
class Projection:
    """How Jacobians are projected and sent.

    Args:
      projection: kind of the projection P: `low_rank`, `sparse_sign`, `gaussian` (the paper's;
        slow) or `none`: Jacobians are sent as they are; see `dfl_jax.ntk.projection`.
      projection_dim: length k of a projected row of the Jacobian; None for 1000.
      projection_refresh: how often P is drawn: `never` again, one P for all clients and rounds
        (section 3.2); once for each `client` (Algorithm 1 writes P_i); every `round`; or for every
        `aggregator` and round. All that an aggregator hears is projected by its own P, which seed,
        round and client give without being sent.
      projection_seed: the global seed of P.
      kernel_form: kernel over samples and outputs, `full` (Eq. 6), or its `trace` over outputs, as
        in NTK-DFL.
      step_form: the weights move by the `projected` step P J~^T S (Eq. 16, 17), or by the `exact`
        J^T S, for which the aggregator sends S to its neighbours and they return their share.
      exchange: type of the numbers of a sent Jacobian: `float32`, `float16` or `int8`.

    Raises ValueError for settings out of range.
    """

    projection: str = 'low_rank'
    projection_dim: int | None = None
    projection_refresh: str = 'client'
    projection_seed: int = 0
    kernel_form: str = 'full'
    step_form: str = 'projected'
    exchange: str = 'float32'

    def __post_init__(self):
        check_choice('projection_refresh', self.projection_refresh, tuple(REFRESHES))
        check_choice('exchange', self.exchange, tuple(EXCHANGES))

    @property
    def shared(self) -> bool:
        """Whether all aggregators of a round have the same P."""
        return not REFRESHES[self.projection_refresh][1]

    def key(self, k: Array | int, client: Array | int) -> Array:
        """The key from which an aggregator draws P in round k + 1; client: the client that it is.

        The neighbours' Jacobians are projected by it as well: K = J~ J~^T holds products of rows of
        different neighbours, which E[P P^T] = I keeps, whereas P_i P_j^T of two matrices has mean
        0. Line 5 of Algorithm 1 taken literally, every client by its own P_i, would lose them.
        """
        key = jax.random.key(self.projection_seed)
        for differs, number in zip(REFRESHES[self.projection_refresh], (k, client), strict=True):
            key = jax.random.fold_in(key, number) if differs else key
        return key


class State(NamedTuple):
    params: PyTree  # leaves [M, ...]
    velocity: PyTree  # v_i, leaves [M, ...]


def spark(
    model: Model,
    *,
    ntk: NtkUpdate = NTK,
    projection: Projection = Projection(),
    distillation: Distillation = Distillation(),
    sampling: float = 1.0,
    momentum: float = 0.9,
    averaging: bool = True,
    gossip: Gossip = Gossip(mixing='size'),
) -> Algorithm:
    """SPARK; where the paper is silent or ambiguous the default is what comes closest to its tables
    (docs/results_spark.md).

    Args:
      ntk: the update of one aggregator; its loss is cross-entropy.
      projection: of the Jacobians.
      distillation: of labels and the logits of the model at which the Jacobian is taken.
      sampling: share of its data that a client draws anew every round, in [0.001, 1].
      momentum: momentum mu of Eq. (12) and (13).
      averaging: whether clients average their weights.
      gossip: averages, start and consensus.

    Raises ValueError for settings out of range or that contradict each other, before anything is
    traced.
    """
    _check_task(model)
    codec, exact = EXCHANGES[projection.exchange], projection.step_form == 'exact'
    random = projection_of(projection.projection, model.shapes, projection.projection_dim)
    linearize = projected(
        model, random, form=projection.kernel_form, step=projection.step_form, codec=codec
    )
    update = ntk_update(model, ntk)
    check_choice('loss', ntk.loss, ('cross_entropy',))
    if ntk.float16_kernel and projection.kernel_form == 'full':
        raise ValueError(
            'precision=float16_kernel is about the matrix of a kernel, and the full kernel is not '
            'formed; use kernel_form=trace, or precision=highest'
        )
    check_range('momentum', momentum, least=0, most=1)
    check_range('sampling', sampling, least=0.001, most=1)
    share = Fraction(sampling).limit_denominator(1000)

    def counted(w: PyTree, x: Array) -> Linearization:
        key, every = jax.random.key(0), jnp.ones(len(x), bool)
        return linearize(key, random.draw(key), w, x, every, len(x))

    flops_total = total_flops(model, ntk, counted)

    def step(key: Array, state: State, round: Round) -> tuple[State, Info]:
        k_batch, k_codec = jax.random.split(key)
        (params, velocity), graph, clients = state, round.graph, round.clients
        sizes, k = round.sizes, round.number
        w_bars, exchange = params, round.exchange
        k_sent, k_back = jax.random.split(jax.random.fold_in(key, SENT))
        if averaging:
            w_bars = exchange.mean(k_sent, round, gossip.rows(round), params)
        w_bars = exchange.reply(k_back, round, w_bars)  # for the neighbours' Jacobians
        rate = ntk.rate(k)
        drawn = draw_batches(k_batch, clients, 1, share)
        drawn = jax.tree.map(lambda a: a[:, 0], drawn)  # [M, B, ...]
        common = random.draw(projection.key(k, 0)) if projection.shared else None

        def aggregator(inputs):  # lines 10 to 16
            k_received, w, v, factors, members, linked = inputs
            x, labels, mask = aggregator_data(of_members(drawn, members), linked)
            table = common if projection.shared else random.draw(projection.key(k, members[0]))
            linearized = linearize(k_received, table, w, x, mask, drawn.y.shape[1])  # Eq. (6)
            linearized = with_row_factors(linearized, factors)
            y = output_targets(model, labels, x.dtype)
            z = jnp.where(mask, linearized.outputs, 0)
            target = distillation_target(y, z, *distillation.schedule(k + 1))  # Eq. (11)
            evolved, *found = update(w, linearized, x, target, mask, rate, y)  # Eq. (14) to (17)
            w, v = looking_ahead(w, v, evolved, momentum)  # Eq. (12), (13)
            return w, v, *found, mask.sum(dtype=jnp.int32)

        keys = jax.random.split(k_codec, len(graph.members))
        factors = exchange.row_factors(graph)
        of_aggregators = (keys, w_bars, velocity, factors, graph.members, graph.mask)
        settings = {'sampling': sampling, **vars(projection)}
        each = memory(model, clients.y.shape[1], graph.members.shape[1], settings)
        *new, chosen, losses, products, tried, used = map_in_chunks(
            aggregator, of_aggregators, gossip.chunk, each
        )
        flops = flops_total(used, products, tried)
        new, velocity = keep_inactive(graph.active, tuple(new), (params, velocity))

        own_samples = drawn_samples(sizes, share)
        _count(round, model, own_samples, exact, ntk.selection == 'network', random, codec)
        steps = chosen_by(graph, chosen)
        flops = jnp.where(graph.active, flops, 0)
        info = Info(losses, {'timestep': steps, **dispersion(new, round.judged)}, flops)
        return State(new, velocity), info

    return stacked_method(
        model,
        initial_state(model, gossip.init, State),
        at_precision(ntk.precision, step),
        gossip.consensus,
        check=partial(countable, 'spark', model.classes, share, exact),
    )


def looking_ahead(
    w: PyTree, velocity: PyTree, evolved: PyTree, momentum: float
) -> tuple[PyTree, PyTree]:
    """The weights and the velocity after a step from w to `evolved`, Eq. (12) and (13)."""
    delta = jax.tree.map(jnp.subtract, evolved, w)
    velocity = jax.tree.map(lambda v, d: momentum * v + d, velocity, delta)
    return jax.tree.map(lambda w, v, d: w + momentum * v + d, w, velocity, delta), velocity


def _check_task(model: Model) -> None:
    if not model.task.cross_entropy:
        raise ValueError(
            'SPARK distils the probabilities of classes by their cross-entropy, and '
            f'{model.task.name} has none; take ntk_dfl with loss={(*model.task.flow, OWN)[0]}, or '
            'a gradient method, such as dfedavg'
        )


def _count(
    round: Round,
    model: Model,
    own_samples: Array,
    exact: bool,
    network: bool,
    random: RandomProjection,
    codec: Codec | None,
) -> None:
    """Counts what is sent beside weights; own_samples: [M], drawn by each client.

    A timestep that the true network chooses (`network`) takes the neighbours' inputs,
    which J~ does not hold: they are counted, in 32 bits, over every delivered link and round, as
    graphs are new ones every round. On a static graph and without sampling an aggregator could keep
    those of the first round; that is not counted otherwise.
    """
    graph, count = round.graph, round.exchange.count
    to_aggregators, _ = heard_messages(graph, len(own_samples))
    samples = to_aggregators * own_samples
    heard = graph.mask[:, 1:] & graph.active[:, None]
    # Samples of its neighbours, whose residuals an aggregator sends back
    theirs = jnp.where(heard, own_samples[graph.members[:, 1:]], 0).sum(axis=1)
    if random.kind == 'none':  # rows are of the weights' own types
        row, step = bits_of(model.shapes), 0
    else:
        coded = (codec or chain()).compressed(Message(random.dimension, FLOAT_BITS, 0))
        row, step = coded.values * coded.width, coded.overhead
    if exact:  # the neighbours' shares of the step
        count('steps', to_aggregators, bits_of(model.shapes))
    count('jacobian_rows', samples * model.classes, row)
    count('jacobians', to_aggregators, step)  # one quantization step each
    outputs = (samples + exact * theirs) * model.classes
    count('outputs', outputs, number_bits(model.output_type))
    count('labels', samples, LABEL_BITS)
    count('inputs', network * samples, FLOAT_BITS * math.prod(model.input_shape))


def memory(model: Model, samples: int, members: int, settings: Mapping[str, Any]) -> int:
    """Bytes of one aggregator's update; samples: N of a client, members: K.

    Three copies of the inputs, ten of the weights, forty of the outputs; where the Jacobian is
    formed two of it, three where it is decoded, and the signals of dense layers that give it; what
    is kept of P; and the kernel of the trace.
    """
    drawn = math.ceil(samples * settings['sampling']) * members
    decoded = settings['exchange'] != 'float32'
    random = projection_of(settings['projection'], model.shapes, settings['projection_dim'])
    trace = settings['kernel_form'] == 'trace'
    outputs = drawn * model.classes
    width = 0
    if decoded or random.kind == 'gaussian' or (trace and random.kind != 'none'):
        width = (3 if decoded else 2) * random.dimension
        if random.kind == 'low_rank':
            matrices = (leaf.shape for leaf in jax.tree.leaves(model.shapes))
            width += sum(shape[-1] for shape in matrices if len(shape) == 2)
    inputs = drawn * math.prod(model.input_shape)
    kept = bytes_of(jax.eval_shape(random.draw, jax.eval_shape(lambda: jax.random.key(0))))
    kernel = 4 * drawn**2 if trace else 0
    if trace and random.kind == 'none':
        kernel = aggregator_bytes(drawn, model)
    return kernel + kept + 4 * (3 * inputs + 10 * model.size + (40 + width) * outputs)
