"""How long is a round of the same work in other simulators?

    python -m benchmarks.vs_peers --peer=fluke:fluke/bin/python --peer=flower:PYTHON ...

Every client trains for one epoch of SGD (10 steps of batch 20 on 200 random samples, MLP
784-100-10), then models are averaged. dfl_jax and the peers run in turns, each in a process of its
own, one after the other; a turn times whole rounds, after two more that are not timed. The table
has medians over the turns; `rounds of ours` is the median over turns of the quotient within a
turn, with its range. The losses are those of the mean model on all training data, before the
first and after the last round: they show that all train alike.

A peer is NAME:PYTHON: NAME a script of benchmarks/peers, PYTHON the interpreter of an environment
into which you installed it. Without --peer, dfl_jax alone. benchmarks/vs_peers.md has the install
commands and the table as measured, and says what each peer does besides.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from absl import app, flags

from benchmarks import _common as common

FLAGS = flags.FLAGS
OURS = 'ours'
ELSEWHERE = (
    'byzfl',
    'opacus_clients',
)  # of benchmarks/robust.py and private.py, with work of their own
ROOT = Path(__file__).resolve().parents[1]


def define_flags() -> None:
    flags.DEFINE_multi_string('peer', [], 'NAME:PYTHON, repeatable')
    flags.DEFINE_list('clients', ['20', '300'], 'numbers of clients M')
    flags.DEFINE_integer('samples', 200, 'samples a client', lower_bound=1)
    flags.DEFINE_integer('batch_size', 20, 'samples a step', lower_bound=1)
    flags.DEFINE_integer('rounds', 5, 'timed rounds of a turn', lower_bound=1)
    flags.DEFINE_integer('turns', 3, 'runs of every simulator', lower_bound=1)


def main() -> None:
    pythons = {OURS: sys.executable} | dict(map(interpreter, FLAGS.peer))
    for clients in map(int, FLAGS.clients):
        turns = []
        for _ in range(FLAGS.turns):
            turns.append({name: measure(name, path, clients) for name, path in pythons.items()})
        print_table(turns)
    if not FLAGS.peer:
        print('dfl_jax alone; for other simulators --peer=NAME:PYTHON, NAME one of', *names())


def measure(name: str, python: str, clients: int) -> dict[str, Any]:
    """What one run of a script reports; fails with its last words if it fails."""
    command = [
        *(python, '-m', f'benchmarks.peers.{name}', f'--clients={clients}'),
        *(f'--rounds={FLAGS.rounds}', f'--samples={FLAGS.samples}'),
        f'--batch_size={FLAGS.batch_size}',
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, encoding='utf-8')
    if done.returncode:
        raise RuntimeError(f'{" ".join(command)} failed:\n{done.stderr[-2000:]}')
    print(done.stdout.splitlines()[-1], file=sys.stderr, flush=True)
    return json.loads(done.stdout.splitlines()[-1])


def names() -> list[str]:
    """The peers that there is a script for."""
    scripts = (path.stem for path in (ROOT / 'benchmarks' / 'peers').glob('[a-z]*.py'))
    return sorted(name for name in scripts if name not in (OURS, *ELSEWHERE))


def interpreter(peer: str) -> tuple[str, str]:
    """The two parts of NAME:PYTHON."""
    name, _, python = peer.partition(':')
    if name not in names() or not python:
        raise app.UsageError(f'--peer={peer} is not NAME:PYTHON with NAME one of {names()}')
    return name, os.path.abspath(python)


def print_table(turns: list[dict[str, dict[str, Any]]]) -> None:
    """Prints medians over `turns`, each of which holds what every script reported."""
    clients = f'{turns[0][OURS]["clients"]} clients'
    table = common.Table(
        clients, 'ms a round', 'client-steps/s', 'rounds of ours', 'loss before, after'
    )
    for name, first in turns[0].items():
        seconds, steps = (
            float(np.median([turn[name][key] for turn in turns]))
            for key in ('median', 'steps_per_second')
        )
        ratios = [turn[name]['median'] / turn[OURS]['median'] for turn in turns]
        before, after = first['loss']
        table.row(
            f'{first["peer"]} {first["version"]}',
            (1e3 * seconds, ',.0f'),
            (steps, ',.0f'),
            f'{np.median(ratios):.1f} ({min(ratios):.1f}-{max(ratios):.1f})',
            f'{before:.2f}, {after:.2f}',
        )
    print()


if __name__ == '__main__':
    define_flags()
    common.start(main)
