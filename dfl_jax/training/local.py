"""Minibatch training of every client at once: what all gradient methods share.

An epoch of a client is a fresh random order of its samples, cut into ceil(N_i / B) batches, the
last one shorter where B does not divide N_i; a client with fewer than B samples has one batch of
them all. Clients of different sizes therefore take different numbers of steps an epoch, as they
would alone.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from dfl_jax.base import Array, Clients, PyTree
from dfl_jax.data.augment import standard
from dfl_jax.execution import client_bytes, map_in_chunks
from dfl_jax.execution.flops import flops_of
from dfl_jax.models import Model
from dfl_jax.training.batches import (
    Batch,
    batch_bound,
    epoch_orders,
    poisson_rows,
    rows_at,
    take,
)
from dfl_jax.training.local_settings import CHUNK, LocalTraining
from dfl_jax.training.losses import class_shares, label_losses
from dfl_jax.training.optimisers import learning_rate_factor, named_optimiser
from dfl_jax.training.private_gradients import private_change, private_gradient
from dfl_jax.training.sample_span import first_kernel, sample_form, saves_flops

# Streams of a client's key: of its steps, of the noise, and of batches by Poisson sampling
STEPS, NOISE, BATCHES = range(3)
NORM_FLOOR = 1e-12  # keeps the ascent of SAM finite where the gradient vanishes


class Lasting(NamedTuple):
    """Weights, and the state of an optimiser that goes on from round to round."""

    params: PyTree
    moments: PyTree


def training_bytes(model: Model, samples: int, members: int, settings: Mapping[str, Any]) -> int:
    """Bytes of the local training of one client; samples: N, members: K, of no effect."""
    del members
    names = ('local_epochs', 'local_steps', 'mutual_epochs')
    orders = max(settings.get(name) or 1 for name in names)
    each = settings.get('dp_clip') is not None and settings.get('dp_unit') != 'client'
    return client_bytes(samples, model, orders, CHUNK * each)


def training_flops(model: Model, settings: LocalTraining) -> Callable[[Array], Array]:
    """N_i of clients, int32 [M] -> flops of their training in a round, float32 [M].

    One gradient a sample of a minibatch, two under SAM: what the method asks for, not what the
    program saves of it (`dfl_jax.training.sample_span`).
    """

    def of_sizes(sizes: Array) -> Array:
        of_sample = gradient_flops(model) * (2 if settings.sam_radius else 1)
        if settings.local_epochs is not None:
            return of_sample * (settings.local_epochs * sizes).astype(jnp.float32)
        batch = jnp.minimum(settings.batch_size, sizes)
        in_epoch = -(-sizes // jnp.maximum(batch, 1))
        epochs, rest = jnp.divmod(settings.local_steps, jnp.maximum(in_epoch, 1))
        return of_sample * (epochs * sizes + rest * batch).astype(jnp.float32)

    return of_sizes


def gradient_flops(model: Model) -> float:
    """Flops of the gradient of one sample's loss, which may be more than an int32 holds."""
    sample = jax.ShapeDtypeStruct((1, *model.input_shape), jnp.float32)
    # A sum alone would not need the last outputs
    loss = lambda w, x: jnp.sum(model.apply(w, x) ** 2)  # noqa: E731
    return float(flops_of(jax.grad(loss), model.shapes, sample))


def batch_loss(model: Model, params: PyTree, batch: Batch) -> Array:
    """Mean loss of the task over the samples of a batch: a scalar."""
    if not model.task.cross_entropy:
        return weighted_mean(model.task.losses(model.apply(params, batch.x), batch.y), batch.weight)
    log_p = jax.nn.log_softmax(model.apply(params, batch.x))
    label_log_p = jnp.sum(log_p * jax.nn.one_hot(batch.y, model.classes, dtype=log_p.dtype), axis=1)
    return weighted_mean(-label_log_p, batch.weight)


def weighted_mean(values: Array, weight: Array) -> Array:
    """Mean of values [B] over the samples of a batch, weight [B]."""
    return jnp.sum(weight * values) / jnp.sum(weight)


def local_training(
    model: Model, settings: LocalTraining, chunk: int | None = None
) -> Callable[..., tuple[PyTree, Array]]:
    """train(key, params, clients, round, support=None, linear=None) -> (params, losses).

    `params`, the 0/1 `support` and `linear` have leaves [M, ...], the support also [M, 1, ...];
    weights where the support is 0 stay as they are, and no norm holds their gradient; `linear` is
    added to every gradient. `round` is a scalar; `losses` [M] is each client's mean loss over its
    steps, NaN once its weights are not finite. Of a `Lasting` in place of `params`, [M, ...], too,
    the optimiser goes on, and one is returned.

    A step descends along g + mu (w - w_start) + linear, clipped, with the decay of the weights. g
    is the gradient of the labels' loss at w or, under SAM, at w + rho g / ||g||: neither the
    proximal nor the linear term has a part in the ascent, and both are taken at w itself (FedSpeed,
    Sun et al., ICLR 2023, Algorithm 1).

    chunk: clients trained at once; None for one on a CPU, elsewhere what memory holds.
    """
    train_one = client_training(model, settings)

    def train(
        key: Array,
        params: PyTree,
        clients: Clients,
        round: Array,
        support: PyTree | None = None,
        linear: PyTree | None = None,
    ) -> tuple[PyTree, Array]:
        keys = jax.random.split(key, len(clients.x))
        return map_in_chunks(
            lambda one: train_one(one[0], one[1], one[4], round, one[2], one[3]),
            (keys, params, support, linear, clients),
            chunk,
            settings.bytes_of_client(model, clients.y.shape[1]),
        )

    return train


def client_training(model: Model, settings: LocalTraining) -> Callable[..., tuple[PyTree, Array]]:
    """train(key, params, client, round, support=None, linear=None) -> (params, loss) of one client:
    `local_training` without the leading axis M; `client` holds x [N, ...], y and mask [N]."""
    labels = model.task.cross_entropy
    losses_of = label_losses(model.task, settings.supervision)
    if settings.augmentation != 'none' and len(model.input_shape) != 3:
        raise ValueError(
            f'augmentation={settings.augmentation} is for images [h, w, c], and an input is '
            f'{model.input_shape}; leave it out'
        )
    path = first_kernel(model) if settings.linear_in_weights else None

    def loss_of_outputs(logits, y, weight, shares):
        return weighted_mean(losses_of(logits, y, shares), weight)

    def train(
        key: Array,
        params: PyTree,
        client: Clients,
        round: Array,
        support: PyTree | None = None,
        linear: PyTree | None = None,
    ) -> tuple[PyTree, Array]:
        given, moments = params, None
        if isinstance(given, Lasting):
            params, moments = given
        x, y, mask = client[:3]
        samples = jnp.sum(mask, dtype=jnp.int32)
        has_samples = samples > 0
        if client.arrival is not None:  # else every client has some
            samples = jnp.maximum(samples, 1)
        steps, batch_rows = minibatches(settings, key, mask, samples)
        optimiser = optimiser_of(settings, round.astype(x.dtype))
        shares = class_shares(y, mask, model.classes, x.dtype) if labels else None
        k_steps = jax.random.fold_in(key, STEPS)  # `key` itself draws the orders
        start, form = params, None
        seen = (settings.local_steps or 0) * min(settings.batch_size, len(mask))
        seen += (settings.local_epochs or 0) * len(mask)
        plain = support is None and linear is None and moments is None
        if path and plain and saves_flops(model, path, len(mask), seen):
            form = sample_form(model, path, params, x, mask)

        def gradient_at(params, number):
            k_crop, k_apply = jax.random.split(jax.random.fold_in(k_steps, number))
            rows, valid = batch_rows(number)
            if form is not None:

                def loss_of(logits):
                    return loss_of_outputs(logits, y[rows], valid.astype(x.dtype), shares)

                return form.value_and_grad(params, rows, valid, loss_of, k_apply)
            batch = take(x, y, rows, valid)
            batch = batch._replace(x=augmented(settings, k_crop, batch.x))
            if settings.private_examples:
                each = lambda outputs, y: losses_of(outputs, y, shares)  # noqa: E731
                k_noise = jax.random.fold_in(jax.random.fold_in(key, NOISE), number)
                of_model = settings, model, params, batch, each, samples
                return private_gradient(*of_model, k_apply, k_noise)

            def loss_of_weights(w):
                return loss_of_outputs(model.apply(w, batch.x, k_apply), *batch[1:], shares)

            return _loss_and_gradient(settings, loss_of_weights, params, trained)

        def trained(tree):
            """With zero where a weight is not trained."""
            if support is None:
                return tree
            return jax.tree.map(lambda a, s: jnp.where(s, a, 0), tree, support)

        def step(number, carry):
            params, moments, total = carry
            loss, gradient = gradient_at(params, number)
            if settings.loss_cap is not None:
                capped = loss > settings.loss_cap
                gradient = jax.tree.map(lambda g: jnp.where(capped, 0, g), gradient)
                loss = jnp.minimum(loss, settings.loss_cap)
            if settings.proximal:
                pull = lambda g, w, s: g + settings.proximal * (w - s)  # noqa: E731
                gradient = jax.tree.map(pull, gradient, params, start)
            if linear is not None:
                gradient = jax.tree.map(jnp.add, gradient, linear)
            # An optimiser that looks at weights, too, such as decay, sees none that is frozen
            update, moments = optimiser.update(trained(gradient), moments, trained(params))
            return optax.apply_updates(params, trained(update)), moments, total + loss

        first = params if form is None else form.start
        begun = optimiser.init(trained(first)) if moments is None else moments
        carry = (first, begun, jnp.zeros((), x.dtype))
        params, new_moments, total = lax.fori_loop(0, steps, step, carry)
        if form is not None:
            params = form.weights(params)
        if settings.dp_unit == 'client':
            params = private_change(settings, jax.random.fold_in(key, NOISE), params, start)
        finite = jnp.isfinite(optax.tree.norm(params))
        loss = jnp.where(finite, total / steps, jnp.nan)
        new = params if moments is None else Lasting(params, new_moments)
        if client.arrival is not None:  # who has no sample yet trains nothing
            new = jax.tree.map(lambda n, o: jnp.where(has_samples, n, o), new, given)
        return new, loss

    return train


def minibatches(
    settings: LocalTraining, key: Array, mask: Array, samples: Array
) -> tuple[Array, Callable[[Array], tuple[Array, Array]]]:
    """How many steps a client makes in a round, and step -> (the rows of its minibatch [B], which
    of them are valid, bool [B]).

    key: draws the orders. mask: [N]. samples: true samples, at least one.
    """
    size = min(settings.batch_size, len(mask))
    in_epoch = (samples + size - 1) // size
    epochs, fixed_steps = settings.local_epochs or 0, settings.local_steps or 0  # one of them
    steps = jnp.int32(fixed_steps) if fixed_steps else epochs * in_epoch
    if settings.batch_sampling == 'poisson':
        rate, bound = jnp.minimum(1, size / samples), batch_bound(size, len(mask))
        k_batches = jax.random.fold_in(key, BATCHES)
        return steps, lambda number: poisson_rows(
            jax.random.fold_in(k_batches, number), mask, rate, bound
        )
    if fixed_steps:
        orders = epoch_orders(key, mask, fixed_steps, begun=-(-steps // in_epoch))
    else:
        orders = epoch_orders(key, mask, epochs)
    orders = jnp.pad(orders, [(0, 0), (0, -len(mask) % size)])
    return steps, lambda number: rows_at(orders, samples, number, size)


def augmented(settings: LocalTraining, key: Array, x: Array) -> Array:
    """The images of a batch [B, height, width, channels], augmented as the settings say."""
    return x if settings.augmentation == 'none' else standard(key, x)


def learning_rate(settings: LocalTraining, round: Array) -> Array:
    """That of this round, a floating scalar."""
    factor = learning_rate_factor(settings.lr_schedule)(round)
    return settings.lr * settings.lr_decay**round * factor


def optimiser_of(settings: LocalTraining, round: Array) -> optax.GradientTransformation:
    """The settings' optimiser with the learning rate of this round, a scalar."""
    rate = learning_rate(settings, round)
    clip = [] if settings.clip_norm is None else [optax.clip_by_global_norm(settings.clip_norm)]
    name, options = settings.optimizer, settings.optimizer_options
    chosen = named_optimiser(name, options, rate, settings.momentum, settings.weight_decay)
    return optax.chain(*clip, *chosen)


def _loss_and_gradient(
    settings: LocalTraining,
    loss_of: Callable[[PyTree], Array],
    params: PyTree,
    trained: Callable[[PyTree], PyTree],
) -> tuple[Array, PyTree]:
    """Loss at the weights, and its gradient there or, with SAM, at the ascended weights.

    trained: sets to zero what belongs to a weight that is not trained.
    """
    loss, gradient = jax.value_and_grad(loss_of)(params)
    if settings.sam_radius:
        gradient = trained(gradient)
        scale = jax.tree.map(jnp.abs if settings.sam_adaptive else jnp.ones_like, params)
        norm = optax.tree.norm(jax.tree.map(jnp.multiply, scale, gradient)) + NORM_FLOOR
        ascended = jax.tree.map(
            lambda w, s, g: w + settings.sam_radius / norm * s**2 * g, params, scale, gradient
        )
        gradient = jax.grad(loss_of)(ascended)
    return loss, gradient
