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

Third table: the rate of the flow's stiffest mode, (diag(p) - p p^T) K, over the largest eigenvalue
of K, at several times of the evolution, for the first network and after some steps of gradient
descent: what `dfl_jax.ntk.evolution` relies on when it follows that mode.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags, logging
from jax import lax
from jax.flatten_util import ravel_pytree

from benchmarks import _common as common
from dfl_jax import data
from dfl_jax.base import Array, PyTree
from dfl_jax.models import MLP, Model, bind
from dfl_jax.ntk import TIMESTEPS, evolve, linearization, ntk_update
from dfl_jax.ntk.linearized import projected
from dfl_jax.ntk.projection import PROJECTIONS, Projection, projection

_DATA = flags.DEFINE_string('data_dir', None, 'folder with Fashion-MNIST')
_SAMPLES = flags.DEFINE_integer('samples', 100, 'samples of the first table', lower_bound=20)
_DIMENSIONS = flags.DEFINE_list('dimensions', ['500', '750', '1000', '5000'], 'k')
_SEEDS = flags.DEFINE_integer('seeds', 3, 'draws of P', lower_bound=1)
_HUB = flags.DEFINE_integer(
    'aggregator_samples', 1194, 'samples of the second table', lower_bound=1
)
_REPEATS = flags.DEFINE_integer('repeats', 5, 'timed updates', lower_bound=1)
_KINDS = flags.DEFINE_list('kinds', [k for k in PROJECTIONS if k != 'none'], 'kinds of P')

SPARK_TIMESTEPS = (100, 200, 400, 800)
SHOWN = (0, 1, 9)  # eigenvalues
TIMES = (0, 1, 10, 100, 400, 800)
LR, DESCENT = 0.01, 100


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    model = bind(MLP(common.CLASSES), (28, 28, 1))
    params = model.init(jax.random.key(0))
    x, labels = samples(2 * max(_SAMPLES.value, _HUB.value))
    print(f'{common.about()}\n')
    distortion(model, params, x, labels)
    print()
    cost(model, params, x[: _HUB.value], labels[: _HUB.value])
    print()
    stiffness(model, params, x[: _HUB.value], labels[: _HUB.value])


def samples(count: int) -> tuple[Array, Array]:
    """x [count, 28, 28, 1] and labels [count]."""
    if _DATA.value is None:
        clients = common.random_clients(1, count)
        return clients.x[0], clients.y[0]
    dataset = data.load('fashion_mnist', _DATA.value)
    return jnp.asarray(dataset.train_x[:count]).reshape(count, 28, 28, 1), jnp.asarray(
        dataset.train_y[:count]
    )


def distortion(model: Model, params: PyTree, x: Array, labels: Array) -> None:
    n, classes = _SAMPLES.value, model.classes
    jac = common.jacobian(model, params, x[: 2 * n]).swapaxes(0, 1)  # [C, 2 n, P]
    mine, held_out = (part.reshape(n * classes, -1) for part in jnp.split(jac, 2, axis=1))
    y = jax.nn.one_hot(labels[:n], classes)
    residual = (jax.nn.softmax(model.apply(params, x[:n])) - y).T  # [C, n]
    step = mine.T @ residual.ravel()
    largest = eigenvalues(mine @ mine.T)

    print(f'{n} samples, mean over {_SEEDS.value} draws of P\n')
    print('| P | k | top 1 | top 2 | top 10 | train | held out | P J~^T R |')
    print('|---|--:|--:|--:|--:|--:|--:|--:|')
    for kind in _KINDS.value:
        for k in map(int, _DIMENSIONS.value):
            drawn = [
                seen_through(
                    model, projection(kind, model.shapes, k), seed, params, x[:n], residual
                )
                for seed in range(_SEEDS.value)
            ]
            found = [
                [
                    *np.abs(eigenvalues(kernel) / largest - 1),
                    cosine(mine @ projected_step, mine @ step),
                    cosine(held_out @ projected_step, held_out @ step),
                    cosine(projected_step, step),
                ]
                for kernel, projected_step in drawn
            ]
            numbers = ' | '.join(f'{value:.3f}' for value in np.mean(found, axis=0))
            print(f'| {kind} | {k} | {numbers} |', flush=True)


def seen_through(
    model: Model, random: Projection, seed: int, params: PyTree, x: Array, residual: Array
) -> tuple[Array, Array]:
    """K [C n, C n] and the step of the weights [P] of one draw of P."""

    @jax.jit
    def run(key):
        mask = jnp.ones(len(x), bool)
        linearized = projected(model, random)(key, random.draw(key), params, x, mask)
        units = jnp.eye(residual.size).reshape(-1, *residual.shape)
        kernel = lax.map(linearized.kernel, units).reshape(len(units), -1)
        return kernel, linearized.vjp(residual)

    kernel, step = run(jax.random.key(seed))
    return kernel, ravel_pytree(step)[0]


def eigenvalues(kernel: Array) -> np.ndarray:
    return np.linalg.eigvalsh(np.asarray(kernel, np.float64))[::-1][list(SHOWN)]


def cosine(a: Array, b: Array) -> float:
    return float(a @ b / jnp.linalg.norm(a) / jnp.linalg.norm(b))


def cost(model: Model, params: PyTree, x: Array, labels: Array) -> None:
    y = jax.nn.one_hot(labels, model.classes).T
    mask = jnp.ones(len(x), bool)
    exact = linearization(model)
    update = ntk_update(model, timesteps=TIMESTEPS)

    def ntk_dfl(params, x, y):
        return update(params, exact(jax.random.key(0), params, x), x, y, mask, LR)

    baseline = timed(ntk_dfl, params, x, y)
    print(f'{len(x)} samples, k = 1000\n')
    print('| P | ms an aggregator | s a round of 300 | of NTK-DFL |')
    print('|---|--:|--:|--:|')
    print(f'| (NTK-DFL) | {1e3 * baseline:.0f} | {300 * baseline:.0f} | 1 |', flush=True)
    own = ntk_update(model, timesteps=SPARK_TIMESTEPS)
    for kind in (*_KINDS.value, 'none'):
        random = projection(kind, model.shapes)
        linearize = projected(model, random)

        def spark(key, params, x, y, random=random, linearize=linearize):
            linearized = linearize(key, random.draw(key), params, x, mask)
            return own(params, linearized, x, y, mask, LR)

        seconds = timed(spark, jax.random.key(0), params, x, y)
        ratio = f'{seconds / baseline:.1f}'
        print(f'| {kind} | {1e3 * seconds:.0f} | {300 * seconds:.0f} | {ratio} |', flush=True)


def stiffness(model: Model, params: PyTree, x: Array, labels: Array) -> None:
    y = jax.nn.one_hot(labels, model.classes).T
    linearize = projected(model, projection('low_rank', model.shapes))

    @jax.jit
    def rates(params):
        table = projection('low_rank', model.shapes).draw(jax.random.key(0))
        linearized = linearize(jax.random.key(0), table, params, x, jnp.ones(len(x), bool))
        totals = evolve(
            linearized.kernel,
            linearized.outputs,
            y,
            jnp.ones(len(x), bool),
            LR,
            timesteps=TIMES[1:],
        )

        def radius(apply):
            def iterate(_, carry):
                image = apply(carry[0])
                norm = jnp.linalg.norm(image)
                return image / norm, norm

            start = jax.random.normal(jax.random.key(1), y.shape)
            return lax.fori_loop(0, 40, iterate, (start / jnp.linalg.norm(start), 0.0))[1]

        def rate(total):
            p = jax.nn.softmax(linearized.outputs - LR / len(x) * linearized.kernel(total), axis=0)

            def saturated(v):
                image = p * linearized.kernel(v)
                return image - p * jnp.sum(image, axis=0, keepdims=True)

            return radius(saturated)

        totals = jnp.concatenate([jnp.zeros_like(totals[:1]), totals])
        return lax.map(rate, totals) / radius(linearized.kernel)

    def mean_loss(params):
        losses = optax.softmax_cross_entropy_with_integer_labels(model.apply(params, x), labels)
        return losses.mean()

    @jax.jit
    def trained(params):
        def descend(params, _):
            step = jax.grad(mean_loss)(params)
            return jax.tree.map(lambda w, g: w - 0.1 * g, params, step), None

        return lax.scan(descend, params, length=DESCENT)[0]

    print('| steps of gradient descent before | ' + ' | '.join(f't = {t}' for t in TIMES) + ' |')
    print('|--:|' + '--:|' * len(TIMES))
    for steps, network in ((0, params), (DESCENT, trained(params))):
        numbers = ' | '.join(f'{value:.3f}' for value in rates(network))
        print(f'| {steps} | {numbers} |', flush=True)


def timed(function, *args) -> float:
    program = common.compiled(function, *args).call
    return common.median_seconds(program, *args, repeats=_REPEATS.value, budget=20)


if __name__ == '__main__':
    app.run(main)
