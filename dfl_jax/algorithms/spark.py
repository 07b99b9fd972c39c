"""SPARK: Xia, "SPARK: Igniting Communication-Efficient Decentralized Learning via Stage-wise
Projected NTK and Accelerated Regularization", section 3, Algorithms 1 and 2.

One round of client i: average the weights with the neighbours' (NTK-DFL, Eq. 1), gather their
projected Jacobians (Eq. 3, 5) and outputs, evolve under the projected kernel (Eq. 6, 14) towards
labels softened by the neighbours' logits (Eq. 10, 11), map the residual back to the weights
(Eq. 16, 17), and add the step to a velocity that looks ahead (Eq. 12, 13).
"""

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dfl_jax.algorithms.common import consensus_of, count_sent, keep_inactive, stacked_predictions
from dfl_jax.base import Algorithm, Array, Clients, Graph, Info, PyTree
from dfl_jax.checks import check_choice
from dfl_jax.compression import (
    FLOAT_BITS,
    LABEL_BITS,
    Codec,
    Message,
    chain,
    half_precision,
    quantization,
)
from dfl_jax.execution.chunks import map_in_chunks
from dfl_jax.gossip.mixing import MIXINGS, mix, mixing_weights
from dfl_jax.initialisation import Init, check_init, initial_params
from dfl_jax.metrics import CONSENSUS, dispersion
from dfl_jax.models import Model
from dfl_jax.ntk import JACOBIAN_WEIGHTS, at_precision, ntk_update
from dfl_jax.ntk.aggregator_data import (
    aggregator_data,
    draw_batches,
    drawn_samples,
    of_members,
    one_hot_targets,
)
from dfl_jax.ntk.distillation import annealing, distillation_target
from dfl_jax.ntk.linearized import projected
from dfl_jax.ntk.projection import projection as projection_of

REFRESHES = ('never', 'round', 'aggregator')
LOGITS = ('own', 'aggregator')
JUDGES = ('labels', 'target')
EXCHANGES: dict[str, Codec | None] = {
    'float32': None,
    'float16': half_precision(),
    'int8': quantization(8, 'nearest'),
}


class State(NamedTuple):
    params: PyTree  # leaves [M, ...]
    velocity: PyTree  # v_i, leaves [M, ...]
    sizes: Array  # [M] int32, N_i
    round: Array  # scalar int32, the rounds done, k - 1


def spark(
    model: Model,
    *,
    lr: float = 0.01,
    lr_decay: float = 0.0,
    timesteps: Sequence[int] = (100, 200, 400, 800),
    projection: str = 'low_rank',
    projection_dim: int | None = None,
    projection_refresh: str = 'aggregator',
    projection_seed: int = 0,
    kernel_form: str = 'full',
    step_form: str = 'projected',
    exchange: str = 'float32',
    sampling: float = 1.0,
    rounds: int = 30,
    warmup: int | None = None,
    alpha_init: float = 1.0,
    alpha_final: float = 0.1,
    tau_init: float = 1.0,
    tau_final: float = 1.0,
    logits: str = 'aggregator',
    momentum: float = 0.9,
    average_velocity: bool = False,
    averaging: bool = True,
    jacobian_weights: str = 'aggregator',
    evolution: str = 'rkc',
    selection: str = 'network',
    judge: str = 'labels',
    precision: str = 'highest',
    mixing: str = 'size',
    consensus: str = 'mean',
    init: Init = 'same',
    chunk: int = 1,
) -> Algorithm:
    """SPARK; where the paper is silent or ambiguous the default is what comes closest to its tables
    (docs/results_spark.md).

    Args:
      model: the network, bound to its input shape.
      lr: eta, the length of a time step.
      lr_decay: round k = 0, 1, ... uses lr * exp(-lr_decay * k).
      timesteps: candidates t among which each client chooses, increasing.
      projection: kind of P, see `dfl_jax.ntk.projection`, or `none`: Jacobians are sent as they
        are.
      projection_dim: k, the numbers of a projected row of the Jacobian (default 1000).
      projection_refresh: `never`, one P for all rounds (the paper); another every `round`; or
        another for every `aggregator` and round, which the aggregator's number gives without being
        sent.
      projection_seed: the global seed of P.
      kernel_form: `full`, over samples and outputs (Eq. 6), or its `trace` over outputs (NTK-DFL).
      step_form: the weights move by the `projected` step P J~^T S (Eq. 16, 17), or by the `exact`
        J^T S, for which the aggregator sends S to its neighbours and they return their share of the
        sum.
      exchange: of Jacobians, `float32`, `float16` or `int8`.
      sampling: share of its data that a client draws anew every round.
      rounds: R of the schedules.
      warmup: R_warm, rounds on labels alone (default: a sixth of R, 5 of 30).
      alpha_init, alpha_final: weight of the labels at either end of the schedule (Eq. 8); 1 and 1
        are no distillation.
      tau_init, tau_final: temperature at either end (Eq. 9).
      logits: soft labels of a client's data come from its `own` model, before averaging, or from
        the model at which the Jacobian is taken (`aggregator`).
      momentum: mu of Eq. (12) and (13).
      average_velocity: neighbours average their velocities with their weights.
      averaging: False leaves the averaging of weights out.
      jacobian_weights: a neighbour takes its Jacobian at the averaged weights of the `aggregator`
        (NTK-DFL) or at its `own` (Algorithm 1 to the letter, together with averaging=False).
      evolution: `rkc` or `euler`, see `dfl_jax.ntk.evolution`.
      selection: the timestep's loss is that of the true `network` or of the evolved, `linearized`,
        outputs, on the aggregator's and its neighbours' data.
      judge: that loss is against the `labels` or the softened `target`.
      precision: as of `dfl_jax.algorithms.ntk_dfl.ntk_dfl`.
      mixing: weights of the averaging: `size`, `uniform` or `metropolis`.
      consensus: the aggregated model is the `mean` or `size`-weighted mean of the M models.
      init: `same` or `independent` initial weights, or `initialisation.gain_corrected(gain)`.
      chunk: aggregators worked on at once.

    Raises ValueError for settings out of range or that contradict each other, before anything is
    traced.
    """
    check_choice('exchange', exchange, tuple(EXCHANGES))
    check_choice('jacobian_weights', jacobian_weights, JACOBIAN_WEIGHTS)
    update = ntk_update(model, timesteps=timesteps, evolution=evolution, selection=selection)
    at_own, exact = jacobian_weights == 'own', step_form == 'exact'
    distils = alpha_init < 1 or alpha_final < 1
    teaches = distils and logits == 'own'
    random = projection_of(projection, model.shapes, projection_dim)
    linearize = projected(
        model, random, form=kernel_form, step=step_form, codec=EXCHANGES[exchange]
    )
    check_choice('projection_refresh', projection_refresh, REFRESHES)
    check_choice('logits', logits, LOGITS)
    check_choice('judge', judge, JUDGES)
    check_choice('consensus', consensus, CONSENSUS)
    check_choice('mixing', mixing, MIXINGS)
    check_init(init)
    if at_own and projection_refresh == 'aggregator':
        raise ValueError(
            'projection_refresh=aggregator does not go with jacobian_weights=own, where a client '
            'projects the one Jacobian that it broadcasts; choose projection_refresh=round or never'
        )
    if not 0 <= momentum <= 1:
        raise ValueError(f'momentum has to lie in [0, 1], got {momentum}')
    if not 0.001 <= sampling <= 1:
        raise ValueError(f'sampling has to lie in [0.001, 1], got {sampling}')
    share = Fraction(sampling).limit_denominator(1000)
    if warmup is None:
        warmup = rounds // 6
    schedule = annealing(rounds, warmup, (alpha_init, alpha_final), (tau_init, tau_final))

    def init_state(key: Array, clients: Clients) -> State:
        sizes = clients.mask.sum(axis=1, dtype=jnp.int32)
        params = initial_params(key, model, len(sizes), init)
        return State(params, jax.tree.map(jnp.zeros_like, params), sizes, jnp.int32(0))

    def step(key: Array, state: State, graph: Graph, clients: Clients) -> tuple[State, Info]:
        k_batch, k_codec = jax.random.split(key)
        params, velocity, sizes, k = state
        averages = mixing_weights(graph, sizes, mixing)
        w_bars = mix(averages, graph.members, params) if averaging else params
        v_bars = mix(averages, graph.members, velocity) if average_velocity else velocity
        rate = lr * jnp.exp(-lr_decay * k)
        drawn = draw_batches(k_batch, clients, 1, share)
        drawn = jax.tree.map(lambda a: a[:, 0], drawn)  # [M, B, ...]
        teachers = jax.vmap(model.apply)(params, drawn.x) if teaches else None  # z_j [M, B, C]
        k_layers = jax.random.key(projection_seed)
        if projection_refresh != 'never':
            k_layers = jax.random.fold_in(k_layers, k)
        common = None if projection_refresh == 'aggregator' else random.draw(k_layers)

        def aggregator(inputs):  # lines 10 to 16
            k_received, number, w, v, members, linked = inputs
            received = lambda tree: of_members(tree, members)  # noqa: E731
            x, labels, mask = aggregator_data(received(drawn), linked)
            table = random.draw(jax.random.fold_in(k_layers, number)) if common is None else common
            theirs = received(w_bars) if at_own else None
            linearized = linearize(
                k_received, table, w, x, mask, drawn.y.shape[1], theirs
            )  # Eq. (6)
            y = one_hot_targets(labels, model.classes, x.dtype)
            z = received(teachers).reshape(-1, model.classes).T if teaches else linearized.outputs
            z = jnp.where(mask, z, 0)
            target = distillation_target(y, z, *schedule(k + 1))  # Eq. (11)
            judged = y if judge == 'labels' else target
            evolved, t, loss = update(
                w, linearized, x, target, mask, rate, judged
            )  # Eq. (14) to (17)
            delta = jax.tree.map(jnp.subtract, evolved, w)
            v = jax.tree.map(lambda v, d: momentum * v + d, v, delta)  # Eq. (12)
            w = jax.tree.map(lambda w, v, d: w + momentum * v + d, w, v, delta)  # Eq. (13)
            return w, v, t, loss

        aggregators = len(graph.members)
        of_aggregators = (
            jax.random.split(k_codec, aggregators),
            jnp.arange(aggregators),
            w_bars,
            v_bars,
            graph.members,
            graph.mask,
        )
        *new, chosen, losses = map_in_chunks(aggregator, of_aggregators, chunk)
        new, velocity = keep_inactive(graph.active, tuple(new), (params, velocity))

        to_aggregators, from_aggregators = count_sent(graph, len(sizes))
        own_samples = drawn_samples(sizes, share)
        samples = to_aggregators * own_samples
        heard = graph.mask[:, 1:] & graph.active[:, None]
        theirs = jnp.where(heard, own_samples[graph.members[:, 1:]], 0).sum(
            axis=1
        )  # of an aggregator
        # z_j are the outputs at the Jacobian's weights, unless the model was averaged since
        twice = teaches and (averaging or not at_own)
        info = {
            # w_j and v_j to the aggregator for their averages, w_bar_i back for the Jacobians, and
            # their shares of an exact step
            'sent/weights': (averaging + average_velocity + exact) * to_aggregators
            + (not at_own) * from_aggregators,
            'sent/jacobian_rows': samples * model.classes,
            'sent/jacobians': to_aggregators,  # one quantization step each
            'sent/outputs': (samples * (1 + twice) + exact * theirs) * model.classes,
            'sent/labels': samples,
            'loss': losses,
            'timestep': chosen,
            **dispersion(new),
        }
        return State(new, velocity, sizes, k + 1), info

    mean = consensus_of(consensus)
    sent = (EXCHANGES[exchange] or chain()).shrunk(Message(random.dimension, FLOAT_BITS, 0))
    return Algorithm(
        init_state,
        at_precision(precision, step),
        stacked_predictions(model, mean),
        unit_bits={
            'weights': FLOAT_BITS * model.size,
            'jacobian_rows': sent.values * sent.width,
            'jacobians': sent.beside,
            'outputs': FLOAT_BITS,
            'labels': LABEL_BITS,
        },
        consensus=mean,
    )
