"""Commands and the processes that run them: forks of one server, or plain `python -m`."""

import itertools
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0  # seconds, after which a command that should end hangs
ENVIRONMENT = {  # of all commands
    'JAX_PLATFORMS': 'cpu',
    'OPENBLAS_NUM_THREADS': '1',  # its threads would forbid a fork
    'OMP_NUM_THREADS': '1',
    'MPLBACKEND': 'agg',
    'XLA_FLAGS': '',  # those of the tests ask for eight devices
    'PYTHONPATH': str(ROOT),
    'PYTHONWARNINGS': 'ignore::RuntimeWarning:runpy',
}


class Command(NamedTuple):
    """One of the program's commands as it is typed."""

    name: str  # run, sweep, ..., or the module of another
    arguments: tuple[str, ...]

    @property
    def module(self) -> str:
        return self.name if '.' in self.name else f'experiments.{self.name}'

    def __str__(self) -> str:
        return f'python -m {self.module} {shlex.join(self.arguments)}'


def command(name: str, *arguments: object) -> Command:
    return Command(name, tuple(map(str, arguments)))


class Outcome(NamedTuple):
    """What is left of a command."""

    command: Command
    status: int | None  # None: it had not ended in time, and was killed
    out: str
    err: str
    seconds: float

    def __str__(self) -> str:
        seen = [*self.out.splitlines()[-4:], *_shortened(self.err.splitlines())]
        ended = f'status {self.status} after {self.seconds:.1f} s'
        return '\n  '.join([str(self.command), ended, *(line[:400] for line in seen)])


def _shortened(lines: Sequence[str], first: int = 4, last: int = 6) -> list[str]:
    if len(lines) <= first + last:
        return [*lines]
    return [*lines[:first], f'... {len(lines) - first - last} lines ...', *lines[-last:]]


@dataclass
class Process:
    """A command that was started."""

    command: Command
    out: Path
    err: Path
    begun: float = field(default_factory=time.monotonic)
    pid: int = 0
    status: int | None = None
    ended: threading.Event = field(default_factory=threading.Event)

    def kill(self, how: signal.Signals = signal.SIGKILL) -> bool:
        """Sends a signal to the process and its children; returns whether it was there to hear."""
        try:
            if not self.ended.is_set():
                os.killpg(self.pid, how)
                return True
        except ProcessLookupError:
            pass
        return False

    def until(self, condition: Callable[[], bool], seconds: float = PATIENCE) -> bool:
        """Waits for a condition while the process lives; returns whether it came true."""
        end = time.monotonic() + seconds
        while not (found := condition()) and time.monotonic() < end:
            if self.ended.wait(0.003):
                return condition()
        return found

    def outcome(self, patience: float = PATIENCE) -> Outcome:
        """Waits for the end, and kills the process where that does not come in time."""
        in_time = self.ended.wait(patience)
        if not in_time:
            self.kill()
            self.ended.wait(10)
        seconds = time.monotonic() - self.begun
        out, err = (path.read_text(errors='replace') for path in (self.out, self.err))
        return Outcome(self.command, self.status if in_time else None, out, err, seconds)


class Starter:
    """Starts commands, one after the other or several at once, from any thread.

    scratch: a folder for what they print and for the cache of compiled programs they share.
    environment: variables of all of them, in place of or beside ENVIRONMENT.
    """

    def __init__(self, scratch: Path, environment: Mapping[str, str] | None = None):
        self.folder = scratch / 'printed'
        self.folder.mkdir(parents=True, exist_ok=True)
        own = {'XDG_CACHE_HOME': str(scratch / 'cache')}
        self.environment = ENVIRONMENT | own | dict(environment or {})
        self._numbers = itertools.count()
        self._processes: dict[int, Process] = {}
        self._there: dict[int, threading.Event] = {}
        self._writing = threading.Lock()
        self._server = subprocess.Popen(
            [sys.executable, '-m', 'tests.torture.forkserver'],
            cwd=ROOT,
            env=os.environ | self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._server.stdout is not None
        if 'ready' not in json.loads(self._server.stdout.readline() or '{}'):
            raise RuntimeError('the fork server did not start')
        threading.Thread(target=self._listen, daemon=True).start()

    def start(
        self,
        command: Command,
        cwd: Path,
        *,
        file_size: int | None = None,
        env: Mapping[str, str] | None = None,
        plain: bool = False,
    ) -> Process:
        """A process of the command.

        file_size: bytes that no file it writes may exceed. plain: a new interpreter, not a fork.
        """
        number = next(self._numbers)
        process = Process(command, self.folder / f'{number}.out', self.folder / f'{number}.err')
        if plain:
            self._start_plain(process, cwd, file_size, dict(env or {}))
            return process
        self._processes[number], self._there[number] = process, threading.Event()
        order: dict[str, Any] = {
            'order': number,
            'module': command.module,
            'arguments': command.arguments,
            'cwd': str(cwd),
            'env': dict(env or {}),
            'file_size': file_size,
            'out': str(process.out),
            'err': str(process.err),
        }
        with self._writing:
            assert self._server.stdin is not None
            self._server.stdin.write(json.dumps(order).encode() + b'\n')
            self._server.stdin.flush()
        if not self._there[number].wait(30):
            raise RuntimeError('the fork server does not answer')
        del self._there[number]
        return process

    def finish(self, command: Command, cwd: Path, patience: float = PATIENCE, **how) -> Outcome:
        """Starts the command and waits for its end."""
        return self.start(command, cwd, **how).outcome(patience)

    def _start_plain(
        self, process: Process, cwd: Path, file_size: int | None, env: dict[str, str]
    ) -> None:
        def limit() -> None:
            if file_size is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))

        with open(process.out, 'w') as out, open(process.err, 'w') as err:
            started = subprocess.Popen(
                [sys.executable, '-m', process.command.module, *process.command.arguments],
                cwd=cwd,
                env=os.environ | self.environment | env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                preexec_fn=limit,
            )
        process.pid = started.pid

        def wait() -> None:
            process.status = started.wait()
            process.ended.set()

        threading.Thread(target=wait, daemon=True).start()

    def _listen(self) -> None:
        assert self._server.stdout is not None
        for line in self._server.stdout:
            said = json.loads(line)
            process = self._processes[said['order']]
            if 'pid' in said:
                process.pid = said['pid']
                self._there[said['order']].set()
            else:
                process.status = said['status']
                del self._processes[said['order']]
                process.ended.set()

    def close(self) -> None:
        assert self._server.stdin is not None
        self._server.stdin.close()
        try:
            self._server.wait(10)
        except subprocess.TimeoutExpired:
            self._server.kill()
