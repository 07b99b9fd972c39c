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
from absl import flags

from benchmarks import _common as common
from dfl_jax.base import Array, PyTree
from dfl_jax.models import MLP, Model, SmallCNN, bind
from dfl_jax.ntk import kernel_fn

_SAMPLES = flags.DEFINE_integer('samples', 600, 'N~ for the MLP 784-100-10', lower_bound=1)
_CNN_SAMPLES = flags.DEFINE_integer('cnn_samples', 200, 'N~ for the small CNN', lower_bound=1)
_REPEATS = flags.DEFINE_integer('repeats', 3, 'timed calls', lower_bound=1)

TARGETS = {'structured': 1e-12, 'output_scan': 1e-12, 'nt': 1e-10}


def main() -> None:
    print(common.about())
    cnn = bind(SmallCNN(common.CLASSES), common.IMAGE)
    speed('MLP 784-100-10', common.mlp(), _SAMPLES.value)
    speed('small CNN', cnn, _CNN_SAMPLES.value)
    accuracy()


def speed(name: str, model: Model, samples: int) -> None:
    """Prints time and memory of each backend."""
    print(f'\n{name}, P = {model.size}, N~ = {samples}\n')
    table = common.Table('backend', 'compile s', 'seconds', 'temporary GiB')
    params, x = aggregator(model, samples)
    for backend, kernel in backends(model).items():
        program = common.compiled(kernel, params, x)
        try:
            seconds = common.median_seconds(program.call, params, x, repeats=_REPEATS.value)
            timed = f'{seconds:.4f}'
        except jax.errors.JaxRuntimeError as error:
            timed = 'no memory' if 'RESOURCE_EXHAUSTED' in str(error) else 'failed'
        memory = program.temporary / common.GIB
        table.row(backend, (program.seconds, '.2f'), timed, (memory, '.3f'))


def accuracy() -> None:
    """Prints each backend's difference from the dense Jacobian, beside its target."""
    print('\nMLP 64-32-10, N~ = 60, float64\n')
    table = common.Table('backend', 'difference', 'target', '')
    with jax.enable_x64(True):
        model = bind(MLP(common.CLASSES, (32,)), (64,))
        params, x = jax.tree.map(lambda a: a.astype(jnp.float64), aggregator(model, 60))
        kernels = {name: jax.jit(k)(params, x) for name, k in backends(model).items()}
        dense = kernels.pop('dense')
        for name, kernel in kernels.items():
            relative = float(jnp.abs(kernel - dense).max() / jnp.abs(dense).max())
            verdict = '' if relative <= TARGETS[name] else 'MISSED'
            table.row(name, (relative, '.1e'), (TARGETS[name], '.0e'), verdict)


def backends(model: Model) -> dict[str, Callable[[PyTree, Array], Array]]:
    """Every backend that is installed, the dense Jacobian last."""
    kernels: dict[str, Callable[[PyTree, Array], Array]] = {}
    for name in TARGETS:
        try:
            kernels[name] = kernel_fn(model, name)
        except ImportError as error:
            print(f'{name} is left out: {error}')

    def dense(params: PyTree, x: Array) -> Array:
        rows = common.jacobian(model, params, x, block=16).reshape(len(x), -1)
        return jnp.matmul(rows, rows.T, precision='highest') / model.classes

    return kernels | {'dense': dense}


def aggregator(model: Model, samples: int) -> tuple[PyTree, Array]:
    """Fresh weights, and the inputs of one aggregator."""
    x = common.random_clients(1, samples, model.input_shape).x[0]
    return jax.jit(model.init)(jax.random.key(0)), x


if __name__ == '__main__':
    common.start(main)
