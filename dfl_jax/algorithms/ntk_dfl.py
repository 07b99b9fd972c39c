"""NTK-DFL: Thompson, Yue, Wong & Dai, ICML 2025, section 3, Algorithms 1-4 and appendix E.

One round of client i: average the weights with the neighbours' (Eq. 1), gather the neighbours'
Jacobians at that average (Eq. 2), form the kernel (Eq. 3), evolve the outputs under it (Eq. 4, 11)
and the weights with them (Eq. 5), and keep the timestep with the lowest loss. Jacobian batching
repeats the part after Eq. (1) for every batch; in a cluster all clients share one such update.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_method import (
    State,
    chosen_by,
    initial_state,
    keep_inactive,
    stacked_method,
)
from dfl_jax.algorithms.graph_requirements import countable
from dfl_jax.base import Algorithm, Array, Clients, Info, PyTree, Round
from dfl_jax.checks import check_range
from dfl_jax.exchange import COMBINED, SENT, Compression, heard_messages
from dfl_jax.execution import aggregator_bytes, map_in_chunks
from dfl_jax.gossip import mix_at_aggregator
from dfl_jax.metrics import dispersion
from dfl_jax.models import Model
from dfl_jax.ntk import (
    Linearization,
    NtkUpdate,
    aggregator_data,
    aggregator_of_clients,
    at_least_width,
    at_precision,
    count_data,
    draw_batches,
    drawn_samples,
    linearization,
    ntk_update,
    of_members,
    output_targets,
    total_flops,
    widths_of,
    with_row_factors,
)
from dfl_jax.ntk.compressed import compressed_bytes
from dfl_jax.ntk.update import Updated


def ntk_dfl(
    model: Model,
    *,
    ntk: NtkUpdate = NtkUpdate(),
    kernel: str = 'auto',
    averaging: bool = True,
    jacobian_weights: str = 'averaged',
    batches: int = 1,
    subsampling: int = 1,
    compression: Compression = Compression(),
    by_cluster: bool = False,
    gossip: Gossip = Gossip(mixing='size'),
) -> Algorithm:
    """NTK-DFL with the hyperparameters of appendix C.2 as defaults.

    Args:
      ntk: the update of one aggregator, Algorithm 4.
      kernel: backend of the kernel: `auto`, `structured`, `output_scan` or `nt` (neural-tangents),
        see `dfl_jax.ntk.kernels`.
      averaging: whether clients average their weights, Eq. (1); False: w_bar_i = w_i.
      jacobian_weights: the weights at which a neighbour takes its Jacobian and its outputs: the
        `averaged` weights of the aggregator (Eq. 2), or `neighbours`, each neighbour's own w_bar_j;
        the latter without averaging is the ablation of Figure 7.
      batches: number m1 of parts into which each client's data are split; each part makes an update
        with Jacobians at the weights that the previous update has reached (E.1).
      subsampling: divisor m2; each client draws 1/m2 of its data anew every round (E.3).
      compression: of the rows of the Jacobians (E.3).
      by_cluster: the graphs have one aggregator for each cluster (`topology.by_cluster`), whose
        clients share its weights and its update (E.2).
      gossip: averages, start and consensus.
      mixing: weights of the average, Eq. (1): `size` (ICML), `uniform` (preprint) or `metropolis`.
      consensus: the consensus model is the `mean` (ICML) or `size`-weighted mean of the M models.

    Raises ValueError for settings that contradict each other, before anything is traced.
    """
    codec = compression.codec('nearest')
    update = ntk_update(model, ntk)
    linearize = linearization(model, kernel=kernel, codec=codec, jacobian_weights=jacobian_weights)
    check_range('subsampling', subsampling, least=1)
    at_neighbours = jacobian_weights == 'neighbours'
    _check_batches(by_cluster, at_neighbours, batches, averaging, gossip.mixing)
    share = Fraction(1, subsampling)
    counted = linearization(model) if at_neighbours else linearize
    flops_total = total_flops(
        model, ntk, lambda w, x: counted(jax.random.key(0), w, x, len(x) // 2)
    )

    def step(key: Array, state: State, round: Round) -> tuple[State, Info]:
        k_batches, k_codec = jax.random.split(key)
        (params,), graph, exchange = state, round.graph, round.exchange
        clients, sizes = round.clients, round.sizes
        at_once = at_neighbours or not averaging or not exchange.plain
        rows = gossip.rows(round) if averaging else None
        theirs, w_bars = _received(key, round, params, rows, at_once)
        rate = ntk.rate(round.number)
        drawn = draw_batches(k_batches, clients, batches, share)  # [M, m1, B, ...]

        one, alone = _at_aggregator(
            *(model, ntk.loss, update, linearize),
            *(theirs, w_bars if at_neighbours else None, drawn, rate),
        )
        keys = jax.random.split(k_codec, (len(graph.members), batches))
        of_aggregators = (keys, w_bars, rows, exchange.row_factors(graph), *graph[:3])
        # [H, ...], [H, m1] of each
        each = aggregator_bytes(graph.members.shape[1] * drawn.y.shape[2], model)
        evolved, (chosen, losses, products, tried, used) = map_in_chunks(
            one, of_aggregators, gossip.chunk, each, alone
        )
        flops = flops_total(used, products, tried)
        flops = jnp.where(graph.active, flops.sum(axis=1), 0)
        losses = losses.mean(axis=1)
        if by_cluster:
            home, heard = aggregator_of_clients(graph, len(sizes))
            evolved, losses = jax.tree.map(lambda a: a[home], (evolved, losses))
            evolved = keep_inactive(heard, evolved, params)

        to_aggregators, from_aggregators = heard_messages(graph, len(sizes))
        # w_bar back for Eq. (2), where it is needed: the weights of every batch, and a cluster's
        # new ones
        back = 0 if at_neighbours else batches + by_cluster
        bits = exchange.bits(jax.tree.map(lambda a: a[0], params))
        exchange.count('weights', back * from_aggregators, bits)
        samples = to_aggregators * drawn_samples(sizes, share)
        count_data(round, samples, model, ntk.loss, codec)
        flops = jax.ops.segment_sum(flops, graph.members[:, 0], len(sizes))
        steps = chosen_by(graph, chosen)
        scatter = dispersion(evolved, round.judged)
        return State(evolved), Info(losses, {'timestep': steps, **scatter}, flops)

    return stacked_method(
        model,
        initial_state(model, gossip.init),
        at_precision(ntk.precision, step),
        gossip.consensus,
        check=partial(countable, 'ntk_dfl', model.classes, share, False),
    )


def _received(
    key: Array, round: Round, params: PyTree, rows: Array | None, at_once: bool
) -> tuple[PyTree, PyTree | None]:
    """The neighbours' weights, and w_bar of all aggregators if `at_once`; both leaves [M, ...].

    Else it is taken one by one; together they would be the largest array. rows: [H, K], or None for
    no average.
    """
    exchange = round.exchange
    if exchange.codec is not None:
        raise ValueError('ntk_dfl codes the rows of Jacobians; give it `compression` instead')
    if rows is None:
        return params, params
    k_sent = jax.random.fold_in(key, SENT)
    theirs = exchange.send(k_sent, round, params)
    if not at_once:
        return theirs, None
    k_combined = jax.random.fold_in(k_sent, COMBINED)
    return theirs, exchange.combine(k_combined, round, rows, theirs)  # Eq. (1)


def _check_batches(
    by_cluster: bool, at_neighbours: bool, batches: int, averaging: bool, mixing: str
) -> None:
    check_range('batches', batches, least=1)
    if at_neighbours and (by_cluster or batches > 1):
        raise ValueError(
            'jacobian_weights=neighbours takes one batch and one aggregator a client; leave out '
            'batches and clusters'
        )
    if by_cluster and not averaging:
        raise ValueError('the clients of a cluster share one average; averaging cannot be left out')
    if by_cluster and mixing == 'metropolis':
        raise ValueError('mixing=metropolis is no average of a cluster; use size or uniform')


def _at_aggregator(
    model: Model,
    loss: str,
    update: Callable[..., Updated],
    linearize: Callable[..., Linearization],
    params: PyTree,
    neighbours: PyTree | None,
    drawn: Clients,
    rate: Array,
) -> tuple[Callable, Callable]:
    """Algorithm 4 of one aggregator, for every batch, and the same without most of its padding.

    params: w_i, and neighbours the w_bar_i at which they take their Jacobians, if they do so, both
    with leaves [M, ...]; drawn: their batches, [M, m1, B, ...].
    """

    def aggregator(inputs):  # Algorithm 4, for every batch
        keys, w_bar, row, factors, members, linked, active = inputs
        if w_bar is None:
            w_bar = mix_at_aggregator(row, members, params)  # Eq. (1)

        def of_batch(w: PyTree, batch: tuple[Array, Clients]):
            key, part = batch
            theirs = None if neighbours is None else of_members(neighbours, members)
            x, labels, mask = aggregator_data(part, linked)
            linearized = linearize(key, w, x, part.y.shape[1], theirs)  # Eq. (2), (3)
            linearized = with_row_factors(linearized, factors)
            y = output_targets(model, labels, x.dtype, loss)
            w, *found = update(w, linearized, x, y, mask, rate)
            return w, (*found, mask.sum(dtype=jnp.int32))

        parts = jax.tree.map(lambda a: a.swapaxes(0, 1), of_members(drawn, members))
        w, found = lax.scan(of_batch, w_bar, (keys, parts))
        # An inactive aggregator's average is its own model.
        return jax.tree.map(lambda n, o: jnp.where(active, n, o), w, w_bar), found

    def of_its_width(inputs):
        """The same for an aggregator that is not batched, without most of its padding."""
        keys, w_bar, row, factors, members, linked, active = inputs

        def cut(width):
            kept = [a if a is None else a[:width] for a in (row, factors, members, linked)]
            return aggregator((keys, w_bar, *kept, active))

        return at_least_width(cut, linked, widths_of(len(linked)))

    return aggregator, of_its_width


def memory(model: Model, samples: int, members: int, settings: Mapping[str, Any]) -> int:
    """Bytes of one aggregator's update; samples: N of a client, members: K."""
    drawn = members * -(-samples // (settings['batches'] * settings['subsampling']))
    compressed = settings['sparsity'] is not None or settings['bits']
    rows = compressed_bytes(drawn, model) if compressed else 0
    return aggregator_bytes(drawn, model) + rows
