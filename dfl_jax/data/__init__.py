"""Data of the network: sources, partitions over clients, packing into Clients."""

from dfl_jax.data import augment, feature_shift
from dfl_jax.data.arrival import arrival_rounds
from dfl_jax.data.dataset import DataError, Dataset
from dfl_jax.data.label_skew import balanced, dirichlet, dirichlet_split, shards, two_group, zipf
from dfl_jax.data.npz import check_dataset
from dfl_jax.data.partitions import (
    PARTITIONS,
    Partition,
    from_file,
    iid,
    lognormal,
    natural,
    pack,
    partition,
    split_validation,
    writer,
)
from dfl_jax.data.projection import project, projection_matrix
from dfl_jax.data.sources import (
    DATASETS,
    FILES,
    OPTIONS,
    SOURCES,
    Source,
    kind_of,
    load,
    subsample,
    synthetic,
)
