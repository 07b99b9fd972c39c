"""What does a compressed Jacobian cost one aggregator, in time, memory and error of the kernel?

    python -m benchmarks.compression

One kernel and one update J^T S of the MLP 784-100-10, or 200-100-10 with projected inputs: exact,
where the layers' structure spares the Jacobian, and from the rows that a receiver decodes
(`dfl_jax.ntk.compressed`), which are kept for the update where they fit and computed again where
they do not. `error` is that of the kernel against the exact one, relative, in the Frobenius norm.
"""

from functools import partial

import jax
import jax.numpy as jnp
from absl import app, flags, logging

from benchmarks import _common as common
from dfl_jax.base import Array, PyTree
from dfl_jax.compression import Codec, chain, quantization, top_k
from dfl_jax.models import MLP, Model, bind
from dfl_jax.ntk import compressed, kernel_fn

CODECS = {
    'sparsity 0.5': top_k(0.5),
    'sparsity 0.5 + 6 bits': chain(top_k(0.5), quantization(6, 'nearest')),
    'sparsity 0.9 + 6 bits': chain(top_k(0.9), quantization(6, 'nearest')),
    '6 bits': quantization(6, 'nearest'),
    '6 bits stochastic': quantization(6, 'stochastic'),
}

_MEMBERS = flags.DEFINE_integer(
    'members', 6, 'clients of the aggregator, itself included', lower_bound=1
)
_SAMPLES = flags.DEFINE_list('samples', ['40', '200'], 'samples a client')
_FEATURES = flags.DEFINE_list('features', ['200', '784'], 'inputs of the network')
_CODECS = flags.DEFINE_list('codecs', list(CODECS), 'which of the codecs')
_REPEATS = flags.DEFINE_integer('repeats', 3, 'timed calls', lower_bound=1)


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    print(common.about())
    for features in map(int, _FEATURES.value):
        model = bind(MLP(common.CLASSES), (features,))
        for samples in map(int, _SAMPLES.value):
            table(model, samples)


def table(model: Model, own: int) -> None:
    """own: samples of each client."""
    samples = _MEMBERS.value * own
    params = jax.jit(model.init)(jax.random.key(0))
    x = common.random_clients(1, samples, model.input_shape).x[0]
    total = jax.random.normal(jax.random.key(1), (model.classes, samples))
    kept = compressed.row_bytes(samples, model) * model.classes <= compressed.STORED
    print(f'\nP = {model.size}, N~ = {samples}, rows {"kept" if kept else "computed twice"}')
    print(f'{"Jacobian":22}{"bits/entry":>11}{"seconds":>10}{"GiB":>8}{"error":>9}', flush=True)

    program = common.compiled(partial(exact, model), params, x, total)
    h = program.call(params, x, total)[0]
    line('exact, by structure', 32.0, program, (params, x, total), 0.0)
    for name in _CODECS.value:
        codec = CODECS[name]
        program = common.compiled(partial(decoded, model, codec, own), params, x, total)
        received = program.call(params, x, total)[0]
        error = float(jnp.linalg.norm(received - h) / jnp.linalg.norm(h))
        entry = codec.bits(model.shapes) / model.size
        line(name, entry, program, (params, x, total), error)


def line(name: str, entry: float, program: common.Compiled, args: tuple, error: float) -> None:
    seconds = common.median_seconds(program.call, *args, repeats=_REPEATS.value)
    memory = program.temporary / common.GIB
    print(f'{name:22}{entry:11.2f}{seconds:10.4f}{memory:8.3f}{error:9.1e}', flush=True)


def exact(model: Model, params: PyTree, x: Array, total: Array) -> tuple[Array, PyTree]:
    """H and J^T S, no Jacobian formed."""
    _, pull = jax.vjp(lambda w: model.apply(w, x).T, params)
    return kernel_fn(model)(params, x), pull(total)[0]


def decoded(
    model: Model, codec: Codec, own: int, params: PyTree, x: Array, total: Array
) -> tuple[Array, PyTree]:
    """The same from decoded rows."""
    h, pull = compressed.decoded_jacobian(model, codec, jax.random.key(2), params, x, own)
    return h, pull(total)


if __name__ == '__main__':
    app.run(main)
