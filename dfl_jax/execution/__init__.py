"""Where a run is computed and how much of it at once: devices, memory, chunks.

What is mapped over clients or aggregators goes through `map_in_chunks`, which shares the work
between devices and keeps to `chunk` entries at a time.
"""

from dfl_jax.execution.batched_runs import Runs, on_shares
from dfl_jax.execution.chunks import even_size, folded, map_in_chunks, map_present
from dfl_jax.execution.devices import (
    AXIS,
    agreed,
    agreed_text,
    client_mesh,
    cores_as_devices,
    fetched,
    filled,
    join,
    leads,
    mesh_of_cores,
    mesh_size,
    own_cores,
    placed,
    placed_as_run,
    replicated,
    shard_and_sum,
    shard_over_clients,
    unfilled,
)
from dfl_jax.execution.flops import counted_flops, flops_of
from dfl_jax.execution.memory import (
    ROUND_COPIES,
    SHARE,
    Footprint,
    aggregator_bytes,
    available_bytes,
    bytes_of,
    choose_chunk,
    client_bytes,
)
