"""What the tests of many methods share: rounds, precision, and the weights of one client."""

import jax
import jax.numpy as jnp
import numpy as np

from dfl_jax import Graph


def round_of(graphs, r) -> Graph:
    """Round r of a schedule, on the device."""
    return jax.tree.map(lambda a: jnp.asarray(a[r]), graphs)


def widen(tree):
    """Float32 leaves in double precision, all others as they are."""
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.float64) if leaf.dtype == jnp.float32 else leaf, tree
    )


def as_reference(tree, i):
    """Client i's weights of an MLP, leaves [M, ...], as the reference's list of layers."""
    return [
        (np.asarray(tree[name]['kernel'][i]), np.asarray(tree[name]['bias'][i]))
        for name in sorted(tree)
    ]


def rounds_of(algorithm, clients, graphs, keys=range(100)):
    """The states before and after every round, in double precision if there is one, and infos."""
    state = jax.jit(algorithm.init)(jax.random.key(0), clients)
    if jax.config.jax_enable_x64:
        state = widen(state)
    states, infos, step = [state], [], jax.jit(algorithm.step)
    for r, seed in zip(range(len(graphs.active)), keys, strict=False):
        state, info = step(jax.random.key(seed), state, round_of(graphs, r), clients)
        states.append(state)
        infos.append(info)
    return jax.device_get(states), jax.device_get(infos)


def assert_close(first, second, tolerance=1e-10):
    """Two trees equal up to a relative and absolute tolerance."""
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)
