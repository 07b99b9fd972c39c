"""The network and device profile of a run, and what a method without rounds does in it."""

import inspect
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from dfl_jax import asynchronous, timing
from dfl_jax.base import Graph
from dfl_jax.checks import check_range
from dfl_jax.experiment.configured_method import ConfiguredMethod
from dfl_jax.experiment.description import Description
from dfl_jax.method_settings import assemble
from dfl_jax.methods import EVENTS
from dfl_jax.models import Model
from dfl_jax.setting_error import SettingError
from dfl_jax.timing import World
from dfl_jax.training import training_flops


def simulated_world(experiment: Description, seed: int) -> World | None:
    """The network and device profile, if any. Raises SettingError for one that does not fit the
    method or the run."""
    asked, seconds = experiment.time.world, experiment.time.round_seconds
    name, graphs = experiment.method.name, experiment.method.row.graphs
    if graphs == EVENTS and (asked is None or seconds is None):
        remedy = 'give it a `world`, and `round_seconds` for the intervals at which it is evaluated'
        raise SettingError('algorithm', name, 'has no rounds', remedy, colon=False)
    if asked is None:
        return None
    if graphs == 'cohort':
        text = f'the server of {name} is none of the clients, whose times these are'
        raise SettingError('world', asked, text, 'leave it out')
    world = timing.parse(asked, experiment.partition.clients, seed)
    if seconds is not None:
        check_range('round_seconds', seconds, above=0)
        if world.online is None and graphs != EVENTS:
            text = f'in `world={asked}` all are always online'
            remedy = 'add online=sine:PERIOD:SHARE, or leave it out'
            raise SettingError('round_seconds', seconds, text, remedy)
    return world


def plan_events(
    experiment: Description,
    configured: ConfiguredMethod,
    model: Model,
    graphs: Graph,
    world: World,
    sizes: np.ndarray,
    seed: int,
) -> tuple[Graph, ConfiguredMethod]:
    """The schedule of a method without rounds, in intervals of `round_seconds`, and the method with
    what follows from it. Raises ValueError for what cannot be simulated."""
    name, factory, settings = configured.name, configured.method.factory, configured.settings
    default = inspect.signature(factory).parameters['training'].default
    arguments = assemble(factory, settings)
    training = arguments.get('training', default)
    codec = (
        arguments['compression'].codec('stochastic', feedback=True)
        if 'compression' in arguments
        else None
    )
    of_events = asynchronous.EVENT_METHODS[name].settings
    seconds: Any = experiment.time.round_seconds
    planned = asynchronous.plan(
        *(name, graphs, world),
        flops=np.asarray(training_flops(model, training)(jnp.asarray(sizes))),
        bits=asynchronous.model_bits(name, model, codec),
        number_bits=asynchronous.weight_bits(model),
        codec=codec,
        ends=np.arange(1, experiment.rounds + 1) * seconds,
        loss=experiment.graphs.link_dropout,
        sizes=sizes,
        seed=seed,
        **{name: settings[name] for name in of_events if name in settings},
    )
    width = planned.slots.active.shape[1]
    run = configured.run._replace(places=planned.places, width=width, seconds=seconds)
    slots: Any = asynchronous.intervals_of(planned)
    return slots, replace(configured, run=run)
