"""What many tests share: compiled methods, precision, one client's weights, commands."""

import atexit
import functools
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
import reference

from dfl_jax import Clients, Graph, data
from dfl_jax.base import Algorithm
from dfl_jax.data import DataError
from dfl_jax.evaluation import evaluation
from dfl_jax.exchange import attack_named, one_round
from dfl_jax.methods import make
from dfl_jax.setting_error import SettingError
from tests.torture.processes import Process, Starter, command


class Compiled(NamedTuple):
    """A method whose functions are compiled once for all tests of a process."""

    algorithm: Algorithm
    init: Callable
    step: Callable
    predict: Callable


_COMPILED: dict[tuple, tuple] = {}


def compiled(method, network, **settings) -> Compiled:
    """`make(method, network, **settings)`, compiled; the same one for the same arguments."""
    name = (method, id(network), repr(sorted(settings.items(), key=lambda item: item[0])))
    if name not in _COMPILED:
        algorithm = make(method, network, **settings)
        step = functools.partial(one_round, algorithm)  # (key, state, number, graph, clients)
        jitted = map(jax.jit, (algorithm.init, step, algorithm.predict))
        _COMPILED[name] = network, Compiled(algorithm, *jitted)  # held, so that its id stays
    return _COMPILED[name][1]


def round_of(graphs, r) -> Graph:
    """Round r of a schedule, on the device."""
    return Graph(*(None if a is None else jnp.asarray(a[r]) for a in graphs))


def host_round(graphs, r) -> Graph:
    """Round r of a schedule, NumPy arrays."""
    return jax.tree.map(lambda a: np.asarray(a)[r], graphs)


def widen(tree):
    """Float32 leaves in double precision, all others as they are."""
    return jax.tree.map(
        lambda leaf: np.asarray(leaf, np.float64) if leaf.dtype == jnp.float32 else leaf, tree
    )


def as_reference(tree, i):
    """Client i's weights of an MLP, leaves [M, ...], as the reference's list of layers."""
    return [
        (np.asarray(tree[name]['kernel'][i]), np.asarray(tree[name]['bias'][i]))
        for name in sorted(tree)
    ]


def assert_refused(said: str, *source, **how) -> str:
    """The one line by which `data.load` of the source is refused, which matches what is given."""
    with pytest.raises((DataError, SettingError), match=said) as caught:
        data.load(*source, **how)
    assert '\n' not in str(caught.value)
    return str(caught.value)


def padded(samples, garbage=0.0, label=0, extra=0) -> Clients:
    """Clients' (inputs [n, F], one-hot labels [n, C]) in arrays; what stands behind them is given.

    extra: samples of padding that even the largest client has.
    """
    shape = (len(samples), max(len(x) for x, _ in samples) + extra)
    x, y = np.full((*shape, samples[0][0].shape[1]), garbage), np.full(shape, label, np.int32)
    mask = np.zeros(shape, bool)
    for i, (inputs, one_hot) in enumerate(samples):
        n = len(inputs)
        x[i, :n], y[i, :n], mask[i, :n] = inputs, one_hot.argmax(axis=1), True
    return Clients(*map(jnp.asarray, (x, y, mask)))


def write_clusters(path: Path, train: int = 120, test: int = 40) -> Path:
    """A dataset of three classes that a handful of rounds learns."""
    rng = np.random.default_rng(0)
    y = np.arange(train + test) % 3
    x = (2 * rng.normal(size=(3, 8))[y] + rng.normal(size=(train + test, 8))).astype(np.float32)
    np.savez(path, train_x=x[:train], train_y=y[:train], test_x=x[train:], test_y=y[train:])
    return path


def drawn_samples(sizes=(4, 7, 5, 6, 3, 7), features=5, classes=3, seed=3):
    """For each size, a client's normal inputs [n, F] and one-hot labels [n, C]."""
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(n, features)), np.eye(classes)[rng.integers(classes, size=n)])
        for n in sizes
    ]


@functools.cache
def logistic_clients(sizes=(4, 7, 5, 6, 3, 7), features=4, classes=3) -> tuple[Clients, Callable]:
    """Clients of different sizes and classes, and the gradient of each at a vector of weights."""
    rng, shape = np.random.default_rng(3), (len(sizes), max(sizes))
    x, y = np.zeros((*shape, features)), np.zeros(shape, np.int32)
    for i, n in enumerate(sizes):
        x[i, :n] = rng.normal(size=(n, features)) + i % 2
        y[i, :n] = rng.integers(1 + i % classes, size=n)

    def gradients(i, vector):
        n, w = sizes[i], vector.reshape(features + 1, classes)
        inputs = np.concatenate([x[i, :n], np.ones((n, 1))], axis=1)
        p = np.exp(inputs @ w)
        residual = p / p.sum(axis=1, keepdims=True) - np.eye(classes)[y[i, :n]]
        return (inputs.T @ residual / n).ravel()

    return Clients(x, y, np.arange(max(sizes)) < np.array(sizes)[:, None]), gradients


def flipping(scale):
    """The attack by which two of six clients flip their Jacobians, and the factor of those that an
    aggregator i hears of client j; None and ones for no scale."""
    if scale is None:
        return None, lambda i, j: 1.0
    liars = (1, 4)
    attack = attack_named(np.isin(np.arange(6), liars), f'jacobian_flip:{scale}')
    return attack, lambda i, j: -scale if j in liars and i not in liars else 1.0


def counting_passes(function) -> tuple[Callable, list]:
    """The function of arrays, and a list that grows whenever all lanes of a program call it."""
    passes: list[bool] = []
    counted = jax.custom_batching.custom_vmap(function)

    @counted.def_vmap
    def of_all(size, batched, *arrays):
        jax.debug.callback(lambda: passes.append(True))
        return function(*arrays), True

    return counted, passes


def assert_equals_reference(tree, expected, tolerance=1e-10):
    """Every client's weights, leaves [M, ...], are the reference's lists of layers."""
    for i, layers in enumerate(expected):
        ours, theirs = reference.flatten(as_reference(tree, i)), reference.flatten(layers)
        assert np.linalg.norm(ours - theirs) <= tolerance * np.linalg.norm(theirs)


def rounds_of(method: Compiled, clients, graphs):
    """The states before and after every round, in double precision if there is one, and infos."""
    state = method.init(jax.random.key(0), clients)
    if jax.config.jax_enable_x64:
        state = widen(state)
    states, infos = [state], []
    for r in range(len(graphs.active)):
        state, info = method.step(jax.random.key(r), state, r, round_of(graphs, r), clients)
        states.append(state)
        infos.append(info)
    return jax.device_get(states), jax.device_get(infos)


def assert_close(first, second, tolerance=1e-10):
    """Two trees equal up to a relative and absolute tolerance."""
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


@functools.partial(jax.jit, static_argnums=1)
def split(key, count=2):
    """Keys from one, without a program a call."""
    return jax.random.split(key, count)


@functools.cache
def _starter() -> Starter:
    scratch = tempfile.TemporaryDirectory()
    starter = Starter(Path(scratch.name), {'XLA_FLAGS': os.environ['XLA_FLAGS']})
    atexit.register(lambda: (starter.close(), scratch.cleanup()))
    return starter


def started(
    name: str,
    *arguments: object,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    file_size: int | None = None,
    plain: bool = False,
) -> Process:
    """A command, `run` or `benchmarks.evolution`, in a process of its own.

    It is a fork of one that has imported what commands need, which spares 3 to 5 seconds; `plain`
    starts an interpreter, for tests of the start itself. `file_size` limits the files it writes.
    """
    how = {'env': env, 'file_size': file_size, 'plain': plain}
    return _starter().start(command(name, *arguments), cwd, **how)


def evaluator(algorithm, state, test, client_samples=None, **options):
    """state -> its metrics; arguments as in `evaluation`."""
    batches, measure, summarise = evaluation(algorithm, state, test, client_samples, **options)
    return lambda state: summarise(jax.device_get(jax.jit(measure)(state, batches, None)))


def assortativity(links: np.ndarray) -> float:
    """The degree assortativity of links [E, 2]."""
    return nx.degree_assortativity_coefficient(nx.from_edgelist(links.tolist()))
