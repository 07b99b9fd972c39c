"""What the rest of the program has to know of a method, which its row of METHODS declares."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dfl_jax.base import Algorithm
from dfl_jax.models import Model
from dfl_jax.training.local import training_bytes


class Run(NamedTuple):
    """What a method may take from the run that it is part of."""

    rounds: int  # T
    clients: int  # M
    senders: int  # that meet at an aggregator, for graphs of meetings
    clustered: bool  # the topology is one of disjoint cliques
    projection_seed: int  # a random stream of the run's seed
    averaging_warmup: int = 0  # rounds until gain-corrected weights agree
    chunk: int = 1  # clients or aggregators that fit into the memory at once


class Method(NamedTuple):
    """A method, and its needs."""

    factory: Callable[..., Algorithm]  # (network, **settings)
    label: str = ''  # as the papers write it
    paper: str = ''
    # `neighbours`: an aggregator a client; `cohort`: one server, which hears `cohort` clients;
    # `meetings`: some aggregators and their senders, clients of any architecture; `pairs`: the same
    # with one sender an aggregator
    graphs: str = 'neighbours'
    # (model, samples N, members K, settings) -> bytes of one client, aggregator or participant
    memory: Callable[[Model, int, int, Mapping[str, Any]], int] = training_bytes
    advice: str = 'use a smaller --model, or lower --local_epochs or --local_steps'
    # setting -> what it is in a run, where the user does not say
    from_run: Mapping[str, Callable[[Run], Any]] = {}
    # flag of the run -> its default under this method, in place of the flag's own
    defaults: Mapping[str, Any] = {}
    architectures: str = ''  # where clients may differ, those of the paper's comparison

    @property
    def heterogeneous(self) -> bool:
        """Whether clients may have different architectures."""
        return self.graphs in ('meetings', 'pairs')
