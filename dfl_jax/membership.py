"""Membership inference: how well a model's losses tell what it was trained on from other samples.

Whoever receives a model takes the samples on which its loss is low for those that it was trained
on (Yeom et al. 2018). The area under the curve of that rule is 1 where it is always right and 0.5
where it guesses; the true positive rate at a low false positive rate tells of the few samples of
which one can be sure (Carlini et al. 2022).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dfl_jax.base import Algorithm, Array, Clients, State
from dfl_jax.execution import even_size, folded, map_in_chunks

RATE = 100  # of so many others one may be taken for a member


class Losses(NamedTuple):
    """The losses of samples by a model, or by each of several."""

    values: Array  # [..., n] float32
    mask: Array  # [..., n] bool, False = padding

    @classmethod
    def of_batches(cls, values: Array, mask: Array) -> 'Losses':
        """Those of values [batches, ..., B] and a mask [batches, B] that all models share."""
        values = _joined(values)
        return cls(values, jnp.broadcast_to(_joined(mask), values.shape))


def _joined(batches: Array) -> Array:
    """[batches, ..., B] -> [..., batches * B]."""
    batches = jnp.moveaxis(batches, 0, -2)
    return batches.reshape(*batches.shape[:-2], -1)


def told_apart(members: Losses, others: Losses) -> Array:
    """The area under the curve, and the true positive rate at 1 % false positives, [2].

    Of one model: losses [n] of its members, and [m] of others; without either, both are NaN. The
    area is the probability that a member has a lower loss than another sample, equal losses
    counting one half. The rate is the share of members with a lower loss than all but the
    floor(m / 100) lowest of the others; below 100 others it is that of no false positive.

    >>> three = Losses(jnp.array([0.1, 0.2, 0.6]), jnp.ones(3, bool))
    >>> two = Losses(jnp.array([0.2, 0.9]), jnp.ones(2, bool))
    >>> [round(float(number), 4) for number in told_apart(three, two)]
    [0.75, 0.3333]
    """
    # A loss that overflowed is a highest one, whatever is left of it
    losses, rest = (
        jnp.where(each.mask & ~jnp.isnan(each.values), each.values, jnp.inf)
        for each in (members, others)
    )
    rest = jnp.sort(rest)
    count, trained = others.mask.sum(), members.mask.sum()
    lower, most = (
        jnp.minimum(jnp.searchsorted(rest, losses, side=side), count) for side in ('left', 'right')
    )
    higher = count - (lower + most) / 2  # of the others, each member has
    least = rest[count // RATE]
    found = jnp.stack([higher / count, losses < least])
    found = jnp.where(members.mask, found, 0).sum(axis=1) / trained
    return jnp.where(count > 0, found, jnp.nan)


def own_losses(
    algorithm: Algorithm,
    state: State,
    samples: Clients,
    size: int,
    weights: Array | None,
    judged: np.ndarray | None,
) -> dict[str, Losses]:
    """'client': the losses of each client's samples by its own model, [M, N]; 'consensus': those of
    the judged clients' samples by the consensus model, [n].

    size: samples of a client in a batch. weights, judged: as in `evaluation`.
    """
    losses, models = algorithm.task.losses, () if weights is None else (weights,)

    def of_batch(batch):
        x, y, mask = batch
        own = jax.vmap(losses)(algorithm.predict_own(state, x), y)
        x, y = (a.reshape(-1, *a.shape[2:]) for a in (x, y))  # of all clients
        consensus = losses(algorithm.predict(state, x, *models)['consensus'], y)
        return own, consensus.reshape(own.shape), mask

    batches = folded(tuple(samples[:3]), even_size(samples.y.shape[1], size), axis=1)
    own, consensus, mask = map(_joined, lax.map(of_batch, batches))
    counted = slice(None) if judged is None else np.flatnonzero(judged)
    return {
        'client': Losses(own, mask),
        'consensus': Losses(*(a[counted].reshape(-1) for a in (consensus, mask))),
    }


def measure_membership(members: dict[str, Losses], others: dict[str, Losses]) -> dict[str, Array]:
    """What `told_apart` finds of each client's model, [M, 2], and of the consensus model, [2].

    members, others: {'client': [M, n], 'consensus': [n]}; the first client axis may be longer, by
    what fills the shares of devices.
    """
    of_clients = others['client'], members['client']
    samples = sum(each.mask.shape[1] for each in of_clients)
    shortest = min(len(each.mask) for each in of_clients)
    pairs = jax.tree.map(lambda a: a[:shortest], of_clients)
    return {
        'client': map_in_chunks(lambda p: told_apart(p[1], p[0]), pairs, None, 32 * samples),
        'consensus': told_apart(members['consensus'], others['consensus']),
    }


def membership_metrics(
    found: dict[str, np.ndarray], counted: np.ndarray
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The metrics of what `measure_membership` found: of each client, {name: [M]}, and of those
    counted, [M] bool, who have members and others; where nobody has, there are no such metrics."""
    auc, tpr = found['client'][: len(counted)].T
    of_clients = {'membership_auc': auc, 'membership_tpr': tpr}
    known = counted & ~np.isnan(auc)
    if not known.any():
        return of_clients, {}
    consensus = zip(of_clients, found['consensus'], strict=True)
    return of_clients, {
        'membership_auc_mean': float(auc[known].mean()),
        'membership_auc_max': float(auc[known].max()),
        'membership_tpr_mean': float(tpr[known].mean()),
        **{f'{name}_consensus': float(value) for name, value in consensus},
    }
