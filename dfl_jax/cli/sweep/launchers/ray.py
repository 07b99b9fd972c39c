"""Groups of runs on the workers of a Ray cluster, or of a local one.

No disk is shared: a worker gets the files of its group, works in a temporary folder, and sends what
changes there through a queue to the head, which writes it into the run directories. A group whose
worker died begins again from there on another one.
"""

import contextlib
import logging
import os
import queue
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from dfl_jax.cli.command import in_flags
from dfl_jax.cli.sweep.launchers.files import Files, Update, scratch
from dfl_jax.cli.sweep.launchers.supervise import Ending
from dfl_jax.cli.sweep.launchers.task import Options, Task, train_task
from dfl_jax.cli.sweep.train_runs import group_folder
from dfl_jax.experiment.run_directory import RunDirectory
from dfl_jax.plain_text import counted, in_a_line

PATIENCE = 5.0  # seconds for a cluster to answer
SENT_EVERY = 1.0  # seconds at least between two updates; a worker that dies loses no more
KEPT_BACK = 4  # updates in the queue before workers wait for the head


@contextlib.contextmanager
def engine(options: Options, out: Path) -> Iterator['RayEngine']:
    """The workers of the cluster at the address, or of a local cluster of so many workers.

    Raises ValueError where Ray is not installed, no cluster answers, or none of its machines has
    the cores and GPUs that a group asks for.
    """
    try:
        import ray
    except ImportError as error:
        raise ValueError("--launcher=ray needs Ray: pip install 'dfl_jax[ray]'") from error
    local: dict[str, Any] = {'address': 'local', 'include_dashboard': False}
    if options.address is None:
        os.environ.setdefault('RAY_USAGE_STATS_ENABLED', '0')  # it would report to its makers
        local['num_cpus'] = (options.workers or 1) * options.cores
    else:
        _check_answers(options.address)
        local = {'address': options.address}
    logging.getLogger('ray').setLevel(logging.ERROR)
    try:
        ray.init(**local, log_to_driver=False, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        if options.address is None:
            raise ValueError(f'--launcher=ray: {in_a_line(str(error))}') from error
        raise ValueError(
            f'--ray_address={options.address}: {in_a_line(str(error))}; is it of another version, '
            'or started with RAY_AUTH_MODE=token, which is then needed here, too?'
        ) from error
    try:
        yield RayEngine(options, out)
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raises ValueError where nothing listens, for which Ray itself takes half a minute."""
    if address == 'auto':
        return
    parts = re.fullmatch(r'\[?([^/\[\]]+)\]?:(\d{1,5})', address)
    if not parts:
        raise ValueError(
            f'--ray_address={address}: write HOST:PORT, or auto on one of its machines'
        )
    try:
        socket.create_connection((parts[1], int(parts[2])), timeout=PATIENCE).close()
    except (OSError, OverflowError) as error:
        raise ValueError(
            f'--ray_address={address}: nothing answers there ({error}); `ray start --head` starts '
            'a cluster, and without the flag a local one is started'
        ) from error


class RayEngine:
    """An engine whose workers are tasks of the Ray cluster that this process is connected to."""

    def __init__(self, options: Options, out: Path):
        import ray
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray, self._options, self._out = ray, options, out
        needs = {'CPU': options.cores, 'GPU': options.gpus}
        self._needs = {name: count for name, count in needs.items() if count}
        if not self._fitting():
            of_nodes = ([int(node.get(kind, 0)) for node in self._nodes()] for kind in needs)
            cores, gpus = (max(counts, default=0) for counts in of_nodes)
            raise ValueError(
                f'--launcher_cores={options.cores} --launcher_gpus={options.gpus}: no machine of '
                f'the cluster has so many; at most it has {counted(cores, "core")} and '
                f'{counted(gpus, "GPU")}'
            )
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._queue = Queue(KEPT_BACK, {'num_cpus': 0, 'scheduling_strategy': here})
        # A process a group where it has GPUs, whose memory JAX keeps to its end
        once = {'max_calls': 1} if options.gpus else {}
        self._train = ray.remote(
            num_cpus=options.cores, num_gpus=options.gpus, max_retries=0, **once
        )(_train)
        self._jobs: dict[int, _Job] = {}
        self._started = 0

    @property
    def description(self) -> str:
        return f'{counted(self.room(), "worker")} of Ray, each of {self._options.of_a_group}'

    def room(self) -> int:
        """As many as have cores now, at most those asked for.

        No group may wait in Ray: while a worker waits for its update to arrive, Ray takes its cores
        as free, and would start the one that waits beside it, in a new process.
        """
        return min(self._fitting(), self._options.workers or sys.maxsize)

    def start(self, tasks: Sequence[Task]) -> list['_Job']:
        return [self._start(task) for task in tasks]

    def _start(self, task: Task) -> '_Job':
        job = _Job(self._ray, task, self._out)
        self._started += 1
        if job.refused is None:
            self._jobs[self._started] = job
            sent, to_head = job.files.changes(), (self._queue, self._started)
            where = os.getcwd(), str(self._out)
            job.result = self._train.remote(task, sent, to_head, where, self._options)
        return job

    def receive(self, seconds: float) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                # With a timeout of 0 it says that the queue is empty, whatever is in it
                number, update = self._queue.get(seconds > 0, seconds or None)
                job = self._jobs[number]
                if not job.closed:  # else of a worker that died on the way
                    job.write(update)
                seconds = 0

    def _nodes(self) -> list[dict[str, float]]:
        return [node['Resources'] for node in self._ray.nodes() if node['Alive']]

    def _fitting(self) -> int:
        """Groups that the cluster has room for at once."""
        return sum(
            min(int(node.get(name, 0) // count) for name, count in self._needs.items())
            for node in self._nodes()
        )


class _Job:
    """A group on its way through Ray. The head keeps other processes out of its folders."""

    def __init__(self, ray: Any, task: Task, out: Path):
        self._ray, self._task, self._out = ray, task, out
        self.files = Files(out, task.runs)
        self.result: Any = None  # a reference to what the worker returns
        self.refused: str | None = None
        self.closed = False
        self._locks, self._locked = contextlib.ExitStack(), set[Path]()
        folder = group_folder(out, task.runs)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            for place in (folder, *(out / one.name for one in task.runs)):
                if place.is_dir():
                    self._lock(place)
        except (ValueError, OSError) as error:
            self.refused = in_flags(error)
            self._locks.close()

    def _lock(self, folder: Path) -> None:
        if folder not in self._locked:
            self._locks.enter_context(RunDirectory(folder).locked())
            self._locked.add(folder)

    def write(self, update: Update) -> None:
        for name in update.files:
            folder = (self._out / name).parent
            folder.mkdir(parents=True, exist_ok=True)
            self._lock(folder)
        self.files.apply(update)

    def ending(self) -> Ending | None:
        if self.refused is not None:
            return Ending(self.refused)
        ready, _ = self._ray.wait([self.result], timeout=0)
        if not ready:
            return None
        errors = self._ray.exceptions
        try:
            return Ending(self._ray.get(self.result))
        except errors.RayTaskError as error:  # what the worker's code raised
            return Ending(in_a_line(f'{type(error.cause).__name__}: {error.cause}'))
        except errors.RayError as error:
            return Ending(f'its worker died: {in_a_line(str(error))}', died=True)

    def close(self, trained: bool) -> None:
        if trained:
            self.files.finish()
        self._locks.close()
        self.closed = True


def _train(
    task: Task, sent: Update, to_head: tuple[Any, int], where: tuple[str, str], options: Options
) -> str | None:
    """A worker trains a group in a temporary folder; returns why that failed, or None.

    sent: its files so far. to_head: the queue to it, and the job's number there. where: the head's
    current directory, to which paths of data sets are relative where the worker has it, too, and
    its --out.
    """
    with contextlib.suppress(OSError):
        os.chdir(where[0])
    with scratch() as out:
        files, (updates, number) = Files(out, task.runs), to_head
        files.apply(sent)
        files.changes()  # the head has them

        def send() -> None:
            updates.put((number, files.changes()))

        why = train_task(task, out, _Sending(send), options)
        send()
    return why and why.replace(str(out), where[1])


class _Sending(tqdm):
    """A bar that shows nothing and sends what changed, after an evaluation and its checkpoint."""

    def __init__(self, send: Callable[[], None]):
        super().__init__(disable=True)
        self._send, self._last = send, 0.0

    def update(self, n: float | None = 1) -> None:
        self.n += n or 0
        if time.monotonic() > self._last + SENT_EVERY:
            self._send()
            self._last = time.monotonic()
