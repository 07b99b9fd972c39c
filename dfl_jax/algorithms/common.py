"""What several algorithms need of a round."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from dfl_jax.base import Array, Clients, Graph, PyTree, State
from dfl_jax.models import Model


def check_choice(what: str, value: str, known: Sequence[str]) -> None:
    """Raises ValueError when a setting is not one of its known values."""
    if value not in known:
        raise ValueError(f'unknown {what} {value!r}; choose one of {", ".join(known)}')


def hub_data(clients: Clients, members: Array, linked: Array) -> tuple[Array, Array, Array]:
    """The joint data of one hub: x [K N, ...], y [K N], mask [K N].

    members, linked: [K], one row of the round's Graph. Padding is zeroed, so that nothing stored
    there can reach a result.
    """
    mask = clients.mask[members] & linked[:, None]
    x = clients.x[members]
    x = jnp.where(mask.reshape(*mask.shape, *[1] * (x.ndim - 2)), x, 0)
    return x.reshape(-1, *x.shape[2:]), clients.y[members].reshape(-1), mask.reshape(-1)


def count_sent(graph: Graph, clients: int) -> tuple[Array, Array]:
    """Messages over delivered links: (client to hubs [M], hub to clients [H]), int32."""
    delivered = (graph.mask[:, 1:] & graph.active[:, None]).astype(jnp.int32)
    to_hubs = jax.ops.segment_sum(delivered.ravel(), graph.members[:, 1:].ravel(), clients)
    return to_hubs, delivered.sum(axis=1, dtype=jnp.int32)


def keep_inactive(active: Array, new: PyTree, old: PyTree) -> PyTree:
    """`new` where a client is active [M], `old` elsewhere; leaves [M, ...]."""
    return jax.tree.map(
        lambda n, o: jnp.where(active.reshape(-1, *[1] * (o.ndim - 1)), n, o), new, old
    )


def stacked_predictions(
    model: Model, consensus_of: Callable[[State], PyTree]
) -> Callable[[State, Array], dict[str, Array]]:
    """`Algorithm.predict` of a state that holds stacked `params`, leaves [M, ...]."""

    def predict(state: State, x: Array) -> dict[str, Array]:
        return {
            'client': jax.vmap(model.apply, (0, None))(state.params, x),
            'consensus': model.apply(consensus_of(state), x),
        }

    return predict
