"""What several algorithms need of a round."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dfl_jax.algorithms.client_models import ClientModels
from dfl_jax.base import Algorithm, Array, Choices, Clients, Graph, Info, Mean, PyTree, Round
from dfl_jax.base import State as AnyState
from dfl_jax.checks import check_choice
from dfl_jax.exchange import OLD_STEP, number_bits
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


class State(NamedTuple):
    """The state of the methods in which every client, or the server, holds one model, no more."""

    params: PyTree  # leaves [M, ...]; [...] where the server alone holds one


def initial_state(
    model: Model, init: Init, begin: Callable[..., AnyState] = State
) -> Callable[[Array, Clients], AnyState]:
    """`Algorithm.init` of the methods whose state holds stacked `params`.

    begin: the class of the state, whose fields after `params` are trees like `params` that are
    zero at first; or params -> the state.

    Raises ValueError for an unknown init.
    """
    check_init(init)
    more = len(getattr(begin, '_fields', State._fields)) - 1

    def init_state(key: Array, clients: Clients) -> AnyState:
        params = initial_params(key, model, len(clients.mask), init)
        return begin(params, *[optax.tree.zeros_like(params)] * more)

    return init_state


def mean_params(state: AnyState, weights: Array | None = None) -> PyTree:
    """`Algorithm.consensus` of a state that holds stacked `params`."""
    return consensus_model(state.params, weights)


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
    model: Model, consensus: Callable[..., PyTree] = mean_params
) -> Callable[..., dict[str, Array]]:
    """`Algorithm.predict` of a state that holds stacked `params`, leaves [M, ...]."""

    def predict(state: AnyState, x: Array, weights: Array | None = None) -> dict[str, Array]:
        return {
            'client': jax.vmap(model.apply, (0, None))(state.params, x),
            'consensus': model.apply(consensus(state, weights), x),
        }

    return predict


def stacked_method(
    model: Model,
    init: Callable[[Array, Clients], AnyState],
    step: Callable[..., tuple[AnyState, Info]],
    by: str,
    consensus: Callable[..., PyTree] = mean_params,
    **more: Any,
) -> Algorithm:
    """The `Algorithm` of a state that holds stacked `params`, leaves [M, ...].

    by: the consensus model is the `mean` or `size`-weighted mean. more: fields of the Algorithm.

    Raises SettingError for a `by` that is not one of CONSENSUS.
    """
    check_choice('consensus', by, CONSENSUS)
    return Algorithm(
        *(init, step, stacked_predictions(model, consensus), consensus),
        predict_own=lambda state, x: jax.vmap(model.apply)(state.params, x),
        task=model.task,
        by_size=by == 'size',
        **more,
    )


def local_displacement(
    model: Model, training: LocalTraining, chunk: int | None = None
) -> Callable[..., tuple[PyTree, Array]]:
    """displacement(key, params, round) -> (how far training moves each model, losses [M]).

    x - T(x), leaves [M, ...]: lr times the gradient where T is one step of gradient descent, of
    more steps their sum.
    """
    train = local_training(model, training, chunk)

    def displacement(key: Array, params: PyTree, round: Round) -> tuple[PyTree, Array]:
        trained, losses = train(key, params, round.clients, round.number)
        return optax.tree.sub(params, trained), losses

    return displacement


def local_gradient(
    model: Model, training: LocalTraining, chunk: int | None = None
) -> Callable[..., tuple[PyTree, Array, Array]]:
    """gradient(key, params, round) -> (gradients, learning rate, losses [M]).

    The displacement in units of the round's learning rate, leaves [M, ...], for methods that keep
    gradients over rounds, in which the rate may change.
    """
    displacement = local_displacement(model, training, chunk)

    def gradient(key: Array, params: PyTree, round: Round) -> tuple[PyTree, Array, Array]:
        lr = learning_rate(training, round.number.astype(round.clients.x.dtype))
        moved, losses = displacement(key, params, round)
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
    begin: Callable[..., AnyState] = State,
    **more: Any,
) -> Algorithm:
    """The `Algorithm` of a state of stacked `params` and perhaps more leaves [M, ...].

    Clients that are not active keep their entries, and the work of training is counted.

    Args:
      trainings: of a round, whose flops are counted.
      step: (key, state, round) -> the fields of `Stepped`, of which the last may be left out.
      begin: as in `initial_state`.
      more: fields of the Algorithm.

    Raises TypeError for a step of an earlier version.
    """
    if len(inspect.signature(step).parameters) == 4:
        raise TypeError(OLD_STEP)
    flops_of = [training_flops(model, training) for training in trainings]

    def whole_step(key: Array, state: AnyState, round: Round) -> tuple[AnyState, Info]:
        types = (number_bits(leaf.dtype) for leaf in jax.tree.leaves(state.params))
        round = round._replace(exchange=round.exchange._replace(most_bits=max(types)))
        fields, losses, metrics = Stepped(*step(key, state, round))
        active = round.graph.active
        new = keep_inactive(active, fields, tuple(state))
        flops = jnp.where(active, sum(count(round.sizes) for count in flops_of), 0)
        scatter = dispersion(new[0], round.judged)
        return type(state)(*new), Info(losses, scatter | dict(metrics), flops)

    begun = initial_state(model, models.init, begin)
    return stacked_method(model, begun, whole_step, models.consensus, **more)
