"""Groups of runs as jobs of Slurm, by submitit.

All machines share the disk that holds the sweep's folder, as those of a Slurm cluster do: a job
writes the run directories itself. A job whose time is up, or whose machine Slurm takes away, is
queued again and goes on; one that was killed is replaced.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Any

from tqdm import tqdm

from dfl_jax.cli.sweep.launchers.supervise import Ending
from dfl_jax.cli.sweep.launchers.task import Options, Task, train_task
from dfl_jax.cli.sweep.plan import JOBS
from dfl_jax.plain_text import in_a_line

MINUTES = 60  # of a job, unless --slurm says
AS_OFTEN_AS_NEEDED = 1_000_000  # a job may run out of time, which costs it nothing
NO_END = 60 * 24 * 365  # minutes of a local job


@contextlib.contextmanager
def engine(options: Options, out: Path) -> Iterator['SubmititEngine']:
    """The jobs of a Slurm cluster, or local processes; those at work are cancelled in the end.

    Raises ValueError where submitit is not installed, Slurm is not there, or it does not know a
    parameter.
    """
    try:
        import submitit
    except ImportError as error:
        text = "--launcher=submitit needs submitit: pip install 'dfl_jax[submitit]'"
        raise ValueError(text) from error
    folder = out.absolute() / JOBS
    try:
        if options.cluster == 'local':
            executor: Any = submitit.LocalExecutor(folder)
            executor.update_parameters(timeout_min=NO_END)
        else:
            executor = submitit.SlurmExecutor(folder, max_num_timeout=AS_OFTEN_AS_NEEDED)
            executor.update_parameters(**_parameters(options))
    except RuntimeError as error:  # no srun
        raise ValueError(
            f'--launcher=submitit: {in_a_line(str(error))} --submitit_cluster=local starts '
            'processes of this machine'
        ) from error
    except (ValueError, TypeError) as error:
        raise ValueError(f'--slurm: {in_a_line(str(error))}') from error
    made = SubmititEngine(executor, options, out.absolute())
    try:
        yield made
    finally:
        made.cancel()


def _parameters(options: Options) -> dict[str, Any]:
    """What a job asks Slurm for."""
    asked: dict[str, Any] = {'job_name': 'dfl_jax', 'cpus_per_task': options.cores}
    if options.gpus:
        asked['gpus_per_node'] = options.gpus
    if options.workers:
        asked['array_parallelism'] = options.workers
    given = {name: _number(value) for name, value in options.slurm.items()}
    if not isinstance(given.get('time', MINUTES), int):
        raise ValueError(f'time={given["time"]} is no whole number of minutes')
    return asked | {'time': MINUTES} | given


def _number(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


class SubmititEngine:
    """An engine whose workers are jobs of one executor."""

    def __init__(self, executor: Any, options: Options, out: Path):
        self._executor, self._options, self._out = executor, options, out
        self._jobs: list[_Job] = []

    @property
    def description(self) -> str:
        many = self._options.workers
        what = 'Slurm' if self._options.cluster == 'slurm' else 'this machine'
        most = f', at most {many} at once' if many else ''
        return f'jobs of {what}{most}, each of {self._options.of_a_group}'

    def room(self) -> int:
        """No end in Slurm's queue, which lets so many of an array work as are asked for."""
        return sys.maxsize if self._options.cluster == 'slurm' else self._options.workers or 1

    def start(self, tasks: Sequence[Task]) -> list['_Job']:
        works = [_Work(task, self._out, self._options) for task in tasks]
        jobs = [_Job(job) for job in self._executor.submit_array(works)]
        self._jobs += jobs
        return jobs

    def receive(self, seconds: float) -> None:
        """Waits; the files are here when they are written."""
        sleep(seconds)

    def cancel(self) -> None:
        """Ends the jobs that are still in the queue or at work."""
        for job in self._jobs:
            if not job.closed:
                job.cancel()


class _Job:
    """A job, and how it ended."""

    def __init__(self, job: Any):
        self._job = job
        self.closed = False

    def ending(self) -> Ending | None:
        import submitit

        if not self._job.done():
            return None
        error = self._job.exception()
        if error is None:
            return Ending(self._job.result())
        *_, last = str(error).strip().splitlines()
        failed = isinstance(error, submitit.core.utils.FailedJobError)
        return Ending(f'its job {self._job.job_id} ended: {in_a_line(last)}', died=not failed)

    def close(self, trained: bool) -> None:
        self.closed = True

    def cancel(self) -> None:
        self._job.cancel()


@dataclass(frozen=True)
class _Work:
    """What a job does."""

    task: Task
    out: Path
    options: Options

    def __call__(self) -> str | None:
        """Trains the group; returns why that failed, None where it did not."""
        return train_task(self.task, self.out, tqdm(disable=True), self.options)

    def checkpoint(self) -> Any:
        """The same work, which submitit queues again when the time of the job is up."""
        import submitit

        return submitit.helpers.DelayedSubmission(self)
