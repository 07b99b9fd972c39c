"""Checkpoints of a run: the algorithm's state and the simulator's progress, by orbax.

A checkpoint appears whole or not at all, and the last two are kept.
"""

from dataclasses import asdict
from pathlib import Path

import jax

from dfl_jax.base import State
from dfl_jax.simulate import Progress

KEPT = 2


class Checkpoints:
    """The checkpoints below one folder, numbered by round."""

    def __init__(self, folder: Path):
        import orbax.checkpoint as ocp

        self._ocp = ocp
        self._manager = ocp.CheckpointManager(
            Path(folder).absolute(),
            options=ocp.CheckpointManagerOptions(
                max_to_keep=KEPT, enable_async_checkpointing=False, create=True
            ),
        )

    def latest(self) -> int | None:
        """The round of the newest checkpoint, None when there is none."""
        return self._manager.latest_step()

    def save(self, state: State, progress: Progress) -> None:
        args = self._ocp.args
        self._manager.save(
            progress.round,
            args=args.Composite(
                state=args.StandardSave(state), progress=args.JsonSave(asdict(progress))
            ),
        )

    def restore(self, like: State) -> tuple[State, Progress]:
        """The newest checkpoint; `like` gives the state's structure, shapes and dtypes."""
        args = self._ocp.args
        found = self._manager.restore(
            self.latest(),
            args=args.Composite(state=args.StandardRestore(like), progress=args.JsonRestore()),
        )
        state = jax.tree.map(lambda a, s: jax.numpy.asarray(a, s.dtype), found.state, like)
        return state, Progress(**found.progress)
