"""How long does a robust rule take, against the mean of the neighbours' models?

    python -m benchmarks.robust [--clients=300 --members=6]

Every client combines the models of its neighbours in a regular graph, as `Exchange.combine` does
within a round: 79,510 weights each, in two tensors. The column `sorted` is of rules that order the
values of every weight, with `jnp.sort` in place of a network of comparisons.
"""

from unittest import mock

import jax
import jax.numpy as jnp
from absl import flags

from benchmarks import _common as common
from dfl_jax import topology
from dfl_jax.base import Clients
from dfl_jax.exchange import Exchange, aggregation, aggregation_named, round_of
from dfl_jax.gossip import mixing_weights

_CLIENTS = flags.DEFINE_integer('clients', 300, 'clients', 2)
_MEMBERS = flags.DEFINE_integer('members', 6, 'members of a neighbourhood, itself among them', 2)

SHAPES = ((784, 100), (1110,))
RULES = (
    *('mean', 'median', 'trimmed_mean:1', 'geometric_median:8', 'krum:1', 'multi_krum:1'),
    *('clipping:1', 'clipping:adaptive', 'nearest:1', 'nna:1'),
)
OF_PLACES = ('median', 'trimmed_mean:1', 'nearest:1')


def main() -> None:
    print(common.about())
    clients = _CLIENTS.value
    drawn = topology.schedule('regular', clients, 1, seed=0, degree=_MEMBERS.value - 1)
    graph = jax.tree.map(lambda a: jnp.asarray(a[0]), drawn)
    one = jnp.zeros((clients, 1), int)
    data = Clients(jnp.zeros((clients, 1, 1)), one, one == 0)
    keys = jax.random.split(jax.random.key(0), len(SHAPES))
    models = [
        jax.random.normal(k, (clients, *shape)) for k, shape in zip(keys, SHAPES, strict=True)
    ]

    def seconds(rule: str) -> float:
        round = round_of(0, graph, data, Exchange(aggregation=aggregation_named(rule)))
        rows = mixing_weights(graph, round.sizes, 'uniform')

        def combine(models):
            return round.exchange.combine(jax.random.key(1), round, rows, models)

        return common.median_seconds(jax.jit(combine), models)

    table = common.Table('rule', 'ms', 'times the mean', 'ms, sorted')
    mean = seconds('mean')
    for rule in RULES:
        took, by_sort = seconds(rule), '-'
        if rule in OF_PLACES:
            with mock.patch.object(aggregation, 'NETWORK_UP_TO_MEMBERS', 0):
                by_sort = f'{1e3 * seconds(rule):.0f}'
        table.row(rule, (1e3 * took, '.0f'), (took / mean, '.1f'), by_sort)


if __name__ == '__main__':
    common.start(main)
