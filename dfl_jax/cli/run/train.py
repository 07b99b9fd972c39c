"""Drives one run: progress bar, metrics, checkpoints, final table and plot."""

import contextlib
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from tqdm import tqdm

from dfl_jax import simulate
from dfl_jax.base import State
from dfl_jax.cli.experiment.build import Experiment
from dfl_jax.cli.run.loggers import Logger, LoggerError
from dfl_jax.cli.run.rundir import Row, RunDirectory, write_atomically
from dfl_jax.data.formats import one_line
from dfl_jax.execution import agreed, agreed_text, fetched, leads, placed

if TYPE_CHECKING:
    from dfl_jax.checkpoint import Checkpoints, Saved

INTERRUPTED = 130  # 128 + SIGINT, as shells report it

REPORTED = {  # of the methods that have it
    'regular_accuracy': '  regular models',
    'meme_accuracy': '  memes',
    'local_accuracy_mean': '  on data of their own',
}


class CheckpointError(ValueError):
    """Checkpoints that are there but cannot be read."""


def train(
    experiment: Experiment,
    directory: RunDirectory,
    *,
    eval_every: int,
    client_eval_samples: int | None,
    checkpoint: bool,
    progress: bool,
    loggers: Sequence[Logger] = (),
    longer: Row | None = None,
) -> int:
    """Runs `experiment` to its last round, from its last checkpoint; returns the exit status.

    `loggers` show every row of metrics.jsonl, those of the rounds before the checkpoint first.
    `longer` is the new config.json of a run that is extended.
    """
    rounds = len(experiment.graphs.active)
    checkpoints, rows = None, []
    opened: list[Logger] = []
    status = 1
    try:
        needed = (checkpoint or directory.checkpoints.exists()) and leads()
        checkpoints = _checkpoints(directory.checkpoints) if needed else None
        resume = _resume(experiment, checkpoints, directory, eval_every)
        rows = evaluations_until(directory, resume[1].round if resume else 0, eval_every, rounds)
        if resume is None and directory.sound_rows()[0]:
            print(
                f'warning: no checkpoint in {directory.path}; the run starts again from its first '
                'round',
                file=sys.stderr,
            )
        if directory.done.exists() and not longer:
            print(f'warning: {directory.unfinished()}; it is made again', file=sys.stderr)
        directory.done.unlink(missing_ok=True)
        if longer:
            directory.write_config(longer)
        directory.keep(rows)
        _announce(experiment, rounds, directory.path)
        for logger in loggers:
            logger.open(directory, rows)
            opened.append(logger)
        bar = tqdm(
            total=rounds,
            initial=resume[1].round if resume else 0,
            unit='round',
            disable=not progress,
            dynamic_ncols=True,
            mininterval=0,
        )
        evaluations = simulate.run(
            experiment.algorithm,
            experiment.clients,
            experiment.graphs,
            experiment.test,
            experiment.key,
            eval_every=eval_every,
            client_eval_samples=client_eval_samples,
            validation=experiment.validation,
            resume=resume,
            mesh=experiment.mesh,
            on_compile=lambda seconds: bar.set_postfix_str(f'compiled in {seconds:.1f} s'),
        )
        state = resume[0] if resume else None
        with bar:
            for row, state, done in evaluations:
                with undisturbed():
                    before = directory.append(row)
                    rows.append(row)
                    if checkpoint:
                        whole = fetched(state) if jax.process_count() > 1 else state
                        if checkpoints:
                            checkpoints.save(whole, done, notes=[before])
                    for logger in opened:
                        logger.row(row)
                bar.set_postfix_str(
                    f'accuracy {row["consensus_accuracy"]:.4f}, '
                    f'mean client {row["client_accuracy_mean"]:.4f}, '
                    f'{row["seconds"] / row["round"]:.3g} s/round',
                    refresh=False,
                )
                bar.update(row['round'] - bar.n)
        if state is not None:
            save_consensus(experiment.algorithm.consensus(state), directory.consensus)
        _finish(directory, rows)
        status = 0
    except KeyboardInterrupt:
        status = INTERRUPTED
        kept = (checkpoints.latest() or 0) if checkpoints else 0
        print(
            f'interrupted: {kept} of {rounds} rounds kept; --resume --out={directory.path} goes on '
            'from there',
            file=sys.stderr,
        )
    except simulate.DivergenceError as error:
        print(
            f'error: {error} and take another --out; {len(rows)} evaluations are kept in '
            f'{directory.path}',
            file=sys.stderr,
        )
    except (CheckpointError, LoggerError) as error:
        print(f'error: {error}', file=sys.stderr)
    except OSError as error:  # a full disk, a folder that is gone
        print(
            f'error: {one_line(error)}; when that is mended, --resume --out={directory.path} goes '
            'on from the last checkpoint',
            file=sys.stderr,
        )
    finally:
        for logger in opened:
            logger.close(status)
    return status


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Holds Ctrl-C back until the block is through: orbax's threads do not take it well."""
    arrived: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: arrived.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if arrived and callable(before):
        before(signal.SIGINT, None)


def _checkpoints(folder: Path):
    try:
        from dfl_jax.checkpoint import Checkpoints

        return Checkpoints(folder)
    except ImportError:
        if folder.exists():
            raise CheckpointError(
                f'{folder} cannot be read without orbax (pip install orbax-checkpoint)'
            ) from None
        print(
            'warning: no checkpoints without orbax (pip install orbax-checkpoint); '
            'this run cannot be resumed',
            file=sys.stderr,
        )
        return None


def _resume(
    experiment: Experiment,
    checkpoints: 'Checkpoints | None',
    directory: RunDirectory,
    eval_every: int,
) -> tuple[State, simulate.Progress] | None:
    like = jax.eval_shape(experiment.algorithm.init, experiment.key, experiment.clients)
    rounds = len(experiment.graphs.active)

    def fault(saved: 'Saved') -> str | None:
        return lacking(directory, saved.progress[0].round, saved.notes[0], eval_every, rounds)

    found = restored(checkpoints, like, fault) if checkpoints else None
    progress = agreed_text(json.dumps(asdict(found.progress[0])) if found else None)
    if progress is None:
        return None
    state = placed(agreed(found and found.state, like), experiment.mesh)
    return state, simulate.Progress(**json.loads(progress))


def evaluations_until(
    directory: RunDirectory, round: int, eval_every: int, rounds: int
) -> list[Row]:
    """The evaluations up to `round` of a run over `rounds`.

    The last one of a shorter run that this one extends may be between two of them, and is none.
    """
    return [
        row
        for row, _ in directory.sound_rows()[0]
        if row['round'] <= round and _evaluated(row['round'], eval_every, rounds)
    ]


def _evaluated(round: int, eval_every: int, rounds: int) -> bool:
    return round % eval_every == 0 or round == rounds


def lacking(
    directory: RunDirectory, round: int, digest: str, eval_every: int, rounds: int
) -> str | None:
    """What metrics.jsonl lacks of the evaluations that a checkpoint of `round` was saved after.

    digest: of the evaluations before that of `round`.
    """
    rows, damage = directory.sound_rows()
    before = [found for row, found in rows if row['round'] < round]
    if (before[-1] if before else '') != digest:
        return damage or f'{directory.metrics_file} lacks evaluations before round {round}'
    if _evaluated(round, eval_every, rounds) and not any(r['round'] == round for r, _ in rows):
        return damage or f'{directory.metrics_file} lacks the evaluation of round {round}'
    return None


def restored(
    checkpoints: 'Checkpoints', like: State, fault_of: 'Callable[[Saved], str | None]'
) -> 'Saved | None':
    """The newest checkpoint that can be read and has no fault, None where there is none at all.

    Newer ones are set aside, so that the run can save its own in their place. Raises
    CheckpointError, and leaves all as it is, when none can be used.
    """
    faults: dict[int, str] = {}
    for round in checkpoints.rounds():
        try:
            found = checkpoints.restore(like, round)
            fault = fault_of(found)
        except Exception as error:  # orbax, tensorstore and json each have their own
            fault = one_line(error)
        if fault:
            faults[round] = fault
            continue
        for newer, fault in faults.items():
            aside = checkpoints.set_aside(newer)
            print(
                f'warning: {aside.parent / str(newer)} cannot be used ({fault}); it is '
                f'{aside.name} now, and the run goes on from round {round}',
                file=sys.stderr,
            )
        return found
    if not faults:
        return None
    reasons = {
        fault: ' and '.join(str(round) for round, same in faults.items() if same == fault)
        for fault in faults.values()
    }
    raise CheckpointError(
        f'no checkpoint in {checkpoints.folder} can be used '
        f'({"; ".join(f"{rounds}: {fault}" for fault, rounds in reasons.items())}); bring a copy '
        'back, or move that folder away, and --resume starts from the first round'
    )


def _announce(experiment: Experiment, rounds: int, path: Path) -> None:
    sizes = [len(part) for part in experiment.parts]
    spread = str(sizes[0]) if min(sizes) == max(sizes) else f'{min(sizes)} to {max(sizes)}'
    print(
        f'{len(sizes)} clients of {spread} samples, {_networks(experiment)}, '
        f'{rounds} rounds on {_devices(experiment)}, into {path}\n'
        f'memory: about {experiment.footprint}, '
        f'{experiment.resolved.get("chunk", 1)} worked on at once'
    )


def _devices(experiment: Experiment) -> str:
    kind = jax.devices()[0].device_kind
    return f'{experiment.mesh.size} devices ({kind})' if experiment.mesh else kind


def _networks(experiment: Experiment) -> str:
    if experiment.population is None or len(experiment.population.models) == 1:
        return f'{experiment.model.size:,} parameters each'
    sizes = [model.size for model in experiment.population.models.values()]
    return f'{len(sizes)} architectures of {min(sizes):,} to {max(sizes):,} parameters'


def save_consensus(params: Any, path: Path) -> None:
    """The consensus model's parameters as safetensors, named by their path joined with dots."""
    from flax.traverse_util import flatten_dict
    from safetensors.numpy import save

    whole = fetched(flatten_dict(params, sep='.'))
    if leads():
        write_atomically(path, save(whole))


def _finish(directory: RunDirectory, rows: list[Row]) -> None:
    last, best = rows[-1], max(rows, key=lambda row: row['consensus_accuracy'])
    lines = [
        ('round', f'{last["round"]}'),
        ('consensus accuracy', f'{last["consensus_accuracy"]:.4f}'),
        ('  best', f'{best["consensus_accuracy"]:.4f} at round {best["round"]}'),
        ('mean client accuracy', f'{last["client_accuracy_mean"]:.4f}'),
        ('  std over clients', f'{last["client_accuracy_std"]:.4f}'),
        ('  worst client', f'{last["client_accuracy_min"]:.4f}'),
        *((label, f'{last[name]:.4f}') for name, label in REPORTED.items() if name in last),
        ('sent by all clients', f'{last["mbytes_total"]:,.1f} MB'),
        ('seconds of rounds', f'{last["seconds"]:.1f}'),
    ]
    print('\n'.join(f'{name:<22}{value}' for name, value in lines))
    try:
        from dfl_jax.cli.run.plots import plot_run

        plot_run(rows, directory.path / 'curves.png')
        print(f'{"curves":<22}{directory.path / "curves.png"}')
    except ImportError:
        print('no curves.png without matplotlib (pip install matplotlib)', file=sys.stderr)
    directory.finish()
