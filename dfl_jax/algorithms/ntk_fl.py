"""NTK-FL: Yue, Jin, Pilgrim, Wong, Baron & Dai, ICML 2022, the centralized counterpart of NTK-DFL.

One round: the server sends its weights to a random cohort, the clients return the Jacobians of
their data at these weights, and the server forms the kernel of the joint data, evolves it and
keeps the timestep with the lowest loss. The cohort is as large as the degree of the decentralized
networks it is compared with, so that the server is no busier than a client there (NTK-DFL, ICML
2025, appendix C.1).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dfl_jax.base import Algorithm, Array, Clients, Info, PyTree, Round
from dfl_jax.exchange import Compression
from dfl_jax.execution import aggregator_bytes
from dfl_jax.models import Model
from dfl_jax.ntk import (
    NtkUpdate,
    aggregator_data,
    at_precision,
    count_data,
    linearization,
    ntk_update,
    of_members,
    output_targets,
    total_flops,
    with_row_factors,
)
from dfl_jax.ntk.compressed import compressed_bytes


class State(NamedTuple):
    params: PyTree  # of the server, which all clients hold
    clients: Array  # [M] int32, their numbers


def ntk_fl(
    model: Model,
    *,
    cohort: int = 5,
    ntk: NtkUpdate = NtkUpdate(),
    kernel: str = 'auto',
    compression: Compression = Compression(),
) -> Algorithm:
    """NTK-FL; its graphs have one aggregator (`topology.cohorts`), whose model all clients hold.

    Args:
      cohort: number K of clients from which the server receives in a round.
      ntk: the update of the server.
      kernel: backend of the kernel: `auto`, `structured`, `output_scan` or `nt` (neural-tangents),
        see `dfl_jax.ntk.kernels`.
      compression: of the rows of the Jacobians.

    What the server sends back is not counted as traffic of the clients.

    Raises ValueError for graphs of another shape, when the round is traced.
    """
    update = ntk_update(model, ntk)
    codec = compression.codec('nearest')
    linearize = linearization(model, kernel=kernel, codec=codec)
    flops_total = total_flops(model, ntk, lambda w, x: linearize(jax.random.key(0), w, x))

    def init_state(key: Array, clients: Clients) -> State:
        return State(model.init(key), jnp.arange(len(clients.mask)))

    def step(key: Array, state: State, round: Round) -> tuple[State, Info]:
        graph, sizes = round.graph, round.sizes
        if graph.members.shape != (1, cohort):
            raise ValueError(
                f'ntk_fl with cohort={cohort} needs graphs [1, {cohort}], got '
                f'{graph.members.shape}; draw them by topology.cohorts'
            )
        w, numbers = state
        members, present, active = graph.members[0], graph.mask[0], graph.active[0]
        rate = ntk.rate(round.number)
        x, labels, mask = aggregator_data(of_members(round.clients, members), present)
        y = output_targets(model, labels, x.dtype, ntk.loss)
        factors = round.exchange.row_factors(graph, server=True)
        linearized = with_row_factors(linearize(key, w, x), None if factors is None else factors[0])
        evolved, chosen, value, products, tried = update(w, linearized, x, y, mask, rate)
        new = jax.tree.map(lambda n, o: jnp.where(active, n, o), evolved, w)
        heard = jnp.zeros_like(sizes).at[members].add(present.astype(jnp.int32))
        count_data(round, heard * sizes, model, ntk.loss, codec)
        info = Info(
            jnp.where(active, value, 0) * jnp.ones(len(sizes)),
            {'timestep': chosen},
            # Of the server, which is none of the clients; they wait for it alike
            active * flops_total(mask.sum(), products, tried) * jnp.ones(len(sizes)),
        )
        return State(new, numbers), info

    def predict(state: State, x: Array, weights: Array | None = None) -> dict[str, Array]:
        del weights
        logits = model.apply(state.params, x)
        return {
            'client': jnp.broadcast_to(logits, (len(state.clients), *logits.shape)),
            'consensus': logits,
        }

    return Algorithm(
        init_state,
        at_precision(ntk.precision, step),
        predict,
        consensus=lambda state, weights=None: state.params,
        task=model.task,
    )


def memory(model: Model, samples: int, members: int, settings: Mapping[str, Any]) -> int:
    """Bytes of the server's update; samples: N of a client, members: K of the cohort."""
    compressed = settings['sparsity'] is not None or settings['bits']
    rows = compressed_bytes(samples * members, model) if compressed else 0
    return aggregator_bytes(samples * members, model) + rows
