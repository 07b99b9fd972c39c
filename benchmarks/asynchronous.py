"""What does an update of a method without rounds cost, and what does it gain where one is slow?

    python -m benchmarks.asynchronous
    python -m benchmarks.asynchronous --straggler

Without flags the time of a local update of 300 clients with 200 samples each, MLP 784-100-10, one
minibatch an update, beside that of D-PSGD. The updates are the first 10,000 of clients of different
speeds whose messages take about as long as an update. Runs of both alternate, so that what else the
machine does meets both; all numbers are medians.

With --straggler the simulated time until the mean model of a ring of clients has a fixed loss, with
and without a client of a tenth of the others' speed (Lian, Zhang, Zhang & Liu, ICML 2018).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from jax import lax

from benchmarks import _common as common
from dfl_jax import asynchronous, methods, simulate, topology
from dfl_jax.base import Algorithm, Array, Clients
from dfl_jax.evaluation import Holdout
from dfl_jax.exchange import one_round
from dfl_jax.timing import world

_CLIENTS = flags.DEFINE_integer('clients', 300, 'M; 16 with --straggler', lower_bound=3)
_SAMPLES = flags.DEFINE_integer('samples', 200, 'samples of each client', lower_bound=1)
_UPDATES = flags.DEFINE_integer('updates', 10_000, 'local updates', lower_bound=1)
_REPEATS = flags.DEFINE_integer('repeats', 3, 'timed runs', lower_bound=1)
_STRAGGLER = flags.DEFINE_boolean('straggler', False, 'the experiment with a slow client instead')
_LOSS = flags.DEFINE_float('loss', 0.5, 'loss of the mean model that is to be reached', 0)

DEGREE = 5
RING = 16
MOST_ROUNDS = 200
FLOPS = 1.5e8  # operations of a local update, 15 ms at 10^10 a second
TRAINING: dict[str, Any] = {'lr': 0.01, 'batch_size': 32, 'local_steps': 1}


def main() -> None:
    print(f'{common.about()}\n')
    if _STRAGGLER.value:
        times_to_loss()
    else:
        seconds_of_updates()


def seconds_of_updates() -> None:
    """Prints the time of a local update of each method."""
    count = _CLIENTS.value
    clients, model = common.random_clients(count, _SAMPLES.value), common.mlp()
    rounds = -(-_UPDATES.value // count)
    graphs = topology.schedule('regular', count, rounds, seed=0, static=True, degree=DEGREE)
    drawn = world(count, speed='lognormal:1e10:0.5', uplink=1e9, latency=0.01)
    dpsgd, _ = program(methods.make('dpsgd', model, **TRAINING), graphs, clients)
    table = common.Table(
        *('method', 'slots', 'events a slot', 'past models', 'MiB of work', 'plan, s'),
        *('update, ms', 'of D-PSGD, ms', 'ratio'),
    )
    for name in asynchronous.EVENT_METHODS:
        plan_seconds, plan = common.seconds_of(
            lambda name=name: asynchronous.plan(
                *(name, graphs, drawn),
                flops=FLOPS,
                bits=asynchronous.model_bits(name, model),
                updates=_UPDATES.value,
            )
        )
        run, work = program(asynchronous.method_of(plan, model, **TRAINING), plan.slots, clients)
        pairs = [
            (run() / _UPDATES.value, dpsgd() / (rounds * count)) for _ in range(_REPEATS.value)
        ]
        ours, theirs = np.median(pairs, axis=0)
        slots, width = plan.slots.active.shape
        table.row(
            *(name, slots, f'{plan.slots.active.sum() / slots:.0f} of {width}', plan.places),
            *((work / 2**20, '.0f'), (plan_seconds, '.1f')),
            *((1e3 * ours, '.2f'), (1e3 * theirs, '.2f')),
            (float(np.median([a / b for a, b in pairs])), '.2f'),
        )


def program(
    algorithm: Algorithm, schedule: Any, clients: Clients
) -> tuple[Callable[[], float], int]:
    """run() -> seconds of the whole schedule, after a warm-up; and the bytes that it works in."""

    def steps(state: Any, schedule: Any, clients: Clients, key: Array) -> tuple[Any, Array]:
        def step(state: Any, each: tuple[Array, Any]) -> tuple[Any, Array]:
            number, graph = each
            k_round = jax.random.fold_in(key, number)
            state, info = one_round(algorithm, k_round, state, number, graph, clients)
            return state, info.loss.mean()

        return lax.scan(step, state, (jnp.arange(len(schedule.active)), schedule))

    key, schedule = jax.random.key(0), jax.tree.map(jnp.asarray, schedule)
    state = jax.jit(algorithm.init)(key, clients)
    compiled: Any
    compiled, _ = common.compiled(steps, state, schedule, clients, key, donate=0)
    state, _ = compiled(state, schedule, clients, key)

    def run() -> float:
        nonlocal state
        seconds, (state, _) = common.seconds_of(compiled, state, schedule, clients, key)
        return seconds

    return run, compiled.memory_analysis().temp_size_in_bytes


def times_to_loss() -> None:
    """Prints how long D-PSGD and AD-PSGD take with and without a slow client, in local updates of
    the others."""
    clients, model = common.random_clients(RING, _SAMPLES.value), common.mlp()
    x, y = (a.reshape(-1, *a.shape[2:]) for a in clients[:2])
    test = Holdout(x, y)
    even = np.full(RING, 1e10)
    slow = np.where(np.arange(RING) == 0, 1e9, even)
    table = common.Table('method', 'all alike', 'one of 1/10 speed', 'ratio')
    for name in ('dpsgd', 'ad_psgd'):
        found = []
        for speed in even, slow:
            algorithm, schedule, every, ends = scheduled(name, speed, model)
            evaluated = simulate.run(
                *(algorithm, clients, schedule, test, jax.random.key(0)),
                eval_every=every,
                client_eval_samples=1,
            )
            losses = (metrics['consensus_loss'] for metrics, *_ in evaluated)
            reached = (end for end, loss in zip(ends, losses, strict=False) if loss < _LOSS.value)
            found.append(next(reached, np.inf) / (FLOPS / 1e10))
        table.row(name, *((each, '.1f') for each in found), (found[1] / found[0], '.2f'))


def scheduled(name: str, speed: np.ndarray, model: Any) -> tuple[Algorithm, Any, int, np.ndarray]:
    """The method, its schedule, how often to evaluate, and the simulated seconds of evaluations."""
    graphs = topology.schedule('ring', RING, MOST_ROUNDS, seed=0, static=True)
    if name == 'dpsgd':
        ends = np.arange(1, MOST_ROUNDS + 1) * FLOPS / speed.min()
        return methods.make(name, model, round_order='parallel', **TRAINING), graphs, 1, ends
    drawn = world(RING, uplink=np.inf, latency=0)._replace(speed=speed)
    plan = asynchronous.plan(
        *(name, graphs, drawn),
        flops=FLOPS,
        bits=asynchronous.model_bits(name, model),
        seconds=MOST_ROUNDS * FLOPS / 1e10,
        intervals=2 * MOST_ROUNDS,
    )
    return asynchronous.method_of(plan, model, **TRAINING), plan.slots, plan.per_interval, plan.ends


if __name__ == '__main__':
    common.start(main)
