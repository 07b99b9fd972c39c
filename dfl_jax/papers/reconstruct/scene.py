"""A client's network and images, and the attacks of its neighbour on them."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags

from dfl_jax.checks import check_range
from dfl_jax.data.projection import project, projection_matrix
from dfl_jax.exchange import Compression
from dfl_jax.experiment.streams import streams
from dfl_jax.models import MODELS, Model, bind
from dfl_jax.papers.reconstruct import reconstruction

FLAGS = flags.FLAGS
SIMILAR = 120.0  # dB, to which float32 carries; PSNR is cut off here
BATCH, TRAINING_RATE = 100, 1e-3  # of Adam
STREAMS = ('images', 'projection', 'weights', 'training', 'codec', 'noise', 'step')
COMPARED = ('all', 'received')  # entries of the rows
MATCHING_SMOOTH = 'gradient matching, smooth image'
SMOOTHNESS = {'jacobians': 0.1, 'gradient': 0.01}  # by --sent, chosen on other images


def stream(name: str) -> int:
    """A seed of its own for each purpose, one of STREAMS."""
    return streams(FLAGS.seed, STREAMS)[name]


def smoothness() -> float:
    """Weight of the total variation."""
    chosen = FLAGS.attack_smoothness
    return SMOOTHNESS[FLAGS.sent] if chosen is None else chosen


class Setting(NamedTuple):
    """How the client compresses; None leaves a step out."""

    sparsity: float | None = None
    bits: int | None = None
    projection: int | None = None

    def __str__(self) -> str:
        texts = ('sparsity {}', '{} bits', 'projection {}')
        pairs = zip(texts, self, strict=True)
        named = [text.format(value) for text, value in pairs if value is not None]
        return ', '.join(named) or 'no compression'


def settings(features: int) -> list[Setting]:
    """Those of the paper, and their parts. Raises ValueError for flags out of range."""
    sparsity = FLAGS.attack_sparsity
    dimensions = FLAGS.attack_projection
    if dimensions is None:
        dimensions = 200 if features >= 400 else features // 4
    check_range('--attack_sparsity', sparsity, least=0, below=1)
    projection_matrix(features, dimensions, 0)
    return [
        Setting(),
        Setting(sparsity=sparsity),
        Setting(projection=dimensions),
        Setting(sparsity=sparsity, projection=dimensions),
        Setting(sparsity=0.5, bits=6, projection=dimensions),  # appendix E.3
    ]


class Knowledge(NamedTuple):
    """What the neighbour knows besides the rows."""

    w: Any  # the weights at which the Jacobian was taken
    projection: Any  # P [d1, d1'] or None
    known: Any  # [attack_known, d1], images of its own


Attack = Callable[[Knowledge, Any, Any], Any]  # (knowledge, keys [B], rows) -> [B, ...]


class Result(NamedTuple):
    """One attack on all images, B of them."""

    weights: str  # initial or trained
    setting: Any  # `Setting`, or that of `gradient`
    lost: float  # share of the non-zero entries of the rows that are zero when received
    named: int | None  # images whose label can be read from what is sent; None: not tried
    attack: str
    compared: str  # entries of the rows: all, or those received
    images: np.ndarray  # [B, H, W, channels], in [0, 1]
    psnr: np.ndarray  # [B] dB
    ssim: np.ndarray  # [B]


class Victim(NamedTuple):
    """What is attacked, and what the neighbour holds itself; inputs are normalised."""

    images: np.ndarray  # [B, H, W, channels]
    labels: np.ndarray  # [B]
    known: np.ndarray  # [attack_known, d1]
    bounds: tuple[float, float]  # of a pixel

    def scaled(self, x: Any) -> np.ndarray:
        """Images [B, ...] on the scale of [0, 1], to which they are clipped."""
        low, high = self.bounds
        return np.clip((np.asarray(x).reshape(self.images.shape) - low) / (high - low), 0, 1)


def choose_victim(dataset: Any) -> Victim:
    """Raises ValueError where the inputs are no images, or too few."""
    x, y = dataset.train_x, dataset.train_y
    if x.ndim != 4:
        raise ValueError(
            f'inputs of shape {x.shape[1:]}: choose a --dataset of images [height, width, channels]'
        )
    images, taken = FLAGS.images, FLAGS.images + FLAGS.attack_known
    if taken > len(y):
        raise ValueError(
            f'--images={images} and --attack_known={FLAGS.attack_known} of {len(y)} training '
            'samples; lower one of them'
        )
    order = np.random.default_rng(stream('images')).permutation(len(y))
    attacked, known = np.split(order[:taken], [images])
    bounds = float(x.min()), float(x.max())
    return Victim(x[attacked], y[attacked], x[known].reshape(len(known), -1), bounds)


def trained(model: Model, w: Any, dataset: Any, steps: int, seed: int) -> Any:
    """The weights after so many steps of Adam on random batches of the training set."""
    optimizer = optax.adam(TRAINING_RATE)
    x, y = jnp.asarray(dataset.train_x), jnp.asarray(dataset.train_y)

    def loss(w, batch):
        logits = model.apply(w, x[batch])
        return optax.softmax_cross_entropy_with_integer_labels(logits, y[batch]).mean()

    def step(carry, key):
        w, state = carry
        batch = jax.random.randint(key, (BATCH,), 0, len(y))
        change, state = optimizer.update(jax.grad(loss)(w, batch), state)
        return (optax.apply_updates(w, change), state), None

    keys = jax.random.split(jax.random.key(seed), steps)
    (w, _), _ = jax.jit(lambda w: jax.lax.scan(step, (w, optimizer.init(w)), keys))(w)
    return w


class Scene(NamedTuple):
    """A client's network, its inputs projected or not, and the attacks on it."""

    model: Model
    seen: Any  # [B, ...], the model's inputs
    weights: dict[str, Knowledge]  # by name
    attacks: dict[str, dict[str, Attack]]  # by what is compared, then by name


def set_up(dataset: Any, victim: Victim, dimensions: int | None) -> Scene:
    """The network for inputs projected to so many dimensions, initial and trained."""
    seen, projection = victim.images, None
    if dimensions is not None:
        seed, flat = stream('projection'), seen.reshape(len(seen), -1)
        projection = jnp.asarray(projection_matrix(flat.shape[1], dimensions, seed))
        dataset = project(dataset, dimensions, seed)
        seen = flat @ projection
    model = bind(MODELS['mlp'](dataset.classes), dataset.train_x.shape[1:])
    weights = {'initial': model.init(jax.random.key(stream('weights')))}
    if steps := FLAGS.attack_training:
        weights['trained'] = trained(model, weights['initial'], dataset, steps, stream('training'))
    known = jnp.asarray(victim.known)
    return Scene(
        model,
        jnp.asarray(seen),
        {name: Knowledge(w, projection, known) for name, w in weights.items()},
        {entries: attacks(model, victim, dimensions, entries) for entries in COMPARED},
    )


def attacks(
    model: Model, victim: Victim, dimensions: int | None, entries: str
) -> dict[str, Attack]:
    """By name, what makes images [B, ...] of keys [B] and received rows, leaves [B, C, ...]."""
    shape, on_support = victim.images.shape[1:], entries == 'received'
    search = {'steps': FLAGS.attack_steps, 'restarts': FLAGS.attack_restarts}
    prior = {'bounds': victim.bounds, 'smoothness': smoothness()}

    def matching(given, key, sent, **priors):
        w, projection, _ = given
        return reconstruction.reconstruct(
            key, model, w, sent, shape, projection, on_support=on_support, **search, **priors
        )[0]

    def first_input(given, key, sent):
        return reconstruction.closed_form(model, sent, on_support=on_support)

    def least_norm(given, key, sent):
        return reconstruction.minimum_norm(first_input(given, key, sent), given.projection)

    def smooth(given, key, sent):
        def encode(x):
            return x.ravel() @ given.projection

        z = first_input(given, key, sent)
        return reconstruction.match(key, encode, z, shape, **search, **prior)[0]

    def known_images(given, key, sent):
        z = first_input(given, key, sent)
        return reconstruction.most_likely(z, given.projection, given.known)

    def on_all(one: Callable[..., Any]) -> Attack:
        return jax.jit(lambda given, *of: jax.lax.map(lambda sample: one(given, *sample), of))

    plain = {'gradient matching': matching, 'closed form': first_input}
    projected: dict[str, Callable[..., Any]] = {
        'gradient matching': matching,
        MATCHING_SMOOTH: partial(matching, **prior),
        'closed form, least norm': least_norm,
        'closed form, smooth image': smooth,
        'closed form, own images': known_images,
    }
    chosen = plain if dimensions is None else projected
    return {name: on_all(one) for name, one in chosen.items()}


def results(scene: Scene, victim: Victim, setting: Setting) -> Iterator[Result]:
    """All attacks under one setting, at the initial and at the trained weights.

    On sparse rows an attack compares all entries or those received, and the choice of the higher
    mean PSNR counts: an upper bound of what the neighbour, who has to guess it, achieves.
    """
    compression = Compression(sparsity=setting.sparsity, bits=setting.bits)
    codec, originals = compression.codec('stochastic'), victim.scaled(victim.images)
    k_codec, k_noise = (
        jax.random.split(jax.random.key(stream(purpose)), len(originals))
        for purpose in ('codec', 'noise')
    )

    @jax.jit
    def transmitted(w: Any, keys: Any, seen: Any) -> tuple[Any, Any]:
        """The rows of all images as received, and the share of non-zero entries dropped."""

        def of_one(sample):
            key, x = sample
            sent = reconstruction.received(scene.model, codec, key, w, x)
            return sent, _nonzero(reconstruction.rows(scene.model, w, x)), _nonzero(sent)

        sent, before, after = jax.lax.map(of_one, (keys, seen))
        return sent, 1 - after.sum() / before.sum()

    choices = {'all': scene.attacks['all']} if setting.sparsity is None else scene.attacks
    for weights, given in scene.weights.items():
        w = given.w
        sent, lost = transmitted(w, k_codec, scene.seen)
        named = np.argmax(scene.model.apply(w, scene.seen), axis=1) == victim.labels
        common = weights, setting, float(lost), int(named.sum())
        for name in choices['all']:
            outcomes = []
            for compared, attack_of in choices.items():
                images = victim.scaled(attack_of[name](given, k_noise, sent))
                near = similarities(images, originals)
                outcomes.append(Result(*common, name, compared, images, *near))
            yield max(outcomes, key=lambda outcome: outcome.psnr.mean())


def _nonzero(tree: Any) -> Any:
    return sum(jnp.count_nonzero(leaf) for leaf in jax.tree.leaves(tree))


def similarities(images: np.ndarray, originals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """PSNR in dB, cut off at SIMILAR, and SSIM of each image, [B]."""
    pairs = list(zip(images, originals, strict=True))
    ratios = np.minimum([reconstruction.psnr(*pair) for pair in pairs], SIMILAR)
    return ratios, np.array([reconstruction.ssim(*pair) for pair in pairs])
