"""What does privacy cost a round of local training?

    python -m benchmarks.private [--clients=300 --samples=60 --steps=10 --turns=5]
    python -m benchmarks.private --peer=opacus/bin/python

Clients of an MLP 784-100-10 take steps of 20 random images, as `local_training` does within a
round, without privacy and with gradients of samples that are clipped, that get noise, too, or with
a change of the client that does. The programs take turns; `ratio` is the median of the quotients
within a turn by the plain one, with its range.

With the interpreter of an environment that has Opacus, it trains the same clients one after the
other, clipped and with noise, in the same turns and with as many threads as we have cores.
"""

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags

from benchmarks import _common as common
from dfl_jax.execution.devices import own_cores
from dfl_jax.training import LocalTraining, local_training

FLAGS = flags.FLAGS
ROOT = Path(__file__).resolve().parents[1]
BATCH, RATE = 20, 0.1
FORMS: dict[str, dict[str, Any]] = {
    'without': {},
    'clipped': {'dp_clip': 1.0},
    'clipped, noise': {'dp_clip': 1.0, 'dp_noise_multiplier': 1.0},
    'change of a client, noise': {
        'dp_unit': 'client',
        'dp_clip': 1.0,
        'dp_noise_multiplier': 1.0,
    },
}


def define_flags() -> None:
    flags.DEFINE_integer('clients', 300, 'Clients.', lower_bound=1)
    flags.DEFINE_integer('samples', 60, 'Samples of each.', lower_bound=BATCH)
    flags.DEFINE_integer('steps', 10, 'Steps of each in a round.', lower_bound=1)
    flags.DEFINE_integer('turns', 5, 'Turns, after one to warm up.', lower_bound=1)
    flags.DEFINE_string('peer', None, 'The python of an environment that has Opacus.')


def main() -> None:
    print(common.about())
    model, clients = common.mlp(), common.random_clients(FLAGS.clients, FLAGS.samples)
    params = jax.vmap(model.init)(jax.random.split(jax.random.key(0), FLAGS.clients))
    key, number = jax.random.key(1), jnp.int32(0)
    plain = LocalTraining(lr=RATE, batch_size=BATCH, local_epochs=None, local_steps=FLAGS.steps)
    calls: dict[str, Callable[[], float]] = {}
    for name, settings in FORMS.items():
        program, _ = common.compiled(
            local_training(model, plain.replace(**settings)), key, params, clients, number
        )
        calls[name] = partial(seconds, program, key, params, clients, number)
    with opacus() if FLAGS.peer else contextlib.nullcontext() as peer:
        if peer:
            calls['Opacus, clipped, noise'] = peer
        times = np.array([[call() for call in calls.values()] for _ in range(FLAGS.turns + 1)])[1:]
    table = common.Table('training', 'ms', 'ratio')
    for name, of_name in zip(calls, times.T, strict=True):
        ratios = of_name / times[:, 0]
        spread = f'{np.median(ratios):.2f} ({ratios.min():.2f}-{ratios.max():.2f})'
        table.row(name, (1000 * float(np.median(of_name)), ',.0f'), spread)


def seconds(*call: Any) -> float:
    return common.seconds_of(*call)[0]


@contextlib.contextmanager
def opacus() -> Iterator[Callable[[], float]]:
    """A call that trains all clients once with Opacus, and returns the seconds."""
    sizes = (FLAGS.clients, FLAGS.samples, FLAGS.steps, BATCH, RATE, own_cores())
    command = [FLAGS.peer, 'benchmarks/peers/opacus_clients.py', *map(str, sizes)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, encoding='utf-8') as process:
        asked, answers = process.stdin, process.stdout
        assert asked and answers

        def ask() -> float:
            print('again', file=asked, flush=True)
            return json.loads(answers.readline())

        print(json.loads(answers.readline()))
        yield ask
        asked.close()


if __name__ == '__main__':
    define_flags()
    common.start(main)
