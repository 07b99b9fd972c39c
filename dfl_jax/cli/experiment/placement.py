"""What a run asks of the machine, as the flags and the method have it: devices, chunk, memory."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

from dfl_jax.algorithms import Method
from dfl_jax.base import Algorithm, Clients, Graph
from dfl_jax.cli.experiment.method import Chosen
from dfl_jax.evaluation import Holdout
from dfl_jax.execution import client_mesh, mesh_of_cores
from dfl_jax.execution.memory import (
    ROUND_COPIES,
    Footprint,
    available_bytes,
    bytes_of,
    choose_chunk,
    in_bytes,
)
from dfl_jax.models import Model
from dfl_jax.topology import graph_bytes

CORES_SHARE = 0.25  # of the free memory, that copies of the network may take on cores as devices


class Placement(NamedTuple):
    """Where a run is computed, and how much of it at once."""

    mesh: Mesh | None  # the devices, where there are several
    chunk: int  # aggregators, clients, or participants of meetings that are worked on at once
    work: int  # bytes of a chunk


def place(flags: Any, chosen: Chosen, model: Model, parts: Sequence, graphs: Graph) -> Placement:
    """The placement that the flags ask for, or what the machine holds.

    model: the largest; parts: the samples of each client.

    Raises ValueError where not even one would fit.
    """
    _, count, members = graphs.members.shape
    method = chosen.method
    mesh = mesh_of(flags) or cores_of(flags, model, parts, count, method)
    each = method.memory(model, max(map(len, parts)), members, chosen.resolved)
    if method.heterogeneous:
        count *= members  # of an architecture, at most
    on_each = -(-count // mesh.size) if mesh else count
    chunk = choose_chunk(on_each, each, flags.chunk, method.advice)
    return Placement(mesh, chunk, chunk * each)


def mesh_of(flags: Any) -> Mesh | None:
    """The devices of --devices, None for a single one; for `auto` see `cores_of`."""
    if flags.devices == 'all' or flags.distributed:
        return client_mesh() if len(jax.devices()) > 1 else None
    if flags.devices == 'auto':
        return None
    if not flags.devices.isdecimal():
        raise ValueError(f'--devices={flags.devices}: write a number, auto or all')
    count = int(flags.devices)
    return None if count == 1 else client_mesh(count)


def cores_of(
    flags: Any, model: Model, parts: Sequence, aggregators: int, method: Method
) -> Mesh | None:
    """The cores of a CPU as devices, for --devices=auto; None where one device does better.

    As many as divide the clients and the aggregators: the large products of a single server are
    spread over the cores anyway. None where their copies would need much of the memory, as each
    holds all weights while it mixes, and the data where a method asks for neighbours'. None where
    clients meet, as the empty places of a meeting come last: DFML is slower on two cores as devices
    (docs/benchmarks.md).
    """
    if flags.devices != 'auto' or flags.distributed or method.heterogeneous:
        return None
    samples = len(parts) * max(map(len, parts)) * math.prod(model.input_shape)
    whole = 4 * (len(parts) * model.size + samples)
    mesh = mesh_of_cores(math.gcd(len(parts), aggregators))
    return mesh if mesh and mesh.size * whole <= CORES_SHARE * available_bytes() else None


def footprint_of(
    algorithm: Algorithm,
    key: jax.Array,
    clients: Clients,
    test: Holdout,
    placement: Placement,
    graphs: Graph,
    eval_every: int,
) -> Footprint:
    """The memory of a run. Raises ValueError when it would not fit into what is free."""
    mesh, bytes_for_graphs = placement.mesh, bytes_of_graphs(graphs, eval_every)
    shares = mesh.size if mesh and len(clients.y) % mesh.size == 0 else 1
    whole = bytes_of(jax.eval_shape(algorithm.init, key, clients))
    state, gathered = whole // shares, whole if mesh else 0
    of_data = bytes_of(clients) // shares + bytes_of(test)
    each = Footprint(of_data, state, ROUND_COPIES * state + gathered, placement.work)
    together = mesh.size if mesh and jax.default_backend() == 'cpu' else 1  # in one memory
    found = Footprint(*(together * part for part in each))._replace(graphs=bytes_for_graphs)
    free = available_bytes()
    if found.total > free:
        remedy = 'use fewer --clients, a smaller --model, or more --devices'
        if bytes_for_graphs > found.total / 2:
            remedy = 'use fewer --clients or --rounds, lower --degree or --eval_every'
        raise ValueError(f'the run needs about {found} and {in_bytes(free)} are free; {remedy}')
    return found


def bytes_of_graphs(graphs: Graph, eval_every: int) -> int:
    """Bytes of a schedule, which the host holds, and of the rounds of a block on the device, which
    are written out even where the schedule is static."""
    rounds = len(graphs.members)
    block = math.gcd(min(eval_every, rounds), rounds)
    return graph_bytes(graphs) + bytes_of(graphs) // rounds * block
