"""The network of a run: families of graphs, schedules, failures, and where clients meet.

Everything here is NumPy and networkx on the host. A schedule is a `Graph` with a leading axis T
that enters the simulator's scan as data.
"""

from dfl_jax.topology.failures import (
    drop_absent,
    drop_clients,
    drop_links,
    drop_receivers,
    isolate_clients,
)
from dfl_jax.topology.families import FAMILIES, family_named
from dfl_jax.topology.family import Family
from dfl_jax.topology.family_settings import Settings, TopologyError, check_probability
from dfl_jax.topology.meetings import by_cluster, cohorts, meetings
from dfl_jax.topology.own_graphs import from_matrix, from_networkx
from dfl_jax.topology.rewiring import rewire
from dfl_jax.topology.schedule import check_schedule, graph_bytes, schedule
