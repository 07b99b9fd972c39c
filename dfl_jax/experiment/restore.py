"""Where a run goes on: its newest checkpoint that can be used, and the evaluations up to there."""

import json
import warnings
from collections.abc import Callable
from dataclasses import asdict

import jax

from dfl_jax import simulate
from dfl_jax.base import State
from dfl_jax.checkpoint import Checkpoints, Saved
from dfl_jax.data.dataset import one_line
from dfl_jax.execution import agreed, agreed_text, placed_as_run
from dfl_jax.experiment.build import BuiltExperiment
from dfl_jax.experiment.run_directory import Row, RunDirectory
from dfl_jax.setting_error import InputError


class CheckpointError(InputError):
    """Checkpoints that are there but cannot be read."""


def resume(
    built: BuiltExperiment,
    checkpoints: Checkpoints | None,
    directory: RunDirectory,
    eval_every: int,
) -> tuple[State, simulate.Progress] | None:
    """The state and progress of a run's last usable checkpoint, None where there is none at all."""
    like = jax.eval_shape(built.algorithm.init, built.key, built.clients)
    rounds = len(built.graphs.active)

    def fault(saved: Saved) -> str | None:
        return missing_evaluations(
            directory, saved.progress[0].round, saved.notes[0], eval_every, rounds
        )

    saved = restored(checkpoints, like, fault) if checkpoints else None
    progress = agreed_text(json.dumps(asdict(saved.progress[0])) if saved else None)
    if progress is None:
        return None
    state = placed_as_run(agreed(saved and saved.state, like), built.mesh)
    return state, simulate.Progress(**json.loads(progress))


def evaluations_until(
    directory: RunDirectory, round: int, eval_every: int, rounds: int
) -> list[Row]:
    """The evaluations up to `round` of a run over `rounds`.

    The last one of a shorter run that this one extends may be between two of them, and is none.
    """
    return [
        row
        for row, _ in directory.undamaged_rows()[0]
        if row['round'] <= round and _evaluated(row['round'], eval_every, rounds)
    ]


def _evaluated(round: int, eval_every: int, rounds: int) -> bool:
    return round % eval_every == 0 or round == rounds


def missing_evaluations(
    directory: RunDirectory, round: int, digest: str, eval_every: int, rounds: int
) -> str | None:
    """What metrics.jsonl lacks of the evaluations that a checkpoint of `round` was saved after.

    digest: of the evaluations before that of `round`.
    """
    rows, damage = directory.undamaged_rows()
    before = [digest_until for row, digest_until in rows if row['round'] < round]
    if (before[-1] if before else '') != digest:
        return damage or f'{directory.metrics_file} lacks evaluations before round {round}'
    if _evaluated(round, eval_every, rounds) and not any(r['round'] == round for r, _ in rows):
        return damage or f'{directory.metrics_file} lacks the evaluation of round {round}'
    return None


def restored(
    checkpoints: Checkpoints, like: State, fault_of: Callable[[Saved], str | None]
) -> Saved | None:
    """The newest checkpoint that can be read and has no fault, None where there is none at all.

    Newer ones are set aside, so that the run can save its own in their place. Raises
    CheckpointError, and leaves all as it is, when none can be used.
    """
    faults: dict[int, str] = {}
    for round in checkpoints.rounds():
        try:
            saved = checkpoints.restore(like, round)
            fault = fault_of(saved)
        except Exception as error:  # NumPy, zipfile, json and orbax each have their own
            fault = one_line(error)
        if fault:
            faults[round] = fault
            continue
        for newer, fault in faults.items():
            aside = checkpoints.set_aside(newer)
            warnings.warn(
                f'{aside.parent / str(newer)} cannot be used ({fault}); it is {aside.name} now, '
                f'and the run goes on from round {round}',
                stacklevel=2,
            )
        return saved
    if not faults:
        return None
    reasons = {
        fault: ' and '.join(str(round) for round, same in faults.items() if same == fault)
        for fault in faults.values()
    }
    raise CheckpointError(
        f'no checkpoint in {checkpoints.folder} can be used '
        f'({"; ".join(f"{rounds}: {fault}" for fault, rounds in reasons.items())}); bring a copy '
        'back, or move that folder away, and `resume` starts from the first round'
    )
