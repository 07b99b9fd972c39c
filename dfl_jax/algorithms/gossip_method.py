"""What several algorithms need of a round."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dfl_jax.algorithms.client_models import ClientModels
from dfl_jax.base import Algorithm, Array, Choices, Clients, Graph, Info, Mean, PyTree
from dfl_jax.base import State as AnyState
from dfl_jax.checks import check_choice
from dfl_jax.compression import bits_of
from dfl_jax.initialisation import Init, check_init, initial_params
from dfl_jax.metrics import CONSENSUS, consensus_model, dispersion
from dfl_jax.models import Model
from dfl_jax.training import LocalTraining, learning_rate, local_training, training_flops

# The gradient of one minibatch a round, of the methods whose theory is of such steps
ONE_MINIBATCH = LocalTraining(lr=0.1, batch_size=32, local_epochs=None, local_steps=1)


class Stepped(NamedTuple):
    """What a round of a method of `gossip_method` leads to."""

    fields: tuple  # of the state, as active clients hold them then
    losses: Array  # [M]
    metrics: Mapping[str, Array | Mean | Choices] = {}
    # How many of the one unit a client sends to each neighbour in this round, the same for all or
    # [M]: whole numbers, or whether it sends
    messages: int | Array = 1


class State(NamedTuple):
    """The state of the methods in which every client, or the server, holds one model, no more."""

    params: PyTree  # leaves [M, ...]; [...] where the server alone holds one
    sizes: Array  # [M] int32, N_i
    round: Array  # scalar int32, k


def initial_state(
    model: Model, init: Init, begin: Callable[..., AnyState] = State
) -> Callable[[Array, Clients], AnyState]:
    """`Algorithm.init` of the methods whose state holds stacked `params`, `sizes` and `round`.

    begin: the class of the state, whose fields between `params` and `sizes` are trees like `params`
    that are zero at first; or (params, sizes, round) -> the state.

    Raises ValueError for an unknown init.
    """
    check_init(init)
    more = len(getattr(begin, '_fields', State._fields)) - len(State._fields)

    def init_state(key: Array, clients: Clients) -> AnyState:
        sizes = clients.mask.sum(axis=1, dtype=jnp.int32)
        params = initial_params(key, model, len(sizes), init)
        return begin(params, *[optax.tree.zeros_like(params)] * more, sizes, jnp.int32(0))

    return init_state


def consensus_of(how: str) -> Callable[..., PyTree]:
    """`Algorithm.consensus` of a state that holds stacked `params` and `sizes`.

    Raises ValueError for a `how` that is not one of CONSENSUS.
    """
    check_choice('consensus', how, CONSENSUS)

    def consensus(state: AnyState, weights: Array | None = None) -> PyTree:
        if weights is None and how == 'size':
            weights = state.sizes
        return consensus_model(state.params, weights)

    return consensus


def count_sent(graph: Graph, clients: int) -> tuple[Array, Array]:
    """Messages over delivered links: (from the members to aggregators, from the aggregators back),
    int32 [M].

    What an aggregator sends is counted for the client that it is, its column 0.
    """
    delivered = (graph.mask[:, 1:] & graph.active[:, None]).astype(jnp.int32)
    to_aggregators = jax.ops.segment_sum(delivered.ravel(), graph.members[:, 1:].ravel(), clients)
    from_aggregators = jax.ops.segment_sum(delivered.sum(axis=1), graph.members[:, 0], clients)
    return to_aggregators, from_aggregators


def keep_inactive(active: Array, new: PyTree, old: PyTree) -> PyTree:
    """`new`, in the types of `old`, where a client is active [M], `old` elsewhere; leaves [M, ...].

    Rates and masses are of the data's type, and would widen weights of 16 bits.
    """
    return jax.tree.map(
        lambda n, o: jnp.where(active.reshape(-1, *[1] * (o.ndim - 1)), n.astype(o.dtype), o),
        new,
        old,
    )


def chosen_by(graph: Graph, chosen: Array) -> Choices:
    """What active aggregators chose, whole numbers [H, ...]."""
    return Choices(jnp.where(graph.active.reshape(-1, *[1] * (chosen.ndim - 1)), chosen, -1))


def stacked_predictions(
    model: Model, consensus: Callable[[AnyState], PyTree]
) -> Callable[[AnyState, Array], dict[str, Array]]:
    """`Algorithm.predict` of a state that holds stacked `params`, leaves [M, ...]."""

    def predict(state: AnyState, x: Array) -> dict[str, Array]:
        return {
            'client': jax.vmap(model.apply, (0, None))(state.params, x),
            'consensus': model.apply(consensus(state), x),
        }

    return predict


def stacked_method(
    model: Model,
    init: Callable[[Array, Clients], AnyState],
    step: Callable[..., tuple[AnyState, Info]],
    unit_bits: Mapping[str, int],
    consensus: Callable[..., PyTree],
    **more: Any,
) -> Algorithm:
    """The `Algorithm` of a state that holds stacked `params`, leaves [M, ...]; more: its fields."""
    return Algorithm(
        *(init, step, stacked_predictions(model, consensus), unit_bits, consensus),
        predict_own=lambda state, x: jax.vmap(model.apply)(state.params, x),
        task=model.task,
        **more,
    )


def local_displacement(
    model: Model, training: LocalTraining, chunk: int | None = None
) -> Callable[..., tuple[PyTree, Array]]:
    """displacement(key, params, clients, round) -> (how far training moves each model, losses [M]).

    x - T(x), leaves [M, ...]: lr times the gradient where T is one step of gradient descent, of
    more steps their sum.
    """
    train = local_training(model, training, chunk)

    def displacement(
        key: Array, params: PyTree, clients: Clients, round: Array
    ) -> tuple[PyTree, Array]:
        trained, losses = train(key, params, clients, round)
        return optax.tree.sub(params, trained), losses

    return displacement


def local_gradient(
    model: Model, training: LocalTraining, chunk: int | None = None
) -> Callable[..., tuple[PyTree, Array, Array]]:
    """gradient(key, params, clients, round) -> (gradients, learning rate, losses [M]).

    The displacement in units of the round's learning rate, leaves [M, ...], for methods that keep
    gradients over rounds, in which the rate may change.
    """
    displacement = local_displacement(model, training, chunk)

    def gradient(
        key: Array, params: PyTree, clients: Clients, round: Array
    ) -> tuple[PyTree, Array, Array]:
        lr = learning_rate(training, round.astype(clients.x.dtype))
        moved, losses = displacement(key, params, clients, round)
        return per_rate(moved, lr), lr, losses

    return gradient


def per_rate(moved: PyTree, lr: Array) -> PyTree:
    """moved / lr; zero where a schedule has ended at zero."""
    return optax.tree.scale(jnp.where(lr > 0, 1 / lr, 0), moved)


def gossip_method(
    model: Model,
    models: ClientModels,
    trainings: Sequence[LocalTraining],
    step: Callable[..., tuple],
    unit_bits: Mapping[str, int] | None = None,
    begin: Callable[..., AnyState] = State,
    check: Callable[[Graph, np.ndarray], None] | None = None,
    overlaps: bool = False,
) -> Algorithm:
    """The `Algorithm` of a state of stacked `params`, more leaves [M, ...], `sizes` and `round`.

    step: (key, state, graph, clients) -> the fields of `Stepped`, of which the last may be left
    out. trainings: of a round, whose flops are counted. begin: as in `initial_state`. unit_bits: of
    the one unit that is counted, over delivered links; uncompressed weights by default.

    Raises TypeError, when the round is traced, for `messages` that are no whole numbers.
    """
    unit_bits = unit_bits or {'weights': bits_of(model.shapes)}
    (unit,), mean = unit_bits, consensus_of(models.consensus)
    flops_of = [training_flops(model, training) for training in trainings]

    def whole_step(
        key: Array, state: AnyState, graph: Graph, clients: Clients
    ) -> tuple[AnyState, Info]:
        fields, losses, metrics, messages = Stepped(*step(key, state, graph, clients))
        if np.dtype(kind := jnp.result_type(messages)).kind not in 'iub':
            raise TypeError(
                f'messages are whole numbers or whether one is sent, got {kind}; use '
                'jnp.where(sends, 2, 0)'
            )
        new = keep_inactive(graph.active, fields, state[:-2])
        sent, _ = count_sent(graph, len(state.sizes))
        flops = jnp.where(graph.active, sum(count(state.sizes) for count in flops_of), 0)
        info = Info(losses, {unit: messages * sent}, dispersion(new[0]) | dict(metrics), flops)
        return type(state)(*new, state.sizes, state.round + 1), info

    begun = initial_state(model, models.init, begin)
    return stacked_method(
        *(model, begun, whole_step, unit_bits, mean), check=check, overlaps=overlaps
    )
