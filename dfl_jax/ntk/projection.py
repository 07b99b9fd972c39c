"""Random projections of a Jacobian that all clients know: SPARK, Eq. (2), (3) and (17).

Every layer has its own P_l [d_l, k], drawn from a key that is hashed from the run's and the
layer's name; the layers' projections add up, J~ = sum_l J_l P_l, so that a row of J~ has k numbers
in all (Eq. 4). E[P P^T] = I, hence inner products of rows survive in expectation. The kinds differ
in what P u and P^T g cost, for weights of d numbers, a layer of them a matrix [d_in, d_out]:

`gaussian`     entries N(0, 1/k), the paper's: 2 d k operations.
`low_rank`     column j is vec(a b_j^T) / sqrt(k), Gaussian a [d_in], b_j [d_out], every a shared by
               10 columns, so that the update of a dense layer is A V with A [d_in, k / 10], and
               J P u costs a few times less than J w does: X A is formed once, then products with V
               alone.
`sparse_sign`  every weight goes to one random column with a random sign: 2 d.
`none`         P = I, k = P.

docs/results_spark.md has the kernels that they give, and their time.
"""

import hashlib
import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.base import Array, PyTree
from dfl_jax.checks import check_choice
from dfl_jax.ntk.precision import product, traced_precision

DIMENSION = 1000  # section 5.1
BLOCK = 50  # columns formed together
STORED = 2**30  # bytes up to which a Gaussian matrix is kept rather than drawn again
SHARED = 10  # columns of `low_rank` with the same a


class Layer(NamedTuple):
    """The parameters of one module, as one matrix whose last axis is the module's output."""

    name: str
    start: int  # of its weights among all
    shapes: tuple[tuple[int, ...], ...]
    positions: tuple[int, ...]  # of these among the leaves of the tree
    dtype: jnp.dtype  # of the weights, also where JAX draws float64 by default

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for shape in self.shapes)

    @property
    def width(self) -> int:
        """d_out; 1 where the parameters do not share it."""
        widths = {shape[-1] if shape else 1 for shape in self.shapes}
        return widths.pop() if len(widths) == 1 else 1


class Factors(NamedTuple):
    """The P_l of a layer whose column r SHARED + s is vec(a_r b_rs^T): P_l u = A V."""

    left: Array  # A [d_l / d_out, r], the a_r
    right: Array  # [r, SHARED, d_out], the b_rs; those beyond k meet no number of u

    def weights(self, u: Array) -> Array:
        """V [r, d_out] of u [k]: V_r = sum_s u_rs b_rs."""
        rank, shared, _ = self.right.shape
        padded = jnp.pad(u, (0, rank * shared - len(u))).reshape(rank, shared)
        return jnp.sum(padded[:, :, None] * self.right, axis=1)


class Kind(NamedTuple):
    """How the P_l of one layer is drawn and used."""

    draw: Callable[[Array, Layer], PyTree]  # (key, layer) -> what is kept of P_l
    lift: Callable[[PyTree, Array, Layer], Array]  # (kept, u [k], layer) -> P_l u [d_l]
    factored: bool = False  # what is kept are Factors, with few a_r
    # (kept, b, layer) -> columns b BLOCK, ... of P_l, [BLOCK, d_l], those beyond k zero
    columns: Callable[[PyTree, Array, Layer], Array] | None = None


class RandomProjection(NamedTuple):
    """P [P, k] for the weights of one network."""

    kind: str
    dimension: int  # k
    draw: Callable[[Array], PyTree]  # key -> table, what is kept of P
    lift: Callable[[PyTree, Array], PyTree]  # (table, u [k]) -> P u, leaves like the weights
    factored: bool  # the table is {name of a layer: its Factors}
    # (table, b) -> columns b BLOCK, ..., leaves [BLOCK, ...], of the kind whose P u is too dear
    columns: Callable[[PyTree, Array], PyTree] | None


def projection(kind: str, shapes: PyTree, k: int | None = None) -> RandomProjection:
    """The projection of weights of these shapes to k dimensions (default 1000).

    Raises ValueError for an unknown kind, for k outside [1, P], and for a k of `none`.
    """
    check_choice('projection', kind, PROJECTIONS)
    layers, treedef = _layers(shapes)
    size = sum(layer.size for layer in layers)
    if kind == 'none' and k is not None:
        raise ValueError(f'projection to {k} dimensions by projection=none; leave one of them out')
    if k is None:
        k = size if kind == 'none' else DIMENSION
    if not 1 <= k <= size:
        raise ValueError(
            f'projection to {k} dimensions of a network with {size} weights; '
            f'choose from 1 to {size}'
        )
    of_layer = PROJECTIONS[kind](k)

    def draw(key: Array) -> PyTree:
        return {layer.name: of_layer.draw(_layer_key(key, layer.name), layer) for layer in layers}

    def assembled(flat: Iterable[Array]) -> PyTree:
        """Layers [..., d_l] as the tree of the weights, leaves [..., *shape]."""
        leaves: dict[int, Array] = {}
        for vector, layer in zip(flat, layers, strict=True):
            start = 0
            for shape, position in zip(layer.shapes, layer.positions, strict=True):
                end = start + math.prod(shape)
                leaves[position] = vector[..., start:end].reshape(*vector.shape[:-1], *shape)
                start = end
        return jax.tree.unflatten(treedef, [leaves[position] for position in sorted(leaves)])

    def lift(table: PyTree, u: Array) -> PyTree:
        return assembled(of_layer.lift(table[layer.name], u, layer) for layer in layers)

    columns = None
    if (columns_of_layer := of_layer.columns) is not None:

        def columns(table: PyTree, block: Array) -> PyTree:
            return assembled(columns_of_layer(table[layer.name], block, layer) for layer in layers)

    return RandomProjection(kind, k, draw, lift, of_layer.factored, columns)


def _layers(shapes: PyTree) -> tuple[list[Layer], jax.tree_util.PyTreeDef]:
    leaves, treedef = jax.tree_util.tree_flatten_with_path(shapes)
    found: dict[str, list[int]] = {}
    for position, (path, _) in enumerate(leaves):
        found.setdefault(layer_of(path), []).append(position)
    layers: list[Layer] = []
    start = 0
    for name, positions in found.items():
        of_layer = tuple(leaves[position][1].shape for position in positions)
        dtype = jnp.result_type(*(leaves[position][1].dtype for position in positions))
        layers.append(Layer(name, start, of_layer, tuple(positions), dtype))
        start += layers[-1].size
    return layers, treedef


def layer_of(path: tuple) -> str:
    """The name of the layer that holds the parameter at this path of the tree of weights."""
    return '/'.join(str(k.key) for k in path[:-1])


def _layer_key(key: Array, name: str) -> Array:
    """s_l = Hash(s_global || name): Threefry of the key and the name's SHA-256."""
    digest = hashlib.sha256(name.encode()).digest()
    return jax.random.fold_in(key, int.from_bytes(digest[:4], 'big'))


def _gaussian(k: int) -> Kind:
    blocks = -(-k // BLOCK)

    def block_of(key: Array, block: Array, layer: Layer) -> Array:
        """Columns of P_l, [BLOCK, d_l]; those beyond k are zero."""
        entries = jax.random.normal(
            jax.random.fold_in(key, block), (BLOCK, layer.size), layer.dtype
        )
        inside = block * BLOCK + jnp.arange(BLOCK) < k
        return jnp.where(inside[:, None], entries / math.sqrt(k), 0)

    def kept(layer: Layer) -> bool:
        return k * layer.size * 4 <= STORED

    def draw(key: Array, layer: Layer) -> Array:
        """P_l in blocks [blocks, BLOCK, d_l], or only its key."""
        if not kept(layer):
            return key
        return lax.map(lambda b: block_of(key, b, layer), jnp.arange(blocks))

    def columns(table: Array, block: Array, layer: Layer) -> Array:
        return table[block] if kept(layer) else block_of(table, block, layer)

    def lift(table: Array, u: Array, layer: Layer) -> Array:
        parts = jnp.pad(u, (0, blocks * BLOCK - k)).reshape(blocks, BLOCK)

        def add(total: Array, block: Array) -> tuple[Array, None]:
            return total + jnp.matmul(
                parts[block], columns(table, block, layer), precision=traced_precision()
            ), None

        return lax.scan(add, jnp.zeros(layer.size, u.dtype), jnp.arange(blocks))[0]

    return Kind(draw, lift, columns=columns)


def _low_rank(k: int) -> Kind:
    rank = -(-k // SHARED)

    def draw(key: Array, layer: Layer) -> Factors:
        k_in, k_out = jax.random.split(key)
        a = jax.random.normal(k_in, (layer.size // layer.width, rank), layer.dtype)
        b = jax.random.normal(k_out, (rank, SHARED, layer.width), layer.dtype)
        return Factors(a, b / math.sqrt(k))

    def lift(table: Factors, u: Array, layer: Layer) -> Array:
        return product(table.left, table.weights(u)).ravel()

    return Kind(draw, lift, factored=True)


def _sparse_sign(k: int) -> Kind:
    def draw(key: Array, layer: Layer) -> tuple[Array, Array]:
        k_place, k_sign = jax.random.split(key)
        position = jax.random.randint(k_place, (layer.size,), 0, k)
        return position, jax.random.rademacher(k_sign, (layer.size,), layer.dtype)

    def lift(table: tuple[Array, Array], u: Array, layer: Layer) -> Array:
        position, sign = table
        return sign * u[position]

    return Kind(draw, lift)


_NONE = Kind(
    draw=lambda key, layer: (),
    lift=lambda kept, u, layer: u[layer.start : layer.start + layer.size],
)
PROJECTIONS: dict[str, Callable[[int], Kind]] = {
    'gaussian': _gaussian,
    'low_rank': _low_rank,
    'sparse_sign': _sparse_sign,
    'none': lambda k: _NONE,
}
