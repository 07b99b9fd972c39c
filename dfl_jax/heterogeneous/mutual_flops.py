"""The floating-point operations of meetings."""

import jax
import jax.numpy as jnp

from dfl_jax.base import Array, Graph
from dfl_jax.execution.flops import flops_of
from dfl_jax.heterogeneous.mutual import Mutual
from dfl_jax.heterogeneous.population import Groups, Population
from dfl_jax.training import LocalTraining, gradient_flops, training_flops


def local_flops(
    population: Population, settings: LocalTraining, participants: Groups, sizes: Array
) -> Array:
    """Flops of participants that train on their own data, float32 [M]; sizes: N_i, [M]."""
    flops = jnp.zeros(len(sizes), jnp.float32)
    for name, group in participants.items():
        each = training_flops(population.models[name], settings)(sizes)[group.client]
        flops = flops.at[group.client].add(jnp.where(group.present, each, 0))
    return flops


def meeting_flops(
    population: Population, mutual: Mutual, participants: Groups, graph: Graph, sizes: Array
) -> Array:
    """Flops of aggregators at which models learn from each other, float32 [M].

    A gradient of each model on each sample of the aggregator, K times; of teachers that do not
    learn their outputs.
    """
    flops = jnp.zeros(len(sizes), jnp.float32)
    members = graph.members.shape[1]
    for name, group in participants.items():
        aggregator = graph.members[group.position // members, 0]
        model = population.models[name]
        sample = jax.ShapeDtypeStruct((1, *model.input_shape), jnp.float32)
        of_student = gradient_flops(model)
        of_teacher = float(flops_of(model.apply, model.shapes, sample))
        learns = (group.position % members == 0) if mutual.vanilla else True
        each = jnp.where(learns, of_student, of_teacher) * jnp.float32(mutual.epochs)
        each = each * sizes[aggregator]
        flops = flops.at[aggregator].add(jnp.where(group.present, each, 0))
    return flops
