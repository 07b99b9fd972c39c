"""dfl_jax: D-PSGD on a new 5-regular graph every round, one jitted call a round."""

import contextlib
from functools import partial
from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers import _common as common
from dfl_jax import topology
from dfl_jax.base import Algorithm, Clients, PyTree
from dfl_jax.exchange import one_round
from dfl_jax.execution.devices import cores_as_devices, mesh_of_cores, placed, replicated
from dfl_jax.execution.memory import choose_chunk, client_bytes
from dfl_jax.methods import make
from dfl_jax.models import MLP, bind

LAYERS = ('Dense_0', 'Dense_1')


def main() -> None:
    args = common.arguments()
    cores_as_devices()
    x, y = common.data(args.clients, args.samples)
    model = bind(MLP(common.CLASSES, (common.HIDDEN,)), x.shape[2:])
    chunk = choose_chunk(args.clients, client_bytes(args.samples, model))
    algorithm = make('dpsgd', model, lr=common.LR, batch_size=args.batch_size, chunk=chunk)
    rounds = common.WARM_UP + args.rounds
    schedule = topology.schedule('regular', args.clients, rounds, seed=0, degree=common.DEGREE)
    graphs = [jax.tree.map(lambda a, k=k: np.asarray(a[k]), schedule) for k in range(rounds)]
    mesh = mesh_of_cores(args.clients)
    with jax.set_mesh(mesh) if mesh else contextlib.nullcontext():
        clients = placed(Clients(x, y, np.ones(y.shape, bool)), mesh)
        state = placed(first_state(algorithm, clients), mesh)
        shardings = jax.tree.map(lambda a: a.sharding, state), replicated()
        step = jax.jit(partial(one_round, algorithm), donate_argnums=1, out_shardings=shardings)
        clock = common.Clock()
        clock()
        for number, graph in enumerate(graphs):
            key = jax.random.key(number)
            state, _ = jax.block_until_ready(step(key, state, number, graph, clients))
            clock()
    layers = [state.params[name][part] for name in LAYERS for part in ('kernel', 'bias')]
    common.report(
        'dfl_jax',
        f'{version("dfl_jax")}, JAX {jax.__version__}',
        args,
        clock,
        [np.asarray(layer.mean(axis=0)) for layer in layers],
    )


def first_state(algorithm: Algorithm, clients: Clients) -> PyTree:
    """Every client holds the weights that all simulators start from."""
    state = jax.jit(algorithm.init)(jax.random.key(0), clients)
    w1, b1, w2, b2 = common.first_weights()
    first = dict(zip(LAYERS, ({'bias': b1, 'kernel': w1}, {'bias': b2, 'kernel': w2}), strict=True))
    params = jax.tree.map(
        lambda old, new: jnp.tile(new, (len(old), *[1] * new.ndim)), state.params, first
    )
    return state._replace(params=params)


if __name__ == '__main__':
    main()
