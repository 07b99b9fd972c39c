"""The three types that every part of the simulator speaks.

Axis letters, used in every docstring of the package:
M clients, N padded samples a client, K neighbours including self (padded), H aggregators, C
classes, P parameters, T rounds, B a batch of samples.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
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


class Mean(NamedTuple):
    """A metric of many clients, written to the metrics as NAME_mean."""

    values: Array  # any shape


class Choices(NamedTuple):
    """Whole numbers that clients chose, written as NAME_mean and, how often each, NAME_counts."""

    values: Array  # int32, any shape; those below zero are of no client


class Info(NamedTuple):
    """What one round reports."""

    loss: Array  # [M], each client's training loss, by which the simulator notices divergence
    # What each client sent over delivered links: unit -> [M] int32, in units of `unit_bits` bits
    sent: Mapping[str, Array]
    metrics: Mapping[str, Array | Mean | Choices] = {}
    # [M] float32, of each client's matrix products; None: the method does not count them
    flops: Array | None = None
    # [M] float32, those that aggregators of meetings do when all messages are there; None: all
    combining_flops: Array | None = None


class Algorithm(NamedTuple):
    """A method of (decentralized) federated learning as pure functions.

    `init` and `step` are traced once a run. The simulator never looks inside the state: it steps
    it, saves it and asks `predict` for logits.

    `consensus` takes weights [M] of the clients in place of the algorithm's own, e.g. ones for the
    clients that are to be averaged. Where clients differ in architecture it returns one of each.

    `predict` may return more logits, [..., B, C], whose mean accuracy the evaluation reports:
    'regular' becomes the metric `regular_accuracy`, 'client/NAME' becomes `client_accuracy/NAME`.

    >>> from dfl_jax.methods import make
    >>> from dfl_jax.models import MLP, bind
    >>> make('dpsgd', bind(MLP(3, (2,)), (4,))).unit_bits  # of 19 weights
    {'weights': 608}
    """

    init: Callable[[Array, Clients], State]  # (key, clients) -> state
    step: Callable[[Array, State, Graph, Clients], tuple[State, Info]]
    predict: Callable[[State, Array], dict[str, Array]]  # 'client' [M, B, C], 'consensus' [B, C]
    unit_bits: Mapping[str, int]  # size in bits of each unit that `Info.sent` counts
    consensus: Callable[..., PyTree]  # (state, weights=None) -> parameters of the consensus model
    # (state, x [M, B, ...]) -> each client's logits on its own samples [M, B, C]; None: not offered
    predict_own: Callable[[State, Array], Array] | None = None
    # (schedule, samples of each client [M]), NumPy; raises ValueError where the method's theory
    # does not hold on these graphs
    check: Callable[[Graph, np.ndarray], None] | None = None
    task: Task = CLASSIFICATION  # by which predictions are evaluated
    overlaps: bool = False  # what a round sends does not depend on what it computes
    replies: bool = True  # where clients meet at an aggregator, their senders wait for its answer
