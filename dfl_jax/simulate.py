"""Runs an algorithm over a schedule of graphs: blocks of rounds in one scan, evaluation between.

The host decides shapes and the device does the rounds: every block is the same compiled program,
called with the next slice of the schedule and a donated state. Over devices that do not divide the
clients, zeros fill the last shares of data and state (`execution.filled`); neither the algorithm
nor the caller sees them.
"""

import contextlib
import copy
import functools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypedDict, Unpack

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh

from dfl_jax.base import Algorithm, Array, Clients, Graph, PyTree, State
from dfl_jax.checks import check_range
from dfl_jax.evaluation import (
    BUDGET,
    Batches,
    Holdout,
    Metrics,
    choose_samples,
    consensus_weights,
    evaluation,
)
from dfl_jax.exchange import one_round
from dfl_jax.execution import Runs, on_shares, placed, replicated
from dfl_jax.progress import DivergenceError, Progress, diagnostics, divergence, totals
from dfl_jax.run_checks import check_labels, check_shapes, check_theory, honest_among
from dfl_jax.setting_error import InputError
from dfl_jax.timing import ROUNDS, Clock, Rules, World, advance, counts_of, rules_of

CHOICE = 1  # the stream, of a run's key, of the test samples that evaluate the clients


class Options(TypedDict, total=False):
    """How a run is evaluated, and where it is computed.

    Args:
      eval_every: rounds between evaluations (default 1); the last round is always evaluated.
      client_eval_samples: how many test samples evaluate the single clients (default all). They are
        drawn by the run's key, the same share of every class (`evaluation.choose_samples`); or name
        them by their indices [n], [R, n] of R runs. The consensus model always sees the whole test
        set.
      validation: samples of each client that no client trains on, for its local accuracy, where the
        algorithm offers `predict_own`.
      membership: whether to report how well the samples that clients trained on are told from
        others by their losses (`dfl_jax.membership`). The others are `validation`, or else the
        test samples of the evaluation.
      on_compile: called once with the seconds that compilation took.
      on_round: called with the number of rounds done after each of them; without it the rounds
        between two evaluations run at once, which changes no result.
      mesh: the devices that share the clients (`execution.client_mesh`; default: one device).
      rules: who waits for what in the world.
      judged: [M] bool, the clients over whom means are taken and whose models make the consensus;
        all by default. What each client has is reported of all.
      attackers: [M] bool, the clients that lie, who are not among the judged: the mean of their
        models alone is reported as attackers_accuracy.
    """

    eval_every: int
    client_eval_samples: int | np.ndarray | None
    validation: Clients | None
    membership: bool
    on_compile: Callable[[float], None] | None
    on_round: Callable[[int], None] | None
    mesh: Mesh | None
    rules: Rules
    judged: np.ndarray | None
    attackers: np.ndarray | None


def run(
    algorithm: Algorithm,
    clients: Clients,
    graphs: Graph,
    test: Holdout,
    key: Array,
    *,
    resume: tuple[State, Progress] | None = None,
    world: World | None = None,
    **options: Unpack[Options],
) -> Iterator[tuple[Metrics, State, Progress]]:
    """Trains round by round and yields (metrics, state, progress) at every evaluation.

    The metrics are numbers by name, and under 'clients' what each client has: {name: [M]}.

    The state yielded is the live one: use or copy it before asking for the next evaluation, which
    donates its memory to the next block.

    Args:
      algorithm: what to run.
      clients: the network's private data.
      graphs: the schedule, arrays with leading axis T.
      test: the global hold-out set.
      key: one key; initialisation and each round's randomness derive from it.
      resume: state and progress of an earlier, identical run. The state is donated, too: copy it to
        resume from it a second time.
      world: in which the rounds take simulated seconds.
      options: any of `Options`.

    Raises DivergenceError when a client's training loss is not finite, ValueError for graphs on
    which the theory of the method does not hold, TypeError for an option that there is not.

    >>> from dfl_jax import data, models, topology
    >>> from dfl_jax.methods import make
    >>> x, y = jax.numpy.eye(4)[jax.numpy.arange(12) % 3], jax.numpy.arange(12) % 3
    >>> clients = data.pack(x, y, [range(0, 6), range(6, 12)])
    >>> ring = topology.schedule('complete', 2, 4, seed=0)
    >>> method = make('dpsgd', models.bind(models.MLP(3, (8,)), (4,)))
    >>> trained = run(method, clients, ring, Holdout(x, y), jax.random.key(0), eval_every=2)
    >>> [metrics['round'] for metrics, state, progress in trained]
    [2, 4]
    """
    known = Options.__annotations__
    if unknown := next((name for name in options if name not in known), None):
        raise TypeError(f'no option {unknown!r}; there are {", ".join(known)}')
    runs = Runs(lambda _: algorithm, None, clients, graphs, key, several=False)
    earlier = resume and (resume[0], [resume[1]])
    worlds = None if world is None else [world]
    trained = _train(runs, test, resume=earlier, worlds=worlds, **options)
    for (metrics,), state, (progress,) in trained:
        if isinstance(metrics, DivergenceError):
            raise metrics
        yield metrics, state, progress


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
    """R runs as one vmapped program: `run` with a leading axis R on all but the test set.

    Runs may differ in everything that is traced: their keys, data, graphs and `values`. The wall
    time of the program is shared evenly between them. A run that diverges does not end the others:
    from then on its error takes the place of its metrics.

    Args:
      algorithm_of: the method at one entry of `values`, called while it is traced.
      values: leaves [R], e.g. learning rates.
      clients: arrays [R, M, N, ...], all padded to the largest client.
      graphs: arrays [R, T, ...].
      test: the hold-out set of all.
      keys: [R].
      resume: state [R, ...] and progresses of an earlier, identical call.
      options: as in `run`; `validation` with a leading axis R, and `worlds`, one a run, in place of
        `world`.
    """
    runs = Runs(algorithm_of, values, clients, graphs, keys, several=True)
    yield from _train(runs, test, resume=resume, **options)


def _train(
    runs: Runs,
    test: Holdout,
    *,
    eval_every: int = 1,
    client_eval_samples: int | np.ndarray | None = None,
    validation: Clients | None = None,
    membership: bool = False,
    resume: tuple[State, list[Progress]] | None = None,
    on_compile: Callable[[float], None] | None = None,
    on_round: Callable[[int], None] | None = None,
    mesh: Mesh | None = None,
    worlds: Sequence[World] | None = None,
    rules: Rules = ROUNDS,
    judged: np.ndarray | None = None,
    attackers: np.ndarray | None = None,
) -> Iterator[tuple[list[Metrics | DivergenceError], State, list[Progress]]]:
    """`run` and `run_together`."""
    test = Holdout(*test)
    axis, count = int(runs.several), len(runs.keys) if runs.several else 1
    rounds = runs.graphs.active.shape[axis]
    check_range('eval_every', eval_every, least=1)
    check_shapes(runs.clients, runs.graphs, test, validation, axis)
    algorithm = runs.algorithm_of(runs.each(runs.values)[0])
    if algorithm.task.whole_targets and algorithm.task.one_output_each:
        check_labels(algorithm, runs.clients, test, validation, axis)
    for each, graphs in zip(runs.each(runs.clients), runs.each(runs.graphs), strict=True):
        check_theory(algorithm, each, graphs)
    judged = honest_among(judged, attackers, runs.clients.mask.shape[axis])
    of_each = runs.each(runs.clients)
    weigh = [functools.partial(consensus_weights, algorithm, c, judged=judged) for c in of_each]
    done = resume[1][0].round if resume else 0
    block = 1 if on_round else block_length(eval_every, rounds, done)
    # Not while it is suspended, when the mesh would be set for whoever asked for an evaluation
    on_devices = functools.partial(jax.set_mesh, mesh) if mesh else contextlib.nullcontext
    with on_devices():
        runs, whole = on_shares(runs, mesh.size if mesh else 1)
        place = functools.partial(placed, mesh=mesh, axis=axis)
        clients, validation = place(runs.clients), place(validation)
        two_keys = runs.vmap_runs(lambda key: tuple(jax.random.split(key)), (0,))
        k_init, k_rounds = jax.jit(two_keys, out_shardings=replicated())(runs.keys)
        if resume:
            state, progress = place(resume[0]), copy.deepcopy(resume[1])
        else:
            init = runs.vmap_runs(lambda value, *of: runs.algorithm_of(value).init(*of), (0, 0, 0))
            state = place(jax.jit(init)(runs.values, k_init, clients))
            progress = [Progress() for _ in range(count)]
        algorithm = runs.algorithm_of(runs.each(runs.values)[0])
        evaluate = _evaluate(
            *(runs, algorithm, state, test, client_eval_samples, validation, weigh),
            *(judged, attackers, clients if membership else None),
        )
        run_block, seconds = _compile_block(runs, state, clients, k_rounds, block, judged)
        if on_compile:
            on_compile(seconds)

    errors: dict[int, DivergenceError] = {}
    while progress[0].round < rounds:
        with on_devices():
            start = progress[0].round
            begin = time.perf_counter()
            state, info = jax.block_until_ready(
                run_block(state, *_section(runs, start, block), clients, k_rounds, runs.values)
            )
            seconds = (time.perf_counter() - begin) / count
            infos = runs.each(jax.device_get(info))
            for number, (each, info) in enumerate(zip(progress, infos, strict=True)):
                if error := divergence(info.loss, start, attackers is not None):
                    errors.setdefault(number, error)
                each.add(block, seconds, info)
                if worlds is not None:
                    graphs = runs.each(_section(runs, start, block)[1])[number]
                    size = info.loss.shape[-1]
                    waits = rules_of(algorithm, graphs, size, rules)
                    counts = counts_of(info)
                    # Older checkpoints, [M], know no uplinks
                    before = each.clock and np.broadcast_to(each.clock, (2, size))
                    clock = None if before is None else Clock(*before)
                    _, clock = advance(graphs, counts, worlds[number], waits, clock, start)
                    each.clock = [part.tolist() for part in clock]
            if on_round:
                on_round(progress[0].round)
            due = progress[0].round % eval_every == 0 or progress[0].round == rounds
            rows: list[Metrics | DivergenceError] = [errors[n] for n in sorted(errors)]
            if due and len(errors) < count:
                measured = evaluate(state, progress[0].round)
                evaluated = zip(progress, measured, infos, strict=True)
                rows = [
                    errors.get(number)
                    or {'round': each.round}
                    | metrics
                    | diagnostics(info, judged)
                    | totals(each)
                    | {'seconds': each.seconds}
                    for number, (each, metrics, info) in enumerate(evaluated)
                ]
            reached = whole(state) if due or len(errors) == count else None
        if reached is not None:
            yield rows, reached, copy.deepcopy(progress)
        if len(errors) == count:
            return


def _evaluate(
    runs, algorithm, state, test, client_samples, validation, weigh, judged, attackers, trained
) -> Callable[[State, int], list[Metrics]]:
    """(state, round) -> the metrics of each run. trained: the clients whose samples are told from
    others; None: nobody's."""
    for given, setting in ((validation, 'validation_share'), (trained, 'membership')):
        if given is not None and algorithm.predict_own is None:
            raise InputError(f'clients have no models of their own here; leave out `{setting}`')
    if isinstance(client_samples, (int, np.integer)):
        keys = runs.each(np.asarray(jax.random.key_data(runs.keys)))
        seeds = ([*key.tolist(), CHOICE] for key in keys)
        chosen = [choose_samples(test.y, int(client_samples), seed) for seed in seeds]
        client_samples = chosen[0] if chosen[0] is None or not runs.several else np.stack(chosen)
    of_each = np.ndim(client_samples) > 1
    if of_each and (not runs.several or len(client_samples) != len(runs.keys)):
        raise ValueError(
            f'client_eval_samples are of {len(client_samples)} runs, and there are '
            f'{len(runs.keys) if runs.several else 1}'
        )
    if of_each and (np.asarray(client_samples) == client_samples[0]).all():
        client_samples, of_each = client_samples[0], False  # one copy serves all runs
    if runs.several:
        state = jax.eval_shape(lambda s: jax.tree.map(lambda a: a[0], s), state)
    batches, measure, summarise = evaluation(
        *(algorithm, state, test, client_samples),
        judged=judged,
        attackers=attackers,
        budget=BUDGET / (len(runs.keys) if runs.several else 1),
    )

    def measure_run(state, validation, weights, trained, number, *of_batches):
        members = trained and trained.arrived_in(number)
        return measure(state, Batches(*of_batches), validation, weights, members)

    of_batches = (0 if of_each else None, None, None)
    of_runs = runs.vmap_runs(measure_run, (0, 0, 0, 0, None, *of_batches))
    of_runs = jax.jit(of_runs, out_shardings=replicated())

    def evaluate(state: State, round: int) -> list[Metrics]:
        each = [of_run(round) for of_run in weigh]
        weights = each[0] if each[0] is None or not runs.several else np.stack(each)
        number = None if trained is None else np.int32(round - 1)  # of the last round
        measured = jax.device_get(of_runs(state, validation, weights, trained, number, *batches))
        return [summarise(each) for each in runs.each(measured)]

    return evaluate


def block_length(eval_every: int, rounds: int, done: int = 0) -> int:
    """Rounds of a block, so that blocks of one length, and one program, serve every evaluation."""
    block = math.gcd(min(eval_every, rounds), rounds, done)
    # XLA's CPU backend compiles scans of two rounds of some methods (dsgt, qg_dsgdm, dfed_admm) to
    # programs that end the process (segmentation fault, JAX 0.10.2, 2026-11-25)
    return 1 if block == 2 and jax.default_backend() == 'cpu' else block


def _section(runs: Runs, start: int, block: int) -> tuple[np.ndarray, Graph]:
    """The numbers of the block's rounds, and their graphs."""
    rounds = slice(start, start + block)
    at = (slice(None), rounds) if runs.several else rounds
    return np.arange(start, start + block, dtype=np.int32), jax.tree.map(
        lambda a: np.asarray(a[at]), runs.graphs
    )


def _compile_block(runs, state, clients, keys, block, judged):
    """The donated, jitted scan over `block` rounds, and the seconds its compilation took."""

    def rounds(state, numbers, graphs, clients, key, value):
        algorithm = runs.algorithm_of(value)

        def one(state, inputs):
            number, graph = inputs
            k_round = jax.random.fold_in(key, number)
            return one_round(algorithm, k_round, state, number, graph, clients, judged)

        return lax.scan(one, state, (numbers, graphs))

    every_run = runs.vmap_runs(rounds, (0, None, 0, 0, 0, 0))
    begin = time.perf_counter()
    arguments = (state, *_section(runs, 0, block), clients, keys, runs.values)
    shardings = jax.tree.map(lambda a: a.sharding, state)
    program = jax.jit(every_run, donate_argnums=0, out_shardings=(shardings, replicated()))
    return program.lower(*arguments).compile(), time.perf_counter() - begin
