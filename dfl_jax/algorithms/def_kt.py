"""Def-KT: decentralized federated learning via mutual knowledge transfer (Li et al. 2021).

The baseline of DFML, Table 3: every sender trains on its own data and sends its model to an
aggregator of its own, where it and the aggregator's model teach each other on the aggregator's
data; the aggregator goes on with the model that came, and the sender with the one it sent.
"""

import jax
import jax.numpy as jnp

from dfl_jax.base import Algorithm
from dfl_jax.checks import check_range
from dfl_jax.heterogeneous import (
    TRAINING,
    Balance,
    Mutual,
    Population,
    meeting_rounds,
    mutual_learning,
)
from dfl_jax.training import LocalTraining


def def_kt(
    population: Population,
    *,
    mutual_epochs: int = 10,
    training: LocalTraining = TRAINING,
    init: str = 'same',
    chunk: int | None = None,
) -> Algorithm:
    """Def-KT. Its graphs have one sender an aggregator; an aggregator without one does nothing.

    The loss of the mutual transfer is supervision + KL, both with weight one.

    Args:
      population: the clients, all of one architecture.
      mutual_epochs: passes over the aggregator's data; K = 10 of DFML's A.2.
      training: of both trainings; its epochs are those of the local one.
      init: `same` initial weights, or `independent`.
      chunk: models worked on at once; None for one on a CPU, elsewhere what memory holds.

    Raises ValueError for settings out of range or several architectures, before anything is traced.
    """
    check_range('mutual_epochs', mutual_epochs, least=1)
    if len(population.models) > 1:
        raise ValueError(
            'def_kt replaces models by what neighbours send, so that all clients need the same '
            f'architecture, not {", ".join(population.models)}'
        )
    (name,) = population.models
    mutual = Mutual(mutual_epochs)
    learn = mutual_learning(population, training, mutual, chunk)

    def transfer(key, models, participants, round):
        graph, clients = round.graph, round.clients
        aggregators, members = graph.members.shape
        if members != 2:
            raise ValueError(f'def_kt meets in pairs, got {members - 1} senders an aggregator')
        one = jnp.ones((), clients.x.dtype)
        balance = Balance(one, one)
        learnt, _ = learn(key, models, participants, graph, clients, round.number, balance)
        group = participants[name]
        # Where a position's model is; an aggregator takes that of the position next to its own.
        itself = jnp.arange(len(group.position), dtype=jnp.int32)
        at = jnp.zeros(aggregators * members, jnp.int32).at[group.position].set(itself)
        came = graph.mask[group.position // members, 1]
        source = jnp.where(came, at[group.position // members * members + 1], itself)
        aggregates = group.position % members == 0

        def replaced(kept, taught):
            here = aggregates.reshape(-1, *[1] * (kept.ndim - 1))
            return jnp.where(here & came.reshape(here.shape), taught[source], kept)

        return {name: jax.tree.map(replaced, models[name], learnt[name])}

    return meeting_rounds(
        population,
        training,
        transfer,
        init=init,
        chunk=chunk,
        aggregators_train=False,
        back=False,
        mutual=mutual,
    )
