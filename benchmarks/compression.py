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
from absl import flags

from benchmarks import _common as common
from dfl_jax.base import Array, PyTree
from dfl_jax.compression import Codec, chain, quantization, top_k
from dfl_jax.models import Model
from dfl_jax.ntk import compressed, kernel_fn

CODECS = {
    'sparsity 0.5': top_k(0.5),
    'sparsity 0.5 + 6 bits': chain(top_k(0.5), quantization(6, 'nearest')),
    'sparsity 0.9 + 6 bits': chain(top_k(0.9), quantization(6, 'nearest')),
    '6 bits': quantization(6, 'nearest'),
    '6 bits stochastic': quantization(6, 'stochastic'),
}

_MEMBERS = flags.DEFINE_integer('members', 6, 'clients that an aggregator hears, with itself', 1)
_SAMPLES = flags.DEFINE_list('samples', ['40', '200'], 'samples a client')
_FEATURES = flags.DEFINE_list('features', ['200', '784'], 'inputs of the network')
_CODECS = flags.DEFINE_list('codecs', list(CODECS), 'which of the codecs')
_REPEATS = flags.DEFINE_integer('repeats', 3, 'timed calls', lower_bound=1)


def main() -> None:
    print(common.about())
    for features in map(int, _FEATURES.value):
        for samples in map(int, _SAMPLES.value):
            compare(common.mlp((features,)), samples)


def compare(model: Model, each: int) -> None:
    """Prints the table of one network with `each` samples a client."""
    samples = _MEMBERS.value * each
    params = jax.jit(model.init)(jax.random.key(0))
    x = common.random_clients(1, samples, model.input_shape).x[0]
    total = jax.random.normal(jax.random.key(1), (model.classes, samples))
    kept = compressed.row_bytes(samples, model) * model.classes <= compressed.STORED
    print(f'\nP = {model.size}, N~ = {samples}, rows {"kept" if kept else "computed twice"}\n')
    table = common.Table('Jacobian', 'bits/entry', 'seconds', 'GiB', 'error')
    programs = {'exact, by structure': partial(exact, model)}
    programs |= {name: partial(decoded, model, CODECS[name], each) for name in _CODECS.value}
    h: Array | None = None
    for name, function in programs.items():
        program = common.compiled(function, params, x, total)
        received = program.call(params, x, total)[0]
        h = received if h is None else h
        bits = CODECS[name].bits(model.shapes) / model.size if name in CODECS else 32.0
        seconds = common.median_seconds(program.call, params, x, total, repeats=_REPEATS.value)
        error = float(jnp.linalg.norm(received - h) / jnp.linalg.norm(h))
        memory = program.temporary / common.GIB
        table.row(name, (bits, '.2f'), (seconds, '.4f'), (memory, '.3f'), (error, '.1e'))


def exact(model: Model, params: PyTree, x: Array, total: Array) -> tuple[Array, PyTree]:
    """H and J^T S, no Jacobian formed."""
    _, vjp = jax.vjp(lambda w: model.apply(w, x).T, params)
    return kernel_fn(model)(params, x), vjp(total)[0]


def decoded(
    model: Model, codec: Codec, each: int, params: PyTree, x: Array, total: Array
) -> tuple[Array, PyTree]:
    """The same from decoded rows."""
    h, vjp = compressed.decoded_jacobian(model, codec, jax.random.key(2), params, x, each)
    return h, vjp(total)


if __name__ == '__main__':
    common.start(main)
