"""NTK-DFL: Thompson, Yue, Wong & Dai, ICML 2025, section 3 and Algorithms 1-4.

One round of client i: average the weights with the neighbours' (Eq. 1), gather the neighbours'
Jacobians at that average (Eq. 2), form the kernel (Eq. 3), evolve the outputs under it (Eq. 4, 11)
and the weights with them (Eq. 5), and keep the timestep with the lowest loss.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from dfl_jax.algorithms.common import (
    check_choice,
    count_sent,
    hub_data,
    keep_inactive,
    stacked_predictions,
)
from dfl_jax.base import Algorithm, Array, Clients, Graph, Info, PyTree
from dfl_jax.compression import FLOAT_BITS, LABEL_BITS
from dfl_jax.initialisation import INITS, initial_params
from dfl_jax.memory import map_in_chunks
from dfl_jax.metrics import CONSENSUS, consensus_model, model_spread
from dfl_jax.mixing import MIXINGS, mix, mixing_weights
from dfl_jax.models import Model
from dfl_jax.ntk import TIMESTEPS, ntk_update


class State(NamedTuple):
    params: PyTree  # leaves [M, ...]
    sizes: Array  # [M] int32, N_i
    round: Array  # scalar int32, k


def ntk_dfl(
    model: Model,
    *,
    lr: float = 0.01,
    lr_decay: float = 0.0,
    timesteps: Sequence[int] = TIMESTEPS,
    loss: str = 'cross_entropy',
    evolution: str = 'rkc',
    selection: str = 'network',
    kernel: str = 'auto',
    mixing: str = 'size',
    averaging: bool = True,
    consensus: str = 'mean',
    init: str = 'same',
    chunk: int = 1,
) -> Algorithm:
    """NTK-DFL with the hyperparameters of appendix C.2 as defaults.

    Args:
      model: the network, bound to its input shape.
      lr: eta, the length of a time step.
      lr_decay: round k uses lr * exp(-lr_decay * k).
      timesteps: candidates t among which each client chooses, increasing.
      loss: `cross_entropy` or `mse` (half squared error, whose update carries the 1/C of Eq. 5b).
      evolution: `rkc`, `euler` or `eigh`, see `dfl_jax.ntk.evolution`.
      selection: the timestep's loss is that of the true network with the evolved weights
        (`network`) or of the evolved outputs (`linearized`), on the hub's and its neighbours' data.
      kernel: backend, see `dfl_jax.ntk.kernels`.
      mixing: weights of Eq. (1): `size` (ICML), `uniform` (preprint) or `metropolis`.
      averaging: False leaves Eq. (1) out: w_bar_i = w_i (the ablation of Figure 7).
      consensus: the aggregated model is the `mean` (ICML) or `size`-weighted mean of the M models.
      init: `same` or `independent` initial weights.
      chunk: hubs worked on at once.

    Raises ValueError for settings that contradict each other, before anything is traced.
    """
    update = ntk_update(
        model,
        timesteps=timesteps,
        loss=loss,
        evolution=evolution,
        selection=selection,
        kernel=kernel,
    )
    check_choice('consensus', consensus, CONSENSUS)
    check_choice('mixing', mixing, MIXINGS)
    check_choice('init', init, INITS)

    def init_state(key: Array, clients: Clients) -> State:
        sizes = clients.mask.sum(axis=1, dtype=jnp.int32)
        return State(initial_params(key, model, len(sizes), init), sizes, jnp.int32(0))

    def step(key: Array, state: State, graph: Graph, clients: Clients) -> tuple[State, Info]:
        del key  # nothing in a round is random but its graph
        params, sizes, k = state
        w_bar = params
        if averaging:
            w_bar = mix(mixing_weights(graph, sizes, mixing), graph.members, params)  # Eq. (1)
        rate = lr * jnp.exp(-lr_decay * k)

        def hub(inputs):  # Algorithm 4
            w_bar, members, linked = inputs
            return update(w_bar, *hub_data(clients, members, linked), rate)

        evolved, chosen, losses = map_in_chunks(hub, (w_bar, graph.members, graph.mask), chunk)
        new = keep_inactive(graph.active, evolved, params)
        to_hubs, from_hubs = count_sent(graph, len(sizes))  # links, [M]
        samples = to_hubs * sizes
        info = {
            # w_j to the hub and w_bar back (Algorithm 2); without averaging only w_i goes out
            'sent/weights': from_hubs + (to_hubs if averaging else 0),
            'sent/jacobian_rows': samples * model.classes,
            'sent/outputs': samples * model.classes,
            'sent/labels': samples,
            'loss': losses,
            'timestep': chosen,
            **model_spread(new),
        }
        return State(new, sizes, k + 1), info

    def consensus_of(state: State) -> PyTree:
        return consensus_model(state.params, state.sizes if consensus == 'size' else None)

    return Algorithm(
        init_state,
        step,
        stacked_predictions(model, consensus_of),
        unit_bits={
            'weights': FLOAT_BITS * model.size,
            'jacobian_rows': FLOAT_BITS * model.size,
            'outputs': FLOAT_BITS,
            'labels': LABEL_BITS,
        },
        consensus=consensus_of,
    )
