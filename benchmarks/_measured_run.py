"""`dfl-jax run` in this process, and what it took beside what it measures itself.

    python -m benchmarks._measured_run FILE --algorithm=dpsgd --out=DIR ...

Writes the seconds of compilation and the peak of the memory into FILE, as JSON.
"""

import json
import sys
from pathlib import Path

import jax

from benchmarks._common import peak_bytes
from dfl_jax.cli.__main__ import main

COMPILATION = '/jax/core/compile/backend_compile_duration'


def measured(path: Path) -> None:
    compiled = [0.0]

    def note(event: str, duration_secs: float, **_: str | int) -> None:
        compiled[0] += duration_secs * (event == COMPILATION)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        main('run')
    finally:
        took = {'compile': compiled[0], 'peak': peak_bytes()}
        path.write_text(json.dumps(took), encoding='utf-8')


if __name__ == '__main__':
    measured(Path(sys.argv.pop(1)))
