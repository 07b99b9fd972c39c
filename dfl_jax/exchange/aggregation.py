"""Rules by which a receiver combines what it hears, so that a few liars do little harm.

Each is written for one receiver: of its own model, leaves [...], what it received, leaves
[K, ...], its own first, their weights [K] and which of them were delivered, bool [K], it makes the
new model. Some take the loss of a model on the receiver's samples, too. n is the number of the
delivered, the receiver among them. A message with a number that is not finite counts as not
delivered. b is how many of the n may lie; where n is too small for b, as after lost links, a rule
that needs an honest majority assumes the most that n can bear.

All rules but clipping, which has the weights of the graph, take all messages alike.
"""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial, reduce

import jax
import jax.numpy as jnp
import optax
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.exchange.named_rows import NamedRow, row_and_value

# One receiver's own model, leaves [...], those of its members, [K, ...], its own first, their
# weights [K], which of them were delivered, bool [K], and, where the rule takes it, a function from
# a model to its loss on the receiver's own samples -> the new model
Aggregation = Callable[..., PyTree]
# Of few members a network of comparisons is faster than a sort: docs/benchmarks.md, "Robust rules"
NETWORK_UP_TO_MEMBERS = 32
OWN_SHARE = 0.5  # alpha of Mozi, as in the program of He et al.
SMOOTHING = 0.1  # nu of the geometric median, as in the program of He et al.


def weighted_sum(weights: Array, tree: PyTree) -> PyTree:
    """sum_k weights_k a_k of leaves [K, ...], in their own types: leaves [...]. weights: [K]."""
    return jax.tree.map(
        lambda a: jnp.tensordot(weights.astype(a.dtype), a, 1, precision='highest'), tree
    )


def ordered(values: Array) -> list[Array]:
    """The entries of [K, ...] in ascending order along the first axis, K arrays [...]."""
    if len(values) > NETWORK_UP_TO_MEMBERS:
        return [*jnp.sort(values, axis=0)]
    rows = [*values]
    for i, j in _comparisons(len(rows)):
        rows[i], rows[j] = jnp.minimum(rows[i], rows[j]), jnp.maximum(rows[i], rows[j])
    return rows


def _comparisons(count: int) -> Iterator[tuple[int, int]]:
    """The pairs that sort so many entries, one after the other (Batcher 1968, odd-even merges)."""
    length = 1  # of runs that are sorted
    while length < count:
        step = length
        while step:
            for start in range(step % length, count - step, 2 * step):
                for low in range(start, min(start + step, count - step)):
                    if low // (2 * length) == (low + step) // (2 * length):
                        yield low, low + step
            step //= 2
        length *= 2


def _by_order(of_place: Callable[[Array, Array], Array], received: PyTree, mask: Array) -> PyTree:
    """The mean of the values of every coordinate, weighted by their places in ascending order:
    leaves [K, ...] -> [...].

    of_place: (places [K], n) -> the weights of the places, [K], which sum to one.
    """
    weights = of_place(jnp.arange(len(mask)), mask.sum())

    def of_leaf(leaf: Array) -> Array:
        last = jnp.where(mask.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, jnp.inf)
        # What nobody sent is infinite and weighs nothing
        rows = [
            jnp.where(weight > 0, row, 0) * weight.astype(leaf.dtype)
            for row, weight in zip(ordered(last), weights, strict=True)
        ]
        return reduce(jnp.add, rows)

    return jax.tree.map(of_leaf, received)


def _at_most_half(b: int, mask: Array) -> Array:
    """b, or the most liars that so few members can bear."""
    return jnp.minimum(b, (mask.sum() - 1) // 2)


def median(own: PyTree, received: PyTree, weights: Array, mask: Array) -> PyTree:
    """The middle value of every coordinate; of an even number the mean of the two middle ones."""

    def middle(place: Array, count: Array) -> Array:
        return 0.5 * (place == (count - 1) // 2) + 0.5 * (place == count // 2)

    return _by_order(middle, received, mask)


def trimmed_mean(b: int) -> Aggregation:
    """Without the b smallest and b largest values of every coordinate (Yin et al. 2018)."""

    def aggregation(own: PyTree, received: PyTree, weights: Array, mask: Array) -> PyTree:
        def inner(place: Array, count: Array) -> Array:
            cut = _at_most_half(b, mask)
            return ((place >= cut) & (place < count - cut)) / (count - 2 * cut)

        return _by_order(inner, received, mask)

    return aggregation


def squared_distances(received: PyTree, centre: PyTree) -> Array:
    """||a_k - c||^2 of each message, leaves [K, ...], from a model, leaves [...]: [K], of at least
    32 bits, which hold what squares of 16 bits do not."""

    def of_leaf(leaf: Array, c: Array) -> Array:
        apart = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) - c[None]
        return jnp.sum(jnp.square(apart), axis=tuple(range(1, leaf.ndim)))

    return reduce(jnp.add, jax.tree.leaves(jax.tree.map(of_leaf, received, centre)))


def _between(received: PyTree, mask: Array) -> Array:
    """Squared distances between all messages, [K, K]; infinite where one was not delivered."""
    found = lax.map(partial(squared_distances, received), received)
    return jnp.where(mask[:, None] & mask[None], found, jnp.inf)


def _mean_of(chosen: Array, received: PyTree) -> PyTree:
    """The mean of the messages, leaves [K, ...], with weights [K], zero for those left out."""
    return weighted_sum(chosen / chosen.sum(), received)


def _smallest(values: Array, count: Array) -> Array:
    """Which `count` of the values [..., K] are the smallest, bool; of equal ones the first."""
    return jnp.argsort(jnp.argsort(values, axis=-1), axis=-1) < count


def geometric_median(steps: int) -> Aggregation:
    """The point of least distances to all, after so many steps of the smoothed Weiszfeld algorithm
    from zero (Pillutla, Kakade & Harchaoui 2022, Algorithm 2)."""

    def aggregation(own: PyTree, received: PyTree, weights: Array, mask: Array) -> PyTree:
        def nearer(_: int, centre: PyTree) -> PyTree:
            distances = jnp.sqrt(squared_distances(received, centre))
            return _mean_of(jnp.where(mask, 1 / jnp.maximum(SMOOTHING, distances), 0), received)

        return lax.fori_loop(0, steps, nearer, optax.tree.zeros_like(own))

    return aggregation


def _krum_scores(b: int, received: PyTree, mask: Array) -> Array:
    """Of each message the squared distances to the n - b - 2 closest others, summed, [K]."""
    others = mask[:, None] & mask[None] & ~jnp.eye(len(mask), dtype=bool)
    distances = jnp.where(others, _between(received, mask), jnp.inf)
    closest = _smallest(distances, jnp.maximum(1, mask.sum() - b - 2))
    # A distance that is there may be infinite, too, and is not left out
    return jnp.where(mask, jnp.where(closest & others, distances, 0).sum(axis=1), jnp.inf)


def krum(b: int) -> Aggregation:
    """The message with the lowest score (Blanchard et al. 2017)."""

    def aggregation(own: PyTree, received: PyTree, weights: Array, mask: Array) -> PyTree:
        chosen = jnp.argmin(_krum_scores(b, received, mask))
        return jax.tree.map(lambda a: jnp.take(a, chosen, axis=0), received)

    return aggregation


def multi_krum(b: int) -> Aggregation:
    """The mean of the n - b messages with the lowest scores (Blanchard et al. 2017)."""

    def aggregation(own: PyTree, received: PyTree, weights: Array, mask: Array) -> PyTree:
        count = jnp.maximum(1, mask.sum() - b)
        return _mean_of(_smallest(_krum_scores(b, received, mask), count) & mask, received)

    return aggregation


def clipping(tau: float | None) -> Aggregation:
    """x_i + sum_j W_ij clip(x_j - x_i, tau), ClippedGossip (He, Karimireddy & Jaggi 2022).

    tau: the radius; None: sqrt(1/delta sum_(j in S) W_ij ||x_i - x_j||^2), with S the nearest
    neighbours that hold half of the weight of all, and delta the weight of the others.
    """

    def aggregation(own: PyTree, received: PyTree, weights: Array, mask: Array) -> PyTree:
        squares = squared_distances(received, own)
        itself = jnp.arange(len(mask)) == 0
        shares = jnp.where(mask & ~itself, weights, 0)
        radius = _trusted_radius(squares, shares) if tau is None else tau
        lengths = jnp.sqrt(squares)
        factors = jnp.where(lengths > radius, radius / jnp.where(lengths > 0, lengths, 1), 1)
        steps = jax.tree.map(lambda a, x: a - x[None], received, own)
        return optax.tree.add(own, weighted_sum(shares * factors, steps))

    return aggregation


def _trusted_radius(squares: Array, shares: Array) -> Array:
    """The radius of `clipping`, a scalar; infinite where all neighbours are trusted.

    squares: [K], ||x_j - x_i||^2; shares: [K], W_ij, zero for the receiver.
    """
    order = jnp.argsort(jnp.where(shares > 0, squares, jnp.inf))
    sorted_shares = shares[order]
    before = jnp.cumsum(sorted_shares) - sorted_shares
    trusted = before < shares.sum() / 2 - 1e-6
    others = jnp.where(trusted, 0, sorted_shares).sum()
    near = jnp.where(trusted, sorted_shares * squares[order], 0).sum()
    return jnp.where(others > 0, jnp.sqrt(near / jnp.where(others > 0, others, 1)), jnp.inf)


def nearest_mixed(b: int) -> Aggregation:
    """Every message becomes the mean of the n - b nearest to it, and of these the trimmed mean is
    taken (nearest neighbour mixing, Allouah et al. 2023).

    The plain mean of what is mixed would not do: a liar is the nearest to itself.
    """

    def aggregation(own: PyTree, received: PyTree, weights: Array, mask: Array) -> PyTree:
        kept = mask.sum() - _at_most_half(b, mask)
        near = _smallest(_between(received, mask), kept) | ~mask[:, None]
        mixed = jax.vmap(_mean_of, (0, None))(near, received)
        return trimmed_mean(b)(own, mixed, weights, mask)

    return aggregation


def nearest_to_own(b: int) -> Aggregation:
    """The mean of the n - b messages nearest to the receiver's own (MoNNA, Farhadkhani et al.
    2023)."""

    def aggregation(own: PyTree, received: PyTree, weights: Array, mask: Array) -> PyTree:
        distances = jnp.where(mask, squared_distances(received, own), jnp.inf)
        kept = mask.sum() - _at_most_half(b, mask)
        return _mean_of(_smallest(distances, kept) & mask, received)

    return aggregation


def mozi(rho: float, epsilon: float) -> Aggregation:
    """OWN_SHARE x_i + (1 - OWN_SHARE) times the mean of those neighbours' models that are among the
    share rho nearest to its own, at least one, and whose loss is lower by epsilon or more; where no
    loss is, of that with the lowest loss among the nearest (Mozi, Guo et al. 2021).

    The paper takes the loss of a minibatch, this that of all samples of the round.
    """

    def aggregation(
        own: PyTree, received: PyTree, weights: Array, mask: Array, loss: Callable[[PyTree], Array]
    ) -> PyTree:
        heard = mask & (jnp.arange(len(mask)) > 0)
        kept = [max(1, int(rho * count + 1e-9)) for count in range(len(mask))]
        distances = jnp.where(heard, squared_distances(received, own), jnp.inf)
        near = _smallest(distances, jnp.asarray(kept)[heard.sum()]) & heard
        losses = lax.map(loss, received)
        near &= jnp.isfinite(losses)
        better = near & (losses[0] - losses >= epsilon)
        best = jnp.arange(len(mask)) == jnp.argmin(jnp.where(near, losses, jnp.inf))
        chosen = jnp.where(better.any(), better, best & near)
        shares = jnp.where(chosen, (1 - OWN_SHARE) / jnp.maximum(chosen.sum(), 1), 0)
        return weighted_sum(shares.at[0].set(1 - shares.sum()), received)

    return aggregation


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise ValueError
    return int(text)


def _radius(text: str) -> float | None:
    if text == 'adaptive':
        return None
    if not 0 < (tau := float(text)) < math.inf:
        raise ValueError
    return tau


def _share_and_margin(text: str) -> tuple[float, float]:
    rho, epsilon = map(float, re.split('[,/]', text))  # a comma ends a value that is swept
    if not (0 < rho <= 1 and math.isfinite(epsilon)):
        raise ValueError
    return rho, epsilon


def _majority(b: int) -> int:
    return 2 * b + 1


B, STEPS = 'b, a whole number from 1', 'steps, a whole number from 1'
RULES = {
    'median': NamedRow(lambda: median),
    'trimmed_mean': NamedRow(trimmed_mean, B, _whole, members=_majority),
    'geometric_median': NamedRow(geometric_median, STEPS, _whole),
    'krum': NamedRow(krum, B, _whole, members=lambda b: 2 * b + 3),
    'multi_krum': NamedRow(multi_krum, B, _whole, members=lambda b: 2 * b + 3),
    'clipping': NamedRow(clipping, 'tau, a number above 0 or adaptive', _radius),
    'nearest': NamedRow(nearest_mixed, B, _whole, members=_majority),
    'nna': NamedRow(nearest_to_own, B, _whole, members=_majority),
    'mozi': NamedRow(
        lambda value: mozi(*value),
        'rho,epsilon, a share above 0 and at most 1 and a number',
        _share_and_margin,
        members=lambda value: 1 + math.ceil(1 / value[0] - 1e-9),
        takes_loss=True,
    ),
}


@dataclass(frozen=True)
class Combining:
    """How a client combines the models that it hears.

    Args:
      aggregation: mean, by the weights of the graph; or a rule that stands liars: median;
        trimmed_mean:B; geometric_median:STEPS; krum:B; multi_krum:B; clipping:TAU or
        clipping:adaptive; nearest:B; nna:B, where B members of a neighbourhood may lie;
        mozi:RHO,EPSILON (RHO/EPSILON in a sweep); or package.module:function (docs/adversaries.md).
    """

    aggregation: str | Aggregation = 'mean'

    def __post_init__(self):
        aggregation_named(self.aggregation)


def aggregation_named(value: str | Aggregation) -> Aggregation | None:
    """The rule of a name, or the function itself; None for the mean. Raises SettingError.

    >>> x = {'w': jnp.array([[0.0], [1.0], [50.0]])}
    >>> aggregation_named('median')({'w': x['w'][0]}, x, jnp.ones(3) / 3, jnp.ones(3, bool))
    {'w': Array([1.], dtype=float32)}
    """
    if value == 'mean':
        return None
    if not isinstance(value, str):
        return _of_finite(value)
    row, given = row_and_value('aggregation', value, RULES, ['mean'])
    return _of_finite(row.make(*given))


def members_needed(value: str | Aggregation) -> int:
    """The members, the receiver among them, of the smallest neighbourhood in which a rule can bear
    as many liars as it is asked to."""
    row, given = _row_of(value) or (None, ())
    return row.members(*given) if row and given else 1


def takes_loss(value: str | Aggregation) -> bool:
    """Whether a rule takes the loss of a model on the receiver's own samples."""
    found = _row_of(value)
    return found is not None and found[0].takes_loss


def _row_of(value: str | Aggregation) -> tuple[NamedRow, tuple] | None:
    """The row of a rule and its value; None for the mean and for a function. Raises
    SettingError."""
    if not isinstance(value, str) or value == 'mean':
        return None
    return row_and_value('aggregation', value, RULES, ['mean'])


def _of_finite(rule: Aggregation) -> Aggregation:
    """The rule, for which messages with numbers that are not finite count as not delivered."""

    def aggregation(
        own: PyTree, received: PyTree, weights: Array, mask: Array, *loss: Callable
    ) -> PyTree:
        def finite(leaf: Array) -> Array:
            return jnp.isfinite(leaf).all(axis=tuple(range(1, leaf.ndim)))

        mask = mask & jnp.stack([finite(a) for a in jax.tree.leaves(received)]).all(axis=0)

        def kept(leaf: Array) -> Array:
            return jnp.where(mask.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, 0)

        new = rule(own, jax.tree.map(kept, received), weights, mask, *loss)
        return jax.tree.map(lambda n, x: jnp.where(mask.any(), n, x), new, own)

    return aggregation
