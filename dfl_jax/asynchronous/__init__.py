"""Methods whose clients do not wait for rounds: the events of their clocks, packed into slots.

`plan` simulates on the host who finishes when, `method_of` gives the method that advances one slot,
and `simulate.run` scans the slots as it scans rounds.
"""

from dfl_jax.asynchronous.ad_psgd import ad_psgd
from dfl_jax.asynchronous.divshare import divshare
from dfl_jax.asynchronous.gossip_learning import gossip_learning
from dfl_jax.asynchronous.intervals import by_interval, intervals_of
from dfl_jax.asynchronous.planning import (
    EVENT_METHODS,
    Plan,
    method_of,
    model_bits,
    plan,
    weight_bits,
)
from dfl_jax.asynchronous.slots import Slots
from dfl_jax.asynchronous.swift import swift
