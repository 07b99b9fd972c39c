"""Clients of different architectures: which client has which, and rounds in which some meet.

Participants of a round, the rounds of methods whose clients meet at an aggregator, sub-models of
wider networks, and mutual learning.
"""

from dfl_jax.heterogeneous.mutual import Balance, Mutual, mutual_learning
from dfl_jax.heterogeneous.mutual_flops import meeting_flops
from dfl_jax.heterogeneous.population import (
    Population,
    Stacked,
    assign_architectures,
    assign_participants,
    gather,
    initial_stacked,
    populate,
    scatter,
)
from dfl_jax.heterogeneous.rounds import (
    TRAINING,
    MeetingState,
    architecture_means,
    heard_models,
    losses_of_round,
    meeting_method,
    meeting_rounds,
    predictions,
    send_models,
)
