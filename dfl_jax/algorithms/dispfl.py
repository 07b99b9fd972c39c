"""DisPFL: Dai, Shen, He, Tian & Tao, ICML 2022.

Every client trains a sparse model w_i under a mask m_i of its own. One round of client i:

    z_i = local training of the weights in m_i               LocalTraining
    m'_i = m_i pruned by magnitude, regrown by gradient      Algorithm 2, rate annealed by a cosine
    w_i <- (sum_j W_ij z_j) / (sum_j W_ij m_j) * m'_i        average over the intersection of masks

so that a regrown weight starts from what neighbours know of it. (The paper counts a round from the
average; all clients start alike, so the sequence is the same, and as for every other method here
the models judged are those after the average.) Densities of the layers are Erdos-Renyi-kernel (Evci
et al. 2020). Hyperparameters of NTK-DFL (ICML 2025), appendix C.2; what that leaves open (learning
rate decay, weight decay, gradient clipping, prune rate) is that of DisPFL's published code.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dfl_jax.algorithms.client_models import Gossip
from dfl_jax.algorithms.gossip_method import keep_inactive, mean_params, stacked_method
from dfl_jax.base import Algorithm, Array, Clients, Info, PyTree, Round
from dfl_jax.checks import check_choice, check_range
from dfl_jax.exchange import SENT, Exchange, heard_messages, largest
from dfl_jax.execution import client_bytes, map_in_chunks
from dfl_jax.gossip import mix
from dfl_jax.initialisation import initial_params
from dfl_jax.metrics import dispersion
from dfl_jax.models import Model
from dfl_jax.setting_error import InputError
from dfl_jax.training import (
    LocalTraining,
    batch_loss,
    epoch_orders,
    gradient_flops,
    local_training,
    take,
    training_flops,
)

REGROW = ('gradient', 'random')
CONSENSUS = ('mean', 'size', 'intersection')
TRAINING = LocalTraining(
    lr=0.1, lr_decay=0.998, batch_size=10, local_epochs=10, weight_decay=5e-4, clip_norm=10.0
)


class State(NamedTuple):
    params: PyTree  # leaves [M, ...], zero outside the masks
    masks: PyTree  # m_i, bool [M, ...]


def layer_counts(shapes: PyTree, density: float) -> PyTree:
    """Weights that a mask keeps of each tensor: Erdos-Renyi-kernel densities.

    Density_l = epsilon * sum(shape) / prod(shape) with the epsilon that keeps `density` of all
    weights; a tensor that would pass 1 is dense, and the others share what is left.

    shapes: leaves with `.shape`; returns a tree of ints.
    """
    leaves, treedef = jax.tree.flatten(shapes)
    sizes = [math.prod(leaf.shape) for leaf in leaves]
    spread = [sum(leaf.shape) for leaf in leaves]  # density times size, up to epsilon
    dense: set[int] = set()
    while True:
        sparse = [i for i in range(len(leaves)) if i not in dense]
        budget = density * sum(sizes) - sum(sizes[i] for i in dense)
        epsilon = budget / sum(spread[i] for i in sparse) if sparse else 0.0
        full = {i for i in sparse if epsilon * spread[i] > sizes[i] * (1 - 1e-12)}  # up to rounding
        if not full:
            break
        dense |= {max(full, key=lambda i: spread[i] / sizes[i])}
    counts = [
        size if i in dense else max(1, int(epsilon * spread[i])) for i, size in enumerate(sizes)
    ]
    return jax.tree.unflatten(treedef, counts)


def dispfl(
    model: Model,
    *,
    training: LocalTraining = TRAINING,
    density: float = 0.5,
    prune_rate: float = 0.5,
    anneal_rounds: int = 200,
    regrow: str = 'gradient',
    gossip: Gossip = Gossip(mixing='uniform'),
) -> Algorithm:
    """DisPFL; a message holds the weights inside a mask, and the mask, one bit each.

    Args:
      training: of every client on its own data, within its mask.
      density: share of the weights that a mask keeps, in (0, 1].
      prune_rate: share of a mask that is replaced after round 0; round k replaces
        prune_rate / 2 (1 + cos(pi k / anneal_rounds)).
      anneal_rounds: rounds until nothing is replaced; a run of the command line takes its rounds.
      regrow: which weights a mask takes anew: those of the largest `gradient` on one minibatch, or
        `random` ones.
      gossip: averages, start and consensus.
      consensus: the consensus model is the `mean` or `size`-weighted mean of the M sparse models,
        or each weight's mean over the clients whose mask holds it (`intersection`).

    Raises ValueError for settings out of range, before anything is traced.
    """
    check_choice('consensus', gossip.consensus, CONSENSUS)
    check_choice('regrow', regrow, REGROW)
    check_range('density', density, above=0, most=1)
    check_range('prune_rate', prune_rate, least=0, most=1)
    check_range('anneal_rounds', anneal_rounds, least=1)
    local = local_training(model, training, gossip.chunk)
    flops_of = training_flops(model, training)
    counts = layer_counts(model.shapes, density)
    search_mask = mask_search(model, training, regrow, counts)

    def init_state(key: Array, clients: Clients) -> State:
        k_weights, k_masks = jax.random.split(key)
        weights = initial_params(k_weights, model, len(clients.mask), gossip.init)
        first = random_mask(k_masks, model, counts)  # the same for all
        masks = optax.tree.batch_shape(first, clients.mask.shape[:1])
        return State(_masked(weights, masks), masks)

    def step(key: Array, state: State, round: Round) -> tuple[State, Info]:
        k_train, k_masks = jax.random.split(key)
        (params, masks), graph, clients = state, round.graph, round.clients
        sizes, k = round.sizes, round.number
        trained, losses = local(k_train, params, clients, k, masks)

        rate = prune_rate / 2 * (1 + jnp.cos(jnp.pi * jnp.minimum(k / anneal_rounds, 1)))
        searched = map_in_chunks(
            lambda one: search_mask(one[0], rate, *one[1:]),
            (jax.random.split(k_masks, len(sizes)), trained, masks, *clients[:3]),
            gossip.chunk,
            client_bytes(clients.y.shape[1], model),
        )

        if clients.arrival is not None:  # who has no sample yet has no gradient to regrow by
            searched = keep_inactive(sizes > 0, searched, masks)
        rows = gossip.rows(round)
        k_sent, k_combined = jax.random.split(jax.random.fold_in(key, SENT))
        trained = sent_inside(k_sent, round, trained, masks, counts)
        sums = round.exchange.combine(k_combined, round, rows, trained)
        holders = mix(rows, graph.members, optax.tree.cast_like(masks, trained))
        averaged = _masked(_divided(sums, holders), searched)

        new, new_masks = keep_inactive(graph.active, (averaged, searched), (params, masks))
        batch = jnp.minimum(training.batch_size, sizes) if regrow == 'gradient' else 0
        flops = flops_of(sizes) + gradient_flops(model) * batch  # as if masks saved nothing
        info = Info(
            losses,
            dispersion(new, round.judged),
            jnp.where(graph.active, flops, 0).astype(jnp.float32),
        )
        return State(new, new_masks), info

    intersected = gossip.consensus == 'intersection'

    def aggregated(state: State, weights: Array | None = None) -> PyTree:
        if not intersected:
            return mean_params(state, weights)
        holders = state._replace(params=optax.tree.cast_like(state.masks, state.params))
        return _divided(mean_params(state, weights), mean_params(holders, weights))

    by = 'mean' if intersected else gossip.consensus
    why = 'every weight is divided by the share of the neighbours that hold it'
    return stacked_method(model, init_state, step, by, aggregated, linear=why)


def random_mask(key: Array, model: Model, counts: PyTree) -> PyTree:
    """A mask that keeps so many random weights of each tensor."""
    keys = optax.tree.split_key_like(key, counts)
    return jax.tree.map(
        lambda k, leaf, count: largest(jax.random.uniform(k, leaf.shape), count),
        *(keys, model.shapes, counts),
    )


def mask_search(
    model: Model, training: LocalTraining, regrow: str, counts: PyTree
) -> Callable[..., PyTree]:
    """search(key, rate, params, mask, x, y, valid) -> the mask of the next round of one client.

    Algorithm 2: pruned by magnitude and regrown by the gradient of a minibatch; counts: weights
    that a mask keeps of each tensor.
    """

    def search_mask(key, rate, params, mask, x, y, valid):
        k_batch, k_random = jax.random.split(key)
        size = min(training.batch_size, len(valid))
        rows = epoch_orders(k_batch, valid, 1)[0, :size]
        batch = take(x, y, rows, valid[rows])
        gradient = jax.grad(batch_loss, argnums=1)(model, params, batch)
        keys = optax.tree.split_key_like(k_random, params)

        def search(key, w, g, m, count):
            replaced = jnp.ceil(rate * count).astype(jnp.int32)
            kept = largest(jnp.abs(w), count - replaced, m)
            worth = jnp.abs(g) if regrow == 'gradient' else jax.random.uniform(key, w.shape)
            return kept | largest(worth, replaced, ~kept)

        return jax.tree.map(search, keys, params, gradient, mask, counts)

    return search_mask


def sent_inside(key: Array, round: Round, params: PyTree, masks: PyTree, counts: PyTree) -> PyTree:
    """The weights inside the masks as receivers decode them, leaves [M, ...], and the masks sent.

    counts: weights inside a mask, of each tensor: what a message holds of it, and a codec sees.
    """
    exchange: Exchange = round.exchange
    if exchange.errors is not None:
        raise InputError(
            '`error_feedback` is of weights that stay where they are, and the masks of dispfl '
            'move; leave it out'
        )
    held = jax.tree.map(lambda w, n: jax.ShapeDtypeStruct((n,), w.dtype), params, counts)
    messages, _ = heard_messages(round.graph, len(round.sizes))
    exchange.count('masks', messages, sum(leaf[0].size for leaf in jax.tree.leaves(masks)))
    if exchange.codec is None:
        exchange.count('weights', messages, exchange.bits(held))
        return params

    def places(mask: Array, n: int) -> Array:
        return jnp.nonzero(mask.ravel(), size=n)[0]

    where = jax.tree.map(lambda m, n: jax.vmap(partial(places, n=n))(m), masks, counts)
    inside = jax.tree.map(
        lambda w, at: jnp.take_along_axis(w.reshape(len(w), -1), at, 1), params, where
    )
    decoded = exchange.send(key, round, inside)

    def put_back(w: Array, at: Array, values: Array) -> Array:
        flat = jax.vmap(lambda a, v: jnp.zeros(w[0].size, w.dtype).at[a].set(v))(at, values)
        return flat.reshape(w.shape)

    return jax.tree.map(put_back, params, where, decoded)


def _masked(params: PyTree, masks: PyTree) -> PyTree:
    return jax.tree.map(lambda w, m: jnp.where(m, w, 0), params, masks)


def _divided(sums: PyTree, shares: PyTree) -> PyTree:
    return jax.tree.map(lambda s, n: jnp.where(n > 0, s / jnp.where(n > 0, n, 1), 0), sums, shares)
