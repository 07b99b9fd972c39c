"""Hands groups of runs to the workers of an engine, again where one died, and counts rounds."""

import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from tqdm import tqdm

from dfl_jax.cli.sweep.launchers.task import Task
from dfl_jax.cli.sweep.train_runs import unfinished
from dfl_jax.experiment.run_directory import RunDirectory

POLL = 0.2  # seconds between two looks at the workers
DEATHS = 3  # of workers in a row on one group, without an evaluation in between


class Ending(NamedTuple):
    """How the work on a group ended."""

    why: str | None  # it failed, None where the group is trained
    died: bool = False  # the worker did, and another may go on


class Job(Protocol):
    """A group at work elsewhere."""

    def ending(self) -> Ending | None:
        """How it ended, None while it has not."""

    def close(self, trained: bool) -> None:
        """Frees what it holds, once its files are here."""


class Engine(Protocol):
    """What has workers."""

    @property
    def description(self) -> str:
        """The workers in words."""

    def room(self) -> int:
        """How many groups can be handed to it at once."""

    def start(self, tasks: Sequence[Task]) -> Sequence[Job]:
        """Hands tasks to workers."""

    def receive(self, seconds: float) -> None:
        """Brings what workers sent into the run directories, waiting at most so long for it."""


@dataclass
class _Attempt:
    task: Task
    job: Job
    rounds: int  # done when it began


def supervise(engine: Engine, tasks: Sequence[Task], out: Path, progress: bool) -> dict[str, str]:
    """Has an engine train all groups; returns why runs could not be, by name."""
    waiting, at_work = deque(tasks), list[_Attempt]()
    done = {task.name: _rounds(task, out) for task in tasks}
    deaths = dict.fromkeys(done, 0)
    failed: dict[str, str] = {}
    look = {'unit': 'round', 'disable': not progress, 'dynamic_ncols': True}
    rounds = sum(task.rounds for task in tasks)
    with tqdm(total=rounds, initial=sum(done.values()), **look) as bar:
        while waiting or at_work:
            count = min(len(waiting), engine.room() - len(at_work))
            starting = [waiting.popleft() for _ in range(count)]
            jobs = engine.start(starting) if starting else ()
            for task, job in zip(starting, jobs, strict=True):
                at_work.append(_Attempt(task, job, done[task.name]))
            endings = [one.job.ending() for one in at_work]
            engine.receive(0 if any(endings) else POLL)  # what was sent before a worker's end, too
            for one, ending in zip(list(at_work), endings, strict=True):
                name = one.task.name
                done[name] = max(done[name], _rounds(one.task, out))
                if ending is None:
                    continue
                one.job.close(ending.why is None)
                at_work.remove(one)
                if ending.died:
                    deaths[name] = 1 if done[name] > one.rounds else deaths[name] + 1
                if ending.died and deaths[name] < DEATHS:
                    waiting.appendleft(one.task)
                elif ending.why is not None:
                    failed |= dict.fromkeys(unfinished(one.task.runs, out), ending.why)
                else:
                    done[name] = one.task.rounds
            words = f'{len(at_work)} groups at work, {len(waiting)} waiting'
            bar.set_postfix_str(words, refresh=False)
            bar.update(sum(done.values()) - bar.n)
    return failed


def _rounds(task: Task, out: Path) -> int:
    """The rounds that the runs of a group have done, as their last evaluations say."""
    return sum(_last_round(RunDirectory(out / one.name).metrics_file) for one in task.runs)


def _last_round(metrics: Path) -> int:
    """The round of the last evaluation, 0 where there is none that can be read."""
    try:
        *_, line, _ = metrics.read_bytes().rsplit(b'\n', 2)
        return int(json.loads(line)['round'])
    except (OSError, ValueError, LookupError, TypeError):
        return 0
