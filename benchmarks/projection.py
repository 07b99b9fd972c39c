"""What does a random projection of the Jacobian cost, and what does it do to the kernel?

    python -m benchmarks.projection --data_dir=DIR

First table: SPARK's kernel K = J~ J~^T over samples and outputs (Eq. 6) beside the exact J J^T, for
the first network (MLP 784-100-10, He-normal) on some samples of Fashion-MNIST, without --data_dir
on random data. `top` are the relative errors, without sign, of its first, second and tenth
eigenvalue. With R the first residual softmax(f) - y, `train` is the cosine between K R and its
exact counterpart, the step of the outputs; `held out` the same for samples that took no part;
`P J~^T R` that of the step of the weights with the exact one, which a projection to k of P weights
leaves at sqrt(k / P).

Second table: milliseconds of one aggregator's update (1,194 samples in 6 clients, the timesteps of
spark) and seconds of a round of 300 such aggregators, whole Jacobians for comparison and NTK-DFL's
update in the same run.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax import lax
from jax.flatten_util import ravel_pytree

from benchmarks import _common as common
from dfl_jax import data
from dfl_jax.algorithms.spark import NTK as SPARK
from dfl_jax.base import Array, PyTree
from dfl_jax.models import Model
from dfl_jax.ntk import NtkUpdate, linearization, ntk_update
from dfl_jax.ntk.linearized import projected
from dfl_jax.ntk.projection import PROJECTIONS, projection

_DATA = flags.DEFINE_string('data_dir', None, 'folder with Fashion-MNIST')
_SAMPLES = flags.DEFINE_integer('samples', 100, 'samples of the first table', lower_bound=20)
_DIMENSIONS = flags.DEFINE_list('dimensions', ['500', '750', '1000', '5000'], 'k')
_SEEDS = flags.DEFINE_integer('seeds', 3, 'draws of P', lower_bound=1)
_AGGREGATOR = flags.DEFINE_integer('aggregator_samples', 1194, 'samples of the second table', 1)
_REPEATS = flags.DEFINE_integer('repeats', 5, 'timed updates', lower_bound=1)
_KINDS = flags.DEFINE_list('kinds', [k for k in PROJECTIONS if k != 'none'], 'kinds of P')

SHOWN = (0, 1, 9)  # eigenvalues
LR = 0.01


def main() -> None:
    model = common.mlp()
    params = model.init(jax.random.key(0))
    x, labels = samples(2 * max(_SAMPLES.value, _AGGREGATOR.value))
    print(f'{common.about()}\n')
    distortion(model, params, x, labels)
    cost(model, params, x[: _AGGREGATOR.value], labels[: _AGGREGATOR.value])


def samples(count: int) -> tuple[Array, Array]:
    """x [count, 28, 28, 1] and labels [count]."""
    if _DATA.value is None:
        clients = common.random_clients(1, count)
        return clients.x[0], clients.y[0]
    dataset = data.load('fashion_mnist', _DATA.value)
    return jnp.asarray(dataset.train_x[:count]), jnp.asarray(dataset.train_y[:count])


def distortion(model: Model, params: PyTree, x: Array, labels: Array) -> None:
    """Prints what P leaves of eigenvalues and steps."""
    n, classes = _SAMPLES.value, model.classes
    jac = common.jacobian(model, params, x[: 2 * n]).swapaxes(0, 1)  # [C, 2 n, P]
    train, held_out = (part.reshape(n * classes, -1) for part in jnp.split(jac, 2, axis=1))
    y = jax.nn.one_hot(labels[:n], classes)
    residual = (jax.nn.softmax(model.apply(params, x[:n])) - y).T  # [C, n]
    step = train.T @ residual.ravel()
    largest = eigenvalues(train @ train.T)

    def errors(draw: Callable[[Array], tuple[Array, Array]], seed: int) -> list[float]:
        kernel, projected_step = draw(jax.random.key(seed))
        return [
            *np.abs(eigenvalues(kernel) / largest - 1),
            cosine(train @ projected_step, train @ step),
            cosine(held_out @ projected_step, held_out @ step),
            cosine(projected_step, step),
        ]

    print(f'{n} samples, mean over {_SEEDS.value} draws of P\n')
    table = common.Table('P', 'k', 'top 1', 'top 2', 'top 10', 'train', 'held out', 'P J~^T R')
    for kind in _KINDS.value:
        for k in map(int, _DIMENSIONS.value):
            draw = kernel_and_step(model, kind, k, params, x[:n], residual)
            means = np.mean([errors(draw, seed) for seed in range(_SEEDS.value)], axis=0)
            table.row(kind, k, *((value, '.3f') for value in means))
    print()


def kernel_and_step(
    model: Model, kind: str, k: int, params: PyTree, x: Array, residual: Array
) -> Callable[[Array], tuple[Array, Array]]:
    """draw(key) -> K [C n, C n] and the step of the weights [P] of one draw of P."""
    random = projection(kind, model.shapes, k)

    @jax.jit
    def draw(key: Array) -> tuple[Array, Array]:
        mask = jnp.ones(len(x), bool)
        linearized = projected(model, random)(key, random.draw(key), params, x, mask)
        units = jnp.eye(residual.size).reshape(-1, *residual.shape)
        kernel = lax.map(linearized.kernel, units).reshape(len(units), -1)
        return kernel, ravel_pytree(linearized.vjp(residual))[0]

    return draw


def eigenvalues(kernel: Array) -> np.ndarray:
    return np.linalg.eigvalsh(np.asarray(kernel, np.float64))[::-1][list(SHOWN)]


def cosine(a: Array, b: Array) -> float:
    return float(a @ b / jnp.linalg.norm(a) / jnp.linalg.norm(b))


def cost(model: Model, params: PyTree, x: Array, labels: Array) -> None:
    """Prints the time of an aggregator's update by each kind of P."""
    y, mask, key = (
        jax.nn.one_hot(labels, model.classes).T,
        jnp.ones(len(x), bool),
        jax.random.key(0),
    )

    def seconds_by(linearize, settings) -> float:
        update = ntk_update(model, settings)

        def run(key, params, x, y):
            return update(params, linearize(key, params, x), x, y, mask, LR)

        program = common.compiled(run, key, params, x, y).call
        return common.median_seconds(program, key, params, x, y, repeats=_REPEATS.value, budget=20)

    print(f'{len(x)} samples, k = 1000\n')
    table = common.Table('P', 'ms an aggregator', 's a round of 300', 'of NTK-DFL')
    baseline = 0.0
    for kind in ('(NTK-DFL)', *_KINDS.value, 'none'):
        if kind == '(NTK-DFL)':
            seconds = baseline = seconds_by(linearization(model), NtkUpdate())
        else:
            random = projection(kind, model.shapes)

            def linearize(key, params, x, random=random):
                return projected(model, random)(key, random.draw(key), params, x, mask)

            seconds = seconds_by(linearize, SPARK)
        table.row(kind, (1e3 * seconds, '.0f'), (300 * seconds, '.0f'), (seconds / baseline, '.1f'))


if __name__ == '__main__':
    common.start(main)
