"""Runs an algorithm over a schedule of graphs: blocks of rounds in one scan, evaluation between.

The host decides shapes and the device does the rounds: every block is the same compiled program,
called with the next slice of the schedule and a donated state.
"""

import contextlib
import copy
import functools
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh

from dfl_jax.base import Algorithm, Array, Choices, Clients, Graph, Info, Mean, PyTree, State
from dfl_jax.evaluation import Holdout, Metrics, evaluation
from dfl_jax.execution.devices import placed, replicated


class DivergenceError(FloatingPointError):
    """The training loss of some clients stopped being a number."""

    def __init__(self, round: int, clients: np.ndarray):
        some = ', '.join(map(str, clients[:5])) + (', ...' if len(clients) > 5 else '')
        super().__init__(
            f'round {round}: the training loss of {len(clients)} client(s) is not finite '
            f'(client {some}); lower --lr'
        )
        self.round, self.clients = round, clients


@dataclass
class Progress:
    """What a run carries besides the state, saved with each checkpoint."""

    round: int = 0
    seconds: float = 0.0  # wall time of the rounds, compilation and evaluation apart
    sent: dict[str, list[int]] = field(default_factory=dict)  # units sent by each client so far


def run(
    algorithm: Algorithm,
    clients: Clients,
    graphs: Graph,
    test: Holdout,
    key: Array,
    *,
    resume: tuple[State, Progress] | None = None,
    **options: Any,
) -> Iterator[tuple[Metrics, State, Progress]]:
    """Trains round by round and yields (metrics, state, progress) at every evaluation.

    The state yielded is the live one: use or copy it before asking for the next evaluation, which
    donates its memory to the next block.

    Args:
      algorithm: what to run.
      clients: the network's private data.
      graphs: the schedule, arrays with leading axis T.
      test: the global hold-out set.
      key: one key; initialisation and each round's randomness derive from it.
      resume: state and progress of an earlier, identical run.
      options: `eval_every`, rounds between evaluations (default 1; the last round is always
        evaluated); `client_eval_samples`, how many test samples judge the single clients (default
        all; the consensus model always sees the whole test set); `validation`, samples of the
        clients' own that nobody trains on, for their local accuracy, where the algorithm offers
        `predict_own`; `on_compile`, called once with the seconds that compilation took; `mesh`,
        the devices over which the clients are spread (`devices.client_mesh`; default: one device).

    Raises DivergenceError when a client's training loss is not finite.
    """
    runs = _Runs(lambda _: algorithm, None, clients, graphs, key, several=False)
    earlier = resume and (resume[0], [resume[1]])
    for (found,), state, (progress,) in _train(runs, test, resume=earlier, **options):
        if isinstance(found, DivergenceError):
            raise found
        yield found, state, progress


def run_together(
    algorithm_of: Callable[[PyTree], Algorithm],
    values: PyTree,
    clients: Clients,
    graphs: Graph,
    test: Holdout,
    keys: Array,
    *,
    resume: tuple[State, list[Progress]] | None = None,
    **options: Any,
) -> Iterator[tuple[list[Metrics | DivergenceError], State, list[Progress]]]:
    """R runs as one program, vmapped: `run`, with a leading axis R on all but the test set.

    Runs may differ in everything that is traced: their keys, data, graphs and `values`. The wall
    time of the program is shared evenly between them. A run that diverges does not end the others:
    from then on its error stands in the place of its metrics.

    Args:
      algorithm_of: the method under one entry of `values`, called while it is traced.
      values: leaves [R], e.g. learning rates.
      clients: arrays [R, M, N, ...], all padded to the largest client.
      graphs: arrays [R, T, ...].
      test: the hold-out set of all.
      keys: [R].
      resume: state [R, ...] and progresses of an earlier, identical call.
      options: as of `run`; `validation` with a leading axis R.
    """
    runs = _Runs(algorithm_of, values, clients, graphs, keys, several=True)
    yield from _train(runs, test, resume=resume, **options)


class _Runs(NamedTuple):
    """One run, or where `several` several, with a leading axis R on all arrays."""

    algorithm_of: Callable[[PyTree], Algorithm]
    values: PyTree
    clients: Clients
    graphs: Graph
    keys: Array
    several: bool

    def vmap_runs(self, function: Callable, in_axes: tuple[int | None, ...]) -> Callable:
        """`function` of one run for all; a single run is not batched (see `map_in_chunks`)."""
        if not self.several:
            return function
        if len(self.keys) > 1:
            return jax.vmap(function, in_axes)

        def of_the_only(*arguments):
            own = [
                a if axis is None else jax.tree.map(lambda leaf: leaf[0], a)
                for a, axis in zip(arguments, in_axes, strict=True)
            ]
            return jax.tree.map(lambda leaf: leaf[None], function(*own))

        return of_the_only

    def each(self, tree: PyTree) -> list[PyTree]:
        """What is of each run, of arrays on the host."""
        if not self.several:
            return [tree]
        return [jax.tree.map(lambda a, i=i: a[i], tree) for i in range(len(self.keys))]


def _train(
    runs: _Runs,
    test: Holdout,
    *,
    eval_every: int = 1,
    client_eval_samples: int | None = None,
    validation: Clients | None = None,
    resume: tuple[State, list[Progress]] | None = None,
    on_compile: Callable[[float], None] | None = None,
    mesh: Mesh | None = None,
) -> Iterator[tuple[list[Metrics | DivergenceError], State, list[Progress]]]:
    """`run` and `run_together`."""
    axis, count = int(runs.several), len(runs.keys) if runs.several else 1
    rounds = runs.graphs.active.shape[axis]
    if eval_every < 1:
        raise ValueError(f'eval_every has to be at least 1, got {eval_every}')
    _check_shapes(runs, test, validation)
    # Blocks of one length serve every evaluation, and so does one compiled program.
    block = math.gcd(min(eval_every, rounds), rounds, resume[1][0].round if resume else 0)
    with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
        place = functools.partial(placed, mesh=mesh, axis=axis)
        clients, validation = place(runs.clients), place(validation)
        k_init, k_rounds = jax.jit(runs.vmap_runs(_two_keys, (0,)), out_shardings=replicated())(
            runs.keys
        )
        if resume:
            state, progress = place(resume[0]), copy.deepcopy(resume[1])
        else:
            state = place(_initial_states(runs, k_init, clients))
            progress = [Progress() for _ in range(count)]
        algorithm = runs.algorithm_of(runs.each(runs.values)[0])
        evaluate = _evaluate(runs, algorithm, state, test, client_eval_samples, validation)
        run_block, seconds = _compile_block(runs, state, clients, k_rounds, block)
        if on_compile:
            on_compile(seconds)

        lost: dict[int, DivergenceError] = {}
        while progress[0].round < rounds:
            start = progress[0].round
            begin = time.perf_counter()
            state, info = jax.block_until_ready(
                run_block(state, *_section(runs, start, block), clients, k_rounds, runs.values)
            )
            seconds = (time.perf_counter() - begin) / count
            infos = runs.each(jax.device_get(info))
            for number, (each, found) in enumerate(zip(progress, infos, strict=True)):
                error = _divergence(found.loss, start)
                if error:
                    lost.setdefault(number, error)
                each.seconds += seconds
                each.round += block
                _count_traffic(each, found)
            if len(lost) == count:
                yield list(lost.values()), state, copy.deepcopy(progress)
                return
            if progress[0].round % eval_every == 0 or progress[0].round == rounds:
                rows: list[Metrics | DivergenceError] = [
                    lost.get(number)
                    or {'round': each.round}
                    | judged
                    | _report(found)
                    | traffic(each, algorithm)
                    | {'seconds': each.seconds}
                    for number, (each, judged, found) in enumerate(
                        zip(progress, evaluate(state), infos, strict=True)
                    )
                ]
                yield rows, state, copy.deepcopy(progress)


def _check_shapes(runs: _Runs, test: Holdout, validation: Clients | None) -> None:
    """Raises ValueError for data, graphs and a test set that do not belong together."""
    axis = int(runs.several)
    inputs = runs.clients.x.shape[axis + 2 :]
    for what, data in (('clients', runs.clients), ('validation', validation)):
        if data is None:
            continue
        x, y, mask = (np.shape(array) for array in data)
        if y != mask or x[: axis + 2] != y or len(y) != axis + 2:
            raise ValueError(
                f'{what}: inputs {x}, labels {y} and mask {mask} do not fit each other; use '
                'data.pack'
            )
        if x[axis + 2 :] != inputs:
            raise ValueError(f'{what} have samples of shape {x[axis + 2 :]}, and clients {inputs}')
    clients = runs.clients.y.shape[axis]
    if validation is not None and validation.y.shape[axis] != clients:
        raise ValueError(
            f'validation samples of {validation.y.shape[axis]} clients, and data of {clients}'
        )
    samples, labels = np.shape(test.x), np.shape(test.y)
    if samples[:1] != labels or labels in ((), (0,)) or samples[1:] != inputs:
        raise ValueError(
            f'the test set has inputs {samples} and labels {labels}, and the clients samples of '
            f'shape {inputs}; give a test set of at least one such sample'
        )
    members, mask, active = (np.shape(array) for array in runs.graphs)
    if members != mask or members[:-1] != active or len(members) != axis + 3 or 0 in members:
        raise ValueError(
            f'graphs: members {members}, mask {mask} and active {active} do not fit each other; '
            'use topology.schedule'
        )
    named = np.asarray(runs.graphs.members)
    named = named[:1] if named.strides[0] == 0 else named  # one round of a static schedule
    least, most, aggregators = int(named.min()), int(named.max()), members[-2]
    # Aggregators may be fewer than clients where these meet, and then they are not all the members.
    alone = 1 < aggregators != clients and most < aggregators
    if least < 0 or most >= clients or alone:
        raise ValueError(
            f'a graph of {aggregators if alone else most + 1} clients (members {least} to '
            f'{most}) with the data of {clients}; draw the graphs for as many clients as hold data'
        )


def _two_keys(key: Array) -> tuple[Array, Array]:
    first, second = jax.random.split(key)
    return first, second


def _initial_states(runs: _Runs, keys: Array, clients: Clients) -> State:
    def start(value, key, clients):
        return runs.algorithm_of(value).init(key, clients)

    return jax.jit(runs.vmap_runs(start, (0, 0, 0)))(runs.values, keys, clients)


def _evaluate(
    runs, algorithm, state, test, client_samples, validation
) -> Callable[[State], list[Metrics]]:
    """state -> the metrics of each run."""
    one = (
        jax.eval_shape(lambda s: jax.tree.map(lambda a: a[0], s), state) if runs.several else state
    )
    batches, measure, summarise = evaluation(
        algorithm, one, test, client_samples, own=validation is not None
    )
    measure = jax.jit(runs.vmap_runs(measure, (0, None, 0)), out_shardings=replicated())
    return lambda state: [
        summarise(found) for found in runs.each(jax.device_get(measure(state, batches, validation)))
    ]


def _section(runs: _Runs, start: int, block: int) -> tuple[np.ndarray, Graph]:
    """The numbers of the block's rounds, and their graphs."""
    rounds = slice(start, start + block)
    at = (slice(None), rounds) if runs.several else rounds
    return np.arange(start, start + block, dtype=np.int32), jax.tree.map(
        lambda a: np.asarray(a[at]), runs.graphs
    )


def _compile_block(runs, state, clients, keys, block):
    """The donated, jitted scan over `block` rounds, and the seconds its compilation took."""

    def rounds(state, numbers, graphs, clients, key, value):
        step = runs.algorithm_of(value).step

        def one(state, inputs):
            number, graph = inputs
            return step(jax.random.fold_in(key, number), state, graph, clients)

        return lax.scan(one, state, (numbers, graphs))

    several = runs.vmap_runs(rounds, (0, None, 0, 0, 0, 0))
    begin = time.perf_counter()
    arguments = (state, *_section(runs, 0, block), clients, keys, runs.values)
    kept = jax.tree.map(lambda a: a.sharding, state)
    program = jax.jit(several, donate_argnums=0, out_shardings=(kept, replicated()))
    return program.lower(*arguments).compile(), time.perf_counter() - begin


def _divergence(losses: np.ndarray, first: int) -> DivergenceError | None:
    """losses: [block, M], of the rounds after round number `first`."""
    bad = ~np.isfinite(losses)
    if not bad.any():
        return None
    row = int(np.argmax(bad.any(axis=1)))
    return DivergenceError(first + row + 1, np.flatnonzero(bad[row]))


def _count_traffic(progress: Progress, info: Info) -> None:
    for unit, counts in info.sent.items():
        block = np.asarray(counts, np.int64).sum(axis=0)
        before = progress.sent.get(unit, [0] * len(block))
        progress.sent[unit] = [old + int(new) for old, new in zip(before, block, strict=True)]


def traffic(progress: Progress, algorithm: Algorithm) -> Metrics:
    """Exact bits in Python integers, reported in megabytes (10^6 bytes) sent so far."""
    by_client = [0] * max(map(len, progress.sent.values()), default=0)
    for unit, counts in progress.sent.items():
        bits = algorithm.unit_bits[unit]
        by_client = [total + bits * count for total, count in zip(by_client, counts, strict=True)]
    return {
        'mbytes_total': sum(by_client) / 8e6,
        'mbytes_busiest_client': max(by_client, default=0) / 8e6,
    }


def _report(info: Info) -> Metrics:
    """The metrics of the last round of a block."""
    report: Metrics = {'train_loss_mean': float(np.asarray(info.loss[-1]).mean())}
    for name, metric in info.metrics.items():
        if not isinstance(metric, (Mean, Choices)):
            report[name] = metric[-1].item()
            continue
        last = np.asarray(metric.values[-1])
        report[f'{name}_mean'] = float(last.mean())
        if isinstance(metric, Choices):
            choices, counts = np.unique(last, return_counts=True)
            report[f'{name}_counts'] = {
                str(choice): int(count) for choice, count in zip(choices, counts, strict=True)
            }
    return report
