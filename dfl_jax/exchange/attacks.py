"""What clients that lie send in place of their messages.

Each attack is written for one receiver: of a key, what the members of its neighbourhood send,
leaves [K, ...], the receiver's own first, which of them lie, bool [K], the receiver's own, leaves
[...], the weights [K] and which messages are delivered, bool [K], it makes one lie, leaves [...]
or, of each liar's own message, [K, ...]. Those of the literature know what the honest members of
the neighbourhood send, the receiver among them.
"""

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from dfl_jax.base import Array, PyTree
from dfl_jax.method_settings import nearest
from dfl_jax.setting_error import SettingError


class Messages(NamedTuple):
    """What one receiver is about to hear, and what its liars know."""

    sent: PyTree  # what each member would send, leaves [K, ...], the receiver's own first
    lies: Array  # [K] bool
    honest: Array  # [K] bool, those of the others that are delivered
    own: PyTree  # the receiver's, leaves [...]
    weights: Array  # [K]


Lie = Callable[[Array, Messages], PyTree]  # (key, messages) -> leaves [K, ...] or [...]
# (key, what the members of one receiver send, leaves [K, ...], its own first; which of them lie,
# bool [K]; its own, leaves [...]; weights [K]; which are delivered, bool [K]) -> what it receives,
# leaves [K, ...]. So it may know what honest members send, and differ from link to link.
Tamper = Callable[[Array, PyTree, Array, PyTree, Array, Array], PyTree]


class Row(NamedTuple):
    """A row of the table of attacks."""

    lie: Callable[..., Lie]  # of its value
    value: str = ''  # what its value is; '' where it takes none
    default: float | None = None  # of its value
    least: float = -math.inf


def tampering(lie: Lie) -> Tamper:
    """`Attack.tamper` of a lie: members that lie send it, the others what they have."""

    def tamper(
        key: Array, sent: PyTree, lies: Array, own: PyTree, weights: Array, delivered: Array
    ) -> PyTree:
        told = lie(key, Messages(sent, lies, delivered & ~lies, own, weights))

        def of_leaf(lie: Array, leaf: Array) -> Array:
            lie = jnp.broadcast_to(lie, leaf.shape).astype(leaf.dtype)
            return jnp.where(lies.reshape(-1, *[1] * (leaf.ndim - 1)), lie, leaf)

        return jax.tree.map(of_leaf, told, sent)

    return tamper


def _mean(shares: Array, tree: PyTree) -> PyTree:
    return jax.tree.map(
        lambda a: jnp.tensordot(shares.astype(a.dtype), a, 1, precision='highest'), tree
    )


def _honest_mean(messages: Messages) -> PyTree:
    return _mean(messages.honest / messages.honest.sum(), messages.sent)


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

        def of_leaf(leaf: Array, centre: Array) -> Array:
            squares = jnp.square(leaf - centre[None])
            honest = messages.honest.reshape(-1, *[1] * centre.ndim)
            total = jnp.where(honest, squares, 0).sum(axis=0)
            return centre - z * jnp.sqrt(total / jnp.maximum(1, count - 1)).astype(leaf.dtype)

        return jax.tree.map(of_leaf, messages.sent, mean)

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

        def of_leaf(leaf: Array, own: Array) -> Array:
            pull = jnp.tensordot(
                shares.astype(leaf.dtype), leaf - own[None], 1, precision='highest'
            )
            return own - epsilon * pull

        return jax.tree.map(of_leaf, messages.sent, messages.own)

    return lie


ATTACKS = {
    'sign_flip': Row(sign_flip, 'a factor', 1.0),
    'gaussian': Row(gaussian, 'a standard deviation', least=0.0),
    'zero': Row(lambda: same_value(0.0)),
    'nan': Row(lambda: same_value(math.nan)),
    'same_value': Row(same_value, 'a number', 100.0),
    'random_model': Row(lambda: random_model),
    'alie': Row(alie, 'z'),
    'ipm': Row(inner_product, 'epsilon'),
    'dissensus': Row(dissensus, 'epsilon'),
}


def tamper_named(value: str | Lie, others: Iterable[str] = ()) -> Tamper:
    """`Attack.tamper` of a name, NAME or NAME:VALUE, or of a `Lie`. Raises SettingError.

    others: names of attacks of other kinds, which take no value, for the error.
    """
    if not isinstance(value, str):
        return tampering(value)
    name, colon, text = value.partition(':')
    names = [*ATTACKS, *others]
    if name not in names:
        message = f'unknown attack {name!r}{nearest(name, names)}'
        remedy = f'choose one of {", ".join(names)}, or package.module:function'
        raise SettingError('attack', value, message, remedy)
    if colon and (name not in ATTACKS or not ATTACKS[name].value):
        raise SettingError('attack', value, f'{name} takes no value', f'write {name}')
    row = ATTACKS[name]
    if not row.value:
        return tampering(row.lie())
    try:
        number = float(text) if colon else row.default
        if number is None or not math.isfinite(number) or number < row.least:
            raise ValueError
    except ValueError:
        remedy = f'write e.g. {name}:1.5'
        raise SettingError('attack', value, f'{name} takes {row.value}', remedy) from None
    return tampering(row.lie(number))
