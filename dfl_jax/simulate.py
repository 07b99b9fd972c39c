"""Runs an algorithm over a schedule of graphs: blocks of rounds in one scan, evaluation between.

The host decides shapes and the device does the rounds: every block is the same compiled program,
called with the next slice of the schedule and a donated state.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dfl_jax.base import Algorithm, Array, Clients, Graph, State
from dfl_jax.evaluation import Holdout, Metrics, evaluator


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
    eval_every: int = 1,
    client_eval_samples: int | None = None,
    validation: Clients | None = None,
    resume: tuple[State, Progress] | None = None,
    on_compile: Callable[[float], None] | None = None,
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
      eval_every: rounds between evaluations; the last round is always evaluated.
      client_eval_samples: how many test samples judge the single clients (default all); the
        consensus model always sees the whole test set.
      validation: samples of the clients' own that nobody trains on, for their local accuracy; the
        algorithm has to offer `predict_own`.
      resume: state and progress of an earlier, identical run.
      on_compile: called once with the seconds that compilation took.

    Raises DivergenceError when a client's training loss is not finite.
    """
    rounds = len(graphs.active)
    if eval_every < 1:
        raise ValueError(f'eval_every has to be at least 1, got {eval_every}')
    # Blocks of one length serve every evaluation, and so does one compiled program.
    block = math.gcd(min(eval_every, rounds), rounds, resume[1].round if resume else 0)
    k_init, k_rounds = jax.random.split(key)

    clients = jax.device_put(clients)
    state, progress = resume or (jax.jit(algorithm.init)(k_init, clients), Progress())
    progress = copy.deepcopy(progress)
    evaluate = evaluator(algorithm, state, test, client_eval_samples, validation)

    run_block, seconds = _compile_block(algorithm, state, graphs, clients, k_rounds, block)
    if on_compile:
        on_compile(seconds)

    while progress.round < rounds:
        start = progress.round
        numbers = np.arange(start, start + block, dtype=np.int32)
        section = jax.tree.map(lambda a, s=start: jnp.asarray(a[s : s + block]), graphs)
        begin = time.perf_counter()
        state, info = jax.block_until_ready(run_block(state, numbers, section, clients, k_rounds))
        seconds = time.perf_counter() - begin
        info = jax.device_get(info)
        _check_finite(info['loss'], start)
        progress.seconds += seconds
        progress.round += block
        _count_traffic(progress, info)
        if progress.round % eval_every == 0 or progress.round == rounds:
            metrics = {'round': progress.round, **evaluate(state), **_report(info)}
            metrics |= traffic(progress, algorithm)
            metrics['seconds'] = progress.seconds
            yield metrics, state, copy.deepcopy(progress)


def _compile_block(algorithm, state, graphs, clients, key, block):
    """The donated, jitted scan over `block` rounds, and the seconds its compilation took."""

    def rounds(state, numbers, graphs, clients, key):
        def one(state, inputs):
            number, graph = inputs
            return algorithm.step(jax.random.fold_in(key, number), state, graph, clients)

        return lax.scan(one, state, (numbers, graphs))

    begin = time.perf_counter()
    section = jax.tree.map(lambda a: jnp.asarray(a[:block]), graphs)
    numbers = jnp.arange(block, dtype=jnp.int32)
    compiled = (
        jax.jit(rounds, donate_argnums=0).lower(state, numbers, section, clients, key).compile()
    )
    return compiled, time.perf_counter() - begin


def _check_finite(losses: np.ndarray, first: int) -> None:
    """losses: [block, M], of the rounds after round number `first`."""
    bad = ~np.isfinite(losses)
    if bad.any():
        row = int(np.argmax(bad.any(axis=1)))
        raise DivergenceError(first + row + 1, np.flatnonzero(bad[row]))


def _count_traffic(progress: Progress, info: dict[str, np.ndarray]) -> None:
    for name, counts in info.items():
        if name.startswith('sent/'):
            unit = name.removeprefix('sent/')
            block = counts.astype(np.int64).sum(axis=0)
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


def _report(info: dict[str, np.ndarray]) -> Metrics:
    """The last round's diagnostics: scalars, means of arrays, counts of integer choices."""
    report: Metrics = {}
    for name, values in info.items():
        last = values[-1]
        if name.startswith('sent/'):
            continue
        if last.ndim == 0:
            report[name] = last.item()
        elif np.issubdtype(last.dtype, np.integer):
            found, counts = np.unique(last, return_counts=True)
            report[f'{name}_mean'] = float(last.mean())
            report[f'{name}_counts'] = {str(v): int(c) for v, c in zip(found, counts, strict=True)}
        else:
            report[f'train_{name}_mean' if name == 'loss' else f'{name}_mean'] = float(last.mean())
    return report
