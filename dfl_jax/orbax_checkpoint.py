"""Checkpoints as orbax wrote them for dfl_jax before `checkpoint` wrote its own; they are read, and
no longer written."""

import hashlib
import json
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dfl_jax.base import State

FORMAT = 2


def read(folder: Path, like: State) -> tuple[State, dict[str, Any]]:
    """The state of a checkpoint, and what is beside it.

    Raises ValueError when it is not what was saved, and whatever orbax raises where it finds a
    fault.
    """
    import orbax.checkpoint as ocp

    record = json.loads((folder / 'progress' / 'metadata').read_text(encoding='utf-8'))
    if record.get('format') != FORMAT:
        raise ValueError(f'it is of format {record.get("format")}, and this version reads {FORMAT}')
    hosted = jax.tree.map(lambda leaf: np.empty(leaf.shape, leaf.dtype), like)
    only = jax.process_index()  # of several processes one reads, and the others do not wait for it
    alone = ocp.options.MultiprocessingOptions(
        primary_host=only, active_processes={only}, barrier_sync_key_prefix=str(only)
    )
    with ocp.StandardCheckpointer(multiprocessing_options=alone) as checkpointer:
        state = checkpointer.restore(folder / 'state', hosted)
    if record.pop('digest', None) != _digest(state, record):
        raise ValueError('it is not what was saved')
    return state, record


def _digest(state: State, record: dict[str, Any]) -> str:
    """SHA-256 of every array, with its place, dtype and shape, and of the record."""
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode())
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        array = np.ascontiguousarray(leaf)
        digest.update(f'{jax.tree_util.keystr(path)} {array.dtype} {array.shape}'.encode())
        digest.update(array.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()
