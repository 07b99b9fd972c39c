"""What does noise that cancels between neighbours cost on quadratics, beside the authors of DECOR?

    python -m benchmarks.decor [--draws=5]

f_i(x) = |A_i x - b_i|^2 / 2 of 16 clients in 10 dimensions, A_i = (i + 1) / 4 and b_i drawn with
the standard deviation 1 / (i + 1), learning rate 0.0017, changes clipped at 1.5 times that, 2,500
rounds of D-PSGD with `dp_unit=client` (Allouah et al., ICML 2024). The standard deviations are
those of the last lines of the authors' files (github.com/elfirdoussilab1/DECOR, clip = 1.5), with
their epsilon and loss, the mean squared distance of the clients' models from the optimum over the
last 199 rounds. They chose each pair by that loss, of one run; ours is a mean over draws of b_i and
of the noise, with its standard deviation.

`epsilon` is ours, of the same noise: by their theorem, whose neighbouring data sets have another
client, and as `dfl-jax run` prints it, where a client is left out. `chosen` is the pair of
`--dp_share_noise` at the same epsilon, and `independent` all noise that nobody shares, of the same
draws.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax import lax

from benchmarks import _common as common
from dfl_jax import Clients, topology
from dfl_jax.base import Array, Graph
from dfl_jax.exchange import one_round
from dfl_jax.experiment.accounting import (
    correlated_multipliers,
    epsilon_of,
    epsilon_of_divergence,
    shared_ratio,
)
from dfl_jax.methods import make
from dfl_jax.models import Linear, bind
from dfl_jax.tasks import REGRESSION

FLAGS = flags.FLAGS
CLIENTS, DIMENSION, RATE, CLIP, ROUNDS, LAST, DELTA = 16, 10, 0.0017, 1.5, 2500, 199, 1e-5


class Row(NamedTuple):
    """A line of the authors' files."""

    graph: str
    noise: float  # standard deviations
    shared: float
    epsilon: float
    loss: float


ROWS = (
    Row('ring', 71.45854222949212, 501, 3.169275920322945, 6.316053932447435),
    Row('torus', 83.15175823068174, 126, 3.7744328650141616, 3.854922160483983),
    Row('complete', 67.56080356242892, 126, 3.190210060809237, 2.5282057560207534),
    Row('ring', 33.03073007906386, 94, 10.896294165577457, 0.39753737039384257),
    Row('torus', 35.63841929583205, 47, 10.534575460062387, 0.17717524487541453),
    Row('complete', 22.59997321199106, 47, 10.44246766699349, 0.07102685506102845),
    Row('ring', 18.521231215084683, 59, 20.56049300307754, 0.11266369332944746),
    Row('torus', 15.596826286387099, 37, 20.09062379223632, 0.048841609281645444),
    Row('complete', 12.672421357689519, 32, 20.21418006350378, 0.014245371177587401),
    Row('ring', 11.72633284884061, 33, 40.17497100020964, 0.03142316196453543),
    Row('torus', 11.72633284884061, 16, 41.42894507790675, 0.01505435122788436),
    Row('complete', 7.4362110748745325, 20, 40.055340834442696, 0.00451059940133025),
)


def define_flags() -> None:
    flags.DEFINE_integer('draws', 5, 'Problems and noises of a row.', lower_bound=1)


def main() -> None:
    print(common.about())
    table = common.Table(
        *('graph', 'noise', 'shared noise', 'epsilon, authors', 'by their theorem', 'as printed'),
        *('loss, authors', 'ours', 'std', 'noise, chosen', 'shared', 'loss', 'independent', 'loss'),
    )
    for row in ROWS:
        graph = round_graph(row.graph)
        pairs = np.zeros((CLIENTS, CLIENTS), bool)
        np.put_along_axis(pairs, np.asarray(graph.members), np.asarray(graph.mask), axis=1)
        np.fill_diagonal(pairs, False)
        printed = correlated_multipliers(pairs, row.noise / CLIP, row.shared / CLIP).min()
        divergence = ROUNDS / (2 * (printed / 2) ** 2)  # of a change that differs by twice the clip
        mixing = (pairs + np.eye(CLIENTS)) / (1 + pairs.sum(axis=1))
        ratio = shared_ratio(pairs, mixing, np.ones(CLIENTS))
        noise = CLIP * printed / correlated_multipliers(pairs, 1.0, ratio).min()
        chosen = row._replace(noise=noise, shared=ratio * noise)
        independent = row._replace(noise=CLIP * printed, shared=0.0)
        losses, of_chosen, of_independent = (
            [loss(each, graph, seed) for seed in range(FLAGS.draws)]
            for each in (row, chosen, independent)
        )
        table.row(
            *(row.graph, (row.noise, '.1f'), (row.shared, '.0f'), (row.epsilon, '.4f')),
            (epsilon_of_divergence(divergence, DELTA), '.4f'),
            (epsilon_of(float(printed), 1.0, ROUNDS, DELTA), '.2f'),
            *((row.loss, '.4f'), (np.mean(losses), '.4f'), (np.std(losses, ddof=1), '.4f')),
            *((chosen.noise, '.1f'), (chosen.shared, '.0f'), (np.mean(of_chosen), '.4f')),
            *((independent.noise, '.1f'), (np.mean(of_independent), '.4f')),
        )


def round_graph(family: str) -> Graph:
    """The graph of every round."""
    graphs = topology.schedule(family, CLIENTS, 1, seed=0, static=True)
    return jax.tree.map(lambda array: jnp.asarray(array[0]), graphs)


def loss(row: Row, graph: Graph, seed: int) -> float:
    """Mean squared distance of the clients' models from the optimum over the last rounds."""
    rng, scale = np.random.default_rng(seed), np.arange(1, CLIENTS + 1)
    own = rng.normal(size=(CLIENTS, DIMENSION)) / scale[:, None]  # b_i
    optimum = (scale / 4) @ own / np.sum((scale / 4) ** 2)
    inputs = np.eye(DIMENSION) * (scale / 4)[:, None, None]
    data = Clients(*map(jnp.asarray, (inputs, own, np.ones((CLIENTS, DIMENSION), bool))))
    # A loss is the mean of |a x - b|^2 over the rows a: of its gradient 2 / d is theirs
    model = bind(Linear(1, use_bias=False), (DIMENSION,), REGRESSION)
    settings: dict[str, Any] = {
        'lr': RATE * DIMENSION / 2,
        'batch_size': DIMENSION,
        'local_steps': 1,
        'dp_unit': 'client',
        'dp_clip': RATE * CLIP,
        'dp_noise_multiplier': row.noise / CLIP,
        'dp_correlated_noise': row.shared / CLIP,
    }
    algorithm = make('dpsgd', model, **settings)

    @jax.jit
    def train(key: Array) -> Array:
        def step(state, number):
            k_round = jax.random.fold_in(key, number)
            state, _ = one_round(algorithm, k_round, state, number, graph, data)
            apart = state.params['Dense_0']['kernel'][..., 0] - optimum
            return state, jnp.mean(jnp.sum(apart**2, axis=1))

        return lax.scan(step, algorithm.init(key, data), jnp.arange(ROUNDS))[1]

    return float(train(jax.random.key(seed))[-LAST:].mean())


if __name__ == '__main__':
    define_flags()
    common.start(main)
