"""NTK-FL: Yue, Jin, Wong, Pilgrim & Dai, ICML 2022, the centralized counterpart of NTK-DFL.

One round: the server sends its weights to a random cohort, the clients return the Jacobians of
their data at these weights, and the server forms the kernel of the joint data, evolves it and
keeps the timestep with the lowest loss. The cohort is as large as the degree of the decentralized
networks it is compared with, so that the server is no busier than a client there (NTK-DFL, ICML
2025, appendix C.1).
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from dfl_jax.base import Algorithm, Array, Clients, Graph, Info, PyTree
from dfl_jax.compression import FLOAT_BITS, LABEL_BITS
from dfl_jax.models import Model
from dfl_jax.ntk import TIMESTEPS, at_precision, linearization, ntk_update
from dfl_jax.ntk.aggregator_data import aggregator_data, of_members, one_hot_targets


class State(NamedTuple):
    params: PyTree  # of the server
    sizes: Array  # [M] int32, N_i
    round: Array  # scalar int32, k


def ntk_fl(
    model: Model,
    *,
    cohort: int = 5,
    lr: float = 0.01,
    lr_decay: float = 0.0,
    timesteps: Sequence[int] = TIMESTEPS,
    loss: str = 'cross_entropy',
    evolution: str = 'rkc',
    selection: str = 'network',
    kernel: str = 'auto',
    precision: str = 'highest',
) -> Algorithm:
    """NTK-FL; its graphs have one aggregator (`topology.cohorts`), and all clients hold its model.

    Args:
      model: the network, bound to its input shape.
      cohort: clients a round, the K of its graphs.
      lr ... precision: as of `dfl_jax.algorithms.ntk_dfl.ntk_dfl`.

    What the server sends back is not counted as traffic of the clients.

    Raises ValueError for settings that contradict each other, before anything is traced, and for
    graphs of another shape, when the round is traced.
    """
    update = ntk_update(
        model,
        timesteps=timesteps,
        loss=loss,
        evolution=evolution,
        selection=selection,
    )
    linearize = linearization(model, kernel=kernel)

    def init_state(key: Array, clients: Clients) -> State:
        return State(model.init(key), clients.mask.sum(axis=1, dtype=jnp.int32), jnp.int32(0))

    def step(key: Array, state: State, graph: Graph, clients: Clients) -> tuple[State, Info]:
        if graph.members.shape != (1, cohort):
            raise ValueError(
                f'ntk_fl with cohort={cohort} needs graphs [1, {cohort}], got '
                f'{graph.members.shape}; draw them by topology.cohorts'
            )
        w, sizes, k = state
        members, present, active = graph.members[0], graph.mask[0], graph.active[0]
        rate = lr * jnp.exp(-lr_decay * k)
        x, labels, mask = aggregator_data(of_members(clients, members), present)
        y = one_hot_targets(labels, model.classes, x.dtype)
        evolved, chosen, value = update(w, linearize(key, w, x), x, y, mask, rate)
        new = jax.tree.map(lambda n, o: jnp.where(active, n, o), evolved, w)
        heard = jnp.zeros_like(sizes).at[members].add(present.astype(jnp.int32))
        samples = heard * sizes
        info = {
            'sent/jacobian_rows': samples * model.classes,
            'sent/outputs': samples * model.classes,
            'sent/labels': samples,
            'loss': jnp.where(active, value, 0) * jnp.ones(len(sizes)),
            'timestep': chosen,
        }
        return State(new, sizes, k + 1), info

    def predict(state: State, x: Array) -> dict[str, Array]:
        logits = model.apply(state.params, x)
        return {
            'client': jnp.broadcast_to(logits, (len(state.sizes), *logits.shape)),
            'consensus': logits,
        }

    return Algorithm(
        init_state,
        at_precision(precision, step),
        predict,
        unit_bits={
            'jacobian_rows': FLOAT_BITS * model.size,
            'outputs': FLOAT_BITS,
            'labels': LABEL_BITS,
        },
        consensus=lambda state, weights=None: state.params,
    )
