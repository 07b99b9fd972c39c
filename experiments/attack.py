"""The reconstruction attack of NTK-DFL, appendix F: `python -m experiments.attack --out=DIR`

A client sends the Jacobian rows of some images to a neighbour, in several ways of compressing them;
the neighbour reconstructs the images by gradient matching and in closed form (dfl_jax.attack), at
the initial weights and after training. Without flags: handwritten digits, in under a minute on two
cores. Writes attack.md (PSNR and SSIM by setting and attack) and attack.png (Figure 17) into --out.
"""

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import app, flags, logging

from experiments import flags as experiment_flags
from experiments import run
from experiments.rundir import write_atomically

if TYPE_CHECKING:
    from dfl_jax.models import Model


FLAGS = flags.FLAGS
flags.adopt_module_key_flags(experiment_flags)
SHARED = ('dataset', 'data_dir', 'seed', 'out', 'progress')  # the flags of experiments.run used

flags.DEFINE_integer('images', 8, 'Images of the training set that are attacked.', lower_bound=1)
flags.DEFINE_float('attack_sparsity', 0.25, 'Share of the entries of a tensor that top-k drops.')
flags.DEFINE_integer(
    'attack_projection',
    None,
    'Dimensions of the projected inputs (default 200, or a quarter of the features of small ones).',
)
flags.DEFINE_integer(
    'attack_training', 500, 'Steps of Adam before the second attack; 0: none.', lower_bound=0
)
flags.DEFINE_integer('attack_steps', 1000, 'Steps of a search.', lower_bound=1)
flags.DEFINE_integer('attack_restarts', 2, 'Searches from different noise.', lower_bound=1)
flags.DEFINE_float('attack_smoothness', 0.1, 'Weight of the total variation where it is a prior.')
flags.DEFINE_integer(
    'attack_known', 200, 'Other training images, which the neighbour holds itself.', lower_bound=2
)

SIMILAR = 120.0  # dB, to which float32 carries; PSNR is cut off here
BATCH, TRAINING_RATE = 100, 1e-3  # of Adam
STREAMS = ('images', 'projection', 'weights', 'training', 'codec', 'noise')
COMPARED = ('all', 'received')  # entries of the rows
MATCHING_SMOOTH = 'gradient matching, smooth image'


class Setting(NamedTuple):
    """How the client compresses; None leaves a step out."""

    sparsity: float | None = None
    bits: int | None = None
    projection: int | None = None

    def __str__(self) -> str:
        parts = {
            'sparsity {}': self.sparsity,
            '{} bits': self.bits,
            'projection {}': self.projection,
        }
        named = [text.format(value) for text, value in parts.items() if value is not None]
        return ', '.join(named) or 'no compression'


class Knowledge(NamedTuple):
    """What the neighbour knows besides the rows."""

    w: Any  # the weights at which the Jacobian was taken
    projection: Any  # P [d1, d1'] or None
    known: Any  # [attack_known, d1], images of its own


Attack = Callable[[Knowledge, Any, Any], Any]  # (knowledge, keys [B], rows) -> [B, ...]


class Result(NamedTuple):
    """One attack on all images, B of them."""

    weights: str  # initial or trained
    setting: Setting
    lost: float  # share of the non-zero entries of the rows that are zero when received
    named: int  # images whose label is that of the largest output
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


# ------------------------------------------------------------------------------------------- set-up


def check() -> None:
    """Raises ValueError for a flag that the attack ignores, a negative seed or a full --out."""
    for flag in experiment_flags.of_a_run():
        if flag.present and flag.name not in SHARED:
            raise ValueError(f'{flag.serialize()} does not apply to the attack; leave it out')
    if FLAGS.seed < 0:
        raise ValueError(f'--seed has to be at least 0, got {FLAGS.seed}')
    out = FLAGS.out and Path(FLAGS.out)
    if out and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f'--out={out} exists and is not an empty folder; choose another --out')


def settings(features: int) -> list[Setting]:
    """Those of the paper, and their parts. Raises ValueError for flags out of range."""
    from dfl_jax.compression import top_k
    from dfl_jax.data.projection import projection_matrix

    sparsity = FLAGS.attack_sparsity
    dimensions = FLAGS.attack_projection
    if dimensions is None:
        dimensions = 200 if features >= 400 else features // 4
    top_k(sparsity)
    projection_matrix(features, dimensions, 0)
    return [
        Setting(),
        Setting(sparsity=sparsity),
        Setting(projection=dimensions),
        Setting(sparsity=sparsity, projection=dimensions),
        Setting(sparsity=0.5, bits=6, projection=dimensions),  # appendix E.3
    ]


def stream(name: str) -> int:
    """A seed of its own for each purpose, derived from --seed."""
    return int(np.random.SeedSequence([FLAGS.seed, STREAMS.index(name)]).generate_state(1)[0])


def choose_victim(dataset: Any) -> Victim:
    """Raises ValueError where the inputs are no images, or too few."""
    x, y = dataset.train_x, dataset.train_y
    if x.ndim != 4:
        raise ValueError(
            f'--dataset={FLAGS.dataset} has inputs of shape {x.shape[1:]}: use images '
            '[height, width, channels]'
        )
    if FLAGS.images + FLAGS.attack_known > len(y):
        raise ValueError(
            f'--images={FLAGS.images} and --attack_known={FLAGS.attack_known} of {len(y)} training '
            'samples; lower one of them'
        )
    order = np.random.default_rng(stream('images')).permutation(len(y))
    mine, known = np.split(order[: FLAGS.images + FLAGS.attack_known], [FLAGS.images])
    bounds = float(x.min()), float(x.max())
    return Victim(x[mine], y[mine], x[known].reshape(len(known), -1), bounds)


def trained(model: 'Model', w: Any, dataset: Any) -> Any:
    """The weights after --attack_training steps of Adam on random batches of the training set."""
    import jax
    import jax.numpy as jnp
    import optax

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

    keys = jax.random.split(jax.random.key(stream('training')), FLAGS.attack_training)
    (w, _), _ = jax.jit(lambda w: jax.lax.scan(step, (w, optimizer.init(w)), keys))(w)
    return w


# ------------------------------------------------------------------------------------------ attacks


class Scene(NamedTuple):
    """A client's network, its inputs projected or not, and the attacks on it."""

    model: 'Model'
    seen: Any  # [B, ...], the model's inputs
    weights: dict[str, Knowledge]  # by name
    attacks: dict[str, dict[str, Attack]]  # by what is compared, then by name


def set_up(dataset: Any, victim: Victim, dimensions: int | None) -> Scene:
    """The network for inputs projected to so many dimensions, initial and trained."""
    import jax
    import jax.numpy as jnp

    from dfl_jax.data.projection import project, projection_matrix
    from dfl_jax.models import MODELS, bind

    seen, projection = victim.images, None
    if dimensions is not None:
        seed, flat = stream('projection'), seen.reshape(len(seen), -1)
        projection = jnp.asarray(projection_matrix(flat.shape[1], dimensions, seed))
        dataset = project(dataset, dimensions, seed)
        seen = flat @ projection
    model = bind(MODELS['mlp'](dataset.classes), dataset.train_x.shape[1:])
    weights = {'initial': model.init(jax.random.key(stream('weights')))}
    if FLAGS.attack_training:
        weights['trained'] = trained(model, weights['initial'], dataset)
    known = jnp.asarray(victim.known)
    return Scene(
        model,
        jnp.asarray(seen),
        {name: Knowledge(w, projection, known) for name, w in weights.items()},
        {entries: attacks(model, victim, dimensions, entries) for entries in COMPARED},
    )


def attacks(
    model: 'Model', victim: Victim, dimensions: int | None, entries: str
) -> dict[str, Attack]:
    """By name, what makes images [B, ...] of keys [B] and received rows, leaves [B, C, ...]."""
    import jax

    from dfl_jax import attack

    shape, on_support = victim.images.shape[1:], entries == 'received'
    search = {'steps': FLAGS.attack_steps, 'restarts': FLAGS.attack_restarts}
    prior = {'bounds': victim.bounds, 'smoothness': FLAGS.attack_smoothness}

    def matching(given, key, sent, **priors):
        w, projection, _ = given
        return attack.reconstruct(
            key, model, w, sent, shape, projection, on_support=on_support, **search, **priors
        )[0]

    def matching_smooth(given, key, sent):
        return matching(given, key, sent, **prior)

    def first_input(given, key, sent):
        return attack.closed_form(model, sent, on_support=on_support)[0]

    def least_norm(given, key, sent):
        return attack.minimum_norm(first_input(given, key, sent), given.projection)

    def smooth(given, key, sent):
        def encode(x):
            return x.ravel() @ given.projection

        z = first_input(given, key, sent)
        return attack.match(key, encode, z, shape, **search, **prior)[0]

    def own_images(given, key, sent):
        z = first_input(given, key, sent)
        return attack.most_likely(z, given.projection, given.known)

    def on_all(one: Callable[..., Any]) -> Attack:
        return jax.jit(lambda given, *of: jax.lax.map(lambda sample: one(given, *sample), of))

    if dimensions is None:
        return {'gradient matching': on_all(matching), 'closed form': on_all(first_input)}
    return {
        'gradient matching': on_all(matching),
        MATCHING_SMOOTH: on_all(matching_smooth),
        'closed form, least norm': on_all(least_norm),
        'closed form, smooth image': on_all(smooth),
        'closed form, own images': on_all(own_images),
    }


def results(scene: Scene, victim: Victim, setting: Setting) -> Iterator[Result]:
    """All attacks under one setting, at the initial and at the trained weights.

    On sparse rows an attack compares all entries or those received, and the choice of the higher
    mean PSNR counts: an upper bound of what the neighbour, who has to guess it, achieves.
    """
    import jax

    from dfl_jax.attack import received
    from dfl_jax.compression import codec_of

    codec, originals = codec_of(setting.sparsity, setting.bits, None), victim.scaled(victim.images)
    k_codec, k_noise = (
        jax.random.split(jax.random.key(stream(purpose)), len(originals))
        for purpose in ('codec', 'noise')
    )

    @jax.jit
    def transmitted(w: Any, keys: Any, seen: Any) -> tuple[Any, Any]:
        """The rows of all images as received, and the share of non-zero entries dropped."""

        def of_one(sample):
            key, x = sample
            sent, exact = (received(scene.model, c, key, w, x) for c in (codec, None))
            return sent, _nonzero(exact), _nonzero(sent)

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
                outcomes.append(Result(*common, name, compared, images, *judge(images, originals)))
            yield max(outcomes, key=lambda outcome: outcome.psnr.mean())


def _nonzero(tree: Any) -> Any:
    import jax
    import jax.numpy as jnp

    return sum(jnp.count_nonzero(leaf) for leaf in jax.tree.leaves(tree))


def judge(images: np.ndarray, originals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """PSNR in dB, cut off at SIMILAR, and SSIM of each image, [B]."""
    from dfl_jax.attack import psnr, ssim

    pairs = list(zip(images, originals, strict=True))
    return np.array([min(psnr(*p), SIMILAR) for p in pairs]), np.array([ssim(*p) for p in pairs])


# ------------------------------------------------------------------------------------------- report


COLUMNS: dict[str, Callable[[Result], str]] = {
    'weights': lambda r: r.weights,
    'setting': lambda r: str(r.setting),
    'entries lost': lambda r: f'{r.lost:.1%}',
    'attack': lambda r: r.attack,
    'entries compared': lambda r: r.compared,
    'PSNR (dB)': lambda r: f'{r.psnr.mean():.1f} ± {r.psnr.std():.1f}',
    'SSIM': lambda r: f'{r.ssim.mean():.3f} ± {r.ssim.std():.3f}',
    'label sent': lambda r: 'yes',
    'label by argmax f': lambda r: f'{r.named} of {len(r.images)}',
}


def report(found: list[Result]) -> str:
    """attack.md: a row for every weights, setting and attack."""
    lines = [list(COLUMNS), ['---'] * len(COLUMNS)]
    lines += [[show(r) for show in COLUMNS.values()] for r in found]
    table = '\n'.join(f'| {" | ".join(line)} |' for line in lines)
    title = f'# Reconstruction attack on {len(found[0].images)} images of {FLAGS.dataset}'
    return f'{title}\n\n{table}\n\n{reading()}\n'


def reading() -> str:
    return (
        f'PSNR and SSIM: mean and standard deviation over images in [0, 1]; {SIMILAR:.0f} dB '
        'stands for an image that is exact up to float32 rounding. Entries lost: the share of the '
        'non-zero entries of the Jacobian that the codec drops. Entries compared: all, or where '
        'top-k was used those received, whichever is stronger. The protocol sends the label in the '
        'clear; the last column counts the images whose largest output, which is sent too, names '
        'it. Smooth image: pixels within their range and total variation with weight '
        f'{FLAGS.attack_smoothness:g}; own images: Gaussian prior of {FLAGS.attack_known} other '
        'training images, which the neighbour holds itself.'
    )


# ------------------------------------------------------------------------------------------ command


def main(argv: list[str]) -> int:
    logging.set_verbosity(logging.ERROR)  # jax tells of backends that it did not find
    if len(argv) > 1:
        return run.fail(f'unexpected argument {argv[1]!r}; settings are flags')
    try:
        check()
        from dfl_jax import data

        dataset = data.load(FLAGS.dataset, FLAGS.data_dir)
        victim = choose_victim(dataset)
        chosen = settings(victim.known.shape[1])
        directory = Path(FLAGS.out or f'runs/attack-{time.strftime("%Y%m%d-%H%M%S")}')
        directory.mkdir(parents=True, exist_ok=True)
    except (ValueError, OSError) as error:
        return run.fail(str(error))
    return follow(dataset, victim, chosen, directory)


def follow(dataset: Any, victim: Victim, chosen: list[Setting], directory: Path) -> int:
    """Attacks under a progress bar and writes the two files; the exit status."""
    from tqdm import tqdm

    found: list[Result] = []
    scenes: dict[int | None, Scene] = {}  # by projection, so that each is compiled once
    bar = tqdm(chosen, unit='setting', disable=not FLAGS.progress, dynamic_ncols=True)
    try:
        for setting in bar:
            bar.set_description(str(setting))
            if setting.projection not in scenes:
                scenes[setting.projection] = set_up(dataset, victim, setting.projection)
            found += results(scenes[setting.projection], victim, setting)
    except KeyboardInterrupt:
        return run.fail(f'interrupted: nothing was written to {directory}', status=130)
    text = report(sorted(found, key=lambda result: result.weights))
    write_atomically(directory / 'attack.md', text)
    print(f'{text}\n{directory / "attack.md"}')
    try:
        from experiments.plot_attack import plot_attack

        first = [r for r in found if r.weights == 'initial' and r.attack != MATCHING_SMOOTH]
        originals = victim.scaled(victim.images)
        plot_attack(first, originals, SIMILAR, directory / 'attack.png')
        print(directory / 'attack.png')
    except ImportError:
        print('no attack.png without matplotlib (pip install matplotlib)', file=sys.stderr)
    return 0


if __name__ == '__main__':
    app.run(main, flags_parser=run.parse)
