"""A group of runs as a worker gets it, and what it does with it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
from absl import flags, logging
from tqdm import tqdm

from dfl_jax.cli.command import in_flags, one_line_warnings
from dfl_jax.cli.run import command as run
from dfl_jax.cli.sweep.plan import Run
from dfl_jax.cli.sweep.train_runs import Command, bring_to_end
from dfl_jax.flagfiles import with_flagfiles
from dfl_jax.plain_text import counted

FLAGS = flags.FLAGS


@dataclass(frozen=True)
class Options:
    """What a launcher is asked for."""

    workers: int | None  # groups at once; None for as many as there is room for
    cores: int  # of each group
    gpus: int  # of each group
    address: str | None  # of a Ray cluster
    cluster: str  # submitit's executor
    slurm: dict[str, str]  # parameters of its jobs

    @property
    def of_a_group(self) -> str:
        """The cores and GPUs of a group in words."""
        gpus = f' and {counted(self.gpus, "GPU")}' if self.gpus else ''
        return f'{counted(self.cores, "core")}{gpus}'


@dataclass(frozen=True)
class Task:
    """A group of runs with all flags that it needs, flagfiles written out."""

    arguments: tuple[str, ...]
    runs: tuple[Run, ...]
    rounds: int  # of all runs together
    cache: str | None  # of compiled programs

    @property
    def name(self) -> str:
        return self.runs[0].name


def task_of(command: Command, group: Sequence[Run], rounds: int, cache: str | None) -> Task:
    """The task of a group, which needs no flagfile. Raises ValueError for one that is none."""
    first = [f'--flagfile={group[0].flagfile}'] if group[0].flagfile else []
    arguments = with_flagfiles([*first, *command.arguments])
    runs = (Run(one.name, None, one.values) for one in group)
    return Task(tuple(arguments), tuple(runs), rounds, cache)


def train_task(task: Task, out: Path, bar: tqdm, options: Options) -> str | None:
    """Trains a group below `out` in this process, a worker's; returns why that failed, else None.

    A worker without a GPU of its own uses none.
    """
    # XLA starts so many threads, not one a core of the machine
    os.environ['NPROC'] = str(options.cores)
    if not options.gpus:
        jax.config.update('jax_platforms', 'cpu')
    logging.set_verbosity(logging.FATAL)
    try:
        swept = {f'--{name}={value}' for one in task.runs for name, value in one.values.items()}
        run.define_flags([*task.arguments, *swept])
        FLAGS['compilation_cache'].value = task.cache
        command = Command(['dfl-jax sweep', *task.arguments])
        command.read(task.runs[0])
        run.prepare_jax(options.cores)
        if options.gpus and jax.default_backend() == 'cpu':
            given = f'--launcher_gpus={options.gpus}'
            return f'{given}: JAX sees no GPU in the worker; install jax[cuda12] there'
    except (ValueError, flags.Error) as error:
        return in_flags(error)
    with one_line_warnings():
        return bring_to_end(command.read, task.runs, out, bar)
