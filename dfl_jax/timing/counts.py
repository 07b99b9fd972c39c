"""What each client sends and computes in each round, without training."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from dfl_jax.base import Algorithm, Array, Clients, Graph, Info, PyTree
from dfl_jax.timing.rounds import ROUNDS, Counts, Rules

BLOCK = 64  # rounds that are counted at once
UNCOUNTED = 'the method does not count its operations (Info.work), which its seconds follow from'


class DependsOnTrainingError(ValueError):
    """What a method does in a round cannot be told without training."""


def counted(
    algorithm: Algorithm, clients: Clients, graphs: Graph, operations: np.ndarray | None = None
) -> Counts:
    """The bits that each client sends in each round, and its operations, [T, M].

    They are what the method's own rounds report, of whose program all is cut away that does not
    lead to these numbers, the training above all.

    Args:
      algorithm: the method.
      clients: of whose inputs and labels only the shapes are used.
      graphs: the schedule.
      operations: of all clients in each round, [T], as a run has counted them; shared evenly
        between the active clients. Needed where the work depends on the training, as it does where
        a flow is integrated until its loss rises.

    Raises DependsOnTrainingError where the work depends on the training and is not given, and
    ValueError where the method does not count it.
    """
    sent = _rounds(algorithm, clients, graphs, lambda info: info.sent)
    if sent is None:
        raise DependsOnTrainingError(
            'what the method sends depends on the training; it cannot be replayed'
        )
    bits = sum(
        (algorithm.unit_bits[unit] * each.astype(np.float64) for unit, each in sent.items()),
        start=np.zeros((len(graphs.active), len(clients.y))),
    )
    if operations is not None:
        active = active_clients(graphs, len(clients.y))
        each = np.asarray(operations, np.float64) / np.maximum(active.sum(axis=1), 1)
        return Counts(bits, active * each[:, None])
    done = _rounds(algorithm, clients, graphs, lambda info: (info.work, info.combining))
    if done is None:
        raise DependsOnTrainingError(
            'the work of the method depends on the training; replay a run that has counted it '
            '(operations_total in its metrics), or give the operations of a round'
        )
    return _counts(bits, *done)


def _counts(bits: np.ndarray, work: Array | None, combining: Array | None) -> Counts:
    if work is None:
        raise ValueError(UNCOUNTED)
    combining = None if combining is None else np.asarray(combining, np.float64)
    return Counts(bits, np.asarray(work, np.float64), combining)


def counts_of(info: Info, unit_bits: Mapping[str, int]) -> Counts:
    """The counts of rounds whose reports, on the host, have a leading axis."""
    bits = sum(
        (unit_bits[unit] * np.asarray(each, np.float64) for unit, each in info.sent.items()),
        start=np.zeros(np.shape(info.loss)),
    )
    return _counts(bits, info.work, info.combining)


def rules_of(algorithm: Algorithm, graphs: Graph, clients: int, rules: Rules = ROUNDS) -> Rules:
    """The rules with what is the method's: clients meet where aggregators are fewer than they."""
    meetings = graphs.members.shape[-2] != clients
    return rules._replace(
        overlap=algorithm.overlaps, meetings=meetings, replies=meetings and algorithm.replies
    )


def check_counted(algorithm: Algorithm, clients: Clients, graphs: Graph) -> None:
    """Raises ValueError for a method that does not count its operations; nothing is computed."""
    key, graph = jax.random.key(0), jax.tree.map(lambda a: a[0], graphs)

    def info(key: Array, graph: Graph, clients: Clients) -> Info:
        return algorithm.step(key, algorithm.init(key, clients), graph, clients)[1]

    if jax.eval_shape(info, key, graph, clients).work is None:
        raise ValueError(UNCOUNTED)


def active_clients(graphs: Graph, clients: int) -> np.ndarray:
    """Whether each client takes part in each round as an aggregator or is heard by one, [T, M]."""
    heard = np.asarray(graphs.mask) & np.asarray(graphs.active)[:, :, None]
    found = np.zeros((len(heard), clients), bool)
    round, *place = np.nonzero(heard)
    found[round, np.asarray(graphs.members)[round, *place]] = True
    return found


def _rounds(
    algorithm: Algorithm, clients: Clients, graphs: Graph, part: Callable[[Info], PyTree]
) -> PyTree | None:
    """A part of what each round reports, leaves [T, ...]; None where it depends on the data."""

    def report(key: Array, graph: Graph, mask: Array, x: Array, y: Array) -> PyTree:
        network = Clients(x, y, mask)
        state = algorithm.init(key, network)
        return part(algorithm.step(key, state, graph, network)[1])

    graph = jax.tree.map(lambda a: jnp.asarray(a[0]), graphs)
    x, y = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (clients.x, clients.y))
    arguments = (jax.random.key(0), graph, jnp.asarray(clients.mask), x, y)
    closed, shapes = jax.make_jaxpr(report, return_shape=True)(*arguments)
    jaxpr, used = dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    if any(used[-2:]):  # x and y
        return None
    remaining = jaxpr_as_fun(ClosedJaxpr(jaxpr, closed.consts))

    @jax.jit
    @jax.vmap
    def of_round(graph: Graph) -> list[Array]:
        given = [*jax.tree.leaves((arguments[0], graph, arguments[2])), None, None]
        return remaining(*(leaf for leaf, use in zip(given, used, strict=True) if use))

    def of_block(start: int) -> list[np.ndarray]:
        block = jax.tree.map(lambda a: np.asarray(a[start : start + BLOCK]), graphs)
        return jax.device_get(of_round(block))

    blocks = map(of_block, range(0, len(graphs.active), BLOCK))
    leaves = [np.concatenate(each) for each in zip(*blocks, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)
