"""The constants of the convergence theorem, measured round by round, and its bound with them."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dfl_jax import simulate
from dfl_jax.experiment.run_directory import Row
from dfl_jax.papers.theory import convergence


def measure(experiment: Any) -> Iterator[Row]:
    """Trains and yields the objects of theory.jsonl, round by round.

    All but `consensus_accuracy`, `timestep_mean` and the names ending in `_after` are of the
    round's start, where the theorem has w_bar^(k), or of its update.
    """
    algorithm, graphs, key = experiment.algorithm, experiment.graphs, experiment.key
    settings = experiment.configured.resolved
    sizes = np.array([len(part) for part in experiment.parts])
    clients = jax.device_put(experiment.clients)
    of_run = {name: settings[name] for name in ('mixing', 'chunk')}
    diagnosis = convergence.diagnose(experiment.model, **of_run)
    k_init, _ = jax.random.split(key)  # as simulate.run does
    initial = jax.jit(algorithm.init)(k_init, clients)
    before = jax.tree.map(jnp.copy, initial.params)  # every round donates its state
    more = {'client_eval_samples': experiment.evaluated, 'resume': (initial, simulate.Progress())}
    for metrics, state, _ in simulate.run(algorithm, clients, graphs, experiment.test, key, **more):
        k = metrics['round'] - 1
        graph = jax.tree.map(lambda a, k=k: np.asarray(a[k]), graphs)
        diagnosed = jax.device_get(diagnosis(before, state.params, graph, clients))
        yield {
            'round': metrics['round'],
            **convergence.mixing_of(graph, sizes, settings['mixing']),
            **{name: float(value) for name, value in diagnosed._asdict().items()},
            'rate': settings['lr'] * math.exp(-settings['lr_decay'] * k),
            'timestep_mean': metrics['timestep_mean'],
            'consensus_accuracy': metrics['consensus_accuracy'],
        }
        before = jax.tree.map(jnp.copy, state.params)


def constants(rows: list[Row]) -> dict[str, Any]:
    """The arguments of `convergence.bound` but eta: bounds of every round are the largest met.

    T is the mean over rounds of the clients' mean chosen timestep, since so many steps were made.
    """
    largest = lambda name: max(row[name] for row in rows)  # noqa: E731
    lowest = min(*(row['loss'] for row in rows), rows[-1]['loss_after'])
    return {
        'timesteps': sum(row['timestep_mean'] for row in rows) / len(rows),
        'rounds': len(rows),
        'smoothness': largest('smoothness_max'),
        'delta': largest('delta_ntk_max'),
        'gradient_norm': largest('gradient_norm_max'),
        'gradient_variance': largest('gradient_variance'),
        'second_modulus': largest('lambda'),
        'descent': rows[0]['loss'] - lowest,
    }


def evaluate(rows: list[Row]) -> dict[str, convergence.Bound]:
    """The bound with the run's own step, its mean over rounds, and with an admissible one."""
    measured = constants(rows)
    mean = sum(row['rate'] for row in rows) / len(rows)
    admissible = convergence.admissible_eta(measured['timesteps'], measured['smoothness'])
    return {
        "the run's step": convergence.bound(eta=mean, **measured),
        'admissible step': convergence.bound(eta=admissible, **measured),
    }
