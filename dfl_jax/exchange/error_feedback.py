"""Error feedback: what coding loses of a message is added to the next one.

With Q the codec and e the errors of a client, zero at first (Seide et al. 2014; of models in
gossip, DeepSqueeze of Tang et al. 2019):

    m <- Q(x + e)                  the message
    e <- x + e - m
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dfl_jax.base import Algorithm, Array, Clients, Graph, Info, PyTree, Round, State
from dfl_jax.exchange.exchange import CodingErrors, Exchange, one_round
from dfl_jax.setting_error import InputError


class WithErrors(NamedTuple):
    """The state of a method, and the errors of its messages in the order in which it sends them."""

    method: State
    errors: list[PyTree]  # leaves [M, ...]


def with_error_feedback(algorithm: Algorithm) -> Algorithm:
    """The method, whose clients add to each message what coding has lost of those before.

    A client that is not active keeps its errors.

    Raises ValueError, when the first state is made, where not every client sends in every round, or
    nothing is coded.
    """

    def init(key: Array, clients: Clients) -> WithErrors:
        def errors_of_round(state: State) -> list[PyTree]:
            errors = CodingErrors(None)
            exchange = (algorithm.exchange or Exchange())._replace(errors=errors)
            method = algorithm._replace(exchange=exchange)
            members = np.repeat(np.arange(len(clients.mask), dtype=np.int32)[:, None], 2, axis=1)
            itself = np.broadcast_to([True, False], members.shape)
            alone = Graph(*map(jnp.asarray, (members, itself, itself[:, 0])))
            one_round(method, key, state, 0, alone, clients)
            return errors.after

        state = algorithm.init(key, clients)
        shapes = jax.eval_shape(errors_of_round, state)
        if not shapes:
            raise InputError(
                '`error_feedback` is of messages that all neighbours of a client get alike, and '
                'this method sends none; leave it out'
            )
        return WithErrors(state, optax.tree.zeros_like(shapes))

    def step(key: Array, state: WithErrors, round: Round) -> tuple[WithErrors, Info]:
        errors = CodingErrors(state.errors)
        exchange = round.exchange._replace(errors=errors)
        new, info = algorithm.step(key, state.method, round._replace(exchange=exchange))

        def kept(after: Array, before: Array) -> Array:
            active = round.graph.active.reshape(-1, *[1] * (after.ndim - 1))
            return jnp.where(active, after, before)

        return WithErrors(new, jax.tree.map(kept, errors.after, state.errors)), info

    own: Any = algorithm.predict_own
    return algorithm._replace(
        init=init,
        step=step,
        predict=lambda state, *of: algorithm.predict(state.method, *of),
        consensus=lambda state, weights=None: algorithm.consensus(state.method, weights),
        predict_own=own and (lambda state, x: own(state.method, x)),
    )
