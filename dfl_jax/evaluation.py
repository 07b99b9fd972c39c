"""What an evaluation measures: accuracies and losses of the clients' models and their consensus."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dfl_jax.base import Algorithm, Array, Clients, State
from dfl_jax.execution import even_size, folded

Metrics = dict[str, Any]
BUDGET = 512 * 2**20  # bytes
CLIENTS = 'clients'  # of the metrics: {the task's metric: [M], 'loss': [M]}, lists of floats
QUANTILES = np.linspace(0, 1, 21)  # of the clients' accuracies: the worst, every 5 %, the best


class Holdout(NamedTuple):
    """The global test set, on which models are evaluated."""

    x: Array  # [n, ...] float32
    y: Array  # [n] int32, or [n, ...] of another task than classification


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
    budget: float = BUDGET,
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

    task = algorithm.task

    def summed(outputs, y, mask, models):
        of_model = partial(task.summed, y=y, mask=mask)
        for _ in range(models):  # axes of models, before those of one model's outputs
            of_model = jax.vmap(of_model)
        return of_model(outputs)

    def count(state, batches, only=None):
        """{name: (scores, losses)} summed over batches, of the prediction `only` or of all."""

        def evaluate(_, batch):
            x, y, mask = batch
            logits = algorithm.predict(state, x)
            chosen, axes = [only] if only else logits, logits['consensus'].ndim
            return None, {n: summed(logits[n], y, mask, logits[n].ndim - axes) for n in chosen}

        _, sums = lax.scan(evaluate, None, batches)
        return jax.tree.map(lambda a: a.sum(axis=0), sums)

    def count_local(state, validation):
        """(scores, samples) of every client on its own validation samples, [M]."""

        def evaluate(batch):
            x, y, mask = batch
            scores = jax.vmap(task.scores)(algorithm.predict_own(state, x), y)
            return jnp.sum(jnp.where(mask, scores, 0), axis=1), jnp.sum(mask, axis=1)

        batches = folded(tuple(validation), even_size(validation.y.shape[1], size), axis=1)
        return jax.tree.map(lambda a: a.sum(axis=0), lax.map(evaluate, batches))

    def measure(state: State, batches: Batches, validation: Clients | None) -> dict[str, Any]:
        sums = count(state, batches.shared)
        if batches.rest is not None:
            more = count(state, batches.rest, only='consensus')
            sums['consensus'] = jax.tree.map(jnp.add, sums['consensus'], more['consensus'])
        return {'sums': sums, 'local': count_local(state, validation) if local else None}

    def summarise(measured: dict[str, Any]) -> Metrics:
        sums, of_mean = dict(measured['sums']), task.reported
        scores, losses = sums.pop('consensus')
        client_scores, client_losses = sums.pop('client')
        each = of_mean(np.asarray(client_scores) / shared)
        each_loss = np.asarray(client_losses) / shared
        worst, low = ('max', 90) if task.lower_is_better else ('min', 10)
        metrics = {
            f'consensus_{task.metric}': float(of_mean(float(scores) / samples)),
            'consensus_loss': float(losses) / samples,
            f'client_{task.metric}_mean': float(each.mean()),
            f'client_{task.metric}_std': float(each.std()),
            f'client_{task.metric}_{worst}': float(getattr(each, worst)()),
            f'client_{task.metric}_p{low}': float(np.percentile(each, low)),
            f'client_{task.metric}_quantiles': _digits(np.quantile(each, QUANTILES)),
            'client_loss_mean': float(np.asarray(client_losses).mean()) / shared,
            CLIENTS: {task.metric: _digits(each), 'loss': _digits(each_loss)},
        }
        for name, (more, _) in sums.items():
            kind, *rest = name.split('/', 1)
            value = float(of_mean(float(np.mean(more)) / shared))
            metrics['/'.join([f'{kind}_{task.metric}', *rest])] = value
        if measured['local'] is not None:
            right, counts = (np.asarray(a) for a in measured['local'])
            # A client without samples is left out
            each = of_mean(right[counts > 0] / counts[counts > 0])
            metrics |= {
                f'local_{task.metric}_mean': float(each.mean()),
                f'local_{task.metric}_std': float(each.std()),
            }
        return metrics

    return Evaluation(batches, measure, summarise)


def _digits(values: np.ndarray) -> list[float]:
    """The values with six significant digits, which is what float32 holds, short as text."""
    return [float(f'{value:.6g}') for value in values.tolist()]


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
