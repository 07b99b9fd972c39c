"""The runs that are mistreated, small ones of several methods, and how they end undisturbed."""

import random
import shutil
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.torture.processes import Command, Outcome, Process, Starter, command
from tests.torture.verdict import succeeded

COMMON = ('--train_samples=200', '--clients=8', '--noprogress')
SMALL = ('--dataset=synthetic', '--hidden=8', '--degree=3', *COMMON)
RECIPES = {
    'dpsgd': (*SMALL, '--algorithm=dpsgd', '--rounds=8', '--message_bits=8'),
    'ntk_dfl': (*SMALL, '--rounds=6', '--evolution=euler', '--ntk_timesteps=10,20'),
    'dfedavgm': (
        *(*SMALL, '--algorithm=dfedavgm', '--local_epochs=1', '--batch_size=10'),
        *('--rounds=10', '--eval_every=3', '--link_dropout=0.2', '--client_dropout=0.2'),
    ),
    'spark': (
        *(*SMALL, '--algorithm=spark', '--spark_projection_dim=20', '--rounds=5'),
        *('--evolution=euler', '--ntk_timesteps=10,20', '--spark_schedule_rounds=5'),
    ),
    'dispfl': (*SMALL, '--algorithm=dispfl', '--local_epochs=1', '--rounds=6'),
    'dfml': (
        *('--dataset=digits', *COMMON, '--algorithm=dfml', '--architectures=cnn-4', '--alpha=10'),
        *('--dfml_mutual_epochs=1', '--rounds=4'),
    ),
}
OFTEN = (
    ('dpsgd',) * 5 + ('ntk_dfl',) * 3 + tuple(RECIPES)[2:]
)  # the quick ones, where chance chooses


def fresh(recipe: str, out: Path, *flags: object) -> Command:
    return command('run', *RECIPES[recipe], *flags, f'--out={out}')


def resumed(out: Path, *flags: object) -> Command:
    """The command that goes on with what a directory holds, and needs no other flag."""
    return command('run', '--resume', f'--out={out}', '--noprogress', *flags)


class World:
    """What all cases share: the starter of processes, and undisturbed results by name."""

    def __init__(self, starter: Starter, scratch: Path):
        self.starter, self.scratch = starter, scratch
        self._locks: dict[str, threading.Lock] = defaultdict(threading.Lock)
        self._locking = threading.Lock()
        self._kept: dict[str, Any] = {}

    def once(self, name: str, make: Callable[[Path], Any]) -> Any:
        """What `make` returns of an empty folder, made by whichever case asks first."""
        with self._locking:
            lock = self._locks[name]
        with lock:
            if name not in self._kept:
                folder = self.scratch / 'undisturbed' / name
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                self._kept[name] = make(folder)
            return self._kept[name]

    def undisturbed(self, recipe: str, *flags: str) -> Path:
        """The directory of the recipe's run that nothing disturbed; it is left as it is."""

        def make(folder: Path) -> Path:
            out = folder / 'run'
            succeeded(self.starter.finish(fresh(recipe, out, *flags), folder, 300))
            return out

        return self.once('-'.join((recipe, *flags)), make)

    def seconds(self, recipe: str) -> float:
        """How long the recipe's run takes, its programs compiled."""

        def make(folder: Path) -> float:
            done = self.starter.finish(fresh(recipe, folder / 'run'), folder, 300)
            return succeeded(done).seconds

        self.undisturbed(recipe)
        return self.once(f'{recipe}-again', make)


@dataclass
class Case:
    """One case of a part: its own chance, its own folder, and what has been done in it."""

    part: str
    number: int
    rng: random.Random
    folder: Path
    world: World
    history: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))

    def start(self, command: Command, cwd: Path | None = None, **how: Any) -> Process:
        self.history.append(f'$ {command}')
        return self.world.starter.start(command, cwd or self.folder, **how)

    def finish(self, command: Command, patience: float = 120, **how: Any) -> Outcome:
        return self.start(command, **how).outcome(patience)

    def note(self, text: str) -> None:
        """Remembers what was done to the run, for the report of a failure."""
        self.history.append(f'# {text}')


def stopped(undisturbed: Path, out: Path, newest: bool = True) -> Path:
    """A copy of a finished run that lacks its end, and its newest checkpoint if asked."""
    shutil.copytree(undisturbed, out)
    for name in ('done', 'consensus.safetensors', 'curves.png'):
        (out / name).unlink(missing_ok=True)
    steps = sorted(
        int(path.name) for path in (out / 'checkpoints').iterdir() if path.name.isdecimal()
    )
    if not newest:
        shutil.rmtree(out / 'checkpoints' / str(steps[-1]))
    return out


def lines_in(run: Path) -> int:
    """How many evaluations a run has made so far."""
    try:
        return (run / 'metrics.jsonl').read_bytes().count(b'\n')
    except OSError:
        return 0
