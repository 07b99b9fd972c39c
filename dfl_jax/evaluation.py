"""What an evaluation measures: accuracies and losses of the clients' models and their consensus."""

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
    """The global test set, on which models are evaluated."""

    x: Array  # [n, ...] float32
    y: Array  # [n] int32


class Batches(NamedTuple):
    """The samples of an evaluation, in chunks [chunks, samples, ...] that are evaluated at once."""

    shared: tuple[Array, Array, Array]  # x, y, mask of the samples that evaluate every model
    rest: tuple[Array, Array, Array] | None  # of those that evaluate the consensus model alone


class Evaluation(NamedTuple):
    """How to evaluate states: `summarise(measure(state, batches, validation))`, device, then
    host."""

    batches: Batches
    measure: Callable[[State, Batches, Clients | None], dict[str, Any]]  # traceable
    summarise: Callable[[dict[str, Any]], Metrics]  # of what `measure` found


def evaluator(
    algorithm: Algorithm,
    state: State,
    test: Holdout,
    client_samples: int | None = None,
    **options: Any,
) -> Callable[[State], Metrics]:
    """state -> consensus and client accuracies and losses; arguments as of `evaluation`."""
    batches, measure, summarise = evaluation(algorithm, state, test, client_samples, **options)
    measure = jax.jit(measure)
    return lambda state: summarise(jax.device_get(measure(state, batches, None)))


def evaluation(
    algorithm: Algorithm,
    state: State,
    test: Holdout,
    client_samples: int | None = None,
    *,
    own: bool = False,
    budget: float = 512 * 2**20,
) -> Evaluation:
    """How states such as `state` are evaluated, over chunks of the test set.

    client_samples: how many samples, from the start of the test set, evaluate the single clients.
    own: whether clients are evaluated on samples of their own, too (`validation` of
    `simulate.run`).
    budget: bytes that the clients' activations of one chunk may take, by which the chunk is chosen.
    """
    samples = len(test.y)
    if client_samples is not None and not 1 <= client_samples <= samples:
        raise ValueError(
            f'client_eval_samples has to lie in [1, {samples}] (the test set), got {client_samples}'
        )
    if own and algorithm.predict_own is None:
        raise ValueError('this algorithm offers no local accuracy; leave --validation_share at 0')
    shared = client_samples or samples
    size = _chunk(algorithm, state, test.x, budget)
    batches = Batches(
        _in_chunks(test.x[:shared], test.y[:shared], size),
        _in_chunks(test.x[shared:], test.y[shared:], size) if shared < samples else None,
    )

    def count(state, batches, only=None):
        """{name: (hits, losses)} of the predictions, summed over chunks; of one, or of all."""

        def chunk(_, batch):
            x, y, mask = batch
            logits = algorithm.predict(state, x)
            names = [only] if only else logits
            return None, {name: correct_and_loss(logits[name], y, mask) for name in names}

        _, sums = lax.scan(chunk, None, batches)
        return jax.tree.map(lambda a: a.sum(axis=0), sums)

    def evaluate_own(state, validation):
        """(hits, samples) of every client on its own samples, [M]."""

        def chunk(batch):
            x, y, mask = batch
            found = algorithm.predict_own(state, x).argmax(axis=-1) == y
            return jnp.sum(found & mask, axis=1), jnp.sum(mask, axis=1)

        return jax.tree.map(lambda a: a.sum(axis=0), lax.map(chunk, _folded(validation, size)))

    def measure(state: State, batches: Batches, validation: Clients | None) -> dict[str, Any]:
        sums = count(state, batches.shared)
        if batches.rest is not None:
            more = count(state, batches.rest, only='consensus')
            sums['consensus'] = jax.tree.map(jnp.add, sums['consensus'], more['consensus'])
        return {'sums': sums, 'own': evaluate_own(state, validation) if own else None}

    def summarise(found: dict[str, Any]) -> Metrics:
        sums = dict(found['sums'])
        hits, losses = sums.pop('consensus')
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
        if found['own'] is not None:
            right, of = (np.asarray(a) for a in found['own'])
            each = right[of > 0] / of[of > 0]  # a client without a sample does not count
            metrics |= {
                'local_accuracy_mean': float(each.mean()),
                'local_accuracy_std': float(each.std()),
            }
        return metrics

    return Evaluation(batches, measure, summarise)


def _folded(validation: Clients, size: int) -> tuple[Array, Array, Array]:
    """Arrays [M, N, ...] as [chunks, M, samples, ...], at most `size` samples of each client."""
    width = validation.y.shape[1]
    chunks = -(-width // size)
    each = -(-width // chunks)

    def fold(a):
        fill = [(0, 0), (0, chunks * each - width)] + [(0, 0)] * (a.ndim - 2)
        return jnp.pad(a, fill).reshape(len(a), chunks, each, *a.shape[2:]).swapaxes(0, 1)

    x, y, mask = (fold(a) for a in validation)
    return x, y, mask


def _chunk(algorithm: Algorithm, state: State, x: Array, budget: float) -> int:
    """Test samples evaluated at once, by the memory that XLA plans for a few and twice as many."""

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
