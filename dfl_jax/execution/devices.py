"""The client axis over many devices: one mesh of one axis, on one host or on several.

Everything is jitted for the whole mesh. What is mapped over clients or aggregators is split by
`shard_map`, each device working through its share; the rest XLA partitions by the placement of its
inputs. With the mesh set (`jax.set_mesh`) the same program runs on any number of devices; without
one nothing here does anything.
"""

import contextlib
import os
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from dfl_jax.base import Array, PyTree
from dfl_jax.setting_error import SettingError

AXIS = 'clients'
MOST_CORES = 16  # of a CPU that become devices; more were not measured
# XLA ends the process where a core waits for another for longer than a minute.
PATIENCE = (
    '--xla_cpu_collective_call_warn_stuck_timeout_seconds=86400 '
    '--xla_cpu_collective_call_terminate_timeout_seconds=86400'
)


def cores_as_devices(count: int | None = None) -> None:
    """Makes `count` devices of the CPU, one a core by default.

    Does nothing after JAX's first use, or where XLA_FLAGS say how many. XLA's CPU backend spreads
    large matrix products over the cores and little else: with a device for each of two cores local
    training takes 0.4 times as long (docs/compiled.md).
    """
    flags = os.environ.get('XLA_FLAGS', '')
    if PATIENCE not in flags:
        os.environ['XLA_FLAGS'] = f'{PATIENCE} {flags}'
    if 'xla_force_host_platform_device_count' in flags:
        return
    with contextlib.suppress(RuntimeError):  # JAX has its devices already
        jax.config.update('jax_num_cpu_devices', count or _cores())


def own_cores() -> int:
    """The number of cores that this process may use."""
    bound = hasattr(os, 'sched_getaffinity')  # Linux; a batch system hands out some of the cores
    return len(os.sched_getaffinity(0)) if bound else os.cpu_count() or 1


def _cores() -> int:
    """The number of cores that become devices."""
    return min(own_cores(), MOST_CORES)


def mesh_of_cores(clients: int) -> Mesh | None:
    """A mesh of the cores that share the clients, where they are devices (`cores_as_devices`).

    No more cores than finish as early as all would: three for five clients on four cores. None, for
    the default device, on an accelerator and where there is no more than one core or client.
    """
    if jax.default_backend() != 'cpu' or jax.process_count() > 1:
        return None
    share = -(-clients // min(_cores(), len(jax.devices())))
    count = -(-clients // share)
    return client_mesh(count) if count > 1 else None


def client_mesh(count: int | None = None) -> Mesh:
    """A mesh of `count` devices, None for all of them, on all hosts.

    Raises SettingError when there are fewer, or where hosts would be left out.
    """
    devices = jax.devices()
    count = len(devices) if count is None else count
    if not 1 <= count <= len(devices):
        raise SettingError.of(
            f'{count} devices asked for, and JAX sees {len(devices)} ({devices[0].device_kind}); '
            f'on a CPU, devices.cores_as_devices({count}) makes them, before JAX is first used',
            devices=count,
        )
    if jax.process_count() > 1 and count < len(devices):
        raise SettingError.of(
            f'{count} of the {len(devices)} devices of {jax.process_count()} processes; several '
            'processes work on all of their devices',
            devices=count,
        )
    return Mesh(np.asarray(devices[:count]), (AXIS,), axis_types=(AxisType.Auto,))


def filled(tree: PyTree, parts: int, axis: int = 0) -> PyTree:
    """Leaves [..., n, ...], n at `axis`, with zeros up to the next multiple of `parts`.

    NumPy arrays stay NumPy arrays; leaves without that axis stay as they are.
    """

    def fill(leaf: Array) -> Array:
        if np.ndim(leaf) <= axis or not (missing := -leaf.shape[axis] % parts):
            return leaf
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            numbers = fill(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(leaf))
        xp = jnp if isinstance(leaf, jax.Array) else np
        return xp.pad(leaf, [(0, missing if i == axis else 0) for i in range(leaf.ndim)])

    return jax.tree.map(fill, tree)


def unfilled(tree: PyTree, like: PyTree) -> PyTree:
    """What `filled` had as its tree, split over the mesh as before; for use under `jax.jit`.

    like: its shapes.
    """

    def cut(leaf: Array, original: Array) -> Array:
        if leaf.shape == original.shape:
            return leaf
        return jax.lax.with_sharding_constraint(leaf[: len(original)], PartitionSpec(AXIS))

    return jax.tree.map(cut, tree, like)


def placed(tree: PyTree, mesh: Mesh | None, axis: int = 0) -> PyTree:
    """Arrays on the default device, or split along `axis` over the mesh and `filled` to that end;
    scalars are whole on each device."""
    if mesh is None:
        return jax.device_put(tree)
    split = NamedSharding(mesh, PartitionSpec(*[None] * axis, AXIS))
    whole = NamedSharding(mesh, PartitionSpec())

    def place(leaf: Array) -> Array:
        return jax.device_put(leaf, split if np.ndim(leaf) > axis else whole)

    return jax.tree.map(place, filled(tree, mesh.size, axis))


def placed_as_run(state: PyTree, mesh: Mesh | None, axis: int = 0) -> PyTree:
    """A state on the devices that hold it where `simulate.run` yields it: split over the mesh, or
    whole on each where the devices do not divide it. What follows from it has the same bits."""
    if mesh is None:
        return placed(state, mesh)
    shapes = map(np.shape, jax.tree.leaves(state))
    if all(shape[axis] % mesh.size == 0 for shape in shapes if len(shape) > axis):
        return placed(state, mesh, axis)
    return jax.device_put(state, NamedSharding(mesh, PartitionSpec()))


def replicated() -> NamedSharding | None:
    """The sharding of arrays that are whole on every device of the mesh; None without a mesh."""
    mesh = jax.sharding.get_mesh()
    return None if mesh.empty else NamedSharding(mesh, PartitionSpec())


def mesh_size() -> int:
    """The number of devices of the mesh, one without a mesh."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh.shape[AXIS]


def shard_over_clients(work: Callable[[PyTree], PyTree], stacked: PyTree) -> PyTree:
    """The result of `work` on leaves [S, ...], each device of the mesh working on its share of S.

    `work` treats entries apart from each other and keeps the number and order of those of the first
    leaf; what it closes over is whole on every device. Where the devices do not divide S, zeros
    fill the last shares (`filled`), and what becomes of them is dropped.
    """
    if (devices := mesh_size()) == 1:
        return work(stacked)
    count, shares = len(jax.tree.leaves(stacked)[0]), PartitionSpec(AXIS)
    # check_vma: loops that start from constants would each have to mark them as varying
    mapped = jax.shard_map(work, in_specs=shares, out_specs=shares, check_vma=False)
    return jax.tree.map(lambda a: a[:count], mapped(filled(stacked, devices)))


def shard_and_sum(work: Callable[[PyTree], PyTree], stacked: PyTree) -> PyTree:
    """The sum over devices of what `work` makes of their shares of leaves [S, ...].

    `work` has to tell entries from the zeros that fill the last shares (`filled`).
    """
    if (devices := mesh_size()) == 1:
        return work(stacked)
    mapped = jax.shard_map(
        lambda share: jax.lax.psum(work(share), AXIS),
        in_specs=PartitionSpec(AXIS),
        out_specs=PartitionSpec(),
        check_vma=False,
    )
    return mapped(filled(stacked, devices))


def join(how: str) -> None:
    """Makes this process one of several that share all of their devices.

    how: `auto` where Slurm, a TPU pod or another cluster tells each process its number, or
    HOST:PORT,i,n: process i of n, the first of which listens there.

    Raises SettingError for anything else, RuntimeError when the other processes do not come.
    """
    if how == 'auto':
        jax.distributed.initialize()
        return
    address, *numbers = how.split(',')
    if ':' not in address or len(numbers) != 2 or not ''.join(numbers).isdecimal():
        raise SettingError('distributed', how, 'write auto, or HOST:PORT,i,n')
    jax.distributed.initialize(address, int(numbers[1]), int(numbers[0]))


def leads() -> bool:
    """Whether this process is the one that writes and prints."""
    return jax.process_index() == 0


def agreed_text(text: str | None) -> str | None:
    """The first process' text, on all of them."""
    if jax.process_count() == 1:
        return text
    letters = np.frombuffer((text or '').encode(), np.uint8)
    length = int(_from_the_first(np.int32(-1 if text is None else len(letters))))
    if length < 0:
        return None
    if text is None:
        letters = np.zeros(length, np.uint8)
    return np.asarray(_from_the_first(letters), np.uint8).tobytes().decode()


def agreed(tree: PyTree | None, like: PyTree) -> PyTree:
    """The first process' arrays, on all; like: structure, shapes and dtypes, for the others."""
    if jax.process_count() == 1:
        return tree
    if tree is None:
        tree = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), like)
    return _from_the_first(jax.device_get(tree))


def _from_the_first(tree: PyTree) -> PyTree:
    from jax.experimental import multihost_utils

    return multihost_utils.broadcast_one_to_all(tree)


def fetched(tree: PyTree) -> PyTree:
    """Whole arrays on this host, wherever their parts are; all processes have to call it."""
    if jax.process_count() == 1:
        return jax.device_get(tree)
    from jax.experimental import multihost_utils

    return multihost_utils.process_allgather(tree, tiled=True)
