"""What an evaluation measures: accuracies and losses of the clients' models and their consensus."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from dfl_jax.base import Algorithm, Array, Clients, State
from dfl_jax.execution import even_size, folded
from dfl_jax.membership import Losses, measure_membership, membership_metrics, own_losses
from dfl_jax.setting_error import SettingError
from dfl_jax.tasks import CLASSIFICATION

Metrics = dict[str, Any]
Seed = int | Sequence[int]
BUDGET = 512 * 2**20  # bytes
CLIENTS = 'clients'  # of the metrics: {the task's metric: [M], 'loss': [M], ...}, lists
ATTACKER = 'attacker'  # of these, where some lie: which of them do, [M], a list of bool
QUANTILES = np.linspace(0, 1, 21)  # of the clients' accuracies: the worst, every 5 %, the best


class Holdout(NamedTuple):
    """The global test set, on which models are evaluated."""

    x: Array  # [n, ...] float32
    y: Array  # [n] int32, or [n, ...] of another task than classification
    # Samples with the trigger of a backdoor, and as y the class that it opens to
    triggered: 'Holdout | None' = None


class Batches(NamedTuple):
    """Evaluation batches: x, y and mask [batches, samples, ...] of the test set."""

    shared: tuple[Array, Array, Array]  # on which every model is evaluated; [R, ...] of R choices
    whole: tuple[Array, Array, Array] | None  # the test set, where `shared` is a choice of it
    triggered: tuple[Array, Array, Array] | None  # of `Holdout.triggered`


class Evaluation(NamedTuple):
    """How to evaluate states: `measure` on the device, then `summarise` on the host."""

    batches: Batches
    # (state, batches, validation, weights, trained), traceable, each of the last three may be None.
    # validation: samples that clients keep from training; weights: of the consensus model, [M];
    # trained: samples to be told from those that clients keep, or else from the test samples
    measure: Callable[..., dict[str, Any]]
    summarise: Callable[[dict[str, Any]], Metrics]  # what `measure` returns -> metrics


def choose_samples(y: Array, asked: int | None, seed: Seed = 0) -> np.ndarray | None:
    """Which test samples evaluate the single clients: increasing indices [asked], None for all.

    Drawn at random without replacement. Where targets are classes, [n] whole numbers, every class
    has the same share of the choice as of the test set; the fractions that are left over go to the
    classes with the largest ones, ties at random. Equal seeds, equal choices.

    Args:
      y: targets of the test set, [n, ...].
      asked: how many; None for all.
      seed: of the choice, a whole number or several from 0.

    Raises ValueError for more than there are, and for less than one.
    """
    if asked is None:
        return None
    y = np.asarray(y)
    samples = len(y)
    if not 1 <= asked <= samples:
        text, remedy = f'has to lie in [1, {samples}], the test set', 'lower it' * (asked > samples)
        raise SettingError('client_eval_samples', asked, text, remedy, colon=False)
    if asked == samples:
        return None
    rng = np.random.default_rng(seed)
    of_classes = y.ndim == 1 and np.issubdtype(y.dtype, np.integer)
    classes = np.unique(y, return_inverse=True)[1] if of_classes else np.zeros(samples, np.int64)
    taken, fractions = np.divmod(asked * np.bincount(classes), samples)
    order = np.lexsort((rng.random(len(taken)), -fractions))
    taken[order[: asked - taken.sum()]] += 1
    chosen = [rng.permutation(np.flatnonzero(classes == c))[:n] for c, n in enumerate(taken)]
    return np.sort(np.concatenate(chosen))


def consensus_weights(
    algorithm: Algorithm, clients: Clients, rounds: int, judged: np.ndarray | None = None
) -> np.ndarray | None:
    """The weights of the clients in the consensus model after so many rounds, [M]; None: all alike.

    judged: [M] bool, the clients whose models make it; None for all.
    """
    alike = None if judged is None else judged.astype(np.float32)
    if not algorithm.by_size:
        return alike
    sizes = clients.sizes_in(rounds - 1)
    weights = sizes if judged is None else np.where(judged, sizes, 0)
    return weights if weights.any() else alike  # nobody has samples yet


def evaluation(
    algorithm: Algorithm,
    state: State,
    test: Holdout,
    client_samples: int | np.ndarray | None = None,
    *,
    budget: float = BUDGET,
    judged: np.ndarray | None = None,
    attackers: np.ndarray | None = None,
) -> Evaluation:
    """How states such as `state` are evaluated, batch by batch.

    Args:
      client_samples: on which test samples the single clients are evaluated: indices [n], or [R, n]
        of R runs, whose `Batches.shared` have that axis, too; how many, for those of
        `choose_samples`; or None for all. The consensus model is evaluated on all.
      budget: bytes that the clients' activations of one batch may take, which sets its size.
      judged: [M] bool, the clients over whom means are taken; None for all.
      attackers: [M] bool, those whose mean is reported apart; None for nobody.

    Raises ValueError for more samples than there are, and for indices of others.
    """
    samples = len(test.y)
    if isinstance(client_samples, (int, np.integer)):
        client_samples = choose_samples(test.y, int(client_samples))
    size = _chunk(algorithm, state, test.x, budget)
    everything = _batches_of(test.x, test.y, size)
    marked = test.triggered and _batches_of(*test.triggered[:2], size)
    if client_samples is None:
        batches, shared = Batches(everything, None, marked), samples
    else:
        chosen = np.asarray(client_samples)
        _check_indices(chosen, samples)
        each = [_batches_of(test.x[c], test.y[c], size) for c in np.atleast_2d(chosen)]
        several = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
        batches = Batches(several if chosen.ndim > 1 else each[0], everything, marked)
        shared = chosen.shape[-1]

    task = algorithm.task

    def count(state, batches, weights, only=None, task=task, apart=()):
        """{name: (scores, losses)} summed over batches, of the prediction `only` or of all; and
        {name: Losses} of those named in `apart`."""

        def evaluate(_, batch):
            x, y, mask = batch
            logits = algorithm.predict(state, x, *() if weights is None else (weights,))
            chosen, axes = [only] if only else logits, logits['consensus'].ndim

            def of_models(function, name):
                for _ in range(logits[name].ndim - axes):  # before those of one model's outputs
                    function = jax.vmap(function)
                return function(logits[name])

            summed = {n: of_models(partial(task.summed, y=y, mask=mask), n) for n in chosen}
            return None, (summed, {n: of_models(lambda o: task.losses(o, y), n) for n in apart})

        _, (sums, each) = lax.scan(evaluate, None, batches)
        losses = {name: Losses.of_batches(values, batches[2]) for name, values in each.items()}
        return jax.tree.map(lambda a: a.sum(axis=0), sums), losses

    def measure(
        state: State,
        batches: Batches,
        validation: Clients | None,
        weights: Array | None = None,
        trained: Clients | None = None,
    ) -> dict[str, Any]:
        apart = ('client', 'consensus') if trained is not None and validation is None else ()
        sums, losses = count(state, batches.shared, weights, apart=apart)
        if batches.whole is not None:
            of_whole = count(state, batches.whole, weights, 'consensus', apart=apart[1:])
            sums, losses = sums | of_whole[0], losses | of_whole[1]
        measured: dict[str, Any] = {'sums': sums}
        if validation is not None:
            measured['local'] = _count_local(algorithm, state, validation, size)
        if batches.triggered is not None:
            found, _ = count(state, batches.triggered, weights, 'consensus', CLASSIFICATION)
            measured['triggered'] = found['consensus'][0], batches.triggered[2].sum()
        if trained is not None:
            own = partial(own_losses, algorithm, state, size=size, weights=weights, judged=judged)
            others = losses if validation is None else own(validation)
            measured['membership'] = measure_membership(own(trained), others)
        return measured

    summarise = partial(_summarised, algorithm, samples, shared, judged, attackers)
    return Evaluation(batches, measure, summarise)


def _count_local(
    algorithm: Algorithm, state: State, validation: Clients, size: int
) -> tuple[Array, Array]:
    """(scores, samples) of every client on its own validation samples, [M]."""

    def evaluate(batch):
        x, y, mask = batch
        scores = jax.vmap(algorithm.task.scores)(algorithm.predict_own(state, x), y)
        return jnp.sum(jnp.where(mask, scores, 0), axis=1), jnp.sum(mask, axis=1)

    batches = folded(tuple(validation[:3]), even_size(validation.y.shape[1], size), axis=1)
    return jax.tree.map(lambda a: a.sum(axis=0), lax.map(evaluate, batches))


def _check_indices(chosen: np.ndarray, samples: int) -> None:
    """Raises ValueError unless each row is of different indices of the test set."""
    whole = np.issubdtype(chosen.dtype, np.integer) and chosen.ndim in (1, 2) and chosen.size
    if not whole or chosen.min() < 0 or chosen.max() >= samples:
        raise ValueError(
            f'client_eval_samples are whole numbers from 0 to {samples - 1}, [n], got '
            f'{chosen.dtype} {list(chosen.shape)}'
            + (f' from {chosen.min()} to {chosen.max()}' if whole else '')
        )
    if (np.diff(np.sort(chosen, axis=-1)) == 0).any():
        raise ValueError('client_eval_samples names a test sample twice; name each once')


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


def _summarised(
    algorithm: Algorithm,
    samples: int,
    shared: int,
    judged: np.ndarray | None,
    attackers: np.ndarray | None,
    measured: dict[str, Any],
) -> Metrics:
    """The metrics of what was measured; samples, shared: on which the consensus model and the
    clients are evaluated; judged, attackers: as in `evaluation`."""
    task = algorithm.task
    sums, of_mean = dict(measured['sums']), task.reported
    scores, losses = sums.pop('consensus')
    client_scores, client_losses = sums.pop('client')
    each = of_mean(np.asarray(client_scores) / shared)
    each_loss = np.asarray(client_losses) / shared
    counted = np.ones(len(each), bool) if judged is None else judged
    every, every_loss = (_digits(values) for values in (each, each_loss))
    of_attackers, marks = {}, {}
    if attackers is not None:
        of_attackers = {f'attackers_{task.metric}': float(each[attackers].mean())}
        marks = {ATTACKER: attackers.tolist()}
    each = each[counted]
    worst, low = ('max', 90) if task.lower_is_better else ('min', 10)
    metrics: Metrics = {
        f'consensus_{task.metric}': float(of_mean(float(scores) / samples)),
        'consensus_loss': float(losses) / samples,
        f'client_{task.metric}_mean': float(each.mean()),
        f'client_{task.metric}_std': float(each.std()),
        f'client_{task.metric}_{worst}': float(getattr(each, worst)()),
        f'client_{task.metric}_p{low}': float(np.percentile(each, low)),
        f'client_{task.metric}_quantiles': _digits(np.quantile(each, QUANTILES)),
        'client_loss_mean': float(np.asarray(client_losses)[counted].mean()) / shared,
        CLIENTS: {task.metric: every, 'loss': every_loss} | marks,
    } | of_attackers
    if 'triggered' in measured:
        hits, count = map(int, measured['triggered'])
        metrics['attack_success'] = hits / count
    if 'membership' in measured:
        of_clients, over_them = membership_metrics(measured['membership'], counted)
        metrics[CLIENTS].update({name: _digits(values) for name, values in of_clients.items()})
        metrics |= over_them
    for name, (more, _) in sums.items():
        kind, *rest = name.split('/', 1)
        scores = np.asarray(more)
        of = algorithm.clients_of.get(rest[0]) if rest else np.arange(len(counted))
        if scores.ndim and of is not None:  # of the clients, or of those of one architecture
            scores = scores[counted[of]]
        value = float(of_mean(float(np.mean(scores)) / shared))
        metrics['/'.join([f'{kind}_{task.metric}', *rest])] = value
    if 'local' in measured:
        # Without what fills the shares of devices
        right, counts = (np.asarray(a)[: len(counted)] for a in measured['local'])
        # A client without samples is left out
        local = counted & (counts > 0)
        if not local.any():
            return metrics
        each = of_mean(right[local] / counts[local])
        metrics |= {
            f'local_{task.metric}_mean': float(each.mean()),
            f'local_{task.metric}_std': float(each.std()),
        }
    return metrics
