"""Initial weights by another law than that of the model."""

import jax
from jax.nn import initializers

from dfl_jax.base import Array, PyTree
from dfl_jax.checks import check_choice
from dfl_jax.models.model import Model

INITIALIZERS = (
    'he_normal',
    'he_uniform',
    'glorot_normal',
    'glorot_uniform',
    'lecun_normal',
    'lecun_uniform',
    'orthogonal',
)


def with_initializer(model: Model, name: str) -> Model:
    """The model with its kernels drawn by another law, and all other parameters as before.

    Kernels are the leaves of that name, [..., fan-in axis, fan-out axis], as those of flax's dense
    and convolutional layers; each is drawn by another key.

    Args:
      name: one of INITIALIZERS, a function of `jax.nn.initializers` with its defaults.

    Raises:
      ValueError: unknown name, or a model without kernels.
    """
    check_choice('initializer', name, INITIALIZERS)
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(model.shapes)]
    if not any(map(_is_kernel, paths)):
        raise ValueError(
            f'model {type(model.module).__name__} has no parameter named kernel for '
            f'{name} to draw; leave the initializer out'
        )
    law = getattr(initializers, name)()

    def init(key: Array) -> PyTree:
        leaves, treedef = jax.tree.flatten(model.init(key))
        drawn = [
            law(jax.random.fold_in(key, index), leaf.shape, leaf.dtype)
            if _is_kernel(path)
            else leaf
            for index, (path, leaf) in enumerate(zip(paths, leaves, strict=True))
        ]
        return jax.tree.unflatten(treedef, drawn)

    return model._replace(init=init)


def _is_kernel(path: tuple) -> bool:
    return getattr(path[-1], 'key', None) == 'kernel'
