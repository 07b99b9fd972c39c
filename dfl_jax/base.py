"""The types that every part of the simulator speaks.

Axis letters, used in every docstring of the package:
M clients, N padded samples a client, K neighbours including self (padded), H aggregators, C
classes, P parameters, T rounds, B a batch of samples.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dfl_jax.tasks import CLASSIFICATION, Task

Array = jax.Array
PyTree = Any
State = Any


class Clients(NamedTuple):
    """The whole network's private data, padded to the largest client."""

    x: Array  # [M, N, ...] float32
    y: Array  # [M, N] int32; what another task than classification takes, [M, N, ...]
    mask: Array  # [M, N] bool, False = padding
    # [M, N] int32, the number of the first round, from 0, that a sample is there in; None: all are
    # there from the start
    arrival: Array | None = None

    def arrived_in(self, number: Array | int) -> 'Clients':
        """With the mask of the samples that are there in the round of this number, from 0."""
        if self.arrival is None:
            return self
        return self._replace(mask=jnp.asarray(self.mask) & (self.arrival <= number))

    def sizes_in(self, number: int) -> np.ndarray:
        """How many samples each client has in the round of this number, from 0, [M] int32."""
        mask = np.asarray(self.mask)
        if self.arrival is not None:
            mask = mask & (np.asarray(self.arrival) <= number)
        return mask.sum(axis=1, dtype=np.int32)


class Graph(NamedTuple):
    """One communication round; an aggregator is a place where models or kernels combine.

    In a decentralized network H = M and aggregator h is client h: column 0 of `members` is the
    aggregator itself and the other columns are its neighbours. Clients that share one model meet at
    one aggregator a cluster (`topology.by_cluster`), column 0 again the client that it is. A
    schedule is a Graph whose arrays carry a leading axis T.
    """

    members: Array  # [H, K] int32; padding repeats the aggregator
    mask: Array  # [H, K] bool, link delivered this round
    active: Array  # [H] bool, the aggregator takes part this round
    # [H, K] floating, rows of the mixing matrix that sum to one; None: the method's mixing
    weights: Array | None = None


class Round(NamedTuple):
    """One communication round, as a method sees it."""

    number: Array  # scalar int32, k, the rounds done before
    graph: Graph
    clients: Clients  # whose mask is that of the samples that have arrived
    sizes: Array  # [M] int32, N_i, how many these are
    exchange: Any  # dfl_jax.exchange.Exchange, through which clients send
    judged: Array | None = None  # [M] bool, clients over whom means are taken; None: all

    def only(self, sends: Array) -> 'Round':
        """The round in which only some clients send, and others are not heard.

        sends: whether each does, bool [M], or whether all do, a scalar.
        """
        members, mask = self.graph.members, self.graph.mask
        sends = jnp.broadcast_to(sends, self.sizes.shape)
        itself = jnp.arange(members.shape[1])[None] == 0
        return self._replace(graph=self.graph._replace(mask=mask & (sends[members] | itself)))


@partial(jax.tree_util.register_dataclass, data_fields=['messages'], meta_fields=['bits'])
@dataclass(frozen=True)
class Sent:
    """What clients sent in a round: `messages` of `bits` bits each."""

    messages: Array  # [M] int32, over delivered links
    bits: int


class Mean(NamedTuple):
    """A metric of many clients, written to the metrics as NAME_mean."""

    values: Array  # any shape


class Choices(NamedTuple):
    """Whole numbers that clients chose, written as NAME_mean and, how often each, NAME_counts."""

    values: Array  # int32, any shape; those below zero are of no client


class Info(NamedTuple):
    """What one round reports."""

    loss: Array  # [M], each client's training loss, by which the simulator notices divergence
    metrics: Mapping[str, Array | Mean | Choices] = {}
    # [M] float32, of each client's matrix products; None: the method does not count them
    flops: Array | None = None
    # [M] float32, those that aggregators of meetings do when all messages are there; None: all
    combining_flops: Array | None = None
    sent: Mapping[str, Sent] = {}  # by kind of message, as the round's exchange counted it


class Algorithm(NamedTuple):
    """A method of (decentralized) federated learning as pure functions.

    `init` and `step` are traced once a run. The simulator never looks inside the state: it steps
    it, saves it and asks `predict` for logits. `dfl_jax.exchange.one_round` does one step.

    `consensus` and `predict` take weights [M] of the clients in the consensus model, e.g. ones for
    those that are to be averaged; None for all alike. Where clients differ in architecture
    `consensus` returns one model of each.

    `predict` may return more logits, [..., B, C], whose mean accuracy the evaluation reports:
    'regular' becomes the metric `regular_accuracy`, 'client/NAME' becomes `client_accuracy/NAME`.

    >>> from dfl_jax.methods import make
    >>> from dfl_jax.models import MLP, bind
    >>> make('dpsgd', bind(MLP(3, (2,)), (4,)), bits=8).exchange.codec.bits(jnp.zeros(19))
    184
    """

    init: Callable[[Array, Clients], State]  # (key, clients) -> state
    step: Callable[[Array, State, Round], tuple[State, Info]]  # (key, state, round)
    # (state, x, weights=None) -> {'client': [M, B, C], 'consensus': [B, C]}
    predict: Callable[..., dict[str, Array]]
    consensus: Callable[..., PyTree]  # (state, weights=None) -> parameters of the consensus model
    # (state, x [M, B, ...]) -> each client's logits on its own samples [M, B, C]; None: not offered
    predict_own: Callable[[State, Array], Array] | None = None
    # (schedule, samples of each client [M]), NumPy; raises ValueError where the method's theory
    # does not hold on these graphs
    check: Callable[[Graph, np.ndarray], None] | None = None
    # By architecture, the numbers of its clients, [M_a]; where all have the same, empty
    clients_of: Mapping[str, np.ndarray] = {}
    task: Task = CLASSIFICATION  # by which predictions are evaluated
    overlaps: bool = False  # what a round sends does not depend on what it computes
    replies: bool = True  # where clients meet at an aggregator, their senders wait for its answer
    by_size: bool = False  # the consensus model weighs clients by their samples
    exchange: Any = None  # dfl_jax.exchange.Exchange of its messages; None: one that leaves them
    # What clients send follows from their data by their local training alone, once a round, so that
    # its noise protects them
    private: bool = False
    # Why its theory asks for a linear average of what is received; '': any rule may combine it
    linear: str = ''
