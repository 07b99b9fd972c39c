"""Decentralized Federated Dropout, HeteroFL and FedRolex of DFML (Algorithm 3).

Participants train models of different widths on their own data. At the aggregator each is a part of
a global model as wide as the widest that came; every weight of it is the mean over those who hold
it, and each participant takes its own part back. The methods differ in who holds what.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from dfl_jax.base import Algorithm, Array, PyTree
from dfl_jax.checks import check_choice
from dfl_jax.heterogeneous import TRAINING, Population, meeting_rounds
from dfl_jax.heterogeneous.submodels import RULES, axes, indices
from dfl_jax.training import LocalTraining


def dec_partial(
    population: Population,
    *,
    channels: str,
    training: LocalTraining = TRAINING,
    init: str = 'same',
    chunk: int | None = None,
) -> Algorithm:
    """Partial training. `first` is HeteroFL, `random` Federated Dropout, `rolled` FedRolex.

    All models roll alike, so that what lies at the same place in two models meets in every round:
    `rolled` gives the same models as `first`. Channels that keep their order, `sorted`, do not.

    Args:
      population: clients whose architectures differ in width alone.
      channels: which channels of the global model a sub-model has: the `first` ones; `rolled`, a
        window that moves with the rounds; `sorted`, the same in ascending order; or `random` ones.
      training: of the participants on their own data.
      init: `same` initial weights in an architecture, or `independent`.
      chunk: models worked on at once; None for one on a CPU, elsewhere what memory holds.

    Raises ValueError for settings out of range or other architectures, before anything is traced.
    """
    check_choice('channels', channels, RULES)
    of_population = axes(population)
    structure = jax.tree.structure(next(iter(population.models.values())).shapes)
    widest = [tuple(a.widest for a in leaf) for leaf in next(iter(of_population.values()))]

    def places(name: str, totals: list[Array], round: Array, key: Array) -> list[tuple]:
        """Where a model's parameters lie in the global model: an index for every leaf."""
        return [
            jnp.ix_(
                *(indices(channels, axis, j, round, key) for axis, j in zip(leaf, of, strict=True))
            )
            for leaf, of in zip(of_population[name], totals, strict=True)
        ]

    def combine(key, models, participants, round):
        aggregators, members = round.graph.members.shape
        dtype, k = round.clients.x.dtype, round.number

        def at_aggregator(aggregator: Array) -> tuple[list[Array], list[Array]]:
            """The global model of one aggregator, and the sizes J of its axes."""
            present = {
                n: (s.present & (s.position // members == aggregator))
                for n, s in participants.items()
            }
            sizes = [
                [
                    jnp.where(present[name].any(), jnp.array([a.size for a in leaf]), 1)
                    for leaf in leaves
                ]
                for name, leaves in of_population.items()
            ]
            totals = [jnp.stack(same).max(axis=0) for same in zip(*sizes, strict=True)]
            canvas = [(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype)) for shape in widest]
            for name, group in participants.items():

                def add(canvas, one, name=name):
                    params, client, counts = one
                    where = places(name, totals, k, jax.random.fold_in(key, client))
                    share = counts.astype(dtype)
                    return [
                        (total.at[at].add(share * leaf), count.at[at].add(share))
                        for (total, count), at, leaf in zip(
                            canvas, where, jax.tree.leaves(params), strict=True
                        )
                    ], None

                canvas, _ = lax.scan(add, canvas, (models[name], group.client, present[name]))
            means = [total / jnp.maximum(count, 1) for total, count in canvas]  # Eq. (6)
            return means, totals

        means, totals = jax.vmap(at_aggregator)(jnp.arange(aggregators))

        def part(name: str, client: Array, aggregator: Array) -> PyTree:
            of_aggregator = [a[aggregator] for a in totals]
            where = places(name, of_aggregator, k, jax.random.fold_in(key, client))
            leaves = [mean[aggregator][at] for mean, at in zip(means, where, strict=True)]
            return jax.tree.unflatten(structure, leaves)

        return {
            name: jax.vmap(partial(part, name))(group.client, group.position // members)
            for name, group in participants.items()
        }

    return meeting_rounds(population, training, combine, init=init, chunk=chunk)


dec_heterofl = partial(dec_partial, channels='first')
dec_fedrolex = partial(dec_partial, channels='rolled')
dec_fed_dropout = partial(dec_partial, channels='random')
