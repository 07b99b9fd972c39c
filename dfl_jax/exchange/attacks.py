"""What clients that lie send in place of their messages.

Each attack, a `Lie`, is written for one receiver: of a key and the messages that it is about to
hear it makes one lie for all liars, leaves [...], or for each of them its own, [K, ...]. Those of
the literature know what the honest members of the neighbourhood send, the receiver among them.

No Jacobian is ever formed, so that an attack on those that NTK methods send is a number alone, by
which their rows are multiplied (ROW_FACTORS).
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dfl_jax.base import Array, PyTree
from dfl_jax.exchange.aggregation import weighted_sum
from dfl_jax.exchange.named_rows import NamedRow, row_and_value


class Messages(NamedTuple):
    """What one receiver is about to hear, and what its liars know."""

    sent: PyTree  # what each member would send, leaves [K, ...], the receiver's own first
    lies: Array  # [K] bool
    # [K] bool, delivered members that do not lie, the receiver among them; all where everybody lies
    honest: Array
    own: PyTree  # the receiver's, leaves [...]
    weights: Array  # [K]


Lie = Callable[[Array, Messages], PyTree]  # (key, messages) -> leaves [K, ...] or [...]
# (key, what the members of one receiver send, leaves [K, ...], its own first; which of them lie,
# bool [K]; its own, leaves [...]; weights [K]; which are delivered, bool [K]) -> what it receives,
# leaves [K, ...]. So it may know what honest members send, and differ from link to link.
Tamper = Callable[[Array, PyTree, Array, PyTree, Array, Array], PyTree]


@dataclass(frozen=True, eq=False)
class Attack:
    """Clients that lie, and how: about their models, or about their Jacobians. What they themselves
    hear is true.

    Args:
      attackers: [M] bool.
      tamper: what one receiver hears in place of what its members send; None: that.
      row_factor: by what the rows of their Jacobians are multiplied; None: by one.
    """

    attackers: np.ndarray
    tamper: Tamper | None = None
    row_factor: float | None = None


def tampering(lie: Lie) -> Tamper:
    """`Attack.tamper` of a lie: members that lie send it, leaves [K, ...], the others what they
    have."""

    def tamper(
        key: Array, sent: PyTree, lies: Array, own: PyTree, weights: Array, delivered: Array
    ) -> PyTree:
        honest = delivered & ~lies
        honest = jnp.where(honest.any(), honest, delivered)
        told = lie(key, Messages(sent, lies, honest, own, weights))

        def of_leaf(lie: Array, leaf: Array) -> Array:
            lie = jnp.broadcast_to(lie, leaf.shape).astype(leaf.dtype)
            return jnp.where(lies.reshape(-1, *[1] * (leaf.ndim - 1)), lie, leaf)

        return jax.tree.map(of_leaf, told, sent)

    return tamper


def _honest_mean(messages: Messages) -> PyTree:
    """The mean of what honest members send, leaves [...]."""
    return weighted_sum(messages.honest / messages.honest.sum(), messages.sent)


def sign_flip(scale: float) -> Lie:
    """-scale times its own model."""
    return lambda key, messages: optax.tree.scale(-scale, messages.sent)


def gaussian(sigma: float) -> Lie:
    """Random numbers of mean zero and this standard deviation, of each link its own (Blanchard et
    al. 2017)."""
    return lambda key, messages: optax.tree.scale(sigma, optax.tree.random_like(key, messages.sent))


def same_value(value: float) -> Lie:
    """The same number in every place (Li et al. 2019)."""
    return lambda key, messages: optax.tree.full_like(messages.own, value)


def random_model(key: Array, messages: Messages) -> PyTree:
    """Its own model with every tensor drawn anew, of the same mean and standard deviation."""

    def of_leaf(noise: Array, leaf: Array) -> Array:
        axes = tuple(range(1, leaf.ndim))
        centre = leaf.mean(axis=axes, keepdims=True)
        return centre + noise * leaf.std(axis=axes, keepdims=True)

    return jax.tree.map(of_leaf, optax.tree.random_like(key, messages.sent), messages.sent)


def alie(z: float) -> Lie:
    """mean - z std of what the honest send ("a little is enough", Baruch et al. 2019)."""

    def lie(key: Array, messages: Messages) -> PyTree:
        mean, count = _honest_mean(messages), messages.honest.sum()

        def square(leaf: Array, centre: Array) -> Array:
            apart = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)) - centre[None]
            return jnp.square(jnp.where(messages.honest.reshape(-1, *[1] * centre.ndim), apart, 0))

        squares = jax.tree.map(square, messages.sent, mean)
        # Products add over members in a sixth of the time of a masked sum (16 receivers,
        # 1.2 M weights, 2026-11-30)
        variance = weighted_sum(messages.honest / jnp.maximum(1, count - 1), squares)
        return jax.tree.map(lambda m, v: m - z * jnp.sqrt(v), mean, variance)

    return lie


def inner_product(epsilon: float) -> Lie:
    """-epsilon times the mean of what the honest send (Xie, Koyejo & Gupta 2020)."""
    return lambda key, messages: optax.tree.scale(-epsilon, _honest_mean(messages))


def dissensus(epsilon: float) -> Lie:
    """x_i - epsilon sum_(honest j) W_ij (x_j - x_i) / sum_(liars) W_ij (He, Karimireddy & Jaggi
    2022, section 4.2): it drives a client away from its neighbours."""

    def lie(key: Array, messages: Messages) -> PyTree:
        weights, lies = messages.weights, messages.lies
        of_liars = jnp.where(lies, weights, 0).sum()
        shares = jnp.where(messages.honest, weights, 0) / jnp.where(of_liars > 0, of_liars, 1)

        apart = jax.tree.map(lambda a, own: a - own[None], messages.sent, messages.own)
        return optax.tree.add_scale(messages.own, -epsilon, weighted_sum(shares, apart))

    return lie


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError
    return number


def _not_negative(text: str) -> float:
    if (number := _finite(text)) < 0:
        raise ValueError
    return number


ATTACKS = {
    'sign_flip': NamedRow(sign_flip, 'scale, a factor', _finite, 1.0),
    'gaussian': NamedRow(gaussian, 'sigma, a standard deviation', _not_negative),
    'zero': NamedRow(lambda: same_value(0.0)),
    'nan': NamedRow(lambda: same_value(math.nan)),
    'same_value': NamedRow(same_value, 'value, a number', _finite, 100.0),
    'random_model': NamedRow(lambda: random_model),
    'alie': NamedRow(alie, 'z, a number', _finite),
    'ipm': NamedRow(inner_product, 'epsilon, a number', _finite),
    'dissensus': NamedRow(dissensus, 'epsilon, a number', _finite),
}
# By what an attacker multiplies the rows of its Jacobian
ROW_FACTORS = {'jacobian_flip': NamedRow(lambda scale: -scale, 'scale, a factor', _finite, 1.0)}


def tamper_named(value: str | Lie, others: Iterable[str] = ()) -> Tamper:
    """`Attack.tamper` of a name, NAME or NAME:VALUE, or of a `Lie`. Raises SettingError.

    others: names of attacks of other kinds, for the error.
    """
    if not isinstance(value, str):
        return tampering(value)
    row, given = row_and_value('attack', value, ATTACKS, others)
    return tampering(row.make(*given))


def attack_named(attackers: np.ndarray, value: str | Lie, others: Iterable[str] = ()) -> Attack:
    """The attack of a name, NAME or NAME:VALUE, or of a `Lie`. Raises SettingError.

    attackers: [M] bool. others: as in `tamper_named`.
    """
    if isinstance(value, str) and value.partition(':')[0] in ROW_FACTORS:
        row, given = row_and_value('attack', value, ROW_FACTORS)
        return Attack(attackers, row_factor=row.make(*given))
    return Attack(attackers, tamper_named(value, (*others, *ROW_FACTORS)))
