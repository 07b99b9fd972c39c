"""Where a run is shown besides metrics.jsonl: lines of JSON, TensorBoard, Weights & Biases.

A logger shows every row of metrics.jsonl at the step that is its round: numbers under their names,
the counts of a choice as NAME/CHOICE, a list over the clients as a histogram. These are copies:
a resumed run shows its earlier rows anew, from metrics.jsonl, and so every round once, those of a
session without a logger too. The packages are imported only here and only when a flag asks.
"""

import os
import secrets
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from dfl_jax.experiment.run_directory import Row, RunDirectory
from dfl_jax.files import read_json, to_json

SUFFIX = '.dfl_jax'  # of the event files that may be replaced
FLUSH_SECONDS = 1  # a thread writes; its own flush() would not wait for what is queued
PROJECT = 'dfl_jax'


class LoggerError(ValueError):
    """A logger that cannot be had; the message is one line with the remedy."""


class JsonLines:
    """A JSON object a line, flushed: `start` with config.json, `evaluation` with each row of
    metrics.jsonl, and `end` with the exit status."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def open(self, directory: RunDirectory) -> None:
        config = read_json(directory.config_file)
        self._write('start', {'out': str(directory.path), 'config': config})

    def row(self, row: Row) -> None:
        self._write('evaluation', row)

    def close(self, status: int) -> None:
        self._write('end', {'status': status})

    def _write(self, event: str, fields: Row) -> None:
        print(to_json({'event': event} | fields), file=self._stream, flush=True)


class TensorBoard:
    """Event files in the run directory, which `tensorboard --logdir=runs` finds."""

    def __init__(self):
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise _missing('tensorboard', 'tensorboardX') from error
        self._writer_of = SummaryWriter

    def open(self, directory: RunDirectory) -> None:
        """Takes the place of the event file of the session before, which it empties.

        A TensorBoard that is watching moves on from an empty file, and stays at one that is gone.
        """
        for stale in directory.path.glob(f'events.out.tfevents.*{SUFFIX}'):
            if stale.stat().st_size:
                os.truncate(stale, 0)
            else:
                stale.unlink()
        # From step 0 on, such a TensorBoard forgets what the old file said.
        self._writer = self._writer_of(
            str(directory.path), purge_step=0, flush_secs=FLUSH_SECONDS, filename_suffix=SUFFIX
        )

    def row(self, row: Row) -> None:
        import numpy as np

        for name, value in _flat(row):
            if isinstance(value, list):
                self._writer.add_histogram(name, np.array(value), row['round'])
            else:
                self._writer.add_scalar(name, value, row['round'])

    def close(self, status: int) -> None:
        self._writer.close()


class WeightsAndBiases:
    """A W&B run of the directory's name, with config.json as its config.

    The id in wandb/id makes a resumed run the same W&B run, which skips the steps that its server
    has. Offline there is no server to ask: every session leaves a whole copy below wandb/, the last
    of which replaces those before it when they are synchronized.
    """

    def __init__(self, project: str | None):
        try:
            # By name: a folder ./wandb, as W&B leaves it, would pass for the package.
            from wandb import Error, Histogram, init
        except ImportError as error:
            raise _missing('wandb', 'wandb') from error
        self._init, self._histogram, self._error = init, Histogram, Error
        self._project = project or os.environ.get('WANDB_PROJECT') or PROJECT

    def open(self, directory: RunDirectory) -> None:
        """Starts, or goes on with, the run at W&B. Raises LoggerError."""
        known = directory.path / 'wandb' / 'id'
        again = known.exists()
        if not again:
            known.parent.mkdir(exist_ok=True)
            known.write_text(secrets.token_hex(4) + '\n', encoding='utf-8')
        try:
            self._run = self._init(
                project=self._project,
                name=directory.path.name,
                dir=str(directory.path),
                config=read_json(directory.config_file),
                id=known.read_text(encoding='utf-8').strip(),
                resume='allow' if again else None,
            )
        except self._error as error:
            raise LoggerError(
                f'--wandb: {" ".join(str(error).split()).rstrip(".")}; run `wandb login`, or set '
                f'WANDB_MODE=offline, and go on with --out={directory.path} --resume'
            ) from error

    def row(self, row: Row) -> None:
        if row['round'] < self._run.starting_step:  # as the server has it
            return
        shown = {
            name: self._histogram(value) if isinstance(value, list) else value
            for name, value in _flat(row)
        }
        self._run.log(shown, step=row['round'], commit=True)

    def close(self, status: int) -> None:
        self._run.finish(exit_code=status)


Logger = JsonLines | TensorBoard | WeightsAndBiases


def requested(flags: Any) -> list[Logger]:
    """The loggers of --log, which writes to the present sys.stdout, --tensorboard and --wandb.

    Raises LoggerError when a package is missing.
    """
    if flags.wandb_project is not None and not flags.wandb:
        raise LoggerError(
            f'--wandb_project={flags.wandb_project} does not apply without --wandb; add it'
        )
    loggers: list[Logger] = [JsonLines(sys.stdout)] if flags.log == 'json' else []
    loggers += [TensorBoard()] if flags.tensorboard else []
    return [*loggers, WeightsAndBiases(flags.wandb_project)] if flags.wandb else loggers


def _flat(row: Row) -> Iterator[tuple[str, float | list[float]]]:
    """Names and what is shown under them, all but the round."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from ((f'{name}/{choice}', count) for choice, count in value.items())
        elif name != 'round':
            yield name, value


def _missing(flag: str, package: str) -> LoggerError:
    return LoggerError(f'--{flag} needs {package} (pip install {package})')
