"""A queue of measurements, each in a process that may die without the others, until time is up."""

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Row = dict[str, Any]
# Without autotuning a round compiles in 7 s, not 41, and takes 7 % longer (docs/benchmarks.md)
XLA_FLAGS = '--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false'
ERRORS = 'errors.log'
GRACE = 30  # seconds in which an interrupted run saves its checkpoint


class Part(NamedTuple):
    """One measurement."""

    name: str
    seconds: float  # that it takes on a GPU, about; it is not begun where fewer are left
    command: tuple[str, ...] = ()  # of a process of its own; none: one for several
    # (folder of the part, what the process has printed) -> what was measured
    read: Callable[[Path, str], Row] = lambda folder, out: json.loads(out.splitlines()[-1])
    share: float = 1.0  # of the time left, after which it is interrupted and counts as it is


class Queue(NamedTuple):
    """Where the parts of a queue are measured, and until when."""

    out: Path
    end: float  # on the clock `time.monotonic`
    # Measures parts without a command, whose names, with commas, are its last argument: before
    # each it prints {"part": name, "begun": true}, after it {"part": name, ...}
    command: Sequence[str]
    estimates: bool = True  # whether a part is not begun where fewer than its seconds are left


def processes(waiting: Sequence[Part], of: Queue) -> Iterator[tuple[str, Row]]:
    """Name and row of each part, as it ends.

    Parts without a command share a process. Where that dies, the part that it was at has failed,
    and another process goes on with the next.
    """
    waiting = list(waiting)
    while waiting:
        part = waiting.pop(0)
        left = of.end - time.monotonic()
        least = part.seconds if of.estimates else 0
        if left < least or left <= 0:
            yield part.name, {'not_run': _too_late(left, least)}
        elif part.command:
            yield part.name, alone(part, of.out, part.share * left)
        else:
            together = [part]
            while waiting and not waiting[0].command:
                together.append(waiting.pop(0))
            begun = 0
            for name, row in shared([each.name for each in together], of):
                begun += 1
                yield name, row
            if not begun:
                said = last_line(of.out / ERRORS) or 'its process ended without a word'
                yield part.name, {'error': said}
            waiting = together[max(begun, 1) :] + waiting


def _too_late(left: float, least: float) -> str:
    return f'{left:.0f} s were left, and it takes {least:g}' if left > 0 else 'no time was left'


def alone(part: Part, out: Path, seconds: float) -> Row:
    """The row of a part in a process of its own, interrupted after so many seconds."""
    folder = out / part.name
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with running(part.command, folder, out, seconds) as process:
        text, _ = process.communicate()
    took = {'wall': time.monotonic() - begin}
    interrupted, said = took['wall'] >= seconds, last_line(folder / ERRORS)
    if interrupted and part.share == 1:
        return {'not_run': f'interrupted after {took["wall"]:.0f} s'}
    if process.returncode and not interrupted:
        return {'error': said or f'it ended with status {process.returncode}'} | took
    try:
        return part.read(folder, text) | took
    except (OSError, ValueError, LookupError) as error:
        said = f'it left nothing to read ({error}); {said}'
        return {'not_run' if interrupted else 'error': said} | took


def shared(names: list[str], of: Queue) -> Iterator[tuple[str, Row]]:
    """The rows of parts that share a process, as far as it comes."""
    at, seconds = None, of.end - time.monotonic()
    with running([*of.command, ','.join(names)], of.out, of.out, seconds) as process:
        for line in process.stdout or ():
            if line.startswith('{'):
                row = json.loads(line)
                name = row.pop('part')
                at = name if row.pop('begun', False) else None
                if at is None:
                    yield name, row
        process.wait()
    if at is not None and time.monotonic() >= of.end:
        yield at, {'not_run': 'interrupted at the end of the time'}
    elif at is not None:
        said = last_line(of.out / ERRORS) or f'its process ended with status {process.returncode}'
        yield at, {'error': said}


@contextlib.contextmanager
def running(
    command: Sequence[str], folder: Path, out: Path, seconds: float
) -> Iterator[subprocess.Popen[str]]:
    """A process that is stopped after so many seconds.

    folder: for its errors; out: for the compilation cache that all processes share.
    """
    cache = str((out / 'xla').absolute())
    environment = {'XLA_FLAGS': XLA_FLAGS} | os.environ | {'JAX_COMPILATION_CACHE_DIR': cache}
    with open(folder / ERRORS, 'w', encoding='utf-8') as file:
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=file,
            encoding='utf-8',
            env=environment,
            # A shell's background job ignores Ctrl-C, and what it starts would, too
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    timer = threading.Timer(max(seconds, 0.01), stop, [process])
    timer.start()
    try:
        yield process
    finally:
        timer.cancel()
        stop(process)


def stop(process: subprocess.Popen[str]) -> None:
    """Interrupts a process, and ends it where that does not help."""
    for how in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is None:
            process.send_signal(how)
            try:
                process.wait(GRACE)
            except subprocess.TimeoutExpired:
                continue


def last_line(path: Path) -> str:
    """The last line of a file that says anything."""
    lines = path.read_text(encoding='utf-8', errors='replace').splitlines()
    said = [line.strip() for line in lines if line.strip()]
    return said[-1][:300] if said else ''
