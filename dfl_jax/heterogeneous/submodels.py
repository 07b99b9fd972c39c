"""Sub-models: networks of one family whose layers are parts of the widest one's (DFML, A.3.3).

A sub-model with d of a layer's J channels holds those that `channels` names. An axis of a
parameter whose length differs between the architectures of a population is such a layer; the other
axes (pixels of a kernel, input colours, classes) are held whole. Where a dense layer follows a
flattened map, its axis has a run of pixels for every channel.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from dfl_jax.base import Array
from dfl_jax.heterogeneous.population import Population
from dfl_jax.models import ConvNet, Model
from dfl_jax.setting_error import InputError

RULES = ('first', 'rolled', 'sorted', 'random')


class Axis(NamedTuple):
    """One axis of one parameter of an architecture."""

    size: int  # of this architecture
    widest: int  # of the widest architecture
    narrowest: int
    pixels: int  # of a flattened map, else 1


def axes(population: Population) -> dict[str, list[tuple[Axis, ...]]]:
    """The axes of every architecture's parameters, in the order of `jax.tree.leaves`.

    Raises ValueError where the architectures are not sub-models of one.
    """
    shapes = {
        name: [(path, leaf.shape) for path, leaf in jax.tree_util.tree_leaves_with_path(m.shapes)]
        for name, m in population.models.items()
    }
    first = next(iter(shapes.values()))
    for name, leaves in shapes.items():
        if [(p, len(s)) for p, s in leaves] != [(p, len(s)) for p, s in first]:
            raise InputError(
                f'{name} and {next(iter(shapes))} differ in layers, not in width alone: methods '
                'that share parts of a model cannot train them; use `architectures=h1_cnn`'
            )
    ranges = [
        [(max(sizes), min(sizes)) for sizes in zip(*(s for _, s in leaves), strict=True)]
        for leaves in zip(*shapes.values(), strict=True)
    ]
    return {
        name: [
            tuple(
                Axis(size, *extent, _pixels(population.models[name], path, number, size))
                for number, (size, extent) in enumerate(zip(shape, extents, strict=True))
            )
            for (path, shape), extents in zip(leaves, ranges, strict=True)
        ]
        for name, leaves in shapes.items()
    }


def _pixels(model: Model, path: tuple, axis: int, size: int) -> int:
    """Pixels a channel on the axis of a dense layer after a flattened map, else 1."""
    names = [getattr(key, 'key', key) for key in path]
    if isinstance(model.module, ConvNet) and names == ['Dense_0', 'kernel'] and axis == 0:
        return size // model.module.channels[-1]
    return 1


def channels(rule: str, size: int, total: Array, widest: int, round: Array, key: Array) -> Array:
    """The channels of a layer of `total` that a sub-model of `size` channels holds, int32 [size].

    `first`: 0 to size - 1 (HeteroFL, Eq. 8); `rolled`: size channels from t mod J on, around the
    end, in this order (FedRolex, Eq. 9); `sorted`: the same ascending; `random`: any, ascending
    (Federated Dropout, Eq. 7).

    Args:
      rule: one of RULES.
      size: floor(r_n J), static.
      total: J, of the largest model available, scalar int32.
      widest: the largest J there could be, static.
      round: t, scalar int32.
      key: of the model; layers of equal width share their draw.
    """
    if rule == 'first':
        return jnp.arange(size, dtype=jnp.int32)
    if rule == 'random':
        draws = jax.random.uniform(jax.random.fold_in(key, total), (widest,))
        order = jnp.argsort(jnp.where(jnp.arange(widest) < total, draws, 2.0))
        return jnp.sort(order[:size]).astype(jnp.int32)
    rolled = (round % total + jnp.arange(size, dtype=jnp.int32)) % total
    return rolled if rule == 'rolled' else jnp.sort(rolled)


def indices(rule: str, axis: Axis, total: Array, round: Array, key: Array) -> Array:
    """The entries of the widest model's axis that a sub-model's axis holds, int32 [axis.size].

    total: entries of the axis in the largest model available, scalar int32.
    """
    if axis.widest == axis.narrowest:
        return jnp.arange(axis.size, dtype=jnp.int32)
    each, width = axis.size // axis.pixels, axis.widest // axis.pixels
    kept = channels(rule, each, total // axis.pixels, width, round, key)
    pixels = jnp.arange(axis.pixels, dtype=jnp.int32)
    return (kept[:, None] * axis.pixels + pixels[None]).ravel()
