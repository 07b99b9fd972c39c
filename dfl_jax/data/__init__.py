"""Data of the network: sources, partitions over clients, packing into Clients."""

from dfl_jax.data import augment
from dfl_jax.data.formats import DataError, Dataset
from dfl_jax.data.label_skew import (
    PartitionError,
    balanced,
    dirichlet,
    dirichlet_split,
    shards,
    zipf,
)
from dfl_jax.data.partitions import (
    KINDS,
    from_file,
    iid,
    natural,
    pack,
    partition,
    split_validation,
    writer,
)
from dfl_jax.data.projection import project, projection_matrix
from dfl_jax.data.sources import DATASETS, FILES, load, subsample, synthetic
