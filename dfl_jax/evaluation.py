"""What an evaluation measures: accuracies and losses of the clients' models and their consensus."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dfl_jax.base import Algorithm, Array, Clients, State
from dfl_jax.execution import even_size, folded
from dfl_jax.metrics import correct_and_loss

Metrics = dict[str, Any]
QUANTILES = np.linspace(0, 1, 21)  # of the clients' accuracies: the worst, every 5 %, the best


class Holdout(NamedTuple):
    """The global test set, on which models are evaluated."""

    x: Array  # [n, ...] float32
    y: Array  # [n] int32


class Batches(NamedTuple):
    """Evaluation batches: x, y and mask [batches, samples, ...] of the test set."""

    shared: tuple[Array, Array, Array]  # samples on which every model is evaluated
    rest: tuple[Array, Array, Array] | None  # samples of the consensus model alone


class Evaluation(NamedTuple):
    """How to evaluate states: `measure` on the device, then `summarise` on the host."""

    batches: Batches
    measure: Callable[[State, Batches, Clients | None], dict[str, Any]]  # traceable
    summarise: Callable[[dict[str, Any]], Metrics]  # what `measure` returns -> metrics


def evaluation(
    algorithm: Algorithm,
    state: State,
    test: Holdout,
    client_samples: int | None = None,
    *,
    local: bool = False,
    budget: float = 512 * 2**20,
) -> Evaluation:
    """How states such as `state` are evaluated, batch by batch.

    Args:
      client_samples: how many samples, from the start of the test set, evaluate the single clients.
      local: whether clients are evaluated on their own validation samples, too.
      budget: bytes that the clients' activations of one batch may take, which sets its size.
    """
    samples = len(test.y)
    if client_samples is not None and not 1 <= client_samples <= samples:
        raise ValueError(
            f'client_eval_samples has to lie in [1, {samples}] (the test set), got {client_samples}'
        )
    if local and algorithm.predict_own is None:
        raise ValueError('this algorithm offers no local accuracy; leave --validation_share at 0')
    shared = client_samples or samples
    size = _chunk(algorithm, state, test.x, budget)
    batches = Batches(
        _batches_of(test.x[:shared], test.y[:shared], size),
        _batches_of(test.x[shared:], test.y[shared:], size) if shared < samples else None,
    )

    def count(state, batches, only=None):
        """{name: (hits, losses)} summed over batches, of the prediction `only` or of all."""

        def evaluate(_, batch):
            x, y, mask = batch
            logits = algorithm.predict(state, x)
            names = [only] if only else logits
            return None, {name: correct_and_loss(logits[name], y, mask) for name in names}

        _, sums = lax.scan(evaluate, None, batches)
        return jax.tree.map(lambda a: a.sum(axis=0), sums)

    def count_local(state, validation):
        """(hits, samples) of every client on its own validation samples, [M]."""

        def evaluate(batch):
            x, y, mask = batch
            hits = algorithm.predict_own(state, x).argmax(axis=-1) == y
            return jnp.sum(hits & mask, axis=1), jnp.sum(mask, axis=1)

        batches = folded(tuple(validation), even_size(validation.y.shape[1], size), axis=1)
        return jax.tree.map(lambda a: a.sum(axis=0), lax.map(evaluate, batches))

    def measure(state: State, batches: Batches, validation: Clients | None) -> dict[str, Any]:
        sums = count(state, batches.shared)
        if batches.rest is not None:
            more = count(state, batches.rest, only='consensus')
            sums['consensus'] = jax.tree.map(jnp.add, sums['consensus'], more['consensus'])
        return {'sums': sums, 'local': count_local(state, validation) if local else None}

    def summarise(measured: dict[str, Any]) -> Metrics:
        sums = dict(measured['sums'])
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
        if measured['local'] is not None:
            right, counts = (np.asarray(a) for a in measured['local'])
            each = right[counts > 0] / counts[counts > 0]  # a client without samples is left out
            metrics |= {
                'local_accuracy_mean': float(each.mean()),
                'local_accuracy_std': float(each.std()),
            }
        return metrics

    return Evaluation(batches, measure, summarise)


def _chunk(algorithm: Algorithm, state: State, x: Array, budget: float) -> int:
    """The largest batch whose memory, as XLA plans it for small ones, stays within the budget."""

    def planned(samples):
        probe = jax.ShapeDtypeStruct((samples, *x.shape[1:]), jnp.float32)
        memory = jax.jit(algorithm.predict).lower(state, probe).compile().memory_analysis()
        return memory.temp_size_in_bytes + memory.output_size_in_bytes

    few = 16
    per_sample = max(1, (planned(2 * few) - planned(few)) // few)
    return int(np.clip(budget // per_sample, 1, len(x)))


def _batches_of(x: Array, y: Array, size: int) -> tuple[Array, Array, Array]:
    samples = (np.asarray(x), np.asarray(y), np.ones(len(y), bool))
    batches = folded(samples, even_size(len(y), size))
    return jax.tree.map(jnp.asarray, batches)
