"""Which kernel backend is fastest, how much memory does each plan, and how exact are they?

    python -m benchmarks.kernels

The kernel of one aggregator, H [N~, N~], by every backend and by the dense Jacobian J [N~, C, P]:
seconds and the temporary memory that XLA plans (which holds J whole for `dense`), in float32. Then
the largest difference of each from the dense one, relative to the largest entry, in float64 on a
small network.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from absl import app, flags, logging

from benchmarks import _common as common
from dfl_jax.base import Array, PyTree
from dfl_jax.models import MLP, Model, SmallCNN, bind
from dfl_jax.ntk import kernel_fn

_SAMPLES = flags.DEFINE_integer('samples', 600, 'N~ for the MLP 784-100-10', lower_bound=1)
_CNN_SAMPLES = flags.DEFINE_integer('cnn_samples', 200, 'N~ for the small CNN', lower_bound=1)
_REPEATS = flags.DEFINE_integer('repeats', 3, 'timed calls', lower_bound=1)

IMAGE = (28, 28, 1)
TARGETS = {'structured': 1e-12, 'output_scan': 1e-12, 'nt': 1e-10}


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    print(common.about())
    mlp = bind(MLP(common.CLASSES), IMAGE)
    cnn = bind(SmallCNN(common.CLASSES), IMAGE)
    for name, model, samples in (
        ('MLP 784-100-10', mlp, _SAMPLES.value),
        ('small CNN', cnn, _CNN_SAMPLES.value),
    ):
        print(f'\n{name}, P = {model.size}, N~ = {samples}')
        print(f'{"backend":14}{"compile s":>10}{"seconds":>10}{"temporary GiB":>15}', flush=True)
        params, x = aggregator(model, samples)
        for backend, kernel in backends(model).items():
            program = common.compiled(kernel, params, x)
            try:
                seconds = common.median_seconds(program.call, params, x, repeats=_REPEATS.value)
                timed = f'{seconds:10.4f}'
            except jax.errors.JaxRuntimeError as error:
                timed = f'{"no memory" if "RESOURCE_EXHAUSTED" in str(error) else "failed":>10}'
            memory = program.temporary / common.GIB
            print(f'{backend:14}{program.seconds:10.2f}{timed}{memory:15.3f}', flush=True)
    accuracy()


def accuracy() -> None:
    """Prints each backend's difference from the dense Jacobian, beside its target."""
    print('\nMLP 64-32-10, N~ = 60, float64\nbackend       difference    target')
    with jax.enable_x64(True):
        model = bind(MLP(common.CLASSES, (32,)), (64,))
        params, x = jax.tree.map(lambda a: a.astype(jnp.float64), aggregator(model, 60))
        kernels = {name: jax.jit(k)(params, x) for name, k in backends(model).items()}
        for name, target in TARGETS.items():
            if name in kernels:
                apart = jnp.abs(kernels[name] - kernels['dense']).max()
                relative = float(apart / jnp.abs(kernels['dense']).max())
                verdict = '' if relative <= target else '  MISSED'
                print(f'{name:14}{relative:10.1e}{target:10.0e}{verdict}')


def backends(model: Model) -> dict[str, Callable[[PyTree, Array], Array]]:
    """Every backend that is installed, the dense Jacobian last."""
    found: dict[str, Callable[[PyTree, Array], Array]] = {}
    for name in TARGETS:
        try:
            found[name] = kernel_fn(model, name)
        except ImportError as error:
            print(f'{name} is left out: {error}')

    def dense(params: PyTree, x: Array) -> Array:
        rows = common.jacobian(model, params, x, block=16).reshape(len(x), -1)
        return jnp.matmul(rows, rows.T, precision='highest') / model.classes

    return found | {'dense': dense}


def aggregator(model: Model, samples: int) -> tuple[PyTree, Array]:
    """Fresh weights, and the inputs of one aggregator."""
    x = common.random_clients(1, samples, model.input_shape).x[0]
    return jax.jit(model.init)(jax.random.key(0)), x


if __name__ == '__main__':
    app.run(main)
