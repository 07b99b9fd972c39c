"""What a run asks of the machine, as the flags and the method have it: devices, chunk, memory."""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import Mesh

from dfl_jax.base import Algorithm, Clients, Graph
from dfl_jax.evaluation import Holdout
from dfl_jax.execution.devices import client_mesh, mesh_of_cores
from dfl_jax.execution.memory import (
    ROUND_COPIES,
    Footprint,
    aggregator_bytes,
    available_bytes,
    bytes_of,
    choose_chunk,
    client_bytes,
    in_bytes,
    projected_bytes,
)
from dfl_jax.models import Model
from dfl_jax.ntk.compressed import compressed_bytes
from dfl_jax.ntk.projection import DIMENSION
from dfl_jax.topology import graph_bytes

CORES_SHARE = 0.25  # of the free memory, that copies of the network may take on cores as devices


def chunk_of(
    flags: Any,
    model: Model,
    graphs: Graph,
    samples: int,
    resolved: dict[str, Any],
    meeting: bool,
    mesh: Mesh | None,
) -> tuple[int, int]:
    """Aggregators, clients, or participants of meetings, to work on at once, and the bytes of each.

    model: the largest; samples: those of the largest client.
    """
    _, aggregators, members = graphs.members.shape
    if 'kernel' in resolved:
        samples = -(-samples // (resolved.get('batches', 1) * resolved.get('subsampling', 1)))
        each = aggregator_bytes(samples * members, model)
        if resolved.get('jacobian_sparsity') is not None or resolved.get('jacobian_bits'):
            each += compressed_bytes(samples * members, model)
        advice = 'lower --degree, raise --ntk_batches or use more clients'
        if 'cohort' in resolved:
            advice = 'lower --ntk_fl_cohort or use more clients'
    elif 'projection' in resolved:
        drawn = math.ceil(samples * resolved['sampling']) * members
        explicit = (
            resolved['projection'] == 'gaussian'
            or resolved['kernel_form'] == 'trace'
            or resolved['exchange'] != 'float32'
        )
        each = projected_bytes(drawn, model, explicit, resolved['projection_dim'] or DIMENSION)
        advice = 'lower --degree, --spark_projection_dim or --spark_sampling, or use more clients'
    elif meeting:
        aggregators *= members  # of an architecture, at most
        orders = max(resolved.get('mutual_epochs') or 1, _orders(resolved))
        each = client_bytes(samples, model, orders)
        advice = 'use smaller --architectures, or lower --dfml_mutual_epochs or --local_epochs'
    else:
        each = client_bytes(samples, model, _orders(resolved))
        advice = 'use a smaller --model, or lower --local_epochs or --local_steps'
    on_each = -(-aggregators // mesh.size) if mesh else aggregators
    return choose_chunk(on_each, each, flags.chunk, advice), each


def _orders(resolved: dict[str, Any]) -> int:
    """How often local training shuffles the samples of a client."""
    training = resolved.get('training')
    found = [resolved.get(name) for name in ('local_epochs', 'local_steps')]
    if training is not None:
        found += [training.local_epochs, training.local_steps]
    return max(orders or 1 for orders in found)


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
    flags: Any, model: Model, parts: Sequence, aggregators: int, meeting: bool
) -> Mesh | None:
    """The cores of a CPU as devices, for --devices=auto; None where one device does better.

    As many as divide the clients and the aggregators: the large products of a single server are
    spread over the cores anyway. None where their copies would need much of the memory, as each
    holds all weights while it mixes, and the data where a method asks for neighbours'. None where
    clients
    meet, as the empty places of a meeting come last: DFML is slower on two cores as devices
    (docs/benchmarks.md).
    """
    if flags.devices != 'auto' or flags.distributed or meeting:
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
    work: int,
    mesh: Mesh | None,
    graphs: int = 0,
) -> Footprint:
    """Raises ValueError when the run would not fit into the memory that is free.

    work: bytes of what is worked on at once; graphs: those of `bytes_of_graphs`.
    """
    shares = mesh.size if mesh and len(clients.y) % mesh.size == 0 else 1
    whole = bytes_of(jax.eval_shape(algorithm.init, key, clients))
    state, gathered = whole // shares, whole if mesh else 0
    of_data = bytes_of(clients) // shares + bytes_of(test)
    each = Footprint(of_data, state, ROUND_COPIES * state + gathered, work)
    together = mesh.size if mesh and jax.default_backend() == 'cpu' else 1  # in one memory
    found = Footprint(*(together * part for part in each))._replace(graphs=graphs)
    free = available_bytes()
    if found.total > free:
        remedy = 'use fewer --clients, a smaller --model, or more --devices'
        if graphs > found.total / 2:
            remedy = 'use fewer --clients or --rounds, lower --degree or --eval_every'
        raise ValueError(f'the run needs about {found} and {in_bytes(free)} are free; {remedy}')
    return found


def bytes_of_graphs(graphs: Graph, eval_every: int) -> int:
    """Bytes of a schedule, which the host holds, and of the rounds of a block on the device, which
    are written out even where the schedule is static."""
    rounds = len(graphs.members)
    block = math.gcd(min(eval_every, rounds), rounds)
    return graph_bytes(graphs) + bytes_of(graphs) // rounds * block
