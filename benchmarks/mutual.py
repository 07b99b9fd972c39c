"""How fast is a round of DFML, beside the same round as a loop over its participants?

    python -m benchmarks.mutual

One round of the paper's setting narrowed: 50 clients of the five CNNs of mode H2, 25 senders and an
aggregator, K = 10 epochs of the aggregator's data, batch 64, on random images of 28x28. Two things
are timed in one process, in turns:

round             `Algorithm.step` jitted, state donated: local training, mutual learning of all
                  architectures, peak models
participant loop  what a per-client simulator does: a Python loop over batches and participants, two
                  jitted, donated calls each a participant and a batch, its logits and its update

Both do the same steps on the same shapes. On a CPU a round cannot be faster than its products; what
it saves is the way between the calls, and it pays a second forward pass (`mutual.py`), as the
loop does. Also how often the round was traced.

One core of a shared Intel Xeon, JAX 0.10.2, 2026-11-22, `--width=0.0625 --samples=64`: a round
4.03 s, the loop 4.34 s, 1.08 times as long; the first round with its compilation 36 s; one trace.
All participants of an architecture at once, `--chunk=26`: 0.51 times, the empty participants being
worked on too. On a CPU both spend their time in the same products; on an accelerator it has not
been measured.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags, logging

from benchmarks import _common as common
from dfl_jax import topology
from dfl_jax.algorithms import make
from dfl_jax.base import Clients, Graph
from dfl_jax.heterogeneous.population import Population, assign_architectures, populate
from dfl_jax.models import MODES, architecture, bind
from dfl_jax.topology.aggregators import meetings
from dfl_jax.training.batches import epoch_orders
from dfl_jax.training.losses import supervised_losses

_CLIENTS = flags.DEFINE_integer('clients', 50, 'M; half of them send', lower_bound=2)
_SAMPLES = flags.DEFINE_integer('samples', 128, 'samples a client', lower_bound=1)
_BATCH = flags.DEFINE_integer('batch_size', 64, 'samples a step', lower_bound=1)
_EPOCHS = flags.DEFINE_integer('epochs', 10, 'K', lower_bound=1)
_WIDTH = flags.DEFINE_float('width', 0.125, 'factor on all channels')
_CHUNK = flags.DEFINE_integer('chunk', None, 'models at once (default: 1 on a CPU, else all)')
_REPEATS = flags.DEFINE_integer('repeats', 3, 'timed rounds of each kind', lower_bound=1)

RATE, MOMENTUM, DECAY, ALPHA = 0.01, 0.9, 5e-4, 0.5
ROUNDS = 8


def main(argv: list[str]) -> None:
    del argv
    logging.set_verbosity(logging.WARNING)
    count = _CLIENTS.value
    clients = common.random_clients(count, _SAMPLES.value)
    names = MODES['h2_cnn']
    models = {
        name: bind(architecture(name, common.CLASSES, _WIDTH.value), clients.x.shape[2:])
        for name in names
    }
    population = populate(models, assign_architectures(names, count, [1] * len(names)))
    graphs = topology.schedule('complete', count, ROUNDS, seed=0)
    schedule = meetings(graphs, count // 2, seed=0)
    chunk = _CHUNK.value or (1 if jax.default_backend() == 'cpu' else None)
    print(f'{common.about()}\n{count // 2 + 1} participants, width {_WIDTH.value:g}\n')

    traces: list[int] = []
    contenders = {
        'round': jitted_round(population, schedule, clients, chunk, traces),
        'participant loop': participant_loop(population, schedule, clients),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(_REPEATS.value):
        for name, call in contenders.items():
            times[name].append(common.seconds_of(call)[0])
    medians = {name: float(np.median(t)) for name, t in times.items()}
    for name, seconds in medians.items():
        print(f'{name:18} {seconds:8.2f} s')
    print(f'\nloop / round       {medians["participant loop"] / medians["round"]:.2f}')
    print(f'traces of the round {len(traces)}')


def round_of(schedule: Graph, r: int) -> Graph:
    return Graph(*(jnp.asarray(a[r % ROUNDS]) for a in schedule))


def jitted_round(population: Population, schedule, clients, chunk, traces):
    """A call that advances the network by one round."""
    algorithm = make(
        'dfml',
        population,
        rounds=10**3,
        schedule='fixed',
        alpha=ALPHA,
        mutual_epochs=_EPOCHS.value,
        batch_size=_BATCH.value,
        lr=RATE,
        chunk=chunk,
    )
    state = jax.jit(algorithm.init)(jax.random.key(0), clients)
    done = 0

    def counted(key, state, graph, clients):
        traces.append(1)
        return algorithm.step(key, state, graph, clients)

    step = jax.jit(counted, donate_argnums=1)

    def call():
        nonlocal state, done
        graph = round_of(schedule, done)
        state, info = step(jax.random.fold_in(jax.random.key(1), done), state, graph, clients)
        done += 1
        return info

    print(f'first round        {common.seconds_of(call)[0]:8.2f} s, compilation in it')
    return call


def participant_loop(population: Population, schedule: Graph, clients: Clients):
    """A call that does the work of one round participant by participant, batch by batch."""
    name_of = {int(c): name for name, group in population.clients.items() for c in group}
    networks = {c: population.models[name].init(jax.random.key(c)) for c, name in name_of.items()}
    optimiser = optax.chain(optax.add_decayed_weights(DECAY), optax.sgd(RATE, MOMENTUM))
    shares = jnp.full(common.CLASSES, 1 / common.CLASSES)
    phi = np.array([population.models[name_of[c]].size for c in range(len(name_of))], np.float32)

    def step_of(model):
        def loss(params, x, y, target, alpha):
            z = model.apply(params, x)
            supervised = supervised_losses(z, y, shares, 'wsm').mean()
            distilled = -jnp.sum(target * jax.nn.log_softmax(z), axis=1).mean()
            return (1 - alpha) * supervised + alpha * distilled

        @jax.jit(donate_argnums=(0, 1))
        def step(params, moments, x, y, target, alpha):
            gradient = jax.grad(loss)(params, x, y, target, alpha)
            change, moments = optimiser.update(gradient, moments, params)
            return optax.apply_updates(params, change), moments

        return step

    steps = {name: step_of(model) for name, model in population.models.items()}
    probabilities = {
        name: jax.jit(lambda params, x, f=model.apply: jax.nn.softmax(f(params, x)))
        for name, model in population.models.items()
    }
    xs, ys, mask = (np.asarray(a) for a in clients)
    size, samples = _BATCH.value, xs.shape[1]
    nothing = jnp.zeros((size, common.CLASSES))
    done = 0

    def batches(client: int, epochs: int):
        orders = epoch_orders(jax.random.key(done), jnp.asarray(mask[client]), epochs)
        for order in np.asarray(orders):
            for start in range(0, samples, size):
                rows = order[start : start + size]
                yield xs[client][rows], ys[client][rows]

    def call():
        nonlocal done
        here = [int(c) for c in schedule.members[done % ROUNDS, 0]]
        for c in here:
            moments = optimiser.init(networks[c])
            for x, y in batches(c, 1):
                networks[c], moments = steps[name_of[c]](
                    networks[c], moments, x, y, nothing[: len(x)], 0.0
                )
        moments = {c: optimiser.init(networks[c]) for c in here}
        for x, y in batches(here[0], _EPOCHS.value):
            taught = {c: probabilities[name_of[c]](networks[c], x) for c in here}
            weighted = {c: phi[c] * taught[c] for c in here}
            total, sizes = sum(weighted.values()), sum(phi[c] for c in here)
            for c in here:
                target = (total - weighted[c]) / (sizes - phi[c])
                networks[c], moments[c] = steps[name_of[c]](
                    networks[c], moments[c], x, y, target, ALPHA
                )
        done += 1
        return networks

    call()
    return call


if __name__ == '__main__':
    app.run(main)
