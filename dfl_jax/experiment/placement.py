"""What a run asks of the machine: devices, chunk, memory."""

import math

import jax
from jax.sharding import Mesh

from dfl_jax import execution, topology
from dfl_jax.base import Algorithm, Clients, Graph
from dfl_jax.evaluation import Holdout
from dfl_jax.experiment.configured_method import ConfiguredMethod
from dfl_jax.experiment.run_settings import Placement
from dfl_jax.host_memory import in_bytes
from dfl_jax.methods import Method
from dfl_jax.models import Model
from dfl_jax.setting_error import InputError, SettingError
from dfl_jax.simulate import block_length

CORES_SHARE = 0.25  # of the free memory, that copies of the network may take on cores as devices


def mesh_for(
    asked: Placement, model: Model, clients: Clients, graphs: Graph, method: Method
) -> Mesh | None:
    """The devices that are asked for, or the cores of a CPU; None for a single one."""
    places = graphs.members.shape[1]
    return mesh_of(asked) or cores_of(asked, model, clients, places, method)


def chunk_of(
    configured: ConfiguredMethod, model: Model, clients: Clients, graphs: Graph, mesh: Mesh | None
) -> tuple[int, int]:
    """How many aggregators, clients, or participants of meetings are worked on at once: what is
    asked for, or what the machine holds; and the bytes that they take.

    model: the largest. Raises ValueError where not even one would fit.
    """
    _, count, members = graphs.members.shape
    method, samples = configured.method, clients.y.shape[1]
    each = method.memory(model, samples, members, configured.resolved)
    if method.heterogeneous:
        count *= members  # of an architecture, at most
    on_each = -(-count // mesh.size) if mesh else count
    asked = configured.given.get('chunk')
    chunk = execution.choose_chunk(on_each, each, asked, method.advice)
    return chunk, chunk * each


def mesh_of(asked: Placement) -> Mesh | None:
    """The devices that are asked for, None for a single one; for `auto` see `cores_of`."""
    if asked.devices == 'all' or asked.distributed:
        return execution.client_mesh() if len(jax.devices()) > 1 else None
    if asked.devices == 'auto':
        return None
    if not asked.devices.isdecimal():
        raise SettingError('devices', asked.devices, 'write a number, auto or all')
    count = int(asked.devices)
    return None if count == 1 else execution.client_mesh(count)


def cores_of(
    asked: Placement, model: Model, clients: Clients, aggregators: int, method: Method
) -> Mesh | None:
    """The cores of a CPU as devices, for devices='auto'; None where one device does better.

    None for a single server, whose large products are spread over the cores anyway, unless its
    clients train. None where their copies would need much of the memory, as each holds all weights
    while it mixes, and the data where a method asks for neighbours'.
    """
    if asked.devices != 'auto' or asked.distributed:
        return None
    count = len(clients.y)
    whole = 4 * (count * model.size + clients.y.size * math.prod(model.input_shape))
    mesh = execution.mesh_of_cores(count if method.heterogeneous else min(count, aggregators))
    return mesh if mesh and mesh.size * whole <= CORES_SHARE * execution.available_bytes() else None


def footprint_of(
    algorithm: Algorithm,
    clients: Clients,
    test: Holdout,
    work: int,
    mesh: Mesh | None,
    graphs: int = 0,
) -> execution.Footprint:
    """The memory of a run. Raises ValueError when it would not fit into what is free.

    work: bytes of what is worked on at once; graphs: those of `bytes_of_graphs`.
    """
    clients_held = -(-len(clients.y) // (mesh.size if mesh else 1))
    whole = execution.bytes_of(jax.eval_shape(algorithm.init, jax.random.key(0), clients))
    state, gathered = whole * clients_held // len(clients.y), whole if mesh else 0
    of_data = execution.bytes_of(clients) * clients_held // len(clients.y)
    of_data += execution.bytes_of(test)
    each = execution.Footprint(of_data, state, execution.ROUND_COPIES * state + gathered, work)
    together = mesh.size if mesh and jax.default_backend() == 'cpu' else 1  # in one memory
    found = execution.Footprint(*(together * part for part in each))._replace(graphs=graphs)
    free = execution.available_bytes()
    if found.total > free:
        remedy = 'use fewer `clients`, a smaller `model`, or more `devices`'
        if graphs > found.total / 2:
            remedy = 'use fewer `clients` or `rounds`, lower `degree` or `eval_every`'
        raise InputError(f'the run needs about {found} and {in_bytes(free)} are free; {remedy}')
    return found


def bytes_of_graphs(graphs: Graph, eval_every: int) -> int:
    """Bytes of a schedule, which the host holds, and of the rounds of a block on the device, which
    are written out even where the schedule is static."""
    rounds = len(graphs.members)
    block = block_length(eval_every, rounds)
    return topology.graph_bytes(graphs) + execution.bytes_of(graphs) // rounds * block
