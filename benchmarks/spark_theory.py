"""With which constants do the assumptions of SPARK's convergence theorem hold on a run?

    python -m benchmarks.spark_theory --data_dir=DIR --clients=60 --rounds=30

SPARK with its defaults on Fashion-MNIST, or without --data_dir on the handwritten digits, Dirichlet
with alpha = 0.1, a 5-regular graph drawn anew every round. Section 4 of the paper, with averages
over the M clients written w, v and D (of the updates), and z = w + mu^2 / (1 - mu) v:

* delta of Eq. (24): the largest ||E D + eta grad L(z)|| / eta of all rounds. The paper leaves eta
  to the reader; the one that makes delta smallest is taken.
* L of Assumption 4.3: the largest change of grad L(z) between rounds over the distance moved.
* sigma^2 gamma_t of Eq. (22): what E D and the noise about it are comes from --draws draws of the
  projections P_i, the only thing that is random in a round without sampling.

All bound quantities for all weights; met on a run they are lower bounds. C_1 = C_2 = 1.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize_scalar
from tqdm import tqdm

from benchmarks import _common as common
from dfl_jax.algorithms.spark import State
from dfl_jax.base import Array, Clients, PyTree
from dfl_jax.methods import make
from dfl_jax.metrics import consensus_model
from dfl_jax.models import Model

FLAGS = flags.FLAGS
DEGREE, MOMENTUM = 5, 0.9


def define_flags() -> None:
    flags.DEFINE_string('data_dir', None, 'folder with Fashion-MNIST; default digits')
    flags.DEFINE_integer('clients', 30, 'M', 8)
    flags.DEFINE_integer('rounds', 10, 'T', 2)
    flags.DEFINE_integer('draws', 3, 'of the projections in every round', 2)


def main() -> None:
    name = 'fashion_mnist' if FLAGS.data_dir else 'digits'
    clients, model = common.real_clients(name, FLAGS.data_dir, FLAGS.clients, None)
    print(f'{common.about()}\n{name}, {FLAGS.clients} clients, {FLAGS.draws} draws of P\n')
    rounds = measured(model, clients, FLAGS.rounds, FLAGS.draws)
    delta, eta = smallest_bias(rounds['updates'], rounds['gradients'])
    print(f'\n{theorem(rounds, len(clients.x), delta, eta)}')


def measured(model: Model, clients: Clients, total: int, draws: int) -> dict[str, np.ndarray]:
    """What each round did: `updates` E D and `gradients` grad L(z), both [T, P], `points` z [T, P],
    `losses` L(z) [T] and the `noise` of a client's update [T], eta^2 sigma^2 gamma_t."""
    size = len(clients.x)
    drawn = [make('spark', model, projection_seed=s, momentum=MOMENTUM) for s in range(1 + draws)]
    steps = [jax.jit(one.step) for one in drawn]
    value_and_gradient = jax.jit(jax.value_and_grad(lambda w: global_loss(model, w, clients)))
    key = jax.random.key(0)
    state: State = jax.jit(drawn[0].init)(key, clients)
    found = []
    table = common.Table('round', 'loss', '|grad L(z)|', '|E D|', 'cosine of -E D', 'noise')
    graphs = common.regular_graphs(size, total, DEGREE)
    for k, graph in enumerate(tqdm(graphs, desc='rounds', disable=None)):
        after = [step(jax.random.fold_in(key, k), state, graph, clients)[0] for step in steps]
        update, noise = moments([updates(state, new) for new in after[1:]])
        z = virtual(state)
        loss, gradient = value_and_gradient(z)
        row: dict[str, Any] = {
            'updates': update,
            'gradients': np.asarray(flat(gradient)),
            'points': np.asarray(flat(z)),
            'losses': float(loss),
            'noise': noise,
        }
        found.append(row)
        norms = np.linalg.norm(row['gradients']), np.linalg.norm(update)
        cosine = -row['gradients'] @ update / np.prod(norms)
        table.row(k + 1, *((n, '.3g') for n in (float(loss), *norms, cosine, noise)))
        state = after[0]
    return {name: np.array([row[name] for row in found]) for name in found[0]}


def global_loss(model: Model, w: PyTree, clients: Clients) -> Array:
    """L(w): the mean over clients of the mean cross-entropy over their samples."""

    def of_client(client: Clients) -> Array:
        labels = jnp.where(client.mask, client.y, 0)
        losses = optax.softmax_cross_entropy_with_integer_labels(model.apply(w, client.x), labels)
        return jnp.sum(jnp.where(client.mask, losses, 0)) / jnp.sum(client.mask)

    return jax.vmap(of_client)(clients).mean()


def virtual(state: State) -> PyTree:
    """z of Eq. (23)."""
    ahead = MOMENTUM**2 / (1 - MOMENTUM)
    return jax.tree.map(
        lambda w, v: w + ahead * v, consensus_model(state.params), consensus_model(state.velocity)
    )


def updates(before: State, after: State) -> np.ndarray:
    """The clients' updates D_i = v_i' - mu v_i, [M, P]."""
    moved = jax.tree.map(lambda new, old: new - MOMENTUM * old, after.velocity, before.velocity)
    return np.asarray(jax.vmap(flat)(moved), np.float64)


def flat(tree: PyTree) -> Array:
    """All numbers of a pytree, [P]."""
    return ravel_pytree(tree)[0]


def moments(drawn: list[np.ndarray]) -> tuple[np.ndarray, float]:
    """E D [P], the mean over draws and clients, and the largest variance of a client's update."""
    of_clients = np.array(drawn)  # [S, M, P]
    variances = of_clients.var(axis=0, ddof=1).sum(axis=1)
    return of_clients.mean(axis=(0, 1)), float(variances.max())


def smallest_bias(updates: np.ndarray, gradients: np.ndarray) -> tuple[float, float]:
    """delta of Eq. (24), and the eta for which it is smallest. Both arguments [T, P]."""

    def delta(log_eta: float) -> float:
        return np.linalg.norm(updates / np.exp(log_eta) + gradients, axis=1).max()

    # The bias is a norm of what is linear in 1 / eta: it has one minimum.
    found = minimize_scalar(delta, bounds=(-20, 20), method='bounded', options={'xatol': 1e-6})
    return float(found.fun), float(np.exp(found.x))


def theorem(rounds: dict[str, np.ndarray], size: int, delta: float, eta: float) -> str:
    """Both sides of Theorem 4.5 for `size` clients, and whether its premise Eq. (25) holds."""
    total = len(rounds['losses'])
    moved = np.linalg.norm(np.diff(rounds['points'], axis=0), axis=1)
    smoothness = (np.linalg.norm(np.diff(rounds['gradients'], axis=0), axis=1) / moved).max()
    least = (np.linalg.norm(rounds['gradients'], axis=1) ** 2).min()
    rest = 1 - MOMENTUM
    start = 2 * rest * (rounds['losses'][0] - rounds['losses'].min()) / (eta * total)
    # L eta sigma^2 gamma / (M (1 - mu)), where the noise is eta^2 sigma^2 gamma
    noise = smoothness * rounds['noise'].mean() / (eta * size * rest)
    limit = rest / (4 * smoothness)
    premise = 'holds' if eta <= limit else 'is broken'
    return '\n'.join(
        [
            f'eta = {eta:.3g}, delta = {delta:.3g}, L = {smoothness:.3g}',
            f'eta <= (1 - mu) / (4 L) = {limit:.3g}, Eq. (25), {premise}',
            f'min |grad L(z)|^2 = {least:.3g}; its bound {start + noise + delta**2:.3g} = '
            f'{start:.3g} (start) + {noise:.3g} (noise) + {delta**2:.3g} (bias)',
        ]
    )


if __name__ == '__main__':
    define_flags()
    common.start(main)
