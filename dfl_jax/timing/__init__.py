"""Seconds of a real network: what clients and links are like, and when each of them is done."""

from dfl_jax.timing.counts import (
    DependsOnTrainingError,
    active_clients,
    check_rounds,
    counted,
    counts_of,
    rules_of,
)
from dfl_jax.timing.files import parse, read
from dfl_jax.timing.rounds import (
    ROUNDS,
    Clock,
    Counts,
    NeverOnlineError,
    Rules,
    advance,
    energy,
    finish_times,
)
from dfl_jax.timing.world import Online, World, world
