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
import subprocess
import sys
from typing import Any

from absl import flags

from benchmarks import _common as common
from benchmarks.peers._turns import OURS, ROOT, interpreter, names, print_table

_PEER = flags.DEFINE_multi_string('peer', [], 'NAME:PYTHON, repeatable')
_CLIENTS = flags.DEFINE_list('clients', ['20', '300'], 'numbers of clients M')
_SAMPLES = flags.DEFINE_integer('samples', 200, 'samples a client', lower_bound=1)
_BATCH = flags.DEFINE_integer('batch_size', 20, 'samples a step', lower_bound=1)
_ROUNDS = flags.DEFINE_integer('rounds', 5, 'timed rounds of a turn', lower_bound=1)
_TURNS = flags.DEFINE_integer('turns', 3, 'runs of every simulator', lower_bound=1)


def main() -> None:
    pythons = {OURS: sys.executable} | dict(map(interpreter, _PEER.value))
    for clients in map(int, _CLIENTS.value):
        turns = []
        for _ in range(_TURNS.value):
            turns.append({name: measure(name, path, clients) for name, path in pythons.items()})
        print_table(turns)
    if not _PEER.value:
        print('dfl_jax alone; for other simulators --peer=NAME:PYTHON, NAME one of', *names())


def measure(name: str, python: str, clients: int) -> dict[str, Any]:
    """What one run of a script reports; fails with its last words if it fails."""
    command = [
        *(python, '-m', f'benchmarks.peers.{name}', f'--clients={clients}'),
        *(f'--rounds={_ROUNDS.value}', f'--samples={_SAMPLES.value}'),
        f'--batch_size={_BATCH.value}',
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f'{" ".join(command)} failed:\n{done.stderr[-2000:]}')
    print(done.stdout.splitlines()[-1], file=sys.stderr, flush=True)
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == '__main__':
    common.start(main)
