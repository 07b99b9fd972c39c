"""Decentralized FedAvg and FedProx of DFML (Algorithm 2).

Participants train on their own data, and the aggregator averages models of the same architecture,
weighted by sample counts (Eq. 5).
"""

import dataclasses
from functools import partial

from dfl_jax.base import Algorithm
from dfl_jax.heterogeneous import TRAINING, Population, architecture_means, meeting_rounds
from dfl_jax.training import LocalTraining


def dec_fedavg(
    population: Population,
    *,
    server: bool = False,
    training: LocalTraining = TRAINING,
    init: str = 'same',
    chunk: int | None = None,
) -> Algorithm:
    """Decentralized FedAvg; the defaults are those of DFML, A.2.

    Args:
      server: centralized FedAvg (Figure 12): all clients of an architecture continue with the
        average, not only the participants. Needs one aggregator, which acts as the server.
      training: of the participants on their own data; with a proximal term it is FedProx.
      init: `same` initial weights in an architecture, or `independent`.
      chunk: models worked on at once; None for one on a CPU, elsewhere what memory holds.

    Raises ValueError for settings out of range, before anything is traced.
    """

    def average(key, models, participants, round):
        sizes = round.sizes.astype(round.clients.x.dtype)
        return architecture_means(models, participants, round.graph, sizes)

    return meeting_rounds(population, training, average, init=init, chunk=chunk, shared=server)


dec_fedprox = partial(
    dec_fedavg, training=dataclasses.replace(TRAINING, proximal=0.5)
)  # mu of {0.5, 1, 2}
