"""What a neighbour can learn of a client's samples from one local step of a gradient method.

The neighbour knows the weights w before the step and the learning rate, hence the gradient
(w - w') / lr; the model and the client's settings; how many samples the minibatch has; and their
labels. Of a single sample the label need not be told: only its own output has a negative derivative
by the last bias. The client trains as in a run (`training.local`), clipping and noise with it.

* Gradient inversion (Geiping, Bauermeister, Dröge and Moeller, "Inverting gradients - how easy is
  it to break privacy in federated learning?", NeurIPS 2020): search images in their range whose
  gradient points in the direction of the one received, smooth ones first.
* Closed form, of a single sample: the row of a unit's weights over its bias is the input.
"""

from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from scipy.optimize import linear_sum_assignment

from dfl_jax.base import Array, Clients, PyTree
from dfl_jax.models import Model
from dfl_jax.papers.reconstruct import reconstruction
from dfl_jax.papers.reconstruct.scene import Result, Scene, Victim, similarities, smoothness, stream
from dfl_jax.training.batches import Batch
from dfl_jax.training.local import batch_loss, local_training
from dfl_jax.training.local_settings import LocalTraining
from dfl_jax.training.losses import label_losses
from dfl_jax.training.private_gradients import private_gradient

FLAGS = flags.FLAGS
BATCH_SIZES, CLIP, NOISES = (1, 4), 1.0, (0.01, 0.1, 1.0)  # where no flag chooses
RATE = 0.1  # of the step; the neighbour divides by it, so that any would do
OUTPUTS = 'Dense_1'  # the last layer of the network that is attacked


class Setting(NamedTuple):
    """The step of a client; None leaves clipping or noise out."""

    batch_size: int
    dp_clip: float | None = None
    dp_noise_multiplier: float | None = None

    def __str__(self) -> str:
        pairs = zip(self._fields, self, strict=True)
        return ', '.join(f'{name} {value:g}' for name, value in pairs if value is not None)

    @property
    def projection(self) -> None:
        """Gradient methods take inputs as they are."""

    @property
    def training(self) -> LocalTraining:
        """Raises ValueError for a setting out of its range."""
        return LocalTraining(lr=RATE, local_epochs=None, local_steps=1, **self._asdict())


def settings() -> list[Setting]:
    """By batch size: plain, clipped, and with noise. Raises ValueError for flags out of range."""
    sizes = BATCH_SIZES if FLAGS.batch_size is None else (FLAGS.batch_size,)
    clip = CLIP if FLAGS.dp_clip is None else FLAGS.dp_clip
    noise = FLAGS.dp_noise_multiplier
    noises = (None, *(NOISES if noise is None else (noise,)))
    chosen = [Setting(b, *dp) for b in sizes for dp in ((None, None), *((clip, n) for n in noises))]
    for setting in chosen:
        if FLAGS.images % setting.training.batch_size:
            raise ValueError(
                f'--images={FLAGS.images} make no whole minibatches of {setting.batch_size}; '
                'choose a multiple of it, or another --batch_size'
            )
    return chosen


def sent_gradient(
    model: Model, settings: LocalTraining, key: Array, w: PyTree, x: Array, y: Array
) -> PyTree:
    """The gradients that follow from what M clients send after one step, leaves [M, ...].

    x, y: the samples of each client, [M, B, ...] and [M, B], all of them in its minibatch.
    """
    clients = Clients(x, y, jnp.ones(y.shape, bool))
    start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(x), *leaf.shape)), w)
    new, _ = local_training(model, settings)(key, start, clients, jnp.int32(0))
    return jax.tree.map(lambda before, after: (before - after) / settings.lr, start, new)


def expected_gradient(
    model: Model, settings: LocalTraining, w: PyTree, x: Array, y: Array
) -> PyTree:
    """The gradient of one minibatch, x [B, ...] and y [B], clipped as the settings say, and without
    noise: what a neighbour compares with the one sent."""
    batch = Batch(x, y, jnp.ones(len(y), x.dtype))
    if settings.dp_clip is None:
        return jax.grad(lambda w: batch_loss(model, w, batch))(w)
    silent, key = settings.replace(dp_noise_multiplier=None), jax.random.key(0)
    losses_of = label_losses(model.task, settings.supervision)
    each = lambda outputs, y: losses_of(outputs, y, jnp.ones(model.classes))  # noqa: E731
    return private_gradient(silent, model, w, batch, each, jnp.int32(len(y)), key, key)[1]


def invert(
    key: Array, model: Model, settings: LocalTraining, w: PyTree, sent: PyTree, y: Array, **search
) -> Array:
    """The images [B, height, width, channels] of labels y [B] whose gradient is nearest the sent.

    search: settings of `reconstruction.match`.
    """

    def encode(x: Array) -> PyTree:
        return expected_gradient(model, settings, w, x, y)

    shape = len(y), *model.input_shape
    return reconstruction.match(key, encode, sent, shape, by_angle=True, **search)[0]


def results(scene: Scene, victim: Victim, setting: Setting) -> Iterator[Result]:
    """All attacks under one setting, at the initial and at the trained weights."""
    model, training, size = scene.model, setting.training, setting.batch_size
    x, y = (jnp.asarray(a).reshape(-1, size, *a.shape[1:]) for a in (victim.images, victim.labels))
    search = {
        'bounds': victim.bounds,
        'smoothness': smoothness(),
        'steps': FLAGS.attack_steps,
        'restarts': FLAGS.attack_restarts,
    }
    keys = jax.random.split(jax.random.key(stream('noise')), len(x))
    originals = victim.scaled(victim.images)

    @jax.jit
    def sent_at(w: PyTree) -> PyTree:
        return sent_gradient(model, training, jax.random.key(stream('step')), w, x, y)

    @jax.jit
    def inverted(w: PyTree, sent: PyTree) -> Array:
        one = lambda of: invert(of[0], model, training, w, *of[1:], **search)  # noqa: E731
        return jax.lax.map(one, (keys, sent, y))

    @jax.jit
    def divided(w: PyTree, sent: PyTree) -> Array:
        del w
        rows = jax.tree.map(lambda leaf: leaf[:, None], sent)  # as if of one output
        return jax.vmap(lambda rows: reconstruction.closed_form(model, rows))(rows)

    attacks = {'gradient inversion': inverted} | ({'closed form': divided} if size == 1 else {})
    for weights, given in scene.weights.items():
        sent = sent_at(given.w)
        named = None
        if size == 1:
            named = int((np.argmin(sent[OUTPUTS]['bias'], axis=1) == victim.labels).sum())
        for name, attack in attacks.items():
            images = in_order(victim.scaled(attack(given.w, sent)), originals, size)
            near = similarities(images, originals)
            yield Result(weights, setting, 0.0, named, name, 'all', images, *near)


def in_order(images: np.ndarray, originals: np.ndarray, size: int) -> np.ndarray:
    """The images [n, ...], those of each minibatch in the order that is nearest to the originals: a
    gradient does not say which of two samples of one label came first."""
    batches = (a.reshape(-1, size, *a.shape[1:]) for a in (images, originals))
    ordered = []
    for found, true in zip(*batches, strict=True):
        errors = np.mean((true[:, None] - found[None]) ** 2, axis=(2, 3, 4))  # [B, B]
        ordered.append(found[linear_sum_assignment(errors)[1]])
    return np.concatenate(ordered)
