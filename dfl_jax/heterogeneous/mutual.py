"""Mutual learning: models of any architecture teach each other on the data of an aggregator.

DFML section 3.2. All participants see the same batches and exchange logits [H, K, B, C]:
aggregator, member, sample, class. A step takes two passes, one for the logits and one for the
gradients, which repeats the first: 4/3 of the flops, for the activations of one model in place
of those of all.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from dfl_jax.base import Array, Clients, Graph
from dfl_jax.exchange import COMBINED, Exchange
from dfl_jax.execution import client_bytes, map_present
from dfl_jax.heterogeneous.population import Groups, Population, Stacked, by_position
from dfl_jax.training import (
    LocalTraining,
    augmented,
    batch_at,
    class_shares,
    epoch_orders,
    label_losses,
    optimiser_of,
    weighted_mean,
)


class Balance(NamedTuple):
    """L = gamma L_supervised + alpha L_KL, DFML Eq. (10); gamma = 1 - alpha is Eq. (1)."""

    gamma: Array  # scalar
    alpha: Array  # scalar


class Mutual(NamedTuple):
    """How models teach each other."""

    epochs: int  # K, over the aggregator's data
    by_size: bool = True  # teachers weigh as their numbers of parameters, or all alike
    vanilla: bool = False  # only the aggregator's model learns
    weighted_samples: bool = False  # WSL: see `sample_weights`
    temperature: float = 1.0


def teacher_weights(sizes: Array) -> Array:
    """Phi_q / sum_{u != n} Phi_u of DFML Eq. (3): rows n of students, columns q, [K, K].

    sizes: [K], of the models at one aggregator, zero where no participant is present. A row without
    a teacher is zero.
    """
    others = jnp.where(jnp.eye(len(sizes), dtype=bool), 0, sizes[None])
    total = others.sum(axis=1, keepdims=True)
    return others / jnp.where(total > 0, total, 1)


def sample_weights(student: Array, teacher: Array) -> Array:
    """1 - exp(-L_student / L_teacher) of weighted soft labels (Zhou et al. 2021), constant to the
    gradient, from the cross-entropies [B] of student and teacher."""
    ratio = lax.stop_gradient(student) / jnp.maximum(teacher, jnp.finfo(teacher.dtype).tiny)
    return 1 - jnp.exp(-ratio)


def _orders(key: Array, mask: Array, epochs: int, size: int) -> Array:
    """The orders of each aggregator's samples [H, N] in every epoch, padded to whole batches."""
    keys = jax.random.split(key, len(mask))
    orders = jax.vmap(lambda k, m: epoch_orders(k, m, epochs))(keys, mask)
    return jnp.pad(orders, [(0, 0), (0, 0), (0, -mask.shape[1] % size)])


def mutual_learning(
    population: Population, settings: LocalTraining, mutual: Mutual, chunk: int | None
) -> Callable[..., tuple[Stacked, dict[str, Array]]]:
    """learn(key, models, participants, graph, clients, round, balance, exchange=None) -> (models,
    losses).

    Every aggregator's members go through the data of its client, column 0, `mutual.epochs` times.
    In an exchange with attackers, those that are aggregators lie to their members about their own
    logits; None is for models that no other client hears.
    The optimiser is that of `settings`, and its state starts afresh. Models have leaves [S, ...];
    losses [S] are means over the steps of the loss of the labels alone.

    Raises ValueError for a proximal term, a cap or sharpness-aware steps, which this loss has not,
    and for what is of the cross-entropy alone where the task has another loss.
    """
    losses_of = label_losses(population.task, settings.supervision)
    _check(population, settings, mutual)

    def learn(
        key: Array,
        models: Stacked,
        participants: Groups,
        graph: Graph,
        clients: Clients,
        round: Array,
        balance: Balance,
        exchange: Exchange | None = None,
    ) -> tuple[Stacked, dict[str, Array]]:
        k_orders, k_steps = jax.random.split(key)
        aggregators, members = graph.members.shape
        data = jax.tree.map(lambda a: a[graph.members[:, 0]], clients)  # [H, N, ...]
        dtype = data.x.dtype
        size = min(settings.batch_size, data.mask.shape[1])
        samples = data.mask.sum(axis=1, dtype=jnp.int32)  # [H]
        steps = mutual.epochs * ((samples + size - 1) // size)
        orders = _orders(k_orders, data.mask, mutual.epochs, size)
        shares = jax.vmap(lambda y, m: class_shares(y, m, population.classes, dtype))(
            data.y, data.mask
        )
        weights = jax.vmap(teacher_weights)(_sizes(population, mutual, participants, graph, dtype))
        optimiser = optimiser_of(settings, round.astype(dtype))

        def aggregator_batch(aggregator_key, x, y, orders, samples, number):
            batch = batch_at(x, y, orders, samples, number, size)
            return batch._replace(x=augmented(settings, aggregator_key, batch.x))

        def step(number, carry):
            models, moments, losses = carry
            k_step = jax.random.fold_in(k_steps, number)
            k_crop, k_apply = jax.random.split(k_step)
            batches = jax.vmap(aggregator_batch, (0, 0, 0, 0, 0, None))(
                jax.random.split(k_crop, aggregators), *data[:2], orders, samples, number
            )
            taught = _exchanged(population, models, participants, graph, batches.x, k_apply, chunk)
            told = None
            if exchange is not None and exchange.attack is not None:
                k_told = jax.random.fold_in(k_step, COMBINED)
                told = _told(k_told, exchange, graph, weights, taught)
            mixed = partial(_mixed, weights, taught, told)
            targets = mixed(mutual.temperature)
            # What teachers say without a temperature, by which WSL weighs the samples
            said = mixed(1) if mutual.weighted_samples else targets

            def update(one, apply):
                params, moments, total, position, key = one
                aggregator = position // members
                batch = jax.tree.map(lambda a: a[aggregator], batches)
                entry = aggregator, position % members
                target, plain = targets[entry], said[entry]

                def loss(params):
                    z = apply(params, batch.x, key)
                    each = losses_of(z, batch.y, shares[aggregator])
                    supervised = weighted_mean(each, batch.weight)
                    distilled = weighted_mean(
                        _distillation(z, target, plain, batch.y, mutual), batch.weight
                    )
                    return balance.gamma * supervised + balance.alpha * distilled, supervised

                gradient, supervised = jax.grad(loss, has_aux=True)(params)
                change, moments = optimiser.update(gradient, moments, params)
                return optax.apply_updates(params, change), moments, total + supervised

            learnt = {}
            for name, group in participants.items():
                learns = group.present & (number < steps[group.position // members])
                if mutual.vanilla:
                    learns &= group.position % members == 0
                learnt[name] = map_present(
                    lambda one, f=population.models[name].apply: update(one, f),
                    lambda one: one[:3],
                    (models[name], moments[name], losses[name], *_place_and_key(k_apply, group)),
                    learns,
                    chunk,
                    client_bytes(size, population.models[name]),
                )
            return tuple({name: each[i] for name, each in learnt.items()} for i in range(3))

        moments = {name: jax.vmap(optimiser.init)(stacked) for name, stacked in models.items()}
        losses = {name: jnp.zeros(len(g.position), dtype) for name, g in participants.items()}
        running = jnp.max(jnp.where(graph.active, steps, 0))
        models, _, losses = lax.fori_loop(0, running, step, (models, moments, losses))
        done = {name: steps[group.position // members] for name, group in participants.items()}
        return models, {name: losses[name] / jnp.maximum(done[name], 1) for name in participants}

    return learn


def _check(population: Population, settings: LocalTraining, mutual: Mutual) -> None:
    """Raises ValueError for what this loss has not."""
    if mutual.weighted_samples and not population.task.cross_entropy:
        raise ValueError(
            'weighted_samples compares cross-entropies of student and teacher, and the loss of '
            f'{population.task.name} is another; leave it out'
        )
    for name in ('proximal', 'loss_cap', 'sam_radius'):
        if getattr(settings, name):
            raise ValueError(
                f'mutual learning has no {name}, got {getattr(settings, name)}; leave it out'
            )


def _exchanged(
    population: Population,
    models: Stacked,
    participants: Groups,
    graph: Graph,
    x: Array,
    key: Array,
    chunk: int | None,
) -> Array:
    """Logits of all members on the batch of their aggregator, [H, K, B, C]; x: [H, B, ...]."""
    members, size = graph.members.shape[1], x.shape[1]
    logits = {}
    for name, group in participants.items():
        model = population.models[name]
        logits[name] = map_present(
            lambda one, f=model.apply: f(one[0], x[one[1] // members], one[2]),
            lambda one: jnp.zeros((size, population.classes), x.dtype),
            (models[name], *_place_and_key(key, group)),
            group.present,
            chunk,
            client_bytes(size, model),
        )
    return by_position(logits, participants, graph)


def _told(key: Array, exchange: Exchange, graph: Graph, weights: Array, logits: Array) -> Array:
    """The aggregator's logits as each of its members hears them, [H, K, B, C].

    The other members' are those of the models that they sent, be these lies or not.
    """
    aggregators, members = graph.members.shape

    def to_student(key, student, logits, members, delivered, weights):
        hearers = members.at[0].set(members[student])
        rows = weights[student], logits[student]
        return exchange.heard(key, logits, members, delivered, *rows, hearers)[0]

    keys = jax.random.split(key, (aggregators, members))
    to_all = jax.vmap(to_student, (0, 0, None, None, None, None))
    students = jnp.broadcast_to(jnp.arange(members), graph.members.shape)
    delivered = graph.mask & graph.active[:, None]
    return jax.vmap(to_all)(keys, students, logits, graph.members, delivered, weights)


def _mixed(weights: Array, logits: Array, told: Array | None, temperature: float) -> Array:
    """sum_q w_q p_q of the teachers of every student, [H, K, B, C], as the logits.

    told: the aggregator's, as each student hears them; None: as they are.
    """
    p = jax.nn.softmax(logits / temperature)
    if told is None:
        return jnp.einsum('hnq,hqbc->hnbc', weights, p, precision='highest')
    others = _mixed(weights[..., 1:], logits[:, 1:], None, temperature)
    return others + weights[..., :1, None] * jax.nn.softmax(told / temperature)


def _distillation(z: Array, target: Array, plain: Array, y: Array, mutual: Mutual) -> Array:
    """sum_q w_q KL(p_q || p_n) of each sample, DFML Eq. (3), up to the teachers' entropies.

    z: [B, C] the student's logits; target: [B, C] sum_q w_q p_q, zero without a teacher; plain: the
    same at temperature 1.
    """
    distilled = -jnp.sum(target * jax.nn.log_softmax(z / mutual.temperature), axis=1)
    distilled *= mutual.temperature**2
    if not mutual.weighted_samples:
        return distilled
    labels = jax.nn.one_hot(y, z.shape[1], dtype=z.dtype)
    student = -jnp.sum(labels * jax.nn.log_softmax(z), axis=1)
    teacher = -jnp.log(jnp.sum(labels * plain, axis=1))
    return sample_weights(student, teacher) * distilled


def _sizes(population, mutual, participants, graph, dtype):
    """Phi of every position, [H, K], zero where no participant is present."""
    phi = {name: model.size if mutual.by_size else 1 for name, model in population.models.items()}
    each = {n: jnp.full(len(group.position), phi[n], dtype) for n, group in participants.items()}
    return by_position(each, participants, graph)


def _place_and_key(key, group):
    """Each participant's position, [S], and a key of its client, [S], for the same dropout in both
    passes."""
    return group.position, jax.vmap(lambda client: jax.random.fold_in(key, client))(group.client)
