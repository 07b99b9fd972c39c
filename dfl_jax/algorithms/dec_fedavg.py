"""Decentralized FedAvg and FedProx of DFML (Algorithm 2).

Participants train on their own data, and the aggregator averages models of the same architecture,
weighted by sample counts (Eq. 5).
"""

from functools import partial

from dfl_jax.algorithms.common import check_choice
from dfl_jax.algorithms.meeting import architecture_means, at_hubs, meeting_rounds
from dfl_jax.base import Algorithm
from dfl_jax.initialisation import INITS
from dfl_jax.local import LocalTraining
from dfl_jax.population import Population


def dec_fedavg(
    population: Population,
    *,
    server: bool = False,
    proximal: float = 0.0,
    supervision: str = 'wsm',
    lr: float = 0.01,
    lr_decay: float = 1.0,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    batch_size: int = 64,
    local_epochs: int = 1,
    augmentation: str = 'none',
    init: str = 'same',
    chunk: int | None = None,
) -> Algorithm:
    """Decentralized FedAvg; the defaults are those of DFML, A.2.

    Args:
      population: the clients and their networks.
      server: centralized FedAvg (Figure 12): all clients of an architecture go on with the average,
        not the participants alone. One aggregator, which stands for the server.
      proximal: mu of the term mu/2 ||w - w_start||^2, which is FedProx where above 0.
      supervision ... augmentation: see `dfl_jax.local.LocalTraining`.
      init: `same` initial weights in an architecture, or `independent`.
      chunk: models of an architecture worked on at once; None for all.

    Raises ValueError for settings out of range, before anything is traced.
    """
    settings = LocalTraining(
        lr=lr,
        lr_decay=lr_decay,
        momentum=momentum,
        weight_decay=weight_decay,
        batch_size=batch_size,
        local_epochs=local_epochs,
        supervision=supervision,
        augmentation=augmentation,
        proximal=proximal,
    )
    check_choice('init', init, INITS)

    def average(key, models, slots, graph, clients, round):
        sizes = clients.mask.sum(axis=1).astype(clients.x.dtype)
        return at_hubs(architecture_means(models, slots, graph, sizes), slots, graph)

    return meeting_rounds(population, settings, average, init=init, chunk=chunk, shared=server)


dec_fedprox = partial(dec_fedavg, proximal=0.5)  # mu of {0.5, 1, 2}
