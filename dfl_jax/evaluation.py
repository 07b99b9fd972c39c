"""What an evaluation measures: accuracies and losses of the clients' models and their consensus."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dfl_jax.base import Algorithm, Array, Clients, State
from dfl_jax.metrics import correct_and_loss

Metrics = dict[str, Any]
QUANTILES = np.linspace(0, 1, 21)  # of the clients' accuracies: the worst, every 5 %, the best


class Holdout(NamedTuple):
    """The global test set, on which models are judged."""

    x: Array  # [n, ...] float32
    y: Array  # [n] int32


def evaluator(
    algorithm: Algorithm,
    state: State,
    test: Holdout,
    client_samples: int | None = None,
    validation: Clients | None = None,
    budget: int = 512 * 2**20,
) -> Callable[[State], Metrics]:
    """state -> consensus and client accuracies and losses, over chunks of the test set.

    client_samples: how many samples, from the start of the test set, judge the single clients.
    validation: see `run`.
    budget: bytes that the clients' activations of one chunk may take, by which the chunk is chosen.
    """
    samples = len(test.y)
    if client_samples is not None and not 1 <= client_samples <= samples:
        raise ValueError(
            f'client_eval_samples has to lie in [1, {samples}] (the test set), got {client_samples}'
        )
    shared = client_samples or samples
    size = _chunk(algorithm, state, test.x, budget)

    def judge(state, x, y, mask, only=None):
        """Sums over chunks: {name: (hits, losses)} of the predictions, all or one."""

        def chunk(_, batch):
            x, y, mask = batch
            logits = algorithm.predict(state, x)
            names = [only] if only else logits
            return None, {name: correct_and_loss(logits[name], y, mask) for name in names}

        _, sums = lax.scan(chunk, None, (x, y, mask))
        return jax.tree.map(lambda a: a.sum(axis=0), sums)

    all_of_them = jax.jit(judge)
    only_consensus = jax.jit(functools.partial(judge, only='consensus'))
    local = None if validation is None else _local_accuracy(algorithm, validation, size)
    head = _in_chunks(test.x[:shared], test.y[:shared], size)
    tail = _in_chunks(test.x[shared:], test.y[shared:], size) if shared < samples else None

    def evaluate(state: State) -> Metrics:
        sums = all_of_them(state, *head)
        hits, losses = sums.pop('consensus')
        if tail is not None:
            more = only_consensus(state, *tail)['consensus']
            hits, losses = hits + more[0], losses + more[1]
        client_hits, client_losses = sums.pop('client')
        accuracies = np.asarray(client_hits) / shared
        metrics = {
            'consensus_accuracy': float(hits) / samples,
            'consensus_loss': float(losses) / samples,
            'client_accuracy_mean': float(accuracies.mean()),
            'client_accuracy_std': float(accuracies.std()),
            'client_accuracy_min': float(accuracies.min()),
            'client_accuracy_p10': float(np.percentile(accuracies, 10)),
            'client_accuracy_quantiles': np.quantile(accuracies, QUANTILES).round(5).tolist(),
            'client_loss_mean': float(np.asarray(client_losses).mean()) / shared,
        }
        for name, (more, _) in sums.items():
            kind, *rest = name.split('/', 1)
            metrics['/'.join([f'{kind}_accuracy', *rest])] = float(np.mean(more)) / shared
        return metrics | (local(state) if local else {})

    return evaluate


def _local_accuracy(
    algorithm: Algorithm, validation: Clients, size: int
) -> Callable[[State], Metrics]:
    """state -> the accuracy of every client on samples of its own, mean and spread over clients.

    validation: arrays [M, N, ...]; clients without a sample do not count. size: samples of every
    client judged at once.
    """
    if algorithm.predict_own is None:
        raise ValueError('this algorithm offers no local accuracy; leave --validation_share at 0')
    predict_own = algorithm.predict_own
    x, y, mask = (jnp.asarray(a) for a in validation)
    width = y.shape[1]
    chunks = -(-width // size)
    each = -(-width // chunks)

    def fold(a):
        fill = [(0, 0), (0, chunks * each - width)] + [(0, 0)] * (a.ndim - 2)
        return jnp.pad(a, fill).reshape(len(a), chunks, each, *a.shape[2:]).swapaxes(0, 1)

    @jax.jit
    def hits_of(state):
        def chunk(batch):
            x, y, mask = batch
            return jnp.sum((predict_own(state, x).argmax(axis=-1) == y) & mask, axis=1)

        return lax.map(chunk, (fold(x), fold(y), fold(mask))).sum(axis=0)

    counts = np.asarray(mask.sum(axis=1))

    def accuracy(state: State) -> Metrics:
        judged = counts > 0
        each = np.asarray(hits_of(state))[judged] / counts[judged]
        return {'local_accuracy_mean': float(each.mean()), 'local_accuracy_std': float(each.std())}

    return accuracy


def _chunk(algorithm: Algorithm, state: State, x: Array, budget: int) -> int:
    """Test samples judged at once, by the memory that XLA plans for a few and twice as many."""

    def planned(samples):
        probe = jax.ShapeDtypeStruct((samples, *x.shape[1:]), jnp.float32)
        memory = jax.jit(algorithm.predict).lower(state, probe).compile().memory_analysis()
        return memory.temp_size_in_bytes + memory.output_size_in_bytes

    few = 16
    per_sample = max(1, (planned(2 * few) - planned(few)) // few)
    return int(np.clip(budget // per_sample, 1, len(x)))


def _in_chunks(x: Array, y: Array, size: int) -> tuple[Array, Array, Array]:
    chunks = -(-len(y) // size)
    size = -(-len(y) // chunks)
    fill = chunks * size - len(y)

    def split(a):
        padded = np.pad(np.asarray(a), [(0, fill)] + [(0, 0)] * (a.ndim - 1))
        return jnp.asarray(padded.reshape(chunks, size, *a.shape[1:]))

    return split(x), split(y), split(np.ones(len(y), bool))
