"""How exact is each evolution of the outputs, and what does it cost?

    python -m benchmarks.evolution
    python -m benchmarks.evolution --data_dir=DIR [--partition_file=FILE]

The accumulated residual S_t of Eq. (5b), cross-entropy, under the first-round kernel of one hub,
beside the gradient flow dS/dt = softmax(f0 - lr/N~ S H) - Y integrated by the midpoint rule with
16 substeps a time step in float64. Euler is gradient descent itself, so its distance from the flow
is that of the paper's method; the last column but two is the distance of the others from it.

`rkc` is the integrator as shipped: steps that double from one to 100. `rkc single` takes each
interval of 100 time steps at once, which shows why they are graded; `rkc finer` lets a step be half
as long as the time passed, `rkc coarser` twice as long.
"""

from collections.abc import Callable, Sequence
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging
from jax import lax

from benchmarks import _common as common
from dfl_jax import data
from dfl_jax.models import MLP, bind
from dfl_jax.ntk import TIMESTEPS, evolution, kernel_fn

_SAMPLES = flags.DEFINE_integer('samples', 1182, 'N~ of random data', lower_bound=1)
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'folder with Fashion-MNIST; default random data')
_PARTITION_FILE = flags.DEFINE_string(
    'partition_file', None, 'JSON; its first six clients are the hub (default: alpha = 0.1)'
)
_REPEATS = flags.DEFINE_integer('repeats', 5, 'timed calls', lower_bound=1)
_SUBSTEPS = flags.DEFINE_integer('substeps', 16, 'of the reference in one step', lower_bound=1)

LR = 0.01
Arrays = tuple[jax.Array, ...]  # arguments of `evolve`: H, f0, y, mask, lr


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    arguments = first_round()
    largest = float(jnp.linalg.eigvalsh(arguments[0])[-1]) / len(arguments[3])
    print(f'{common.about()}\nN~ = {len(arguments[3])}, largest eigenvalue of H / N~ {largest:.0f}')
    exact = flow(arguments)

    ends = ''.join(f'{t:>9}' for t in TIMESTEPS)
    print(f'\nrelative error of S_t at t =\n{"":12}{ends}{"vs euler":>10}{"products":>10}{"ms":>9}')
    euler = None
    for name, (method, grading) in VARIANTS.items():
        settings = {'timesteps': TIMESTEPS, 'method': method}
        with mock.patch.object(evolution, '_graded', grading):
            program = common.compiled(lambda *a, s=settings: evolution.evolve(*a, **s), *arguments)
            products = common.count_products([arguments], **settings)[0]
        totals = np.asarray(program.call(*arguments), np.float64)
        milliseconds = 1e3 * common.median_seconds(program.call, *arguments, repeats=_REPEATS.value)
        euler = totals if euler is None else euler
        errors = ''.join(f'{error:9.1e}' for error in relative(totals, exact))
        print(
            f'{name:12}{errors}{relative(totals, euler).max():10.1e}{products:10d}'
            f'{milliseconds:9.1f}',
            flush=True,
        )


def graded(factor: float) -> Callable[[Sequence[int]], list[int]]:
    """Steps no longer than `factor` times the time passed; `evolution._graded` is that of 1."""

    def lengths(timesteps: Sequence[int]) -> list[int]:
        found, now = [], 0
        for end in timesteps:
            while now < end:
                found.append(min(max(int(factor * now), 1), evolution.LONGEST, end - now))
                now += found[-1]
        return found

    return lengths


VARIANTS: dict[str, tuple[str, Callable[[Sequence[int]], list[int]]]] = {
    'euler': ('euler', evolution._graded),
    'rkc': ('rkc', evolution._graded),
    'rkc finer': ('rkc', graded(0.5)),
    'rkc coarser': ('rkc', graded(2)),
    'rkc single': ('rkc', lambda timesteps: np.diff([0, *timesteps]).tolist()),
}


def first_round() -> Arrays:
    """The arguments of `evolve` at one hub in the first round."""
    if _DATA_DIR.value:
        dataset = data.load('fashion_mnist', _DATA_DIR.value)
        parts = data.partition('dirichlet', dataset, 300, seed=0, path=_PARTITION_FILE.value)
        held = np.concatenate(parts[:6])
        x, labels = jnp.asarray(dataset.train_x[held]), jnp.asarray(dataset.train_y[held])
    else:
        x, labels = (a[0] for a in common.random_clients(1, _SAMPLES.value)[:2])
    model = bind(MLP(common.CLASSES), x.shape[1:])
    params = jax.jit(model.init)(jax.random.key(0))
    kernel = jax.jit(kernel_fn(model))(params, x)
    y = jax.nn.one_hot(labels, common.CLASSES).T
    return kernel, jax.jit(model.apply)(params, x).T, y, jnp.ones(len(x), bool), jnp.float32(LR)


def flow(arguments: Arrays) -> np.ndarray:
    """S_t of the gradient flow, [T, C, N~] float64, by the midpoint rule."""
    with jax.enable_x64(True):
        kernel, f0, y = (jnp.asarray(np.asarray(a), jnp.float64) for a in arguments[:3])
        step = 1 / _SUBSTEPS.value

        def slope(s):
            f = f0 - LR / len(kernel) * evolution.product(s, kernel)
            return jax.nn.softmax(f, axis=0) - y

        def interval(s, length):
            def substep(_, s):
                return s + step * slope(s + 0.5 * step * slope(s))

            s = lax.fori_loop(0, length * _SUBSTEPS.value, substep, s)
            return s, s

        lengths = jnp.diff(jnp.array([0, *TIMESTEPS]))
        return np.asarray(jax.jit(lambda s: lax.scan(interval, s, lengths)[1])(jnp.zeros_like(f0)))


def relative(totals: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """||totals - expected|| / ||expected|| at each timestep."""
    norm = lambda a: np.linalg.norm(a, axis=(1, 2))  # noqa: E731
    return norm(totals - expected) / norm(expected)


if __name__ == '__main__':
    app.run(main)
