"""What each client sends and computes in each round, without training."""

import contextlib
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from dfl_jax.base import Algorithm, Array, Clients, Graph, Info, PyTree, Sent
from dfl_jax.exchange import one_round
from dfl_jax.timing.rounds import ROUNDS, Counts, Rules, finish_times
from dfl_jax.timing.world import World

BLOCK = 64  # rounds that are counted at once
UNCOUNTED = 'the method does not count its operations (Info.flops), which its seconds follow from'


class DependsOnTrainingError(ValueError):
    """What a method does in a round cannot be told without training."""


def counted(
    algorithm: Algorithm, clients: Clients, graphs: Graph, flops: np.ndarray | None = None
) -> Counts:
    """The bits that each client sends in each round, and its floating-point operations, [T, M].

    They are what the method's own rounds report, of whose program all is cut away that does not
    lead to these numbers, the training above all.

    Args:
      algorithm: the method.
      clients: of whose inputs and labels only the shapes are used.
      graphs: the schedule.
      flops: of all clients in each round, [T], as a run has counted them; shared evenly
        between the active clients. Needed where these depend on the training, as it does where
        a flow is integrated until its loss rises.

    Raises DependsOnTrainingError where they depend on the training and are not given, and
    ValueError where the method does not count them.
    """
    sent = _rounds(algorithm, clients, graphs, lambda info: info.sent)
    if sent is None:
        raise DependsOnTrainingError(
            'what the method sends depends on the training; it cannot be replayed'
        )
    bits = _bits(sent, (len(graphs.active), len(clients.y)))
    if flops is not None:
        active = active_clients(graphs, len(clients.y))
        each = np.asarray(flops, np.float64) / np.maximum(active.sum(axis=1), 1)
        return Counts(bits, active * each[:, None])
    done = _rounds(algorithm, clients, graphs, lambda info: (info.flops, info.combining_flops))
    if done is None:
        raise DependsOnTrainingError(
            'the work of the method depends on the training; replay a run that has counted it '
            '(operations_total in its metrics), or give the operations of a round'
        )
    return _counts(bits, *done)


def _bits(sent: Mapping[str, Sent], shape: tuple[int, ...]) -> np.ndarray:
    """The bits that each client sends, [T, M] = shape."""
    each = (one.bits * np.asarray(one.messages, np.float64) for one in sent.values())
    return sum(each, start=np.zeros(shape))


def _counts(bits: np.ndarray, flops: Array | None, combining: Array | None) -> Counts:
    if flops is None:
        raise ValueError(UNCOUNTED)
    combining = None if combining is None else np.asarray(combining, np.float64)
    return Counts(bits, np.asarray(flops, np.float64), combining)


def counts_of(info: Info) -> Counts:
    """The counts of rounds whose reports, on the host, have a leading axis."""
    bits = _bits(info.sent, np.shape(info.loss))
    return _counts(bits, info.flops, info.combining_flops)


def rules_of(algorithm: Algorithm, graphs: Graph, clients: int, rules: Rules = ROUNDS) -> Rules:
    """The rules with what is the method's: clients meet where aggregators are fewer than they."""
    meetings = graphs.members.shape[-2] != clients
    return rules._replace(
        overlap=algorithm.overlaps, meetings=meetings, replies=meetings and algorithm.replies
    )


def check_rounds(
    algorithm: Algorithm, clients: Clients, graphs: Graph, world: World, rules: Rules
) -> None:
    """Raises ValueError for a method that does not count its operations, and NeverOnlineError where
    a client that others wait for leaves for ever.

    Of methods whose work depends on the training the latter shows while they train.
    """
    key, graph = jax.random.key(0), jax.tree.map(lambda a: a[0], graphs)

    def info(key: Array, graph: Graph, clients: Clients) -> Info:
        return one_round(algorithm, key, algorithm.init(key, clients), 0, graph, clients)[1]

    if jax.eval_shape(info, key, graph, clients).flops is None:
        raise ValueError(UNCOUNTED)
    if rules.period or world.online is None or np.isfinite(world.online.period).all():
        return
    with contextlib.suppress(DependsOnTrainingError):
        counts = counted(algorithm, clients, graphs)
        finish_times(graphs, counts, world, rules_of(algorithm, graphs, len(clients.y), rules))


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
    """A part of what each round reports, leaves [T, ...]; None where it depends on the data.

    What it follows from of the state goes on from round to round.
    """

    def report(
        state: PyTree, now: tuple[Array, Graph], known: tuple, x: Array, y: Array
    ) -> tuple[PyTree, PyTree]:
        key, *masks = known
        state, info = one_round(algorithm, key, state, *now, Clients(x, y, *masks))
        return state, part(info)

    def begin(known: tuple, x: Array, y: Array) -> PyTree:
        key, *masks = known
        return algorithm.init(key, Clients(x, y, *masks))

    rounds = np.arange(len(graphs.active), dtype=np.int32), graphs
    now = jax.tree.map(lambda a: jnp.asarray(a[0]), rounds)
    known = jax.random.key(0), *jax.tree.map(jnp.asarray, (clients.mask, clients.arrival))
    data = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (clients.x, clients.y)]
    first, state = jax.make_jaxpr(begin, return_shape=True)(known, *data)
    closed, (_, shapes) = jax.make_jaxpr(report, return_shape=True)(state, now, known, *data)
    size = len(first.jaxpr.outvars)  # leaves of the state
    reported, others = [True] * (len(closed.jaxpr.outvars) - size), len(closed.jaxpr.invars) - size
    used, carried = [False] * size, None
    while carried != used[:size]:
        carried = used[:size]
        jaxpr, used = dce_jaxpr(closed.jaxpr, carried + reported, carried + [False] * others)
    start, of_start = dce_jaxpr(first.jaxpr, carried)
    if any(used[-2:]) or any(of_start[-2:]):  # the data
        return None
    whole = jaxpr_as_fun(ClosedJaxpr(jaxpr, closed.consts))

    @jax.jit
    def of_rounds(state: list[Array], rounds: PyTree) -> tuple[list[Array], list[Array]]:
        def one(state: list[Array], now: PyTree) -> tuple[list[Array], list[Array]]:
            found = whole(*state, *_those(jax.tree.leaves((now, known)), used[size:]))
            return found[: len(state)], found[len(state) :]

        return lax.scan(one, state, rounds)

    carry = jaxpr_as_fun(ClosedJaxpr(start, first.consts))(
        *_those(jax.tree.leaves(known), of_start)
    )
    blocks = []
    for begins in range(0, len(graphs.active), BLOCK):
        block = jax.tree.map(lambda a, r=begins: np.asarray(a[r : r + BLOCK]), rounds)
        carry, found = of_rounds(carry, block)
        blocks.append(jax.device_get(found))
    leaves = [np.concatenate(each) for each in zip(*blocks, strict=True)]
    return jax.tree.unflatten(jax.tree.structure(shapes), leaves)


def _those(values: list[Array], used: list[bool]) -> list[Array]:
    """The values that are used; of the data, which come last, none is."""
    return [value for value, use in zip(values, used[: len(values)], strict=True) if use]
