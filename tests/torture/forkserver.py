"""Starts commands as forks of one process that has imported what they need: 0.1 s, not 3 to 5.

A fork is a process of its own, with its own number, session, limits and open files: what kills,
locks or starves it does so as in real life. Fork is safe here as nothing has started a thread and
JAX has no device yet, which is checked. Reads orders from stdin, a JSON object a line, and answers
likewise: {"order": n, "pid": p} when the process is there, {"order": n, "status": s} at its end.
"""

import atexit
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import sys
import threading
import traceback
from glob import glob
from pathlib import Path
from typing import Any, NoReturn

HEAVY = (
    'scipy.sparse.csgraph',
    'scipy.stats',
    'scipy.spatial',
    'jax.experimental.multihost_utils',
    'flax.linen',
    'flax.traverse_util',
    'optax',
    'networkx',
    'safetensors.numpy',
    'matplotlib.figure',
    'matplotlib.pyplot',
    'matplotlib.backends.backend_agg',
    'PIL.Image',
    'h5py',
    'pooch',
    'tqdm',
    'uuid',
    'dfl_jax.algorithms',
    'dfl_jax.papers.reconstruct.reconstruction',
    'dfl_jax.checkpoint',
    'dfl_jax.papers.select.final_averaging',
    'dfl_jax.papers.theory.convergence',
)  # fmt: skip; no module that defines flags: a command defines its own, some of the same names

# scikit-learn imports pandas and this pyarrow, where they are installed. Its allocator, jemalloc,
# starts a thread at once and has handlers of its own for forks.
OF_PYARROW = 'jemalloc_bg_thd'


def load() -> None:
    """Imports all but the commands themselves. Raises RuntimeError where a fork would be unsafe."""
    for name in HEAVY:
        importlib.import_module(name)
    import jax
    from jax._src import xla_bridge

    if xla_bridge.backends_are_initialized():
        raise RuntimeError('an import has initialised a JAX backend; it cannot be forked')
    names = [Path(thread, 'comm').read_text().strip() for thread in glob('/proc/self/task/*')]
    if len(names) - names.count(OF_PYARROW) > 1:
        raise RuntimeError(f'an import has started a thread of {names}; it cannot be forked')
    keep_every_program(jax)
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # as of the tests, see tests/conftest.py


def keep_every_program(jax: Any) -> None:
    """Lets commands cache what compiles in less than half a second, which is all of it here."""
    update, name = jax.config.update, 'jax_persistent_cache_min_compile_time_secs'
    jax.config.update = lambda key, value: update(key, 0.0 if key == name else value)


def serve() -> None:
    """Answers orders until stdin ends, then kills what still runs."""
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the harness has it, and ends us
    running: dict[int, int] = {}  # the order of every process
    waiting = b''
    answer({'ready': os.getpid()})
    while True:
        ready, _, _ = select.select([0, woken], [], [])
        if woken in ready:
            os.read(woken, 1000)
        while running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            answer({'order': running.pop(pid), 'status': os.waitstatus_to_exitcode(status)})
        if 0 in ready:
            read = os.read(0, 65536)
            if not read:
                break
            *lines, waiting = (waiting + read).split(b'\n')
            for line in lines:
                order = json.loads(line)
                pid = os.fork()
                if not pid:
                    become(order)
                running[pid] = order['order']
                answer({'order': order['order'], 'pid': pid})
    for pid in running:
        os.killpg(pid, signal.SIGKILL)


def answer(content: dict[str, int]) -> None:
    os.write(1, json.dumps(content).encode() + b'\n')


def become(order: dict[str, Any]) -> NoReturn:
    """Makes this fork the command of the order; ends it as the interpreter would."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    new = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for target, path, how in ((0, os.devnull, os.O_RDONLY), (1, order['out'], new)):
        os.dup2(os.open(path, how), target)
    os.dup2(os.open(order['err'], new), 2)
    os.chdir(order['cwd'])
    os.environ.update(order['env'])
    if order['file_size'] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (order['file_size'],) * 2)
    sys.path.insert(0, order['cwd'])
    sys.argv = [order['module'], *order['arguments']]
    status = 0
    try:
        runpy.run_module(order['module'], run_name='__main__', alter_sys=True)
    except SystemExit as end:
        status = _status(end.code)
    except BaseException:
        status = 1
        traceback.print_exc()
    finally:
        try:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            status = 120  # as Python has it where it cannot flush
        os._exit(status)


def _status(code: Any) -> int:
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1


if __name__ == '__main__':
    load()
    serve()
