"""dfl_jax: D-PSGD on a new 5-regular graph every round, one jitted call a round."""

from importlib.metadata import version

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import _common as jax_common
from benchmarks.peers import _common as common
from dfl_jax import topology
from dfl_jax.algorithms import make
from dfl_jax.base import Clients
from dfl_jax.memory import choose_chunk, client_bytes
from dfl_jax.models import MLP, bind


def main() -> None:
    args = common.arguments()
    x, y = common.data(args.clients, args.samples)
    clients = Clients(jnp.asarray(x), jnp.asarray(y), jnp.ones(y.shape, bool))
    model = bind(MLP(common.CLASSES, (common.HIDDEN,)), x.shape[2:])
    chunk = choose_chunk(args.clients, client_bytes(args.samples, model))
    algorithm = make('dpsgd', model, lr=common.LR, batch_size=args.batch_size, chunk=chunk)
    rounds = common.WARM_UP + args.rounds
    schedule = topology.schedule('regular', args.clients, rounds, seed=0, degree=common.DEGREE)
    graphs = [jax.tree.map(lambda a, k=k: jnp.asarray(a[k]), schedule) for k in range(rounds)]
    keys = jax.random.split(jax.random.key(0), rounds)
    state = jax.jit(algorithm.init)(keys[0], clients)
    w1, b1, w2, b2 = (jnp.asarray(w) for w in common.first_weights())
    first = {'Dense_0': {'bias': b1, 'kernel': w1}, 'Dense_1': {'bias': b2, 'kernel': w2}}
    state = state._replace(
        params=jax.tree.map(
            lambda old, new: jnp.tile(new, (len(old), *[1] * new.ndim)), state.params, first
        )
    )
    step = jax_common.compiled(algorithm.step, keys[0], state, graphs[0], clients, donate=1).call
    clock = common.Clock()
    clock()
    for key, graph in zip(keys, graphs, strict=True):
        state, info = step(key, state, graph, clients)
        jax.block_until_ready((state, info))
        clock()
    layers = [state.params[name][part] for name in first for part in ('kernel', 'bias')]
    common.report(
        'dfl_jax',
        f'{version("dfl_jax")}, JAX {jax.__version__}',
        args,
        clock,
        [np.asarray(layer.mean(axis=0)) for layer in layers],
    )


if __name__ == '__main__':
    main()
