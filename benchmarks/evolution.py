"""How exact is the evolution of the outputs, and how many kernel products does it take?

    python -m benchmarks.evolution --method=ntk_dfl --data_dir=DIR [--partition_file=FILE]
    python -m benchmarks.evolution --method=spark --aggregators=100 --rounds=1,5,12
    python -m benchmarks.evolution --evolution=sampled [--float16_kernel]

The method runs with its defaults, but for --evolution, on Fashion-MNIST, 300 clients in a regular
graph of degree 5 drawn anew every round, or without --data_dir on the handwritten digits of 30
clients. At the start of each of --rounds, for aggregators spread evenly over the clients, the
accumulated residual S_t of Eq. (5b) as the method takes it in float32 is compared with an
integration in float64 of the same flow (same kernel, same projection, same outputs and targets), at
all timesteps of the method: with the integral of the residual for `rkc`, with the residuals of all
whole steps added one by one for `sampled`.

The last line is one JSON object. `worst` and `median` are over aggregators, rounds and timesteps,
of ||S_t - exact|| / ||exact||, a NaN being worst of all. `products` is the median over aggregators
and rounds of the products of the kernel with a matrix like S [C, N] that one aggregator's evolution
takes: those of the stages and those of the power method, refused steps included; not the bound of
the largest eigenvalue, products of H with a vector.

The exact flow is that of the same integrator at 1/1000 of its tolerance, in float64: within 0.01 %
of that at 1/100,000 (two aggregators of the digits, both methods, both evolutions, 2026-11-23).
"""

import functools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import flags
from tqdm import tqdm

from benchmarks import _common as common
from dfl_jax.algorithms.spark import NTK as SPARK
from dfl_jax.algorithms.spark import Projection
from dfl_jax.base import Array, Clients, Graph, PyTree
from dfl_jax.exchange import one_round
from dfl_jax.gossip.mixing import mix_at_aggregator, mixing_weights
from dfl_jax.methods import make
from dfl_jax.models import Model
from dfl_jax.ntk import NtkUpdate, evolve, linearization
from dfl_jax.ntk.aggregator_data import aggregator_data, of_members, output_targets
from dfl_jax.ntk.distillation import Distillation, distillation_target
from dfl_jax.ntk.evolution import Kernel
from dfl_jax.ntk.linearized import projected
from dfl_jax.ntk.projection import projection
from dfl_jax.ntk.rkc import TOLERANCE

_METHOD = flags.DEFINE_enum('method', 'ntk_dfl', ['ntk_dfl', 'spark'], 'whose evolution')
_EVOLUTION = flags.DEFINE_enum('evolution', 'rkc', ['rkc', 'sampled'], 'of the outputs')
_FLOAT16 = flags.DEFINE_boolean('float16_kernel', False, 'keep the kernel in float16 (ntk_dfl)')
_AGGREGATORS = flags.DEFINE_integer('aggregators', 100, 'aggregators of each round, at most', 1)
_ROUNDS = flags.DEFINE_list(
    'rounds', ['1', '5', '12'], 'rounds at whose start aggregators are measured'
)
_DATA_DIR = flags.DEFINE_string('data_dir', None, 'folder with Fashion-MNIST; default digits')
_PARTITION_FILE = flags.DEFINE_string(
    'partition_file', None, 'JSON; with --data_dir (default: Dirichlet, alpha = 0.1)'
)

REFERENCE = TOLERANCE / 1000
DEGREE = 5


class Aggregator(NamedTuple):
    """What one aggregator's evolution follows from."""

    linearized: PyTree  # the operands of `Setting.kernel`
    outputs: Array  # f0 [C, N]
    target: Array  # [C, N]
    mask: Array  # [N] bool


class Setting(NamedTuple):
    """A method with its defaults."""

    ntk: NtkUpdate
    aggregator: Callable[..., Aggregator]  # (k from zero, h, w, x, labels, mask)
    kernel: Callable[[PyTree], Kernel]

    def evolved(self, aggregator: Aggregator, **options: Any) -> Array:
        """S_t [T, C, N] at all timesteps of the method."""
        return evolve(
            self.kernel(aggregator.linearized),
            aggregator.outputs,
            aggregator.target,
            aggregator.mask,
            self.ntk.lr,
            timesteps=self.ntk.timesteps,
            method=self.ntk.evolution,
            **options,
        )


def main() -> None:
    folder, partition_file = _DATA_DIR.value, _PARTITION_FILE.value
    try:
        rounds = rounds_of(_ROUNDS.value)
        if _FLOAT16.value and _METHOD.value == 'spark':
            raise ValueError('--float16_kernel needs a kernel that is formed; take ntk_dfl')
        if folder is None and partition_file is not None:
            raise ValueError(f'--partition_file={partition_file} needs --data_dir')
        name, count = ('fashion_mnist', 300) if folder else ('digits', 30)
        clients, model = common.real_clients(name, folder, count, partition_file)
    except (ValueError, OSError) as error:
        sys.exit(str(error))
    print(f'{common.about()}\n{_METHOD.value}, {_EVOLUTION.value}, {count} clients')
    setting = (_spark if _METHOD.value == 'spark' else _ntk_dfl)(model)
    setting = setting._replace(ntk=replace(setting.ntk, evolution=_EVOLUTION.value))
    follow = common.counted(functools.partial(setting.evolved, float16_kernel=_FLOAT16.value))
    exact = exactly(setting)
    errors: list[np.ndarray] = []
    products: list[int] = []
    print('worst relative error of S_t at t =\n')
    table = common.Table('round', *map(str, setting.ntk.timesteps), 'products')
    for number, aggregators in aggregators_of_rounds(setting, model, clients, rounds):
        first = len(errors)
        for aggregator in aggregators:
            totals, count = follow(aggregator)
            errors.append(relative(np.asarray(totals), exact(aggregator)))
            products.append(count)
        worst = np.max(errors[first:], axis=0)
        table.row(number, *((e, '.1e') for e in worst), (np.median(products[first:]), '.0f'))
    last = {
        'worst': float(np.max(errors)),
        'median': float(np.median(errors)),
        'products': float(np.median(products)),
    }
    print(f'\n{json.dumps(last)}')


def rounds_of(listed: list[str]) -> list[int]:
    """Increasing numbers of rounds. Raises ValueError naming the flag."""
    if not listed or not all(r.isdecimal() and int(r) > 0 for r in listed):
        raise ValueError(f'--rounds={",".join(listed)} takes positive whole numbers with commas')
    return sorted({int(r) for r in listed})


def _ntk_dfl(model: Model) -> Setting:
    linearize = linearization(model)

    def aggregator(k, h, w, x, labels, mask) -> Aggregator:
        linearized = linearize(jax.random.key(0), w, x)
        y = output_targets(model, labels, x.dtype)
        return Aggregator(linearized.kernel, linearized.outputs, y, mask)

    return Setting(NtkUpdate(), aggregator, lambda kernel: kernel)


def _spark(model: Model) -> Setting:
    settings = Projection()
    random = projection(settings.projection, model.shapes, settings.projection_dim)
    linearize = projected(model, random, form=settings.kernel_form, step=settings.step_form)

    def linearized(table, w, x, mask):
        return linearize(jax.random.key(0), table, w, x, mask)

    def aggregator(k, h, w, x, labels, mask) -> Aggregator:
        table = random.draw(settings.key(k, h))
        outputs = linearized(table, w, x, mask).outputs
        y = output_targets(model, labels, x.dtype)
        annealed = Distillation().schedule(k + 1)
        target = distillation_target(y, jnp.where(mask, outputs, 0), *annealed)
        return Aggregator((table, w, x, mask), outputs, target, mask)

    return Setting(SPARK, aggregator, lambda operands: linearized(*operands).kernel)


def aggregators_of_rounds(
    setting: Setting, model: Model, clients: Clients, rounds: list[int]
) -> Iterator[tuple[int, Iterator[Aggregator]]]:
    """(round, its aggregators) for each of `rounds`, with the rounds between them run."""
    size = len(clients.x)
    algorithm = make(_METHOD.value, model)
    key = jax.random.key(0)
    state = jax.jit(algorithm.init)(key, clients)
    step = jax.jit(functools.partial(one_round, algorithm), donate_argnums=1)
    sizes = clients.mask.sum(axis=1)

    @jax.jit
    def aggregator(params: PyTree, sizes: Array, graph: Graph, k: int, h: int) -> Aggregator:
        row = mixing_weights(graph, sizes)[h]
        members = graph.members[h]
        w = mix_at_aggregator(row, members, params)
        joined = aggregator_data(of_members(clients, members), graph.mask[h])
        return setting.aggregator(k, h, w, *joined)

    numbers = np.linspace(0, size - 1, min(_AGGREGATORS.value, size)).astype(int)
    graphs = common.regular_graphs(size, rounds[-1], DEGREE)
    for k, graph in enumerate(tqdm(graphs, desc='rounds', disable=None)):
        if k + 1 in rounds:
            each = tqdm(numbers, desc=f'aggregators of round {k + 1}', disable=None)
            yield k + 1, (aggregator(state.params, sizes, graph, k, h) for h in each)
        if k + 1 < rounds[-1]:
            state, _ = step(jax.random.fold_in(key, k), state, k, graph, clients)


def exactly(setting: Setting) -> Callable[[Aggregator], np.ndarray]:
    """S_t [T, C, N] of an aggregator in float64."""
    options = {'tolerance': REFERENCE, 'sampled_steps': setting.ntk.timesteps[-1]}
    program = jax.jit(lambda aggregator: setting.evolved(aggregator, **options))

    def widened(leaf: Array) -> Array:
        return leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    def run(aggregator: Aggregator) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(program(jax.tree.map(widened, aggregator)))

    return run


def relative(totals: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """||totals - expected|| / ||expected|| at each timestep."""
    apart = np.linalg.norm(totals - expected, axis=(1, 2))
    return apart / np.linalg.norm(expected, axis=(1, 2))


if __name__ == '__main__':
    common.start(main)
