"""FedJAX: its federated averaging, with the jitted loop over clients that is its default."""

from importlib.metadata import version

import fedjax
import jax
import jax.numpy as jnp

from benchmarks.peers import _common as common


def loss(weights, batch, key):
    """Mean cross-entropy of a batch."""
    del key
    w1, b1, w2, b2 = weights
    logits = jax.nn.relu(batch['x'] @ w1 + b1) @ w2 + b2
    return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(batch['y'])), batch['y']])


def main() -> None:
    args = common.arguments()
    datasets = [
        fedjax.ClientDataset({'x': x, 'y': y})
        for x, y in zip(*common.data(args.clients, args.samples), strict=True)
    ]
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(common.LR),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(batch_size=args.batch_size, num_epochs=1),
    )
    state = algorithm.init([jnp.asarray(w) for w in common.first_weights()])
    clock = common.Clock()
    clock()
    for key in jax.random.split(jax.random.PRNGKey(0), common.WARM_UP + args.rounds):
        keys = jax.random.split(key, args.clients)
        state, _ = algorithm.apply(state, list(zip(range(len(keys)), datasets, keys, strict=True)))
        jax.block_until_ready(state.params)
        clock()
    about = f'{version("fedjax")}, JAX {jax.__version__}'
    common.report('FedJAX', about, args, clock, [jax.device_get(w) for w in state.params])


if __name__ == '__main__':
    main()
