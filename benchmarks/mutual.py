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
loop does.

One core of a shared Intel Xeon (2026-11-22, `--width=0.0625 --samples=64`): 4.03 s, the loop 1.08
times as long, the first round with its compilation 36 s; all participants of an architecture at
once, `--chunk=26`, 0.51 times, as the empty ones are worked on too.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import flags

from benchmarks import _common as common
from dfl_jax.base import Algorithm, Clients, Graph
from dfl_jax.heterogeneous.population import Population
from dfl_jax.models import Model
from dfl_jax.training.batches import epoch_orders
from dfl_jax.training.losses import supervised_losses

_CLIENTS = flags.DEFINE_integer('clients', 50, 'M; half of them send', lower_bound=2)
_SAMPLES = flags.DEFINE_integer('samples', 128, 'samples a client', lower_bound=1)
_BATCH = flags.DEFINE_integer('batch_size', 64, 'samples a step', lower_bound=1)
_EPOCHS = flags.DEFINE_integer('epochs', 10, 'K', lower_bound=1)
_WIDTH = flags.DEFINE_float('width', 0.125, 'factor on all channels')
_CHUNK = flags.DEFINE_integer('chunk', None, 'models at once (default: 1 on a CPU, else all)')
_REPEATS = flags.DEFINE_integer('repeats', 3, 'timed rounds of each kind', lower_bound=1)

MOMENTUM, DECAY = 0.9, 5e-4
ROUNDS = 8


def main() -> None:
    clients = common.random_clients(_CLIENTS.value, _SAMPLES.value)
    algorithm, population, schedule = common.mutual_network(
        _CLIENTS.value,
        ROUNDS,
        width=_WIDTH.value,
        chunk=_CHUNK.value,
        mutual_epochs=_EPOCHS.value,
        batch_size=_BATCH.value,
    )
    graphs = common.graphs_of(schedule)
    participants = schedule.members.shape[2]
    print(f'{common.about()}\n{participants} participants, width {_WIDTH.value:g}\n')

    medians = common.in_turns(
        {
            'round': jitted_round(algorithm, graphs, clients),
            'participant loop': participant_loop(population, graphs, clients),
        },
        _REPEATS.value,
    )
    table = common.Table('', 's')
    for name, seconds in medians.items():
        table.row(name, (seconds, '.2f'))
    print(f'\nloop / round  {medians["participant loop"] / medians["round"]:.2f}')


def jitted_round(algorithm: Algorithm, graphs: list[Graph], clients: Clients) -> Callable[[], Any]:
    """A call that advances the network by one round."""
    state = jax.jit(algorithm.init)(jax.random.key(0), clients)
    done = 0
    step = jax.jit(algorithm.step, donate_argnums=1)

    def call():
        nonlocal state, done
        key = jax.random.fold_in(jax.random.key(1), done)
        state, info = step(key, state, graphs[done % ROUNDS], clients)
        done += 1
        return info

    print(f'first round, compilation in it: {common.seconds_of(call)[0]:.2f} s\n')
    return call


def participant_loop(
    population: Population, graphs: list[Graph], clients: Clients
) -> Callable[[], Any]:
    """A call that does the work of one round participant by participant, batch by batch."""
    name_of = common.architectures_of(population)
    networks = {c: population.models[name].init(jax.random.key(c)) for c, name in name_of.items()}
    phi = np.array([population.models[name_of[c]].size for c in range(len(name_of))], np.float32)
    optimiser = optax.chain(optax.add_decayed_weights(DECAY), optax.sgd(common.MUTUAL_LR, MOMENTUM))
    steps = {name: step_of(model, optimiser) for name, model in population.models.items()}
    probabilities = {
        name: jax.jit(lambda params, x, f=model.apply: jax.nn.softmax(f(params, x)))
        for name, model in population.models.items()
    }
    xs, ys, mask = (np.asarray(a) for a in clients)
    size, samples = _BATCH.value, xs.shape[1]
    nothing = jnp.zeros((size, common.CLASSES))
    done = 0

    def batches(client: int, epochs: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        orders = epoch_orders(jax.random.key(done), jnp.asarray(mask[client]), epochs)
        for order in np.asarray(orders):
            for start in range(0, samples, size):
                rows = order[start : start + size]
                yield xs[client][rows], ys[client][rows]

    def call():
        nonlocal done
        present = np.asarray(graphs[done % ROUNDS].members[0]).tolist()  # the aggregator first
        moments = {c: optimiser.init(networks[c]) for c in present}

        def learn(c, *batch):
            networks[c], moments[c] = steps[name_of[c]](networks[c], moments[c], *batch)

        for c in present:
            for x, y in batches(c, 1):
                learn(c, x, y, nothing[: len(x)], 0.0)
        moments = {c: optimiser.init(networks[c]) for c in present}
        for x, y in batches(present[0], _EPOCHS.value):
            taught = {c: phi[c] * probabilities[name_of[c]](networks[c], x) for c in present}
            total, sizes = sum(taught.values()), phi[present].sum()
            for c in present:
                learn(c, x, y, (total - taught[c]) / (sizes - phi[c]), common.MUTUAL_ALPHA)
        done += 1
        return networks

    call()
    return call


def step_of(model: Model, optimiser: optax.GradientTransformation) -> Callable[..., Any]:
    """One update by labels and by a target: (params, moments, x, y, target, alpha)."""
    shares = jnp.full(common.CLASSES, 1 / common.CLASSES)

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


if __name__ == '__main__':
    common.start(main)
