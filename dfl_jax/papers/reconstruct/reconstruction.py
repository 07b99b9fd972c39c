"""What a neighbour can learn of a client's samples from the Jacobians that it receives.

An honest-but-curious neighbour of NTK-DFL follows the protocol and looks at what it receives. It
knows the weights w_bar at which the Jacobians are taken, because it sent them; the model; the
codec; the random projection P of the inputs, because all clients share it; the label and the
outputs of every sample, because they come in the clear; and the rows J~ of every sample, the
gradient of each output as the codec leaves it. A row does not depend on the label.

Two attacks are here, for one sample; map them over samples with `jax.vmap` or `lax.map`.

* Gradient matching (Zhu et al. 2019, "Deep leakage from gradients"): search an input whose rows
  are those received. The paper's choice (NTK-DFL, appendix F).
* Closed form: where the first layer is dense, the row of output c holds x d_c^T for its weights
  and d_c for its bias, d_c [d_h] the backpropagated signal, so that a ratio is the input.

Where inputs are projected, either gives z = x P, and x follows from fewer numbers than it has: with
the least norm, with the image priors of `match`, or by a Gaussian fitted to known images.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from scipy import ndimage

from dfl_jax.base import Array, PyTree
from dfl_jax.exchange import Codec
from dfl_jax.models import MLP, Model

WINDOW_SIGMA, WINDOW_RADIUS = 1.5, 5  # of SSIM, in pixels
STABILISERS = (0.01**2, 0.03**2)  # (K1 L)^2 and (K2 L)^2 of SSIM with the range L = 1


def rows(model: Model, w: PyTree, x: Array) -> PyTree:
    """The gradient of every output at one sample x [...]: leaves [C, ...], like those of w."""
    return jax.jacrev(lambda w: model.apply(w, x[None])[0])(w)


def received(model: Model, codec: Codec | None, key: Array, w: PyTree, x: Array) -> PyTree:
    """The rows of one sample as the receiver decodes them, one message an output.

    x: of the model's input shape, projected where inputs are projected.
    """
    exact = rows(model, w, x)
    if codec is None:
        return exact
    return jax.vmap(codec.transmit)(jax.random.split(key, model.classes), exact)


def reconstruct(
    key: Array,
    model: Model,
    w: PyTree,
    sent: PyTree,
    shape: Sequence[int],
    projection: Array | None = None,
    **settings,
) -> tuple[Array, Array]:
    """Gradient matching of one sample: the image, and how far its rows are from those received.

    Args:
      sent: the rows as received, leaves [C, ...].
      shape: of the image.
      projection: P [d1, d1'] where the model takes projected inputs; the search is over images.
      settings: of `match`.
    """

    def encode(x: Array) -> PyTree:
        seen = x if projection is None else x.ravel() @ projection
        return rows(model, w, seen.reshape(model.input_shape))

    return match(key, encode, sent, shape, **settings)


def match(
    key: Array,
    encode: Callable[[Array], PyTree],
    target: PyTree,
    shape: Sequence[int],
    *,
    on_support: bool = False,
    by_angle: bool = False,
    bounds: tuple[float, float] | None = None,
    smoothness: float = 0.0,
    restarts: int = 2,
    steps: int = 1000,
    lr: float = 0.1,
) -> tuple[Array, Array]:
    """The x whose encode(x) is nearest the target, by Adam from Gaussian noise, and its objective.

    Nearest by the squared distance over the target's square.

    Args:
      encode: image -> what is observed of it.
      target: the observation, a tree like encode's.
      shape: of the image, [..., height, width, channels] where smoothness is positive.
      on_support: compare only where the target is not zero, as top-k leaves it.
      by_angle: nearest by one minus the cosine of the angle, which does not see how long the target
        is, and Adam by the sign of each derivative (Geiping et al. 2020, "Inverting gradients").
      bounds: the lowest and highest value of a pixel; x is clipped to them at every step.
      smoothness: weight of the total variation, the mean modulus of neighbouring pixels'
        differences.
      restarts: searches from different noise, of which the best is returned.
      lr: of the first step, in units of x; it falls to zero on a half cosine.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(lr, steps))

    def objective(x: Array) -> Array:
        encoded = encode(x)
        if on_support:
            encoded = jax.tree.map(lambda a, b: jnp.where(b != 0, a, 0), encoded, target)
        if by_angle:
            lengths = optax.tree.norm(encoded) * optax.tree.norm(target)
            distance = 1 - optax.tree.vdot(encoded, target) / lengths
        else:
            error = optax.tree.norm(optax.tree.sub(encoded, target), squared=True)
            distance = error / optax.tree.vdot(target, target)
        return distance + (smoothness * variation(x) if smoothness else 0)

    def step(carry: PyTree, _: None) -> tuple[PyTree, None]:
        x, state = carry
        slope = jax.grad(objective)(x)
        change, state = optimizer.update(jnp.sign(slope) if by_angle else slope, state)
        x = x + change
        return (x if bounds is None else jnp.clip(x, *bounds), state), None

    def search(key: Array) -> tuple[Array, Array]:
        start = jax.random.normal(key, tuple(shape), jax.tree.leaves(target)[0].dtype)
        (x, _), _ = lax.scan(step, (start, optimizer.init(start)), length=steps)
        return x, objective(x)

    images, values = lax.map(search, jax.random.split(key, restarts))
    best = jnp.nanargmin(values)
    return images[best], values[best]


def variation(x: Array) -> Array:
    """Total variation of images [..., height, width, channels], the mean over pixels."""
    down, right = jnp.diff(x, axis=-3), jnp.diff(x, axis=-2)
    return (jnp.sum(jnp.abs(down)) + jnp.sum(jnp.abs(right))) / x.size


def closed_form(model: Model, sent: PyTree, *, on_support: bool = False) -> Array:
    """The input of an MLP's first layer by least squares over hidden units and outputs.

    Args:
      sent: the rows as received, leaves [C, ...].
      on_support: use only entries that are not zero, as top-k leaves them. Stochastic rounding
        makes zeros that are right on average: with it, use them all.

    Returns x of the model's input shape, 0 where no entry of a pixel survived: all were among the
    smallest.

    Raises ValueError where the model is no MLP.
    """
    if not isinstance(model.module, MLP):
        raise ValueError(
            f'the closed form takes an MLP, not {type(model.module).__name__}: use reconstruct'
        )
    first = sent['Dense_0']
    products, signals = first['kernel'], first['bias'][:, None, :]  # x d_c^T [C, d1, d_h], d_c
    used = (signals != 0) & (products != 0) if on_support else jnp.ones_like(products, bool)
    numerator = jnp.sum(jnp.where(used, products * signals, 0), (0, 2))
    denominator = jnp.sum(jnp.where(used, signals**2, 0), (0, 2))
    survived = denominator > 0
    x = jnp.where(survived, numerator / jnp.where(survived, denominator, 1), 0)
    return x.reshape(model.input_shape)


def minimum_norm(z: Array, projection: Array) -> Array:
    """The x [d1] of least norm with x P = z [d1'], for P [d1, d1']."""
    return jnp.linalg.pinv(projection).T @ z


def most_likely(z: Array, projection: Array, known: Array, ridge: float = 0.1) -> Array:
    """The x [d1] that is most likely given x P = z [d1'] under a Gaussian fitted to known inputs.

    x = mu + S P (P^T S P)^-1 (z - mu P), with the mean mu and the covariance S of `known` [n, d1],
    to which `ridge` times its mean variance is added on the diagonal.
    """
    mean = known.mean(0)
    deviations = (known - mean[None]) / math.sqrt(len(known))
    floor = ridge * jnp.sum(deviations**2) / mean.size
    covariance = deviations.T @ (deviations @ projection) + floor * projection  # S P, [d1, d1']
    return mean + covariance @ jnp.linalg.solve(projection.T @ covariance, z - mean @ projection)


def psnr(image: np.ndarray, original: np.ndarray) -> float:
    """Peak signal-to-noise ratio in dB of images in [0, 1]; infinite for identical ones."""
    error = np.mean((np.asarray(image, np.float64) - original) ** 2)
    return math.inf if error == 0 else -10 * math.log10(error)


def ssim(image: np.ndarray, original: np.ndarray) -> float:
    """Mean structural similarity of images in [0, 1]: the mean of `similarity` over all pixels."""
    return float(np.mean(similarity(image, original)))


def similarity(image: np.ndarray, original: np.ndarray) -> np.ndarray:
    """Structural similarity at every pixel of images [height, width, channels] in [0, 1].

    Wang et al. 2004: a Gaussian window of 11 x 11 pixels with sigma 1.5, K1 = 0.01, K2 = 0.03. The
    images are mirrored at their border, so that those smaller than the window have one, too.
    """

    def blurred(x: np.ndarray) -> np.ndarray:
        return ndimage.gaussian_filter(x, WINDOW_SIGMA, radius=WINDOW_RADIUS, axes=(0, 1))

    a, b = np.asarray(image, np.float64), np.asarray(original, np.float64)
    mean_a, mean_b = blurred(a), blurred(b)
    variances = blurred(a * a) - mean_a**2 + blurred(b * b) - mean_b**2
    covariance = blurred(a * b) - mean_a * mean_b
    c1, c2 = STABILISERS
    luminance = (2 * mean_a * mean_b + c1) / (mean_a**2 + mean_b**2 + c1)
    return luminance * (2 * covariance + c2) / (variances + c2)
