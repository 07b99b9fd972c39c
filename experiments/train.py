"""Drives one run: progress bar, metrics, checkpoints, final table and plot."""

import contextlib
import json
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from tqdm import tqdm

from dfl_jax import simulate
from dfl_jax.base import State
from dfl_jax.data.formats import one_line
from dfl_jax.devices import agreed, agreed_text, fetched, leads
from experiments.mirrors import Mirror, MirrorError
from experiments.rundir import RunDirectory
from experiments.setup import Experiment

if TYPE_CHECKING:
    from dfl_jax.checkpoint import Checkpoints

INTERRUPTED = 130  # 128 + SIGINT, as shells report it

Row = dict[str, Any]
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
    mirrors: Sequence[Mirror] = (),
) -> int:
    """Runs `experiment` to its last round, from its last checkpoint; returns the exit status.

    `mirrors` show every row of metrics.jsonl, those of the rounds before the checkpoint first.
    """
    rounds = len(experiment.graphs.active)
    try:
        needed = (checkpoint or directory.checkpoints.exists()) and leads()
        checkpoints = _checkpoints(directory.checkpoints) if needed else None
        resume = _resume(experiment, checkpoints)
    except CheckpointError as error:
        print(f'error: {error}', file=sys.stderr)
        return 1
    rows = directory.keep_until(resume[1].round if resume else 0)
    _announce(experiment, rounds, directory.path)

    status = 1
    opened: list[Mirror] = []
    try:
        for mirror in mirrors:
            mirror.open(directory, rows)
            opened.append(mirror)
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
                    directory.append(row)
                    rows.append(row)
                    if checkpoint:
                        whole = fetched(state) if jax.process_count() > 1 else state
                        if checkpoints:
                            checkpoints.save(whole, done)
                    for mirror in opened:
                        mirror.row(row)
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
            f'interrupted: {kept} of {rounds} rounds kept; the same flags with '
            f'--out={directory.path} --resume go on from there',
            file=sys.stderr,
        )
    except simulate.DivergenceError as error:
        print(
            f'error: {error} and take another --out; {len(rows)} evaluations are kept in '
            f'{directory.path}',
            file=sys.stderr,
        )
    except MirrorError as error:
        print(f'error: {error}', file=sys.stderr)
    finally:
        for mirror in opened:
            mirror.close(status)
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


def _resume(experiment: Experiment, checkpoints) -> tuple[State, simulate.Progress] | None:
    like = jax.eval_shape(experiment.algorithm.init, experiment.key, experiment.clients)
    found = restored(checkpoints, like) if checkpoints else None
    progress = agreed_text(json.dumps(asdict(found[1][0])) if found else None)
    if progress is None:
        return None
    return agreed(found and found[0], like), simulate.Progress(**json.loads(progress))


def restored(
    checkpoints: 'Checkpoints', like: State
) -> tuple[State, list[simulate.Progress]] | None:
    """State and progress of the newest checkpoint that can be read, None where there is none.

    Newer ones are set aside, so that the run can save its own in their place. Raises
    CheckpointError, and leaves all as it is, when none can be read.
    """
    faults: dict[int, str] = {}
    for round in checkpoints.rounds():
        try:
            found = checkpoints.restore(like, round)
        except Exception as error:  # orbax, tensorstore and json each have their own
            faults[round] = one_line(error)
            continue
        for newer, fault in faults.items():
            aside = checkpoints.set_aside(newer)
            print(
                f'warning: {aside.parent / str(newer)} cannot be read ({fault}); it is '
                f'{aside.name} now, and the run goes on from round {round}',
                file=sys.stderr,
            )
        return found
    if not faults:
        return None
    raise CheckpointError(
        f'no checkpoint in {checkpoints.folder} can be read '
        f'({"; ".join(f"{round}: {fault}" for round, fault in faults.items())}); bring a copy '
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
    from safetensors.numpy import save_file

    whole = fetched(flatten_dict(params, sep='.'))
    if leads():
        save_file(whole, path)


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
        from experiments.plots import plot_run

        plot_run(rows, directory.path / 'curves.png')
        print(f'{"curves":<22}{directory.path / "curves.png"}')
    except ImportError:
        print('no curves.png without matplotlib (pip install matplotlib)', file=sys.stderr)
    directory.done.touch()
