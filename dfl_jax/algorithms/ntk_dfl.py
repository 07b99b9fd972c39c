"""NTK-DFL: Thompson, Yue, Wong & Dai, ICML 2025, section 3, Algorithms 1-4 and appendix E.

One round of client i: average the weights with the neighbours' (Eq. 1), gather the neighbours'
Jacobians at that average (Eq. 2), form the kernel (Eq. 3), evolve the outputs under it (Eq. 4, 11)
and the weights with them (Eq. 5), and keep the timestep with the lowest loss. Jacobian batching
repeats the part after Eq. (1) for every batch; in a cluster all clients share one such update.
"""

from collections.abc import Sequence
from fractions import Fraction

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.algorithms.common import (
    State,
    consensus_of,
    count_sent,
    initial_state,
    keep_inactive,
    stacked_predictions,
)
from dfl_jax.base import Algorithm, Array, Clients, Graph, Info, PyTree
from dfl_jax.checks import check_choice
from dfl_jax.compression import FLOAT_BITS, LABEL_BITS, chain, codec_of
from dfl_jax.execution.chunks import map_in_chunks
from dfl_jax.gossip.mixing import MIXINGS, mix, mix_at_aggregator, mixing_weights
from dfl_jax.initialisation import Init, check_init
from dfl_jax.metrics import CONSENSUS, dispersion
from dfl_jax.models import Model
from dfl_jax.ntk import TIMESTEPS, at_precision, linearization, ntk_update
from dfl_jax.ntk.aggregator_data import (
    aggregator_data,
    aggregator_of_clients,
    draw_batches,
    drawn_samples,
    of_members,
    one_hot_targets,
)


def ntk_dfl(
    model: Model,
    *,
    lr: float = 0.01,
    lr_decay: float = 0.0,
    timesteps: Sequence[int] = TIMESTEPS,
    loss: str = 'cross_entropy',
    evolution: str = 'rkc',
    selection: str = 'network',
    kernel: str = 'auto',
    precision: str = 'highest',
    mixing: str = 'size',
    averaging: bool = True,
    jacobian_weights: str = 'aggregator',
    batches: int = 1,
    subsampling: int = 1,
    jacobian_sparsity: float | None = None,
    jacobian_bits: int | None = None,
    jacobian_rounding: str | None = None,
    by_cluster: bool = False,
    consensus: str = 'mean',
    init: Init = 'same',
    chunk: int = 1,
) -> Algorithm:
    """NTK-DFL with the hyperparameters of appendix C.2 as defaults.

    Args:
      model: the network, bound to its input shape.
      lr: eta, the length of a time step.
      lr_decay: round k uses lr * exp(-lr_decay * k).
      timesteps: candidates t among which each client chooses, increasing.
      loss: `cross_entropy` or `mse` (half squared error, whose update carries the 1/C of Eq. 5b).
      evolution: `rkc`, `euler` or `eigh`, see `dfl_jax.ntk.evolution`.
      selection: the timestep's loss is that of the true network with the evolved weights
        (`network`) or of the evolved outputs (`linearized`), on the aggregator's and its
        neighbours' data.
      kernel: backend, see `dfl_jax.ntk.kernels`.
      precision: of the products of a round, `highest`, `high` or `default`, as
        `jax.default_matmul_precision` names them; CPUs know only one.
      mixing: weights of Eq. (1): `size` (ICML), `uniform` (preprint) or `metropolis`.
      averaging: False leaves Eq. (1) out: w_bar_i = w_i.
      jacobian_weights: a neighbour takes its Jacobian, and evaluates its outputs, at the weights of
        the `aggregator` (Eq. 2) or at its `own`, w_bar_j; without averaging, `own` is the ablation
        of Figure 7.
      batches: m1, the parts of a client's data that make an update of their own, one after the
        other, each with Jacobians at the weights that the one before has reached (E.1).
      subsampling: m2; a client draws 1/m2 of its data anew every round (E.3).
      jacobian_sparsity: share of the entries that top-k sparsification sets to zero in every
        tensor of a Jacobian's rows; None for none (E.3).
      jacobian_bits: quantizes what is left of a row to so many bits; None sends 32-bit floats.
      jacobian_rounding: of the quantizer, `nearest` (default) or `stochastic`.
      by_cluster: the graphs have one aggregator a cluster (`topology.by_cluster`), whose clients
        share its weights and its update (E.2).
      consensus: the aggregated model is the `mean` (ICML) or `size`-weighted mean of the M models.
      init: `same` or `independent` initial weights, or `initialisation.gain_corrected(gain)`.
      chunk: aggregators worked on at once.

    Raises ValueError for settings that contradict each other, before anything is traced.
    """
    rounding = jacobian_rounding or ('nearest' if jacobian_bits else None)
    codec = codec_of(jacobian_sparsity, jacobian_bits, rounding)
    update = ntk_update(
        model,
        timesteps=timesteps,
        loss=loss,
        evolution=evolution,
        selection=selection,
    )
    linearize = linearization(model, kernel=kernel, codec=codec, jacobian_weights=jacobian_weights)
    check_choice('consensus', consensus, CONSENSUS)
    check_choice('mixing', mixing, MIXINGS)
    check_init(init)
    for name, value in (('batches', batches), ('subsampling', subsampling)):
        if value < 1:
            raise ValueError(f'{name} has to be at least 1, got {value}')
    at_own = jacobian_weights == 'own'
    if at_own and (by_cluster or batches > 1):
        raise ValueError(
            'jacobian_weights=own takes one batch and one aggregator a client; leave out batches '
            'and clusters'
        )
    if by_cluster and not averaging:
        raise ValueError('the clients of a cluster share one average; averaging cannot be left out')
    if by_cluster and mixing == 'metropolis':
        raise ValueError('mixing=metropolis is no average of a cluster; use size or uniform')

    share = Fraction(1, subsampling)

    def step(key: Array, state: State, graph: Graph, clients: Clients) -> tuple[State, Info]:
        k_batches, k_codec = jax.random.split(key)
        params, sizes, k = state
        rows = mixing_weights(graph, sizes, mixing) if averaging else None
        w_bars = None  # taken one by one; together they would be the largest array
        if at_own or not averaging:
            w_bars = params if rows is None else mix(rows, graph.members, params)  # Eq. (1)
        rate = lr * jnp.exp(-lr_decay * k)
        drawn = draw_batches(k_batches, clients, batches, share)  # [M, m1, B, ...]

        def aggregator(inputs):  # Algorithm 4, for every batch
            keys, w_bar, row, members, linked, active = inputs
            if w_bar is None:
                w_bar = mix_at_aggregator(row, members, params)  # Eq. (1)

            def of_batch(w: PyTree, batch: tuple[Array, Clients]):
                key, part = batch
                theirs = of_members(w_bars, members) if at_own else None
                x, labels, mask = aggregator_data(part, linked)
                linearized = linearize(key, w, x, part.y.shape[1], theirs)  # Eq. (2), (3)
                y = one_hot_targets(labels, model.classes, x.dtype)
                w, *found = update(w, linearized, x, y, mask, rate)
                return w, found

            parts = jax.tree.map(lambda a: a.swapaxes(0, 1), of_members(drawn, members))
            w, found = lax.scan(of_batch, w_bar, (keys, parts))
            # An inactive aggregator's average is its own model.
            return jax.tree.map(lambda n, o: jnp.where(active, n, o), w, w_bar), found

        keys = jax.random.split(k_codec, (len(graph.members), batches))
        of_aggregators = (keys, w_bars, rows, *graph)
        evolved, (chosen, losses) = map_in_chunks(
            aggregator, of_aggregators, chunk
        )  # [H, ...], [H, m1] twice
        losses = losses.mean(axis=1)
        if by_cluster:
            home, heard = aggregator_of_clients(graph, len(sizes))
            evolved, losses = jax.tree.map(lambda a: a[home], (evolved, losses))
            evolved = keep_inactive(heard, evolved, params)

        to_aggregators, from_aggregators = count_sent(graph, len(sizes))
        samples = to_aggregators * drawn_samples(sizes, share)
        back = batches + by_cluster  # the weights of every batch, and a cluster's new ones
        info = {
            # w_j to the aggregator for Eq. (1), and w_bar back for Eq. (2), each where it is needed
            'sent/weights': averaging * to_aggregators + (0 if at_own else back) * from_aggregators,
            'sent/jacobian_rows': samples * model.classes,
            'sent/outputs': samples * model.classes,
            'sent/labels': samples,
            'loss': losses,
            'timestep': chosen,
            **dispersion(evolved),
        }
        return State(evolved, sizes, k + 1), info

    mean = consensus_of(consensus)
    return Algorithm(
        initial_state(model, init),
        at_precision(precision, step),
        stacked_predictions(model, mean),
        unit_bits={
            'weights': FLOAT_BITS * model.size,
            'jacobian_rows': (codec or chain()).bits(model.shapes),
            'outputs': FLOAT_BITS,
            'labels': LABEL_BITS,
        },
        consensus=mean,
    )
